//! Attention of sequences with one query each, as in every step of sampling. The mathematics is in [`crate::attention`].
//!
//! A cube computes all query heads that share a key/value head, so it reads keys and values once. It processes a chunk of keys at a time:
//! scores, then exponentials, then the weighted sum of values.

use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::scores::{HIDDEN, key_row, score};
use crate::attention::AttentionShape;
use crate::attention::tiles::{QUERY_WORDS, View};
#[cfg(feature = "cuda")]
use crate::gpu::offline::{Offline, Source};
use crate::gpu::{UNITS, Words, arg, cube_max, cube_sum, element};

/// Units that share the product of a query and a key.
const LANES: usize = 8;

/// Compile-time parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Chunks {
    /// Keys of a chunk.
    keys: usize,
    /// Width of a head.
    dim: usize,
    /// Query heads per key/value head.
    group: usize,
    /// Whether scores are softly capped.
    is_capped: bool,
}

impl Chunks {
    /// Returns the largest chunks that fit into the shared memory of `device`. `None` if none fit, or if a head is too wide.
    pub(super) fn new(shape: &AttentionShape, device: &CubeDevice) -> Option<Self> {
        let client = device.client();
        let hardware = &client.properties().hardware;
        let of = |keys| Self { keys, dim: shape.head_dim, group: shape.group(), is_capped: shape.cap.is_some() };
        let fits = |chunks: &Self| chunks.bytes() <= hardware.max_shared_memory_size.min(32 << 10);
        let is_narrow = shape.head_dim <= UNITS as usize && hardware.max_units_per_cube >= UNITS;
        [256, 128, 64, 32].map(of).into_iter().find(fits).filter(|_| is_narrow)
    }

    /// Bytes of shared memory: queries, parts of products, weights and sums.
    fn bytes(&self) -> usize {
        4 * (self.group * (self.dim + self.keys * (LANES + 1)) + UNITS as usize)
    }
}

/// Computes the attention output of one query per sequence. The types are those of the queries, of the cache, and of the output.
#[cube(launch)]
fn attention_of_one<Q: Float, C: Float, O: Float>(
    q: &[Q],
    k: &[C],
    v: &[C],
    tiles: &[u32],
    out: &mut [O],
    heads: u32,
    scale: f32,
    cap: f32,
    before: u32,
    after: u32,
    #[comptime] chunks: Chunks,
    #[define(Q, C, O)] _dtypes: [ElemType; 3],
) {
    let units = comptime!(UNITS as usize);
    let chunk = comptime!(chunks.keys);
    let dim = comptime!(chunks.dim);
    let group = comptime!(chunks.group);
    // Units that sum the values of the same keys, and number of such sets.
    let columns = comptime!(chunks.dim.next_power_of_two());
    let sets = comptime!(UNITS as usize / chunks.dim.next_power_of_two());
    let mut queries = Shared::<[f32]>::new_slice(comptime!(chunks.group * chunks.dim));
    let mut parts = Shared::<[f32]>::new_slice(comptime!(chunks.group * chunks.keys * LANES));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(chunks.group * chunks.keys));
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(UNITS as usize));
    let unit = UNIT_POS as usize;
    let kv_head = CUBE_POS_Y as usize;
    let width = heads as usize * dim;
    let kv_width = width / group;
    let word = CUBE_POS_X as usize * comptime!(QUERY_WORDS);
    let query = tiles[word] as usize;
    let position = tiles[word + 2] as usize;
    let prefix = tiles[word + 3] as usize;
    let prefix_length = tiles[word + 4] as usize;
    let own = tiles[word + 5] as usize;
    let length = tiles[word + 6] as usize;
    let first_head = query * width + kv_head * group * dim;

    let mut i = unit;
    while i < group * dim {
        queries[i] = f32::cast_from(q[first_head + i]);
        i += units;
    }
    let mut sums = Array::<f32>::new(group);
    let mut largest = Array::<f32>::new(group);
    let mut total = Array::<f32>::new(group);
    let mut dots = Array::<f32>::new(group);
    #[unroll]
    for g in 0..group {
        sums[g] = 0.0f32;
        largest[g] = HIDDEN;
        total[g] = 0.0f32;
    }
    let mut from = 0usize;
    if position > before as usize {
        from = position - before as usize;
    }
    let end = min(length, position + 1 + after as usize);
    let (lane, column, set) = (unit % LANES, unit % columns, unit / columns);
    while from < end {
        let count = min(chunk, end - from);
        // The queries are there, and all units have finished with the previous chunk.
        sync_cube();
        let mut c = unit / LANES;
        while c < count {
            let at = key_row(from + c, prefix, prefix_length, own) * kv_width + kv_head * dim;
            #[unroll]
            for g in 0..group {
                dots[g] = 0.0f32;
            }
            let mut d = lane;
            while d < dim {
                let key = f32::cast_from(k[at + d]);
                #[unroll]
                for g in 0..group {
                    dots[g] += key * queries[g * dim + d];
                }
                d += LANES;
            }
            #[unroll]
            for g in 0..group {
                parts[(g * chunk + c) * LANES + lane] = dots[g];
            }
            c += comptime!(UNITS as usize / LANES);
        }
        sync_cube();
        #[unroll]
        for g in 0..group {
            let mut s = f32::new(HIDDEN);
            if unit < count {
                let mut product = 0.0f32;
                #[unroll]
                for i in 0..LANES {
                    product += parts[(g * chunk + unit) * LANES + i];
                }
                let (plain, _slope) = score(product, scale, cap, comptime!(chunks.is_capped));
                s = plain;
            }
            let highest = max(largest[g], cube_max(s, &mut scratch));
            let shrink = (largest[g] - highest).exp();
            let mut p = 0.0f32;
            if unit < count {
                p = (s - highest).exp();
                weights[g * chunk + unit] = p;
            }
            total[g] = total[g] * shrink + cube_sum(p, &mut scratch);
            sums[g] *= shrink;
            largest[g] = highest;
        }
        sync_cube();
        if column < dim {
            let mut c = set;
            while c < count {
                let row = key_row(from + c, prefix, prefix_length, own);
                let value = f32::cast_from(v[row * kv_width + kv_head * dim + column]);
                #[unroll]
                for g in 0..group {
                    sums[g] += weights[g * chunk + c] * value;
                }
                c += sets;
            }
        }
        from += chunk;
    }
    #[unroll]
    for g in 0..group {
        sync_cube();
        scratch[unit] = sums[g];
        sync_cube();
        if set == 0 && column < dim {
            let mut sum = 0.0f32;
            for i in 0..sets {
                sum += scratch[i * columns + column];
            }
            let inverse = select(total[g] > 0.0f32, 1.0f32 / total[g], 0.0f32);
            out[first_head + g * dim + column] = O::cast_from(sum * inverse);
        }
    }
}

/// Fills `out` for `count` sequences with one query each, described by `tiles`.
pub(super) fn attend(
    [q, k, v]: [&CubeTensor; 3],
    (tiles, count): (&Words, u32),
    out: &CubeTensor,
    shape: &AttentionShape,
    chunks: Chunks,
) {
    let view = View::from(shape.mask);
    attention_of_one::launch(
        &q.client,
        CubeCount::Static(count, shape.kv_heads as u32, 1),
        CubeDim::new_1d(UNITS),
        arg(q),
        arg(k),
        arg(v),
        tiles.arg(),
        arg(out),
        shape.heads as u32,
        shape.scale,
        shape.cap.unwrap_or(1.0),
        view.before,
        view.after,
        chunks,
        [element(q), element(k), element(out)],
    );
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &Offline) -> Vec<Source> {
    let of = |(keys, group, is_capped, cached)| {
        let chunks = Chunks { keys, dim: 128, group, is_capped };
        let ([a, b, c, d, e], settings) = (offline.buffers(), offline.settings(UNITS));
        let (device, target, dtypes) = (offline.device(), offline.target(), [cached; 3]);
        let kernel = attention_of_one::AttentionOfOne::new(
            settings,
            device,
            target,
            a,
            b,
            c,
            d,
            e,
            (),
            (),
            (),
            (),
            (),
            chunks,
            dtypes,
        );
        offline.source("attention of one query", cached, &kernel)
    };
    let kinds = offline.dtypes().into_iter().flat_map(|cached| [(256, 2, false, cached), (64, 8, true, cached)]);
    kinds.map(of).collect()
}
