//! Attention on the CPU, forward and backward.

use rayon::prelude::*;

use super::bias::{DistanceBias, PositionBuckets, add};
use super::block::Block;
use super::pieces::{Blocks, Piece, pieces, side_by_side};
use super::spans::{KeySpan, KeySpans};
use super::unit::Unit;
use super::{AttentionDropout, AttentionShape};
use crate::fused::{Dense, Op};
use crate::product::{Mat, Precision, Product};
use crate::simd::{dot, exp, simd, softmax_in_place};
use crate::softcap::{cap_in_place, slope};

/// Scores decide between tokens, so they stay in f32.
const PRODUCT: Product = Product::single(Precision::F32);

#[derive(Debug)]
pub(super) struct Attention {
    spans: KeySpans,
    shape: AttentionShape,
    /// Buckets of the bias, if there is one.
    buckets: Option<PositionBuckets>,
    dropout: Option<AttentionDropout>,
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
    /// Matrix of `rows` rows of one head, starting at row `row`.
    fn head(&self, head: usize, row: usize, rows: usize) -> Mat<'a> {
        let from = row * self.stride + self.offset + head * self.dim;
        Mat::strided(&self.values[from..], rows, self.dim, self.stride)
    }
}

/// Inputs of the scores.
struct Sources<'a> {
    /// Queries, keys and values.
    operands: [Operand<'a>; 3],
    bias: Option<DistanceBias>,
}

impl Attention {
    pub(super) fn new(
        spans: KeySpans,
        shape: AttentionShape,
        buckets: Option<PositionBuckets>,
        dropout: Option<AttentionDropout>,
    ) -> Self {
        Self { spans, shape, buckets, dropout: dropout.filter(|dropout| dropout.probability > 0.0) }
    }

    /// Applies dropout to `row`: the probabilities of query `i` of a block, or their gradients.
    fn drop(&self, block: &Block<'_>, head: usize, i: usize, row: &mut [f32]) {
        let Some(dropout) = self.dropout else { return };
        let (query, (near, global)) = (block.first_query()[0] + i, row.split_at_mut(block.near));
        dropout.apply(head, query, block.key_positions(&(0..0)).start, near);
        for (value, &position) in global.iter_mut().zip(block.global(i)) {
            dropout.apply(head, query, position, std::slice::from_mut(value));
        }
    }

    /// Splits `inputs` into queries, keys and values (three tensors, or one with all side by side) and the bias.
    fn sources<'a>(&self, inputs: &'a [Dense]) -> Sources<'a> {
        let (widths, dim) = (self.shape.widths(), self.shape.head_dim);
        let (qkv, bias) = inputs.split_at(inputs.len() - usize::from(self.buckets.is_some()));
        let operands = std::array::from_fn(|i| match qkv {
            [all] => {
                Operand { values: all.values(), stride: widths.iter().sum(), offset: widths[..i].iter().sum(), dim }
            }
            _ => Operand { values: qkv[i].values(), stride: widths[i], offset: 0, dim },
        });
        let longest = self.spans.longest();
        let bias = self.buckets.as_ref().map(|buckets| DistanceBias::new(buckets, &bias[0], longest));
        Sources { operands, bias }
    }

    fn units(&self) -> Vec<Unit<'_>> {
        let heads = self.shape.kv_heads;
        let of_span = |span| (0..heads).map(move |kv_head| Unit { span, kv_head });
        self.spans.list.iter().flat_map(of_span).collect()
    }

    /// Computes the scores of a block of queries, `[queries, keys]`, capped and unmasked. The bias is added to visible
    /// scores.
    fn scores(&self, from: &Sources<'_>, unit: Unit<'_>, head: usize, block: &Block<'_>, scores: &mut [f32]) {
        let [q, k, _] = from.operands;
        let queries = q.head(head, block.first_query()[0], block.queries.len());
        for (keys, column) in block.spans() {
            let keys = k.head(unit.kv_head, unit.span.keys.start + keys.start, keys.len());
            PRODUCT.scaled(self.shape.scale).store(&mut scores[*column..], block.keys, queries, keys.t());
        }
        if let Some(cap) = self.shape.cap {
            cap_in_place(scores, cap, 1.0);
        }
        if let Some(bias) = &from.bias {
            for (i, row) in scores.chunks_exact_mut(block.keys).enumerate() {
                let (visible, position) = (block.visible_columns(i), block.position(i));
                let (near, global) = row.split_at_mut(block.near);
                add(&mut near[visible.clone()], bias.of(head, bias.range(position, &block.key_positions(&visible))));
                for (score, &key) in global.iter_mut().zip(block.global(i)) {
                    *score += bias.of(head, bias.range(position, &(key..key + 1)))[0];
                }
            }
        }
    }

    fn forward_unit(&self, sources: &Sources<'_>, unit: Unit<'_>) -> (Vec<f32>, Vec<f32>) {
        let (dim, group, length) = (self.shape.head_dim, self.shape.group(), unit.span.queries());
        let mut output = vec![0.0f32; length * group * dim];
        let mut log_sums = vec![0.0f32; length * group];
        let mut buffer = vec![0.0f32; unit.block_size()];
        for (g, block) in unit.blocks(group) {
            let (rows, [_, from]) = (block.queries.len(), block.first_query());
            let scores = &mut buffer[..rows * block.keys];
            self.scores(sources, unit, unit.kv_head * group + g, &block, scores);
            for (i, row) in scores.chunks_exact_mut(block.keys).enumerate() {
                let visible = block.visible_columns(i);
                let of_seen = match block.has_global() {
                    true => {
                        block.hide(row, i, &visible, f32::NEG_INFINITY);
                        &mut *row
                    }
                    false => &mut row[visible.clone()],
                };
                log_sums[(from + i) * group + g] = softmax_in_place(of_seen);
                block.hide(row, i, &visible, 0.0);
                self.drop(&block, unit.kv_head * group + g, i, row);
            }
            let target = &mut output[from * group * dim + g * dim..];
            for (keys, column) in block.spans() {
                let from = unit.span.keys.start + keys.start;
                let values = sources.operands[2].head(unit.kv_head, from, keys.len());
                let p = Mat::strided(&scores[*column..], rows, keys.len(), block.keys);
                PRODUCT.add(target, group * dim, p, values);
            }
        }
        (output, log_sums)
    }

    /// Returns ∂Q `[T, group · dim]`, ∂K and ∂V `[T, dim]` of one unit, and ∂bias `[group, R]`.
    fn backward_unit(&self, saved: &[Dense], sources: &Sources<'_>, grad: &[f32], unit: Unit<'_>) -> [Vec<f32>; 4] {
        let Sources { operands, bias } = sources;
        let [.., output, log_sums] = saved else { unreachable!("output and log-sums are saved last") };
        let (output, log_sums) = (output.values(), log_sums.values());
        let (dim, group, heads, start) =
            (self.shape.head_dim, self.shape.group(), self.shape.heads, unit.span.keys.start);
        let grad_operand = Operand { values: grad, stride: heads * dim, offset: 0, dim };
        let mut grad_q = vec![0.0f32; unit.span.queries() * group * dim];
        let mut grad_k = vec![0.0f32; unit.keys() * dim];
        let mut grad_v = vec![0.0f32; unit.keys() * dim];
        let distances = bias.as_ref().map_or(0, DistanceBias::distances);
        let mut grad_bias = vec![0.0f32; group * distances];
        let mut probabilities = vec![0.0f32; unit.block_size()];
        let mut grad_scores = probabilities.clone();
        for (g, block) in unit.blocks(group) {
            let (rows, [row, from], head) = (block.queries.len(), block.first_query(), unit.kv_head * group + g);
            let p = &mut probabilities[..rows * block.keys];
            let ds = &mut grad_scores[..rows * block.keys];
            self.scores(sources, unit, head, &block, p);
            let grad_rows = grad_operand.head(head, row, rows);
            for (keys, column) in block.spans() {
                let values = operands[2].head(unit.kv_head, start + keys.start, keys.len());
                PRODUCT.store(&mut ds[*column..], block.keys, grad_rows, values.t());
            }
            for (i, (p, ds)) in p.chunks_exact_mut(block.keys).zip(ds.chunks_exact_mut(block.keys)).enumerate() {
                let at = ((row + i) * heads + head) * dim;
                let d = dot(&grad[at..at + dim], &output[at..at + dim]);
                let (visible, log_sum) = (block.visible_columns(i), log_sums[(row + i) * heads + head]);
                let of_seen = if block.has_global() { 0..block.keys } else { visible.clone() };
                self.drop(&block, head, i, ds);
                let (of_p, of_ds) = (&mut p[of_seen.clone()], &mut ds[of_seen]);
                match self.shape.cap {
                    None => probabilities_and_gradient(of_p, of_ds, log_sum, d),
                    Some(cap) => capped_probabilities_and_gradient(of_p, of_ds, [log_sum, d], cap),
                }
                block.hide(p, i, &visible, 0.0);
                block.hide(ds, i, &visible, 0.0);
                self.drop(&block, head, i, p);
                if let Some(bias) = bias {
                    let (position, (near, global)) = (block.position(i), ds.split_at(block.near));
                    let grad_bias = &mut grad_bias[g * distances..][..distances];
                    add(&mut grad_bias[bias.range(position, &block.key_positions(&visible))], &near[visible]);
                    for (ds, &key) in global.iter().zip(block.global(i)) {
                        grad_bias[bias.range(position, &(key..key + 1)).start] += ds;
                    }
                }
            }
            let scaled = PRODUCT.scaled(self.shape.scale);
            let queries = operands[0].head(head, row, rows);
            for (keys, column) in block.spans() {
                let keys_view = operands[1].head(unit.kv_head, start + keys.start, keys.len());
                let p = Mat::strided(&p[*column..], rows, keys.len(), block.keys);
                let ds = Mat::strided(&ds[*column..], rows, keys.len(), block.keys);
                PRODUCT.add(&mut grad_v[keys.start * dim..], dim, p.t(), grad_rows);
                scaled.add(&mut grad_q[(from * group + g) * dim..], group * dim, ds, keys_view);
                scaled.add(&mut grad_k[keys.start * dim..], dim, ds.t(), queries);
            }
        }
        [grad_q, grad_k, grad_v, self.by_bucket(&grad_bias, distances)]
    }

    /// Converts the gradient of a group's bias by distance to one by bucket, `[group, R]`.
    fn by_bucket(&self, grad_bias: &[f32], distances: usize) -> Vec<f32> {
        let Some(buckets) = &self.buckets else { return Vec::new() };
        let mut grad_gr = vec![0.0f32; self.shape.group() * buckets.buckets()];
        let heads = grad_gr.chunks_exact_mut(buckets.buckets().max(1)).zip(grad_bias.chunks_exact(distances.max(1)));
        heads.for_each(|(grad_r, by_distance)| buckets.collect(grad_r, by_distance));
        grad_gr
    }

    /// Gradient of the bias, summed over the units in order.
    fn grad_bias(&self, units: &[Unit<'_>], blocks: &[[Vec<f32>; 4]]) -> Option<Dense> {
        let buckets = self.buckets.as_ref()?.buckets();
        let mut grad_hr = vec![0.0f32; self.shape.heads * buckets];
        for (unit, [.., of_group]) in units.iter().zip(blocks) {
            add(&mut grad_hr[unit.kv_head * of_group.len()..], of_group);
        }
        Some(Dense::new(grad_hr, &[self.shape.heads, buckets]))
    }
}

simd! {
    /// Converts scores to probabilities, and the gradient of the probabilities to that of the scores.
    pub(crate) fn probabilities_and_gradient(p: &mut [f32], ds: &mut [f32], log_sum: f32, d: f32) {
        for (p, ds) in p.iter_mut().zip(ds) {
            *p = exp(*p - log_sum);
            *ds = *p * (*ds - d);
        }
    }

    /// Like the function above, for capped scores; gives the gradient of the scores before the cap.
    fn capped_probabilities_and_gradient(p: &mut [f32], ds: &mut [f32], numbers: [f32; 2], cap: f32) {
        let [log_sum, d] = numbers;
        let inverse = 1.0 / cap;
        for (p, ds) in p.iter_mut().zip(ds) {
            let slope = slope(*p, inverse);
            *p = exp(*p - log_sum);
            *ds = *p * (*ds - d) * slope;
        }
    }
}

impl Op for Attention {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let sources = self.sources(inputs);
        let (n, heads, group) = (self.spans.queries, self.shape.heads, self.shape.group());
        let units = self.units();
        let blocks: Vec<_> = units.par_iter().map(|&unit| self.forward_unit(&sources, unit)).collect();
        let (width, total) = (group * self.shape.head_dim, heads * self.shape.head_dim);
        let rows = pieces(&units, KeySpan::query_rows);
        let outputs = blocks.iter().map(|(output, _)| &output[..]).collect();
        let output = side_by_side(&rows, n, total, &[Blocks { offset: 0, width, of_units: outputs }]);
        let log_sums = blocks.iter().map(|(_, log_sums)| &log_sums[..]).collect();
        let log_sums = side_by_side(&rows, n, heads, &[Blocks { offset: 0, width: group, of_units: log_sums }]);
        let mut saved = inputs.to_vec();
        saved.extend([output.clone(), log_sums]);
        (output, saved)
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        let (dim, totals) = (self.shape.head_dim, self.shape.widths());
        let (inputs, units) = (&saved[..saved.len() - 2], self.units());
        let sources = self.sources(inputs);
        let blocks: Vec<_> =
            units.par_iter().map(|&unit| self.backward_unit(saved, &sources, grad.values(), unit)).collect();
        let grad_bias = self.grad_bias(&units, &blocks);
        let widths = [self.shape.group() * dim, dim, dim];
        let of = |i: usize, offset| Blocks {
            offset,
            width: widths[i],
            of_units: blocks.iter().map(|block| &block[i][..]).collect(),
        };
        let queries = (pieces(&units, KeySpan::query_rows), self.spans.queries);
        // One gradient with all side by side, or three, as in the inputs.
        let gradients = match inputs.len() - usize::from(self.buckets.is_some()) {
            1 => {
                let all = [of(0, 0), of(1, totals[0]), of(2, totals[0] + totals[1])];
                vec![side_by_side(&queries.0, queries.1, totals.iter().sum(), &all)]
            }
            _ => {
                let keys = (pieces(&units, |span| [(span.keys.clone(), 0)]), self.spans.keys);
                let side = |i: usize, (rows, n): &(Vec<Piece>, usize)| side_by_side(rows, *n, totals[i], &[of(i, 0)]);
                vec![side(0, &queries), side(1, &keys), side(2, &keys)]
            }
        };
        gradients.into_iter().map(Some).chain(grad_bias.map(Some)).collect()
    }
}
