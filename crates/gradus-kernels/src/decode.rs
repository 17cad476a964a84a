//! Attention of new tokens over a key/value cache, for sampling.
//!
//! The cache of one layer has two parts: the keys and values of each prompt, stored once and shared by all rows that
//! continue it, and a preallocated stretch for what each row has added. No gradient flows here.

use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};
use rayon::prelude::*;

use crate::attention::AttentionShape;
use crate::fused::{Dense, read};
use crate::parts::one_in_parts;
use crate::segments::Segments;
use crate::simd::{simd, softmax_in_place};

/// One row being continued: which prompt it shares, and where its own keys and values lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheRow {
    /// Index of the prompt given to [`LayerCache::add_prompt`].
    pub prompt: usize,
    /// The row's slot, below the `slots` of [`LayerCache::new`].
    pub slot: usize,
    /// How many tokens the row has already added.
    pub length: usize,
}

/// Keys and values of one layer.
#[derive(Debug, Clone)]
pub struct LayerCache {
    shape: AttentionShape,
    capacity: usize,
    prompts: Vec<Stretch>,
    /// Prompts before this one are forgotten.
    kept_from: usize,
    slots: Vec<Stretch>,
}

/// Keys and values of consecutive tokens, head after head.
#[derive(Debug, Clone, Default)]
struct Stretch {
    length: usize,
    capacity: usize,
    /// `[kv_heads, head_dim, capacity]`: scores of neighbouring tokens are computed side by side.
    keys: Vec<f32>,
    /// `[kv_heads, capacity, head_dim]`.
    values: Vec<f32>,
}

impl Stretch {
    fn new(shape: &AttentionShape, capacity: usize) -> Self {
        let size = shape.kv_heads * capacity * shape.head_dim;
        Self { length: 0, capacity, keys: vec![0.0; size], values: vec![0.0; size] }
    }

    /// Stores one token's keys and values, `[kv_heads · head_dim]` each, at position `at`.
    fn put(&mut self, at: usize, key: &[f32], value: &[f32], dim: usize) {
        for (head, (key, value)) in key.chunks_exact(dim).zip(value.chunks_exact(dim)).enumerate() {
            let from = head * self.capacity * dim;
            for (d, &number) in key.iter().enumerate() {
                self.keys[from + d * self.capacity + at] = number;
            }
            self.values[from + at * dim..from + (at + 1) * dim].copy_from_slice(value);
        }
        self.length = at + 1;
    }

    /// Keys and values of one head.
    fn head(&self, head: usize, dim: usize) -> (&[f32], &[f32]) {
        let range = head * self.capacity * dim..(head + 1) * self.capacity * dim;
        (&self.keys[range.clone()], &self.values[range])
    }
}

simd! {
    /// `scores[t] = scale · Σ_d q[d] keys[d][from + t]`: for the tokens of a stretch from `from` on.
    fn scores_of(scores: &mut [f32], q: &[f32], keys: &[f32], capacity: usize, from: usize, scale: f32) {
        let (blocks, rest) = scores.as_chunks_mut::<64>();
        let mut t = from;
        for block in blocks {
            *block = side_by_side(q, keys, capacity, t, scale);
            t += 64;
        }
        let (blocks, rest) = rest.as_chunks_mut::<16>();
        for block in blocks {
            *block = side_by_side(q, keys, capacity, t, scale);
            t += 16;
        }
        if rest.is_empty() {
            return;
        }
        if t + 16 <= capacity {
            // What lies beyond the last token is computed and left.
            let block: [f32; 16] = side_by_side(q, keys, capacity, t, scale);
            rest.copy_from_slice(&block[..rest.len()]);
            return;
        }
        rest.fill(0.0);
        for (&q, keys) in q.iter().zip(keys.chunks_exact(capacity)) {
            rest.iter_mut().zip(&keys[t..]).for_each(|(score, key)| *score += q * key);
        }
        rest.iter_mut().for_each(|score| *score *= scale);
    }

    /// `output += Σ_t p[t] values[t]`.
    fn add_weighted(output: &mut [f32], p: &[f32], values: &[f32]) {
        const LANES: usize = 64;
        let dim = output.len();
        if let [output] = output.as_chunks_mut::<LANES>().0 && dim == LANES {
            // A head that fits the registers.
            let mut sums = *output;
            for (&p, values) in p.iter().zip(values.as_chunks::<LANES>().0) {
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += p * value);
            }
            *output = sums;
            return;
        }
        for (&p, values) in p.iter().zip(values.chunks_exact(dim)) {
            output.iter_mut().zip(values).for_each(|(output, value)| *output += p * value);
        }
    }
}

/// Scores of `N` tokens from `t` on, held in registers meanwhile.
#[inline(always)]
fn side_by_side<const N: usize>(q: &[f32], keys: &[f32], capacity: usize, t: usize, scale: f32) -> [f32; N] {
    let mut sums = [0.0f32; N];
    for (&q, keys) in q.iter().zip(keys.chunks_exact(capacity)) {
        sums.iter_mut().zip(&keys[t..t + N]).for_each(|(sum, key)| *sum += q * key);
    }
    sums.map(|sum| scale * sum)
}

/// Rows of queries, keys or values inside a row-major tensor with rows `stride` apart.
#[derive(Clone, Copy)]
struct Rows<'a> {
    values: &'a [f32],
    stride: usize,
    offset: usize,
    width: usize,
}

impl<'a> Rows<'a> {
    fn row(self, row: usize) -> &'a [f32] {
        &self.values[row * self.stride + self.offset..][..self.width]
    }
}

/// The values where they lie, also where others hold them too.
fn dense(tensor: Tensor<2>) -> Dense {
    read(tensor, Dense::clone)
}

impl LayerCache {
    /// An empty cache with `slots` rows of at most `capacity` new tokens each.
    pub fn new(shape: AttentionShape, slots: usize, capacity: usize) -> Self {
        Self { shape, capacity, prompts: Vec::new(), kept_from: 0, slots: vec![Stretch::default(); slots] }
    }

    /// Widths of queries, keys and values.
    fn widths(&self) -> [usize; 3] {
        [self.shape.heads, self.shape.kv_heads, self.shape.kv_heads].map(|heads| heads * self.shape.head_dim)
    }

    /// Stores the keys and values of whole prompts, which follow each other in `k_nd` and `v_nd` as `segments` says;
    /// prompts are numbered in the order they are added. Both are `[N, kv_heads · head_dim]`.
    pub fn add_prompts(&mut self, k_nd: Tensor<2>, v_nd: Tensor<2>, segments: &Segments) {
        let (k, v, [_, width, _]) = (dense(k_nd), dense(v_nd), self.widths());
        self.put_prompts(segments, [&k, &v].map(|x| Rows { values: x.values(), stride: width, offset: 0, width }));
    }

    /// [`add_prompts`](Self::add_prompts) for queries, keys and values side by side in one tensor.
    pub fn add_prompts_fused(&mut self, qkv_nd: Tensor<2>, segments: &Segments) {
        let (qkv, widths) = (dense(qkv_nd), self.widths());
        let part = |offset, width| Rows { values: qkv.values(), stride: widths.iter().sum(), offset, width };
        self.put_prompts(segments, [part(widths[0], widths[1]), part(widths[0] + widths[1], widths[2])]);
    }

    fn put_prompts(&mut self, segments: &Segments, [k, v]: [Rows<'_>; 2]) {
        let prompts: Vec<Range<usize>> = segments.iter().map(|segment| segment.tokens).collect();
        let stretches = prompts.into_par_iter().map(|tokens| {
            let mut stretch = Stretch::new(&self.shape, tokens.len());
            for (at, t) in tokens.enumerate() {
                stretch.put(at, k.row(t), v.row(t), self.shape.head_dim);
            }
            stretch
        });
        let stretches: Vec<Stretch> = stretches.collect();
        self.prompts.extend(stretches);
    }

    /// Forgets the prompts before `prompt`, which no row continues any more; their numbers stay taken.
    pub fn drop_prompts_before(&mut self, prompt: usize) {
        let kept = self.kept_from.max(prompt.min(self.prompts.len()));
        self.prompts[self.kept_from..kept].fill(Stretch::default());
        self.kept_from = kept;
    }

    /// Adds one token to each row, and attends from it over the row's prompt and everything the row has added.
    ///
    /// `q_bd` is `[B, H · head_dim]`, `k_bd` and `v_bd` `[B, kv_heads · head_dim]`, one line a row. `scale` multiplies
    /// the scores: it may differ by layer, so it is the caller's, not the cache's.
    ///
    /// # Panics
    /// When the shapes do not fit, two rows share a slot, or a row is longer than the capacity.
    pub fn extend(
        &mut self,
        q_bd: Tensor<2>,
        k_bd: Tensor<2>,
        v_bd: Tensor<2>,
        rows: &[CacheRow],
        scale: f32,
    ) -> Tensor<2> {
        let device = q_bd.device();
        let (parts, widths) = ([q_bd, k_bd, v_bd].map(dense), self.widths());
        let part = |i: usize| Rows { values: parts[i].values(), stride: widths[i], offset: 0, width: widths[i] };
        self.put_and_attend([part(0), part(1), part(2)], rows, scale, &device)
    }

    /// [`extend`](Self::extend) for queries, keys and values side by side in one tensor.
    ///
    /// # Panics
    /// As [`extend`](Self::extend).
    pub fn extend_fused(&mut self, qkv_bd: Tensor<2>, rows: &[CacheRow], scale: f32) -> Tensor<2> {
        let device = qkv_bd.device();
        let (qkv, widths) = (dense(qkv_bd), self.widths());
        let stride = widths.iter().sum();
        let part = |i: usize| Rows { values: qkv.values(), stride, offset: widths[..i].iter().sum(), width: widths[i] };
        self.put_and_attend([part(0), part(1), part(2)], rows, scale, &device)
    }

    fn put_and_attend(
        &mut self,
        [q, k, v]: [Rows<'_>; 3],
        rows: &[CacheRow],
        scale: f32,
        device: &Device,
    ) -> Tensor<2> {
        assert_eq!(q.values.len(), rows.len() * q.stride, "one line per row");
        let (shape, width) = (self.shape, q.width);
        let mut row_of_slot = vec![None; self.slots.len()];
        for (i, row) in rows.iter().enumerate() {
            assert!(row_of_slot[row.slot].replace(i).is_none(), "two rows share slot {}", row.slot);
        }
        let capacity = self.capacity;
        self.slots.par_iter_mut().zip(row_of_slot).for_each(|(slot, i)| {
            let Some(i) = i else { return };
            if slot.capacity == 0 {
                *slot = Stretch::new(&shape, capacity);
            }
            slot.put(rows[i].length, k.row(i), v.row(i), shape.head_dim);
        });
        let output = one_in_parts(rows.len() * width, width, |i, output| {
            self.attend(&rows[i], q.row(i), scale, output);
        });
        Tensor::from_data(TensorData::new(output, [rows.len(), width]), device)
    }

    fn attend(&self, row: &CacheRow, q: &[f32], scale: f32, output: &mut [f32]) {
        let (dim, group) = (self.shape.head_dim, self.shape.heads / self.shape.kv_heads);
        let (prompt, slot) = (&self.prompts[row.prompt], &self.slots[row.slot]);
        let length = prompt.length + row.length + 1;
        let seen = self.shape.mask.keys(length - 1, length);
        // Where the window, if there is one, begins in each stretch.
        let (from, from_own) = (seen.start.min(prompt.length), seen.start.saturating_sub(prompt.length));
        let mut scores = vec![0.0f32; seen.len()];
        for (head, (q, output)) in q.chunks_exact(dim).zip(output.chunks_exact_mut(dim)).enumerate() {
            let (prompt_keys, prompt_values) = prompt.head(head / group, dim);
            let (own_keys, own_values) = slot.head(head / group, dim);
            let (of_prompt, of_own) = scores.split_at_mut(prompt.length - from);
            scores_of(of_prompt, q, prompt_keys, prompt.capacity, from, scale);
            scores_of(of_own, q, own_keys, slot.capacity, from_own, scale);
            softmax_in_place(&mut scores);
            let (of_prompt, of_own) = scores.split_at(prompt.length - from);
            add_weighted(output, of_prompt, &prompt_values[from * dim..]);
            add_weighted(output, of_own, &own_values[from_own * dim..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::attention::{Mask, attention};
    use crate::fused::testing::{assert_close, host, values};

    #[test]
    fn token_by_token_equals_the_whole_sequence() {
        // Windows that end within the prompt, where it ends, and within the row's own tokens.
        let windows = [1, 4, 6, 100].map(|tokens| Mask::CausalWindow(NonZeroUsize::new(tokens).expect("not zero")));
        for mask in [Mask::Causal].into_iter().chain(windows) {
            for prompt in [0, 1, 4] {
                check(AttentionShape { heads: 4, kv_heads: 2, head_dim: 3, scale: 0.7, mask }, prompt);
            }
        }
    }

    #[test]
    fn scores_are_dot_products_whatever_the_block_they_fall_into() {
        let dim = 5;
        for (capacity, from, count) in [(1, 0, 1), (7, 2, 5), (16, 0, 3), (40, 0, 40), (96, 3, 70), (200, 1, 150)] {
            let (q, keys) = (values(dim, 1), values(dim * capacity, 2));
            let mut scores = vec![f32::NAN; count];
            scores_of(&mut scores, &q, &keys, capacity, from, 0.3);
            let expected: Vec<f32> =
                (0..count).map(|t| 0.3 * (0..dim).map(|d| q[d] * keys[d * capacity + from + t]).sum::<f32>()).collect();
            assert_close("score", &scores, &expected, 1e-6);
        }
    }

    fn check(shape: AttentionShape, prompt: usize) {
        let (total, device) = (9, Device::flex());
        let (q, k, v) = (values(total * 12, 1), values(total * 6, 2), values(total * 6, 3));
        let tensor =
            |v: &[f32], w: usize| Tensor::<2>::from_data(TensorData::new(v.to_vec(), [v.len() / w, w]), &device);
        let whole = host(attention(tensor(&q, 12), tensor(&k, 6), tensor(&v, 6), &Segments::sequences([total]), shape));
        let mut cache = LayerCache::new(shape, 2, total - prompt);
        cache.add_prompts(tensor(&k[..prompt * 6], 6), tensor(&v[..prompt * 6], 6), &Segments::sequences([prompt]));
        for t in prompt..total {
            // The same tokens in both slots: rows of a group do not see each other.
            let rows = [0, 1].map(|slot| CacheRow { prompt: 0, slot, length: t - prompt });
            let twice = |v: &[f32], w: usize| tensor(&[&v[t * w..(t + 1) * w], &v[t * w..(t + 1) * w]].concat(), w);
            let out = host(cache.extend(twice(&q, 12), twice(&k, 6), twice(&v, 6), &rows, shape.scale));
            assert_close("slot 0", &out[..12], &whole[t * 12..(t + 1) * 12], 1e-6);
            assert_eq!(out[..12], out[12..]);
        }
    }
}
