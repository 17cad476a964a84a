//! Matrix products in f32 on every device.

use burn::tensor::Tensor;

/// Multiplies two matrices, or two batches with equally many matrices, in f32.
///
/// `a` is `[…, rows, inner]`, `b` is `[…, inner, columns]`, and the result is `[…, rows, columns]`.
/// On a GPU, [`Tensor::matmul`] may shorten the operands to TF32; this function does not. Both operands carry gradient.
///
/// # Panics
/// If the shapes do not fit.
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
