//! Products with weights that stay compressed on the device; the mathematics is in [`crate::frozen`].

use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use super::finish::Finish;
use super::onto::Adds;
use super::product::{multiply_and, plus_bias};
use super::quantized::operand;
use super::sums::gradient_of_bias;
use super::{Before, GpuOp, InputGradients};
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

    fn backward(&self, _: &[CubeTensor], grad: CubeTensor, needed: &[bool], before: Before) -> InputGradients {
        let grad_x = needed[0].then(|| {
            let weight = self.weight.operand_on(&grad.device);
            multiply_and(&grad, &weight, [false, false], self.weight.precision(), Finish::plus(before.take()))
        });
        std::iter::once(grad_x).chain(gradient_of_bias(&grad, needed.get(1))).collect()
    }
}

impl Adds for FrozenLinear {
    fn forward_and(&self, inputs: Vec<CubeTensor>, finish: Finish) -> (CubeTensor, Vec<CubeTensor>) {
        let weight = self.weight.operand_on(&inputs[0].device);
        (multiply_and(&inputs[0], &weight, [false, true], self.weight.precision(), finish), Vec::new())
    }
}
