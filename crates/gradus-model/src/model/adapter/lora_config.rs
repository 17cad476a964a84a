//! Configuration of a run's adapter.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Train a low-rank adapter on the frozen model instead of the model itself (LoRA, Hu et al. 2021).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LoraConfig {
    /// Rank r of the adapter. Default 16 (TRL).
    #[schemars(range(min = 1, max = 65_536))]
    pub rank: usize,
    /// Scale α: the adapter's output is multiplied by α/r. Default 32 (TRL).
    pub alpha: f64,
    /// Dropout of the adapter's input in training: for sft, reward, classify, orpo, cpo, simpo, and updates of online methods except trpo (see `train.dropout`). The other methods compare with a model without dropout. Default 0.
    pub dropout: f64,
    /// Linear layers that get an adapter, by name suffix; `all-linear` selects all except the heads. Default: those of attention.
    pub targets: Vec<String>,
    /// Linear layers that get an adapter, by a regular expression for their whole names, such as `.*\.mlp\..*`.
    pub target_pattern: Option<String>,
    /// Scale by α/√r instead of α/r (rank-stabilized; Kalajdzievski 2023). Default false.
    pub rank_stabilised: bool,
    /// Train the norms of the weights' rows, too (DoRA, Liu et al. 2024). Default false.
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

/// Parts of a language model that an adapter can train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoraParts {
    /// Layers of attention.
    pub attention: bool,
    /// Layers of the feed-forward networks.
    pub feed_forward: bool,
    /// Head, which maps hidden states to logits.
    pub head: bool,
}
