//! Toxicity of texts, from a classifier, a file of recorded scores, or a service.
//!
//! Rewards and metrics of detoxification query a [`ToxicityScorer`], independent of its kind. [`ScorerConfig`] lists the kinds;
//! library users implement the trait. Scores of different scorers are not comparable, so the name of the scorer is stored with its
//! scores.

mod config;
mod recorded;
mod service;

pub use config::{ClassifierScorer, RecordedScorer, ScorerConfig};
pub use recorded::Recorded;
pub use service::{Service, ServiceScorer};

/// Error for a text without a score: the scorer failed, or may not be queried.
pub use crate::service::ServiceError as ScoringError;

/// Score of a text from 0 (harmless) to 1, or `None` if the scorer does not support the text, such as its language. `None` does not
/// mean 0.
pub type ScoreResult = Result<Option<f32>, ScoringError>;

/// Scores the toxicity of texts.
pub trait ToxicityScorer: Send + Sync {
    /// Returns the name that is stored with the scores.
    fn name(&self) -> String;

    /// Returns whether all scores are probabilities. Recorded scores and the numbers of a regression model may have another range.
    fn has_probabilities(&self) -> bool {
        false
    }

    /// Returns one answer per text, in order.
    fn score(&self, texts: &[&str]) -> Vec<ScoreResult>;
}
