//! Scaled dot-product attention over packed sequences, bounded by sequence, with grouped queries.
//!
//! Within one sequence and head: `S = α Q Kᵀ`, masked; `P = softmax(S)` row by row; `O = P V`.
//! Backward, with `Lₜ = logsumexp(Sₜ)` kept from the forward pass and `Dₜ = Σ ∂Oₜ ∘ Oₜ`:
//! `P = exp(S − L)`, `∂V = Pᵀ ∂O`, `∂P = ∂O Vᵀ`, `∂S = P ∘ (∂P − D)`, `∂Q = α ∂S K`, `∂K = α ∂Sᵀ Q`.
//! Queries are taken in blocks, so no T × T matrix is ever in memory.
//! Dao et al. 2022, <https://arxiv.org/abs/2205.14135>, algorithms 1 and 4, without tiling over keys.

use std::sync::Arc;

use burn::tensor::{Bool, Tensor, TensorData, activation};
use rayon::prelude::*;

use crate::fused::{Dense, Op, apply, is_fused};
use crate::product::{Mat, Precision, Product};
use crate::simd::{dot, exp, simd, softmax_in_place};

/// Which keys a query sees within its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Itself and everything before.
    Causal,
    /// Everything.
    Bidirectional,
}

/// The shape of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Query heads, H.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// α, what scores are multiplied by.
    pub scale: f32,
    /// Which keys a query sees.
    pub mask: Mask,
}

/// Queries per block.
const BLOCK: usize = 64;

/// Scores decide between tokens: they stay in f32.
const PRODUCT: Product = Product::single(Precision::F32);

/// Attention of packed sequences.
///
/// `q_nd` is `[N, H · head_dim]`, `k_nd` and `v_nd` `[N, kv_heads · head_dim]`; `starts` holds the cumulative lengths
/// of the sequences, from 0 to N. The result is `[N, H · head_dim]`. All three tensors carry gradient.
///
/// # Panics
/// When the shapes do not fit each other or `starts` does not end at N.
pub fn attention(
    q_nd: Tensor<2>,
    k_nd: Tensor<2>,
    v_nd: Tensor<2>,
    starts: &[usize],
    shape: AttentionShape,
) -> Tensor<2> {
    let [n, d] = q_nd.dims();
    assert_eq!(d, shape.heads * shape.head_dim, "query width");
    assert_eq!(k_nd.dims(), [n, shape.kv_heads * shape.head_dim], "key shape");
    assert_eq!(v_nd.dims(), k_nd.dims(), "value shape");
    assert_eq!(shape.heads % shape.kv_heads, 0, "whole groups of query heads");
    assert_eq!((starts.first(), starts.last()), (Some(&0), Some(&n)), "segments cover the tokens");
    if is_fused(&q_nd.device()) {
        let inputs = vec![q_nd.into_dispatch(), k_nd.into_dispatch(), v_nd.into_dispatch()];
        apply(Attention { starts: starts.into(), shape }, inputs)
    } else {
        reference(q_nd, k_nd, v_nd, starts, shape)
    }
}

/// [`attention`] of one tensor that holds queries, keys and values side by side, as GPT-2's projection gives them.
///
/// `qkv_nd` is `[N, (H + 2 · kv_heads) · head_dim]`; it carries gradient, and gets it in one piece.
///
/// # Panics
/// As [`attention`].
pub fn attention_fused(qkv_nd: Tensor<2>, starts: &[usize], shape: AttentionShape) -> Tensor<2> {
    let [n, width] = qkv_nd.dims();
    let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    assert_eq!(width, q + 2 * kv, "width of queries, keys and values");
    assert_eq!((starts.first(), starts.last()), (Some(&0), Some(&n)), "segments cover the tokens");
    if is_fused(&qkv_nd.device()) {
        apply(Attention { starts: starts.into(), shape }, vec![qkv_nd.into_dispatch()])
    } else {
        let part = |from, width| qkv_nd.clone().narrow(1, from, width);
        reference(part(0, q), part(q, kv), part(q + kv, kv), starts, shape)
    }
}

/// The definition, in plain tensors, one sequence at a time.
fn reference(q_nd: Tensor<2>, k_nd: Tensor<2>, v_nd: Tensor<2>, starts: &[usize], shape: AttentionShape) -> Tensor<2> {
    let (h, kv, dim) = (shape.heads, shape.kv_heads, shape.head_dim);
    let device = q_nd.device();
    let outputs = starts.windows(2).map(|ends| {
        let (start, t) = (ends[0], ends[1] - ends[0]);
        // [T, heads · dim] → [H, T, dim], key and value heads repeated for their group.
        let split = |x: Tensor<2>, heads: usize| {
            x.narrow(0, start, t)
                .reshape([t, heads, 1, dim])
                .repeat_dim(2, h / heads)
                .reshape([t, h, dim])
                .swap_dims(0, 1)
        };
        let (q, k, v) = (split(q_nd.clone(), h), split(k_nd.clone(), kv), split(v_nd.clone(), kv));
        let mut scores = q.matmul(k.swap_dims(1, 2)) * shape.scale;
        if shape.mask == Mask::Causal {
            let hidden: Vec<bool> = (0..t * t).map(|i| i % t > i / t).collect();
            let hidden = Tensor::<3, Bool>::from_data(TensorData::new(hidden, [1, t, t]), &device);
            scores = scores.mask_fill(hidden.expand([h, t, t]), f32::NEG_INFINITY);
        }
        activation::softmax(scores, 2).matmul(v).swap_dims(0, 1).reshape([t, h * dim])
    });
    Tensor::cat(outputs.collect(), 0)
}

#[derive(Debug)]
struct Attention {
    starts: Arc<[usize]>,
    shape: AttentionShape,
}

/// One sequence and one key/value head: the unit of parallel work. Nothing of its output is shared with another.
#[derive(Clone, Copy)]
struct Unit {
    start: usize,
    length: usize,
    kv_head: usize,
}

/// Queries, keys or values inside a row-major tensor: head `h` of row `n` starts at `n · stride + offset + h · dim`.
#[derive(Clone, Copy)]
struct Operand<'a> {
    values: &'a [f32],
    stride: usize,
    offset: usize,
    dim: usize,
}

impl<'a> Operand<'a> {
    /// `rows` rows of one head from row `row`.
    fn head(&self, head: usize, row: usize, rows: usize) -> Mat<'a> {
        let from = row * self.stride + self.offset + head * self.dim;
        Mat::strided(&self.values[from..], rows, self.dim, self.stride)
    }
}

impl Attention {
    /// Widths of queries, keys and values.
    fn widths(&self) -> [usize; 3] {
        [self.shape.heads, self.shape.kv_heads, self.shape.kv_heads].map(|heads| heads * self.shape.head_dim)
    }

    /// Queries, keys and values of `inputs`: three tensors, or one with all side by side.
    fn operands<'a>(&self, inputs: &'a [Dense]) -> [Operand<'a>; 3] {
        let (widths, dim) = (self.widths(), self.shape.head_dim);
        std::array::from_fn(|i| match inputs {
            [all] => {
                Operand { values: all.values(), stride: widths.iter().sum(), offset: widths[..i].iter().sum(), dim }
            }
            _ => Operand { values: inputs[i].values(), stride: widths[i], offset: 0, dim },
        })
    }

    fn units(&self) -> Vec<Unit> {
        let sequences = self.starts.windows(2).map(|ends| (ends[0], ends[1] - ends[0]));
        sequences
            .flat_map(|(start, length)| (0..self.shape.kv_heads).map(move |kv_head| Unit { start, length, kv_head }))
            .collect()
    }

    /// Query heads per key/value head.
    fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    /// How many keys the block of queries `from..to` sees at most.
    fn keys(&self, to: usize, length: usize) -> usize {
        match self.shape.mask {
            Mask::Causal => to,
            Mask::Bidirectional => length,
        }
    }

    /// How many keys query `t` sees.
    fn seen(&self, t: usize, length: usize) -> usize {
        self.keys(t + 1, length)
    }

    /// Scores of queries `from..to` of one unit and head, `[to − from, keys]`, unmasked.
    fn scores(
        &self,
        [q, k, _]: [Operand<'_>; 3],
        unit: Unit,
        head: usize,
        (from, to): (usize, usize),
        scores: &mut [f32],
    ) {
        let keys = self.keys(to, unit.length);
        let queries = q.head(head, unit.start + from, to - from);
        let keys_view = k.head(unit.kv_head, unit.start, keys);
        PRODUCT.scaled(self.shape.scale).store(scores, keys, queries, keys_view.t());
    }

    fn forward_unit(&self, operands: [Operand<'_>; 3], unit: Unit) -> (Vec<f32>, Vec<f32>) {
        let (dim, group) = (self.shape.head_dim, self.group());
        let mut output = vec![0.0f32; unit.length * group * dim];
        let mut log_sums = vec![0.0f32; unit.length * group];
        let mut buffer = vec![0.0f32; BLOCK.min(unit.length) * unit.length];
        for g in 0..group {
            let head = unit.kv_head * group + g;
            for from in (0..unit.length).step_by(BLOCK) {
                let to = (from + BLOCK).min(unit.length);
                let keys = self.keys(to, unit.length);
                let scores = &mut buffer[..(to - from) * keys];
                self.scores(operands, unit, head, (from, to), scores);
                for (i, row) in scores.chunks_exact_mut(keys).enumerate() {
                    let (seen, hidden) = row.split_at_mut(self.seen(from + i, unit.length));
                    log_sums[(from + i) * group + g] = softmax_in_place(seen);
                    hidden.fill(0.0);
                }
                let values = operands[2].head(unit.kv_head, unit.start, keys);
                let target = &mut output[from * group * dim + g * dim..];
                PRODUCT.store(target, group * dim, Mat::dense(scores, to - from, keys), values);
            }
        }
        (output, log_sums)
    }

    /// ∂Q `[T, group · dim]`, ∂K and ∂V `[T, dim]` of one unit.
    fn backward_unit(&self, saved: &[Dense], grad: &[f32], unit: Unit) -> [Vec<f32>; 3] {
        let (inputs, results) = saved.split_at(saved.len() - 2);
        let operands = self.operands(inputs);
        let (output, log_sums) = (results[0].values(), results[1].values());
        let (dim, group, heads) = (self.shape.head_dim, self.group(), self.shape.heads);
        let grad_operand = Operand { values: grad, stride: heads * dim, offset: 0, dim };
        let mut grad_q = vec![0.0f32; unit.length * group * dim];
        let mut grad_k = vec![0.0f32; unit.length * dim];
        let mut grad_v = vec![0.0f32; unit.length * dim];
        let mut probabilities = vec![0.0f32; BLOCK.min(unit.length) * unit.length];
        let mut grad_scores = probabilities.clone();
        for g in 0..group {
            let head = unit.kv_head * group + g;
            for from in (0..unit.length).step_by(BLOCK) {
                let to = (from + BLOCK).min(unit.length);
                let (rows, keys) = (to - from, self.keys(to, unit.length));
                let p = &mut probabilities[..rows * keys];
                let ds = &mut grad_scores[..rows * keys];
                self.scores(operands, unit, head, (from, to), p);
                let grad_rows = grad_operand.head(head, unit.start + from, rows);
                let values = operands[2].head(unit.kv_head, unit.start, keys);
                PRODUCT.store(ds, keys, grad_rows, values.t());
                for (i, (p, ds)) in p.chunks_exact_mut(keys).zip(ds.chunks_exact_mut(keys)).enumerate() {
                    let t = unit.start + from + i;
                    let at = (t * heads + head) * dim;
                    let d = dot(&grad[at..at + dim], &output[at..at + dim]);
                    let log_sum = log_sums[t * heads + head];
                    let seen = self.seen(from + i, unit.length);
                    probabilities_and_gradient(&mut p[..seen], &mut ds[..seen], log_sum, d);
                    p[seen..].fill(0.0);
                    ds[seen..].fill(0.0);
                }
                let (p, ds) = (Mat::dense(p, rows, keys), Mat::dense(ds, rows, keys));
                let scaled = PRODUCT.scaled(self.shape.scale);
                let keys_view = operands[1].head(unit.kv_head, unit.start, keys);
                let queries = operands[0].head(head, unit.start + from, rows);
                PRODUCT.add(&mut grad_v, dim, p.t(), grad_rows);
                scaled.store(&mut grad_q[(from * group + g) * dim..], group * dim, ds, keys_view);
                scaled.add(&mut grad_k, dim, ds.t(), queries);
            }
        }
        [grad_q, grad_k, grad_v]
    }

    /// Copies a unit's `[T, width]` block into a packed tensor with rows `stride` apart, from column `offset`.
    fn place(target: &mut [f32], (stride, offset): (usize, usize), unit: Unit, block: &[f32], width: usize) {
        for (t, row) in block.chunks_exact(width).enumerate() {
            let at = (unit.start + t) * stride + offset + unit.kv_head * width;
            target[at..at + width].copy_from_slice(row);
        }
    }
}

simd! {
    /// From scores to probabilities, and from the gradient of the probabilities to that of the scores.
    fn probabilities_and_gradient(p: &mut [f32], ds: &mut [f32], log_sum: f32, d: f32) {
        for (p, ds) in p.iter_mut().zip(ds) {
            *p = exp(*p - log_sum);
            *ds = *p * (*ds - d);
        }
    }
}

impl Op for Attention {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let operands = self.operands(inputs);
        let (n, heads, group) = (inputs[0].dims()[0], self.shape.heads, self.group());
        let units = self.units();
        let blocks: Vec<_> = units.par_iter().map(|&unit| self.forward_unit(operands, unit)).collect();
        let (width, total) = (group * self.shape.head_dim, heads * self.shape.head_dim);
        let mut output = vec![0.0f32; n * total];
        let mut log_sums = vec![0.0f32; n * heads];
        for (&unit, (block, sums)) in units.iter().zip(&blocks) {
            Self::place(&mut output, (total, 0), unit, block, width);
            Self::place(&mut log_sums, (heads, 0), unit, sums, group);
        }
        let output = Dense::new(output, &[n, total]);
        let mut saved = inputs.to_vec();
        saved.extend([output.clone(), Dense::new(log_sums, &[n, heads])]);
        (output, saved)
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        let (n, dim, totals) = (grad.dims()[0], self.shape.head_dim, self.widths());
        let units = self.units();
        let blocks: Vec<_> = units.par_iter().map(|&unit| self.backward_unit(saved, grad.values(), unit)).collect();
        let widths = [self.group() * dim, dim, dim];
        // One gradient with all side by side, or three: as the inputs were.
        let side_by_side = saved.len() == 3;
        let strides = if side_by_side { vec![totals.iter().sum()] } else { totals.to_vec() };
        let mut gradients: Vec<Vec<f32>> = strides.iter().map(|stride| vec![0.0f32; n * stride]).collect();
        for (&unit, block) in units.iter().zip(&blocks) {
            for i in 0..3 {
                let (tensor, offset) = if side_by_side { (0, totals[..i].iter().sum()) } else { (i, 0) };
                Self::place(&mut gradients[tensor], (strides[tensor], offset), unit, &block[i], widths[i]);
            }
        }
        gradients.into_iter().zip(strides).map(|(values, stride)| Some(Dense::new(values, &[n, stride]))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{check, host, leaf};

    fn shape(heads: usize, kv_heads: usize, head_dim: usize, mask: Mask) -> AttentionShape {
        AttentionShape { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), mask }
    }

    #[test]
    fn agrees_with_the_reference() {
        // One-token sequences, block tails, grouped queries, both masks.
        for (starts, heads, kv) in [(vec![0, 1], 1, 1), (vec![0, 1, 8, 9], 4, 2), (vec![0, 70, 200], 3, 1)] {
            for mask in [Mask::Causal, Mask::Bidirectional] {
                let (n, shape) = (*starts.last().expect("starts"), shape(heads, kv, 5, mask));
                let inputs = [leaf([n, heads * 5], 1), leaf([n, kv * 5], 2), leaf([n, kv * 5], 3)];
                check(
                    "attention",
                    &inputs,
                    |x| attention(x[0].clone(), x[1].clone(), x[2].clone(), &starts, shape),
                    |x| reference(x[0].clone(), x[1].clone(), x[2].clone(), &starts, shape),
                    1e-5,
                );
                let part = |x: &Tensor<2>, from, width| x.clone().narrow(1, from, width);
                check(
                    "attention side by side",
                    &[leaf([n, (heads + 2 * kv) * 5], 4)],
                    |x| attention_fused(x[0].clone(), &starts, shape),
                    |x| {
                        let (q, kv) = (heads * 5, kv * 5);
                        reference(part(&x[0], 0, q), part(&x[0], q, kv), part(&x[0], q + kv, kv), &starts, shape)
                    },
                    1e-5,
                );
            }
        }
    }

    #[test]
    fn large_scores_stay_finite() {
        let shape = AttentionShape { scale: 1e4, ..shape(1, 1, 4, Mask::Causal) };
        let out = attention(leaf([6, 4], 1), leaf([6, 4], 2), leaf([6, 4], 3), &[0, 6], shape);
        assert!(host(out.inner()).iter().all(|x| x.is_finite()));
    }
}
