//! Tasks: each turns its public files into prompts, references and metadata.
//!
//! A task is a struct of its keys in a file of its own; [`TaskConfig`] lists all tasks. [`DataConfig`] is the source of rows in a
//! configuration, with or without a task, and [`load`] reads them. The tasks and their texts are those of RL4LMs (Ramamurthy et al.
//! 2023, <https://arxiv.org/abs/2210.01241>), and one for detoxification. To add a task, add a file here, and a variant and an arm
//! in `config.rs`. Library users implement [`Task`], and [`rows`] converts its samples to rows. A [`CommandTask`] needs no Rust.

pub mod demo;

mod cnn_daily_mail;
mod command;
mod commongen;
mod config;
mod crd3;
mod daily_dialog;
mod dummy_pool;
mod files;
mod imdb;
mod load;
mod narrative_qa;
mod permutation;
mod post_process;
mod real_toxicity_prompts;
mod shuffled;
mod source;
mod totto;
mod translation;
mod xsum;

pub use cnn_daily_mail::CnnDailyMail;
pub use command::CommandTask;
pub use commongen::{Commongen, References};
pub use config::TaskConfig;
pub use crd3::Crd3;
pub use daily_dialog::DailyDialog;
pub use dummy_pool::{Dates, DummyPool, IncreasingNumbers};
pub use files::{Files, Origin};
pub use imdb::{Imdb, ImdbSeq2seq};
pub use load::{load, rows};
pub use narrative_qa::NarrativeQa;
pub use post_process::{PostProcess, PostProcessor};
pub use real_toxicity_prompts::RealToxicityPrompts;
pub use source::DataConfig;
pub use totto::{Representation, Totto};
pub use translation::{Iwslt2017EnDe, Wmt14ProcessedEnDe, Wmt16, Wmt16NewsOnly};
pub use xsum::Xsum;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::data::RowLocation;
use crate::error::Result;
use crate::metric::MetricConfig;
use crate::plugin::Kind;

/// One sample of a task.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sample {
    /// Input of the model.
    pub prompt: String,
    /// Expected outputs, one text or several. Empty if the task has no answers.
    pub references: Vec<String>,
    /// Additional values for rewards and metrics. Without an `id`, the sample gets one from its split and number.
    pub metadata: Map<String, Value>,
}

/// A part of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Rows for training.
    Train,
    /// Rows for evaluation during training.
    Validation,
    /// Rows for evaluation after training.
    Test,
}

impl Split {
    /// Returns the name of the split in file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Validation => "validation",
            Self::Test => "test",
        }
    }

    /// Returns the name of the split in sample ids.
    fn short(self) -> &'static str {
        if self == Self::Validation { "val" } else { self.name() }
    }
}

/// Turns public files into samples. The open extension point of the module.
pub trait Task: Send + Sync {
    /// Returns where the rows of a split are published, for users who name no source.
    fn origin(&self, split: Split) -> Origin;

    /// Returns the published split from which the rows of a split are taken.
    fn reads(&self, split: Split) -> Split {
        split
    }

    /// Returns the samples of a split in a fixed order, each with its location.
    ///
    /// # Errors
    /// Files that are missing, or rows that the task cannot read.
    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>>;

    /// Returns the default metrics of the task's completions.
    fn metrics(&self) -> Vec<MetricConfig>;
}

impl Kind for dyn Task {
    const NAME: &'static str = "task";
    type Make = dyn Fn() -> Result<Box<dyn Task>> + Send + Sync;
}

/// Returns the metrics with these names, which need no options.
fn metrics(names: &[&str]) -> Vec<MetricConfig> {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    crate::metric::configure(&names, &[]).expect("names of metrics")
}
