//! Weights without gradient, packed once for many products: those of the sampling model, the reference and the reward model.
//!
//! `y = x Wᵀ + b`, `∂x = g W`. Neither product unpacks the whole weight, so adapters can train on quantized weights.

use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};

use crate::fused::{Dense, Op, apply, is_cpu, supports};
use crate::host::{host_values, read};
use crate::linear::{self, Layout, onto};
use crate::product::{Mat, PackedMatrix, Precision, WeightFormat};
use crate::quantized::Quantized;

/// Weight of a linear layer, packed and shared.
#[derive(Debug, Clone)]
pub struct FrozenWeight {
    held: Arc<Held>,
    /// Copies of its codes on GPUs.
    #[cfg(feature = "gpu")]
    copies: crate::table::OnDevices,
}

/// Where a weight is held.
#[derive(Debug)]
enum Held {
    /// In host memory.
    Packed(PackedMatrix),
    /// In bf16 on a GPU. The host has a copy only after it was requested.
    #[cfg(feature = "gpu")]
    OnGpu(Box<crate::gpu::quantized::Narrow>),
}

impl From<PackedMatrix> for FrozenWeight {
    fn from(matrix: PackedMatrix) -> Self {
        Self {
            held: Arc::new(Held::Packed(matrix)),
            #[cfg(feature = "gpu")]
            copies: Default::default(),
        }
    }
}

impl FrozenWeight {
    /// Packs `weight`, given in its layout on disk. No gradient flows to it. A GPU converts a weight to bf16 itself.
    pub fn new(weight: Tensor<2>, layout: Layout, format: WeightFormat) -> Self {
        #[cfg(feature = "gpu")]
        if format == WeightFormat::BF16
            && let Some((narrow, copies)) = crate::gpu::quantized::Narrow::new(&weight, layout)
        {
            return Self { held: Arc::new(Held::OnGpu(Box::new(narrow))), copies };
        }
        let [rows, columns] = weight.dims();
        let weight = read(weight);
        let matrix = Mat::dense(weight.values(), rows, columns);
        let matrix = if layout == Layout::OutIn { matrix.t() } else { matrix };
        PackedMatrix::new(matrix, format).into()
    }

    /// Takes over a quantized weight without changing a bit.
    pub fn from_quantized(weight: Quantized) -> Self {
        PackedMatrix::from_quantized(weight).into()
    }

    /// Returns the quantized weight, or `None` if the weight is held in floats.
    pub fn quantized(&self) -> Option<Quantized> {
        match &*self.held {
            Held::Packed(matrix) => matrix.quantized(),
            #[cfg(feature = "gpu")]
            Held::OnGpu(_) => None,
        }
    }

    /// Returns the same shared weight with operands in `precision`, if the format leaves the precision open (NF4).
    pub fn with_precision(&self, precision: Precision) -> Self {
        match &*self.held {
            Held::Packed(matrix) if self.format() == WeightFormat::NF4 && self.precision() != precision => {
                matrix.with_operand(precision).into()
            }
            _ => self.clone(),
        }
    }

    /// Precision of the other operand of its products.
    pub(crate) fn precision(&self) -> Precision {
        match &*self.held {
            Held::Packed(matrix) => matrix.precision(),
            #[cfg(feature = "gpu")]
            Held::OnGpu(_) => Precision::Bf16,
        }
    }

    /// Format in which the weight is held.
    pub fn format(&self) -> WeightFormat {
        match &*self.held {
            Held::Packed(matrix) => matrix.format(),
            #[cfg(feature = "gpu")]
            Held::OnGpu(_) => WeightFormat::BF16,
        }
    }

    /// Numbers of inputs and outputs.
    pub fn dims(&self) -> [usize; 2] {
        match &*self.held {
            Held::Packed(matrix) => matrix.dims(),
            #[cfg(feature = "gpu")]
            Held::OnGpu(narrow) => narrow.dims(),
        }
    }

    /// Size in memory, in bytes.
    pub fn bytes(&self) -> usize {
        match &*self.held {
            Held::Packed(matrix) => matrix.bytes(),
            #[cfg(feature = "gpu")]
            Held::OnGpu(narrow) => 2 * narrow.dims().iter().product::<usize>(),
        }
    }

    /// Multiplies `x_nd` by the weight and adds the bias: `[N, in]` to `[N, out]`. `x_nd` and `bias` carry gradient.
    ///
    /// A GPU keeps weights in 16, 8 or 4 bits as they are and expands them for each product. Other devices receive them in f32.
    pub fn apply(&self, x_nd: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
        self.apply_written_in(Precision::F32, x_nd, bias)
    }

    /// Like [`apply`](Self::apply), with the precision in which the result is written, as in
    /// [`linear_written_in`](crate::linear_written_in).
    pub fn apply_written_in(&self, result: Precision, x_nd: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
        let (device, op) = (x_nd.device(), FrozenLinear { weight: self.clone(), result });
        if !supports(&op, &device, x_nd.dtype()) {
            return linear::reference(x_nd, self.dense_on(&device), bias, Layout::InOut);
        }
        let mut inputs = vec![x_nd.into_dispatch()];
        inputs.extend(bias.map(Tensor::into_dispatch));
        apply(op, inputs)
    }

    /// Adds the product of `x_nd` and the weight to `sum_nd`, `[N, out]`. Both carry gradient.
    ///
    /// Otherwise like [`apply`](Self::apply). A GPU adds in the pass that writes the product.
    pub fn apply_onto(&self, sum_nd: Tensor<2>, x_nd: Tensor<2>) -> Tensor<2> {
        let op = FrozenLinear { weight: self.clone(), result: Precision::F32 };
        onto(op, vec![x_nd.clone().into_dispatch()], sum_nd, || self.apply(x_nd, None))
    }

    /// Runs [`apply`](Self::apply) for several weights on the same rows, each with its bias. The results are identical to the bit. Without
    /// autodiff, the rows are packed once for all weights and the products share the threads, which helps if there are few rows.
    ///
    /// `result` is the precision in which the results are written, as in [`linear_written_in`](crate::linear_written_in).
    ///
    /// # Panics
    /// If the number of inputs of a weight is not the width of `x_nd`.
    pub fn apply_each<const N: usize>(
        weights: [(&Self, Option<Tensor<1>>); N],
        x_nd: Tensor<2>,
        result: Precision,
    ) -> [Tensor<2>; N] {
        let device = x_nd.device();
        let is_recorded = |bias: &Option<Tensor<1>>| bias.as_ref().is_some_and(Tensor::is_autodiff);
        let is_recorded = x_nd.is_autodiff() || weights.iter().any(|(_, bias)| is_recorded(bias));
        #[cfg(feature = "gpu")]
        if !is_recorded && let Some(results) = Self::apply_each_on_gpu(&weights, &x_nd, result) {
            return results;
        }
        if is_recorded || !is_cpu(&device) {
            return weights.map(|(weight, bias)| weight.apply_written_in(result, x_nd.clone(), bias));
        }
        let biases = weights.each_ref().map(|(_, bias)| bias.clone().map(host_values));
        let (n, x) = (x_nd.dims()[0], host_values(x_nd));
        let matrices = std::array::from_fn(|i| (weights[i].0.matrix(), biases[i].as_deref()));
        let results = PackedMatrix::fresh_each(matrices, Mat::dense(&x, n, matrices[0].0.dims()[0]));
        let mut outputs = matrices.iter().map(|(matrix, _)| matrix.dims()[1]);
        results.map(|values| Dense::new(values, &[n, outputs.next().expect("one a weight")]).tensor())
    }

    /// Runs [`apply_each`](Self::apply_each) without autodiff. `None` unless the rows are on a GPU that holds all weights in bf16: others are
    /// expanded, one at a time.
    #[cfg(feature = "gpu")]
    fn apply_each_on_gpu<const N: usize>(
        weights: &[(&Self, Option<Tensor<1>>); N],
        x_nd: &Tensor<2>,
        result: Precision,
    ) -> Option<[Tensor<2>; N]> {
        use crate::gpu::product::{multiply_each, plus_bias};
        use crate::gpu::{computes, cube_of, quantized, tensor_of};
        let (gpu, precision) = (crate::fused::gpu(&x_nd.device())?, weights[0].0.precision());
        let is_held = |weight: &Self| weight.format() == WeightFormat::BF16 && weight.precision() == precision;
        if !computes(&gpu, burn::tensor::DType::BF16) || !weights.iter().all(|(weight, _)| is_held(weight)) {
            return None;
        }
        let operands =
            weights.each_ref().map(|(weight, _)| quantized::operand(|| weight.for_gpu(), &weight.copies, &gpu));
        let products = multiply_each(&cube_of(x_nd.clone()), operands.each_ref(), [false, true], precision, result);
        let mut biases = weights.iter().map(|(_, bias)| bias.clone().map(cube_of));
        Some(products.map(|y| tensor_of(plus_bias(y, biases.next().expect("one for each weight")))))
    }

    /// Returns the weight in f32 as products use it, `[in, out]`, without gradient.
    pub fn dense(&self) -> Tensor<2> {
        let [width, out] = self.dims();
        Dense::new(self.matrix().unpacked(), &[width, out]).tensor()
    }

    /// Like [`dense`](Self::dense), on `device`.
    pub(crate) fn dense_on(&self, device: &Device) -> Tensor<2> {
        #[cfg(feature = "gpu")]
        if self.is_narrow()
            && let Some(dense) = crate::gpu::quantized::dense(|| self.for_gpu(), &self.copies, device)
        {
            return dense;
        }
        Tensor::from_data(TensorData::new(self.matrix().unpacked(), self.dims()), device)
    }

    /// Whether the weight is held in 16, 8 or 4 bits.
    #[cfg(feature = "gpu")]
    pub(crate) fn is_narrow(&self) -> bool {
        self.format() != WeightFormat::F32
    }

    /// The weight in the form that GPUs use; see [`is_narrow`](Self::is_narrow).
    #[cfg(feature = "gpu")]
    pub(crate) fn for_gpu(&self) -> crate::gpu::quantized::CompressedWeight {
        use crate::gpu::quantized::CompressedWeight;
        self.quantized()
            .map_or_else(|| CompressedWeight::Bf16(self.matrix().unpacked(), self.dims()), CompressedWeight::Quantized)
    }

    /// Copies of the weight for GPUs.
    #[cfg(feature = "gpu")]
    pub(crate) fn on_devices(&self) -> &crate::table::OnDevices {
        &self.copies
    }

    /// The weight in host memory. A weight on a GPU is copied at the first call.
    pub(crate) fn matrix(&self) -> &PackedMatrix {
        match &*self.held {
            Held::Packed(matrix) => matrix,
            #[cfg(feature = "gpu")]
            Held::OnGpu(narrow) => narrow.on_host(),
        }
    }
}

/// Whether weights without gradient are packed for the kernels of `device`. Other devices store them unpacked.
pub fn packs_weights(device: &Device) -> bool {
    is_cpu(device)
}

/// Whether products on `device` can hold their operands in `precision`. bf16 works on the CPU's kernels and on GPUs that compute in bf16.
pub fn multiplies_in(device: &Device, precision: Precision) -> bool {
    #[cfg(feature = "gpu")]
    if let Some(gpu) = crate::fused::gpu(device) {
        return precision == Precision::F32 || crate::gpu::computes(&gpu, burn::tensor::DType::BF16);
    }
    precision == Precision::F32 || is_cpu(device)
}

#[derive(Debug)]
pub(crate) struct FrozenLinear {
    pub(crate) weight: FrozenWeight,
    /// Precision in which the result is written, for GPUs.
    #[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "only GPUs write results in another type"))]
    pub(crate) result: Precision,
}

impl Op for FrozenLinear {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let ([width, out], n) = (self.weight.dims(), inputs[0].dims()[0]);
        let y = self.weight.matrix().fresh(inputs.get(1).map(Dense::values), Mat::dense(inputs[0].values(), n, width));
        (Dense::new(y, &[n, out]), Vec::new())
    }

    fn backward(&self, _: &[Dense], grad: &Dense, needed: &[bool]) -> Vec<Option<Dense>> {
        let ([width, out], n) = (self.weight.dims(), grad.dims()[0]);
        let mut gradients = vec![needed[0].then(|| {
            let g = Mat::dense(grad.values(), n, out);
            Dense::new(self.weight.matrix().fresh_transposed(g), &[n, width])
        })];
        gradients.extend(needed.get(1).map(|&needed| needed.then(|| grad.column_sums())));
        gradients
    }

    #[cfg(feature = "gpu")]
    fn on_gpu(&self) -> Option<&dyn crate::gpu::GpuOp> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{check, host, leaf};
    use crate::linear::linear;

    #[test]
    fn weights_applied_at_once_give_what_each_gives() {
        let of = |out: usize, seed, format| FrozenWeight::new(leaf([out, 70], seed).inner(), Layout::OutIn, format);
        let bias: Tensor<1> = leaf([40], 9).inner();
        // Few and many rows; formats with equal and with different operands; more work than one thread does alone.
        for n in [1, 8, 200] {
            for (a, b) in [(WeightFormat::F32, WeightFormat::F32), (WeightFormat::NF4, WeightFormat::INT8)] {
                let (x, [a, b, c]) = (leaf([n, 70], 1), [of(33, 2, a), of(40, 3, b), of(9_000, 4, a)]);
                let each = || [(&a, None), (&b, Some(bias.clone())), (&c, None)];
                let expected = each().map(|(weight, bias)| host(weight.apply(x.clone().inner(), bias)));
                assert!(
                    FrozenWeight::apply_each(each(), x.clone().inner(), Precision::F32).map(host) == expected,
                    "{n} rows"
                );
                let recorded = FrozenWeight::apply_each(each(), x.clone(), Precision::F32);
                assert!(recorded.iter().all(Tensor::is_autodiff), "gradients pass");
                assert!(recorded.map(|y| host(y.inner())) == expected, "{n} rows, recorded");
            }
        }
    }

    #[test]
    fn agrees_with_the_weight_it_was_packed_from() {
        for (n, width, out) in [(1, 1, 1), (5, 70, 33), (200, 33, 40)] {
            for layout in [Layout::OutIn, Layout::InOut] {
                let weight = match layout {
                    Layout::OutIn => leaf([out, width], 3),
                    Layout::InOut => leaf([width, out], 3),
                };
                for precision in [Precision::F32, Precision::Bf16] {
                    let weight = weight.clone().detach();
                    let frozen = FrozenWeight::new(weight.clone().inner(), layout, precision.into());
                    assert_eq!(frozen.dims(), [width, out]);
                    check(
                        "frozen linear",
                        &[leaf([n, width], 1), leaf([1, out], 2)],
                        |x| frozen.apply(x[0].clone(), Some(x[1].clone().reshape([out]))),
                        |x| {
                            let bias = Some(x[1].clone().reshape([out]));
                            linear(x[0].clone(), weight.clone(), bias, layout, precision)
                        },
                        1e-6,
                    );
                }
            }
        }
    }
}
