//! Attention of new tokens over a key/value cache, for sampling.
//!
//! The cache of one layer has two parts: the keys and values of each prompt, stored once and shared by all rows that
//! continue it, and a preallocated stretch for what each row has added, which doubles when it is full. No gradient flows
//! here.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};
use rayon::prelude::*;

use crate::attention::AttentionShape;
use crate::fused::{Dense, read};
use crate::parts::zeros;
use crate::product::{Mat, Precision, Product};
use crate::segments::Segments;
use crate::simd::{simd, softmax_in_place};

/// One new token of a row being continued: which prompt the row shares, where its own keys and values lie, and how many
/// come before.
///
/// A row that grows by several tokens at once (a user's next turn, a tool's answer) has one entry for each, next to each
/// other, their `length`s counting up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheRow {
    /// The prompt's number, see [`LayerCache::add_prompts`].
    pub prompt: usize,
    /// The row's slot.
    pub slot: usize,
    /// How many tokens the row has added before this one.
    pub length: usize,
}

/// Tokens of one row that one task attends from.
const BLOCK: usize = 32;

/// Scores decide between tokens: they stay in f32.
const PRODUCT: Product = Product::single(Precision::F32);

/// Keys and values of one layer.
#[derive(Debug, Clone)]
pub struct LayerCache {
    shape: AttentionShape,
    /// Tokens that a slot is made for.
    capacity: usize,
    /// By number.
    prompts: BTreeMap<usize, Stretch>,
    /// The number of the next.
    next_prompt: usize,
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

    /// Makes room for `tokens`: `first` at first, then twice as many as there were.
    fn reserve(&mut self, shape: &AttentionShape, tokens: usize, first: usize) {
        if tokens <= self.capacity {
            return;
        }
        let (old, dim) = (std::mem::take(self), shape.head_dim);
        *self = Self::new(shape, tokens.max(first).max(2 * old.capacity));
        self.length = old.length;
        for head in 0..if old.length > 0 { shape.kv_heads } else { 0 } {
            let ((keys, values), from) = (old.head(head, dim), head * self.capacity * dim);
            for (d, keys) in keys.chunks_exact(old.capacity).enumerate() {
                self.keys[from + d * self.capacity..][..old.length].copy_from_slice(&keys[..old.length]);
            }
            self.values[from..][..old.length * dim].copy_from_slice(&values[..old.length * dim]);
        }
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
    /// An empty cache whose rows have room for `capacity` new tokens each; a row that adds more gets more.
    pub fn new(shape: AttentionShape, slots: usize, capacity: usize) -> Self {
        let slots = vec![Stretch::default(); slots];
        Self { shape, capacity, prompts: BTreeMap::new(), next_prompt: 0, slots }
    }

    /// Widths of queries, keys and values.
    fn widths(&self) -> [usize; 3] {
        [self.shape.heads, self.shape.kv_heads, self.shape.kv_heads].map(|heads| heads * self.shape.head_dim)
    }

    /// Stores the keys and values of whole prompts, which follow each other in `k_nd` and `v_nd` as `segments` says;
    /// prompts are numbered from 0 in the order they are added. Both are `[N, kv_heads · head_dim]`.
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
        let first = self.next_prompt;
        self.next_prompt += stretches.len();
        self.prompts.extend((first..).zip(stretches));
    }

    /// Forgets the prompts before `prompt`, which no row continues any more; their numbers stay taken.
    pub fn drop_prompts_before(&mut self, prompt: usize) {
        self.prompts = self.prompts.split_off(&prompt);
    }

    /// Forgets one prompt, which no row continues any more; its number stays taken.
    pub fn drop_prompt(&mut self, prompt: usize) {
        self.prompts.remove(&prompt);
    }

    /// Gives back the memory of a slot whose row has ended. A slot whose memory is kept serves its next row as well.
    pub fn clear_slot(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Stretch::default();
        }
    }

    /// Adds tokens to rows, and attends from each over its row's prompt, everything the row added before it, and itself.
    ///
    /// `q_bd` is `[B, H · head_dim]`, `k_bd` and `v_bd` `[B, kv_heads · head_dim]`, one line for each of the B new tokens,
    /// which `rows` describes. `scale` multiplies the scores: it may differ by layer, so it is the caller's, not the
    /// cache's.
    ///
    /// # Panics
    /// When the shapes do not fit, a prompt is not there, or the tokens of a slot do not follow each other.
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
        let runs = runs(rows);
        let slots = runs.iter().map(|run| rows[run.start].slot + 1).max().unwrap_or(0).max(self.slots.len());
        self.slots.resize(slots, Stretch::default());
        let mut run_of_slot = vec![None; slots];
        for run in &runs {
            let slot = rows[run.start].slot;
            assert!(run_of_slot[slot].replace(run.clone()).is_none(), "two rows share slot {slot}");
        }
        let capacity = self.capacity;
        self.slots.par_iter_mut().zip(run_of_slot).for_each(|(slot, run)| {
            let Some(run) = run else { return };
            slot.reserve(&shape, rows[run.end - 1].length + 1, capacity);
            for i in run {
                slot.put(rows[i].length, k.row(i), v.row(i), shape.head_dim);
            }
        });
        let mut output = zeros(rows.len() * width);
        let mut rest = &mut output[..];
        let blocks = runs.iter().flat_map(|run| run.clone().step_by(BLOCK).map(|from| from..run.end.min(from + BLOCK)));
        let blocks = blocks.map(|block| {
            let output = rest.split_off_mut(..block.len() * width).expect("one line a token");
            (block, output)
        });
        let blocks: Vec<_> = blocks.collect();
        blocks.into_par_iter().for_each(|(block, output)| match block.len() {
            1 => self.attend(&rows[block.start], q.row(block.start), scale, output),
            _ => self.attend_together(rows, block, q, scale, output),
        });
        Tensor::from_data(TensorData::new(output, [rows.len(), width]), device)
    }

    fn prompt(&self, row: &CacheRow) -> &Stretch {
        self.prompts.get(&row.prompt).unwrap_or_else(|| panic!("prompt {} is not in the cache", row.prompt))
    }

    fn attend(&self, row: &CacheRow, q: &[f32], scale: f32, output: &mut [f32]) {
        let (dim, group) = (self.shape.head_dim, self.shape.heads / self.shape.kv_heads);
        let (prompt, slot) = (self.prompt(row), &self.slots[row.slot]);
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

    /// [`attend`](Self::attend) for neighbouring tokens of one row, as products of matrices.
    fn attend_together(&self, rows: &[CacheRow], block: Range<usize>, q: Rows<'_>, scale: f32, output: &mut [f32]) {
        let (AttentionShape { heads, kv_heads, head_dim: dim, mask, .. }, rows) = (self.shape, &rows[block.clone()]);
        let (prompt, slot) = (self.prompt(&rows[0]), &self.slots[rows[0].slot]);
        let seen: Vec<Range<usize>> = rows
            .iter()
            .map(|row| prompt.length + row.length)
            .map(|position| mask.keys(position, position + 1))
            .collect();
        let (first, end) = (seen[0].start, seen[seen.len() - 1].end);
        let columns = end - first;
        // Each stretch with the tokens of it that are seen.
        let of_prompt = first.min(prompt.length)..prompt.length;
        let of_own = first.max(prompt.length) - prompt.length..end - prompt.length;
        let stretches = [(prompt, of_prompt.clone(), 0), (slot, of_own, of_prompt.len())];
        let stretches = || stretches.iter().filter(|(_, tokens, _)| !tokens.is_empty());
        let mut scores = vec![0.0f32; rows.len() * columns];
        for head in 0..heads {
            let queries = &q.values[block.start * q.stride + q.offset + head * dim..];
            let queries = Mat::strided(queries, rows.len(), dim, q.stride);
            for (stretch, tokens, column) in stretches() {
                let keys = &stretch.head(head / (heads / kv_heads), dim).0[tokens.start..];
                let keys = Mat::strided(keys, dim, tokens.len(), stretch.capacity);
                PRODUCT.scaled(scale).store(&mut scores[*column..], columns, queries, keys);
            }
            for (row, seen) in scores.chunks_exact_mut(columns).zip(&seen) {
                let seen = seen.start - first..seen.end - first;
                softmax_in_place(&mut row[seen.clone()]);
                row[..seen.start].fill(0.0);
                row[seen.end..].fill(0.0);
            }
            for (stretch, tokens, column) in stretches() {
                let values = &stretch.head(head / (heads / kv_heads), dim).1[tokens.start * dim..];
                let p = Mat::strided(&scores[*column..], rows.len(), tokens.len(), columns);
                PRODUCT.add(&mut output[head * dim..], q.width, p, Mat::dense(values, tokens.len(), dim));
            }
        }
    }
}

/// The entries of each row: neighbours with the same slot.
///
/// # Panics
/// When they do not follow each other.
fn runs(rows: &[CacheRow]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::with_capacity(rows.len());
    for (i, row) in rows.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if rows[run.start].slot == row.slot => {
                let next = CacheRow { length: rows[i - 1].length + 1, ..rows[i - 1] };
                assert_eq!(*row, next, "tokens of slot {} follow each other", row.slot);
                run.end = i + 1;
            }
            _ => runs.push(i..i + 1),
        }
    }
    runs
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

    #[test]
    fn several_tokens_at_once_equal_the_whole_sequence() {
        let windows = [1, 5, 40].map(|tokens| Mask::CausalWindow(NonZeroUsize::new(tokens).expect("not zero")));
        for mask in [Mask::Causal].into_iter().chain(windows) {
            let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 3, scale: 0.7, mask };
            // Turns of one token, of some, and of more than a block, beside a row that goes on by one token a turn; both
            // outgrow the room that slots begin with.
            for (prompt, turns) in [(0, [1, 70, 2]), (5, [33, 1, 32]), (40, [3, 4, 5])] {
                let total = prompt + turns.iter().sum::<usize>();
                let x = Sequence::new(total);
                let whole = x.whole(shape);
                let mut cache = LayerCache::new(shape, 1, 2);
                cache.add_prompts(x.keys(0..prompt), x.values(0..prompt), &Segments::sequences([prompt]));
                let mut at = prompt;
                for (turn, count) in turns.into_iter().enumerate() {
                    let mut tokens: Vec<usize> = (at..at + count).collect();
                    let mut rows: Vec<CacheRow> =
                        tokens.iter().map(|t| CacheRow { prompt: 0, slot: 3, length: t - prompt }).collect();
                    tokens.push(prompt + turn);
                    rows.push(CacheRow { prompt: 0, slot: 1, length: turn });
                    let [q, k, v] = x.of(&tokens);
                    let out = host(cache.extend(q, k, v, &rows, shape.scale));
                    let expected: Vec<f32> =
                        tokens.iter().flat_map(|t| &whole[t * 12..(t + 1) * 12]).copied().collect();
                    assert_close(&format!("{mask:?}, turn {turn}"), &out, &expected, 2e-6);
                    at += count;
                }
            }
        }
    }

    #[test]
    fn prompts_and_slots_are_forgotten_one_by_one() {
        let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 3, scale: 0.7, mask: Mask::Causal };
        let (x, mut cache) = (Sequence::new(6), LayerCache::new(shape, 1, 4));
        cache.add_prompts(x.keys(0..6), x.values(0..6), &Segments::sequences([1, 2, 3]));
        cache.drop_prompt(1);
        let next = |cache: &mut LayerCache, prompt| {
            let ([q, k, v], rows) = (x.of(&[5]), [CacheRow { prompt, slot: 0, length: 0 }]);
            host(cache.extend(q, k, v, &rows, shape.scale))
        };
        let (first, third) = (next(&mut cache, 0), next(&mut cache, 2));
        cache.clear_slot(0);
        cache.clear_slot(9);
        assert_eq!((next(&mut cache, 0), next(&mut cache, 2)), (first, third.clone()));
        cache.drop_prompts_before(2);
        assert_eq!(cache.prompts.len(), 1);
        assert_eq!(next(&mut cache, 2), third);
        cache.add_prompts(x.keys(0..1), x.values(0..1), &Segments::sequences([1]));
        assert!(cache.prompts.contains_key(&3), "numbers stay taken");
    }

    #[test]
    #[should_panic(expected = "tokens of slot 0 follow each other")]
    fn tokens_of_a_row_follow_each_other() {
        runs(&[0, 2].map(|length| CacheRow { prompt: 0, slot: 0, length }));
    }

    /// Queries, keys and values of one sequence, four heads and two of three numbers.
    struct Sequence([Vec<f32>; 3]);

    impl Sequence {
        const WIDTHS: [usize; 3] = [12, 6, 6];

        fn new(total: usize) -> Self {
            Self(std::array::from_fn(|i| values(total * Self::WIDTHS[i], i as u64 + 1)))
        }

        fn of(&self, tokens: &[usize]) -> [Tensor<2>; 3] {
            std::array::from_fn(|i| {
                let width = Self::WIDTHS[i];
                let rows = tokens.iter().flat_map(|t| &self.0[i][t * width..(t + 1) * width]).copied().collect();
                Tensor::from_data(TensorData::new::<f32, _>(rows, [tokens.len(), width]), &Device::flex())
            })
        }

        fn keys(&self, tokens: Range<usize>) -> Tensor<2> {
            let [_, k, _] = self.of(&tokens.collect::<Vec<_>>());
            k
        }

        fn values(&self, tokens: Range<usize>) -> Tensor<2> {
            let [.., v] = self.of(&tokens.collect::<Vec<_>>());
            v
        }

        /// What every token of the whole sequence attends to.
        fn whole(&self, shape: AttentionShape) -> Vec<f32> {
            let total = self.0[0].len() / 12;
            let [q, k, v] = self.of(&(0..total).collect::<Vec<_>>());
            host(attention(q, k, v, &Segments::sequences([total]), shape))
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
