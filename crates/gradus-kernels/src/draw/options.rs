//! What a draw needs to know of a row, and what it returns.

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
