//! The sampler: from one row of logits to one id.
//!
//! The order is temperature, processors of previous ids (`processors.rs`), the caller's mask, truncation
//! (`truncate.rs`) and the draw. The distribution that was sampled from is recorded with the id.

use gradus_kernels::{Draw, DrawChoice};
use rand::Rng;

use super::distribution::{Distribution, argmax};
use super::mask;
use super::params::Record;
use super::params::SamplingParams;
use super::processors::{self, Changes, History};
use super::truncate::truncate;
use crate::model::Support;
use crate::rng::Stream;

/// One sampled id.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The id.
    pub id: u32,
    /// Log-probability under the distribution it was sampled from, in nats; 0 if it was the only choice. If the support
    /// of a mask is recorded, it is normalized over that.
    pub sampled_logprob: f32,
    /// Log-probability under the model at the temperature (1 if greedy or requested), before all processing: the value
    /// that online methods recompute at the same temperature. NaN if the logits contain a NaN.
    pub logprob: f32,
    /// Ids that were possible, if recorded.
    pub support: Option<Support>,
    /// The requested number of likeliest ids with their log-probabilities, which are defined like `logprob`, likeliest first.
    pub likeliest: Vec<(u32, f32)>,
}

/// Samples one id from `logits_v`, which is overwritten. Draws one number from `rng`, but none at temperature 0 or for a forced id.
///
/// # Panics
/// If there are no logits, or the forced id has none.
pub fn choose(logits_v: &mut [f32], history: History<'_>, params: &SamplingParams, rng: &mut Stream) -> Choice {
    ProcessedLogits::new(logits_v, history, params).choose(logits_v, None, params, rng)
}

/// Returns the settings with which a device draws the id that [`choose`] would. Draws as many numbers from `rng`.
///
/// Typical-p, supports and lists of likeliest ids are left to the host ([`SamplingParams::draws_on_device`]).
pub(super) fn draw_of(history: History<'_>, params: &SamplingParams, vocabulary: usize, rng: &mut Stream) -> Draw {
    let forced = processors::forced(history, params);
    let choice = match forced {
        Some(id) => DrawChoice::Forced(id),
        None if params.temperature == 0.0 => DrawChoice::Greedy,
        None => DrawChoice::Sampled(rng.random()),
    };
    let Changes { penalized, banned } = match forced {
        Some(_) => Changes { penalized: Vec::new(), banned: Vec::new() },
        None => Changes::new(history, params, vocabulary),
    };
    let is_sampled = matches!(choice, DrawChoice::Sampled(_));
    Draw {
        choice,
        temperature: if params.temperature == 0.0 { 1.0 } else { params.temperature },
        untempered: params.untempered,
        penalty: params.repetition_penalty,
        penalized,
        banned,
        top_k: params.top_k.filter(|_| is_sampled).map_or(0, |k| u32::try_from(k).unwrap_or(u32::MAX)),
        top_p: if is_sampled { params.top_p } else { 1.0 },
        min_p: if is_sampled { params.min_p } else { 0.0 },
    }
}

/// Returns the log-probability of `id` under `logits_v` at temperature 1, and the `count` likeliest ids with theirs,
/// likeliest first: the values that [`choose`] reports for greedy sampling.
///
/// # Panics
/// If `id` has no logit.
pub fn logprobs_of(logits_v: &[f32], id: u32, count: usize) -> (f32, Vec<(u32, f32)>) {
    let all = Distribution::new(logits_v);
    (all.logprob(logits_v[id as usize]), all.likeliest(logits_v, count))
}

/// Replaces `logits_v` by the log-probabilities of the whole distribution that [`choose`] samples from; −∞ for ids that
/// are never sampled. At temperature 0, this is the distribution at temperature 1, whose likeliest id is taken.
///
/// # Panics
/// If the forced id has no logit.
pub fn processed_logprobs(logits_v: &mut [f32], history: History<'_>, params: &SamplingParams) {
    if let Some(id) = processors::forced(history, params) {
        logits_v.fill(f32::NEG_INFINITY);
        logits_v[id as usize] = 0.0;
        return;
    }
    scale(logits_v, params.temperature);
    processors::apply(logits_v, history, params);
    truncate(logits_v, params);
    let processed = Distribution::new(logits_v);
    logits_v.iter_mut().for_each(|logit| *logit = processed.logprob(*logit));
}

/// A row's logits after all processors, with the data to restore their original values.
#[derive(Debug)]
pub(super) struct ProcessedLogits {
    raw: Distribution,
    /// The distribution at temperature 1, if log-probabilities are reported for it, and the temperature.
    untempered: Option<(Distribution, f32)>,
    /// Original values of the changed logits.
    replaced: Vec<(usize, f32)>,
    forced: Option<u32>,
    likeliest: Vec<(u32, f32)>,
}

impl ProcessedLogits {
    /// Divides `logits_v` by the temperature and applies the processors.
    pub(super) fn new(logits_v: &mut [f32], history: History<'_>, params: &SamplingParams) -> Self {
        assert!(!logits_v.is_empty(), "logits of at least one id");
        let differs = params.logprob_temperature() != params.temperature && params.temperature != 0.0;
        let untempered = differs.then(|| (Distribution::new(logits_v), params.temperature));
        scale(logits_v, params.temperature);
        let raw = Distribution::new(logits_v);
        let likeliest = raw.likeliest(logits_v, params.likeliest);
        let forced = processors::forced(history, params);
        let replaced = if forced.is_some() { Vec::new() } else { processors::apply(logits_v, history, params) };
        Self { raw, untempered, replaced, forced, likeliest }
    }

    /// Samples an id, after applying the caller's `mask`.
    pub(super) fn choose(
        mut self,
        logits_v: &mut [f32],
        mask: Option<Support>,
        params: &SamplingParams,
        rng: &mut Stream,
    ) -> Choice {
        let likeliest = std::mem::take(&mut self.likeliest);
        if let Some(id) = self.forced {
            let logprob = self.reported_logprob(logits_v[id as usize]);
            return match mask {
                // A mask does not affect a forced id.
                Some(_) if params.record == Record::Mask => {
                    Choice { id, sampled_logprob: logprob, logprob, support: Some(Support::All), likeliest }
                }
                _ => {
                    let support = (params.record != Record::Nothing).then(|| Support::Ids([id].into()));
                    Choice { id, sampled_logprob: 0.0, logprob, support, likeliest }
                }
            };
        }
        let of_mask = mask.as_ref().filter(|_| params.record == Record::Mask).map(|support| {
            let restricted =
                if *support == Support::All { self.raw.clone() } else { self.restricted_to(logits_v, support) };
            (restricted, support.clone())
        });
        let is_masked = mask.is_some_and(|support| mask::apply(logits_v, &support));
        let is_greedy = params.temperature == 0.0;
        let is_changed = is_masked || !self.replaced.is_empty() || (params.truncates() && !is_greedy);
        let processed = match is_changed && !is_greedy {
            true => {
                truncate(logits_v, params);
                Distribution::new(logits_v)
            }
            false => self.raw.clone(),
        };
        let id = if is_greedy { argmax(logits_v) } else { processed.draw(logits_v, rng) };
        let raw = self.raw_logit(logits_v, id);
        let logprob = self.reported_logprob(raw);
        let (sampled_logprob, support) = match of_mask {
            Some((restricted, support)) if support.contains(id as u32) => (restricted.logprob(raw), Some(support)),
            // The mask would have left nothing to sample.
            Some(_) => (logprob, Some(Support::All)),
            None => {
                let drawn = if is_greedy { 0.0 } else { processed.logprob(logits_v[id]) };
                (drawn, (params.record != Record::Nothing).then(|| Support::of(logits_v)))
            }
        };
        Choice { id: id as u32, sampled_logprob, logprob, support, likeliest }
    }

    /// Returns the log-probability to report for an id whose logit at the temperature is `logit`.
    fn reported_logprob(&self, logit: f32) -> f32 {
        match &self.untempered {
            Some((model, temperature)) => model.logprob(logit * temperature),
            None => self.raw.logprob(logit),
        }
    }

    /// Returns the original logit of `id` at the temperature.
    fn raw_logit(&self, logits_v: &[f32], id: usize) -> f32 {
        self.replaced.iter().find(|(replaced, _)| *replaced == id).map_or(logits_v[id], |(_, logit)| *logit)
    }

    /// Returns the distribution at the temperature over `support`, before any other processing.
    fn restricted_to(&self, logits_v: &[f32], support: &Support) -> Distribution {
        let mut raw_v = logits_v.to_vec();
        self.replaced.iter().for_each(|(id, logit)| raw_v[*id] = *logit);
        mask::apply(&mut raw_v, support);
        Distribution::new(&raw_v)
    }
}

fn scale(logits_v: &mut [f32], temperature: f32) {
    if temperature != 0.0 && temperature != 1.0 {
        logits_v.iter_mut().for_each(|logit| *logit /= temperature);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rng::{Purpose, Seed};

    const PLAIN: fn() -> SamplingParams = SamplingParams::default;
    const NONE: History<'_> = History { ids: &[], new: 0, prompt: &[] };

    fn stream(index: u64) -> Stream {
        Seed(1).stream(Purpose::Rollout, 0, index)
    }

    fn log_softmax(logits: &[f32]) -> Vec<f64> {
        let partition = logits.iter().map(|&z| f64::from(z).exp()).sum::<f64>().ln();
        logits.iter().map(|&z| f64::from(z) - partition).collect()
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let probabilities = [0.5f32, 0.3, 0.15, 0.05];
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln() * 0.7).collect();
        let (mut counts, draws) = ([0usize; 4], 20_000);
        let params = SamplingParams { temperature: 0.7, ..PLAIN() };
        for i in 0..draws {
            let choice = choose(&mut logits.clone(), NONE, &params, &mut stream(i));
            counts[choice.id as usize] += 1;
            let expected = probabilities[choice.id as usize].ln();
            assert!((choice.logprob - expected).abs() < 1e-6 && choice.logprob == choice.sampled_logprob);
        }
        for (count, p) in counts.iter().zip(probabilities) {
            let (share, p) = (*count as f64 / draws as f64, f64::from(p));
            assert!((share - p).abs() < 3.5 * (p * (1.0 - p) / draws as f64).sqrt(), "{share} against {p}");
        }
    }

    #[test]
    fn greedy_takes_the_likeliest_and_reports_the_model_at_temperature_one() {
        let params = SamplingParams { temperature: 0.0, top_k: Some(1), ..PLAIN() };
        let choice = choose(&mut [1.0, 3.0, 3.0, 2.0], NONE, &params, &mut stream(0));
        assert_eq!((choice.id, choice.sampled_logprob), (1, 0.0));
        assert!((f64::from(choice.logprob) - log_softmax(&[1.0, 3.0, 3.0, 2.0])[1]).abs() < 1e-6);
    }

    #[test]
    fn the_penalty_moves_the_draw_but_not_the_recorded_logprob() {
        // 4/2 and −1·2: the ids that occurred lose their lead; `logprob` is that of the original logits.
        let params = SamplingParams { temperature: 0.0, repetition_penalty: 2.0, ..PLAIN() };
        let logits = [4.0, -1.0, 3.0, 0.0];
        let history = History::new(&[0, 1, 0, 99], 0);
        assert_eq!(choose(&mut logits.clone(), history, &params, &mut stream(0)).id, 2);

        let penalised = [2.0, -2.0, 3.0, 0.0];
        let params = SamplingParams { repetition_penalty: 2.0, ..PLAIN() };
        for i in 0..20 {
            let choice = choose(&mut logits.clone(), history, &params, &mut stream(i));
            let id = choice.id as usize;
            assert!((f64::from(choice.logprob) - log_softmax(&logits)[id]).abs() < 1e-6);
            assert!((f64::from(choice.sampled_logprob) - log_softmax(&penalised)[id]).abs() < 1e-6);
        }
    }

    #[test]
    fn banned_ids_are_never_drawn() {
        for temperature in [0.0, 1.0] {
            let params = SamplingParams { temperature, suppress_tokens: vec![0, 7], ..PLAIN() };
            for i in 0..50 {
                let choice = choose(&mut [5.0, 1.0, 1.0], NONE, &params, &mut stream(i));
                assert_ne!(choice.id, 0);
                let expected = log_softmax(&[5.0, 1.0, 1.0])[choice.id as usize];
                assert!((f64::from(choice.logprob) - expected).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn a_forced_id_keeps_the_logprob_that_the_model_gives_it() {
        let params = SamplingParams { forced_bos_token_id: Some(2), suppress_tokens: vec![2], ..PLAIN() };
        let choice = choose(&mut [5.0, 1.0, 1.0], NONE, &params, &mut stream(0));
        assert_eq!((choice.id, choice.sampled_logprob), (2, 0.0));
        assert!((f64::from(choice.logprob) - log_softmax(&[5.0, 1.0, 1.0])[2]).abs() < 1e-6);
    }

    /// FineGrainedRLHF's variant: sampled at a temperature from few ids, trained on the model's whole distribution.
    #[test]
    fn the_logprob_at_temperature_one_whatever_was_drawn_at() {
        let logits = [2.0, 1.0, 0.5, -1.0];
        let history = History::new(&[1], 0);
        let params = |temperature, untempered| SamplingParams {
            temperature,
            untempered,
            top_k: Some(2),
            repetition_penalty: 2.0,
            forced_bos_token_id: (!untempered).then_some(0),
            ..PLAIN()
        };
        for i in 0..20 {
            let choice = choose(&mut logits.clone(), history, &params(0.5, true), &mut stream(i));
            assert!((f64::from(choice.logprob) - log_softmax(&logits)[choice.id as usize]).abs() < 1e-6, "{choice:?}");
            // 1 is halved, and two of 4, 1, 1 and −2 remain.
            let left = if choice.id == 0 {
                (1.0 + 2.0 * (-3.0f64).exp()).recip().ln()
            } else {
                -3.0 - (1.0 + 2.0 * (-3.0f64).exp()).ln()
            };
            assert!((f64::from(choice.sampled_logprob) - left).abs() < 1e-6, "{choice:?}");
        }
        let forced = SamplingParams { untempered: true, ..params(0.5, false) };
        let choice = choose(&mut logits.clone(), NONE, &forced, &mut stream(0));
        assert!(choice.id == 0 && (f64::from(choice.logprob) - log_softmax(&logits)[0]).abs() < 1e-6, "{choice:?}");
    }

    /// RL4LMs' masked distribution: renormalized over the mask, or with logprobs over the whole vocabulary.
    #[test]
    fn logprobs_among_a_mask_and_among_everything() {
        let (logits, support) = ([2.0, 1.0, 0.0, -1.0], Support::Ids([0, 1].into()));
        let mut seen = [false; 4];
        for i in 0..40 {
            let params = SamplingParams { record: Record::Mask, ..PLAIN() };
            let mut logits_v = logits;
            let processed = ProcessedLogits::new(&mut logits_v, NONE, &params);
            let choice = processed.choose(&mut logits_v, Some(support.clone()), &params, &mut stream(i));
            let id = choice.id as usize;
            seen[id] = true;
            let (restricted, whole) = [(-0.3133, -0.4402), (-1.3133, -1.4402)][id];
            assert!(
                (choice.sampled_logprob - restricted).abs() < 5e-5 && (choice.logprob - whole).abs() < 5e-5,
                "{choice:?}"
            );
            assert_eq!(choice.support, Some(support.clone()));
        }
        assert_eq!(seen, [true, true, false, false]);
    }

    /// The recorded support does not reflect truncation and bans.
    #[test]
    fn the_support_of_a_mask_is_the_masks_alone() {
        let support = Support::Ids([0, 1, 3].into());
        for i in 0..20 {
            let params = SamplingParams {
                record: Record::Mask,
                top_k: Some(1),
                suppress_tokens: vec![0],
                temperature: 0.5,
                ..PLAIN()
            };
            let mut logits_v = [1.0, 0.5, 0.75, 0.0];
            let processed = ProcessedLogits::new(&mut logits_v, NONE, &params);
            let choice = processed.choose(&mut logits_v, Some(support.clone()), &params, &mut stream(i));
            assert_eq!((choice.id, choice.support), (1, Some(support.clone())), "0 is banned, 2 masked, 3 cut off");
            let expected = log_softmax(&[2.0, 1.0, 0.0])[1];
            assert!((f64::from(choice.sampled_logprob) - expected).abs() < 1e-6, "{}", choice.sampled_logprob);
        }
        // A mask that would leave nothing does not apply.
        let params = SamplingParams { record: Record::Mask, suppress_tokens: vec![0], ..PLAIN() };
        let mut logits_v = [1.0, 0.5];
        let processed = ProcessedLogits::new(&mut logits_v, NONE, &params);
        let choice = processed.choose(&mut logits_v, Some(Support::Ids([0].into())), &params, &mut stream(0));
        assert_eq!((choice.id, choice.support), (1, Some(Support::All)));
        assert!(choice.sampled_logprob == choice.logprob);
    }

    #[test]
    fn what_could_be_drawn_is_recorded() {
        let logits = [4.0, 3.0, 2.0, 1.0, 0.0];
        let recorded = |params: SamplingParams| {
            let params = SamplingParams { record: Record::Drawn, ..params };
            let support = choose(&mut logits.clone(), NONE, &params, &mut stream(0)).support.expect("recorded");
            (0..5).filter(|&id| support.contains(id)).collect::<Vec<u32>>()
        };
        assert_eq!(recorded(PLAIN()), [0, 1, 2, 3, 4]);
        assert_eq!(recorded(SamplingParams { top_k: Some(2), ..PLAIN() }), [0, 1]);
        assert_eq!(recorded(SamplingParams { top_k: Some(2), suppress_tokens: vec![1], ..PLAIN() }), [0, 2]);
        assert_eq!(recorded(SamplingParams { forced_bos_token_id: Some(3), ..PLAIN() }), [3]);
        assert_eq!(choose(&mut logits.clone(), NONE, &PLAIN(), &mut stream(0)).support, None);
    }

    #[test]
    fn broken_logits_are_visible_and_do_not_panic() {
        for logits in [[f32::NAN; 3], [f32::NEG_INFINITY; 3], [1.0, f32::NAN, 2.0], [f32::INFINITY, 0.0, 0.0]] {
            for params in [
                PLAIN(),
                SamplingParams { temperature: 0.0, ..PLAIN() },
                SamplingParams { top_k: Some(2), top_p: 0.9, min_p: 0.1, repetition_penalty: 1.3, ..PLAIN() },
            ] {
                let choice = choose(&mut logits.clone(), History::new(&[0], 1), &params, &mut stream(0));
                assert!(choice.id < 3 && !choice.logprob.is_finite(), "{logits:?} {choice:?}");
            }
        }
        assert_eq!(choose(&mut [0.3], NONE, &PLAIN(), &mut stream(0)).logprob, 0.0);
    }

    proptest! {
        #[test]
        fn what_is_drawn_is_in_the_support_and_its_logprobs_are_right(
            logits in prop::collection::vec(-8.0f32..8.0, 2..600), seed in 0u64..1000,
        ) {
            let params = SamplingParams { temperature: 0.8, top_k: Some(20), top_p: 0.9, ..PLAIN() };
            let choice = choose(&mut logits.clone(), NONE, &params, &mut stream(seed));
            let scaled: Vec<f32> = logits.iter().map(|z| z / 0.8).collect();
            let mut left = scaled.clone();
            truncate(&mut left, &params);
            let support: Vec<usize> = (0..left.len()).filter(|&id| left[id] > f32::NEG_INFINITY).collect();
            prop_assert!(support.contains(&(choice.id as usize)));
            let all = log_softmax(&scaled);
            let mass = support.iter().map(|&id| all[id].exp()).sum::<f64>().ln();
            prop_assert!((f64::from(choice.logprob) - all[choice.id as usize]).abs() < 2e-6);
            prop_assert!((f64::from(choice.sampled_logprob) - (all[choice.id as usize] - mass)).abs() < 2e-6);
        }
    }
}
