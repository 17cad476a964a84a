//! Attention of new tokens over a key/value cache, for sampling.
//!
//! The cache of one layer has two parts: the keys and values of each prompt, stored once and shared by all rows that
//! continue it, and what each row has added. For cross-attention the prompts are the sources, and rows add nothing. No
//! gradient flows here.

mod device;
mod host;

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{Tensor, TensorData};

use crate::attention::{AttentionShape, PositionBias};
use crate::fused::{Dense, is_fused, read};
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
    device: Memory<device::Stretch>,
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
        let device = Memory { prompts: BTreeMap::new(), slots: Vec::new() };
        Self { shape, capacity, next_prompt: 0, host, device }
    }

    /// Stores the keys and values of whole prompts, which follow each other in `k_nd` and `v_nd` as `segments` says;
    /// prompts are numbered from 0 in the order they are added. Both are `[N, kv_heads · head_dim]`.
    ///
    /// # Panics
    /// When the mask has a window and some token is global: new tokens would not see it from beyond the window.
    pub fn add_prompts(&mut self, k_nd: Tensor<2>, v_nd: Tensor<2>, segments: &Segments) {
        let (tokens, first) = self.number(segments);
        if !is_fused(&k_nd.device()) {
            return self.device.put_prompts(first, &tokens, [k_nd, v_nd]);
        }
        let (k, v, [_, width, _]) = (dense(k_nd), dense(v_nd), self.shape.widths());
        let parts = [&k, &v].map(|x| Rows { values: x.values(), stride: width, offset: 0, width });
        self.host.put_prompts(&self.shape, first, tokens, parts);
    }

    /// [`add_prompts`](Self::add_prompts) for queries, keys and values side by side in one tensor.
    pub fn add_prompts_fused(&mut self, qkv_nd: Tensor<2>, segments: &Segments) {
        if !is_fused(&qkv_nd.device()) {
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
        self.device.prompts.remove(&prompt);
    }

    /// Gives back the memory of a slot whose row has ended. A slot whose memory is kept serves its next row as well.
    pub fn clear_slot(&mut self, slot: usize) {
        self.host.clear_slot(slot);
        self.device.clear_slot(slot);
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
        if !is_fused(&device) {
            self.device.put(&pass, [k_bd, v_bd]);
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
        if !is_fused(&device) {
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
        if !is_fused(&device) {
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
    use burn::tensor::Device;

    use crate::attention::{Mask, PositionBuckets, attention, attention_across, attention_biased};
    use crate::fused::testing::{assert_close, host, values};
    use crate::segments::CrossSegments;

    #[test]
    fn token_by_token_equals_the_whole_sequence() {
        // Windows that end within the prompt, where it ends, and within the row's own tokens.
        let windows = [1, 4, 6, 100].map(|tokens| Mask::CausalWindow(NonZeroUsize::new(tokens).expect("not zero")));
        for mask in [Mask::Causal].into_iter().chain(windows) {
            for prompt in [0, 1, 4] {
                check(AttentionShape { heads: 4, kv_heads: 2, head_dim: 3, scale: 0.7, mask }, mask, prompt);
            }
        }
        // What comes later is not there yet, whatever the mask.
        for (mask, so_far) in [
            (Mask::Bidirectional, Mask::Causal),
            (Mask::BidirectionalWindow(3), Mask::CausalWindow(NonZeroUsize::new(4).expect("not zero"))),
        ] {
            check(AttentionShape { heads: 4, kv_heads: 2, head_dim: 3, scale: 0.7, mask }, so_far, 2);
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
    fn a_bias_counts_from_the_beginning_of_the_prompt() {
        let (x, buckets) = (Sequence::new(50), PositionBuckets::t5_causal(8, 20));
        let weight_hr = Tensor::from_data(TensorData::new(values(4 * 8, 9), [4, 8]), &Device::flex());
        let bias = PositionBias { weight_hr, buckets };
        for mask in [Mask::Causal, Mask::CausalWindow(NonZeroUsize::new(9).expect("not zero"))] {
            let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 3, scale: 0.7, mask };
            let [q, k, v] = x.of(&(0..50).collect::<Vec<_>>());
            let whole = host(attention_biased(q, k, v, bias.clone(), &Segments::sequences([50]), shape));
            let mut cache = LayerCache::new(shape, 1, 50);
            cache.add_prompts(x.keys(0..3), x.values(0..3), &Segments::sequences([3]));
            for tokens in [3..4, 4..40, 40..41, 41..50] {
                let rows: Vec<CacheRow> =
                    tokens.clone().map(|t| CacheRow { prompt: 0, slot: 0, length: t - 3 }).collect();
                let [q, k, v] = x.of(&tokens.clone().collect::<Vec<_>>());
                let out = host(cache.extend_biased(q, k, v, Some(&bias), &rows, shape.scale));
                assert_close(&format!("{mask:?}, {tokens:?}"), &out, &whole[tokens.start * 12..tokens.end * 12], 2e-6);
            }
        }
    }

    #[test]
    fn sources_are_read_and_nothing_is_added() {
        let (x, sources) = (Sequence::new(50), Segments::sequences([0, 1, 49]));
        let buckets = PositionBuckets::t5_bidirectional(8, 20);
        let weight_hr = Tensor::from_data(TensorData::new(values(4 * 8, 9), [4, 8]), &Device::flex());
        for mask in [Mask::Bidirectional, Mask::Causal, Mask::BidirectionalWindow(2)] {
            let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 3, scale: 0.7, mask };
            let mut cache = LayerCache::new(shape, 0, 0);
            cache.add_prompts(x.keys(0..50), x.values(0..50), &sources);
            // Two rows share the last source, one of them with several tokens; one reads nothing.
            let rows = [(2, 0, 0), (2, 0, 1), (2, 0, 2), (2, 5, 0), (0, 1, 0), (1, 2, 0)];
            let rows = rows.map(|(prompt, slot, length)| CacheRow { prompt, slot, length });
            let [q, ..] = x.of(&[7, 8, 9, 10, 11, 12]);
            let cross = CrossSegments::new(Segments::sequences([3, 1, 1, 1]), sources.clone(), vec![2, 2, 0, 1]);
            for bias in [None, Some(PositionBias { weight_hr: weight_hr.clone(), buckets: buckets.clone() })] {
                let found = host(cache.attend(q.clone(), bias.as_ref(), &rows, shape.scale));
                let whole = attention_across(q.clone(), x.keys(0..50), x.values(0..50), bias, &cross, shape);
                assert_close(&format!("{mask:?}"), &found, &host(whole), 2e-6);
            }
            assert!(cache.host.slots.is_empty(), "nothing is added");
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
        assert_eq!(cache.host.prompts.len(), 1);
        assert_eq!(next(&mut cache, 2), third);
        cache.add_prompts(x.keys(0..1), x.values(0..1), &Segments::sequences([1]));
        assert!(cache.host.prompts.contains_key(&3), "numbers stay taken");
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

    /// Whether token by token a cache of `shape` gives what a whole pass gives under `mask`.
    fn check(shape: AttentionShape, mask: Mask, prompt: usize) {
        let (total, device) = (9, Device::flex());
        let (q, k, v) = (values(total * 12, 1), values(total * 6, 2), values(total * 6, 3));
        let tensor =
            |v: &[f32], w: usize| Tensor::<2>::from_data(TensorData::new(v.to_vec(), [v.len() / w, w]), &device);
        let [all_q, all_k, all_v] = [tensor(&q, 12), tensor(&k, 6), tensor(&v, 6)];
        let one = Segments::sequences([total]);
        let whole = host(attention(all_q, all_k, all_v, &one, AttentionShape { mask, ..shape }));
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
