//! The low-rank part of an adapted layer; the mathematics is in [`crate::low_rank`].
//!
//! Every operand is converted once. The low-rank product is added to the base's by the kernel that multiplies, so neither the result nor
//! the gradient of the input is read a second time.

use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::finish::Finish;
use super::onto::Adds;
use super::product::{multiply, multiply_and, operand, plus_bias};
use super::sums::gradient_of_bias;
use super::{Before, GpuOp, InputGradients};
use crate::frozen::FrozenWeight;
use crate::low_rank::LowRank;

impl GpuOp for LowRank {
    fn supports(&self, _: &CubeDevice, dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::BF16) && self.base.as_ref().is_none_or(FrozenWeight::is_narrow)
    }

    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        self.forward_and(inputs, Finish::PLAIN)
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool], before: Before) -> InputGradients {
        let [x, a, b, h] = saved else { unreachable!("the forward pass keeps four tensors") };
        let precision = self.precision;
        let narrow = operand(&grad, precision);
        let u = multiply_and(&narrow, b, [false, false], precision, Finish::PLAIN.times(self.scale));
        let u = operand(&u, precision);
        let grad_x = needed[0].then(|| {
            let finish = Finish::plus(before.take());
            let finish = match &self.base {
                None => finish,
                Some(base) => {
                    let grad = if base.precision() == precision { &narrow } else { &grad };
                    let weight = base.operand_on(&grad.device);
                    Finish::onto(multiply_and(grad, &weight, [false, false], base.precision(), finish))
                }
            };
            multiply_and(&u, a, [false, false], precision, finish)
        });
        let grad_a = needed[1].then(|| multiply(&u, x, [true, false], precision));
        let grad_b =
            needed[2].then(|| multiply_and(&narrow, h, [true, false], precision, Finish::PLAIN.times(self.scale)));
        [grad_x, grad_a, grad_b].into_iter().chain(gradient_of_bias(&grad, needed.get(3))).collect()
    }
}

impl Adds for LowRank {
    fn forward_and(&self, inputs: Vec<CubeTensor>, finish: Finish) -> (CubeTensor, Vec<CubeTensor>) {
        let [x, a, b, bias @ ..] = &inputs[..] else { unreachable!("rows and both factors") };
        let precision = self.precision;
        let narrow = operand(x, precision);
        let h = operand(&multiply(&narrow, a, [false, true], precision), precision);
        let finish = match &self.base {
            None => finish.times(self.scale),
            Some(base) => {
                // Some formats choose the precision of their products themselves.
                let x = if base.precision() == precision { &narrow } else { x };
                let weight = base.operand_on(&x.device);
                let y = multiply_and(x, &weight, [false, true], base.precision(), finish);
                Finish::onto(into_contiguous(plus_bias(y, bias.first().cloned()))).times(self.scale)
            }
        };
        let y = multiply_and(&h, b, [false, true], precision, finish);
        (y, vec![narrow, a.clone(), b.clone(), h])
    }
}
