//! What a run asks of its adapter.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Train a low-rank adapter beside the frozen model instead of the model itself (LoRA, Hu et al. 2021).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LoraConfig {
    /// Rank r of the adapter. Default 16 (TRL).
    #[schemars(range(max = 65_536))]
    pub rank: usize,
    /// α: what the adapter adds is multiplied by α/r. Default 32 (TRL).
    pub alpha: f64,
    /// Dropout before the adapter while it trains: for sft, reward, classify, and for updates of online methods but trpo (see `train.dropout`). The other methods compare with a model that has none. Default 0.
    pub dropout: f64,
    /// Linear layers that get an adapter, by the ends of their names; `all-linear` takes all but the heads. Default: those of attention.
    pub targets: Vec<String>,
    /// The same by a regular expression over whole names, such as `.*\.mlp\..*`.
    pub target_pattern: Option<String>,
    /// Rank-stabilized: α/√r instead of α/r (Kalajdzievski 2023). Default false.
    pub rank_stabilised: bool,
    /// DoRA: train the lengths of the weights' rows too (Liu et al. 2024). Default false.
    pub dora: bool,
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self {
            rank: 16,
            alpha: 32.0,
            dropout: 0.0,
            targets: Vec::new(),
            target_pattern: None,
            rank_stabilised: false,
            dora: false,
        }
    }
}

/// Parts of a language model that an adapter can be for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoraParts {
    /// The layers of attention.
    pub attention: bool,
    /// The layers of the feed-forward networks.
    pub feed_forward: bool,
    /// The head: what hidden states are multiplied with to give logits.
    pub head: bool,
}
