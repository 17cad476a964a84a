//! Attention of new tokens over a key/value cache, for sampling.
//!
//! The cache of one layer has two parts: the keys and values of each prompt, stored once and shared by all rows that
//! continue it, and what each row has added. For cross-attention the prompts are the sources, and rows add nothing. No
//! gradient flows here.

mod device;
mod host;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{Tensor, TensorData};

use crate::attention::{AttentionShape, PositionBias};
use crate::fused::{Dense, is_cpu, read};
use crate::segments::Segments;
use host::Rows;

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

/// Keys and values of one layer.
#[derive(Debug, Clone)]
pub struct LayerCache {
    shape: AttentionShape,
    /// Tokens that a slot is made for.
    capacity: usize,
    /// The number of the next prompt.
    next_prompt: usize,
    /// What came from devices with fused kernels, packed for them.
    host: Memory<host::Stretch>,
    /// What came from others, where it was.
    device: device::Pool,
}

/// Keys and values of prompts, by number, and of what rows have added, by slot.
#[derive(Debug, Clone)]
struct Memory<S> {
    prompts: BTreeMap<usize, S>,
    slots: Vec<S>,
}

impl<S: Default + Clone> Memory<S> {
    fn prompt(&self, prompt: usize) -> &S {
        self.prompts.get(&prompt).unwrap_or_else(|| panic!("prompt {prompt} is not in the cache"))
    }

    /// Slots for `rows`; returns the new tokens of each slot.
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

/// What the new tokens of a pass attend to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// The prompt and what the row has added.
    Row,
    /// The prompt alone.
    Prompt,
}

impl Keys {
    /// Where a token stands among its keys and how many it may see, with `prompt` tokens in the row's prompt.
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
    /// An empty cache whose rows have room for `capacity` new tokens each; a row that adds more gets more.
    pub fn new(shape: AttentionShape, slots: usize, capacity: usize) -> Self {
        let host = Memory { prompts: BTreeMap::new(), slots: vec![host::Stretch::default(); slots] };
        Self { shape, capacity, next_prompt: 0, host, device: device::Pool::default() }
    }

    /// Stores the keys and values of whole prompts, which follow each other in `k_nd` and `v_nd` as `segments` says;
    /// prompts are numbered from 0 in the order they are added. Both are `[N, kv_heads · head_dim]`.
    ///
    /// # Panics
    /// When the mask has a window and some token is global: new tokens would not see it from beyond the window.
    pub fn add_prompts(&mut self, k_nd: Tensor<2>, v_nd: Tensor<2>, segments: &Segments) {
        let (tokens, first) = self.number(segments);
        if !is_cpu(&k_nd.device()) {
            return self.device.put_prompts(first, &tokens, [k_nd, v_nd]);
        }
        let (k, v, [_, width, _]) = (dense(k_nd), dense(v_nd), self.shape.widths());
        let parts = [&k, &v].map(|x| Rows { values: x.values(), stride: width, offset: 0, width });
        self.host.put_prompts(&self.shape, first, tokens, parts);
    }

    /// [`add_prompts`](Self::add_prompts) for queries, keys and values side by side in one tensor.
    pub fn add_prompts_fused(&mut self, qkv_nd: Tensor<2>, segments: &Segments) {
        if !is_cpu(&qkv_nd.device()) {
            let [_, k, v] = self.split(qkv_nd);
            return self.add_prompts(k, v, segments);
        }
        let (tokens, first) = self.number(segments);
        let qkv = dense(qkv_nd);
        let [_, k, v] = side_by_side(&self.shape, &qkv);
        self.host.put_prompts(&self.shape, first, tokens, [k, v]);
    }

    /// The tokens of each prompt, and the number of the first.
    fn number(&mut self, segments: &Segments) -> (Vec<Range<usize>>, usize) {
        let is_windowed = self.shape.mask != self.shape.mask.without_window();
        let global = segments.global(&(0..segments.tokens()));
        assert!(!is_windowed || global.is_empty(), "a cache with a window knows no global tokens");
        let (tokens, first): (Vec<_>, _) = (segments.iter().map(|segment| segment.tokens).collect(), self.next_prompt);
        self.next_prompt += tokens.len();
        (tokens, first)
    }

    /// Forgets the prompts before `prompt`, which no row continues any more; their numbers stay taken.
    pub fn drop_prompts_before(&mut self, prompt: usize) {
        self.host.drop_prompts_before(prompt);
        self.device.drop_prompts_before(prompt);
    }

    /// Forgets one prompt, which no row continues any more; its number stays taken.
    pub fn drop_prompt(&mut self, prompt: usize) {
        self.host.prompts.remove(&prompt);
        self.device.drop_prompt(prompt);
    }

    /// Gives back the memory of a slot whose row has ended. A slot whose memory is kept serves its next row as well.
    pub fn clear_slot(&mut self, slot: usize) {
        self.host.clear_slot(slot);
        self.device.clear_slot(slot);
    }

    /// Gives slot `to` what a row in slot `from` has added, its first `length` tokens: two rows that went one way so far go
    /// on by themselves. What `to` held is forgotten; the prompt is shared and not copied.
    ///
    /// # Panics
    /// When `from` holds fewer tokens.
    pub fn copy_slot(&mut self, from: usize, to: usize, length: usize) {
        let missing = || panic!("slot {from} does not hold {length} tokens");
        // Rows are in one memory or the other, as the device is.
        if !self.device.has_slots() {
            let held = self.host.slots.get(from).map_or(0, host::Stretch::length);
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
        self.extend_biased(q_bd, k_bd, v_bd, None, rows, scale)
    }

    /// [`extend`](Self::extend) with a bias of the scores by position, counted from the beginning of the prompt.
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
        let (parts, widths) = ([q_bd, k_bd, v_bd].map(dense), shape.widths());
        let part = |i: usize| Rows { values: parts[i].values(), stride: widths[i], offset: 0, width: widths[i] };
        self.host.put(&pass, self.capacity, [part(1), part(2)]);
        let output = self.host.attend(&pass, part(0));
        Tensor::from_data(TensorData::new(output, [rows.len(), widths[0]]), &device)
    }

    /// [`extend`](Self::extend) for queries, keys and values side by side in one tensor.
    ///
    /// # Panics
    /// As [`extend`](Self::extend).
    pub fn extend_fused(&mut self, qkv_bd: Tensor<2>, rows: &[CacheRow], scale: f32) -> Tensor<2> {
        let (device, shape) = (qkv_bd.device(), self.shape);
        if !is_cpu(&device) {
            let [q, k, v] = self.split(qkv_bd);
            return self.extend(q, k, v, rows, scale);
        }
        let (pass, qkv) = (self.pass(Keys::Row, None, rows, scale), dense(qkv_bd));
        let [q, k, v] = side_by_side(&shape, &qkv);
        self.host.put(&pass, self.capacity, [k, v]);
        let output = self.host.attend(&pass, q);
        Tensor::from_data(TensorData::new(output, [rows.len(), q.width]), &device)
    }

    /// Attends from new tokens of rows over the rows' prompts alone, adding nothing: cross-attention to sources that were
    /// added as prompts. A token sees what the mask says for the `length` of its row; slots are not looked at.
    ///
    /// # Panics
    /// When the shapes do not fit, or a prompt is not there.
    pub fn attend(&self, q_bd: Tensor<2>, bias: Option<&PositionBias>, rows: &[CacheRow], scale: f32) -> Tensor<2> {
        let (device, pass) = (q_bd.device(), self.pass(Keys::Prompt, bias, rows, scale));
        if !is_cpu(&device) {
            return self.device.attend(&pass, q_bd);
        }
        let (q, width) = (dense(q_bd), self.shape.widths()[0]);
        let output = self.host.attend(&pass, Rows { values: q.values(), stride: width, offset: 0, width });
        Tensor::from_data(TensorData::new(output, [rows.len(), width]), &device)
    }

    fn pass<'a>(&self, keys: Keys, bias: Option<&'a PositionBias>, rows: &'a [CacheRow], scale: f32) -> Pass<'a> {
        let mask = match keys {
            // What comes later is not there yet, in a pass of several tokens as well.
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

/// The values where they lie, also where others hold them too.
fn dense(tensor: Tensor<2>) -> Dense {
    read(tensor, Dense::clone)
}

/// Queries, keys and values in one tensor.
fn side_by_side<'a>(shape: &AttentionShape, qkv: &'a Dense) -> [Rows<'a>; 3] {
    let (widths, values) = (shape.widths(), qkv.values());
    let stride = widths.iter().sum();
    std::array::from_fn(|i| Rows { values, stride, offset: widths[..i].iter().sum(), width: widths[i] })
}

/// The entries of each row: neighbors with the same slot.
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
