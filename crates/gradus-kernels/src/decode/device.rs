//! The cache on devices other than the CPU. One matrix holds the keys and another the values; prompts and slots have row ranges in both.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::Tensor;

use super::{Keys, Pass};
use crate::attention::reference::of_sequences;
use crate::attention::sequence::Sequence;
use crate::attention::{AttentionShape, PositionBias};

/// Keys and values of prompts and of the tokens that rows have added.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    shape: AttentionShape,
    /// Keys and values, `[rows, kv_heads · head_dim]`; `None` before the first token.
    rows: Option<[Tensor<2>; 2]>,
    /// Rows of each prompt, by number.
    prompts: BTreeMap<usize, Range<usize>>,
    slots: Vec<Slot>,
    places: Places,
}

/// Tokens that a row has added.
#[derive(Debug, Clone, Default)]
struct Slot {
    /// Rows reserved for the slot.
    place: Range<usize>,
    /// Number of those rows in use.
    length: usize,
}

/// Allocation of the rows.
#[derive(Debug, Clone, Default)]
struct Places {
    /// Rows of the matrices, including those about to be added.
    rows: usize,
    /// Unused ranges of rows, sorted; no two are adjacent.
    free: Vec<Range<usize>>,
}

impl Places {
    /// Allocates `count` consecutive rows.
    fn take(&mut self, count: usize) -> Range<usize> {
        if let Some(i) = self.free.iter().position(|range| range.len() >= count) {
            let range = &mut self.free[i];
            let taken = range.start..range.start + count;
            range.start = taken.end;
            if range.start == range.end {
                self.free.remove(i);
            }
            return taken;
        }
        // A free range at the end is extended.
        let start = match self.free.last() {
            Some(last) if last.end == self.rows => self.free.pop().map_or(self.rows, |range| range.start),
            _ => self.rows,
        };
        self.rows = start + count;
        start..self.rows
    }

    fn give_back(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let at = self.free.partition_point(|other| other.start < range.start);
        self.free.insert(at, range);
        if at + 1 < self.free.len() && self.free[at].end == self.free[at + 1].start {
            self.free[at].end = self.free.remove(at + 1).end;
        }
        if at > 0 && self.free[at - 1].end == self.free[at].start {
            self.free[at - 1].end = self.free.remove(at).end;
        }
    }
}

impl Pool {
    /// Creates an empty cache for attention of `shape`.
    pub(super) fn new(shape: AttentionShape) -> Self {
        Self { shape, rows: None, prompts: BTreeMap::new(), slots: Vec::new(), places: Places::default() }
    }

    /// Stores keys and values of prompts, starting with prompt number `first`.
    pub(super) fn put_prompts(&mut self, first: usize, prompts: &[Range<usize>], parts: [Tensor<2>; 2]) {
        let mut rows = Vec::new();
        for (i, tokens) in prompts.iter().enumerate() {
            let place = self.places.take(tokens.len());
            rows.push((tokens.clone(), place.start));
            self.prompts.insert(first + i, place);
        }
        self.write(parts, &rows);
    }

    pub(super) fn drop_prompts_before(&mut self, prompt: usize) {
        let kept = self.prompts.split_off(&prompt);
        for place in std::mem::replace(&mut self.prompts, kept).into_values() {
            self.places.give_back(place);
        }
    }

    pub(super) fn drop_prompt(&mut self, prompt: usize) {
        if let Some(place) = self.prompts.remove(&prompt) {
            self.places.give_back(place);
        }
    }

    pub(super) fn clear_slot(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            self.places.give_back(std::mem::take(slot).place);
        }
    }

    /// Whether any row has been added.
    pub(super) fn has_slots(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Number of tokens in a slot.
    pub(super) fn length(&self, slot: usize) -> usize {
        self.slots.get(slot).map_or(0, |slot| slot.length)
    }

    /// Copies the first `length` tokens of slot `from` to slot `to`, with space for `capacity`.
    pub(super) fn copy_slot(&mut self, from: usize, to: usize, length: usize, capacity: usize) {
        self.slots.resize(self.slots.len().max(to + 1), Slot::default());
        if self.slots[to].place.len() < length {
            self.clear_slot(to);
            self.slots[to].place = self.places.take(length.max(capacity));
        }
        self.slots[to].length = length;
        let (from, to) = (self.slots[from].place.start, self.slots[to].place.start);
        let like = self.rows.clone().map(|[keys, _]| keys.narrow(0, 0, 1));
        if let Some(like) = like {
            self.fit(&like);
            // `like` is part of a matrix. A matrix is written in place only if nothing else holds it.
            drop(like);
            self.copy(from, to, length);
        }
    }

    /// Stores keys and values of new tokens in slots with space for `capacity`.
    pub(super) fn put(&mut self, pass: &Pass<'_>, capacity: usize, parts: [Tensor<2>; 2]) {
        let most = pass.rows.iter().map(|row| row.slot + 1).max().unwrap_or(0);
        self.slots.resize(self.slots.len().max(most), Slot::default());
        let (mut rows, mut outgrown, mut met) = (Vec::new(), Vec::new(), vec![false; self.slots.len()]);
        for run in &pass.runs {
            let row = &pass.rows[run.start];
            assert!(!std::mem::replace(&mut met[row.slot], true), "two rows share slot {}", row.slot);
            let slot = &mut self.slots[row.slot];
            let length = row.length + run.len();
            if slot.place.len() < length {
                let place = self.places.take(length.max(capacity).max(2 * slot.place.len()));
                outgrown.push((std::mem::replace(&mut slot.place, place.clone()), place.start, row.length));
            }
            // The slot may have held more tokens, of a row that has ended.
            slot.length = length;
            rows.push((run.clone(), slot.place.start + row.length));
        }
        self.fit(&parts[0].clone().inner());
        for (old, to, kept) in &outgrown {
            self.copy(old.start, *to, *kept);
        }
        outgrown.into_iter().for_each(|(old, ..)| self.places.give_back(old));
        self.write(parts, &rows);
    }

    /// For each pair, copies the rows in `0` of `parts` to the rows from `1`.
    fn write(&mut self, parts: [Tensor<2>; 2], rows: &[(Range<usize>, usize)]) {
        let [keys, values] = parts.map(Tensor::inner);
        self.fit(&keys);
        let Some(matrices) = self.rows.take() else { return };
        let [k, v] = matrices;
        self.rows = Some([put(k, keys, rows), put(v, values, rows)]);
    }

    /// Grows the matrices to the number of allocated rows.
    fn fit(&mut self, like: &Tensor<2>) {
        let held = self.rows.as_ref().map_or(0, |[keys, _]| keys.dims()[0]);
        if self.places.rows > held {
            // Some extra rows, so that the next few tokens need no new matrices.
            let rows = self.places.rows + self.places.rows / 8;
            let [keys, values] = self.rows.take().map_or([None, None], |rows| rows.map(Some));
            self.rows = Some([keys, values].map(|matrix| grown(matrix, like, rows, &self.shape)));
        }
    }

    fn copy(&mut self, from: usize, to: usize, count: usize) {
        self.rows = self.rows.take().map(|matrices| matrices.map(|matrix| copied(matrix, from, to, count)));
    }

    /// Returns the attention output of every token, `[B, H · head_dim]`.
    pub(super) fn attend(&self, pass: &Pass<'_>, q_bd: Tensor<2>) -> Tensor<2> {
        let q_bd = q_bd.inner();
        let sequences = pass.runs.iter().map(|run| {
            let row = &pass.rows[run.start];
            let prompt = self.prompts.get(&row.prompt);
            let prompt = prompt.unwrap_or_else(|| panic!("prompt {} is not in the cache", row.prompt)).clone();
            let added = match pass.keys {
                Keys::Row => {
                    self.slots[row.slot].place.start..self.slots[row.slot].place.start + self.slots[row.slot].length
                }
                Keys::Prompt => 0..0,
            };
            let [position, _] = pass.keys.place(row, prompt.len());
            Sequence { queries: run.clone(), position, keys: vec![prompt, added], global: Vec::new() }
        });
        let width = pass.shape.widths()[1];
        let empty = || [(); 2].map(|()| Tensor::zeros([0, width], &q_bd.device()));
        let [keys, values] = self.rows.clone().unwrap_or_else(empty);
        #[cfg(feature = "gpu")]
        if let Some(out) =
            crate::gpu::attention::of_sequences([&q_bd, &keys, &values], pass.bias, sequences.clone(), pass.shape)
        {
            return out;
        }
        let bias = pass.bias.map(|PositionBias { weight_hr, buckets }| PositionBias {
            weight_hr: weight_hr.clone().inner(),
            buckets: buckets.clone(),
        });
        of_sequences([q_bd, keys, values], bias.as_ref(), sequences, pass.shape)
    }
}

/// Whether `tensor` is on a GPU that writes rows in place.
#[cfg(feature = "gpu")]
fn is_in_place(tensor: &Tensor<2>) -> bool {
    crate::fused::gpu(&tensor.device()).is_some_and(|gpu| crate::gpu::cache::supports(&gpu, tensor.dtype()))
}

/// For each pair, copies the rows in `0` of `x` to the rows of `matrix` from `1`.
fn put(matrix: Tensor<2>, x: Tensor<2>, rows: &[(Range<usize>, usize)]) -> Tensor<2> {
    #[cfg(feature = "gpu")]
    if is_in_place(&x) {
        let mut places = vec![0; x.dims()[0]];
        for (tokens, to) in rows {
            for (place, row) in places[tokens.clone()].iter_mut().zip(*to..) {
                *place = row as u32;
            }
        }
        return crate::gpu::cache::put(matrix, x, &places);
    }
    let width = x.dims()[1];
    rows.iter().filter(|(tokens, _)| !tokens.is_empty()).fold(matrix, |matrix, (tokens, to)| {
        let part = x.clone().narrow(0, tokens.start, tokens.len());
        matrix.slice_assign([*to..*to + tokens.len(), 0..width], part)
    })
}

/// Copies `count` rows of `matrix` from row `from` to row `to`.
fn copied(matrix: Tensor<2>, from: usize, to: usize, count: usize) -> Tensor<2> {
    if count == 0 {
        return matrix;
    }
    #[cfg(feature = "gpu")]
    if is_in_place(&matrix) {
        return crate::gpu::cache::copied(matrix, from, to, count);
    }
    let (width, part) = (matrix.dims()[1], matrix.clone().narrow(0, from, count));
    matrix.slice_assign([to..to + count, 0..width], part)
}

/// Returns a matrix of `rows` rows for attention of `shape` that begins with those of `matrix` and has the width of `like`.
fn grown(matrix: Option<Tensor<2>>, like: &Tensor<2>, rows: usize, shape: &AttentionShape) -> Tensor<2> {
    #[cfg(feature = "gpu")]
    if is_in_place(like) {
        return crate::gpu::cache::grown(matrix, like, rows, shape);
    }
    // Only GPUs have matrices of another type.
    let _ = shape;
    let width = like.dims()[1];
    let more = |held: usize| Tensor::zeros([rows - held, width], &like.device());
    match matrix {
        None => more(0),
        Some(matrix) => {
            let more = more(matrix.dims()[0]);
            Tensor::cat(vec![matrix, more], 0)
        }
    }
}
