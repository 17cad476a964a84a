//! Products with weights that stay compressed on the device; the mathematics is in [`crate::frozen`].

use burn::tensor::{DType, Tensor};
use burn_cubecl::CubeDevice;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::product::{multiply, multiply_each, plus_bias};
use super::quantized::operand;
use super::sums::gradient_of_bias;
use super::{GpuOp, computes, cube_of, tensor_of};
use crate::frozen::{FrozenLinear, FrozenWeight};
use crate::product::WeightFormat;

impl FrozenWeight {
    /// Returns the weight on `device` as an operand of a product, `[out, in]`.
    pub(super) fn operand_on(&self, device: &CubeDevice) -> CubeTensor {
        operand(|| self.for_gpu(), self.on_devices(), device)
    }
}

/// Multiplies the rows `x` by several weights, without gradient. `None` unless `x` is on a GPU that holds all weights in bf16: others are
/// expanded, one at a time.
pub(crate) fn apply_each<const N: usize>(
    weights: &[(&FrozenWeight, Option<Tensor<1>>); N],
    x: &Tensor<2>,
) -> Option<[Tensor<2>; N]> {
    let (gpu, precision) = (crate::fused::gpu(&x.device())?, weights[0].0.precision());
    let is_held = |weight: &FrozenWeight| weight.format() == WeightFormat::BF16 && weight.precision() == precision;
    if !computes(&gpu, DType::BF16) || !weights.iter().all(|(weight, _)| is_held(weight)) {
        return None;
    }
    let x = into_contiguous(cube_of(x.clone()));
    let operands = weights.each_ref().map(|(weight, _)| weight.operand_on(&gpu));
    let products = multiply_each(&x, operands.each_ref(), [false, true], precision);
    let mut biases = weights.iter().map(|(_, bias)| bias.clone().map(cube_of));
    Some(products.map(|y| tensor_of(plus_bias(y, biases.next().expect("one for each weight")))))
}

impl GpuOp for FrozenLinear {
    fn supports(&self, _: &CubeDevice, dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::BF16) && self.0.is_narrow()
    }

    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let precision = self.0.precision();
        let weight = self.0.operand_on(&inputs[0].device);
        let y = multiply(&inputs[0], &weight, [false, true], precision);
        (plus_bias(y, inputs.into_iter().nth(1)), Vec::new())
    }

    fn backward(&self, _: &[CubeTensor], grad: CubeTensor, needed: &[bool]) -> Vec<Option<CubeTensor>> {
        let precision = self.0.precision();
        let grad_x = needed[0].then(|| multiply(&grad, &self.0.operand_on(&grad.device), [false, false], precision));
        std::iter::once(grad_x).chain(gradient_of_bias(&grad, needed.get(1))).collect()
    }
}
