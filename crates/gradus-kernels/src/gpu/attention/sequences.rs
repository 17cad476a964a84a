//! Attention over the rows of a cache, as in sampling.

use burn::backend::TensorMetadata;
#[cfg(feature = "cuda")]
use burn::tensor::DType;
use burn::tensor::Tensor;
use burn_cubecl::kernel::into_contiguous;

use super::bias::Biases;
use super::decode;
use super::forward::forward;
use super::tiling::Tiling;
use crate::attention::sequence::Sequence;
use crate::attention::tiles::QUERY_WORDS;
use crate::attention::{AttentionShape, PositionBias};
#[cfg(feature = "cuda")]
use crate::gpu::cuda::attention as cores;
use crate::gpu::dropout::Masks;
use crate::gpu::{Words, computes, cube_of, dims, empty, empty_f32, tensor_of};

/// Computes attention over keys and values in arbitrary rows, without gradient. `None` if there is no kernel.
///
/// A sequence may have at most two ranges of keys.
pub(crate) fn of_sequences(
    [q, k, v]: [&Tensor<2>; 3],
    bias: Option<&PositionBias>,
    sequences: impl Iterator<Item = Sequence>,
    shape: AttentionShape,
) -> Option<Tensor<2>> {
    /// Few queries use small tiles, because a tile computes all its rows even if they are empty.
    const FEW: usize = 8;
    let (gpu, dtype) = (crate::fused::gpu(&q.device())?, q.dtype());
    if q.dims()[0] == 0 || k.dims()[0] == 0 || !computes(&gpu, dtype) {
        return None;
    }
    let sequences: Vec<Sequence> = sequences.collect();
    let longest = sequences.iter().map(|sequence| sequence.queries.len()).max()?;
    // Steps of sampling have one query per sequence.
    let chunks = decode::Chunks::new(&shape, &gpu).filter(|_| longest == 1 && bias.is_none());
    let largest = Tiling::new(&shape, bias.is_some(), false, &gpu)?;
    let tiling = if longest <= FEW { Tiling { tile: FEW, each: 1, ..largest } } else { largest };
    // Rows of a tile.
    #[cfg(feature = "cuda")]
    let tile = if k.dtype() == DType::BF16 && chunks.is_none() { cores::TILE } else { tiling.tile };
    #[cfg(not(feature = "cuda"))]
    let tile = tiling.tile;
    let (mut words, word) =
        (Vec::new(), |number: usize| u32::try_from(number).expect("a cache of fewer than 2³² tokens"));
    for Sequence { queries, position, keys, .. } in &sequences {
        let [prefix, own] = &keys[..] else { unreachable!("a prompt, and what was added") };
        for from in queries.clone().step_by(tile) {
            let (count, at) = ((queries.end - from).min(tile), position + from - queries.start);
            let sequence = [prefix.start, prefix.len(), own.start, prefix.len() + own.len()];
            words.extend([from, count, at].into_iter().chain(sequence).map(word));
        }
    }
    let [q, k, v] = [q, k, v].map(|x| into_contiguous(cube_of(x.clone())));
    let tiles = (words.len() / QUERY_WORDS) as u32;
    // The next product reads the output in bf16 if the cache is in bf16.
    let (out, words) = (empty(&q, &dims(&q), k.dtype), Words::shared(&q, &words));
    if let Some(chunks) = chunks {
        decode::attend([&q, &k, &v], (&words, tiles), &out, &shape, chunks);
        return Some(tensor_of(out));
    }
    let log_sums = empty_f32(&q, &[q.shape()[0], shape.heads]);
    #[cfg(feature = "cuda")]
    if k.dtype == DType::BF16 {
        cores::forward([&cores::narrow(&q), &k, &v], (&shape, None), (&words, tiles), &out, &log_sums);
        return Some(tensor_of(out));
    }
    let values = bias.map(|bias| into_contiguous(cube_of(bias.weight_hr.clone().inner())));
    let biases = Biases::new(bias.map(|bias| &bias.buckets).zip(values.as_ref()), &q);
    let masks = Masks::of_attention(None);
    forward([&q, &k, &v], (&words, tiles), &biases, masks, [&out, &log_sums], &shape, tiling);
    Some(tensor_of(out))
}
