//! A toxicity scorer of tests.

use std::sync::Mutex;

use crate::toxicity::{ScoreResult, ToxicityScorer};

/// Scores texts by a function, and records the texts.
pub struct ByRule<F> {
    pub rule: F,
    pub requests: Mutex<Vec<String>>,
}

impl<F> ByRule<F> {
    pub fn new(rule: F) -> Self {
        Self { rule, requests: Mutex::new(Vec::new()) }
    }
}

impl<F: Fn(&str) -> ScoreResult + Send + Sync> ToxicityScorer for ByRule<F> {
    fn name(&self) -> String {
        "rule".into()
    }

    fn score(&self, texts: &[&str]) -> Vec<ScoreResult> {
        self.requests.lock().expect("no panic").extend(texts.iter().map(|text| (*text).to_owned()));
        texts.iter().map(|text| (self.rule)(text)).collect()
    }
}
