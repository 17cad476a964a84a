//! Scaled dot-product attention over packed sequences, limited to each sequence, with grouped queries.
//!
//! Within one sequence and head: `S = α Q Kᵀ`, masked; `P = softmax(S)` row by row; `O = P V`.
//! Backward, with `Lₜ = logsumexp(Sₜ)` kept from the forward pass and `Dₜ = Σ ∂Oₜ ∘ Oₜ`:
//! `P = exp(S − L)`, `∂V = Pᵀ ∂O`, `∂P = ∂O Vᵀ`, `∂S = P ∘ (∂P − D)`, `∂Q = α ∂S K`, `∂K = α ∂Sᵀ Q`.
//! A soft cap c replaces the scores by `S' = c tanh(S / c)`, and `∂S = ∂S' ∘ (1 − (S'/c)²)`.
//! A bias by distance ([`PositionBias`]) is added to S, and its gradient is gathered from ∂S.
//! Queries are processed in blocks, so no T × T matrix is ever in memory. A continuation attends to the keys of its root in place and adds
//! to their gradient. The same holds for all targets that read one source across two batches.
//! Dao et al. 2022, <https://arxiv.org/abs/2205.14135>, algorithms 1 and 4, without tiling over keys.

mod bias;
mod block;
mod disentangled;
mod dropout;
#[cfg(test)]
mod emulated;
mod extras;
mod kernel;
mod mask;
#[cfg(test)]
mod parity;
mod pieces;
pub(crate) mod reference;
pub(crate) mod sequence;
mod shape;
mod spans;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "gpu"))]
pub(crate) mod tiles;
mod unit;

use burn::tensor::{Device, Tensor};

pub(crate) use bias::{DistanceBias, add};
pub use bias::{PositionBias, PositionBuckets};
pub use disentangled::{Relative, attention_disentangled};
pub use dropout::AttentionDropout;
pub use extras::AttentionExtras;
use kernel::Attention;
pub use mask::Mask;
pub use shape::AttentionShape;
use spans::KeySpans;

use crate::embedding::embedding;
use crate::fused::{apply, is_cpu};
use crate::product::Precision;
use crate::segments::{CrossSegments, Segments};
#[cfg(feature = "gpu")]
use tiles::Batch;

/// Computes attention over packed sequences.
///
/// `q_nd` is `[N, H · head_dim]`, `k_nd` and `v_nd` are `[N, kv_heads · head_dim]`. `segments` defines which of the N tokens see each
/// other. The result is `[N, H · head_dim]`. All three tensors carry gradient.
///
/// # Panics
/// If the shapes do not fit each other or the segments do not cover the tokens.
pub fn attention(
    q_nd: Tensor<2>,
    k_nd: Tensor<2>,
    v_nd: Tensor<2>,
    segments: &Segments,
    shape: AttentionShape,
) -> Tensor<2> {
    within([q_nd, k_nd, v_nd], AttentionExtras::default(), segments, shape)
}

/// Precision in which attention of `shape`, without a bias, reads queries and keys on `device`: the precision to compute them in, as
/// [`Operands::result`](crate::Operands). It is f32 on the CPU, and without tensor cores for this shape.
///
/// The result of attention then is such an operand, too, so only linear layers may read it.
pub fn attention_operands(shape: &AttentionShape, device: &Device) -> Precision {
    #[cfg(feature = "gpu")]
    if let Some(gpu) = crate::fused::gpu(device) {
        return crate::gpu::attention::precision_of_operands(shape, &gpu);
    }
    let _ = (shape, device);
    Precision::F32
}

/// Computes [`attention`] with a bias, dropout, both or neither. Shapes are those of [`attention`]. The three tensors and the bias carry
/// gradient.
///
/// # Panics
/// As [`attention_biased`].
pub fn attention_with(
    q_nd: Tensor<2>,
    k_nd: Tensor<2>,
    v_nd: Tensor<2>,
    extras: AttentionExtras,
    segments: &Segments,
    shape: AttentionShape,
) -> Tensor<2> {
    within([q_nd, k_nd, v_nd], extras, segments, shape)
}

/// Computes [`attention`] with a learned bias of the scores by distance. Shapes are those of [`attention`]. The bias carries gradient
/// too.
///
/// # Panics
/// As [`attention`]; also if the bias is not one value per query head and bucket, or scores are capped as well.
pub fn attention_biased(
    q_nd: Tensor<2>,
    k_nd: Tensor<2>,
    v_nd: Tensor<2>,
    bias: PositionBias,
    segments: &Segments,
    shape: AttentionShape,
) -> Tensor<2> {
    within([q_nd, k_nd, v_nd], AttentionExtras { bias: Some(bias), dropout: None }, segments, shape)
}

/// Computes [`attention`] and drops some probabilities if `dropout` is given. Shapes are those of [`attention`], and all three tensors carry
/// gradient.
///
/// # Panics
/// As [`attention`].
pub fn attention_dropping(
    q_nd: Tensor<2>,
    k_nd: Tensor<2>,
    v_nd: Tensor<2>,
    dropout: Option<AttentionDropout>,
    segments: &Segments,
    shape: AttentionShape,
) -> Tensor<2> {
    within([q_nd, k_nd, v_nd], AttentionExtras { bias: None, dropout }, segments, shape)
}

/// Computes [`attention`] from one tensor that holds queries, keys and values side by side, as from GPT-2's projection.
///
/// `qkv_nd` is `[N, (H + 2 · kv_heads) · head_dim]`; it carries gradient and receives it in one piece. The result is `[N, H · head_dim]`.
///
/// # Panics
/// As [`attention`].
pub fn attention_fused(qkv_nd: Tensor<2>, segments: &Segments, shape: AttentionShape) -> Tensor<2> {
    attention_fused_dropping(qkv_nd, None, segments, shape)
}

/// Computes [`attention_fused`] and drops some probabilities if `dropout` is given. Shapes are the same, and `qkv_nd` carries gradient.
///
/// # Panics
/// As [`attention`].
pub fn attention_fused_dropping(
    qkv_nd: Tensor<2>,
    dropout: Option<AttentionDropout>,
    segments: &Segments,
    shape: AttentionShape,
) -> Tensor<2> {
    let [n, width] = qkv_nd.dims();
    let widths @ [q, kv, _] = shape.widths();
    assert_eq!(width, widths.iter().sum::<usize>(), "width of queries, keys and values");
    assert_eq!(segments.tokens(), n, "segments cover the tokens");
    let extras = AttentionExtras { bias: None, dropout };
    if is_cpu(&qkv_nd.device()) {
        return fused([qkv_nd], extras, segments, shape);
    }
    let part = |from, width| qkv_nd.clone().narrow(1, from, width);
    within([part(0, q), part(q, kv), part(q + kv, kv)], extras, segments, shape)
}

/// Attention of packed targets to packed sources. Each token of a tree of targets sees the source that the tree reads, under the mask for
/// its position in its own sequence. A query that sees no key gets 0.
///
/// `q_nd` is `[N, H · head_dim]`, `k_md` and `v_md` are `[M, kv_heads · head_dim]`. All three carry gradient, and so does the bias, if
/// given. The result is `[N, H · head_dim]`. Gradients of keys and values are summed over all their readers.
///
/// # Panics
/// If the shapes do not fit each other, or the segments do not cover the tokens.
pub fn attention_across(
    q_nd: Tensor<2>,
    k_md: Tensor<2>,
    v_md: Tensor<2>,
    bias: Option<PositionBias>,
    cross: &CrossSegments,
    shape: AttentionShape,
) -> Tensor<2> {
    attention_across_with(q_nd, k_md, v_md, AttentionExtras { bias, dropout: None }, cross, shape)
}

/// Computes [`attention_across`] with a bias, dropout, both or neither. Shapes are the same. The three tensors and the bias carry gradient.
///
/// # Panics
/// As [`attention_across`].
pub fn attention_across_with(
    q_nd: Tensor<2>,
    k_md: Tensor<2>,
    v_md: Tensor<2>,
    extras: AttentionExtras,
    cross: &CrossSegments,
    shape: AttentionShape,
) -> Tensor<2> {
    check([&q_nd, &k_md, &v_md], extras.bias.as_ref(), cross.tokens(), shape);
    let qkv = [q_nd, k_md, v_md];
    if is_cpu(&qkv[0].device()) {
        return run(KeySpans::across(cross, shape.mask), qkv, extras, shape);
    }
    #[cfg(feature = "gpu")]
    let qkv = match on_gpu(qkv, &extras, Some(Batch::Across(cross.clone())), shape) {
        Ok(attended) => return attended,
        Err(qkv) => qkv,
    };
    reference::across_with(qkv, &extras, cross, shape)
}

/// Computes attention with the kernel of a GPU. Returns the tensors unchanged if there is none for these settings, or no tables for the
/// batch.
#[cfg(feature = "gpu")]
#[expect(clippy::result_large_err, reason = "tensors are handed back as they came")]
fn on_gpu(
    qkv: [Tensor<2>; 3],
    extras: &AttentionExtras,
    batch: Option<Batch>,
    shape: AttentionShape,
) -> Result<Tensor<2>, [Tensor<2>; 3]> {
    match batch {
        Some(batch) => crate::gpu::attention::attention(qkv, extras, batch, shape),
        None => Err(qkv),
    }
}

fn within(qkv: [Tensor<2>; 3], extras: AttentionExtras, segments: &Segments, shape: AttentionShape) -> Tensor<2> {
    check(qkv.each_ref(), extras.bias.as_ref(), [segments.tokens(); 2], shape);
    if is_cpu(&qkv[0].device()) {
        return fused(qkv, extras, segments, shape);
    }
    #[cfg(feature = "gpu")]
    let batch = (!segments.has_global()).then(|| Batch::Within(segments.clone()));
    #[cfg(feature = "gpu")]
    let qkv = match on_gpu(qkv, &extras, batch, shape) {
        Ok(attended) => return attended,
        Err(qkv) => qkv,
    };
    reference::within_with(qkv, &extras, segments, shape)
}

/// Queries, keys and values are three tensors, or one with all side by side.
fn fused<const N: usize>(
    qkv: [Tensor<2>; N],
    extras: AttentionExtras,
    segments: &Segments,
    shape: AttentionShape,
) -> Tensor<2> {
    let is_windowed = shape.mask != shape.mask.without_window();
    if !is_windowed || segments.global(&(0..segments.tokens())).is_empty() {
        return run(KeySpans::within(segments, shape.mask), qkv, extras, shape);
    }
    let (spans, rows, places) = KeySpans::with_global(segments, shape.mask);
    let result = run(spans, qkv.map(|x| embedding(x, &rows)), extras, shape);
    embedding(result, &places)
}

fn run<const N: usize>(
    spans: KeySpans,
    qkv: [Tensor<2>; N],
    extras: AttentionExtras,
    shape: AttentionShape,
) -> Tensor<2> {
    let mut inputs: Vec<_> = qkv.into_iter().map(Tensor::into_dispatch).collect();
    let buckets = extras.bias.map(|bias| {
        inputs.push(bias.weight_hr.into_dispatch());
        bias.buckets
    });
    apply(Attention::new(spans, shape, buckets, extras.dropout), inputs)
}

fn check([q_nd, k_md, v_md]: [&Tensor<2>; 3], bias: Option<&PositionBias>, [n, m]: [usize; 2], shape: AttentionShape) {
    let [q, kv, _] = shape.widths();
    assert_eq!(q_nd.dims(), [n, q], "query shape: the segments' tokens and the width of all heads");
    assert_eq!(k_md.dims(), [m, kv], "key shape: the segments' tokens and the width of all heads");
    assert_eq!(v_md.dims(), k_md.dims(), "value shape");
    assert_eq!(shape.heads % shape.kv_heads, 0, "whole groups of query heads");
    assert!(shape.cap.is_none() || bias.is_none(), "scores are capped or biased, not both");
    if let Some(PositionBias { weight_hr, buckets }) = bias {
        assert_eq!(weight_hr.dims(), [shape.heads, buckets.buckets()], "shape of the bias");
    }
}
