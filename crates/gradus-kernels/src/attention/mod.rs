//! Scaled dot-product attention over packed sequences, bounded by sequence, with grouped queries.
//!
//! Within one segment and head: `S = α Q Kᵀ`, masked; `P = softmax(S)` row by row; `O = P V`.
//! Backward, with `Lₜ = logsumexp(Sₜ)` kept from the forward pass and `Dₜ = Σ ∂Oₜ ∘ Oₜ`:
//! `P = exp(S − L)`, `∂V = Pᵀ ∂O`, `∂P = ∂O Vᵀ`, `∂S = P ∘ (∂P − D)`, `∂Q = α ∂S K`, `∂K = α ∂Sᵀ Q`.
//! A bias by position ([`PositionBias`]) is added to S, and its gradient gathered from ∂S.
//! Queries are taken in blocks, so no T × T matrix is ever in memory. A continuation attends to the keys of its root
//! where they lie, and adds to their gradient.
//! Dao et al. 2022, <https://arxiv.org/abs/2205.14135>, algorithms 1 and 4, without tiling over keys.

mod bias;
mod mask;
#[cfg(test)]
mod tests;

use std::ops::Range;

use burn::tensor::{Bool, Int, Tensor, TensorData, activation};
use rayon::prelude::*;

use bias::{DistanceBias, add};
pub use bias::{PositionBias, PositionBuckets};
pub use mask::Mask;

use crate::fused::{Dense, Op, apply, is_fused};
use crate::parts::{one_in_parts, part_of};
use crate::product::{Mat, Precision, Product};
use crate::segments::{Segment, Segments, Tree};
use crate::simd::{dot, exp, simd, softmax_in_place};

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
    check([&q_nd, &k_nd, &v_nd], segments, shape);
    if is_fused(&q_nd.device()) {
        let inputs = vec![q_nd.into_dispatch(), k_nd.into_dispatch(), v_nd.into_dispatch()];
        apply(Attention { segments: segments.clone(), shape, buckets: None }, inputs)
    } else {
        reference(q_nd, k_nd, v_nd, segments, shape)
    }
}

/// [`attention`] with a learned bias of the scores by position; it carries gradient too.
///
/// # Panics
/// As [`attention`], and when the bias is not one value for each query head and bucket.
pub fn attention_biased(
    q_nd: Tensor<2>,
    k_nd: Tensor<2>,
    v_nd: Tensor<2>,
    bias: PositionBias,
    segments: &Segments,
    shape: AttentionShape,
) -> Tensor<2> {
    check([&q_nd, &k_nd, &v_nd], segments, shape);
    assert_eq!(bias.weight_hr.dims(), [shape.heads, bias.buckets.buckets()], "shape of the bias");
    if is_fused(&q_nd.device()) {
        let inputs = [q_nd, k_nd, v_nd, bias.weight_hr].map(Tensor::into_dispatch);
        apply(Attention { segments: segments.clone(), shape, buckets: Some(bias.buckets) }, inputs.into())
    } else {
        reference_biased(q_nd, k_nd, v_nd, Some(&bias), segments, shape)
    }
}

fn check([q_nd, k_nd, v_nd]: [&Tensor<2>; 3], segments: &Segments, shape: AttentionShape) {
    let [n, d] = q_nd.dims();
    assert_eq!(d, shape.heads * shape.head_dim, "query width");
    assert_eq!(k_nd.dims(), [n, shape.kv_heads * shape.head_dim], "key shape");
    assert_eq!(v_nd.dims(), k_nd.dims(), "value shape");
    assert_eq!(shape.heads % shape.kv_heads, 0, "whole groups of query heads");
    assert_eq!(segments.tokens(), n, "segments cover the tokens");
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
        apply(Attention { segments: segments.clone(), shape, buckets: None }, vec![qkv_nd.into_dispatch()])
    } else {
        let part = |from, width| qkv_nd.clone().narrow(1, from, width);
        reference(part(0, q), part(q, kv), part(q + kv, kv), segments, shape)
    }
}

/// The definition, in plain tensors.
pub fn reference(
    q_nd: Tensor<2>,
    k_nd: Tensor<2>,
    v_nd: Tensor<2>,
    segments: &Segments,
    shape: AttentionShape,
) -> Tensor<2> {
    reference_biased(q_nd, k_nd, v_nd, None, segments, shape)
}

/// The definition, in plain tensors, one segment at a time.
pub fn reference_biased(
    q_nd: Tensor<2>,
    k_nd: Tensor<2>,
    v_nd: Tensor<2>,
    bias: Option<&PositionBias>,
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
        let pairs = || (prefix.len()..seen).flat_map(|query| (0..seen).map(move |key| (query, key)));
        if let Some(PositionBias { weight_hr, buckets }) = bias {
            let of_pairs: Vec<i32> = pairs().map(|(query, key)| buckets.bucket(query, key) as i32).collect();
            let of_pairs = Tensor::<1, Int>::from_data(TensorData::new(of_pairs, [t * seen]), &device);
            scores = scores + weight_hr.clone().select(1, of_pairs).reshape([h, t, seen]);
        }
        let is_hidden = |(query, key): (usize, usize)| match shape.mask {
            Mask::Causal => key > query,
            Mask::CausalWindow(window) => key > query || query - key >= window.get(),
            Mask::Bidirectional => false,
            Mask::BidirectionalWindow(distance) => key.abs_diff(query) > distance,
        };
        if shape.mask != Mask::Bidirectional {
            let hidden = TensorData::new(pairs().map(is_hidden).collect::<Vec<bool>>(), [1, t, seen]);
            let hidden = Tensor::<3, Bool>::from_data(hidden, &device);
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
    /// Of the bias, where there is one.
    buckets: Option<PositionBuckets>,
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
}

/// A block of queries of one segment, and the stretches of keys it sees: the prefix, and its own part.
struct Block {
    /// Queries, as token numbers within the tree.
    queries: Range<usize>,
    /// Where the first query and the first key stand in their sequence of `length` tokens.
    positions: [usize; 2],
    length: usize,
    /// Keys, likewise, and the column of the block's scores at which they begin.
    stretches: [(Range<usize>, usize); 2],
    /// Columns of the scores.
    keys: usize,
}

impl Block {
    fn stretches(&self) -> impl Iterator<Item = &(Range<usize>, usize)> {
        self.stretches.iter().filter(|(keys, _)| !keys.is_empty())
    }

    /// Where the distances from query `i` to the keys `columns` lie among those of `bias`.
    fn distances(&self, bias: &DistanceBias, i: usize, columns: &Range<usize>) -> Range<usize> {
        let [query, key] = self.positions;
        bias.range(query + i, &(key + columns.start..key + columns.end))
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

/// What scores are made of.
struct Sources<'a> {
    /// Queries, keys and values.
    operands: [Operand<'a>; 3],
    bias: Option<DistanceBias>,
}

impl Attention {
    /// Widths of queries, keys and values.
    fn widths(&self) -> [usize; 3] {
        [self.shape.heads, self.shape.kv_heads, self.shape.kv_heads].map(|heads| heads * self.shape.head_dim)
    }

    /// What scores are made of, from `inputs`: queries, keys and values as three tensors or one with all side by side,
    /// and the bias.
    fn sources<'a>(&self, inputs: &'a [Dense]) -> Sources<'a> {
        let (widths, dim) = (self.widths(), self.shape.head_dim);
        let operands = std::array::from_fn(|i| match inputs {
            [all] => {
                Operand { values: all.values(), stride: widths.iter().sum(), offset: widths[..i].iter().sum(), dim }
            }
            _ => Operand { values: inputs[i].values(), stride: widths[i], offset: 0, dim },
        });
        let longest = self.segments.iter().map(|segment| segment.length()).max().unwrap_or(0);
        let bias = self.buckets.as_ref().map(|buckets| DistanceBias::new(buckets, &inputs[3], longest));
        Sources { operands, bias }
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
    fn blocks(&self, segment: &Segment) -> impl Iterator<Item = Block> + use<> {
        let (Segment { tokens, prefix }, mask, length) = (segment.clone(), self.shape.mask, segment.length());
        tokens.clone().step_by(BLOCK).map(move |from| {
            let queries = from..(from + BLOCK).min(tokens.end);
            // Positions in the sequence: the prefix comes first.
            let own = prefix.len();
            let first = own + from - tokens.start;
            let keys = mask.keys_of_any(&(first..first + queries.len()), length);
            let of_prefix = prefix.start + keys.start.min(own)..prefix.start + keys.end.min(own);
            let of_own = tokens.start + keys.start.max(own) - own..tokens.start + keys.end.max(own) - own;
            let column = of_prefix.len();
            let stretches = [(of_prefix, 0), (of_own, column)];
            Block { queries, positions: [first, keys.start], length, stretches, keys: keys.len() }
        })
    }

    /// Scores that a block of queries of a unit has at most.
    fn block_size(&self, unit: Unit<'_>) -> usize {
        let blocks = unit.segments().flat_map(|segment| self.blocks(&segment));
        blocks.map(|block| block.queries.len() * block.keys).max().unwrap_or(0)
    }

    /// Which columns of a block query `i` of it sees.
    fn seen(&self, block: &Block, i: usize) -> Range<usize> {
        let (keys, first) = (self.shape.mask.keys(block.positions[0] + i, block.length), block.positions[1]);
        keys.start - first..keys.end - first
    }

    /// Scores of a block of queries, `[queries, keys]`, unmasked; the bias is added to those that are seen.
    fn scores(&self, from: &Sources<'_>, unit: Unit<'_>, head: usize, block: &Block, scores: &mut [f32]) {
        let [q, k, _] = from.operands;
        let queries = q.head(head, unit.tree.start + block.queries.start, block.queries.len());
        for (keys, column) in block.stretches() {
            let keys = k.head(unit.kv_head, unit.tree.start + keys.start, keys.len());
            PRODUCT.scaled(self.shape.scale).store(&mut scores[*column..], block.keys, queries, keys.t());
        }
        if let Some(bias) = &from.bias {
            for (i, row) in scores.chunks_exact_mut(block.keys).enumerate() {
                let seen = self.seen(block, i);
                let distances = block.distances(bias, i, &seen);
                add(&mut row[seen], bias.of(head, distances));
            }
        }
    }

    fn forward_unit(&self, sources: &Sources<'_>, unit: Unit<'_>) -> (Vec<f32>, Vec<f32>) {
        let (dim, group, length) = (self.shape.head_dim, self.group(), unit.tree.length());
        let mut output = vec![0.0f32; length * group * dim];
        let mut log_sums = vec![0.0f32; length * group];
        let mut buffer = vec![0.0f32; self.block_size(unit)];
        for segment in unit.segments() {
            for (g, block) in (0..group).flat_map(|g| self.blocks(&segment).map(move |block| (g, block))) {
                let (rows, from) = (block.queries.len(), block.queries.start);
                let scores = &mut buffer[..rows * block.keys];
                self.scores(sources, unit, unit.kv_head * group + g, &block, scores);
                for (i, row) in scores.chunks_exact_mut(block.keys).enumerate() {
                    let seen = self.seen(&block, i);
                    log_sums[(from + i) * group + g] = softmax_in_place(&mut row[seen.clone()]);
                    hide(row, &seen);
                }
                let target = &mut output[from * group * dim + g * dim..];
                for (keys, column) in block.stretches() {
                    let values = sources.operands[2].head(unit.kv_head, unit.tree.start + keys.start, keys.len());
                    let p = Mat::strided(&scores[*column..], rows, keys.len(), block.keys);
                    PRODUCT.add(target, group * dim, p, values);
                }
            }
        }
        (output, log_sums)
    }

    /// ∂Q `[T, group · dim]`, ∂K and ∂V `[T, dim]` of one unit, and ∂bias `[group, R]`.
    fn backward_unit(&self, saved: &[Dense], sources: &Sources<'_>, grad: &[f32], unit: Unit<'_>) -> [Vec<f32>; 4] {
        let Sources { operands, bias } = sources;
        let [.., output, log_sums] = saved else { unreachable!("output and log-sums are saved last") };
        let (output, log_sums) = (output.values(), log_sums.values());
        let (dim, group, heads, start) = (self.shape.head_dim, self.group(), self.shape.heads, unit.tree.start);
        let grad_operand = Operand { values: grad, stride: heads * dim, offset: 0, dim };
        let length = unit.tree.length();
        let mut grad_q = vec![0.0f32; length * group * dim];
        let mut grad_k = vec![0.0f32; length * dim];
        let mut grad_v = vec![0.0f32; length * dim];
        let distances = bias.as_ref().map_or(0, DistanceBias::distances);
        let mut grad_bias = vec![0.0f32; group * distances];
        let mut probabilities = vec![0.0f32; self.block_size(unit)];
        let mut grad_scores = probabilities.clone();
        for segment in unit.segments() {
            for (g, block) in (0..group).flat_map(|g| self.blocks(&segment).map(move |block| (g, block))) {
                let (rows, from, head) = (block.queries.len(), block.queries.start, unit.kv_head * group + g);
                let p = &mut probabilities[..rows * block.keys];
                let ds = &mut grad_scores[..rows * block.keys];
                self.scores(sources, unit, head, &block, p);
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
                    probabilities_and_gradient(
                        &mut p[seen.clone()],
                        &mut ds[seen.clone()],
                        log_sums[t * heads + head],
                        d,
                    );
                    hide(p, &seen);
                    hide(ds, &seen);
                    if let Some(bias) = bias {
                        let grad_bias = &mut grad_bias[g * distances..][block.distances(bias, i, &seen)];
                        add(grad_bias, &ds[seen]);
                    }
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
        [grad_q, grad_k, grad_v, self.by_bucket(&grad_bias, distances)]
    }

    /// The gradient of the bias of a group of heads, `[group, R]`, from that of its distances.
    fn by_bucket(&self, grad_bias: &[f32], distances: usize) -> Vec<f32> {
        let Some(buckets) = &self.buckets else { return Vec::new() };
        let mut grad_gr = vec![0.0f32; self.group() * buckets.buckets()];
        let heads = grad_gr.chunks_exact_mut(buckets.buckets().max(1)).zip(grad_bias.chunks_exact(distances.max(1)));
        heads.for_each(|(grad_r, by_distance)| buckets.collect(grad_r, by_distance));
        grad_gr
    }

    /// The gradient of the bias, summed over the units in order.
    fn grad_bias(&self, units: &[Unit<'_>], blocks: &[[Vec<f32>; 4]]) -> Option<Dense> {
        let buckets = self.buckets.as_ref()?.buckets();
        let mut grad_hr = vec![0.0f32; self.shape.heads * buckets];
        for (unit, [.., of_group]) in units.iter().zip(blocks) {
            add(&mut grad_hr[unit.kv_head * of_group.len()..], of_group);
        }
        Some(Dense::new(grad_hr, &[self.shape.heads, buckets]))
    }
}

/// What every unit has made, `[T, width]` each, and the column at which those of the first head go.
struct Blocks<'a> {
    offset: usize,
    width: usize,
    of_units: Vec<&'a [f32]>,
}

/// Puts the blocks of all units into one packed tensor `[n, stride]`.
fn side_by_side(units: &[Unit<'_>], n: usize, stride: usize, blocks: &[Blocks<'_>]) -> Dense {
    /// Rows of one parallel task.
    const ROWS: usize = 32;
    let values = one_in_parts(n * stride, ROWS * stride, |part, values| {
        let rows = part * ROWS..part * ROWS + values.len() / stride;
        for (i, unit) in units.iter().enumerate() {
            let tree = unit.tree.start..unit.tree.start + unit.tree.length();
            for row in rows.start.max(tree.start)..rows.end.min(tree.end) {
                for Blocks { offset, width, of_units } in blocks {
                    let at = (row - rows.start) * stride + offset + unit.kv_head * width;
                    values[at..at + width].copy_from_slice(part_of(of_units[i], row - tree.start, *width));
                }
            }
        }
    });
    Dense::new(values, &[n, stride])
}

/// Nothing is left of what a query does not see.
fn hide(row: &mut [f32], seen: &Range<usize>) {
    row[..seen.start].fill(0.0);
    row[seen.end..].fill(0.0);
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
        let sources = self.sources(inputs);
        let (n, heads, group) = (inputs[0].dims()[0], self.shape.heads, self.group());
        let units = self.units();
        let blocks: Vec<_> = units.par_iter().map(|&unit| self.forward_unit(&sources, unit)).collect();
        let (width, total) = (group * self.shape.head_dim, heads * self.shape.head_dim);
        let outputs = blocks.iter().map(|(output, _)| &output[..]).collect();
        let output = side_by_side(&units, n, total, &[Blocks { offset: 0, width, of_units: outputs }]);
        let log_sums = blocks.iter().map(|(_, log_sums)| &log_sums[..]).collect();
        let log_sums = side_by_side(&units, n, heads, &[Blocks { offset: 0, width: group, of_units: log_sums }]);
        let mut saved = inputs.to_vec();
        saved.extend([output.clone(), log_sums]);
        (output, saved)
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        let (n, dim, totals) = (grad.dims()[0], self.shape.head_dim, self.widths());
        let (inputs, units) = (&saved[..saved.len() - 2], self.units());
        let sources = self.sources(inputs);
        let blocks: Vec<_> =
            units.par_iter().map(|&unit| self.backward_unit(saved, &sources, grad.values(), unit)).collect();
        let widths = [self.group() * dim, dim, dim];
        let of = |i: usize, offset| Blocks {
            offset,
            width: widths[i],
            of_units: blocks.iter().map(|block| &block[i][..]).collect(),
        };
        // One gradient with all side by side, or three: as the inputs were.
        let gradients = match inputs {
            [_] => {
                let all = [of(0, 0), of(1, totals[0]), of(2, totals[0] + totals[1])];
                vec![side_by_side(&units, n, totals.iter().sum(), &all)]
            }
            _ => (0..3).map(|i| side_by_side(&units, n, totals[i], &[of(i, 0)])).collect(),
        };
        gradients.into_iter().map(Some).chain(self.grad_bias(&units, &blocks).map(Some)).collect()
    }
}
