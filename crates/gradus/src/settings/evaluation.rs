//! The keys of `train.evaluation`: how completions of held-out prompts are sampled, and which metrics measure them.

use std::num::NonZeroUsize;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::generate::{BeamConfig, BeamParams, Record, SamplingParams};
use crate::metric::{self, MetricConfig};
use crate::task::PostProcess;

/// Keys of `train.evaluation`: how completions of held-out prompts are sampled, and which metrics measure them. Keys that are left out have
/// their values from training; for methods that sample nothing in training, temperature 1 and 256 tokens.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluationConfig {
    /// Metrics that compare completions with their references (`[rouge, { bleu: { max_order: 2 } }]`; docs/metrics.md lists them). With
    /// metrics, methods that sample nothing in training sample completions too. Default: none.
    #[serde(deserialize_with = "metric::read_list")]
    #[schemars(schema_with = "metric::schema_of_list")]
    pub metrics: Vec<MetricConfig>,
    /// Change of completions before metrics read them. Default: none.
    pub post_process: Option<PostProcess>,
    /// Longest completion in tokens.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub max_new_tokens: Option<usize>,
    /// No stop id is sampled before this many tokens.
    #[schemars(range(max = 100_000_000))]
    pub min_new_tokens: Option<usize>,
    /// Sampling temperature; 0 takes the most likely token.
    pub temperature: Option<f64>,
    /// Sample only from this many most likely tokens; 0: from all.
    pub top_k: Option<usize>,
    /// Sample only from the fewest tokens that together have this probability.
    pub top_p: Option<f64>,
    /// Sample only from the tokens whose information is closest to the entropy, the fewest that together have this probability.
    pub typical_p: Option<f64>,
    /// Penalty of tokens that already occur: positive logits are divided by it, negative ones are multiplied.
    pub repetition_penalty: Option<f64>,
    /// No sequence of this many tokens occurs twice, prompt included; 0: off.
    pub no_repeat_ngram_size: Option<usize>,
    /// No sequence of this many tokens of the prompt occurs in the completion; 0: off.
    pub encoder_no_repeat_ngram_size: Option<usize>,
    /// Search for completions with beams. The likeliest ones are kept, or they are sampled if `evaluation.temperature` is
    /// above 0. Default: sample without beams.
    pub beams: Option<BeamConfig>,
    /// Number of completions of each held-out prompt; beam search takes the best ones. Default 1.
    #[schemars(range(max = 100_000))]
    pub samples: Option<NonZeroUsize>,
}

impl EvaluationConfig {
    /// Number of completions of each held-out prompt.
    pub fn samples(&self) -> usize {
        self.samples.map_or(1, NonZeroUsize::get)
    }

    /// Rejects invalid groups of beams.
    ///
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) with the value and its bounds.
    pub fn check_groups(&self) -> Result<()> {
        self.beams.map_or(Ok(()), |beams| BeamParams::from(beams).check_groups(self.temperature.unwrap_or(0.0) as f32))
    }

    /// Applies the keys to `params`, the parameters of sampling in training. Also returns the beams of a search.
    pub fn to_evaluate(&self, params: SamplingParams) -> (SamplingParams, Option<BeamParams>) {
        let params = SamplingParams {
            max_new_tokens: self.max_new_tokens.unwrap_or(params.max_new_tokens),
            min_new_tokens: self.min_new_tokens.unwrap_or(params.min_new_tokens),
            temperature: self.temperature.map_or(params.temperature, |temperature| temperature as f32),
            top_k: self.top_k.map_or(params.top_k, |top_k| Some(top_k).filter(|k| *k > 0)),
            top_p: self.top_p.map_or(params.top_p, |top_p| top_p as f32),
            typical_p: self.typical_p.map_or(params.typical_p, |typical_p| typical_p as f32),
            repetition_penalty: self.repetition_penalty.map_or(params.repetition_penalty, |penalty| penalty as f32),
            no_repeat_ngram_size: self.no_repeat_ngram_size.unwrap_or(params.no_repeat_ngram_size),
            encoder_no_repeat_ngram_size: self
                .encoder_no_repeat_ngram_size
                .unwrap_or(params.encoder_no_repeat_ngram_size),
            ..params
        };
        match self.beams {
            None => (params, None),
            Some(beams) => {
                let temperature = self.temperature.map_or(0.0, |temperature| temperature as f32);
                (SamplingParams { temperature, record: Record::Nothing, ..params }, Some(beams.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::EarlyStopping;

    #[test]
    fn evaluations_are_as_training_but_for_what_is_written() {
        let params =
            || SamplingParams { temperature: 0.7, record: Record::Drawn, top_k: Some(3), ..SamplingParams::default() };
        let plain = EvaluationConfig::default();
        assert_eq!(plain.to_evaluate(params()), (params(), None));
        let other =
            EvaluationConfig { temperature: Some(0.0), top_k: Some(0), max_new_tokens: Some(9), ..plain.clone() };
        let other = EvaluationConfig {
            typical_p: Some(0.5),
            repetition_penalty: Some(1.5),
            no_repeat_ngram_size: Some(2),
            encoder_no_repeat_ngram_size: Some(3),
            ..other
        };
        let expected = SamplingParams {
            temperature: 0.0,
            top_k: None,
            max_new_tokens: 9,
            typical_p: 0.5,
            repetition_penalty: 1.5,
            no_repeat_ngram_size: 2,
            encoder_no_repeat_ngram_size: 3,
            ..params()
        };
        assert_eq!(other.to_evaluate(params()), (expected, None));
        let beams = BeamConfig {
            num_beams: 4,
            length_penalty: 0.5,
            early_stopping: EarlyStopping::Never,
            num_beam_groups: 2,
            diversity_penalty: 1.5,
        };
        let (searched, found) = EvaluationConfig { beams: Some(beams), ..plain }.to_evaluate(params());
        assert_eq!(searched, SamplingParams { temperature: 0.0, record: Record::Nothing, ..params() });
        let sampled = EvaluationConfig { beams: Some(beams), temperature: Some(0.6), ..EvaluationConfig::default() };
        let (drawn, found_again) = sampled.to_evaluate(params());
        assert_eq!(drawn, SamplingParams { temperature: 0.6, record: Record::Nothing, ..params() });
        assert_eq!(found_again, found);
        let message = sampled.check_groups().expect_err("groups do not sample").to_string();
        assert_eq!(message, "`num_beam_groups` is 2, but the temperature is 0.6");
        let expected = BeamParams {
            num_beams: 4,
            length_penalty: 0.5,
            early_stopping: EarlyStopping::Never,
            num_beam_groups: 2,
            diversity_penalty: 1.5,
        };
        assert_eq!(found, Some(expected));
    }
}
