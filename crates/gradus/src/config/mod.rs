//! Configuration: [`RunConfig`] holds the file and the flags; [`Plan`] is what the program runs.
//!
//! Text becomes a tree that stores the place of every key, and flags override it. The tree is read by a schema that is
//! generated from the types. Rules then check what types cannot express. Each stage reports every problem, not only the
//! first.
//!
//! A choice is a key (`method: {ppo: …}`), unknown keys are rejected, and every default is next to its field.

mod argument;
mod change;
mod comparison;
mod config_with_locations;
mod file;
mod finite;
mod flags;
mod foreign;
mod import;
mod load;
mod method;
mod moved;
mod node;
mod plan;
mod preset;
mod read;
mod reference;
mod registry;
mod resume;
mod reward_of_flags;
mod rules;
mod schema;
mod sweep;
#[cfg(test)]
mod tests;
mod write;

pub use argument::Argument;
pub use change::{Change, Effect};
pub use comparison::{ComparisonDefinition, ComparisonRequest};
pub use config_with_locations::ConfigWithLocations;
pub use file::ConfigFile;
pub(crate) use finite::to_json;
pub use flags::{Flag, FlagKind, FlagSpec, Scope, flags};
pub use foreign::{Spelling, translate};
pub use import::{Imported, System, TrlCommand, import};
pub use load::Request;
pub use method::{MethodConfig, PluggedMethod, Visitor};
pub use plan::Plan;
pub use reference::{KeyReference, explain, markdown};
pub use registry::{Options, Registry};
pub use resume::{Resume, ResumeFrom};
pub(crate) use resume::{other_settings, resume_command};
pub use reward_of_flags::reward_of_flags;
pub use schema::{Field, Schema, Shape, Word};
pub use sweep::{SweepDefinition, SweepPoint};

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::method::{Preset, Shared};
use crate::model::adapter::LoraConfig;
use crate::observer::Observer;
use crate::plugin::Plugin;
use crate::reward::config::RewardConfig;
use crate::settings::{EnvironmentConfig, EpisodeConfig, RolloutsConfig, ToolConfig, TrainConfig};
use crate::task::{DataConfig, Split};

/// One training run, as given by a file and flags.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// The model to start from: a directory, a run or a hub name.
    pub model: String,
    /// Use this tokenizer instead of the model's own: a directory or a hub name. It is saved with every model of the
    /// run. Default: the model's own.
    #[serde(default)]
    pub tokenizer: Option<String>,
    /// Training rows: a file, a directory or a hub name, whose row format is recognized from the columns; or a task,
    /// with its files.
    pub data: DataConfig,
    /// More training rows from other files or splits, in addition to those of `data` (which `train.max_rows` limits).
    #[serde(default)]
    pub mix: Vec<MixedData>,
    /// Held-out rows. If `data` has a task, they are rows of this task. Default: the task's validation split, or
    /// without a task `train.eval_fraction` of the training rows.
    #[serde(default)]
    pub eval_data: Option<DataConfig>,
    /// Test rows. They are measured before the first step and after the last one, under names with `test_`, and have no
    /// influence. If `data` has a task, they are rows of this task, by default its test split. Default: none.
    #[serde(default)]
    pub test_data: Option<DataConfig>,
    /// Write the run directory to this path. Default: `runs/<method>-<model>-<n>`.
    #[serde(default)]
    pub output_dir: Option<PathBuf>,
    /// The training method. Its name is the key, with the method's own keys inside.
    pub method: MethodConfig,
    /// Continue training this adapter on `model`: a directory in peft's format or a hub name. Nothing else is trained.
    #[serde(default)]
    pub adapter: Option<String>,
    /// Use the defaults of another system; written keys take precedence. `gradus config explain preset` shows them.
    #[serde(default)]
    pub preset: Option<Preset>,
    /// Train a new low-rank adapter on the frozen model instead of the model itself.
    #[serde(default)]
    pub lora: Option<LoraConfig>,
    /// The reward of completions (online methods only).
    #[serde(default)]
    pub reward: Option<RewardConfig>,
    /// The environment that replies to the policy between its turns (online methods only; docs/environments.md). Its
    /// name is the key.
    #[serde(default)]
    pub environment: Option<EnvironmentConfig>,
    /// Tools that the policy may call (online methods only; docs/environments.md). The model needs a chat template.
    #[serde(default)]
    pub tools: Vec<ToolConfig>,
    /// Limits of an episode.
    #[serde(default)]
    pub episode: EpisodeConfig,
    /// A server that samples instead of this process (online methods only; docs/servers.md).
    #[serde(default)]
    pub rollouts: Option<RolloutsConfig>,
    /// Observers of the run, by the names that the program registered (docs/plugins.md): `[{ NAME: {…} }]`.
    #[serde(default)]
    pub observers: Vec<Plugin<dyn Observer>>,
    /// Keys that all methods share.
    #[serde(default)]
    pub train: TrainConfig,
}

/// Rows from one more source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MixedData {
    /// A file, a directory or a hub name, or a task with its files, as in `data`; `name:split` names a split.
    pub data: DataConfig,
    /// Number of its rows to use, drawn at random by the seed. Default: all.
    #[serde(default)]
    pub rows: Option<usize>,
    /// Read at most this many of its rows, the first ones. Default: all.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub max_rows: Option<usize>,
}

impl RunConfig {
    /// Returns the named held-out rows, or the validation split of the task; `None` if part of `data` is held out.
    pub fn held_out(&self) -> Option<DataConfig> {
        match &self.eval_data {
            Some(data) => Some(data.or_of(&self.data)),
            None => self.data.validation(),
        }
    }

    /// Returns the test rows, if any are named; for a task, its test split by default.
    pub fn test(&self) -> Option<DataConfig> {
        let data = self.test_data.as_ref()?.or_of(&self.data);
        let of_task = data.task.as_ref().map(|_| Split::Test);
        Some(DataConfig { split: data.split.or(of_task), ..data })
    }

    /// Returns the parts of the configuration that methods need in addition to their own keys.
    pub fn shared(&self) -> Shared<'_> {
        Shared { train: &self.train, reward: self.reward.as_ref() }
    }

    /// Returns the JSON schema of configuration files.
    pub fn json_schema() -> String {
        serde_json::to_string_pretty(&schemars::schema_for!(Self)).expect("a schema is plain data")
    }
}
