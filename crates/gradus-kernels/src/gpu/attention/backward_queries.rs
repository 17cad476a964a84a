//! The backward pass of queries, and of the bias by distance.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::bias::{Biases, bucket_of};
use super::copies::copy_keys;
use super::scores::score;
use super::tiling::Tiling;
use crate::attention::AttentionShape;
use crate::attention::tiles::{QUERY_WORDS, View};
use crate::gpu::dropout::{Masks, is_dropped, row_key};
#[cfg(feature = "cuda")]
use crate::gpu::offline::{Offline, Source};
use crate::gpu::tables::Tables;
use crate::gpu::{arg, element};

/// Computes `∂Q`, and for each tile and head the gradient of the bias: one number per bucket, of which there are at most as many as units.
#[cube(launch)]
fn attention_backward_queries<F: Float>(
    q: &[F],
    k: &[F],
    v: &[F],
    grad: &[F],
    log_sums: &[f32],
    dots: &[f32],
    tiles: &[u32],
    buckets: &[u32],
    bias: &[f32],
    grad_q: &mut [F],
    grad_bias: &mut [f32],
    heads: u32,
    scale: f32,
    cap: f32,
    before: u32,
    after: u32,
    key_low: u32,
    key_high: u32,
    threshold: u32,
    factor: f32,
    #[comptime] tiling: Tiling,
    #[define(F)] _dtype: ElemType,
) {
    let tile = comptime!(tiling.tile);
    let dim = comptime!(tiling.dim);
    let pad = comptime!(tiling.dim + 1);
    let score_pad = comptime!(tiling.tile + 1);
    // Rows and columns per unit, units per row, and numbers of a head that a unit sums.
    let each = comptime!(tiling.each);
    let side = comptime!(tiling.tile / tiling.each);
    let parts = comptime!(tiling.dim.div_ceil(tiling.tile / tiling.each));
    let units = comptime!((tiling.tile / tiling.each) * (tiling.tile / tiling.each));
    let mut queries = Shared::<[f32]>::new_slice(comptime!(tiling.tile * (tiling.dim + 1)));
    let mut grads = Shared::<[f32]>::new_slice(comptime!(tiling.tile * (tiling.dim + 1)));
    let mut keys = Shared::<[f32]>::new_slice(comptime!(tiling.tile * (tiling.dim + 1)));
    let mut values = Shared::<[f32]>::new_slice(comptime!(tiling.tile * (tiling.dim + 1)));
    let mut slopes = Shared::<[f32]>::new_slice(comptime!(tiling.tile * (tiling.tile + 1)));
    let mut diagonals = Shared::<[f32]>::new_slice(comptime!(2 * tiling.tile));
    let unit = UNIT_POS as usize;
    let top = unit / side;
    let lane = unit % side;
    let head = CUBE_POS_Y as usize;
    let kv_head = head / comptime!(tiling.group);
    // The biases of this head.
    let bias_at = head * (bias.len() / heads as usize);
    let width = heads as usize * dim;
    let kv_width = width / comptime!(tiling.group);
    let word = CUBE_POS_X as usize * comptime!(QUERY_WORDS);
    let first = tiles[word] as usize;
    let count = tiles[word + 1] as usize;
    let position = tiles[word + 2] as usize;
    let prefix = tiles[word + 3] as usize;
    let prefix_length = tiles[word + 4] as usize;
    let own = tiles[word + 5] as usize;
    let length = tiles[word + 6] as usize;
    let before = before as usize;
    let after = after as usize;

    let mut i = unit;
    while i < tile * dim {
        let r = i / dim;
        let c = i % dim;
        let mut query = 0.0f32;
        let mut g = 0.0f32;
        if r < count {
            let at = (first + r) * width + head * dim + c;
            query = f32::cast_from(q[at]);
            g = f32::cast_from(grad[at]);
        }
        queries[r * pad + c] = query;
        grads[r * pad + c] = g;
        i += units;
    }
    let mut sums = Array::<f32>::new(comptime!(tiling.each * tiling.dim.div_ceil(tiling.tile / tiling.each)));
    let mut log_sum = Array::<f32>::new(each);
    let mut dot = Array::<f32>::new(each);
    // Keys of the masks of each row.
    let mut low = Array::<u32>::new(each);
    let mut high = Array::<u32>::new(each);
    #[unroll]
    for a in 0..each {
        if comptime!(tiling.drops) {
            let (of_low, of_high) = row_key(head, first + top + a * side, key_low, key_high);
            low[a] = of_low;
            high[a] = of_high;
        }
        #[unroll]
        for j in 0..parts {
            sums[a * parts + j] = 0.0f32;
        }
        log_sum[a] = 0.0f32;
        dot[a] = 0.0f32;
        if top + a * side < count {
            let at = (first + top + a * side) * (heads as usize) + head;
            log_sum[a] = log_sums[at];
            dot[a] = dots[at];
        }
    }
    let mut of_bucket = 0.0f32;
    let mut products = Array::<f32>::new(comptime!(tiling.each * tiling.each));
    let mut grads_p = Array::<f32>::new(comptime!(tiling.each * tiling.each));
    let mut from = 0usize;
    if position > before {
        from = (position - before) / tile * tile;
    }
    let end = min(length, position + count + after);
    while from < end {
        copy_keys(k, &mut keys, from, prefix, prefix_length, own, length, kv_width, kv_head, tiling);
        copy_keys(v, &mut values, from, prefix, prefix_length, own, length, kv_width, kv_head, tiling);
        sync_cube();
        #[unroll]
        for a in 0..comptime!(tiling.each * tiling.each) {
            products[a] = 0.0f32;
            grads_p[a] = 0.0f32;
        }
        for d in 0..dim {
            #[unroll]
            for a in 0..each {
                let query = queries[(top + a * side) * pad + d];
                let g = grads[(top + a * side) * pad + d];
                #[unroll]
                for b in 0..each {
                    products[a * each + b] += query * keys[(lane + b * side) * pad + d];
                    grads_p[a * each + b] += g * values[(lane + b * side) * pad + d];
                }
            }
        }
        #[unroll]
        for a in 0..each {
            let row = top + a * side;
            let standing = position + row;
            #[unroll]
            for b in 0..each {
                let c = lane + b * side;
                let key = from + c;
                let (plain, slope) = score(products[a * each + b], scale, cap, comptime!(tiling.is_capped));
                let mut s = plain;
                if comptime!(tiling.is_biased) {
                    s += bias[bias_at + bucket_of(buckets, key, standing) as usize];
                }
                let is_seen = row < count && key < length && key <= standing + after && standing <= key + before;
                let p = (s - log_sum[a]).exp();
                let mut grad_p = grads_p[a * each + b];
                if comptime!(tiling.drops) {
                    grad_p = select(is_dropped(low[a], high[a], key, threshold), 0.0f32, grad_p * factor);
                }
                let ds = p * (grad_p - dot[a]) * slope * scale;
                slopes[row * score_pad + c] = select(is_seen, ds, 0.0f32);
            }
        }
        sync_cube();
        for c in 0..tile {
            #[unroll]
            for a in 0..each {
                let ds = slopes[(top + a * side) * score_pad + c];
                #[unroll]
                for j in 0..parts {
                    sums[a * parts + j] += ds * keys[c * pad + min(lane + j * side, dim - 1)];
                }
            }
        }
        if comptime!(tiling.is_biased) {
            // The scores of a diagonal have one distance: that from the last query of the tile to the key `from + i`.
            let mut i = unit;
            while i < 2 * tile - 1 {
                let mut sum = 0.0f32;
                for row in 0..tile {
                    let column = row + i + 1;
                    if column >= tile && column < 2 * tile {
                        sum += slopes[row * score_pad + column - tile];
                    }
                }
                diagonals[i] = sum;
                i += units;
            }
            sync_cube();
            for i in 0..comptime!(2 * tiling.tile - 1) {
                let is_here = bucket_of(buckets, from + i, position + tile - 1) == unit as u32;
                of_bucket += select(is_here, diagonals[i], 0.0f32);
            }
        }
        sync_cube();
        from += tile;
    }
    if comptime!(tiling.is_biased) {
        let of_head = bias.len() / heads as usize;
        if unit < of_head {
            // The slopes contain the factor of the scores.
            grad_bias[CUBE_POS_X as usize * bias.len() + bias_at + unit] = of_bucket / scale;
        }
    }
    #[unroll]
    for a in 0..each {
        let row = top + a * side;
        if row < count {
            #[unroll]
            for j in 0..parts {
                let d = lane + j * side;
                if d < dim {
                    grad_q[(first + row) * width + head * dim + d] = F::cast_from(sums[a * parts + j]);
                }
            }
        }
    }
}

/// Fills `grad_q`, and `of_tiles` with the gradient of the bias of each tile of queries.
pub(super) fn backward_queries(
    [q, k, v, grad]: [&CubeTensor; 4],
    [log_sums, dots]: [&CubeTensor; 2],
    (shape, tiling): (&AttentionShape, Tiling),
    tables: &Tables,
    biases: &Biases,
    masks: Masks,
    [grad_q, of_tiles]: [&CubeTensor; 2],
) {
    let view = View::from(shape.mask);
    if tables.query_tiles > 0 {
        attention_backward_queries::launch(
            &q.client,
            CubeCount::Static(tables.query_tiles, shape.heads as u32, 1),
            CubeDim::new_1d(tiling.units()),
            arg(q),
            arg(k),
            arg(v),
            arg(grad),
            arg(log_sums),
            arg(dots),
            tables.queries.arg(),
            biases.buckets.arg(),
            arg(&biases.values),
            arg(grad_q),
            arg(of_tiles),
            shape.heads as u32,
            shape.scale,
            shape.cap.unwrap_or(1.0),
            view.before,
            view.after,
            masks.low,
            masks.high,
            masks.threshold,
            masks.factor,
            tiling,
            element(q),
        );
    }
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &Offline, tiling: Tiling, dtype: ElemType) -> Source {
    let [a, b, c, d, e, f, g, h, i, j, k] = offline.buffers();
    let kernel = attention_backward_queries::AttentionBackwardQueries::new(
        offline.settings(tiling.units()),
        offline.device(),
        offline.target(),
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        i,
        j,
        k,
        (),
        (),
        (),
        (),
        (),
        (),
        (),
        (),
        (),
        tiling,
        dtype,
    );
    offline.source("attention backward: queries", dtype, &kernel)
}
