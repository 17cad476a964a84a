//! Products with weights that stay in few bits on the device; the mathematics is in [`crate::frozen`].

use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};

use super::quantized::expanded;
use super::sums::column_sums;
use super::{GpuOp, elements};
use crate::frozen::FrozenLinear;

impl FrozenLinear {
    /// The weight on `device`, `[out, in]`.
    fn expanded(&self, device: &CubeDevice) -> CubeTensor {
        expanded(|| self.0.held(), self.0.on_devices(), device)
    }
}

impl GpuOp for FrozenLinear {
    fn supports(&self, _: &CubeDevice, dtype: DType) -> bool {
        dtype == DType::F32 && self.0.is_narrow()
    }

    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let weight = self.expanded(&inputs[0].device);
        let y = CubeBackend::float_matmul(inputs[0].clone(), CubeBackend::float_transpose(weight));
        let y = match inputs.into_iter().nth(1) {
            None => y,
            Some(bias) => {
                let n = elements(&bias);
                let CubeTensor { client, device, handle, dtype, .. } = bias;
                let row = CubeTensor::new_contiguous(client, device, Shape::from(vec![1, n]), handle, dtype);
                CubeBackend::float_add(y, row)
            }
        };
        (y, Vec::new())
    }

    fn backward(&self, _: &[CubeTensor], grad: CubeTensor, needed: &[bool]) -> Vec<Option<CubeTensor>> {
        let grad_x = needed[0].then(|| CubeBackend::float_matmul(grad.clone(), self.expanded(&grad.device)));
        let grad_bias = needed.get(1).map(|needed| needed.then(|| column_sums(&grad, None, DType::F32)));
        std::iter::once(grad_x).chain(grad_bias).collect()
    }
}
