//! Products with weights that stay compressed on the device; the mathematics is in [`crate::frozen`].

use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use super::GpuOp;
use super::finish::Finish;
use super::onto::Adds;
use super::product::{multiply_and, plus_bias};
use super::quantized::operand;
use super::sums::gradient_of_bias;
use crate::frozen::{FrozenLinear, FrozenWeight};

impl FrozenWeight {
    /// Returns the weight on `device` as an operand of a product, `[out, in]`.
    pub(super) fn operand_on(&self, device: &CubeDevice) -> CubeTensor {
        operand(|| self.for_gpu(), self.on_devices(), device)
    }
}

impl GpuOp for FrozenLinear {
    fn supports(&self, _: &CubeDevice, dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::BF16) && self.weight.is_narrow()
    }

    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let bias = inputs.get(1).cloned();
        let (y, saved) = self.forward_and(inputs, Finish::written_in(self.result));
        (plus_bias(y, bias), saved)
    }

    fn backward(&self, _: &[CubeTensor], grad: CubeTensor, needed: &[bool]) -> Vec<Option<CubeTensor>> {
        self.gradients(&grad, needed, Finish::PLAIN)
    }

    fn backward_onto(
        &self,
        _: &[CubeTensor],
        grad: CubeTensor,
        needed: &[bool],
        before: CubeTensor,
    ) -> Vec<Option<CubeTensor>> {
        self.gradients(&grad, needed, Finish::plus(before))
    }
}

impl FrozenLinear {
    /// Gradients of all inputs. That of the first is finished with `finish`.
    fn gradients(&self, grad: &CubeTensor, needed: &[bool], finish: Finish) -> Vec<Option<CubeTensor>> {
        let weight = || self.weight.operand_on(&grad.device);
        let grad_x = needed[0].then(|| multiply_and(grad, &weight(), [false, false], self.weight.precision(), finish));
        std::iter::once(grad_x).chain(gradient_of_bias(grad, needed.get(1))).collect()
    }
}

impl Adds for FrozenLinear {
    fn forward_and(&self, inputs: Vec<CubeTensor>, finish: Finish) -> (CubeTensor, Vec<CubeTensor>) {
        let weight = self.weight.operand_on(&inputs[0].device);
        (multiply_and(&inputs[0], &weight, [false, true], self.weight.precision(), finish), Vec::new())
    }
}
