//! Supervised fine-tuning: its configuration keys and its objective.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{LossContext, Objective, OfflineMethod};
use crate::data::{self, Examples, Need, Row, SftExample, TokenizeOptions, TooLong};
use crate::error::{Error, Result};
use crate::loss::reduce::sum;
use crate::loss::sft;
use crate::method::{Cast, Defaults, Head, Method, Problems, Shared};
use crate::model::{CausalLm, Counted, Reference, Rows, Sequence};
use crate::pretrained::Pretrained;
use crate::readings::Readings;
use crate::settings::TrainConfig;
use crate::stats::Stats;

/// Keys of `method.sft`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SftConfig {
    /// Loss of a token. Default `nll` (TRL).
    pub loss_type: SftLossType,
    /// Compute the loss on the completion only. Default: true for prompt–completion rows, false otherwise (TRL).
    pub completion_only_loss: Option<bool>,
    /// Compute the loss on assistant turns only; the chat template must mark them. Default false (TRL).
    pub assistant_only_loss: bool,
    /// End every text with its end-of-text token, which is trained on too. Default true (TRL; RL4LMs' code for models
    /// without an encoder: false).
    pub add_eos: bool,
    /// Mix this share of the uniform distribution into the target (`nll` only). Default 0.
    pub label_smoothing: f64,
    /// Join all rows, each with its end-of-text token, and cut them into blocks of `train.max_length` tokens (TRL's
    /// packing strategy `wrapped`). Use it for continued pre-training, where no text should be lost. Default false:
    /// each row is its own sequence. Nothing is padded either way.
    pub packing: bool,
    /// With an encoder: maximum length of a target in tokens; a longer one is cut and keeps its end-of-text token
    /// (FineGrainedRLHF: 200). Default: only `train.max_length` limits it.
    #[schemars(range(min = 2, max = 100_000_000))]
    pub max_target_length: Option<usize>,
}

impl Default for SftConfig {
    fn default() -> Self {
        Self {
            loss_type: SftLossType::Nll,
            completion_only_loss: None,
            assistant_only_loss: false,
            add_eos: true,
            label_smoothing: 0.0,
            packing: false,
            max_target_length: None,
        }
    }
}

/// Loss of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SftLossType {
    /// Negative log-likelihood.
    Nll,
    /// Dynamic fine-tuning: negative log-likelihood weighted by the token's own probability, Wu et al. 2025.
    Dft,
}

impl Method for SftConfig {
    fn name(&self) -> &'static str {
        "sft"
    }

    fn about(&self) -> &'static str {
        "Fine-tune a model on texts, conversations or completions"
    }

    fn defaults(&self) -> Defaults {
        Defaults { learning_rate: 2e-5, too_long: TooLong::Truncate, best_metric: "eval_loss" }
    }

    fn need(&self) -> Need {
        Need::Sft
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        Cast::alone(shared, Head::Language)
    }

    fn rules(&self, problems: &mut Problems<'_>, _train: &TrainConfig) {
        problems.at_least("method.sft.max_target_length", self.max_target_length.unwrap_or(2), 2);
        problems.zero_to_below("method.sft.label_smoothing", self.label_smoothing, 1.0);
        let fine = self.loss_type == SftLossType::Nll || self.label_smoothing == 0.0;
        problems.require(fine, &["method.sft.label_smoothing", "method.sft.loss_type"], || {
            let message = format!(
                "`method.sft.label_smoothing` is {}, but `loss_type: dft` has no label smoothing",
                self.label_smoothing
            );
            (message, Some("use `loss_type: nll`, or set `label_smoothing` to 0".into()))
        });
    }

    fn drops_out(&self) -> bool {
        true
    }

    fn adds_noise(&self) -> bool {
        true
    }
}

impl OfflineMethod for SftConfig {
    type Example = SftExample;
    type Objective = Sft;

    fn examples(&self, rows: &[Row], from: &Pretrained, options: TokenizeOptions) -> Result<Examples<SftExample>> {
        let options = TokenizeOptions {
            completion_only_loss: self.completion_only_loss,
            assistant_only_loss: self.assistant_only_loss,
            add_eos: self.add_eos,
            target_cut: self.max_target_length,
            ..options
        };
        if options.target_cut.is_some() && !options.encoder_reads_prompt {
            return Err(Error::input(
                "`method.sft.max_target_length` bounds what a decoder writes, but this model reads prompt and completion as one text",
            )
            .with_hint("use `train.max_length`, or a model with an encoder"));
        }
        let length = match (self.packing, options.max_length) {
            (true, Some(length)) => length,
            _ => return data::sft_examples(rows, &from.tokenizer, from.template.as_ref(), &options),
        };
        if options.encoder_reads_prompt {
            return Err(Error::input(
                "`method.sft.packing` joins texts, but this model's encoder reads each source separately",
            )
            .with_hint("leave it out: nothing is padded either way"));
        }
        let uncut = TokenizeOptions { max_length: None, ..options };
        let made = data::sft_examples(rows, &from.tokenizer, from.template.as_ref(), &uncut)?;
        let made = data::wrapped(made, length);
        if made.examples.is_empty() {
            return Err(Error::input("the rows hold too few tokens for one block: nothing is predicted"));
        }
        Ok(made)
    }

    fn rows(text: &SftExample) -> Rows<'_> {
        Rows::Alone(vec![sequence(text)])
    }

    fn objective(&self, _reference: Option<Reference>) -> Sft {
        Sft::new(self)
    }
}

/// The objective: the mean loss over the loss tokens of a step.
#[derive(Debug, Clone)]
pub struct Sft {
    loss_type: SftLossType,
    label_smoothing: f64,
}

impl Sft {
    /// Creates the objective that `config` specifies.
    pub fn new(config: &SftConfig) -> Self {
        Self { loss_type: config.loss_type, label_smoothing: config.label_smoothing }
    }
}

/// Returns a text and its loss mask; with an encoder, after its source.
pub(crate) fn sequence(example: &SftExample) -> Sequence<'_> {
    let (source, target) = example.ids.split_at(example.source_len);
    Sequence { source, target, counted: Counted::Mask(&example.loss_mask[example.source_len..]) }
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

    fn loss(
        &self,
        model: &CausalLm,
        rows: &[&SftExample],
        context: LossContext,
        measured: &mut Readings<Stats>,
    ) -> Option<Tensor<1>> {
        let rows = Rows::Alone(rows.iter().map(|row| sequence(row)).collect());
        let batch = model.batch_with_noise(&rows, context.noise).dropping(context.dropout);
        if batch.targets().is_empty() {
            return None;
        }
        let found = model.logprobs(&batch, 1.0);
        measured.mean_of("entropy", &found.entropies_m);
        measured.mean_of("mean_token_accuracy", &found.correct_m);
        let losses_m = match (self.loss_type, self.label_smoothing) {
            (SftLossType::Dft, _) => sft::dft(found.logprobs_m),
            (SftLossType::Nll, 0.0) => sft::nll(found.logprobs_m),
            (SftLossType::Nll, share) => {
                sft::nll_smoothed(found.logprobs_m, found.mean_logits_m, found.log_partitions_m, share)
            }
        };
        Some(sum(losses_m) / context.totals.targets as f64)
    }

    fn describe(&self, row: &SftExample) -> Value {
        json!({ "input_ids": row.ids, "loss_mask": row.loss_mask.iter().map(|&counts| u8::from(counts)).collect::<Vec<_>>() })
    }
}
