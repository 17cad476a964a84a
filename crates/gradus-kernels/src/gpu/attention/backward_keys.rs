//! The backward pass of keys and values.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::bias::{Biases, bucket_of};
use super::scores::score;
use super::tiling::Tiling;
use crate::attention::AttentionShape;
use crate::attention::tiles::{KEY_WORDS, READER_WORDS, View};
use crate::gpu::dropout::{Masks, is_dropped, row_key};
#[cfg(feature = "cuda")]
use crate::gpu::offline::{Offline, Source};
use crate::gpu::tables::Tables;
use crate::gpu::{arg, element};

/// Computes `∂K` and `∂V`.
#[cube(launch)]
fn attention_backward_keys<F: Float>(
    q: &[F],
    k: &[F],
    v: &[F],
    grad: &[F],
    log_sums: &[f32],
    dots: &[f32],
    tiles: &[u32],
    readers: &[u32],
    buckets: &[u32],
    bias: &[f32],
    grad_k: &mut [F],
    grad_v: &mut [F],
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
    let mut weights = Shared::<[f32]>::new_slice(comptime!(tiling.tile * (tiling.tile + 1)));
    let mut slopes = Shared::<[f32]>::new_slice(comptime!(tiling.tile * (tiling.tile + 1)));
    // Here a row is a key and a column is a query.
    let unit = UNIT_POS as usize;
    let top = unit / side;
    let lane = unit % side;
    let kv_head = CUBE_POS_Y as usize;
    let width = heads as usize * dim;
    let kv_width = width / comptime!(tiling.group);
    let word = CUBE_POS_X as usize * comptime!(KEY_WORDS);
    let first = tiles[word] as usize;
    let count = tiles[word + 1] as usize;
    let position = tiles[word + 2] as usize;
    let first_reader = tiles[word + 3] as usize;
    let last_reader = tiles[word + 4] as usize;
    let before = before as usize;
    let after = after as usize;

    let mut i = unit;
    while i < tile * dim {
        let r = i / dim;
        let c = i % dim;
        let mut key = 0.0f32;
        let mut value = 0.0f32;
        if r < count {
            let at = (first + r) * kv_width + kv_head * dim + c;
            key = f32::cast_from(k[at]);
            value = f32::cast_from(v[at]);
        }
        keys[r * pad + c] = key;
        values[r * pad + c] = value;
        i += units;
    }
    let mut sums_k = Array::<f32>::new(comptime!(tiling.each * tiling.dim.div_ceil(tiling.tile / tiling.each)));
    let mut sums_v = Array::<f32>::new(comptime!(tiling.each * tiling.dim.div_ceil(tiling.tile / tiling.each)));
    #[unroll]
    for a in 0..comptime!(tiling.each * tiling.dim.div_ceil(tiling.tile / tiling.each)) {
        sums_k[a] = 0.0f32;
        sums_v[a] = 0.0f32;
    }
    let mut products = Array::<f32>::new(comptime!(tiling.each * tiling.each));
    let mut grads_p = Array::<f32>::new(comptime!(tiling.each * tiling.each));
    for member in 0..comptime!(tiling.group) {
        let head = kv_head * comptime!(tiling.group) + member;
        let mut reader = first_reader;
        while reader < last_reader {
            let word = reader * comptime!(READER_WORDS);
            let first_query = readers[word] as usize;
            let query_position = readers[word + 2] as usize;
            let last_position = query_position + readers[word + 1] as usize;
            let mut from = query_position;
            if position > query_position + after {
                from = position - after;
            }
            let end = min(last_position, position + count + before);
            while from < end {
                let mut i = unit;
                while i < tile * dim {
                    let r = i / dim;
                    let c = i % dim;
                    let mut query = 0.0f32;
                    let mut g = 0.0f32;
                    if from + r < end {
                        let at = (first_query + from + r - query_position) * width + head * dim + c;
                        query = f32::cast_from(q[at]);
                        g = f32::cast_from(grad[at]);
                    }
                    queries[r * pad + c] = query;
                    grads[r * pad + c] = g;
                    i += units;
                }
                sync_cube();
                #[unroll]
                for a in 0..comptime!(tiling.each * tiling.each) {
                    products[a] = 0.0f32;
                    grads_p[a] = 0.0f32;
                }
                for d in 0..dim {
                    #[unroll]
                    for a in 0..each {
                        let key = keys[(top + a * side) * pad + d];
                        let value = values[(top + a * side) * pad + d];
                        #[unroll]
                        for b in 0..each {
                            products[a * each + b] += key * queries[(lane + b * side) * pad + d];
                            grads_p[a * each + b] += value * grads[(lane + b * side) * pad + d];
                        }
                    }
                }
                #[unroll]
                for b in 0..each {
                    let c = lane + b * side;
                    let standing = from + c;
                    let mut log_sum = 0.0f32;
                    let mut dot = 0.0f32;
                    let mut low = 0u32;
                    let mut high = 0u32;
                    if standing < end {
                        let query = first_query + standing - query_position;
                        let at = query * (heads as usize) + head;
                        log_sum = log_sums[at];
                        dot = dots[at];
                        if comptime!(tiling.drops) {
                            let (of_low, of_high) = row_key(head, query, key_low, key_high);
                            low = of_low;
                            high = of_high;
                        }
                    }
                    #[unroll]
                    for a in 0..each {
                        let row = top + a * side;
                        let key = position + row;
                        let (plain, slope) = score(products[a * each + b], scale, cap, comptime!(tiling.is_capped));
                        let mut s = plain;
                        if comptime!(tiling.is_biased) {
                            let of_head = bias.len() / heads as usize;
                            s += bias[head * of_head + bucket_of(buckets, key, standing) as usize];
                        }
                        let is_seen =
                            row < count && standing < end && key <= standing + after && standing <= key + before;
                        let p = (s - log_sum).exp();
                        let mut grad_p = grads_p[a * each + b];
                        let mut kept = p;
                        if comptime!(tiling.drops) {
                            let weight = select(is_dropped(low, high, key, threshold), 0.0f32, factor);
                            grad_p *= weight;
                            kept *= weight;
                        }
                        let ds = p * (grad_p - dot) * slope * scale;
                        weights[c * score_pad + row] = select(is_seen, kept, 0.0f32);
                        slopes[c * score_pad + row] = select(is_seen, ds, 0.0f32);
                    }
                }
                sync_cube();
                for c in 0..tile {
                    #[unroll]
                    for a in 0..each {
                        let p = weights[c * score_pad + top + a * side];
                        let ds = slopes[c * score_pad + top + a * side];
                        #[unroll]
                        for j in 0..parts {
                            let at = c * pad + min(lane + j * side, dim - 1);
                            sums_k[a * parts + j] += ds * queries[at];
                            sums_v[a * parts + j] += p * grads[at];
                        }
                    }
                }
                sync_cube();
                from += tile;
            }
            reader += 1;
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
                    let at = (first + row) * kv_width + kv_head * dim + d;
                    grad_k[at] = F::cast_from(sums_k[a * parts + j]);
                    grad_v[at] = F::cast_from(sums_v[a * parts + j]);
                }
            }
        }
    }
}

/// Fills `grad_k` and `grad_v`.
pub(super) fn backward_keys(
    [q, k, v, grad]: [&CubeTensor; 4],
    [log_sums, dots]: [&CubeTensor; 2],
    (shape, tiling): (&AttentionShape, Tiling),
    tables: &Tables,
    biases: &Biases,
    masks: Masks,
    [grad_k, grad_v]: [&CubeTensor; 2],
) {
    let view = View::from(shape.mask);
    if tables.key_tiles > 0 {
        attention_backward_keys::launch(
            &q.client,
            CubeCount::Static(tables.key_tiles, shape.kv_heads as u32, 1),
            CubeDim::new_1d(tiling.units()),
            arg(q),
            arg(k),
            arg(v),
            arg(grad),
            arg(log_sums),
            arg(dots),
            tables.keys.arg(),
            tables.readers.arg(),
            biases.buckets.arg(),
            arg(&biases.values),
            arg(grad_k),
            arg(grad_v),
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
    let [a, b, c, d, e, f, g, h, i, j, k, l] = offline.buffers();
    let kernel = attention_backward_keys::AttentionBackwardKeys::new(
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
        l,
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
    offline.source("attention backward: keys", dtype, &kernel)
}
