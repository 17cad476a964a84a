//! The forward pass: outputs, and the logarithms of the sums of each row.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::bias::{Biases, bucket_of};
use super::copies::copy_keys;
use super::scores::{HIDDEN, score};
use super::tiling::Tiling;
use crate::attention::AttentionShape;
use crate::attention::tiles::{QUERY_WORDS, View};
use crate::gpu::dropout::{Masks, is_dropped, row_key};
#[cfg(feature = "cuda")]
use crate::gpu::offline::{Offline, Source};
use crate::gpu::{Words, arg, element};

/// Computes the attention output of every token, and `L`.
#[cube(launch)]
fn attention_forward<F: Float>(
    q: &[F],
    k: &[F],
    v: &[F],
    tiles: &[u32],
    buckets: &[u32],
    bias: &[f32],
    out: &mut [F],
    log_sums: &mut [f32],
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
    // Holds the keys of a tile, then its values.
    let mut keys = Shared::<[f32]>::new_slice(comptime!(tiling.tile * (tiling.dim + 1)));
    let mut scores = Shared::<[f32]>::new_slice(comptime!(tiling.tile * (tiling.tile + 1)));
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
        let mut value = 0.0f32;
        if r < count {
            value = f32::cast_from(q[(first + r) * width + head * dim + c]);
        }
        queries[r * pad + c] = value;
        i += units;
    }
    let mut sums = Array::<f32>::new(comptime!(tiling.each * tiling.dim.div_ceil(tiling.tile / tiling.each)));
    let mut largest = Array::<f32>::new(each);
    let mut sum = Array::<f32>::new(each);
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
        largest[a] = HIDDEN;
        sum[a] = 0.0f32;
        #[unroll]
        for j in 0..parts {
            sums[a * parts + j] = 0.0f32;
        }
    }
    let mut products = Array::<f32>::new(comptime!(tiling.each * tiling.each));
    let mut shrink = Array::<f32>::new(each);
    let mut from = 0usize;
    if position > before {
        from = (position - before) / tile * tile;
    }
    let end = min(length, position + count + after);
    while from < end {
        copy_keys(k, &mut keys, from, prefix, prefix_length, own, length, kv_width, kv_head, tiling);
        sync_cube();
        #[unroll]
        for a in 0..comptime!(tiling.each * tiling.each) {
            products[a] = 0.0f32;
        }
        for d in 0..dim {
            #[unroll]
            for a in 0..each {
                let query = queries[(top + a * side) * pad + d];
                #[unroll]
                for b in 0..each {
                    products[a * each + b] += query * keys[(lane + b * side) * pad + d];
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
                let (plain, _slope) = score(products[a * each + b], scale, cap, comptime!(tiling.is_capped));
                let mut s = plain;
                if comptime!(tiling.is_biased) {
                    s += bias[bias_at + bucket_of(buckets, key, standing) as usize];
                }
                let is_seen = row < count && key < length && key <= standing + after && standing <= key + before;
                scores[row * score_pad + c] = select(is_seen, s, HIDDEN);
            }
        }
        sync_cube();
        #[unroll]
        for a in 0..each {
            let row = top + a * side;
            let mut highest = largest[a];
            for c in 0..tile {
                highest = max(highest, scores[row * score_pad + c]);
            }
            shrink[a] = (largest[a] - highest).exp();
            largest[a] = highest;
        }
        // Every unit of a row must read its scores before the first one is replaced.
        sync_cube();
        #[unroll]
        for a in 0..each {
            #[unroll]
            for b in 0..each {
                let at = (top + a * side) * score_pad + lane + b * side;
                let s = scores[at];
                let mut p = (s - largest[a]).exp();
                if comptime!(tiling.drops) {
                    // A dropped probability keeps its place in the sum, and the sign marks it.
                    p = select(is_dropped(low[a], high[a], from + lane + b * side, threshold), -p, p);
                }
                scores[at] = select(s > HIDDEN / 2.0f32, p, 0.0f32);
            }
        }
        copy_keys(v, &mut keys, from, prefix, prefix_length, own, length, kv_width, kv_head, tiling);
        sync_cube();
        #[unroll]
        for a in 0..each {
            sum[a] *= shrink[a];
            #[unroll]
            for j in 0..parts {
                sums[a * parts + j] *= shrink[a];
            }
        }
        for c in 0..tile {
            #[unroll]
            for a in 0..each {
                let mut p = scores[(top + a * side) * score_pad + c];
                if comptime!(tiling.drops) {
                    sum[a] += p.abs();
                    p = max(p, 0.0f32);
                } else {
                    sum[a] += p;
                }
                #[unroll]
                for j in 0..parts {
                    // The last lanes of an odd head compute with a neighboring value and write nothing.
                    sums[a * parts + j] += p * keys[c * pad + min(lane + j * side, dim - 1)];
                }
            }
        }
        sync_cube();
        from += tile;
    }
    #[unroll]
    for a in 0..each {
        let row = top + a * side;
        if row < count {
            let at = first + row;
            let mut inverse = 0.0f32;
            let mut log_sum = 0.0f32;
            if sum[a] > 0.0f32 {
                inverse = 1.0f32 / sum[a];
                log_sum = largest[a] + sum[a].ln();
                if comptime!(tiling.drops) {
                    inverse *= factor;
                }
            }
            #[unroll]
            for j in 0..parts {
                let d = lane + j * side;
                if d < dim {
                    out[at * width + head * dim + d] = F::cast_from(sums[a * parts + j] * inverse);
                }
            }
            if lane == 0 {
                log_sums[at * (heads as usize) + head] = log_sum;
            }
        }
    }
}

/// Fills `out` and `log_sums` for `count` tiles of queries, described by `tiles`.
pub(super) fn forward(
    [q, k, v]: [&CubeTensor; 3],
    (tiles, count): (&Words, u32),
    biases: &Biases,
    masks: Masks,
    [out, log_sums]: [&CubeTensor; 2],
    shape: &AttentionShape,
    tiling: Tiling,
) {
    let view = View::from(shape.mask);
    attention_forward::launch(
        &q.client,
        CubeCount::Static(count, shape.heads as u32, 1),
        CubeDim::new_1d(tiling.units()),
        arg(q),
        arg(k),
        arg(v),
        tiles.arg(),
        biases.buckets.arg(),
        arg(&biases.values),
        arg(out),
        arg(log_sums),
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

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &Offline, tiling: Tiling, dtype: ElemType) -> Source {
    let [a, b, c, d, e, f, g, h] = offline.buffers();
    let kernel = attention_forward::AttentionForward::new(
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
    offline.source("attention forward", dtype, &kernel)
}
