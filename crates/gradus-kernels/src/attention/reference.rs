//! The definition of attention in plain tensors, one sequence at a time, on any device.

use std::ops::Range;

use burn::tensor::{Bool, Device, Int, Tensor, TensorData, activation};

use super::sequence::Sequence;
use super::{AttentionDropout, AttentionExtras, AttentionShape, Mask, PositionBias};
use crate::matmul::matmul;
use crate::segments::{CrossSegments, Segments};
use crate::softcap;

/// [`attention`](super::attention) in plain tensors.
pub fn attention(
    q_nd: Tensor<2>,
    k_nd: Tensor<2>,
    v_nd: Tensor<2>,
    segments: &Segments,
    shape: AttentionShape,
) -> Tensor<2> {
    biased(q_nd, k_nd, v_nd, None, segments, shape)
}

/// [`attention_dropping`](super::attention_dropping) in plain tensors.
#[cfg(test)]
pub fn dropping(
    q_nd: Tensor<2>,
    k_nd: Tensor<2>,
    v_nd: Tensor<2>,
    dropout: Option<AttentionDropout>,
    segments: &Segments,
    shape: AttentionShape,
) -> Tensor<2> {
    with([q_nd, k_nd, v_nd], None, dropout, within(segments), shape)
}

/// [`attention_biased`](super::attention_biased) in plain tensors.
pub fn biased(
    q_nd: Tensor<2>,
    k_nd: Tensor<2>,
    v_nd: Tensor<2>,
    bias: Option<&PositionBias>,
    segments: &Segments,
    shape: AttentionShape,
) -> Tensor<2> {
    of_sequences([q_nd, k_nd, v_nd], bias, within(segments), shape)
}

/// [`attention_with`](super::attention_with) in plain tensors.
pub fn within_with(
    qkv: [Tensor<2>; 3],
    extras: &AttentionExtras,
    segments: &Segments,
    shape: AttentionShape,
) -> Tensor<2> {
    with(qkv, extras.bias.as_ref(), extras.dropout, within(segments), shape)
}

/// Each segment together with its prefix.
fn within(segments: &Segments) -> impl Iterator<Item = Sequence> {
    segments.iter().map(|segment| {
        let (prefix, own) = (segments.global(&segment.prefix), segments.global(&segment.tokens));
        let before = prefix.iter().map(|token| token - segment.prefix.start);
        let own = own.iter().map(|token| segment.prefix.len() + token - segment.tokens.start);
        Sequence {
            position: segment.prefix.len(),
            global: before.chain(own).collect(),
            queries: segment.tokens.clone(),
            keys: vec![segment.prefix, segment.tokens],
        }
    })
}

/// [`attention_across`](super::attention_across) in plain tensors.
pub fn across(
    q_nd: Tensor<2>,
    k_md: Tensor<2>,
    v_md: Tensor<2>,
    bias: Option<&PositionBias>,
    cross: &CrossSegments,
    shape: AttentionShape,
) -> Tensor<2> {
    of_sequences([q_nd, k_md, v_md], bias, of_trees(cross), shape)
}

/// [`attention_across_with`](super::attention_across_with) in plain tensors.
pub fn across_with(
    qkv: [Tensor<2>; 3],
    extras: &AttentionExtras,
    cross: &CrossSegments,
    shape: AttentionShape,
) -> Tensor<2> {
    with(qkv, extras.bias.as_ref(), extras.dropout, of_trees(cross), shape)
}

/// Each segment together with the source that its tree reads.
fn of_trees(cross: &CrossSegments) -> impl Iterator<Item = Sequence> {
    cross.trees().flat_map(|(tree, source)| {
        tree.segments(tree.start).map(move |segment| Sequence {
            position: segment.prefix.len(),
            queries: segment.tokens,
            keys: vec![source.clone()],
            global: Vec::new(),
        })
    })
}

/// Attention output of all sequences, one sequence after the other.
pub(crate) fn of_sequences(
    qkv: [Tensor<2>; 3],
    bias: Option<&PositionBias>,
    sequences: impl Iterator<Item = Sequence>,
    shape: AttentionShape,
) -> Tensor<2> {
    with(qkv, bias, None, sequences, shape)
}

fn with(
    [q_nd, k_md, v_md]: [Tensor<2>; 3],
    bias: Option<&PositionBias>,
    dropout: Option<AttentionDropout>,
    sequences: impl Iterator<Item = Sequence>,
    shape: AttentionShape,
) -> Tensor<2> {
    let AttentionShape { heads: h, kv_heads: kv, head_dim: dim, .. } = shape;
    if q_nd.dims()[0] == 0 {
        return q_nd;
    }
    let device = q_nd.device();
    let outputs = sequences.filter(|sequence| !sequence.queries.is_empty()).map(|sequence| {
        let (t, seen) = (sequence.queries.len(), sequence.keys.iter().map(Range::len).sum::<usize>());
        if seen == 0 {
            return Tensor::zeros([t, h * dim], &device);
        }
        // [rows, heads · dim] → [H, rows, dim]; key and value heads are repeated for their group.
        let split = |x: Tensor<2>, heads: usize| {
            let rows = x.dims()[0];
            x.reshape([rows, heads, 1, dim]).repeat_dim(2, h / heads).reshape([rows, h, dim]).swap_dims(0, 1)
        };
        let rows = |x: &Tensor<2>, range: &Range<usize>| x.clone().narrow(0, range.start, range.len());
        let keys = |x: &Tensor<2>| {
            let parts = sequence.keys.iter().filter(|range| !range.is_empty()).map(|range| rows(x, range));
            Tensor::cat(parts.collect(), 0)
        };
        let (q, k, v) = (split(rows(&q_nd, &sequence.queries), h), split(keys(&k_md), kv), split(keys(&v_md), kv));
        let mut scores = matmul(q, k.swap_dims(1, 2)) * shape.scale;
        if let Some(cap) = shape.cap {
            scores = softcap::reference(scores, cap);
        }
        let distances = sequence.distances(t, seen, &device);
        if let Some(PositionBias { weight_hr, buckets }) = bias {
            let of_pairs = buckets.of_distances(distances.clone()).reshape([t * seen]);
            scores = scores + weight_hr.clone().select(1, of_pairs).reshape([h, t, seen]);
        }
        let hidden = sequence.hidden(distances, shape.mask).map(|hidden| hidden.unsqueeze::<3>().expand([h, t, seen]));
        let p = match hidden {
            None => activation::softmax(scores, 2),
            // A query that sees no key gets 0.
            Some(hidden) => activation::softmax(scores.mask_fill(hidden.clone(), f32::MIN), 2).mask_fill(hidden, 0.0),
        };
        let p = match dropout {
            None => p,
            Some(dropout) => p * dropout.mask(h, &sequence.queries, seen, &device),
        };
        matmul(p, v).swap_dims(0, 1).reshape([t, h * dim])
    });
    Tensor::cat(outputs.collect(), 0)
}

impl Sequence {
    /// `j − i` of every pair, `[T, seen]`.
    fn distances(&self, t: usize, seen: usize, device: &Device) -> Tensor<2, Int> {
        let (from, to) = (self.position as i64, (self.position + t) as i64);
        let queries = Tensor::<1, Int>::arange(from..to, device).reshape([t, 1]);
        Tensor::<1, Int>::arange(0..seen as i64, device).reshape([1, seen]).expand([t, seen])
            - queries.expand([t, seen])
    }

    /// Pairs that the mask hides, given their distances.
    fn hidden(&self, distances: Tensor<2, Int>, mask: Mask) -> Option<Tensor<2, Bool>> {
        let [t, seen] = distances.dims();
        let device = distances.device();
        let after = || distances.clone().greater_elem(0);
        let number = |window: usize| i32::try_from(window).unwrap_or(i32::MAX);
        let outside = match mask {
            Mask::Bidirectional => return None,
            Mask::Causal => return Some(after()),
            Mask::CausalWindow(window) => distances.clone().lower_equal_elem(-number(window.get())),
            Mask::BidirectionalWindow(distance) => distances.clone().abs().greater_elem(number(distance)),
        };
        let is_global = |positions: Range<usize>, shape: [usize; 2]| {
            let flags: Vec<bool> = positions.map(|position| self.global.contains(&position)).collect();
            Tensor::<2, Bool>::from_data(TensorData::new(flags, shape), &device).expand([t, seen])
        };
        let outside = match self.global.is_empty() {
            true => outside,
            false => {
                let queries = is_global(self.position..self.position + t, [t, 1]);
                outside.bool_and(queries.bool_or(is_global(0..seen, [1, seen])).bool_not())
            }
        };
        match mask.without_window() {
            Mask::Causal => Some(outside.bool_or(after())),
            _ => Some(outside),
        }
    }
}
