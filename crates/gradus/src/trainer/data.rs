//! Texts to train on.

/// One text to train on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Datum {
    /// Ids before the completion; at least one.
    pub prompt: Vec<u32>,
    /// Ids to train on.
    pub completion: Vec<u32>,
    /// One number per id of the completion: the weight of its log-probability in
    /// [`Loss::CrossEntropy`](super::Loss::CrossEntropy), its advantage in the other losses. An id with 0 carries no loss,
    /// except for the penalty of [`Loss::Dro`](super::Loss::Dro).
    pub weights: Vec<f32>,
    /// Log-probabilities of the completion under the policy that sampled it, at temperature 1, in nats; not used by
    /// [`Loss::CrossEntropy`](super::Loss::CrossEntropy). Those of [`Trainer::sample`](super::Trainer::sample) have the
    /// temperature of the sampling, unless [`untempered`](crate::generate::SamplingParams::untempered) is set.
    pub old_logprobs: Vec<f32>,
}

/// A text with targets at each id: candidates for the next id. Unlike in a [`Datum`], targets need not be the actual
/// next ids, and each id may have several.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Targeted {
    /// Ids that the model reads.
    pub ids: Vec<u32>,
    /// Targets of the first id, then those of the second, and so on; the same number for each id.
    pub targets: Vec<u32>,
    /// One number per target, as in a [`Datum`].
    pub weights: Vec<f32>,
    /// Log-probabilities of the targets under the policy that sampled them, at temperature 1, in nats; not used by
    /// [`Loss::CrossEntropy`](super::Loss::CrossEntropy).
    pub old_logprobs: Vec<f32>,
}
