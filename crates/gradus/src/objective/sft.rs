//! Supervised fine-tuning: the keys it has, and its objective.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Objective, Totals};
use crate::data::SftExample;
use crate::host::read;
use crate::loss::sft;
use crate::model::{CausalLm, Counted, Rows, Sequence};
use crate::stats::{NEW_TOKENS, Stats};

/// Keys of `method.sft`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SftConfig {
    /// Loss on the completion only. Default: true for prompt–completion rows, false otherwise (TRL).
    pub completion_only_loss: Option<bool>,
    /// Loss on assistant turns only; the chat template must mark them. Default false (TRL).
    pub assistant_only_loss: bool,
    /// Mix this share of the uniform distribution into the target. Default 0.
    pub label_smoothing: f64,
}

impl Default for SftConfig {
    fn default() -> Self {
        Self { completion_only_loss: None, assistant_only_loss: false, label_smoothing: 0.0 }
    }
}

/// The objective: mean negative log-likelihood of the step's loss tokens.
#[derive(Debug, Clone)]
pub struct Sft {
    label_smoothing: f64,
}

impl Sft {
    /// The objective that `config` asks for.
    pub fn new(config: &SftConfig) -> Self {
        Self { label_smoothing: config.label_smoothing }
    }
}

/// A text and which of its tokens carry loss.
pub(crate) fn sequence(example: &SftExample) -> Sequence<'_> {
    Sequence { counted: Counted::Mask(&example.loss_mask), ..Sequence::text(&example.ids) }
}

impl Objective for Sft {
    type Model = CausalLm;
    type Example = SftExample;

    fn tokens(&self, example: &SftExample) -> usize {
        example.ids.len()
    }

    fn targets(&self, example: &SftExample) -> usize {
        sequence(example).targets()
    }

    fn loss(&self, model: &CausalLm, rows: &[&SftExample], totals: Totals, stats: &mut Stats) -> Option<Tensor<1>> {
        let batch = model.batch(&Rows::Alone(rows.iter().map(|row| sequence(row)).collect()));
        stats.sum(NEW_TOKENS, batch.tokens() as f64);
        if batch.targets().is_empty() {
            return None;
        }
        let found = model.logprobs(&batch, 1.0);
        stats.mean_of("entropy", &read(&found.entropies_m));
        stats.mean_of("mean_token_accuracy", &read(&found.correct_m));
        let nll_m = match self.label_smoothing {
            0.0 => sft::nll(found.logprobs_m),
            share => sft::nll_smoothed(found.logprobs_m, found.mean_logits_m, found.log_partitions_m, share),
        };
        Some(nll_m.sum() / totals.targets as f64)
    }

    fn describe(&self, row: &SftExample) -> Value {
        json!({ "input_ids": row.ids, "loss_mask": row.loss_mask.iter().map(|&counts| u8::from(counts)).collect::<Vec<_>>() })
    }

    fn best_metric(&self) -> &'static str {
        "eval_loss"
    }
}
