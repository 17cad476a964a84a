//! Tasks without files: one repeated prompt. A policy learns their rewards in minutes.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Files, Origin, Sample, Split, Task, metrics};
use crate::data::RowLocation;
use crate::error::Result;
use crate::metric::{IncreasingNumbersOptions, MetricConfig};

/// Keys of `dummy_pool`: a prompt without references.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DummyPool {
    /// The prompt.
    pub prompt: String,
    /// Number of samples in every split. Default 100 (RL4LMs).
    #[serde(default = "hundred")]
    #[schemars(range(max = 10_000_000))]
    pub n_samples: usize,
}

fn hundred() -> usize {
    100
}

/// Keys of `increasing_numbers`: numbers that increase. With the reward `metric: { increasing_numbers: … }` it is RL4LMs' synthetic
/// task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IncreasingNumbers {
    /// The prompt. Default `<|endoftext|>`, a single token of GPT-2 (RL4LMs; for T5 `Let us generate some numbers`).
    pub prompt: String,
    /// Number of samples in every split. Default 50 (RL4LMs).
    #[schemars(range(max = 10_000_000))]
    pub n_samples: usize,
    /// Minimum number of tokens that the metric expects. Default 20 (RL4LMs).
    pub min_tokens: usize,
}

impl Default for IncreasingNumbers {
    fn default() -> Self {
        Self { prompt: "<|endoftext|>".into(), n_samples: 50, min_tokens: 20 }
    }
}

/// Keys of `dates`: a sentence with a date. With the reward `metric: { dates: {} }` it is RL4LMs' synthetic task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Dates {
    /// The prompt. Default `<|endoftext|>`, a single token of GPT-2 (RL4LMs).
    pub prompt: String,
    /// Number of samples in every split. Default 50 (RL4LMs).
    #[schemars(range(max = 10_000_000))]
    pub n_samples: usize,
}

impl Default for Dates {
    fn default() -> Self {
        Self { prompt: "<|endoftext|>".into(), n_samples: 50 }
    }
}

impl Task for DummyPool {
    fn origin(&self, _split: Split) -> Origin {
        Origin::Generated
    }

    fn samples(&self, _files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        Ok(repeated("dummy_pool", &self.prompt, self.n_samples))
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        metrics(&["diversity"])
    }
}

impl Task for IncreasingNumbers {
    fn origin(&self, _split: Split) -> Origin {
        Origin::Generated
    }

    fn samples(&self, _files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        Ok(repeated("increasing_numbers", &self.prompt, self.n_samples))
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        vec![MetricConfig::IncreasingNumbers(IncreasingNumbersOptions { min_tokens: self.min_tokens })]
    }
}

impl Task for Dates {
    fn origin(&self, _split: Split) -> Origin {
        Origin::Generated
    }

    fn samples(&self, _files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        Ok(repeated("dates", &self.prompt, self.n_samples))
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        metrics(&["dates"])
    }
}

fn repeated(task: &str, prompt: &str, count: usize) -> Vec<(RowLocation, Sample)> {
    let file = Path::new(task).into();
    let sample = |i: usize| {
        let metadata = Map::from_iter([("id".to_owned(), Value::from(i))]);
        let sample = Sample { prompt: prompt.to_owned(), references: Vec::new(), metadata };
        (RowLocation { file: std::sync::Arc::clone(&file), line: i + 1, row_in_array: None }, sample)
    };
    (0..count).map(sample).collect()
}
