//! Linear layers, and the linear layer of an activation; the mathematics is in [`crate::linear`] and [`crate::activation`].

use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use super::finish::Finish;
use super::onto::Adds;
use super::product::{multiply, multiply_and, operand, plus_bias};
use super::sums::gradient_of_bias;
use super::{Before, GpuOp, InputGradients};
use crate::activation::LinearOfActivation;
use crate::linear::{Layout, Linear};

impl Linear {
    fn product(&self, x: &CubeTensor, weight: &CubeTensor, finish: Finish) -> CubeTensor {
        multiply_and(x, weight, [false, self.layout == Layout::OutIn], self.precision, finish)
    }

    /// Gradient of the input, from the gradient of the result as an operand.
    fn gradient_of_input(&self, weight: &CubeTensor, grad: &CubeTensor, finish: Finish) -> CubeTensor {
        multiply_and(grad, weight, [false, self.layout == Layout::InOut], self.precision, finish)
    }

    /// Gradient of the weight, from the gradient of the result as an operand.
    fn gradient_of_weight(&self, x: &CubeTensor, grad: &CubeTensor) -> CubeTensor {
        match self.layout {
            Layout::OutIn => multiply(grad, x, [true, false], self.precision),
            Layout::InOut => multiply(x, grad, [true, false], self.precision),
        }
    }
}

impl GpuOp for Linear {
    fn supports(&self, _: &CubeDevice, dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::BF16)
    }

    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let bias = inputs.get(2).cloned();
        let (y, saved) = self.forward_and(inputs, Finish::written_in(self.result));
        (plus_bias(y, bias), saved)
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool], before: Before) -> InputGradients {
        let [x, weight] = saved else { unreachable!("the forward pass keeps two tensors") };
        // Both products read it, so it is converted once.
        let narrow = operand(&grad, self.precision);
        let grad_x = needed[0].then(|| self.gradient_of_input(weight, &narrow, Finish::plus(before.take())));
        let grad_weight = needed[1].then(|| self.gradient_of_weight(x, &narrow));
        [grad_x, grad_weight].into_iter().chain(gradient_of_bias(&grad, needed.get(2))).collect()
    }
}

impl Adds for Linear {
    fn forward_and(&self, mut inputs: Vec<CubeTensor>, finish: Finish) -> (CubeTensor, Vec<CubeTensor>) {
        inputs.truncate(2);
        let [x, weight] = &inputs[..] else { unreachable!("rows and a weight") };
        (self.product(x, weight, finish), inputs)
    }
}

impl GpuOp for LinearOfActivation {
    fn supports(&self, _: &CubeDevice, dtype: DType) -> bool {
        dtype == DType::F32
    }

    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let bias = inputs.get(self.activation.arity() + 1).cloned();
        let (y, saved) = self.forward_and(inputs, Finish::PLAIN);
        (plus_bias(y, bias), saved)
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool], _: Before) -> InputGradients {
        let [of @ .., weight] = saved else { unreachable!("the weight is saved last") };
        let (precision, linear_needed) = (self.linear.precision, self.needed_of_linear(needed));
        let narrow = operand(&grad, precision);
        let (mut all, x) = if linear_needed[0] {
            // Its only reader multiplies by slopes and writes operands, so it needs no more digits than they have.
            let grad_x = self.linear.gradient_of_input(weight, &narrow, Finish::written_in(self.inputs));
            self.activation.backward_on_gpu(of, &grad_x, precision, self.inputs)
        } else {
            (vec![None; of.len()], self.activation.value_on_gpu(of, precision))
        };
        all.push(linear_needed[1].then(|| self.linear.gradient_of_weight(&x, &narrow)));
        all.extend(gradient_of_bias(&grad, linear_needed.get(2)));
        all
    }
}

impl Adds for LinearOfActivation {
    fn forward_and(&self, mut inputs: Vec<CubeTensor>, finish: Finish) -> (CubeTensor, Vec<CubeTensor>) {
        inputs.truncate(self.activation.arity() + 1);
        let [of @ .., weight] = &inputs[..] else { unreachable!("a weight") };
        let x = self.activation.value_on_gpu(of, self.linear.precision);
        (self.linear.product(&x, weight, finish), inputs)
    }
}
