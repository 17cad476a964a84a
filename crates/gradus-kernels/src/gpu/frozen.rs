//! Products with weights that stay compressed on the device; the mathematics is in [`crate::frozen`].

use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use super::GpuOp;
use super::product::{multiply, plus_bias};
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
