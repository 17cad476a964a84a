//! Types in which a GPU holds what products read and write.

use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use super::computes;
use crate::product::Precision;

/// Type of the operands of products in `precision` on `device`.
pub(crate) fn held(device: &CubeDevice, precision: Precision) -> DType {
    let is_narrow = precision == Precision::Bf16 && computes(device, DType::BF16);
    if is_narrow { DType::BF16 } else { DType::F32 }
}

/// Type of a tensor that is computed from `x` and read by products in `precision`: that of their operands, or that of `x`.
pub(crate) fn narrower(x: &CubeTensor, precision: Precision) -> DType {
    match held(&x.device, precision) {
        DType::F32 => x.dtype,
        narrow => narrow,
    }
}
