//! Attention of new tokens over a key/value cache, for sampling.
//!
//! The cache of one layer has two parts: the keys and values of each prompt, stored once and shared by all rows that
//! continue it, and a preallocated stretch for what each row has added. No gradient flows here.

use burn::tensor::{Tensor, TensorData};
use rayon::prelude::*;

use crate::attention::AttentionShape;
use crate::simd::{add_scaled, dot, softmax_in_place};

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

/// Keys and values of consecutive tokens, head after head: `[kv_heads, capacity, head_dim]`.
#[derive(Debug, Clone, Default)]
struct Stretch {
    length: usize,
    capacity: usize,
    keys: Vec<f32>,
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
            let to = (head * self.capacity + at) * dim;
            self.keys[to..to + dim].copy_from_slice(key);
            self.values[to..to + dim].copy_from_slice(value);
        }
        self.length = at + 1;
    }

    fn head<'a>(&self, values: &'a [f32], head: usize, length: usize, dim: usize) -> &'a [f32] {
        let from = head * self.capacity * dim;
        &values[from..from + length * dim]
    }
}

impl LayerCache {
    /// An empty cache with `slots` rows of at most `capacity` new tokens each.
    pub fn new(shape: AttentionShape, slots: usize, capacity: usize) -> Self {
        Self { shape, capacity, prompts: Vec::new(), kept_from: 0, slots: vec![Stretch::default(); slots] }
    }

    /// Stores the keys and values of a whole prompt, rows `from..to` of `[N, kv_heads · head_dim]` values; prompts are
    /// numbered in the order they are added.
    pub fn add_prompt(&mut self, keys: &[f32], values: &[f32], from: usize, to: usize) {
        let width = self.shape.kv_heads * self.shape.head_dim;
        let mut stretch = Stretch::new(&self.shape, to - from);
        for t in from..to {
            let row = t * width..(t + 1) * width;
            stretch.put(t - from, &keys[row.clone()], &values[row], self.shape.head_dim);
        }
        self.prompts.push(stretch);
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
        let ([b, width], device) = (q_bd.dims(), q_bd.device());
        assert_eq!(b, rows.len(), "one query per row");
        let [q, k, v] = [q_bd, k_bd, v_bd].map(|x| x.into_data().try_to_vec::<f32>().expect("f32 activations"));
        let (dim, shape) = (self.shape.head_dim, self.shape);
        let kv_width = shape.kv_heads * dim;
        for (i, row) in rows.iter().enumerate() {
            let slot = &mut self.slots[row.slot];
            if slot.capacity == 0 {
                *slot = Stretch::new(&shape, self.capacity);
            }
            let at = i * kv_width..(i + 1) * kv_width;
            slot.put(row.length, &k[at.clone()], &v[at], dim);
        }
        let mut output = vec![0.0f32; b * width];
        output.par_chunks_mut(width).zip(rows.par_iter().zip(q.par_chunks(width))).for_each(|(output, (row, q))| {
            self.attend(row, q, scale, output);
        });
        Tensor::from_data(TensorData::new(output, [b, width]), &device)
    }

    fn attend(&self, row: &CacheRow, q: &[f32], scale: f32, output: &mut [f32]) {
        let (dim, group) = (self.shape.head_dim, self.shape.heads / self.shape.kv_heads);
        let (prompt, slot) = (&self.prompts[row.prompt], &self.slots[row.slot]);
        let parts = [(prompt, prompt.length), (slot, row.length + 1)];
        let mut scores = vec![0.0f32; prompt.length + row.length + 1];
        for (head, (q, output)) in q.chunks_exact(dim).zip(output.chunks_exact_mut(dim)).enumerate() {
            let kv_head = head / group;
            let mut at = 0;
            for (stretch, length) in parts {
                for key in stretch.head(&stretch.keys, kv_head, length, dim).chunks_exact(dim) {
                    scores[at] = scale * dot(q, key);
                    at += 1;
                }
            }
            softmax_in_place(&mut scores);
            let mut at = 0;
            for (stretch, length) in parts {
                for value in stretch.head(&stretch.values, kv_head, length, dim).chunks_exact(dim) {
                    add_scaled(output, scores[at], value);
                    at += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{Mask, attention};
    use crate::fused::testing::{assert_close, host, values};
    use burn::tensor::Device;

    #[test]
    fn token_by_token_equals_the_whole_sequence() {
        let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 3, scale: 0.7, mask: Mask::Causal };
        let (prompt, total, device) = (4, 9, Device::flex());
        let (q, k, v) = (values(total * 12, 1), values(total * 6, 2), values(total * 6, 3));
        let tensor =
            |v: &[f32], w: usize| Tensor::<2>::from_data(TensorData::new(v.to_vec(), [v.len() / w, w]), &device);
        let whole = host(attention(tensor(&q, 12), tensor(&k, 6), tensor(&v, 6), &[0, total], shape));
        let mut cache = LayerCache::new(shape, 2, total - prompt);
        cache.add_prompt(&k, &v, 0, prompt);
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
