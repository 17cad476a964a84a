//! Draws of the next token where the logits are.
//!
//! A GPU returns an id and two log-probabilities per row, so the logits never leave it. The settings of a row are temperature, a penalty for
//! ids that have occurred, bans, top-k, top-p and min-p, in this order. Other devices return the logits, and the caller draws.

pub(crate) mod options;

use burn::tensor::Tensor;

pub use options::{Draw, DrawChoice, Drawn};

/// Whether [`draw`] can draw from these logits: they are in f32 on a GPU, and the vocabulary is not larger than a million ids.
/// `logits_bv` is `[B, V]`. Its values are not read.
pub fn draws(logits_bv: &Tensor<2>) -> bool {
    #[cfg(feature = "gpu")]
    if crate::fused::gpu(&logits_bv.device()).is_some() {
        let [_, vocabulary] = logits_bv.dims();
        return logits_bv.dtype() == burn::tensor::DType::F32 && vocabulary <= crate::gpu::draw::MOST_IDS;
    }
    let _ = logits_bv;
    false
}

/// Draws one id per row of `logits_bv`, `[B, V]`, for which [`draws`] is true. Nothing carries gradient.
///
/// Sums are in f32, in a fixed order: the same logits and numbers give the same ids.
///
/// # Panics
/// If [`draws`] is false, if the number of rows differs, or if an id is outside the vocabulary.
pub fn draw(logits_bv: Tensor<2>, rows: &[Draw]) -> Vec<Drawn> {
    let [b, v] = logits_bv.dims();
    assert_eq!(b, rows.len(), "one setting per row");
    let ids = rows.iter().flat_map(|row| row.penalized.iter().chain(&row.banned));
    let forced = rows.iter().filter_map(|row| match &row.choice {
        DrawChoice::Forced(id) => Some(id),
        DrawChoice::Sampled(_) | DrawChoice::Greedy => None,
    });
    assert!(ids.chain(forced).all(|&id| (id as usize) < v), "an id is outside the vocabulary of {v}");
    assert!(draws(&logits_bv), "the host draws from these logits");
    #[cfg(feature = "gpu")]
    return crate::gpu::draw::draw(logits_bv.inner(), rows);
    #[cfg(not(feature = "gpu"))]
    unreachable!("there is no GPU");
}
