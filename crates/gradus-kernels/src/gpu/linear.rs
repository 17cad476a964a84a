//! Linear layers, and the linear layer of an activation; the mathematics is in [`crate::linear`] and [`crate::activation`].

use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use super::GpuOp;
use super::product::{multiply, operand, plus_bias};
use super::sums::column_sums;
use crate::activation::LinearOfActivation;
use crate::linear::{Layout, Linear};

impl Linear {
    fn product(&self, x: &CubeTensor, weight: &CubeTensor, bias: Option<CubeTensor>) -> CubeTensor {
        plus_bias(multiply(x, weight, [false, self.layout == Layout::OutIn], self.precision), bias)
    }

    /// Gradients of `x`, the weight and, if `needed` has a third entry, the bias.
    fn gradients(&self, [x, weight]: [&CubeTensor; 2], grad: &CubeTensor, needed: &[bool]) -> Vec<Option<CubeTensor>> {
        // Both products read it, so it is converted once.
        let narrow = operand(grad, self.precision);
        let grad_x =
            needed[0].then(|| multiply(&narrow, weight, [false, self.layout == Layout::InOut], self.precision));
        let grad_weight = needed[1].then(|| match self.layout {
            Layout::OutIn => multiply(&narrow, x, [true, false], self.precision),
            Layout::InOut => multiply(x, &narrow, [true, false], self.precision),
        });
        let grad_bias = needed.get(2).map(|needed| needed.then(|| column_sums(grad, None, DType::F32)));
        [grad_x, grad_weight].into_iter().chain(grad_bias).collect()
    }
}

impl GpuOp for Linear {
    fn supports(&self, _: &CubeDevice, dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::BF16)
    }

    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let [x, weight, bias @ ..] = &inputs[..] else { unreachable!("rows and a weight") };
        let y = self.product(x, weight, bias.first().cloned());
        (y, vec![x.clone(), weight.clone()])
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool]) -> Vec<Option<CubeTensor>> {
        let [x, weight] = saved else { unreachable!("the forward pass keeps two tensors") };
        self.gradients([x, weight], &grad, needed)
    }
}

impl GpuOp for LinearOfActivation {
    fn supports(&self, _: &CubeDevice, dtype: DType) -> bool {
        dtype == DType::F32
    }

    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let (of, parameters) = inputs.split_at(self.activation.arity());
        let [weight, bias @ ..] = parameters else { unreachable!("a weight") };
        let x = self.activation.value_on_gpu(of, self.linear.precision);
        let y = self.linear.product(&x, weight, bias.first().cloned());
        (y, inputs[..=of.len()].to_vec())
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool]) -> Vec<Option<CubeTensor>> {
        let [of @ .., weight] = saved else { unreachable!("the weight is saved last") };
        let x = self.activation.value_on_gpu(of, self.linear.precision);
        let mut gradients = self.linear.gradients([&x, weight], &grad, &self.needed_of_linear(needed));
        drop(x);
        let mut all = match gradients.remove(0) {
            Some(grad_x) => self.activation.gradients_on_gpu(of, &grad_x),
            None => vec![None; of.len()],
        };
        all.append(&mut gradients);
        all
    }
}
