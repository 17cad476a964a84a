//! Keys of `sampling`, which every online method accepts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BeamParams, EarlyStopping, Record, SamplingParams};

/// Keys of `sampling`: settings of the sampling distribution in addition to the temperature. Names and meanings are
/// those of transformers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingConfig {
    /// Sample only from this many of the likeliest tokens. Default: all of them.
    #[schemars(range(min = 1))]
    pub top_k: Option<usize>,
    /// Sample from the smallest set of likeliest tokens with at least this total probability. Default 1: all of them.
    pub top_p: f64,
    /// Sample only tokens with at least this share of the likeliest token's probability. Default 0: all of them.
    pub min_p: f64,
    /// Sample only from the tokens whose information is closest to the entropy: the smallest set with at least this
    /// total probability (locally typical sampling). Default 1: all of them.
    pub typical_p: f64,
    /// Divide the positive logits of tokens that have already occurred, including in the prompt, by this; multiply
    /// negative ones. Default 1: off.
    pub repetition_penalty: f64,
    /// Let no sequence of this many tokens occur twice, including in the prompt. Default 0: off.
    pub no_repeat_ngram_size: usize,
    /// Let no sequence of this many prompt tokens occur in the completion. In an encoder–decoder, the prompt is the
    /// encoder's input. Default 0: off.
    pub encoder_no_repeat_ngram_size: usize,
    /// Sample no stop ids before this many tokens. Default 0.
    #[schemars(range(max = 100_000_000))]
    pub min_new_tokens: usize,
    /// Token ids that are never sampled.
    pub suppress_tokens: Vec<u32>,
    /// Sequences of token ids that are never completed. A single stop id is not banned.
    pub bad_words_ids: Vec<Vec<u32>>,
    /// First id of every completion. Without an encoder, prompts must have one token, as in transformers. Default: the
    /// id that the generation configuration of an encoder–decoder forces, if any.
    pub forced_bos_token_id: Option<u32>,
    /// Last id of a completion of `max_new_tokens` tokens. Default: the id that the generation configuration of an
    /// encoder–decoder forces, if any.
    pub forced_eos_token_id: Option<u32>,
    /// Log-probabilities in the loss. `raw`: those of the model at the sampling temperature. `untempered`: those at
    /// temperature 1 (FineGrainedRLHF). `processed`: those of the distribution that was sampled from; the tokens that
    /// could be sampled are stored, and the policy, the reference, ratios, KL and entropy are restricted to them.
    /// `processed` keeps whole rows of logits in memory, and works with every other key here except
    /// `repetition_penalty`. Default `raw` (TRL).
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
    /// Number of beams per prompt, at least 2. Default 4.
    #[schemars(range(min = 2, max = 1_024))]
    pub num_beams: usize,
    /// Exponent of the length by which a completion's log-probability is divided for ranking. Values above 0 prefer
    /// long completions. Default 1.
    pub length_penalty: f64,
    /// When a search ends. `true`: once as many completions have ended as there are beams. `false`: when, in
    /// addition, the likeliest open beam would not rank among them if it ended now. `never`: when, in addition, no open
    /// beam can rank among them any more. Default `false`.
    pub early_stopping: EarlyStopping,
    /// Diverse beam search: the beams are divided into this many groups with separate searches. A group avoids tokens
    /// that earlier groups chose at the same position. It divides `num_beams`. Default 1.
    #[schemars(range(min = 1, max = 1_024))]
    pub num_beam_groups: usize,
    /// The penalty on a token's log-probability for every beam of an earlier group that has the same token at the same
    /// position. Must be above 0 with groups. Default 0.
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

impl Default for BeamParams {
    /// The defaults of the keys: four beams, and otherwise the defaults of transformers.
    fn default() -> Self {
        BeamConfig::default().into()
    }
}

/// Distribution of the log-probabilities in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrainedLogprobs {
    /// The model at the sampling temperature.
    Raw,
    /// The model at temperature 1.
    Untempered,
    /// The distribution that was sampled from.
    Processed,
}

impl SamplingConfig {
    /// Returns the temperature of the trained logprobs for completions sampled at `temperature`.
    pub fn trained_temperature(&self, temperature: f64) -> f64 {
        match self.trained_logprobs {
            TrainedLogprobs::Untempered => 1.0,
            TrainedLogprobs::Raw | TrainedLogprobs::Processed => temperature,
        }
    }

    /// Returns `params` with these settings. Temperature, maximum length and stop ids stay.
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
