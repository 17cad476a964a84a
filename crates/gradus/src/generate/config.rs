//! The keys of `sampling`, which every online method takes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BeamParams, EarlyStopping, Record, SamplingParams};

/// Keys of `sampling`: what shapes the distribution of completions beside the temperature. Names and meanings are those
/// of transformers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingConfig {
    /// Draw from this many of the likeliest tokens only. Default: all of them.
    pub top_k: Option<usize>,
    /// Draw from the fewest tokens that together have this probability. Default 1: all of them.
    pub top_p: f64,
    /// Draw only tokens at least this share as likely as the likeliest. Default 0: all of them.
    pub min_p: f64,
    /// Draw only the tokens whose information is closest to the entropy, the fewest that together have this probability (locally typical sampling). Default 1: all of them.
    pub typical_p: f64,
    /// Logits of tokens that are already there, prompt included, are divided by it when positive, multiplied when negative. Default 1: off.
    pub repetition_penalty: f64,
    /// No sequence of this many tokens appears twice, prompt included. Default 0: off.
    pub no_repeat_ngram_size: usize,
    /// No sequence of this many tokens of the prompt appears in the completion; the prompt is what an encoder reads, where there is one. Default 0: off.
    pub encoder_no_repeat_ngram_size: usize,
    /// Stop ids are not drawn before this many tokens. Default 0.
    #[schemars(range(max = 100_000_000))]
    pub min_new_tokens: usize,
    /// Token ids that are never drawn.
    pub suppress_tokens: Vec<u32>,
    /// Sequences of token ids that are never completed; a stop id alone is not banned by it.
    pub bad_words_ids: Vec<Vec<u32>>,
    /// The id that every completion begins with. Default: the one that the generation configuration of a model with an encoder forces, if any.
    pub forced_bos_token_id: Option<u32>,
    /// The id that a completion of `max_new_tokens` ends with. Default: the one that the generation configuration of a model with an encoder forces, if any.
    pub forced_eos_token_id: Option<u32>,
    /// The log-probabilities in the loss: those of the model at the sampling temperature (`raw`), those at temperature 1 whatever the sampling temperature (`untempered`, FineGrainedRLHF), or those of the distribution that was drawn from (`processed`), for which the tokens that could be drawn are kept and the policy, the reference, ratios, KL and entropy are taken among them; whole rows of logits are then in memory. `processed` goes with every other key here except `repetition_penalty`. Default `raw` (TRL).
    pub trained_logprobs: TrainedLogprobs,
}

impl Default for SamplingConfig {
    fn default() -> Self {
        Self {
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            no_repeat_ngram_size: 0,
            encoder_no_repeat_ngram_size: 0,
            min_new_tokens: 0,
            suppress_tokens: Vec::new(),
            bad_words_ids: Vec::new(),
            forced_bos_token_id: None,
            forced_eos_token_id: None,
            trained_logprobs: TrainedLogprobs::Raw,
        }
    }
}

/// Keys of `train.evaluation.beams`: evaluations search for the likeliest completions instead of sampling. Names and
/// meanings are those of transformers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BeamConfig {
    /// Rows that go on side by side, at least 2. Default 4.
    #[schemars(range(max = 1_024))]
    pub num_beams: usize,
    /// A completion is ranked by its log-probability over its length to this power: above 0 prefers long ones. Default 1.
    pub length_penalty: f64,
    /// When a search ends, once as many completions have ended as there are beams: `true` at once, `false` when the likeliest open beam would not rank among them if it ended now, `never` when no open beam can rank among them any more. Default `false`.
    pub early_stopping: EarlyStopping,
    /// Diverse beam search: the beams are divided into this many groups with separate searches. A group avoids tokens that earlier groups chose at the same position. It divides `num_beams`. Default 1.
    #[schemars(range(max = 1_024))]
    pub num_beam_groups: usize,
    /// The penalty on a token's log-probability for every beam of an earlier group that has the same token at the same position. Must be above 0 with groups. Default 0.
    pub diversity_penalty: f64,
}

impl Default for BeamConfig {
    fn default() -> Self {
        Self {
            num_beams: 4,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::Heuristic,
            num_beam_groups: 1,
            diversity_penalty: 0.0,
        }
    }
}

impl From<BeamConfig> for BeamParams {
    fn from(config: BeamConfig) -> Self {
        Self {
            num_beams: config.num_beams,
            length_penalty: config.length_penalty as f32,
            early_stopping: config.early_stopping,
            num_beam_groups: config.num_beam_groups,
            diversity_penalty: config.diversity_penalty as f32,
        }
    }
}

/// Whose logprobs train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrainedLogprobs {
    /// Those of the model at the sampling temperature.
    Raw,
    /// Those of the model at temperature 1.
    Untempered,
    /// Those of the distribution that was drawn from.
    Processed,
}

impl SamplingConfig {
    /// The temperature of the logprobs that train where completions are sampled at `temperature`.
    pub fn trained_temperature(&self, temperature: f64) -> f64 {
        match self.trained_logprobs {
            TrainedLogprobs::Untempered => 1.0,
            TrainedLogprobs::Raw | TrainedLogprobs::Processed => temperature,
        }
    }

    /// `params` with these settings; temperature, longest length and stop ids stay.
    pub fn apply(&self, params: SamplingParams) -> SamplingParams {
        SamplingParams {
            top_k: self.top_k,
            top_p: self.top_p as f32,
            min_p: self.min_p as f32,
            typical_p: self.typical_p as f32,
            repetition_penalty: self.repetition_penalty as f32,
            no_repeat_ngram_size: self.no_repeat_ngram_size,
            encoder_no_repeat_ngram_size: self.encoder_no_repeat_ngram_size,
            bad_words_ids: self.bad_words_ids.clone(),
            suppress_tokens: self.suppress_tokens.clone(),
            forced_bos_token_id: self.forced_bos_token_id,
            forced_eos_token_id: self.forced_eos_token_id,
            min_new_tokens: self.min_new_tokens,
            record: match self.trained_logprobs {
                TrainedLogprobs::Raw | TrainedLogprobs::Untempered => Record::Nothing,
                TrainedLogprobs::Processed => Record::Drawn,
            },
            untempered: self.trained_logprobs == TrainedLogprobs::Untempered,
            ..params
        }
    }
}
