//! Activations of feed-forward layers, and the linear layer after one: `y = a(x…) Wᵀ + b`.
//!
//! A separate linear layer would keep `a(x…)` for the gradient of its weight, in addition to the `x…` that the activation keeps. Here only
//! `x…` is kept and `a(x…)` is computed again. This saves a third to a half of a feed-forward layer's memory for less than a hundredth of
//! its arithmetic.

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;

use crate::fused::{Dense, Op, apply, supports};
use crate::geglu::{self, geglu};
use crate::linear::{Layout, Linear, Operands, linear, onto};
use crate::product::Precision;
use crate::relu::{self, relu};
use crate::swiglu::{self, swiglu};
use crate::{Gelu, gelu};

/// Activation between the linear layers of a feed-forward layer, with its inputs.
#[derive(Debug, Clone)]
pub enum Activated {
    /// GELU of one tensor.
    Gelu(Gelu, Tensor<2>),
    /// max(x, 0).
    Relu(Tensor<2>),
    /// `silu(gate) ∘ up`.
    Swiglu(Tensor<2>, Tensor<2>),
    /// `gelu(gate) ∘ up`.
    Geglu(Gelu, Tensor<2>, Tensor<2>),
}

impl Activated {
    /// Returns the value of the activation, `[N, I]`. Its inputs carry gradient.
    pub fn tensor(self) -> Tensor<2> {
        match self {
            Self::Gelu(form, x_nd) => gelu(x_nd, form),
            Self::Relu(x_nd) => relu(x_nd),
            Self::Swiglu(gate_nd, up_nd) => swiglu(gate_nd, up_nd),
            Self::Geglu(form, gate_nd, up_nd) => geglu(gate_nd, up_nd, form),
        }
    }

    /// Like [`tensor`](Self::tensor), between the products that `operands` describes.
    pub fn tensor_between(self, operands: Operands) -> Tensor<2> {
        #[cfg(feature = "gpu")]
        {
            use crate::gpu::GpuOp;
            let op = Between(self.activation(), operands);
            let (device, dtype) = self.place();
            if crate::fused::gpu(&device).is_some_and(|gpu| op.supports(&gpu, dtype)) {
                return crate::fused::apply_on_gpu(op, self.into_inputs());
            }
        }
        // Only GPUs have operands of another type.
        let _ = operands;
        self.tensor()
    }

    /// Multiplies the activation by the weight and adds the bias. Equals [`linear`] of [`tensor`](Self::tensor) to the bit, with the same
    /// gradients, but needs less memory. Shapes are those of [`linear`], and all inputs carry gradient.
    ///
    /// `inputs` is the precision of the linear layers that made the inputs, as in [`Operands::input`].
    pub fn linear(
        self,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
        layout: Layout,
        precision: Precision,
        inputs: Precision,
    ) -> Tensor<2> {
        let op = LinearOfActivation { activation: self.activation(), linear: Linear::new(layout, precision), inputs };
        if !supports(&op, &weight.device(), weight.dtype()) {
            return linear(self.tensor(), weight, bias, layout, precision);
        }
        let mut inputs = self.into_inputs();
        inputs.push(weight.into_dispatch());
        inputs.extend(bias.map(Tensor::into_dispatch));
        apply(op, inputs)
    }

    /// Adds the product of the activation and the weight to `sum_nd`, `[N, out]`, which carries gradient.
    ///
    /// Otherwise like [`linear`](Self::linear). A GPU adds in the pass that writes the product.
    pub fn linear_onto(
        self,
        sum_nd: Tensor<2>,
        weight: Tensor<2>,
        layout: Layout,
        precision: Precision,
        inputs: Precision,
    ) -> Tensor<2> {
        let op = LinearOfActivation { activation: self.activation(), linear: Linear::new(layout, precision), inputs };
        let mut of = self.clone().into_inputs();
        of.push(weight.clone().into_dispatch());
        onto(op, of, sum_nd, || self.linear(weight, None, layout, precision, inputs))
    }

    fn activation(&self) -> Activation {
        match self {
            Self::Gelu(form, _) => Activation::Gelu(*form),
            Self::Relu(_) => Activation::Relu,
            Self::Swiglu(..) => Activation::Swiglu,
            Self::Geglu(form, ..) => Activation::Geglu(*form),
        }
    }

    /// Device and type of its inputs.
    #[cfg(feature = "gpu")]
    fn place(&self) -> (burn::tensor::Device, burn::tensor::DType) {
        match self {
            Self::Gelu(_, x) | Self::Relu(x) | Self::Swiglu(x, _) | Self::Geglu(_, x, _) => (x.device(), x.dtype()),
        }
    }

    fn into_inputs(self) -> Vec<DispatchTensor> {
        match self {
            Self::Gelu(_, x_nd) | Self::Relu(x_nd) => vec![x_nd.into_dispatch()],
            Self::Swiglu(gate_nd, up_nd) | Self::Geglu(_, gate_nd, up_nd) => {
                assert_eq!(up_nd.dims(), gate_nd.dims(), "up_nd");
                vec![gate_nd.into_dispatch(), up_nd.into_dispatch()]
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Activation {
    Gelu(Gelu),
    Relu,
    Swiglu,
    Geglu(Gelu),
}

impl Activation {
    /// Number of input tensors.
    pub(crate) fn arity(self) -> usize {
        match self {
            Self::Gelu(_) | Self::Relu => 1,
            Self::Swiglu | Self::Geglu(_) => 2,
        }
    }

    fn value(self, of: &[Dense]) -> Dense {
        match self {
            Self::Gelu(form) => form.values(&of[0]),
            Self::Relu => relu::values(&of[0]),
            Self::Swiglu => swiglu::values(&of[0], &of[1]),
            Self::Geglu(form) => geglu::values(form, &of[0], &of[1]),
        }
    }

    fn gradients(self, of: &[Dense], grad: &Dense) -> Vec<Dense> {
        match self {
            Self::Gelu(form) => vec![form.gradient(&of[0], grad)],
            Self::Relu => vec![relu::gradient(&of[0], grad)],
            Self::Swiglu => swiglu::gradients(&of[0], &of[1], grad).into(),
            Self::Geglu(form) => geglu::gradients(form, &of[0], &of[1], grad).into(),
        }
    }
}

/// An activation between the products that the operands describe, on a GPU.
#[cfg(feature = "gpu")]
#[derive(Debug)]
pub(crate) struct Between(pub(crate) Activation, pub(crate) Operands);

#[derive(Debug)]
pub(crate) struct LinearOfActivation {
    pub(crate) activation: Activation,
    pub(crate) linear: Linear,
    /// Precision of the products that made the inputs, for GPUs.
    #[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "only GPUs have operands of another type"))]
    pub(crate) inputs: Precision,
}

impl LinearOfActivation {
    /// Which gradients the linear layer must return, for those that are needed of the whole: its input's if any input of the activation
    /// needs one.
    pub(crate) fn needed_of_linear(&self, needed: &[bool]) -> Vec<bool> {
        let (of, parameters) = needed.split_at(self.activation.arity());
        [&[of.contains(&true)], parameters].concat()
    }
}

impl Op for LinearOfActivation {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let (of, parameters) = inputs.split_at(self.activation.arity());
        let linear = [&[self.activation.value(of)], parameters].concat();
        let (y, _) = self.linear.forward(&linear);
        (y, inputs[..=of.len()].to_vec())
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, needed: &[bool]) -> Vec<Option<Dense>> {
        let (weight, of) = saved.split_last().expect("the weight is saved last");
        let linear_needed = self.needed_of_linear(needed);
        let linear = [self.activation.value(of), weight.clone()];
        let mut gradients = self.linear.backward(&linear, grad, &linear_needed);
        drop(linear);
        let mut all: Vec<Option<Dense>> = match gradients.remove(0) {
            Some(grad_x) => self.activation.gradients(of, &grad_x).into_iter().map(Some).collect(),
            None => vec![None; of.len()],
        };
        all.append(&mut gradients);
        all
    }

    #[cfg(feature = "gpu")]
    fn on_gpu(&self) -> Option<&dyn crate::gpu::GpuOp> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{host, leaf};

    /// Value and gradients of `run` over the same leaves.
    fn all(inputs: &[Tensor<2>], run: impl Fn(&[Tensor<2>]) -> Tensor<2>) -> Vec<Vec<f32>> {
        let y = run(inputs);
        let gradients = y.clone().powi_scalar(2).sum().backward();
        let of_inputs = inputs.iter().map(|input| host(input.grad(&gradients).expect("gradient")));
        std::iter::once(host(y.inner())).chain(of_inputs).collect()
    }

    #[test]
    fn it_is_the_linear_layer_of_the_activation_to_the_bit() {
        type Make = fn(&[Tensor<2>]) -> Activated;
        let kinds: [(usize, Make); 6] = [
            (1, |x| Activated::Gelu(Gelu::Tanh, x[0].clone())),
            (1, |x| Activated::Gelu(Gelu::Exact, x[0].clone())),
            (1, |x| Activated::Relu(x[0].clone())),
            (2, |x| Activated::Swiglu(x[0].clone(), x[1].clone())),
            (2, |x| Activated::Geglu(Gelu::Tanh, x[0].clone(), x[1].clone())),
            (2, |x| Activated::Geglu(Gelu::Exact, x[0].clone(), x[1].clone())),
        ];
        for (n, width, out) in [(1, 1, 1), (7, 5, 3), (65, 33, 70)] {
            for layout in [Layout::OutIn, Layout::InOut] {
                for (arity, make) in kinds {
                    let weight = if layout == Layout::OutIn { [out, width] } else { [width, out] };
                    let mut inputs: Vec<Tensor<2>> = (0..arity).map(|i| leaf([n, width], 1 + i as u64)).collect();
                    inputs.extend([leaf(weight, 3), leaf([1, out], 4)]);
                    let parameters = |x: &[Tensor<2>]| (x[arity].clone(), Some(x[arity + 1].clone().reshape([out])));
                    let fused = all(&inputs, |x| {
                        let (weight, bias) = parameters(x);
                        make(x).linear(weight, bias, layout, Precision::F32, Precision::F32)
                    });
                    let separate = all(&inputs, |x| {
                        let (weight, bias) = parameters(x);
                        linear(make(x).tensor(), weight, bias, layout, Precision::F32)
                    });
                    assert!(fused == separate, "{n} {width} {out} {layout:?}");
                }
            }
        }
    }
}
