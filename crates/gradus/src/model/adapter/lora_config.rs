//! What a run asks of its adapter.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::peft::{PeftConfig, TaskType};
use super::targets::Targets;
use crate::error::{Error, Result};
use crate::model::directory::ModelDir;
use crate::model::encoder::EncoderFamily;
use crate::model::trunk::Family;

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
    /// Rank-stabilised: α/√r instead of α/r (Kalajdzievski 2023). Default false.
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

impl LoraConfig {
    /// What peft calls it, for the model in `dir`, which is to be called `base`.
    ///
    /// # Errors
    /// When the model's family is unknown, or the rank is 0.
    pub fn peft_config(&self, dir: &ModelDir, task_type: TaskType, base: String) -> Result<PeftConfig> {
        let (attention, fan_in_fan_out) = match EncoderFamily::named(dir.model_type()) {
            Some(family) => (of_encoder(family), false),
            None => {
                let family = Family::of(dir)?;
                (of_decoder(family), family == Family::Gpt2)
            }
        };
        let targets = match (&self.target_pattern, &self.targets[..]) {
            (Some(pattern), _) => Targets::Pattern(pattern.clone()),
            (None, []) => Targets::Names(attention.iter().map(|name| (*name).to_owned()).collect()),
            (None, [only]) if only == Targets::ALL => Targets::All,
            (None, names) => Targets::Names(names.to_vec()),
        };
        PeftConfig::new(self, targets, fan_in_fan_out, task_type, base)
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

impl LoraParts {
    /// The [`targets`](LoraConfig::targets) that are these parts of the language model in `dir`.
    ///
    /// # Errors
    /// When the model's family is unknown, or there is no part.
    pub fn targets(self, dir: &ModelDir) -> Result<Vec<String>> {
        let family = Family::of(dir)?;
        let attention = if self.attention { of_decoder(family) } else { &[] };
        let fed = if self.feed_forward { fed_of_decoder(family) } else { &[] };
        let head: &[&str] = if self.head { &["lm_head"] } else { &[] };
        let all: Vec<String> = [attention, fed, head].concat().into_iter().map(str::to_owned).collect();
        match all.is_empty() {
            true => {
                Err(Error::input("the adapter is for no part of the model: attention, feed-forward layers or head"))
            }
            false => Ok(all),
        }
    }
}

/// The layers of feed-forward networks in the blocks of a family.
#[deny(clippy::wildcard_enum_match_arm)]
fn fed_of_decoder(family: Family) -> &'static [&'static str] {
    match family {
        Family::Gpt2 => &["mlp.c_fc", "mlp.c_proj"],
        Family::Phi3 => &["gate_up_proj", "down_proj"],
        Family::T5 | Family::Mt5 => &["wi", "wi_0", "wi_1", "wo"],
        Family::Bart | Family::Blenderbot | Family::BlenderbotSmall => &["fc1", "fc2"],
        Family::Llama
        | Family::Mistral
        | Family::Qwen2
        | Family::Qwen3
        | Family::Gemma2
        | Family::Gemma3
        | Family::SmolLm3
        | Family::Olmo2 => &["gate_proj", "up_proj", "down_proj"],
    }
}

/// The layers of attention in the blocks of a family.
#[deny(clippy::wildcard_enum_match_arm)]
fn of_decoder(family: Family) -> &'static [&'static str] {
    match family {
        Family::Gpt2 => &["c_attn", "attn.c_proj"],
        Family::Phi3 => &["qkv_proj", "o_proj"],
        Family::T5 | Family::Mt5 => &["q", "k", "v", "o"],
        Family::Bart | Family::Blenderbot | Family::BlenderbotSmall => &["q_proj", "k_proj", "v_proj", "out_proj"],
        Family::Llama
        | Family::Mistral
        | Family::Qwen2
        | Family::Qwen3
        | Family::Gemma2
        | Family::Gemma3
        | Family::SmolLm3
        | Family::Olmo2 => &["q_proj", "k_proj", "v_proj", "o_proj"],
    }
}

/// The same of encoders.
fn of_encoder(family: EncoderFamily) -> &'static [&'static str] {
    match family {
        EncoderFamily::Bert
        | EncoderFamily::Roberta
        | EncoderFamily::XlmRoberta
        | EncoderFamily::Camembert
        | EncoderFamily::Longformer => &["query", "key", "value", "attention.output.dense"],
        EncoderFamily::DistilBert => &["q_lin", "k_lin", "v_lin", "out_lin"],
        EncoderFamily::Albert => &["query", "key", "value", "attention.dense"],
        EncoderFamily::ModernBert => &["Wqkv", "attn.Wo"],
        EncoderFamily::DebertaV1 => &["in_proj", "attention.output.dense"],
        EncoderFamily::Deberta => &["query_proj", "key_proj", "value_proj", "attention.output.dense"],
    }
}
