//! Draws of the next token where the logits are.
//!
//! A GPU returns an id and two log-probabilities per row, so the logits never leave it. The settings of a row are temperature, a penalty for
//! ids that have occurred, bans, top-k, top-p and min-p, in this order. Other devices return the logits, and the caller draws.

use burn::tensor::Tensor;

/// Settings of the draw for one row.
#[derive(Debug, Clone, PartialEq)]
pub struct Draw {
    /// Which id is taken.
    pub choice: DrawChoice,
    /// Divisor of the logits; above 0.
    pub temperature: f32,
    /// Whether the returned log-probability of the model is that at temperature 1.
    pub untempered: bool,
    /// Divisor of the positive logits of [`penalized`](Self::penalized) ids, and factor of the negative ones.
    pub penalty: f32,
    /// Ids that the penalty concerns, in ascending order, each once.
    pub penalized: Vec<u32>,
    /// Ids that are never drawn, in ascending order, each once. At least one id must be left.
    pub banned: Vec<u32>,
    /// Number of likeliest ids to keep, with those that tie with the last; 0 keeps all.
    pub top_k: u32,
    /// Total probability of the smallest set of likeliest ids to keep; 1 keeps all. Among ids that tie at the edge, the higher ones are kept.
    pub top_p: f32,
    /// Ids below this share of the largest probability are dropped; 0 keeps all.
    pub min_p: f32,
}

/// Which id a row takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DrawChoice {
    /// The id at which the cumulative probability first exceeds this number in [0, 1).
    Sampled(f64),
    /// The likeliest id; the lowest of several.
    Greedy,
    /// This id, whatever its logit.
    Forced(u32),
}

/// A drawn id.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drawn {
    /// The id.
    pub id: u32,
    /// Log-probability under the model at the temperature, before penalty, bans and truncation, in nats.
    pub logprob: f32,
    /// Log-probability under the distribution that it was drawn from, in nats; 0 if it was the only choice.
    pub sampled_logprob: f32,
}

/// Whether [`draw`] can draw from these logits: they are in f32 on a GPU, and the vocabulary is not larger than a million ids.
pub fn draws(logits_bv: &Tensor<2>) -> bool {
    #[cfg(feature = "gpu")]
    if crate::fused::gpu(&logits_bv.device()).is_some() {
        let [_, vocabulary] = logits_bv.dims();
        return logits_bv.dtype() == burn::tensor::DType::F32 && vocabulary <= crate::gpu::draw::MOST_IDS;
    }
    let _ = logits_bv;
    false
}

/// Draws one id per row of `logits_bv`, for which [`draws`] is true. Nothing carries gradient.
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
