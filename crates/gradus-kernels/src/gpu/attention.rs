//! Attention over packed sequences without a T × T matrix; the mathematics is in [`crate::attention`].
//!
//! In the forward pass, one cube computes [`tile`](Tiling) queries of one head. It loops over the keys that any of them sees, tile by tile,
//! with a running maximum and sum, and stores `Lₜ = logsumexp(Sₜ)`. In the backward pass, one kernel computes `∂Q` of the same tiles.
//! Another computes `∂K` and `∂V` of a tile of keys. It loops over all queries that read them: those of every continuation of a shared
//! prefix, and of every head of a group. So one cube sums each gradient in a fixed order. A table of the batch lists which queries read
//! which keys. It is made once and kept on the device.
//!
//! A bias by distance is looked up for each score. Its gradient is summed along the diagonals of a tile of scores, then by bucket for each
//! tile of queries, then over the tiles. With dropout, each pass draws the mask of each probability again.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::tensor::{DType, Tensor};
use burn_cubecl::CubeDevice;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

#[cfg(feature = "cuda")]
use super::cuda::attention as cores;
use super::decode;
use super::dims;
use super::dropout::{Masks, is_dropped, row_key};
use super::scores::{HIDDEN, key_row, score};
use super::sums::column_sums;
use super::tables::with_tables;
use super::{
    Before, GpuOp, InputGradients, UNITS, Words, arg, computes, cube_of, element, empty, empty_f32, empty_like, grid,
    sum_of_lanes, tensor_of, zeros,
};
use crate::attention::sequence::Sequence;
use crate::attention::tiles::{Batch, KEY_WORDS, QUERY_WORDS, READER_WORDS, View};
use crate::attention::{AttentionDropout, AttentionExtras, AttentionShape, PositionBias, PositionBuckets};
use crate::product::Precision;

/// Compile-time parameters of the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Tiling {
    /// Rows of a tile.
    tile: usize,
    /// Each unit computes `each` rows and `each` columns of a tile of scores, so it reuses each value from shared memory `each` times.
    each: usize,
    /// Width of a head.
    dim: usize,
    /// Query heads per key/value head.
    group: usize,
    /// Whether scores are softly capped.
    is_capped: bool,
    /// Whether scores have a bias by distance.
    is_biased: bool,
    /// Whether probabilities are dropped.
    drops: bool,
}

impl Tiling {
    /// Returns the largest tiles that fit into the shared memory of `device`. `None` if not even small ones fit.
    fn new(shape: &AttentionShape, is_biased: bool, drops: bool, device: &CubeDevice) -> Option<Self> {
        let client = device.client();
        let hardware = &client.properties().hardware;
        let (group, is_capped) = (shape.group(), shape.cap.is_some());
        let of = |(tile, each)| Self { tile, each, dim: shape.head_dim, group, is_capped, is_biased, drops };
        let fits = |tiling: &Self| {
            tiling.bytes() <= hardware.max_shared_memory_size && tiling.units() <= hardware.max_units_per_cube
        };
        TILES.map(of).into_iter().find(fits)
    }

    /// Bytes of shared memory of the largest kernel: four tiles of rows, two of scores, and the diagonals of a tile.
    fn bytes(&self) -> usize {
        4 * self.tile * (4 * (self.dim + 1) + 2 * (self.tile + 1) + 2)
    }

    /// Number of units that share a row, which is also the number of rows computed side by side.
    fn side(&self) -> usize {
        self.tile / self.each
    }

    fn units(&self) -> u32 {
        (self.side() * self.side()) as u32
    }
}

/// Tile sizes, and rows per unit.
const TILES: [(usize, usize); 4] = [(64, 4), (32, 2), (16, 1), (8, 1)];

/// Returns the bucket of the distance from the query at position `standing` to the key at position `key`.
#[cube]
fn bucket_of(buckets: &[u32], key: usize, standing: usize) -> u32 {
    let reach = buckets.len() / 2;
    let mut place = reach;
    if key >= standing {
        place += min(key - standing, reach);
    } else {
        place -= min(standing - key, reach);
    }
    buckets[place]
}

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
        let mut i = unit;
        while i < tile * dim {
            let r = i / dim;
            let c = i % dim;
            let mut value = 0.0f32;
            if from + r < length {
                let at = key_row(from + r, prefix, prefix_length, own);
                value = f32::cast_from(k[at * kv_width + kv_head * dim + c]);
            }
            keys[r * pad + c] = value;
            i += units;
        }
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
        let mut i = unit;
        while i < tile * dim {
            let r = i / dim;
            let c = i % dim;
            let mut value = 0.0f32;
            if from + r < length {
                let at = key_row(from + r, prefix, prefix_length, own);
                value = f32::cast_from(v[at * kv_width + kv_head * dim + c]);
            }
            keys[r * pad + c] = value;
            i += units;
        }
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
        let mut i = unit;
        while i < tile * dim {
            let r = i / dim;
            let c = i % dim;
            let mut value = 0.0f32;
            if from + r < length {
                let at = key_row(from + r, prefix, prefix_length, own);
                value = f32::cast_from(k[at * kv_width + kv_head * dim + c]);
            }
            keys[r * pad + c] = value;
            i += units;
        }
        let mut i = unit;
        while i < tile * dim {
            let r = i / dim;
            let c = i % dim;
            let mut value = 0.0f32;
            if from + r < length {
                let at = key_row(from + r, prefix, prefix_length, own);
                value = f32::cast_from(v[at * kv_width + kv_head * dim + c]);
            }
            values[r * pad + c] = value;
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

/// Attention of a packed batch. With buckets, the bias is the fourth input.
#[derive(Debug)]
pub(crate) struct Attention {
    batch: Batch,
    shape: AttentionShape,
    buckets: Option<PositionBuckets>,
    dropout: Option<AttentionDropout>,
}

/// A bias on the device: the buckets of the distances, and its values `[H, R]`. Without a bias, neither is read.
struct Biases {
    buckets: Arc<Words>,
    values: CubeTensor,
}

impl Biases {
    fn new(bias: Option<(&PositionBuckets, &CubeTensor)>, like: &CubeTensor) -> Self {
        match bias {
            Some((buckets, values)) => Self { buckets: buckets.on_device(like), values: values.clone() },
            None => Self { buckets: Arc::new(Words::shared(like, &[])), values: empty_f32(like, &[1]) },
        }
    }
}

impl Attention {
    pub(crate) fn new(
        batch: Batch,
        shape: AttentionShape,
        buckets: Option<PositionBuckets>,
        dropout: Option<AttentionDropout>,
    ) -> Self {
        Self { batch, shape, buckets, dropout: dropout.filter(|dropout| dropout.probability > 0.0) }
    }

    /// The bias among the inputs, and among the saved tensors after the other five.
    fn biases(&self, values: Option<&CubeTensor>, like: &CubeTensor) -> Biases {
        Biases::new(self.buckets.as_ref().zip(values), like)
    }

    /// Whether tensor cores multiply, in bf16.
    #[cfg(feature = "cuda")]
    fn is_on_cores(&self, device: &CubeDevice) -> bool {
        self.buckets.is_none() && reads_operands(&self.shape, device)
    }

    /// Runs [`GpuOp::forward`] on tensor cores.
    #[cfg(feature = "cuda")]
    fn forward_on_cores(&self, qkv: [&CubeTensor; 3]) -> (CubeTensor, Vec<CubeTensor>) {
        let [q, k, v] = qkv.map(cores::narrow);
        let (out, log_sums) = (empty_like(&q), empty_f32(&q, &[dims(&q)[0], self.shape.heads]));
        with_tables(&self.batch, &q, cores::TILE, |tables| {
            let tiles = (&tables.queries, tables.query_tiles);
            cores::forward([&q, &k, &v], (&self.shape, self.dropout), tiles, &out, &log_sums);
        });
        (out.clone(), vec![q, k, v, out, log_sums])
    }

    /// Runs [`GpuOp::backward`] on tensor cores.
    #[cfg(feature = "cuda")]
    fn backward_on_cores(&self, saved: &[CubeTensor], grad: &CubeTensor, needed: &[bool]) -> InputGradients {
        let [q, k, v, out, log_sums] = saved else { unreachable!("the forward pass keeps five tensors") };
        let narrow = empty_like(out);
        let dots = dots_of(out, grad, Some(&narrow), &self.shape);
        let (operands, kept) = ([q, k, v, &narrow], [log_sums, &dots]);
        with_tables(&self.batch, q, cores::TILE, |tables| {
            let grad_q = needed[0].then(|| {
                let grad_q = empty_f32(q, &dims(q));
                cores::backward_queries(operands, kept, (&self.shape, self.dropout), tables, &grad_q);
                grad_q
            });
            let grads = (needed[1] || needed[2]).then(|| {
                let [grad_k, grad_v] = [k, v].map(|x| empty_f32(x, &dims(x)));
                cores::backward_keys(operands, kept, (&self.shape, self.dropout), tables, [&grad_k, &grad_v]);
                (grad_k, grad_v)
            });
            let (grad_k, grad_v) = grads.unzip();
            vec![grad_q, grad_k.filter(|_| needed[1]), grad_v.filter(|_| needed[2])]
        })
    }

    fn tiling(&self, device: &CubeDevice) -> Tiling {
        let drops = self.dropout.is_some();
        Tiling::new(&self.shape, self.buckets.is_some(), drops, device)
            .expect("`supports` was asked before it was applied")
    }
}

/// Returns the tiling if there is a kernel for tensors of `dtype` on `device`. One unit sums the gradient of each bucket.
fn kernel(
    shape: &AttentionShape,
    buckets: Option<&PositionBuckets>,
    device: &CubeDevice,
    dtype: DType,
) -> Option<Tiling> {
    // Dropout needs no shared memory.
    let tiling = Tiling::new(shape, buckets.is_some(), false, device)?;
    let has_units = buckets.is_none_or(|buckets| buckets.buckets() <= tiling.units() as usize);
    (has_units && computes(device, dtype)).then_some(tiling)
}

/// Computes attention of `batch` on a GPU with the kernel. Returns the tensors unchanged if there is none.
#[expect(clippy::result_large_err, reason = "tensors are handed back as they came")]
pub(crate) fn attention(
    qkv: [Tensor<2>; 3],
    extras: &AttentionExtras,
    batch: Batch,
    shape: AttentionShape,
) -> Result<Tensor<2>, [Tensor<2>; 3]> {
    let (device, dtype) = (qkv[0].device(), qkv[0].dtype());
    let Some(gpu) = crate::fused::gpu(&device) else { return Err(qkv) };
    let bias = extras.bias.as_ref();
    let buckets = bias.map(|bias| &bias.buckets);
    if qkv[0].dims()[0] == 0 || qkv[1].dims()[0] == 0 || kernel(&shape, buckets, &gpu, dtype).is_none() {
        return Err(qkv);
    }
    let op = Attention::new(batch, shape, buckets.cloned(), extras.dropout);
    let values = bias.map(|bias| bias.weight_hr.clone().into_dispatch());
    let inputs = qkv.map(Tensor::into_dispatch).into_iter().chain(values).collect();
    Ok(crate::fused::apply_on_gpu(op, inputs))
}

/// Fills `out` and `log_sums` for `count` tiles of queries, described by `tiles`.
fn forward(
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

/// Computes attention over keys and values in arbitrary rows, without gradient. `None` if there is no kernel.
///
/// A sequence may have at most two ranges of keys.
pub(crate) fn of_sequences(
    [q, k, v]: [&Tensor<2>; 3],
    bias: Option<&PositionBias>,
    sequences: impl Iterator<Item = Sequence>,
    shape: AttentionShape,
) -> Option<Tensor<2>> {
    /// Few queries use small tiles, because a tile computes all its rows even if they are empty.
    const FEW: usize = 8;
    let (gpu, dtype) = (crate::fused::gpu(&q.device())?, q.dtype());
    if q.dims()[0] == 0 || k.dims()[0] == 0 || !computes(&gpu, dtype) {
        return None;
    }
    let sequences: Vec<Sequence> = sequences.collect();
    let longest = sequences.iter().map(|sequence| sequence.queries.len()).max()?;
    // Steps of sampling have one query per sequence.
    let chunks = decode::Chunks::new(&shape, &gpu).filter(|_| longest == 1 && bias.is_none());
    let largest = Tiling::new(&shape, bias.is_some(), false, &gpu)?;
    let tiling = if longest <= FEW { Tiling { tile: FEW, each: 1, ..largest } } else { largest };
    // Rows of a tile.
    #[cfg(feature = "cuda")]
    let tile = if k.dtype() == DType::BF16 && chunks.is_none() { cores::TILE } else { tiling.tile };
    #[cfg(not(feature = "cuda"))]
    let tile = tiling.tile;
    let (mut words, word) =
        (Vec::new(), |number: usize| u32::try_from(number).expect("a cache of fewer than 2³² tokens"));
    for Sequence { queries, position, keys, .. } in &sequences {
        let [prefix, own] = &keys[..] else { unreachable!("a prompt, and what was added") };
        for from in queries.clone().step_by(tile) {
            let (count, at) = ((queries.end - from).min(tile), position + from - queries.start);
            let sequence = [prefix.start, prefix.len(), own.start, prefix.len() + own.len()];
            words.extend([from, count, at].into_iter().chain(sequence).map(word));
        }
    }
    let [q, k, v] = [q, k, v].map(|x| into_contiguous(cube_of(x.clone())));
    let tiles = (words.len() / QUERY_WORDS) as u32;
    // The next product reads the output in bf16 if the cache is in bf16.
    let (out, words) = (empty(&q, &dims(&q), k.dtype), Words::shared(&q, &words));
    if let Some(chunks) = chunks {
        decode::attend([&q, &k, &v], (&words, tiles), &out, &shape, chunks);
        return Some(tensor_of(out));
    }
    let log_sums = empty_f32(&q, &[q.shape()[0], shape.heads]);
    #[cfg(feature = "cuda")]
    if k.dtype == DType::BF16 {
        cores::forward([&cores::narrow(&q), &k, &v], (&shape, None), (&words, tiles), &out, &log_sums);
        return Some(tensor_of(out));
    }
    let values = bias.map(|bias| into_contiguous(cube_of(bias.weight_hr.clone().inner())));
    let biases = Biases::new(bias.map(|bias| &bias.buckets).zip(values.as_ref()), &q);
    let masks = Masks::of_attention(None);
    forward([&q, &k, &v], (&words, tiles), &biases, masks, [&out, &log_sums], &shape, tiling);
    Some(tensor_of(out))
}

/// Returns `D` of each row and head. Also fills `copy` with `grad` in the type of `out`, if given.
fn dots_of(out: &CubeTensor, grad: &CubeTensor, copy: Option<&CubeTensor>, shape: &AttentionShape) -> CubeTensor {
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

/// Whether attention of `shape` reads its operands in bf16 on `device`, unless scores have a bias.
#[cfg(feature = "cuda")]
fn reads_operands(shape: &AttentionShape, device: &CubeDevice) -> bool {
    shape.precision == Precision::Bf16 && cores::supports(shape, device)
}

/// Precision in which attention of `shape` without a bias reads queries and keys on `device`.
pub(crate) fn precision_of_operands(shape: &AttentionShape, device: &CubeDevice) -> Precision {
    #[cfg(feature = "cuda")]
    if reads_operands(shape, device) {
        return Precision::Bf16;
    }
    let _ = (shape, device);
    Precision::F32
}

impl GpuOp for Attention {
    fn supports(&self, device: &CubeDevice, dtype: DType) -> bool {
        kernel(&self.shape, self.buckets.as_ref(), device, dtype).is_some()
    }

    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let [q, k, v, bias @ ..] = &inputs[..] else { unreachable!("queries, keys and values") };
        #[cfg(feature = "cuda")]
        if self.is_on_cores(&q.device) {
            return self.forward_on_cores([q, k, v]);
        }
        let (shape, tiling) = (&self.shape, self.tiling(&q.device));
        let (out, log_sums) = (empty_like(q), empty_f32(q, &[q.shape()[0], shape.heads]));
        let (biases, masks) = (self.biases(bias.first(), q), Masks::of_attention(self.dropout));
        with_tables(&self.batch, q, tiling.tile, |tables| {
            if tables.query_tiles > 0 {
                let tiles = (&tables.queries, tables.query_tiles);
                forward([q, k, v], tiles, &biases, masks, [&out, &log_sums], shape, tiling);
            }
        });
        let saved = [q.clone(), k.clone(), v.clone(), out.clone(), log_sums].into_iter();
        (out, saved.chain(bias.iter().cloned()).collect())
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool], _: Before) -> InputGradients {
        let [q, k, v, out, log_sums, bias @ ..] = saved else { unreachable!("the forward pass keeps five tensors") };
        #[cfg(feature = "cuda")]
        if self.is_on_cores(&q.device) {
            return self.backward_on_cores(saved, &grad, needed);
        }
        let (shape, view, tiling) = (&self.shape, View::from(self.shape.mask), self.tiling(&q.device));
        let dots = dots_of(out, &grad, None, shape);
        let (biases, masks) = (self.biases(bias.first(), q), Masks::of_attention(self.dropout));
        let needs_bias = needed.get(3).is_some_and(|needed| *needed);
        with_tables(&self.batch, q, tiling.tile, |tables| {
            let of_tiles = empty_f32(q, &[tables.query_tiles.max(1) as usize, super::elements(&biases.values)]);
            let grad_q = (needed[0] || needs_bias).then(|| {
                let grad_q = empty_like(q);
                if tables.query_tiles > 0 {
                    attention_backward_queries::launch(
                        &q.client,
                        CubeCount::Static(tables.query_tiles, shape.heads as u32, 1),
                        CubeDim::new_1d(tiling.units()),
                        arg(q),
                        arg(k),
                        arg(v),
                        arg(&grad),
                        arg(log_sums),
                        arg(&dots),
                        tables.queries.arg(),
                        biases.buckets.arg(),
                        arg(&biases.values),
                        arg(&grad_q),
                        arg(&of_tiles),
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
                grad_q
            });
            let grad_bias = needs_bias.then(|| match tables.query_tiles {
                0 => zeros(&biases.values, &biases.values.shape().to_vec(), DType::F32),
                _ => {
                    let CubeTensor { client, device, handle, dtype, .. } = column_sums(&of_tiles, DType::F32);
                    CubeTensor::new_contiguous(client, device, biases.values.shape(), handle, dtype)
                }
            });
            let [grad_k, grad_v] = match needed[1] || needed[2] {
                false => [None, None],
                true => {
                    let (grad_k, grad_v) = (empty_like(k), empty_like(v));
                    if tables.key_tiles > 0 {
                        attention_backward_keys::launch(
                            &q.client,
                            CubeCount::Static(tables.key_tiles, shape.kv_heads as u32, 1),
                            CubeDim::new_1d(tiling.units()),
                            arg(q),
                            arg(k),
                            arg(v),
                            arg(&grad),
                            arg(log_sums),
                            arg(&dots),
                            tables.keys.arg(),
                            tables.readers.arg(),
                            biases.buckets.arg(),
                            arg(&biases.values),
                            arg(&grad_k),
                            arg(&grad_v),
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
                    [needed[1].then_some(grad_k), needed[2].then_some(grad_v)]
                }
            };
            let of_bias = bias.iter().map(|_| grad_bias.clone());
            [grad_q.filter(|_| needed[0]), grad_k, grad_v].into_iter().chain(of_bias).collect()
        })
    }
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let mut sources = Vec::new();
    let (device, target) = (|| offline.device(), || offline.target());
    for dtype in offline.dtypes() {
        // Tiles as chosen for 227 KiB, the shared memory of Hopper, and for 48 KiB.
        let plain = |(tile, each), dim, group| Tiling {
            tile,
            each,
            dim,
            group,
            is_capped: false,
            is_biased: false,
            drops: false,
        };
        let kinds = [
            plain(TILES[0], 64, 2),
            plain(TILES[0], 128, 2),
            Tiling { is_capped: true, ..plain(TILES[2], 96, 1) },
            Tiling { is_biased: true, ..plain(TILES[0], 64, 1) },
            Tiling { is_biased: true, drops: true, ..plain(TILES[0], 64, 1) },
        ];
        for tiling in kinds {
            assert!(tiling.bytes() <= 227 << 10, "{tiling:?}");
            let settings = || offline.settings(tiling.units());
            let [a, b, c, d, e, f, g, h] = offline.buffers();
            let kernel = attention_forward::AttentionForward::new(
                settings(),
                device(),
                target(),
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
            sources.push(offline.source("attention forward", dtype, &kernel));
            let [a, b, c, d, e, f, g, h, i, j, k] = offline.buffers();
            let kernel = attention_backward_queries::AttentionBackwardQueries::new(
                settings(),
                device(),
                target(),
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
            sources.push(offline.source("attention backward: queries", dtype, &kernel));
            let [a, b, c, d, e, f, g, h, i, j, k, l] = offline.buffers();
            let kernel = attention_backward_keys::AttentionBackwardKeys::new(
                settings(),
                device(),
                target(),
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
            sources.push(offline.source("attention backward: keys", dtype, &kernel));
        }
        let ([a, b, c, d], settings) = (offline.buffers(), offline.settings(UNITS));
        let (dim, dtypes) = (128, [dtype, super::offline::F32]);
        let kernel = attention_dots::AttentionDots::new(settings, device(), target(), a, b, c, d, dim, true, dtypes);
        sources.push(offline.source("attention: dots", dtype, &kernel));
    }
    sources
}
