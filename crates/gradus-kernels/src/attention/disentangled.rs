//! Attention whose scores also compare contents with distances, as in DeBERTa.
//!
//! `S_ij = α (qᵢ·kⱼ + qᵢ·K[b(j − i)] + kⱼ·Q[b(j − i)])`, where the tables K and Q hold a key and a query for each bucket b of
//! distances. Backward: each ∂S also goes to `∂c[i, b] = Σⱼ ∂S_ij` and `∂p[j, b] = Σᵢ ∂S_ij` over the pairs of bucket b;
//! `∂Q` gains `α ∂c K`, `∂K[b]` is `α ∂cᵀ Q`, and likewise for the other side.
//! He et al. 2020, section 3.1, <https://arxiv.org/abs/2006.03654>.

use std::ops::Range;

use burn::tensor::{Int, Tensor, activation};
use rayon::prelude::*;

use super::bias::{PositionBuckets, add};
use super::kernel::probabilities_and_gradient;
use super::{AttentionDropout, AttentionExtras, AttentionShape, Mask, within};
use crate::fused::{Dense, Op, apply, is_cpu};
use crate::matmul::matmul;
use crate::product::{Mat, Precision, Product};
use crate::segments::Segments;
use crate::simd::{dot, softmax_in_place};

/// Scores decide between tokens, so they stay in f32.
const PRODUCT: Product = Product::single(Precision::F32);

/// Queries per block.
const BLOCK: usize = 64;

/// A key and a query for each bucket of distances.
#[derive(Debug, Clone)]
pub struct Relative {
    /// Keys that queries are compared with, `[R, H · head_dim]`; carries gradient.
    pub key_rd: Option<Tensor<2>>,
    /// Queries that keys are compared with, `[R, H · head_dim]`; carries gradient.
    pub query_rd: Option<Tensor<2>>,
    /// Assigns each pair of query and key to a bucket.
    pub buckets: PositionBuckets,
}

/// [`attention`](super::attention) within whole sequences without a mask, whose scores also compare contents with distances.
///
/// Queries, keys and values are `[N, H · head_dim]` and carry gradient. Without `relative` this is plain attention.
///
/// # Panics
/// If the shapes do not fit each other, the segments do not cover the tokens or share prefixes, or the shape has a mask or groups of query
/// heads.
pub fn attention_disentangled(
    qkv: [Tensor<2>; 3],
    relative: Option<Relative>,
    dropout: Option<AttentionDropout>,
    segments: &Segments,
    shape: AttentionShape,
) -> Tensor<2> {
    let Some(relative) = relative else {
        return within(qkv, AttentionExtras { bias: None, dropout }, segments, shape);
    };
    let [q, _, _] = shape.widths();
    assert_eq!(
        (shape.mask, shape.kv_heads),
        (Mask::Bidirectional, shape.heads),
        "whole sequences, one key head a query head"
    );
    qkv.iter().for_each(|x| assert_eq!(x.dims(), [segments.tokens(), q], "queries, keys and values of the tokens"));
    for table in [&relative.key_rd, &relative.query_rd].into_iter().flatten() {
        assert_eq!(table.dims(), [relative.buckets.buckets(), q], "one row a bucket");
    }
    let sequences: Vec<Range<usize>> = segments
        .iter()
        .map(|segment| {
            assert!(segment.prefix.is_empty(), "distances are those within whole sequences");
            segment.tokens
        })
        .collect();
    if !is_cpu(&qkv[0].device()) {
        return reference(qkv, &relative, dropout, &sequences, shape);
    }
    let tables = [relative.key_rd, relative.query_rd];
    let has = tables.each_ref().map(Option::is_some);
    // Both tables form one input, one below the other.
    let tables: Vec<Tensor<2>> = tables.into_iter().flatten().collect();
    let table = (!tables.is_empty()).then(|| Tensor::cat(tables, 0));
    let inputs = qkv.into_iter().chain(table).map(Tensor::into_dispatch).collect();
    let dropout = dropout.filter(|dropout| dropout.probability > 0.0);
    apply(Disentangled { sequences, shape, buckets: relative.buckets, has, dropout }, inputs)
}

/// The definition, in plain tensors.
fn reference(
    [q_nd, k_nd, v_nd]: [Tensor<2>; 3],
    relative: &Relative,
    dropout: Option<AttentionDropout>,
    sequences: &[Range<usize>],
    shape: AttentionShape,
) -> Tensor<2> {
    let (h, dim, device) = (shape.heads, shape.head_dim, q_nd.device());
    // [rows, H · head_dim] → [H, rows, head_dim].
    let heads = |x: Tensor<2>| {
        let rows = x.dims()[0];
        x.reshape([rows, h, dim]).swap_dims(0, 1)
    };
    let outputs = sequences.iter().filter(|tokens| !tokens.is_empty()).map(|tokens| {
        let t = tokens.len();
        let rows = |x: &Tensor<2>| heads(x.clone().narrow(0, tokens.start, t));
        let [q, k, v] = [&q_nd, &k_nd, &v_nd].map(rows);
        let positions = Tensor::<1, Int>::arange(0..t as i64, &device);
        let keys = positions.clone().reshape([1, t]).expand([t, t]);
        let buckets = relative.buckets.of_distances(keys - positions.reshape([t, 1]).expand([t, t]));
        let places = |buckets: Tensor<2, Int>| buckets.unsqueeze::<3>().expand([h, t, t]);
        let mut scores = matmul(q.clone(), k.clone().swap_dims(1, 2));
        if let Some(table) = &relative.key_rd {
            let compared = matmul(q, heads(table.clone()).swap_dims(1, 2));
            scores = scores + compared.gather(2, places(buckets.clone()));
        }
        if let Some(table) = &relative.query_rd {
            let compared = matmul(k, heads(table.clone()).swap_dims(1, 2));
            scores = scores + compared.gather(2, places(buckets.transpose())).swap_dims(1, 2);
        }
        let p = activation::softmax(scores * shape.scale, 2);
        let p = match dropout {
            None => p,
            Some(dropout) => p * dropout.mask(h, tokens, t, &device),
        };
        matmul(p, v).swap_dims(0, 1).reshape([t, h * dim])
    });
    Tensor::cat(outputs.collect(), 0)
}

#[derive(Debug)]
struct Disentangled {
    sequences: Vec<Range<usize>>,
    shape: AttentionShape,
    buckets: PositionBuckets,
    /// Which of the two tables are present.
    has: [bool; 2],
    dropout: Option<AttentionDropout>,
}

/// One sequence and one head: the unit of parallel work.
struct Unit<'a> {
    tokens: Range<usize>,
    head: usize,
    /// Queries, keys and values of the sequence, and the tables; `[rows, head_dim]` each.
    operands: [Mat<'a>; 3],
    tables: [Option<Mat<'a>>; 2],
    /// Buckets of the distances 1 − T to T − 1.
    buckets: &'a [usize],
    /// `α kⱼ·Q[b]`, `[T, R]`.
    compared: Vec<f32>,
}

impl Unit<'_> {
    fn length(&self) -> usize {
        self.tokens.len()
    }

    /// Buckets of query `i` and all keys.
    fn of_query(&self, i: usize) -> &[usize] {
        &self.buckets[self.length() - 1 - i..][..self.length()]
    }

    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let n = self.length();
        (0..n).step_by(BLOCK).map(move |from| from..(from + BLOCK).min(n))
    }
}

impl Disentangled {
    /// Row-major matrix of one head of `x`, restricted to `rows`.
    fn head<'a>(&self, x: &'a Dense, rows: &Range<usize>, head: usize) -> Mat<'a> {
        let (stride, dim) = (self.shape.heads * self.shape.head_dim, self.shape.head_dim);
        Mat::strided(&x.values()[rows.start * stride + head * dim..], rows.len(), dim, stride)
    }

    /// Row range of each table in the input that holds both.
    fn tables(&self) -> [Option<Range<usize>>; 2] {
        let ([c2p, p2c], rows) = (self.has, self.buckets.buckets());
        let first = if c2p { rows } else { 0 };
        [c2p.then_some(0..rows), p2c.then_some(first..first + rows)]
    }

    /// All units: sequences in order, and the heads of each in order.
    fn units<'a>(&self, inputs: &'a [Dense], buckets: &'a [Vec<usize>]) -> Vec<Unit<'a>> {
        let tables = self.tables().map(|rows| rows.map(|rows| (&inputs[3], rows)));
        let of_sequence = |(tokens, buckets): (&Range<usize>, &'a Vec<usize>)| {
            let (tokens, tables) = (tokens.clone(), tables.clone());
            (0..self.shape.heads)
                .map(|head| Unit {
                    operands: std::array::from_fn(|i| self.head(&inputs[i], &tokens, head)),
                    tables: tables.each_ref().map(|table| table.as_ref().map(|(x, rows)| self.head(x, rows, head))),
                    tokens: tokens.clone(),
                    head,
                    buckets,
                    compared: Vec::new(),
                })
                .collect::<Vec<_>>()
        };
        let filled = self.sequences.iter().zip(buckets).filter(|(tokens, _)| !tokens.is_empty());
        filled.flat_map(of_sequence).collect()
    }

    /// Buckets of the distances within each sequence.
    fn distances(&self) -> Vec<Vec<usize>> {
        self.sequences.iter().map(|tokens| self.buckets.distances(tokens.len()).collect()).collect()
    }

    /// Compares keys with distances. All blocks of the unit read the result.
    fn compare(&self, unit: &mut Unit<'_>) {
        if let Some(table) = unit.tables[1] {
            let rows = self.buckets.buckets();
            unit.compared = vec![0.0; unit.length() * rows];
            PRODUCT.scaled(self.shape.scale).store(&mut unit.compared, rows, unit.operands[1], table.t());
        }
    }

    /// Computes the scores of a block of queries, `[queries, T]`. `contents` is scratch space for `[queries, R]`.
    fn scores(&self, unit: &Unit<'_>, block: &Range<usize>, contents: &mut [f32], scores: &mut [f32]) {
        let (scaled, n, rows) = (PRODUCT.scaled(self.shape.scale), unit.length(), self.buckets.buckets());
        let queries = unit.operands[0].rows(block.clone());
        scaled.store(scores, n, queries, unit.operands[1].t());
        if let Some(table) = unit.tables[0] {
            scaled.store(contents, rows, queries, table.t());
            for (i, row) in scores.chunks_exact_mut(n).enumerate() {
                let of_query = &contents[i * rows..][..rows];
                row.iter_mut().zip(unit.of_query(block.start + i)).for_each(|(score, &b)| *score += of_query[b]);
            }
        }
        if unit.tables[1].is_some() {
            for (i, row) in scores.chunks_exact_mut(n).enumerate() {
                let keys = unit.compared.chunks_exact(rows).zip(unit.of_query(block.start + i));
                row.iter_mut().zip(keys).for_each(|(score, (of_key, &b))| *score += of_key[b]);
            }
        }
    }

    fn drop(&self, unit: &Unit<'_>, query: usize, row: &mut [f32]) {
        if let Some(dropout) = self.dropout {
            dropout.apply(unit.head, unit.tokens.start + query, 0, row);
        }
    }

    /// Scratch space for a block's scores and for its comparisons with distances.
    fn room(&self, unit: &Unit<'_>) -> [Vec<f32>; 2] {
        let queries = unit.length().min(BLOCK);
        let rows = if unit.tables[0].is_some() { self.buckets.buckets() } else { 0 };
        [vec![0.0; queries * unit.length()], vec![0.0; queries * rows]]
    }

    /// Returns the output `[T, head_dim]`, and for every query the logarithm of the sum of its exponentials.
    fn forward_unit(&self, unit: &mut Unit<'_>) -> (Vec<f32>, Vec<f32>) {
        let (n, dim) = (unit.length(), self.shape.head_dim);
        self.compare(unit);
        let [mut room, mut contents] = self.room(unit);
        let (mut output, mut log_sums) = (vec![0.0; n * dim], Vec::with_capacity(n));
        for block in unit.blocks() {
            let scores = &mut room[..block.len() * n];
            self.scores(unit, &block, &mut contents, scores);
            for (i, row) in scores.chunks_exact_mut(n).enumerate() {
                log_sums.push(softmax_in_place(row));
                self.drop(unit, block.start + i, row);
            }
            let p = Mat::strided(scores, block.len(), n, n);
            PRODUCT.store(&mut output[block.start * dim..], dim, p, unit.operands[2]);
        }
        (output, log_sums)
    }

    /// Returns the gradients of queries, keys and values, `[T, head_dim]`, and of the tables, `[R, head_dim]`.
    fn backward_unit(&self, saved: &[Dense], grad: &Dense, unit: &mut Unit<'_>) -> [Vec<f32>; 5] {
        let [.., output, log_sums] = saved else { unreachable!("output and log-sums are saved last") };
        let (n, dim, rows, heads) = (unit.length(), self.shape.head_dim, self.buckets.buckets(), self.shape.heads);
        let scaled = PRODUCT.scaled(self.shape.scale);
        self.compare(unit);
        let [mut probabilities, mut contents] = self.room(unit);
        let mut grad_scores = probabilities.clone();
        let [mut grad_q, mut grad_k, mut grad_v] = [0, 1, 2].map(|_| vec![0.0f32; n * dim]);
        let [mut grad_key, mut grad_query] = unit.tables.map(|table| vec![0.0f32; table.map_or(0, |_| rows * dim)]);
        let mut grad_compared = vec![0.0f32; unit.compared.len()];
        let grads = self.head(grad, &unit.tokens, unit.head);
        for block in unit.blocks() {
            let (p, ds) = (&mut probabilities[..block.len() * n], &mut grad_scores[..block.len() * n]);
            self.scores(unit, &block, &mut contents, p);
            PRODUCT.store(ds, n, grads.rows(block.clone()), unit.operands[2].t());
            for (i, (p, ds)) in p.chunks_exact_mut(n).zip(ds.chunks_exact_mut(n)).enumerate() {
                let (query, token) = (block.start + i, unit.tokens.start + block.start + i);
                let at = (token * heads + unit.head) * dim;
                let d = dot(&grad.values()[at..at + dim], &output.values()[at..at + dim]);
                self.drop(unit, query, ds);
                probabilities_and_gradient(p, ds, log_sums.values()[token * heads + unit.head], d);
                self.drop(unit, query, p);
            }
            let [p, of_scores] = [&*p, &*ds].map(|values| Mat::strided(values, block.len(), n, n));
            let queries = unit.operands[0].rows(block.clone());
            PRODUCT.add(&mut grad_v, dim, p.t(), grads.rows(block.clone()));
            scaled.add(&mut grad_q[block.start * dim..], dim, of_scores, unit.operands[1]);
            scaled.add(&mut grad_k, dim, of_scores.t(), queries);
            if let Some(table) = unit.tables[0] {
                let of_contents = &mut contents[..block.len() * rows];
                of_contents.fill(0.0);
                for (i, (to, ds)) in of_contents.chunks_exact_mut(rows).zip(ds.chunks_exact(n)).enumerate() {
                    ds.iter().zip(unit.of_query(block.start + i)).for_each(|(ds, &b)| to[b] += ds);
                }
                let of_contents = Mat::strided(of_contents, block.len(), rows, rows);
                scaled.add(&mut grad_q[block.start * dim..], dim, of_contents, table);
                scaled.add(&mut grad_key, dim, of_contents.t(), queries);
            }
            if unit.tables[1].is_some() {
                for (i, ds) in ds.chunks_exact(n).enumerate() {
                    let of_keys = grad_compared.chunks_exact_mut(rows).zip(unit.of_query(block.start + i));
                    ds.iter().zip(of_keys).for_each(|(ds, (to, &b))| to[b] += ds);
                }
            }
        }
        if let Some(table) = unit.tables[1] {
            let of_compared = Mat::strided(&grad_compared, n, rows, rows);
            scaled.add(&mut grad_k, dim, of_compared, table);
            scaled.add(&mut grad_query, dim, of_compared.t(), unit.operands[1]);
        }
        [grad_q, grad_k, grad_v, grad_key, grad_query]
    }

    /// Collects the units' results, `[T, width]` each, side by side in one tensor.
    fn gathered<'a>(&self, units: &[Unit<'_>], parts: impl Iterator<Item = &'a Vec<f32>>, width: usize) -> Dense {
        let (n, stride) = (self.sequences.last().map_or(0, |last| last.end), self.shape.heads * width);
        let mut values = vec![0.0; n * stride];
        for (unit, part) in units.iter().zip(parts) {
            for (t, row) in part.chunks_exact(width).enumerate() {
                let at = (unit.tokens.start + t) * stride + unit.head * width;
                values[at..at + width].copy_from_slice(row);
            }
        }
        Dense::new(values, &[n, stride])
    }

    /// Gradient of both tables: the sums over the units, in their order.
    fn of_tables(&self, units: &[Unit<'_>], made: &[[Vec<f32>; 5]]) -> Option<Dense> {
        let (dim, stride) = (self.shape.head_dim, self.shape.heads * self.shape.head_dim);
        let tables = self.tables();
        let rows = tables.iter().flatten().map(|rows| rows.end).max()?;
        let mut values = vec![0.0; rows * stride];
        for (i, rows) in tables.into_iter().enumerate() {
            let Some(rows) = rows else { continue };
            let table = &mut values[rows.start * stride..rows.end * stride];
            for (unit, parts) in units.iter().zip(made) {
                for (row, part) in table.chunks_exact_mut(stride).zip(parts[3 + i].chunks_exact(dim)) {
                    add(&mut row[unit.head * dim..][..dim], part);
                }
            }
        }
        Some(Dense::new(values, &[rows, stride]))
    }
}

impl Op for Disentangled {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let buckets = self.distances();
        let mut units = self.units(inputs, &buckets);
        let made: Vec<_> = units.par_iter_mut().map(|unit| self.forward_unit(unit)).collect();
        let output = self.gathered(&units, made.iter().map(|(output, _)| output), self.shape.head_dim);
        let log_sums = self.gathered(&units, made.iter().map(|(_, log_sums)| log_sums), 1);
        let mut saved = inputs.to_vec();
        saved.extend([output.clone(), log_sums]);
        (output, saved)
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        let buckets = self.distances();
        let mut units = self.units(&saved[..saved.len() - 2], &buckets);
        let made: Vec<_> = units.par_iter_mut().map(|unit| self.backward_unit(saved, grad, unit)).collect();
        let part = |i: usize| made.iter().map(move |parts| &parts[i]);
        let of_tokens = (0..3).map(|i| self.gathered(&units, part(i), self.shape.head_dim));
        of_tokens.chain(self.of_tables(&units, &made)).map(Some).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{check, leaf};

    fn shape() -> AttentionShape {
        AttentionShape {
            heads: 2,
            kv_heads: 2,
            head_dim: 3,
            scale: 0.4,
            mask: Mask::Bidirectional,
            cap: None,
            precision: Precision::F32,
        }
    }

    #[test]
    fn agrees_with_the_reference() {
        // A sequence of several blocks, one shorter than the buckets reach, and one token.
        let segments = Segments::sequences([70, 5, 1]);
        let (n, buckets) = (segments.tokens(), PositionBuckets::deberta(Some(6), 20));
        let rows = buckets.buckets();
        for (c2p, p2c) in [(true, true), (true, false), (false, true)] {
            for dropout in [None, Some(AttentionDropout { probability: 0.3, key: 11 })] {
                let tables = [c2p, p2c].into_iter().filter(|has| *has).map(|_| [rows, 6]);
                let shapes: Vec<[usize; 2]> = std::iter::repeat_n([n, 6], 3).chain(tables).collect();
                let run = |x: &[Tensor<2>], with: &dyn Fn([Tensor<2>; 3], Relative) -> Tensor<2>| {
                    let mut tables = x[3..].iter().cloned();
                    let key_rd = c2p.then(|| tables.next().expect("a table"));
                    let query_rd = p2c.then(|| tables.next().expect("a table"));
                    let qkv = std::array::from_fn(|i| x[i].clone());
                    with(qkv, Relative { key_rd, query_rd, buckets: buckets.clone() })
                };
                let sequences: Vec<Range<usize>> = segments.iter().map(|segment| segment.tokens).collect();
                let inputs: Vec<Tensor<2>> = shapes.iter().zip(1..).map(|(&shape, seed)| leaf(shape, seed)).collect();
                check(
                    &format!("{c2p} {p2c} {dropout:?}"),
                    &inputs,
                    |x| {
                        run(x, &|qkv, relative| {
                            attention_disentangled(qkv, Some(relative), dropout, &segments, shape())
                        })
                    },
                    |x| run(x, &|qkv, relative| reference(qkv, &relative, dropout, &sequences, shape())),
                    2e-5,
                );
            }
        }
    }

    #[test]
    fn buckets_are_debertas() {
        // Six buckets per side: distances up to 3 have one each; larger ones are in ⌈ln(d/3) / ln(19/3) · 2⌉ + 3.
        let buckets = PositionBuckets::deberta(Some(6), 20);
        assert_eq!(buckets.buckets(), 12);
        let found: Vec<usize> = [0, 1, 3, 4, 7, 8, 19, 20, 99].map(|query| buckets.bucket(query, 0)).to_vec();
        assert_eq!(found, [6, 7, 9, 10, 10, 11, 11, 11, 11]);
        let found: Vec<usize> = [1, 3, 4, 8, 19, 20, 99].map(|key| buckets.bucket(0, key)).to_vec();
        assert_eq!(found, [5, 3, 2, 1, 1, 0, 0]);
        let each = PositionBuckets::deberta(None, 4);
        assert_eq!([0, 3, 4, 9].map(|query| each.bucket(query, 0)), [4, 7, 7, 7]);
        assert_eq!([4, 5, 9].map(|key| each.bucket(0, key)), [0, 0, 0]);
    }
}
