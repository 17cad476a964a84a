//! The cache in host memory, laid out for the CPU's kernels.
//!
//! Every row has preallocated space for the tokens that it adds. The space doubles when it is full.

use std::ops::Range;

use rayon::prelude::*;

use super::{CacheRow, Keys, Memory, Pass};
use crate::attention::{AttentionShape, DistanceBias, PositionBias, add};
use crate::host::read;
use crate::parts::zeros;
use crate::product::{Mat, Precision, Product};
use crate::simd::{simd, softmax_in_place};
use crate::softcap::cap_in_place;

/// Tokens of one row whose attention one task computes.
const BLOCK: usize = 32;

/// Scores decide between tokens, so they stay in f32.
const PRODUCT: Product = Product::single(Precision::F32);

/// Keys and values of consecutive tokens, head by head.
#[derive(Debug, Clone, Default)]
pub(super) struct KvBuffer {
    length: usize,
    capacity: usize,
    /// `[kv_heads, head_dim, capacity]`, so that scores of neighboring tokens are computed side by side.
    keys: Vec<f32>,
    /// `[kv_heads, capacity, head_dim]`.
    values: Vec<f32>,
}

impl KvBuffer {
    pub(super) fn length(&self) -> usize {
        self.length
    }

    fn new(shape: &AttentionShape, capacity: usize) -> Self {
        let size = shape.kv_heads * capacity * shape.head_dim;
        Self { length: 0, capacity, keys: vec![0.0; size], values: vec![0.0; size] }
    }

    /// Makes space for `tokens`: at least `first`, then twice the old capacity.
    fn reserve(&mut self, shape: &AttentionShape, tokens: usize, first: usize) {
        if tokens <= self.capacity {
            return;
        }
        let old = std::mem::take(self);
        *self = Self::new(shape, tokens.max(first).max(2 * old.capacity));
        self.copy(shape, &old, old.length);
    }

    /// Copies the first `length` tokens of `other`. The space must suffice.
    fn copy(&mut self, shape: &AttentionShape, other: &Self, length: usize) {
        self.length = length;
        let dim = shape.head_dim;
        for head in 0..if length > 0 { shape.kv_heads } else { 0 } {
            let ((keys, values), from) = (other.head(head, dim), head * self.capacity * dim);
            for (d, keys) in keys.chunks_exact(other.capacity).enumerate() {
                self.keys[from + d * self.capacity..][..length].copy_from_slice(&keys[..length]);
            }
            self.values[from..][..length * dim].copy_from_slice(&values[..length * dim]);
        }
    }

    /// Builds the keys and values of a whole prompt.
    fn of_prompt(shape: &AttentionShape, tokens: Range<usize>, [k, v]: [Rows<'_>; 2]) -> Self {
        /// Tokens whose keys are written side by side: those of one channel fill a cache line.
        const SIDE_BY_SIDE: usize = 16;
        let (dim, length) = (shape.head_dim, tokens.len());
        let mut buffer = Self { length, ..Self::new(shape, length) };
        if length == 0 {
            return buffer;
        }
        for from in (0..length).step_by(SIDE_BY_SIDE) {
            let some = from..(from + SIDE_BY_SIDE).min(length);
            let rows: Vec<&[f32]> = some.clone().map(|at| k.row(tokens.start + at)).collect();
            for (channel, keys) in buffer.keys.chunks_exact_mut(length).enumerate() {
                keys[some.clone()].iter_mut().zip(&rows).for_each(|(key, row)| *key = row[channel]);
            }
        }
        for (at, t) in tokens.enumerate() {
            for (head, value) in v.row(t).chunks_exact(dim).enumerate() {
                buffer.values[(head * length + at) * dim..][..dim].copy_from_slice(value);
            }
        }
        buffer
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
    /// `scores[t] = scale · Σ_d q[d] keys[d][from + t]` for the tokens of a stretch starting at `from`.
    fn scores_of(scores: &mut [f32], q: &[f32], keys: &[f32], capacity: usize, from: usize, scale: f32) {
        let (blocks, rest) = scores.as_chunks_mut::<128>();
        let mut t = from;
        for block in blocks {
            *block = side_by_side(q, keys, capacity, t, scale);
            t += 128;
        }
        let (blocks, rest) = rest.as_chunks_mut::<64>();
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
            // Scores beyond the last token are computed and discarded.
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
            // The head fits into registers.
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

/// Scores of `N` tokens starting at `t`, accumulated in registers.
#[inline(always)]
fn side_by_side<const N: usize>(q: &[f32], keys: &[f32], capacity: usize, t: usize, scale: f32) -> [f32; N] {
    let mut sums = [0.0f32; N];
    for (&q, keys) in q.iter().zip(keys.chunks_exact(capacity)) {
        sums.iter_mut().zip(&keys[t..t + N]).for_each(|(sum, key)| *sum += q * key);
    }
    sums.map(|sum| scale * sum)
}

/// Rows of queries, keys or values inside a row-major tensor whose rows are `stride` apart.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub values: &'a [f32],
    pub stride: usize,
    pub offset: usize,
    pub width: usize,
}

impl<'a> Rows<'a> {
    fn row(self, row: usize) -> &'a [f32] {
        &self.values[row * self.stride + self.offset..][..self.width]
    }
}

/// Buffer of a row that has added no token.
static NOTHING: KvBuffer = KvBuffer { length: 0, capacity: 0, keys: Vec::new(), values: Vec::new() };

impl Memory<KvBuffer> {
    /// Stores keys and values of prompts, starting with prompt number `first`.
    pub(super) fn put_prompts(
        &mut self,
        shape: &AttentionShape,
        first: usize,
        prompts: Vec<Range<usize>>,
        [k, v]: [Rows<'_>; 2],
    ) {
        let buffers = prompts.into_par_iter().map(|tokens| KvBuffer::of_prompt(shape, tokens, [k, v]));
        let buffers: Vec<KvBuffer> = buffers.collect();
        self.prompts.extend((first..).zip(buffers));
    }

    /// Copies the first `length` tokens of slot `from` to slot `to`.
    pub(super) fn copy_slot(&mut self, shape: &AttentionShape, from: usize, to: usize, length: usize) {
        let mut copy = std::mem::take(&mut self.slots[to]);
        let original = &self.slots[from];
        copy.length = 0;
        copy.reserve(shape, length, original.capacity);
        copy.copy(shape, original, length);
        self.slots[to] = copy;
    }

    /// Stores keys and values of new tokens.
    pub(super) fn put(&mut self, pass: &Pass<'_>, capacity: usize, [k, v]: [Rows<'_>; 2]) {
        assert_eq!(k.values.len(), pass.rows.len() * k.stride, "one line per row");
        let (rows, shape) = (pass.rows, pass.shape);
        let run_of_slot = self.make_slots(rows, &pass.runs);
        self.slots.par_iter_mut().zip(run_of_slot).for_each(|(slot, run)| {
            let Some(run) = run else { return };
            slot.reserve(&shape, rows[run.end - 1].length + 1, capacity);
            for i in run {
                slot.put(rows[i].length, k.row(i), v.row(i), shape.head_dim);
            }
        });
    }

    /// Returns the attention output of every token, `[B, H · head_dim]`.
    pub(super) fn attend(&self, pass: &Pass<'_>, q: Rows<'_>) -> Vec<f32> {
        assert_eq!(q.values.len(), pass.rows.len() * q.stride, "one line per row");
        let bias = pass.bias.map(|PositionBias { weight_hr, buckets }| {
            let [positions, lengths] = [0, 1].map(|i| pass.rows.iter().map(move |row| self.place(pass, row)[i]));
            let longest = positions.map(|position| position + 1).chain(lengths).max().unwrap_or(0);
            DistanceBias::new(buckets, &read(weight_hr.clone()), longest)
        });
        let mut output = zeros(pass.rows.len() * q.width);
        let mut rest = &mut output[..];
        let blocks =
            pass.runs.iter().flat_map(|run| run.clone().step_by(BLOCK).map(|from| from..run.end.min(from + BLOCK)));
        let blocks = blocks.map(|block| {
            let output = rest.split_off_mut(..block.len() * q.width).expect("one line a token");
            (block, output)
        });
        let blocks: Vec<_> = blocks.collect();
        blocks.into_par_iter().for_each(|(block, output)| match block.len() {
            1 => self.attend_alone(pass, bias.as_ref(), &pass.rows[block.start], q.row(block.start), output),
            _ => self.attend_together(pass, bias.as_ref(), block, q, output),
        });
        output
    }

    /// Keys and values of a row: those of the shared prompt, then the row's own.
    fn buffers(&self, pass: &Pass<'_>, row: &CacheRow) -> [&KvBuffer; 2] {
        let own = match pass.keys {
            Keys::Row => &self.slots[row.slot],
            Keys::Prompt => &NOTHING,
        };
        [self.prompt(row.prompt), own]
    }

    fn place(&self, pass: &Pass<'_>, row: &CacheRow) -> [usize; 2] {
        pass.keys.place(row, self.prompt(row.prompt).length)
    }

    fn attend_alone(
        &self,
        pass: &Pass<'_>,
        bias: Option<&DistanceBias>,
        row: &CacheRow,
        q: &[f32],
        output: &mut [f32],
    ) {
        let (AttentionShape { head_dim: dim, scale, cap, mask, .. }, group) = (pass.shape, pass.shape.group());
        let ([prompt, own], [position, length]) = (self.buffers(pass, row), self.place(pass, row));
        let seen = mask.keys(position, length);
        // Visible range (possibly a window) within each buffer.
        let [of_prompt, of_own] = within(&seen, prompt.length);
        let mut scores = vec![0.0f32; seen.len()];
        for (head, (q, output)) in q.chunks_exact(dim).zip(output.chunks_exact_mut(dim)).enumerate() {
            let (prompt_keys, prompt_values) = prompt.head(head / group, dim);
            let (own_keys, own_values) = own.head(head / group, dim);
            let (in_prompt, in_own) = scores.split_at_mut(of_prompt.len());
            scores_of(in_prompt, q, prompt_keys, prompt.capacity, of_prompt.start, scale);
            scores_of(in_own, q, own_keys, own.capacity, of_own.start, scale);
            if let Some(cap) = cap {
                cap_in_place(&mut scores, cap, 1.0);
            }
            if let Some(bias) = bias {
                add(&mut scores, bias.of(head, bias.range(position, &seen)));
            }
            softmax_in_place(&mut scores);
            let (in_prompt, in_own) = scores.split_at(of_prompt.len());
            add_weighted(output, in_prompt, &prompt_values[of_prompt.start * dim..]);
            add_weighted(output, in_own, &own_values[of_own.start * dim..]);
        }
    }

    /// Like [`attend_alone`](Self::attend_alone) for neighboring tokens of one row, as matrix products.
    fn attend_together(
        &self,
        pass: &Pass<'_>,
        bias: Option<&DistanceBias>,
        block: Range<usize>,
        q: Rows<'_>,
        output: &mut [f32],
    ) {
        let AttentionShape { heads, head_dim: dim, mask, scale, cap, .. } = pass.shape;
        let rows = &pass.rows[block.clone()];
        let [prompt, own] = self.buffers(pass, &rows[0]);
        let places: Vec<[usize; 2]> = rows.iter().map(|row| self.place(pass, row)).collect();
        let seen: Vec<Range<usize>> = places.iter().map(|&[position, length]| mask.keys(position, length)).collect();
        let (first, end) = (seen[0].start, seen[seen.len() - 1].end);
        let columns = end - first;
        if columns == 0 {
            return;
        }
        // Each buffer with its visible tokens, and the column of the first.
        let [of_prompt, of_own] = within(&(first..end), prompt.length);
        let buffers = [(prompt, of_prompt.clone(), 0), (own, of_own, of_prompt.len())];
        let buffers = || buffers.iter().filter(|(_, tokens, _)| !tokens.is_empty());
        let mut scores = vec![0.0f32; rows.len() * columns];
        for head in 0..heads {
            let queries = &q.values[block.start * q.stride + q.offset + head * dim..];
            let queries = Mat::strided(queries, rows.len(), dim, q.stride);
            for (buffer, tokens, column) in buffers() {
                let keys = &buffer.head(head / pass.shape.group(), dim).0[tokens.start..];
                let keys = Mat::strided(keys, dim, tokens.len(), buffer.capacity);
                PRODUCT.scaled(scale).store(&mut scores[*column..], columns, queries, keys);
            }
            if let Some(cap) = cap {
                cap_in_place(&mut scores, cap, 1.0);
            }
            for ((row, seen), [position, _]) in scores.chunks_exact_mut(columns).zip(&seen).zip(&places) {
                let of_row = seen.start - first..seen.end - first;
                if let Some(bias) = bias {
                    add(&mut row[of_row.clone()], bias.of(head, bias.range(*position, seen)));
                }
                softmax_in_place(&mut row[of_row.clone()]);
                row[..of_row.start].fill(0.0);
                row[of_row.end..].fill(0.0);
            }
            for (buffer, tokens, column) in buffers() {
                let values = &buffer.head(head / pass.shape.group(), dim).1[tokens.start * dim..];
                let p = Mat::strided(&scores[*column..], rows.len(), tokens.len(), columns);
                PRODUCT.add(&mut output[head * dim..], q.width, p, Mat::dense(values, tokens.len(), dim));
            }
        }
    }
}

/// Splits the visible range into the part within a prompt of `prompt` tokens and the part after it.
fn within(seen: &Range<usize>, prompt: usize) -> [Range<usize>; 2] {
    [seen.start.min(prompt)..seen.end.min(prompt), seen.start.saturating_sub(prompt)..seen.end.saturating_sub(prompt)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{assert_close, values};

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
}
