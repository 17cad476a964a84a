//! Sampling settings of one request.

use crate::error::{Error, Result};

/// Sampling settings. Names and meanings are those of transformers' `GenerationConfig`.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divisor of the logits, at least 1e-30; 0 takes the likeliest id.
    pub temperature: f32,
    /// Number of likeliest ids to sample from, including ids that tie with the last one.
    pub top_k: Option<usize>,
    /// Sample from the smallest set of likeliest ids with at least this total probability; 1 keeps all.
    pub top_p: f32,
    /// Sample only ids with at least this share of the likeliest id's probability; 0 keeps all.
    pub min_p: f32,
    /// Sample from the ids whose information is closest to the entropy: the smallest set with at least this total
    /// probability ([locally typical sampling](https://arxiv.org/abs/2202.00666)); 1 keeps all.
    pub typical_p: f32,
    /// Divisor of the positive logits of ids that have already occurred, and factor of the negative ones; 1 has no effect.
    pub repetition_penalty: f32,
    /// Length of id sequences that may not occur twice, including in the prompt; 0 has no effect.
    pub no_repeat_ngram_size: usize,
    /// Length of id sequences of the prompt that may not occur in the completion; 0 has no effect.
    pub encoder_no_repeat_ngram_size: usize,
    /// Sequences of ids that are never completed. A single stop id is not banned.
    pub bad_words_ids: Vec<Vec<u32>>,
    /// Ids that are never sampled.
    pub suppress_tokens: Vec<u32>,
    /// First id of a completion, regardless of the model. Without an encoder, only prompts of one token are accepted:
    /// transformers forces no id after longer ones.
    pub forced_bos_token_id: Option<u32>,
    /// Last id of a completion of `max_new_tokens` ids, regardless of the model.
    pub forced_eos_token_id: Option<u32>,
    /// Maximum number of ids in a completion.
    pub max_new_tokens: usize,
    /// Number of ids before which no stop id is sampled.
    pub min_new_tokens: usize,
    /// Ids that end a completion.
    pub stop_ids: Vec<u32>,
    /// Which possible ids are recorded with each sampled id.
    pub record: Record,
    /// Number of likeliest ids that are reported with every sampled id.
    pub likeliest: usize,
    /// Whether reported log-probabilities are those at temperature 1, regardless of the temperature.
    pub untempered: bool,
}

impl Default for SamplingParams {
    /// Plain sampling at temperature 1, up to 256 ids.
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

/// Smallest temperature above 0. Logits that are divided by it stay finite.
const TEMPERATURE_MIN: f32 = 1e-30;

impl SamplingParams {
    /// Returns the settings with these forced first and last ids, unless others are already forced.
    #[must_use]
    pub fn forcing(self, [first, last]: [Option<u32>; 2]) -> Self {
        Self {
            forced_bos_token_id: self.forced_bos_token_id.or(first),
            forced_eos_token_id: self.forced_eos_token_id.or(last),
            ..self
        }
    }

    /// Returns the temperature of reported log-probabilities; 1 if greedy.
    pub fn logprob_temperature(&self) -> f32 {
        if self.untempered || self.temperature == 0.0 { 1.0 } else { self.temperature }
    }

    pub(super) fn truncates(&self) -> bool {
        self.top_k.is_some() || self.top_p < 1.0 || self.min_p > 0.0 || self.typical_p < 1.0
    }

    /// Whether a device that draws can apply these settings.
    pub(super) fn draws_on_device(&self) -> bool {
        self.typical_p >= 1.0 && self.record == Record::Nothing && self.likeliest == 0
    }

    /// Rejects invalid values.
    ///
    /// # Errors
    /// [`Error::Input`] with the value and its bounds.
    pub fn check(&self) -> Result<()> {
        let bounds = [
            (
                "temperature",
                self.temperature,
                self.temperature == 0.0 || (TEMPERATURE_MIN..=f32::MAX).contains(&self.temperature),
                "0, or at least 1e-30 and finite",
            ),
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
        for (name, value, holds, expected) in bounds {
            if !holds {
                return Err(Error::input(format!("`{name}` is {value}, but must be {expected}")));
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

    /// Returns the bad words. A single stop id is none.
    pub(super) fn bad_words(&self) -> impl Iterator<Item = &[u32]> {
        let is_stop = |word: &[u32]| matches!(word, [id] if self.stop_ids.contains(id));
        self.bad_words_ids.iter().map(Vec::as_slice).filter(move |word| !is_stop(word))
    }

    /// Returns the ids that must not come after `new` ids, whatever these are.
    pub(super) fn fixed_bans(&self, new: usize) -> Vec<u32> {
        let mut banned = self.suppress_tokens.clone();
        if new < self.min_new_tokens {
            banned.extend(&self.stop_ids);
        }
        banned.extend(self.bad_words().filter(|word| word.len() == 1).flatten());
        banned
    }

    /// Rejects ids outside the vocabulary, and bans that leave no id of it.
    ///
    /// # Errors
    /// [`Error::Input`] with the id, or with the names of the bans.
    pub(super) fn check_ids(&self, vocabulary: usize) -> Result<()> {
        let banned = self.bad_words_ids.iter().flatten().map(|id| ("bad_words_ids", id));
        let suppressed = self.suppress_tokens.iter().map(|id| ("suppress_tokens", id));
        let first = self.forced_bos_token_id.iter().map(|id| ("forced_bos_token_id", id));
        let last = self.forced_eos_token_id.iter().map(|id| ("forced_eos_token_id", id));
        match banned.chain(suppressed).chain(first).chain(last).find(|(_, id)| **id as usize >= vocabulary) {
            Some((name, id)) => {
                Err(Error::input(format!("`{name}` names token {id}, but the model's vocabulary has {vocabulary} ids")))
            }
            None if self.bans_all(vocabulary) => {
                let bans = "`suppress_tokens`, `bad_words_ids` and `min_new_tokens`";
                Err(Error::input(format!("{bans} ban all {vocabulary} ids of the vocabulary: none is left to sample"))
                    .with_hint("allow at least one id"))
            }
            None => Ok(()),
        }
    }

    fn bans_all(&self, vocabulary: usize) -> bool {
        let mut banned = self.fixed_bans(0);
        banned.retain(|&id| (id as usize) < vocabulary);
        banned.sort_unstable();
        banned.dedup();
        banned.len() == vocabulary
    }
}

/// Ids that are recorded as possible choices of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// No ids.
    Nothing,
    /// The ids that could be sampled in the end.
    Drawn,
    /// The ids that a mask kept, regardless of other restrictions.
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
            (SamplingParams { temperature: 1e-40, ..plain() }, "must be 0, or at least 1e-30"),
            (SamplingParams { temperature: f32::INFINITY, ..plain() }, "`temperature` is inf"),
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

    #[test]
    fn bans_that_leave_nothing_are_refused() {
        let plain = SamplingParams::default;
        for params in [
            SamplingParams { suppress_tokens: vec![2, 0, 1, 1], ..plain() },
            SamplingParams { suppress_tokens: vec![0], bad_words_ids: vec![vec![1], vec![2]], ..plain() },
            SamplingParams { suppress_tokens: vec![0, 1], stop_ids: vec![2], min_new_tokens: 1, ..plain() },
        ] {
            let message = params.check_ids(3).expect_err("refused").to_string();
            let expected = "ban all 3 ids of the vocabulary: none is left to sample";
            assert!(message.ends_with(expected), "{message}");
            assert!(params.check_ids(4).is_ok());
        }
        let stop =
            SamplingParams { suppress_tokens: vec![0, 1], stop_ids: vec![2], bad_words_ids: vec![vec![2]], ..plain() };
        assert!(stop.check_ids(3).is_ok(), "a stop id is no bad word");
    }
}
