//! Linear layers: `y = x Wᵀ + b` with the weight in its layout on disk.
//!
//! `∂x = g W`, `∂W = gᵀ x`, `∂b = Σₙ gₙ`. For [`Layout::InOut`] (GPT-2's Conv1D), W is transposed throughout, so no gradient is ever
//! transposed afterwards.

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;

// Without GPUs, no kernel adds.
#[cfg(not(feature = "gpu"))]
use crate::fused::Op as Adds;
use crate::fused::{Dense, Op, apply, supports};
#[cfg(feature = "gpu")]
use crate::gpu::onto::{Adds, Onto};
use crate::matmul::matmul;
use crate::product::{Mat, Precision, Product};

/// Memory layout of a linear layer's weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `[out, in]`, as in most models.
    OutIn,
    /// `[in, out]`, as in GPT-2.
    InOut,
}

/// Multiplies `x_nd` by the weight and adds the bias. `x_nd` is `[N, in]`, the result `[N, out]`.
///
/// `weight` is `[out, in]` or `[in, out]`, as `layout` says, and `bias` is `[out]`. All inputs carry gradient. The operands of the three
/// products are held in `precision` on the CPU and on GPUs with bf16. Devices that run the reference use f32.
pub fn linear(
    x_nd: Tensor<2>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    layout: Layout,
    precision: Precision,
) -> Tensor<2> {
    linear_written_in(Precision::F32, x_nd, weight, bias, layout, precision)
}

/// Like [`linear`], with the precision in which the result is written.
///
/// A GPU that multiplies in bf16 can write the result in bf16, if what reads it takes that: norms, [`rope`](crate::rope()), gated
/// activations, and values of attention. This halves the bytes of the result. Other devices ignore it.
pub fn linear_written_in(
    result: Precision,
    x_nd: Tensor<2>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    layout: Layout,
    precision: Precision,
) -> Tensor<2> {
    let op = Linear { layout, precision, result };
    if !supports(&op, &x_nd.device(), x_nd.dtype()) {
        return reference(x_nd, weight, bias, layout);
    }
    let mut inputs = vec![x_nd.into_dispatch(), weight.into_dispatch()];
    inputs.extend(bias.map(Tensor::into_dispatch));
    apply(op, inputs)
}

/// Adds the product of `x_nd` and the weight to `sum_nd`, `[N, out]`. All inputs carry gradient.
///
/// Otherwise like [`linear`]. A GPU adds in the pass that writes the product.
pub fn linear_onto(
    sum_nd: Tensor<2>,
    x_nd: Tensor<2>,
    weight: Tensor<2>,
    layout: Layout,
    precision: Precision,
) -> Tensor<2> {
    let inputs = [&x_nd, &weight].map(|input| input.clone().into_dispatch());
    onto(Linear::new(layout, precision), inputs.into(), sum_nd, || linear(x_nd, weight, None, layout, precision))
}

/// Adds the linear layer `op` of `inputs` to `sum_nd`. A GPU does this in the pass that writes the product. Without such a kernel, adds what
/// `otherwise` computes.
pub(crate) fn onto(
    op: impl Adds,
    inputs: Vec<DispatchTensor>,
    sum_nd: Tensor<2>,
    otherwise: impl FnOnce() -> Tensor<2>,
) -> Tensor<2> {
    #[cfg(feature = "gpu")]
    if let Some(gpu) = crate::fused::gpu(&sum_nd.device())
        && sum_nd.dtype() == burn::tensor::DType::F32
        && op.supports(&gpu, sum_nd.dtype())
    {
        let inputs = inputs.into_iter().chain([sum_nd.into_dispatch()]);
        return crate::fused::apply_on_gpu(Onto(op), inputs.collect());
    }
    drop((op, inputs));
    sum_nd + otherwise()
}

/// Tensors at both ends of an operation that products read, with the precision of these products.
///
/// A GPU writes such a tensor as an operand of the products, so that no product has to convert it. The numbers are those that the products
/// would have read anyway. Other devices ignore this. The default, f32, converts nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Operands {
    /// Precision of the linear layers that read the result. Only they may read it: [`linear`], [`low_rank`](crate::low_rank),
    /// [`FrozenWeight`](crate::FrozenWeight), and attention for queries and keys. Its gradient is in f32.
    pub result: Precision,
    /// Precision of the linear layers that made the input. They have no bias, and nothing else reads their results. Their backward pass
    /// reads the gradient of the input.
    pub input: Precision,
}

/// Converts the input of several linear layers once to the type in which their products hold it, `[N, in]` to `[N, in]`. The input
/// carries gradient, which passes unchanged, in f32.
///
/// Only linear layers take the result, as in [`Operands::result`]. It is `x_nd` itself on devices whose products
/// do not hold their operands in bf16, and on the CPU, whose products convert them while packing.
pub fn operand(x_nd: Tensor<2>, precision: Precision) -> Tensor<2> {
    #[cfg(feature = "gpu")]
    if let Some(gpu) = crate::fused::gpu(&x_nd.device()) {
        use crate::gpu::GpuOp;
        let op = crate::gpu::product::Operand(precision);
        if op.supports(&gpu, x_nd.dtype()) {
            return crate::fused::apply_on_gpu(op, vec![x_nd.into_dispatch()]);
        }
    }
    // Only GPUs have operands of another type.
    let _ = precision;
    x_nd
}

/// The definition, in plain tensors.
pub fn reference(x_nd: Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>, layout: Layout) -> Tensor<2> {
    let y = match layout {
        Layout::OutIn => matmul(x_nd, weight.transpose()),
        Layout::InOut => matmul(x_nd, weight),
    };
    match bias {
        Some(bias) => y + bias.unsqueeze(),
        None => y,
    }
}

#[derive(Debug)]
pub(crate) struct Linear {
    pub(crate) layout: Layout,
    pub(crate) precision: Precision,
    /// Precision in which the result is written, for GPUs.
    #[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "only GPUs write results in another type"))]
    pub(crate) result: Precision,
}

impl Linear {
    /// A layer whose result is in f32.
    pub(crate) fn new(layout: Layout, precision: Precision) -> Self {
        Self { layout, precision, result: Precision::F32 }
    }
}

impl Op for Linear {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let (x, weight) = (&inputs[0], &inputs[1]);
        let (n, width) = (x.dims()[0], x.dims()[1]);
        let (w, out) = match self.layout {
            Layout::OutIn => (Mat::dense(weight.values(), weight.dims()[0], width).t(), weight.dims()[0]),
            Layout::InOut => (Mat::dense(weight.values(), width, weight.dims()[1]), weight.dims()[1]),
        };
        let (product, x_mat) = (Product::new(self.precision), Mat::dense(x.values(), n, width));
        let y = product.fresh(inputs.get(2).map(Dense::values), x_mat, w);
        (Dense::new(y, &[n, out]), vec![x.clone(), weight.clone()])
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, needed: &[bool]) -> Vec<Option<Dense>> {
        let (x, weight) = (&saved[0], &saved[1]);
        let (n, width, out) = (x.dims()[0], x.dims()[1], grad.dims()[1]);
        let (product, g) = (Product::new(self.precision), Mat::dense(grad.values(), n, out));
        let grad_x = needed[0].then(|| {
            let w = match self.layout {
                Layout::OutIn => Mat::dense(weight.values(), out, width),
                Layout::InOut => Mat::dense(weight.values(), width, out).t(),
            };
            Dense::new(product.fresh(None, g, w), &[n, width])
        });
        let grad_weight = needed[1].then(|| {
            let x = Mat::dense(x.values(), n, width);
            let grad_weight = match self.layout {
                Layout::OutIn => product.fresh(None, g.t(), x),
                Layout::InOut => product.fresh(None, x.t(), g),
            };
            Dense::new(grad_weight, &weight.dims())
        });
        let mut gradients = vec![grad_x, grad_weight];
        if let Some(&needed) = needed.get(2) {
            gradients.push(needed.then(|| grad.column_sums()));
        }
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
    use crate::fused::testing::{assert_close, check, given, host, leaf};

    #[test]
    fn agrees_with_the_reference() {
        for layout in [Layout::OutIn, Layout::InOut] {
            for (n, width, out) in [(1, 1, 1), (7, 5, 3), (65, 33, 70)] {
                let weight = match layout {
                    Layout::OutIn => leaf([out, width], 2),
                    Layout::InOut => leaf([width, out], 2),
                };
                let inputs = [leaf([n, width], 1), weight, leaf([1, out], 3)];
                let run = |f: fn(Tensor<2>, Tensor<2>, Option<Tensor<1>>, Layout) -> Tensor<2>| {
                    move |x: &[Tensor<2>]| f(x[0].clone(), x[1].clone(), Some(x[2].clone().reshape([out])), layout)
                };
                check(
                    "linear",
                    &inputs,
                    run(|x, w, b, layout| linear(x, w, b, layout, Precision::F32)),
                    run(reference),
                    1e-5,
                );
            }
        }
    }

    #[test]
    fn large_and_tiny_numbers_meet_without_loss() {
        // (1e30 − 1e30) · 1 + 1e30 · 1e−30 + 1e−40 · 1e38, in this order.
        let (x, weight) = (given([1, 4], &[1e30, -1e30, 1e30, 1e-40]), given([1, 4], &[1.0, 1.0, 1e-30, 1e38]));
        let y = linear(x.clone(), weight.clone(), None, Layout::OutIn, Precision::F32);
        assert_close("value", &host(y.clone().inner()), &[1.01], 1e-6);
        let gradients = y.backward();
        assert_eq!(host(x.grad(&gradients).expect("gradient")), [1.0, 1.0, 1e-30, 1e38]);
        assert_eq!(host(weight.grad(&gradients).expect("gradient")), [1e30, -1e30, 1e30, 1e-40]);
    }
}
