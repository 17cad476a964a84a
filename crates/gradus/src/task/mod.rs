//! Tasks: each turns its public files into prompts, references and metadata.
//!
//! A task is the struct of its keys, in a file of its own; [`TaskConfig`] names them all. [`DataConfig`] is what a
//! configuration says of where rows come from, with a task or without one, and [`load`] reads them. The tasks and their texts
//! are those of RL4LMs (Ramamurthy et al. 2023, <https://arxiv.org/abs/2210.01241>), beside the one of detoxification. A new task is one file here, one variant
//! and one arm in `config.rs`; library users implement [`Task`], and [`rows`] makes rows of what it gives;
//! who writes no Rust has [`CommandTask`].

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
pub use files::{Files, Home};
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

use crate::data::Place;
use crate::error::Result;
use crate::metric::MetricConfig;
use crate::plugin::Kind;

/// One sample of a task.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sample {
    /// What the model reads.
    pub prompt: String,
    /// What it should write, one text or several; none where the task has no answers.
    pub references: Vec<String>,
    /// What else rewards and metrics may read. Without an `id`, the sample gets the one of its split and number.
    pub metadata: Map<String, Value>,
}

/// A part of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Rows to learn from.
    Train,
    /// Rows that are looked at while training.
    Validation,
    /// Rows that are looked at last.
    Test,
}

impl Split {
    /// As files are named.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Validation => "validation",
            Self::Test => "test",
        }
    }

    /// As samples are named.
    fn short(self) -> &'static str {
        if self == Self::Validation { "val" } else { self.name() }
    }
}

/// Turns public files into samples. The open extension point of the module.
pub trait Task: Send + Sync {
    /// Where the rows of a split are published, for those who name no place.
    fn home(&self, split: Split) -> Home;

    /// Which split of the published files the rows of a split are cut from.
    fn reads(&self, split: Split) -> Split {
        split
    }

    /// The samples of a split, in a fixed order, each with where it stands.
    ///
    /// # Errors
    /// Files that are missing, or rows that are not what the task reads.
    fn samples(&self, files: &Files<'_>) -> Result<Vec<(Place, Sample)>>;

    /// What its completions are measured with, unless something else is asked for.
    fn metrics(&self) -> Vec<MetricConfig>;
}

impl Kind for dyn Task {
    const NAME: &'static str = "task";
    type Make = dyn Fn() -> Result<Box<dyn Task>> + Send + Sync;
}

/// The metrics with these names, which need no options.
fn metrics(names: &[&str]) -> Vec<MetricConfig> {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    crate::metric::configure(&names, &[]).expect("names of metrics")
}
