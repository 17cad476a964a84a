//! Configuration: [`RunConfig`] is what the file and the flags say; [`Plan`](crate::config) is what the program runs.
//!
//! The choice is a key (`method: {ppo: …}`), unknown keys are refused, every default stands next to its field.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::algorithm::{grpo::GrpoConfig, ppo::PpoConfig};
use crate::reward::config::RewardConfig;
use crate::train::{TrainConfig, dpo::DpoConfig, reward_model::RewardModelConfig, sft::SftConfig};

/// One training run, as written in a file and by flags.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// The model to start from: a Hugging Face model directory or a hub name.
    pub model: String,
    /// Training rows: a file, a directory or a hub name; the row format is recognised from the columns.
    pub data: String,
    /// Held-out rows. Without it, `train.eval_fraction` of the training rows are held out.
    #[serde(default)]
    pub eval_data: Option<String>,
    /// Where the run directory is written. Default: `runs/<method>-<model>-<n>`.
    #[serde(default)]
    pub output_dir: Option<PathBuf>,
    /// What is trained and how: one of `sft`, `reward`, `dpo`, `ppo`, `grpo`.
    pub method: MethodConfig,
    /// What completions are worth (online methods only).
    #[serde(default)]
    pub reward: Option<RewardConfig>,
    /// What all trainers share.
    #[serde(default)]
    pub train: TrainConfig,
}

/// The method and its own keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MethodConfig {
    /// Supervised fine-tuning.
    Sft(SftConfig),
    /// A Bradley–Terry reward model.
    Reward(RewardModelConfig),
    /// Direct preference optimisation.
    Dpo(DpoConfig),
    /// Proximal policy optimisation with a critic.
    Ppo(PpoConfig),
    /// Group relative policy optimisation.
    Grpo(GrpoConfig),
}
