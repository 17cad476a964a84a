//! Named presets: one key selects the settings of another system.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of another system. Keys that are given explicitly override them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// RL4LMs (Ramamurthy et al. 2023), with the numbers of its IMDB recipes (for TRPO, of its recipe of increasing numbers).
    Rl4lms,
    /// FineGrainedRLHF (Wu et al. 2023), with the numbers of its fine-grained recipe.
    FineGrained,
    /// GSPO (Zheng et al. 2025).
    Gspo,
    /// DAPO (Yu et al. 2025), without its penalty of long completions, which is a reward (`rule: { soft_overlong: … }`).
    Dapo,
    /// Dr. GRPO (Liu et al. 2025).
    DrGrpo,
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 5] = [Self::Rl4lms, Self::FineGrained, Self::Gspo, Self::Dapo, Self::DrGrpo];

    /// Returns the name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rl4lms => "rl4lms",
            Self::FineGrained => "fine_grained",
            Self::Gspo => "gspo",
            Self::Dapo => "dapo",
            Self::DrGrpo => "dr_grpo",
        }
    }

    /// Returns the preset with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }
}
