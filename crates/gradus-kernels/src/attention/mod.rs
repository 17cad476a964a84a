//! Scaled dot-product attention over packed sequences, bounded by sequence, with grouped queries.
//!
//! Within one segment and head: `S = α Q Kᵀ`, masked; `P = softmax(S)` row by row; `O = P V`.
//! Backward, with `Lₜ = logsumexp(Sₜ)` kept from the forward pass and `Dₜ = Σ ∂Oₜ ∘ Oₜ`:
//! `P = exp(S − L)`, `∂V = Pᵀ ∂O`, `∂P = ∂O Vᵀ`, `∂S = P ∘ (∂P − D)`, `∂Q = α ∂S K`, `∂K = α ∂Sᵀ Q`.
//! Queries are taken in blocks, so no T × T matrix is ever in memory. A continuation attends to the keys of its root
//! where they lie, and adds to their gradient.
//! Dao et al. 2022, <https://arxiv.org/abs/2205.14135>, algorithms 1 and 4, without tiling over keys.

use std::ops::Range;

use burn::tensor::{Bool, Tensor, TensorData, activation};
use rayon::prelude::*;

use crate::fused::{Dense, Op, apply, is_fused};
use crate::product::{Mat, Precision, Product};
use crate::segments::{Segment, Segments, Tree};
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
/// `q_nd` is `[N, H · head_dim]`, `k_nd` and `v_nd` `[N, kv_heads · head_dim]`; `segments` says which of the N tokens
/// see each other. The result is `[N, H · head_dim]`. All three tensors carry gradient.
///
/// # Panics
/// When the shapes do not fit each other or the segments do not cover the tokens.
pub fn attention(
    q_nd: Tensor<2>,
    k_nd: Tensor<2>,
    v_nd: Tensor<2>,
    segments: &Segments,
    shape: AttentionShape,
) -> Tensor<2> {
    let [n, d] = q_nd.dims();
    assert_eq!(d, shape.heads * shape.head_dim, "query width");
    assert_eq!(k_nd.dims(), [n, shape.kv_heads * shape.head_dim], "key shape");
    assert_eq!(v_nd.dims(), k_nd.dims(), "value shape");
    assert_eq!(shape.heads % shape.kv_heads, 0, "whole groups of query heads");
    assert_eq!(segments.tokens(), n, "segments cover the tokens");
    if is_fused(&q_nd.device()) {
        let inputs = vec![q_nd.into_dispatch(), k_nd.into_dispatch(), v_nd.into_dispatch()];
        apply(Attention { segments: segments.clone(), shape }, inputs)
    } else {
        reference(q_nd, k_nd, v_nd, segments, shape)
    }
}

/// [`attention`] of one tensor that holds queries, keys and values side by side, as GPT-2's projection gives them.
///
/// `qkv_nd` is `[N, (H + 2 · kv_heads) · head_dim]`; it carries gradient, and gets it in one piece.
///
/// # Panics
/// As [`attention`].
pub fn attention_fused(qkv_nd: Tensor<2>, segments: &Segments, shape: AttentionShape) -> Tensor<2> {
    let [n, width] = qkv_nd.dims();
    let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    assert_eq!(width, q + 2 * kv, "width of queries, keys and values");
    assert_eq!(segments.tokens(), n, "segments cover the tokens");
    if is_fused(&qkv_nd.device()) {
        apply(Attention { segments: segments.clone(), shape }, vec![qkv_nd.into_dispatch()])
    } else {
        let part = |from, width| qkv_nd.clone().narrow(1, from, width);
        reference(part(0, q), part(q, kv), part(q + kv, kv), segments, shape)
    }
}

/// The definition, in plain tensors, one segment at a time.
pub fn reference(
    q_nd: Tensor<2>,
    k_nd: Tensor<2>,
    v_nd: Tensor<2>,
    segments: &Segments,
    shape: AttentionShape,
) -> Tensor<2> {
    let (h, kv, dim) = (shape.heads, shape.kv_heads, shape.head_dim);
    let device = q_nd.device();
    if segments.tokens() == 0 {
        return q_nd;
    }
    let outputs = segments.iter().filter(|segment| !segment.tokens.is_empty()).map(|Segment { tokens, prefix }| {
        let (t, seen) = (tokens.len(), prefix.len() + tokens.len());
        // [rows, heads · dim] → [H, rows, dim], key and value heads repeated for their group.
        let split = |x: Tensor<2>, heads: usize| {
            let rows = x.dims()[0];
            x.reshape([rows, heads, 1, dim]).repeat_dim(2, h / heads).reshape([rows, h, dim]).swap_dims(0, 1)
        };
        let rows = |x: &Tensor<2>, range: &Range<usize>| x.clone().narrow(0, range.start, range.len());
        let keys = |x: &Tensor<2>| match prefix.len() {
            0 => rows(x, &tokens),
            _ => Tensor::cat(vec![rows(x, &prefix), rows(x, &tokens)], 0),
        };
        let (q, k, v) = (split(rows(&q_nd, &tokens), h), split(keys(&k_nd), kv), split(keys(&v_nd), kv));
        let mut scores = q.matmul(k.swap_dims(1, 2)) * shape.scale;
        if shape.mask == Mask::Causal {
            let hidden: Vec<bool> = (0..t * seen).map(|i| i % seen > prefix.len() + i / seen).collect();
            let hidden = Tensor::<3, Bool>::from_data(TensorData::new(hidden, [1, t, seen]), &device);
            scores = scores.mask_fill(hidden.expand([h, t, seen]), f32::NEG_INFINITY);
        }
        activation::softmax(scores, 2).matmul(v).swap_dims(0, 1).reshape([t, h * dim])
    });
    Tensor::cat(outputs.collect(), 0)
}

#[derive(Debug)]
struct Attention {
    segments: Segments,
    shape: AttentionShape,
}

/// One tree of segments and one key/value head: the unit of parallel work. Nothing of its output is shared with another.
#[derive(Clone, Copy)]
struct Unit<'a> {
    tree: &'a Tree,
    kv_head: usize,
}

impl Unit<'_> {
    /// The segments, token numbers within the tree.
    fn segments(&self) -> impl Iterator<Item = Segment> {
        self.tree.segments(0)
    }

    /// Scores that a block of queries of this unit has at most.
    fn block_size(&self) -> usize {
        let sizes = self.segments().map(|segment| BLOCK.min(segment.tokens.len()) * segment.length());
        sizes.max().unwrap_or(0)
    }
}

/// A block of queries of one segment, and the stretches of keys it sees: the prefix, and its own part.
struct Block {
    /// Queries, as token numbers within the tree.
    queries: Range<usize>,
    /// Keys, likewise, and the column of the block's scores at which they begin.
    stretches: [(Range<usize>, usize); 2],
    /// Columns of the scores.
    keys: usize,
}

impl Block {
    fn stretches(&self) -> impl Iterator<Item = &(Range<usize>, usize)> {
        self.stretches.iter().filter(|(keys, _)| !keys.is_empty())
    }
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

    fn units(&self) -> Vec<Unit<'_>> {
        let heads = self.shape.kv_heads;
        self.segments.trees().iter().flat_map(|tree| (0..heads).map(move |kv_head| Unit { tree, kv_head })).collect()
    }

    /// Query heads per key/value head.
    fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    /// The blocks of queries of a segment.
    fn blocks(&self, segment: &Segment) -> impl Iterator<Item = Block> {
        let (Segment { tokens, prefix }, mask) = (segment.clone(), self.shape.mask);
        tokens.clone().step_by(BLOCK).map(move |from| {
            let to = (from + BLOCK).min(tokens.end);
            let own = match mask {
                Mask::Causal => tokens.start..to,
                Mask::Bidirectional => tokens.clone(),
            };
            let keys = prefix.len() + own.len();
            Block { queries: from..to, stretches: [(prefix.clone(), 0), (own, prefix.len())], keys }
        })
    }

    /// How many of a block's keys query `i` of it sees: the first ones.
    fn seen(&self, block: &Block, i: usize) -> usize {
        match self.shape.mask {
            Mask::Causal => block.keys - (block.queries.len() - 1 - i),
            Mask::Bidirectional => block.keys,
        }
    }

    /// Scores of a block of queries, `[queries, keys]`, unmasked.
    fn scores(&self, [q, k, _]: [Operand<'_>; 3], unit: Unit<'_>, head: usize, block: &Block, scores: &mut [f32]) {
        let queries = q.head(head, unit.tree.start + block.queries.start, block.queries.len());
        for (keys, column) in block.stretches() {
            let keys = k.head(unit.kv_head, unit.tree.start + keys.start, keys.len());
            PRODUCT.scaled(self.shape.scale).store(&mut scores[*column..], block.keys, queries, keys.t());
        }
    }

    fn forward_unit(&self, operands: [Operand<'_>; 3], unit: Unit<'_>) -> (Vec<f32>, Vec<f32>) {
        let (dim, group, length) = (self.shape.head_dim, self.group(), unit.tree.length());
        let mut output = vec![0.0f32; length * group * dim];
        let mut log_sums = vec![0.0f32; length * group];
        let mut buffer = vec![0.0f32; unit.block_size()];
        for segment in unit.segments() {
            for (g, block) in (0..group).flat_map(|g| self.blocks(&segment).map(move |block| (g, block))) {
                let (rows, from) = (block.queries.len(), block.queries.start);
                let scores = &mut buffer[..rows * block.keys];
                self.scores(operands, unit, unit.kv_head * group + g, &block, scores);
                for (i, row) in scores.chunks_exact_mut(block.keys).enumerate() {
                    let (seen, hidden) = row.split_at_mut(self.seen(&block, i));
                    log_sums[(from + i) * group + g] = softmax_in_place(seen);
                    hidden.fill(0.0);
                }
                let target = &mut output[from * group * dim + g * dim..];
                for (keys, column) in block.stretches() {
                    let values = operands[2].head(unit.kv_head, unit.tree.start + keys.start, keys.len());
                    let p = Mat::strided(&scores[*column..], rows, keys.len(), block.keys);
                    PRODUCT.add(target, group * dim, p, values);
                }
            }
        }
        (output, log_sums)
    }

    /// ∂Q `[T, group · dim]`, ∂K and ∂V `[T, dim]` of one unit.
    fn backward_unit(&self, saved: &[Dense], grad: &[f32], unit: Unit<'_>) -> [Vec<f32>; 3] {
        let (inputs, results) = saved.split_at(saved.len() - 2);
        let operands = self.operands(inputs);
        let (output, log_sums) = (results[0].values(), results[1].values());
        let (dim, group, heads, start) = (self.shape.head_dim, self.group(), self.shape.heads, unit.tree.start);
        let grad_operand = Operand { values: grad, stride: heads * dim, offset: 0, dim };
        let length = unit.tree.length();
        let mut grad_q = vec![0.0f32; length * group * dim];
        let mut grad_k = vec![0.0f32; length * dim];
        let mut grad_v = vec![0.0f32; length * dim];
        let mut probabilities = vec![0.0f32; unit.block_size()];
        let mut grad_scores = probabilities.clone();
        for segment in unit.segments() {
            for (g, block) in (0..group).flat_map(|g| self.blocks(&segment).map(move |block| (g, block))) {
                let (rows, from, head) = (block.queries.len(), block.queries.start, unit.kv_head * group + g);
                let p = &mut probabilities[..rows * block.keys];
                let ds = &mut grad_scores[..rows * block.keys];
                self.scores(operands, unit, head, &block, p);
                let grad_rows = grad_operand.head(head, start + from, rows);
                for (keys, column) in block.stretches() {
                    let values = operands[2].head(unit.kv_head, start + keys.start, keys.len());
                    PRODUCT.store(&mut ds[*column..], block.keys, grad_rows, values.t());
                }
                for (i, (p, ds)) in p.chunks_exact_mut(block.keys).zip(ds.chunks_exact_mut(block.keys)).enumerate() {
                    let t = start + from + i;
                    let at = (t * heads + head) * dim;
                    let d = dot(&grad[at..at + dim], &output[at..at + dim]);
                    let seen = self.seen(&block, i);
                    probabilities_and_gradient(&mut p[..seen], &mut ds[..seen], log_sums[t * heads + head], d);
                    p[seen..].fill(0.0);
                    ds[seen..].fill(0.0);
                }
                let scaled = PRODUCT.scaled(self.shape.scale);
                let queries = operands[0].head(head, start + from, rows);
                for (keys, column) in block.stretches() {
                    let keys_view = operands[1].head(unit.kv_head, start + keys.start, keys.len());
                    let p = Mat::strided(&p[*column..], rows, keys.len(), block.keys);
                    let ds = Mat::strided(&ds[*column..], rows, keys.len(), block.keys);
                    PRODUCT.add(&mut grad_v[keys.start * dim..], dim, p.t(), grad_rows);
                    scaled.add(&mut grad_q[(from * group + g) * dim..], group * dim, ds, keys_view);
                    scaled.add(&mut grad_k[keys.start * dim..], dim, ds.t(), queries);
                }
            }
        }
        [grad_q, grad_k, grad_v]
    }

    /// Copies a unit's `[T, width]` block into a packed tensor with rows `stride` apart, from column `offset`.
    fn place(target: &mut [f32], (stride, offset): (usize, usize), unit: Unit<'_>, block: &[f32], width: usize) {
        for (t, row) in block.chunks_exact(width).enumerate() {
            let at = (unit.tree.start + t) * stride + offset + unit.kv_head * width;
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
    use crate::fused::testing::{assert_close, check, host, leaf};

    fn shape(heads: usize, kv_heads: usize, head_dim: usize, mask: Mask) -> AttentionShape {
        AttentionShape { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), mask }
    }

    #[test]
    fn agrees_with_the_reference() {
        let mut groups = Segments::sequences([7]);
        groups.push(70, vec![3, 90, 0, 1]);
        groups.push(1, vec![5]);
        // One-token sequences, block tails, prompts shared by a group, grouped queries, both masks.
        for (segments, heads, kv) in [
            (Segments::sequences([1]), 1, 1),
            (Segments::sequences([1, 7, 1]), 4, 2),
            (Segments::sequences([70, 130]), 3, 1),
            (groups, 4, 2),
        ] {
            for mask in [Mask::Causal, Mask::Bidirectional] {
                let (n, shape) = (segments.tokens(), shape(heads, kv, 5, mask));
                let inputs = [leaf([n, heads * 5], 1), leaf([n, kv * 5], 2), leaf([n, kv * 5], 3)];
                check(
                    "attention",
                    &inputs,
                    |x| attention(x[0].clone(), x[1].clone(), x[2].clone(), &segments, shape),
                    |x| reference(x[0].clone(), x[1].clone(), x[2].clone(), &segments, shape),
                    1e-5,
                );
                let part = |x: &Tensor<2>, from, width| x.clone().narrow(1, from, width);
                check(
                    "attention side by side",
                    &[leaf([n, (heads + 2 * kv) * 5], 4)],
                    |x| attention_fused(x[0].clone(), &segments, shape),
                    |x| {
                        let (q, kv) = (heads * 5, kv * 5);
                        reference(part(&x[0], 0, q), part(&x[0], q, kv), part(&x[0], q + kv, kv), &segments, shape)
                    },
                    1e-5,
                );
            }
        }
    }

    #[test]
    fn a_continuation_gets_what_the_whole_sequence_gives_it() {
        let (prompt, lengths, shape) = (20, [9, 70], shape(2, 2, 8, Mask::Causal));
        let mut shared = Segments::default();
        shared.push(prompt, lengths.to_vec());
        let n = shared.tokens();
        let x = leaf([n, 48], 1).inner();
        let together = host(attention_fused(x.clone(), &shared, shape));
        for segment in shared.iter().skip(1) {
            let rows = |range: Range<usize>| x.clone().narrow(0, range.start, range.len());
            let alone = Tensor::cat(vec![rows(segment.prefix.clone()), rows(segment.tokens.clone())], 0);
            let alone = host(attention_fused(alone, &Segments::sequences([segment.length()]), shape));
            let own = &together[segment.tokens.start * 16..segment.tokens.end * 16];
            assert_close("continuation", own, &alone[prompt * 16..], 1e-6);
        }
    }

    #[test]
    fn large_scores_stay_finite() {
        let shape = AttentionShape { scale: 1e4, ..shape(1, 1, 4, Mask::Causal) };
        let out = attention(leaf([6, 4], 1), leaf([6, 4], 2), leaf([6, 4], 3), &Segments::sequences([6]), shape);
        assert!(host(out.inner()).iter().all(|x| x.is_finite()));
    }
}
