//! Which rewards a configuration can name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One reward: the choice is the key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewardConfig {
    /// A reward model directory or hub name.
    Model(String),
    /// A rule.
    Rule(RuleConfig),
    /// An external program: arguments as a list. One JSON object a line in, one number or null a line out.
    Command(Vec<String>),
    /// A weighted sum of rewards.
    Mix(Vec<WeightedReward>),
}

/// A reward and its weight in a mix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WeightedReward {
    /// Its weight.
    pub weight: f64,
    /// The reward.
    pub reward: RewardConfig,
}

/// A rule that scores the completion's text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RuleConfig {
    /// Closeness of the completion's length to a target.
    Length(LengthRule),
    /// 1 when the regular expression is found in the completion, else 0.
    Regex(String),
    /// 1 when the completion equals the named column, white space at the ends aside, else 0.
    ExactMatch(String),
    /// 1 when the text is found in the completion, else 0.
    Substring(String),
    /// 1 when the last number of the completion equals that of the named column (GSM8K's `#### n` understood), else 0.
    NumericAnswer(String),
    /// Mean valence of the completion's words by a lexicon file in VADER's format.
    Lexicon(std::path::PathBuf),
}

/// Keys of the length rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LengthRule {
    /// The wanted length in tokens.
    pub target: usize,
    /// Half width of the triangle around the target: reward 1 at the target, 0 at this distance and beyond. Default: `target`.
    #[serde(default)]
    pub tolerance: Option<usize>,
}
