//! How completions are drawn: the settings of one request.

use crate::error::{Error, Result};

/// How completions are drawn. Names and meanings are those of transformers' `GenerationConfig`.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by it; 0 takes the likeliest id.
    pub temperature: f32,
    /// Only the `k` likeliest ids (and those that tie with the last of them).
    pub top_k: Option<usize>,
    /// Only the fewest ids that together have at least this probability; 1 is all of them.
    pub top_p: f32,
    /// Only ids at least this share as likely as the likeliest; 0 is all of them.
    pub min_p: f32,
    /// Only the ids whose information is closest to the entropy, the fewest that together have at least this probability
    /// ([locally typical sampling](https://arxiv.org/abs/2202.00666)); 1 is all of them.
    pub typical_p: f32,
    /// Logits of ids already there are divided by it when positive, multiplied when negative; 1 does nothing.
    pub repetition_penalty: f32,
    /// No sequence of this many ids appears twice, prompt included; 0 does nothing.
    pub no_repeat_ngram_size: usize,
    /// No sequence of this many ids of the prompt appears in the completion; 0 does nothing.
    pub encoder_no_repeat_ngram_size: usize,
    /// Sequences of ids that are never completed. A stop id alone is not banned by it.
    pub bad_words_ids: Vec<Vec<u32>>,
    /// Ids that are never drawn.
    pub suppress_tokens: Vec<u32>,
    /// The first id of a completion, whatever the model says.
    pub forced_bos_token_id: Option<u32>,
    /// The last id of a completion that grows to `max_new_tokens`, whatever the model says.
    pub forced_eos_token_id: Option<u32>,
    /// The most ids of a completion.
    pub max_new_tokens: usize,
    /// Stop ids are not drawn before this many ids.
    pub min_new_tokens: usize,
    /// Ids that end a completion.
    pub stop_ids: Vec<u32>,
    /// What is recorded beside every id of those it could have been.
    pub record: Record,
    /// How many of the likeliest ids are told with every id that is drawn.
    pub likeliest: usize,
    /// Whether the log-probability that is told of an id is that of the model at temperature 1, whatever the temperature.
    pub untempered: bool,
}

impl Default for SamplingParams {
    /// Plain sampling at temperature 1 of up to 256 ids.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            no_repeat_ngram_size: 0,
            encoder_no_repeat_ngram_size: 0,
            bad_words_ids: Vec::new(),
            suppress_tokens: Vec::new(),
            forced_bos_token_id: None,
            forced_eos_token_id: None,
            max_new_tokens: 256,
            min_new_tokens: 0,
            stop_ids: Vec::new(),
            record: Record::Nothing,
            likeliest: 0,
            untempered: false,
        }
    }
}

impl SamplingParams {
    /// The same with these first and last ids forced, unless others are.
    #[must_use]
    pub fn forcing(self, [first, last]: [Option<u32>; 2]) -> Self {
        Self {
            forced_bos_token_id: self.forced_bos_token_id.or(first),
            forced_eos_token_id: self.forced_eos_token_id.or(last),
            ..self
        }
    }

    /// The temperature of the log-probabilities that are told: 1 when greedy.
    pub fn logprob_temperature(&self) -> f32 {
        if self.untempered || self.temperature == 0.0 { 1.0 } else { self.temperature }
    }

    pub(super) fn truncates(&self) -> bool {
        self.top_k.is_some() || self.top_p < 1.0 || self.min_p > 0.0 || self.typical_p < 1.0
    }

    /// Refuses values without meaning.
    ///
    /// # Errors
    /// [`Error::Input`] with the value and its bounds.
    pub fn check(&self) -> Result<()> {
        let bounds = [
            ("temperature", self.temperature, self.temperature >= 0.0 && self.temperature.is_finite(), "at least 0"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("typical_p", self.typical_p, self.typical_p > 0.0 && self.typical_p <= 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "between 0 and 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite(),
                "above 0",
            ),
        ];
        for (name, value, holds, wanted) in bounds {
            if !holds {
                return Err(Error::input(format!("`{name}` is {value}, but must be {wanted}")));
            }
        }
        if self.top_k == Some(0) {
            return Err(Error::input("`top_k` is 0, but must be at least 1").with_hint("leave it out to keep every id"));
        }
        if self.bad_words_ids.iter().any(Vec::is_empty) {
            return Err(Error::input("`bad_words_ids` holds an empty sequence, which every id would complete"));
        }
        Ok(())
    }

    /// Refuses ids that the model does not have.
    ///
    /// # Errors
    /// [`Error::Input`] with the id.
    pub(super) fn check_ids(&self, vocabulary: usize) -> Result<()> {
        let banned = self.bad_words_ids.iter().flatten().map(|id| ("bad_words_ids", id));
        let suppressed = self.suppress_tokens.iter().map(|id| ("suppress_tokens", id));
        let first = self.forced_bos_token_id.iter().map(|id| ("forced_bos_token_id", id));
        let last = self.forced_eos_token_id.iter().map(|id| ("forced_eos_token_id", id));
        match banned.chain(suppressed).chain(first).chain(last).find(|(_, id)| **id as usize >= vocabulary) {
            Some((name, id)) => {
                Err(Error::input(format!("`{name}` names token {id}, but the model's vocabulary has {vocabulary} ids")))
            }
            None => Ok(()),
        }
    }
}

/// Which ids are recorded as those that a token could have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// None.
    Nothing,
    /// Those that were left to draw from, after everything.
    Drawn,
    /// Those that a mask left, whatever else was taken out.
    Mask,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_without_meaning_are_refused() {
        let plain = SamplingParams::default;
        assert!(plain().check().is_ok());
        for (params, word) in [
            (SamplingParams { temperature: -1.0, ..plain() }, "`temperature` is -1"),
            (SamplingParams { top_p: 0.0, ..plain() }, "`top_p` is 0"),
            (SamplingParams { min_p: f32::NAN, ..plain() }, "`min_p` is NaN"),
            (SamplingParams { typical_p: 0.0, ..plain() }, "`typical_p` is 0"),
            (SamplingParams { repetition_penalty: 0.0, ..plain() }, "`repetition_penalty` is 0"),
            (SamplingParams { top_k: Some(0), ..plain() }, "`top_k` is 0"),
            (SamplingParams { bad_words_ids: vec![vec![1], Vec::new()], ..plain() }, "an empty sequence"),
        ] {
            let message = params.check().expect_err("refused").to_string();
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn ids_that_the_model_does_not_have_are_refused() {
        let plain = SamplingParams::default;
        for (params, name) in [
            (SamplingParams { bad_words_ids: vec![vec![1, 9]], ..plain() }, "bad_words_ids"),
            (SamplingParams { suppress_tokens: vec![9], ..plain() }, "suppress_tokens"),
            (SamplingParams { forced_bos_token_id: Some(9), ..plain() }, "forced_bos_token_id"),
            (SamplingParams { forced_eos_token_id: Some(9), ..plain() }, "forced_eos_token_id"),
        ] {
            let message = params.check_ids(9).expect_err("refused").to_string();
            assert_eq!(message, format!("`{name}` names token 9, but the model's vocabulary has 9 ids"));
            assert!(params.check_ids(10).is_ok());
        }
    }
}
