//! Products of matrices in f32 on every device.

use burn::tensor::Tensor;

/// The product of two matrices, or of two batches of as many matrices, in f32.
///
/// On a GPU, [`Tensor::matmul`] may shorten the operands to TF32; this does not. Both operands carry gradient.
///
/// # Panics
/// When the shapes do not fit.
pub fn matmul<const R: usize>(a: Tensor<R>, b: Tensor<R>) -> Tensor<R> {
    #[cfg(feature = "gpu")]
    if let Some(gpu) = crate::fused::gpu(&a.device()) {
        use crate::gpu::{GpuOp, product::Matmul};
        if Matmul.supports(&gpu, a.dtype()) {
            return crate::fused::apply_on_gpu(Matmul, vec![a.into_dispatch(), b.into_dispatch()]);
        }
    }
    a.matmul(b)
}
