//! Attention of new tokens over a key/value cache, for sampling.
//!
//! The cache of one layer has two parts. Keys and values of each prompt are stored once and shared by all rows that continue it. The tokens
//! that each row has added are stored per row. For cross-attention the prompts are the sources, and rows add no tokens. No gradient flows
//! here.

mod device;
mod host;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{Tensor, TensorData};

use crate::attention::{AttentionShape, PositionBias};
use crate::fused::{Dense, is_cpu};
use crate::host::read;
use crate::segments::Segments;
use host::Rows;

/// One new token of a row that is being continued: the prompt that the row shares, the slot of its own keys and values, and the number of
/// own tokens before it.
///
/// A row that grows by several tokens at once (a user's next turn, a tool's answer) has one entry per token. These entries are adjacent,
/// with increasing `length`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheRow {
    /// Number of the prompt; see [`LayerCache::add_prompts`].
    pub prompt: usize,
    /// Slot of the row.
    pub slot: usize,
    /// Number of tokens that the row has added before this one.
    pub length: usize,
}

/// Keys and values of one layer. No gradient flows through its methods.
#[derive(Debug, Clone)]
pub struct LayerCache {
    shape: AttentionShape,
    /// Initial capacity of a slot, in tokens.
    capacity: usize,
    /// Number of the next prompt.
    next_prompt: usize,
    /// Tensors from the CPU, packed for its fused kernels.
    host: Memory<host::KvBuffer>,
    /// Tensors from other devices, stored on the device.
    device: device::Pool,
}

/// Keys and values of prompts, by number, and of the tokens that rows have added, by slot.
#[derive(Debug, Clone)]
struct Memory<S> {
    prompts: BTreeMap<usize, S>,
    slots: Vec<S>,
}

impl<S: Default + Clone> Memory<S> {
    fn prompt(&self, prompt: usize) -> &S {
        self.prompts.get(&prompt).unwrap_or_else(|| panic!("prompt {prompt} is not in the cache"))
    }

    /// Creates slots for `rows`; returns the new tokens of each slot.
    fn make_slots(&mut self, rows: &[CacheRow], runs: &[Range<usize>]) -> Vec<Option<Range<usize>>> {
        let slots = rows.iter().map(|row| row.slot + 1).max().unwrap_or(0).max(self.slots.len());
        self.slots.resize(slots, S::default());
        let mut run_of_slot = vec![None; slots];
        for run in runs {
            let slot = rows[run.start].slot;
            assert!(run_of_slot[slot].replace(run.clone()).is_none(), "two rows share slot {slot}");
        }
        run_of_slot
    }

    fn drop_prompts_before(&mut self, prompt: usize) {
        self.prompts = self.prompts.split_off(&prompt);
    }

    fn clear_slot(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = S::default();
        }
    }
}

/// The keys that new tokens attend to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// Those of the prompt and of the tokens that the row has added.
    Row,
    /// Those of the prompt alone.
    Prompt,
}

impl Keys {
    /// Position of a token among its keys, and the number of keys that it may see, if the row's prompt has `prompt` tokens.
    fn place(self, row: &CacheRow, prompt: usize) -> [usize; 2] {
        match self {
            Self::Row => [prompt + row.length, prompt + row.length + 1],
            Self::Prompt => [row.length, prompt],
        }
    }
}

/// One pass of new tokens over the cache.
struct Pass<'a> {
    shape: AttentionShape,
    keys: Keys,
    bias: Option<&'a PositionBias>,
    rows: &'a [CacheRow],
    runs: Vec<Range<usize>>,
}

impl LayerCache {
    /// Creates an empty cache with space for `capacity` new tokens per row. Rows that add more get more space.
    pub fn new(shape: AttentionShape, slots: usize, capacity: usize) -> Self {
        let host = Memory { prompts: BTreeMap::new(), slots: vec![host::KvBuffer::default(); slots] };
        Self { shape, capacity, next_prompt: 0, host, device: device::Pool::new(shape) }
    }

    /// Stores the keys and values of whole prompts, which follow each other in `k_nd` and `v_nd` as given by `segments`. Prompts are
    /// numbered from 0 in the order in which they are added. Both tensors are `[N, kv_heads · head_dim]`.
    ///
    /// # Panics
    /// If the mask has a window and some token is global: new tokens beyond the window would not see it.
    pub fn add_prompts(&mut self, k_nd: Tensor<2>, v_nd: Tensor<2>, segments: &Segments) {
        let (tokens, first) = self.number(segments);
        if !is_cpu(&k_nd.device()) {
            return self.device.put_prompts(first, &tokens, [k_nd, v_nd]);
        }
        let (k, v, [_, width, _]) = (read(k_nd), read(v_nd), self.shape.widths());
        let parts = [&k, &v].map(|x| Rows { values: x.values(), stride: width, offset: 0, width });
        self.host.put_prompts(&self.shape, first, tokens, parts);
    }

    /// Like [`add_prompts`](Self::add_prompts), for queries, keys and values side by side in one tensor.
    pub fn add_prompts_fused(&mut self, qkv_nd: Tensor<2>, segments: &Segments) {
        if !is_cpu(&qkv_nd.device()) {
            let [_, k, v] = self.split(qkv_nd);
            return self.add_prompts(k, v, segments);
        }
        let (tokens, first) = self.number(segments);
        let qkv = read(qkv_nd);
        let [_, k, v] = side_by_side(&self.shape, &qkv);
        self.host.put_prompts(&self.shape, first, tokens, [k, v]);
    }

    /// Tokens of each prompt, and the number of the first.
    fn number(&mut self, segments: &Segments) -> (Vec<Range<usize>>, usize) {
        let is_windowed = self.shape.mask != self.shape.mask.without_window();
        let global = segments.global(&(0..segments.tokens()));
        assert!(!is_windowed || global.is_empty(), "a cache with a window knows no global tokens");
        let (tokens, first): (Vec<_>, _) = (segments.iter().map(|segment| segment.tokens).collect(), self.next_prompt);
        self.next_prompt += tokens.len();
        (tokens, first)
    }

    /// Removes all prompts before `prompt`. No row may continue them any more. Their numbers are not reused.
    pub fn drop_prompts_before(&mut self, prompt: usize) {
        self.host.drop_prompts_before(prompt);
        self.device.drop_prompts_before(prompt);
    }

    /// Removes one prompt. No row may continue it any more. Its number is not reused.
    pub fn drop_prompt(&mut self, prompt: usize) {
        self.host.prompts.remove(&prompt);
        self.device.drop_prompt(prompt);
    }

    /// Frees the memory of a slot whose row has ended. Without this call, the slot's memory serves its next row.
    pub fn clear_slot(&mut self, slot: usize) {
        self.host.clear_slot(slot);
        self.device.clear_slot(slot);
    }

    /// Copies the first `length` tokens that the row in slot `from` has added to slot `to`. From then on, the two rows continue
    /// independently. The old tokens of `to` are lost. The prompt is shared and not copied.
    ///
    /// # Panics
    /// If `from` holds fewer tokens.
    /// When `from` holds fewer tokens.
    pub fn copy_slot(&mut self, from: usize, to: usize, length: usize) {
        let missing = || panic!("slot {from} does not hold {length} tokens");
        // Rows are in one memory or the other, depending on the device.
        if !self.device.has_slots() {
            let held = self.host.slots.get(from).map_or(0, host::KvBuffer::length);
            if held < length || to >= self.host.slots.len() {
                missing()
            }
            self.host.copy_slot(&self.shape, from, to, length);
        } else {
            if self.device.length(from) < length {
                missing()
            }
            self.device.copy_slot(from, to, length, self.capacity);
        }
    }

    /// Adds tokens to rows and computes their attention over the row's prompt, all earlier tokens of the row, and the token itself.
    ///
    /// `q_bd` is `[B, H · head_dim]`, `k_bd` and `v_bd` are `[B, kv_heads · head_dim]`: one line per new token, described by `rows`.
    /// `scale` multiplies the scores. It may differ between layers, so the caller passes it.
    ///
    /// # Panics
    /// If the shapes do not fit, a prompt is missing, or the tokens of a slot are not consecutive.
    pub fn extend(
        &mut self,
        q_bd: Tensor<2>,
        k_bd: Tensor<2>,
        v_bd: Tensor<2>,
        rows: &[CacheRow],
        scale: f32,
    ) -> Tensor<2> {
        self.extend_biased(q_bd, k_bd, v_bd, None, rows, scale)
    }

    /// Like [`extend`](Self::extend), with a bias of the scores by distance. Positions count from the start of the prompt.
    ///
    /// # Panics
    /// As [`extend`](Self::extend).
    pub fn extend_biased(
        &mut self,
        q_bd: Tensor<2>,
        k_bd: Tensor<2>,
        v_bd: Tensor<2>,
        bias: Option<&PositionBias>,
        rows: &[CacheRow],
        scale: f32,
    ) -> Tensor<2> {
        let (device, shape) = (q_bd.device(), self.shape);
        let pass = self.pass(Keys::Row, bias, rows, scale);
        if !is_cpu(&device) {
            self.device.put(&pass, self.capacity, [k_bd, v_bd]);
            return self.device.attend(&pass, q_bd);
        }
        let (parts, widths) = ([q_bd, k_bd, v_bd].map(read), shape.widths());
        let part = |i: usize| Rows { values: parts[i].values(), stride: widths[i], offset: 0, width: widths[i] };
        self.host.put(&pass, self.capacity, [part(1), part(2)]);
        let output = self.host.attend(&pass, part(0));
        Tensor::from_data(TensorData::new(output, [rows.len(), widths[0]]), &device)
    }

    /// Like [`extend`](Self::extend), for queries, keys and values side by side in one tensor.
    ///
    /// # Panics
    /// As [`extend`](Self::extend).
    pub fn extend_fused(&mut self, qkv_bd: Tensor<2>, rows: &[CacheRow], scale: f32) -> Tensor<2> {
        let (device, shape) = (qkv_bd.device(), self.shape);
        if !is_cpu(&device) {
            let [q, k, v] = self.split(qkv_bd);
            return self.extend(q, k, v, rows, scale);
        }
        let (pass, qkv) = (self.pass(Keys::Row, None, rows, scale), read(qkv_bd));
        let [q, k, v] = side_by_side(&shape, &qkv);
        self.host.put(&pass, self.capacity, [k, v]);
        let output = self.host.attend(&pass, q);
        Tensor::from_data(TensorData::new(output, [rows.len(), q.width]), &device)
    }

    /// Computes attention of new tokens over their rows' prompts alone and adds nothing: cross-attention to sources that were added as
    /// prompts. The mask applies at the `length` of each row. Slots are ignored.
    ///
    /// # Panics
    /// If the shapes do not fit, or a prompt is missing.
    pub fn attend(&self, q_bd: Tensor<2>, bias: Option<&PositionBias>, rows: &[CacheRow], scale: f32) -> Tensor<2> {
        let (device, pass) = (q_bd.device(), self.pass(Keys::Prompt, bias, rows, scale));
        if !is_cpu(&device) {
            return self.device.attend(&pass, q_bd);
        }
        let (q, width) = (read(q_bd), self.shape.widths()[0]);
        let output = self.host.attend(&pass, Rows { values: q.values(), stride: width, offset: 0, width });
        Tensor::from_data(TensorData::new(output, [rows.len(), width]), &device)
    }

    fn pass<'a>(&self, keys: Keys, bias: Option<&'a PositionBias>, rows: &'a [CacheRow], scale: f32) -> Pass<'a> {
        let mask = match keys {
            // Later tokens are not in the cache yet, not even in a pass of several tokens.
            Keys::Row => self.shape.mask.up_to_itself(),
            Keys::Prompt => self.shape.mask,
        };
        assert!(self.shape.cap.is_none() || bias.is_none(), "scores are capped or biased, not both");
        if let Some(PositionBias { weight_hr, buckets }) = bias {
            assert_eq!(weight_hr.dims(), [self.shape.heads, buckets.buckets()], "shape of the bias");
        }
        Pass { shape: AttentionShape { scale, mask, ..self.shape }, keys, bias, rows, runs: runs(rows) }
    }

    fn split(&self, qkv_nd: Tensor<2>) -> [Tensor<2>; 3] {
        let widths = self.shape.widths();
        std::array::from_fn(|i| qkv_nd.clone().narrow(1, widths[..i].iter().sum(), widths[i]))
    }
}

/// Queries, keys and values within one tensor.
fn side_by_side<'a>(shape: &AttentionShape, qkv: &'a Dense) -> [Rows<'a>; 3] {
    let (widths, values) = (shape.widths(), qkv.values());
    let stride = widths.iter().sum();
    std::array::from_fn(|i| Rows { values, stride, offset: widths[..i].iter().sum(), width: widths[i] })
}

/// Entries of each row: neighbors with the same slot.
///
/// # Panics
/// If the tokens of a row are not consecutive.
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
