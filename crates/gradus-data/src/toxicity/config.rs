//! Toxicity scorers that a configuration can name.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Recorded, Service, ServiceScorer, ToxicityScorer};
use crate::error::Result;
use crate::process::Interrupt;

/// Minimum rate of requests per second; a lower rate would practically never send one.
const SLOWEST: f64 = 1e-3;

/// Toxicity scorer; the key selects its kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScorerConfig {
    /// A classifier of texts.
    Classifier(ClassifierScorer),
    /// Scores from a file. Another scorer scores the texts that the file lacks, and its scores are added to the file.
    Recorded(RecordedScorer),
    /// A service with the protocol of the Perspective API (the public one ends with the year 2026).
    Service(ServiceScorer),
}

/// A text classifier, and its label for toxicity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassifierScorer {
    /// The classifier: a `…ForSequenceClassification` directory or a hub name. The end of longer texts is cut off.
    pub model: String,
    /// The label whose probability is the toxicity, by name or number. For a model that outputs plain numbers, the number of the
    /// output. Default: the only one.
    #[serde(default)]
    pub label: Option<String>,
}

/// A file of scores, one `{"text": …, "toxicity": …}` per line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordedScorer {
    /// The file. Texts are looked up by their exact characters.
    pub file: PathBuf,
    /// The scorer for texts that the file lacks. Default: none; such a text is an error.
    #[serde(default)]
    pub otherwise: Option<Box<ScorerConfig>>,
}

impl ScorerConfig {
    /// Opens the scorer. `classifier` opens a model. An `interrupt` ends the wait for a service.
    ///
    /// # Errors
    /// If a model, a file or an API key is missing.
    pub fn open(
        &self,
        classifier: &dyn Fn(&ClassifierScorer) -> Result<Box<dyn ToxicityScorer>>,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn ToxicityScorer>> {
        Ok(match self {
            Self::Classifier(config) => classifier(config)?,
            Self::Recorded(RecordedScorer { file, otherwise }) => {
                let otherwise = otherwise.as_ref().map(|scorer| scorer.open(classifier, interrupt)).transpose()?;
                Box::new(Recorded::open(file, otherwise)?)
            }
            Self::Service(config) => Box::new(Service::new(config, interrupt)?),
        })
    }

    /// Returns the same scorer for one of several `processes` that score at the same time: each has an equal share of a service's limits,
    /// and at least one connection.
    #[must_use]
    pub fn shared_by(self, processes: usize) -> Self {
        match self {
            Self::Service(service) => Self::Service(ServiceScorer {
                requests_per_second: service.requests_per_second / processes as f64,
                connections: (service.connections / processes).max(1),
                ..service
            }),
            Self::Recorded(RecordedScorer { file, otherwise }) => {
                let otherwise = otherwise.map(|scorer| Box::new(scorer.shared_by(processes)));
                Self::Recorded(RecordedScorer { file, otherwise })
            }
            Self::Classifier(config) => Self::Classifier(config),
        }
    }

    /// Returns the directory or hub name of the classifier, used directly or for texts that a file lacks.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::Classifier(config) => Some(&config.model),
            Self::Recorded(config) => config.otherwise.as_ref()?.model(),
            Self::Service(_) => None,
        }
    }

    /// Returns the file of recorded scores.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Recorded(config) => Some(&config.file),
            Self::Classifier(_) | Self::Service(_) => None,
        }
    }

    /// Returns the mistakes in its keys, each with the path of the key relative to this one.
    pub fn mistakes(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut unless = |holds: bool, key: &str, message: &str| {
            if !holds {
                found.push((key.to_owned(), message.to_owned()));
            }
        };
        match self {
            Self::Classifier(config) => unless(!config.model.trim().is_empty(), "classifier.model", "it is empty"),
            Self::Recorded(config) => {
                unless(!config.file.as_os_str().is_empty(), "recorded.file", "it is empty");
                let inner = config.otherwise.iter().flat_map(|scorer| scorer.mistakes());
                found.extend(inner.map(|(key, message)| (format!("recorded.otherwise.{key}"), message)));
            }
            Self::Service(config) => {
                let is_url = config.url.starts_with("http://") || config.url.starts_with("https://");
                unless(is_url, "service.url", "it does not begin with `https://` or `http://`");
                let rate = config.requests_per_second;
                let is_rate = rate >= SLOWEST && rate.is_finite();
                unless(is_rate, "service.requests_per_second", "it must be 0.001 (one in 17 minutes) or more");
                let timeout = config.timeout_s;
                unless(timeout > 0.0 && timeout <= 3600.0, "service.timeout_s", "it must be above 0, and 3600 at most");
                unless((1..=256).contains(&config.connections), "service.connections", "it must be from 1 to 256");
                unless(config.retries <= 20, "service.retries", "it must be 20 at most");
            }
        }
        found
    }
}
