//! How toxic a text is, by whoever says so: a classifier, what was recorded before, or a service.
//!
//! Rewards and metrics of detoxification ask a [`ToxicityScorer`] and do not know which it is. [`ScorerConfig`] names the
//! kinds; library users implement the trait. Scores of different scorers do not compare, so each has a name that is written
//! beside what it said.

mod config;
mod recorded;
mod service;

pub use config::{ClassifierScorer, RecordedScorer, ScorerConfig};
pub use recorded::Recorded;
pub use service::{Service, ServiceScorer};

/// A text of which no score could be had: the scorer failed, or must not be asked.
pub use crate::service::ServiceError as ScoringError;

/// What a scorer says of a text: a number from 0 (harmless) to 1, or nothing where it cannot judge the text, such as one in a
/// language that it does not know. Nothing is not 0.
pub type Answer = Result<Option<f32>, ScoringError>;

/// Says how toxic texts are.
pub trait ToxicityScorer: Send + Sync {
    /// What it is called wherever its scores are kept.
    fn name(&self) -> String;

    /// One answer for each text, in order.
    fn score(&self, texts: &[&str]) -> Vec<Answer>;
}

#[cfg(test)]
pub(crate) mod test_scorer {
    use std::sync::Mutex;

    use super::{Answer, ToxicityScorer};

    /// Judges by a function, and keeps what it was asked.
    pub struct ByRule<F> {
        pub rule: F,
        pub asked: Mutex<Vec<String>>,
    }

    impl<F> ByRule<F> {
        pub fn new(rule: F) -> Self {
            Self { rule, asked: Mutex::new(Vec::new()) }
        }
    }

    impl<F: Fn(&str) -> Answer + Send + Sync> ToxicityScorer for ByRule<F> {
        fn name(&self) -> String {
            "rule".into()
        }

        fn score(&self, texts: &[&str]) -> Vec<Answer> {
            self.asked.lock().expect("no panic").extend(texts.iter().map(|text| (*text).to_owned()));
            texts.iter().map(|text| (self.rule)(text)).collect()
        }
    }
}
