//! Sums of `∂O ∘ O` over each head. Both kernels of the backward pass read them.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::attention::AttentionShape;
#[cfg(feature = "cuda")]
use crate::gpu::offline::{F32, Offline, Source};
use crate::gpu::{UNITS, arg, dims, element, empty, empty_f32, grid, sum_of_lanes};

/// Units that share a pair of a row and a head in [`attention_dots`].
const DOT_LANES: usize = 16;

/// Computes `D`: the sum of `∂O ∘ O` over each head. With `is_copied`, also copies `∂O` to `copy`, in the type of `O`.
#[cube(launch)]
fn attention_dots<F: Float, G: Float>(
    out: &[F],
    grad: &[G],
    dots: &mut [f32],
    copy: &mut [F],
    #[comptime] dim: usize,
    #[comptime] is_copied: bool,
    #[define(F, G)] _dtypes: [ElemType; 2],
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(UNITS as usize));
    let lane = UNIT_POS as usize % DOT_LANES;
    let pair = CUBE_POS * comptime!(UNITS as usize / DOT_LANES) + UNIT_POS as usize / DOT_LANES;
    let mut sum = 0.0f32;
    if pair < dots.len() {
        let mut d = lane;
        while d < dim {
            let g = f32::cast_from(grad[pair * dim + d]);
            sum += f32::cast_from(out[pair * dim + d]) * g;
            if comptime!(is_copied) {
                copy[pair * dim + d] = F::cast_from(g);
            }
            d += DOT_LANES;
        }
    }
    let sum = sum_of_lanes(sum, &mut scratch, DOT_LANES);
    if lane == 0 && pair < dots.len() {
        dots[pair] = sum;
    }
}

/// Returns `D` of each row and head. Also fills `copy` with `grad` in the type of `out`, if given.
pub(super) fn dots_of(
    out: &CubeTensor,
    grad: &CubeTensor,
    copy: Option<&CubeTensor>,
    shape: &AttentionShape,
) -> CubeTensor {
    let pairs = dims(out)[0] * shape.heads;
    let dots = empty_f32(out, &[dims(out)[0], shape.heads]);
    if pairs > 0 {
        let to_copy = copy.cloned().unwrap_or_else(|| empty(out, &[1], out.dtype));
        attention_dots::launch(
            &out.client,
            grid(pairs.div_ceil(UNITS as usize / DOT_LANES)),
            CubeDim::new_1d(UNITS),
            arg(out),
            arg(grad),
            arg(&dots),
            arg(&to_copy),
            shape.head_dim,
            copy.is_some(),
            [element(out), element(grad)],
        );
    }
    dots
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &Offline, dtype: ElemType) -> Source {
    let ([a, b, c, d], settings) = (offline.buffers(), offline.settings(UNITS));
    let (device, target) = (offline.device(), offline.target());
    let (dim, dtypes) = (128, [dtype, F32]);
    let kernel = attention_dots::AttentionDots::new(settings, device, target, a, b, c, d, dim, true, dtypes);
    offline.source("attention: dots", dtype, &kernel)
}
