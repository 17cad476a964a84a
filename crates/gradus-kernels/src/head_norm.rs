//! RMS norm of the heads of queries and keys, followed by their rotation; the mathematics is in [`crate::norm`] and [`crate::rope`].
//!
//! A GPU does both in one pass if each unit holds both numbers of a pair: if the rotated half of a head is a multiple of 32. This is the
//! case for heads that are 64, 128 or 256 wide and rotated as a whole.

use burn::tensor::Tensor;

use crate::linear::Operands;
use crate::norm::rms_norm_between;
use crate::rope::rope_between;
use crate::table::Table;

/// Normalizes each head of `x_nd`, `[N, H · head_dim]` to the same shape, and rotates it by its token's angles. `x_nd` and `weight_d` carry
/// gradient.
///
/// `weight_d` is γ, `[head_dim]`, and `cos` and `sin` are those of [`rope`](crate::rope()). `operands` describes the products around both.
///
/// # Panics
/// If a row does not consist of whole heads, or if the tables do not fit the tokens.
pub fn rms_norm_and_rope(
    x_nd: Tensor<2>,
    weight_d: Tensor<1>,
    epsilon: f64,
    [cos, sin]: [&Table<f32>; 2],
    operands: Operands,
) -> Tensor<2> {
    let ([n, d], [width]) = (x_nd.dims(), weight_d.dims());
    assert_eq!(d % width, 0, "whole heads");
    let heads = x_nd.reshape([n * d / width, width]);
    #[cfg(feature = "gpu")]
    if n > 0
        && let Some(device) = crate::fused::gpu(&heads.device())
        && crate::gpu::computes(&device, heads.dtype())
        && let Some(turn) = crate::gpu::norm::Turn::new(cos, sin, heads.dims(), d / width)
    {
        let norm = crate::norm::Norm { epsilon, centered: false, operands };
        let inputs = vec![heads.into_dispatch(), weight_d.into_dispatch()];
        return crate::fused::apply_on_gpu::<2>(crate::gpu::norm::TurnedNorm { norm, turn }, inputs).reshape([n, d]);
    }
    let normed = rms_norm_between(heads, weight_d, epsilon, Operands { result: Default::default(), ..operands });
    rope_between(normed.reshape([n, d]), cos, sin, width, Operands { input: Default::default(), ..operands })
}
