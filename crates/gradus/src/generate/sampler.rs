//! The sampler: from one row of logits to one id.
//!
//! Repetition penalty, temperature, top-k, top-p and min-p in the order and with the meaning of transformers 5.23; where
//! logits tie at the edge of the nucleus, the higher id stays, as there on a CPU. Nothing here sorts the vocabulary:
//! every stage is one pass, or a selection from what one pass leaves over.

use gradus_kernels::{exp_or_zero as exp, maximum, sum_exp};
use rand::Rng;

use crate::error::{Error, Result};
use crate::rng::Stream;

/// How completions are drawn.
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
    /// Logits of ids already there are divided by it when positive, multiplied when negative; 1 does nothing.
    pub repetition_penalty: f32,
    /// The most ids of a completion.
    pub max_new_tokens: usize,
    /// Stop ids are not drawn before this many ids.
    pub min_new_tokens: usize,
    /// Ids that end a completion.
    pub stop_ids: Vec<u32>,
}

impl Default for SamplingParams {
    /// Plain sampling at temperature 1 of up to 256 ids.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            max_new_tokens: 256,
            min_new_tokens: 0,
            stop_ids: Vec::new(),
        }
    }
}

impl SamplingParams {
    /// Whether ids are drawn from exactly the distribution that training sees: no truncation, no penalty, no greed.
    pub fn is_plain(&self) -> bool {
        self.temperature > 0.0 && !self.truncates() && self.repetition_penalty == 1.0 && self.min_new_tokens == 0
    }

    fn truncates(&self) -> bool {
        self.top_k.is_some() || self.top_p < 1.0 || self.min_p > 0.0
    }

    /// Refuses values without meaning.
    ///
    /// # Errors
    /// [`Error::Input`] with the value and its bounds.
    pub fn check(&self) -> Result<()> {
        let bounds = [
            ("temperature", self.temperature, self.temperature >= 0.0 && self.temperature.is_finite(), "at least 0"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
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
        Ok(())
    }
}

/// One drawn id.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The id.
    pub id: u32,
    /// Its log-probability under the distribution it was drawn from, in nats; 0 when it was the only choice.
    pub sampled_logprob: f32,
    /// Its log-probability under the model at the temperature (1 when greedy), before penalty and truncation: what the
    /// trainer recomputes. NaN when the logits hold a NaN.
    pub logprob: f32,
}

/// Draws one id from `logits_v`, which is overwritten.
///
/// `history` are the ids so far, prompt included: what the repetition penalty looks at. Draws one number from `rng`,
/// none at temperature 0. `min_new_tokens` and `stop_ids` are the caller's to watch, with [`choose_except`].
///
/// # Panics
/// When there are no logits.
pub fn choose(logits_v: &mut [f32], history: &[u32], params: &SamplingParams, rng: &mut Stream) -> Choice {
    choose_except(logits_v, history, &[], params, rng)
}

/// As [`choose`], but never an id of `excluded`.
///
/// # Panics
/// When there are no logits.
pub fn choose_except(
    logits_v: &mut [f32],
    history: &[u32],
    excluded: &[u32],
    params: &SamplingParams,
    rng: &mut Stream,
) -> Choice {
    assert!(!logits_v.is_empty(), "logits of at least one id");
    let is_greedy = params.temperature == 0.0;
    scale(logits_v, params.temperature);
    let unwarped = Distribution::new(logits_v);
    let replaced = penalise(logits_v, history, excluded, params.repetition_penalty);

    let is_warped = !replaced.is_empty() || (params.truncates() && !is_greedy);
    let warped = match is_warped && !is_greedy {
        true => {
            truncate(logits_v, params);
            Distribution::new(logits_v)
        }
        false => unwarped.clone(),
    };
    let id = if is_greedy { argmax(logits_v) } else { warped.draw(logits_v, rng) };
    let raw = replaced.iter().find(|(replaced, _)| *replaced == id).map_or(logits_v[id], |(_, logit)| *logit);
    Choice {
        id: id as u32,
        sampled_logprob: if is_greedy { 0.0 } else { warped.logprob(logits_v[id]) },
        logprob: unwarped.logprob(raw),
    }
}

/// The log-probabilities of the whole distribution that [`choose`] draws from, in place of `logits_v`; −∞ for what is
/// never drawn. At temperature 0 this is the distribution at temperature 1 whose likeliest id is taken.
pub fn warped_logprobs(logits_v: &mut [f32], history: &[u32], params: &SamplingParams) {
    scale(logits_v, params.temperature);
    penalise(logits_v, history, &[], params.repetition_penalty);
    truncate(logits_v, params);
    let warped = Distribution::new(logits_v);
    logits_v.iter_mut().for_each(|logit| *logit = warped.logprob(*logit));
}

fn scale(logits_v: &mut [f32], temperature: f32) {
    if temperature != 0.0 && temperature != 1.0 {
        logits_v.iter_mut().for_each(|logit| *logit /= temperature);
    }
}

/// The likeliest id, the lowest of several.
fn argmax(logits_v: &[f32]) -> usize {
    let largest = maximum(logits_v);
    logits_v.iter().position(|logit| *logit == largest).unwrap_or(0)
}

/// Divides the positive and multiplies the negative logits of `history` by `penalty`, and takes `excluded` out.
/// Returns what the changed logits were. Ids beyond the vocabulary are passed over.
///
/// Keskar et al. 2019 (CTRL), section 4.1, <https://arxiv.org/abs/1909.05858>; the two cases as in transformers.
fn penalise(logits_v: &mut [f32], history: &[u32], excluded: &[u32], penalty: f32) -> Vec<(usize, f32)> {
    let penalised: &[u32] = if penalty == 1.0 { &[] } else { history };
    let mut ids: Vec<usize> = penalised.iter().chain(excluded).map(|&id| id as usize).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.retain(|&id| id < logits_v.len());
    let replaced: Vec<(usize, f32)> = ids.iter().map(|&id| (id, logits_v[id])).collect();
    if penalty != 1.0 {
        for &(id, logit) in &replaced {
            logits_v[id] = if logit < 0.0 { logit * penalty } else { logit / penalty };
        }
    }
    for &id in excluded {
        if let Some(logit) = logits_v.get_mut(id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
    replaced
}

/// Sets to −∞ what top-k, then top-p, then min-p leave out.
fn truncate(logits_v: &mut [f32], params: &SamplingParams) {
    if let Some(k) = params.top_k.filter(|&k| k < logits_v.len()) {
        let smallest = kth_largest(logits_v, k.max(1));
        drop_below(logits_v, smallest);
    }
    if params.top_p < 1.0 {
        keep_nucleus(logits_v, f64::from(params.top_p));
    }
    if params.min_p > 0.0 {
        let edge = maximum(logits_v) + params.min_p.ln();
        drop_below(logits_v, edge);
    }
}

fn drop_below(logits_v: &mut [f32], edge: f32) {
    logits_v.iter_mut().for_each(|logit| *logit = if *logit < edge { f32::NEG_INFINITY } else { *logit });
}

/// The `k`-th largest of the logits, `k` from 1.
///
/// One pass that collects what beats the smallest of the best `k` seen so far; the collection is cut back to `k`
/// whenever it has grown to twice that.
fn kth_largest(logits_v: &[f32], k: usize) -> f32 {
    let descending = |a: &f32, b: &f32| b.total_cmp(a);
    let room = (2 * k).max(64);
    let mut best: Vec<f32> = Vec::with_capacity(room);
    let mut edge = f32::NEG_INFINITY;
    for &logit in logits_v {
        if logit >= edge {
            best.push(logit);
            if best.len() == room {
                edge = *best.select_nth_unstable_by(k - 1, descending).1;
                best.truncate(k);
            }
        }
    }
    // Fewer than k only when the rest are NaN.
    let last = k.min(best.len()).saturating_sub(1);
    if best.is_empty() { f32::NEG_INFINITY } else { *best.select_nth_unstable_by(last, descending).1 }
}

/// Bins per nat of the histogram that finds the edge of the nucleus.
const BINS_PER_NAT: f32 = 32.0;
/// Bins in all: 64 nats, below which nothing has mass.
const BINS: usize = 2048;

/// Keeps the fewest ids that together have probability `top_p` or more.
///
/// Mass is first summed into bins by distance from the largest logit; only the bin in which `top_p` is reached is sorted.
fn keep_nucleus(logits_v: &mut [f32], top_p: f64) {
    let maximum = maximum(logits_v);
    if !maximum.is_finite() {
        return;
    }
    // `as usize` takes −∞ (a distance of +∞) to the last bin and NaN to the first.
    let bin = |logit: f32| (((maximum - logit) * BINS_PER_NAT) as usize).min(BINS - 1);
    let mut mass = vec![0.0f64; BINS];
    for &logit in logits_v.iter().filter(|logit| **logit > f32::NEG_INFINITY) {
        mass[bin(logit)] += f64::from(exp(logit - maximum));
    }
    let wanted = top_p * mass.iter().sum::<f64>();
    let (mut before, mut edge) = (0.0, 0);
    while edge + 1 < BINS && before + mass[edge] < wanted {
        before += mass[edge];
        edge += 1;
    }
    let in_edge =
        |(id, logit): (usize, &f32)| (bin(*logit) == edge && *logit > f32::NEG_INFINITY).then_some((*logit, id));
    let mut candidates: Vec<(f32, usize)> = logits_v.iter().enumerate().filter_map(in_edge).collect();
    candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    let kept = candidates.iter().take_while(|(logit, _)| {
        let is_needed = before < wanted;
        before += f64::from(exp(logit - maximum));
        is_needed
    });
    let kept = kept.count().max(usize::from(edge == 0));
    for (logit, id) in &candidates[kept.min(candidates.len())..] {
        debug_assert!(logits_v[*id] == *logit || logit.is_nan());
        logits_v[*id] = f32::NEG_INFINITY;
    }
    logits_v.iter_mut().for_each(|logit| *logit = if bin(*logit) > edge { f32::NEG_INFINITY } else { *logit });
}

/// Ids whose mass is summed before the next sum is started: a draw walks over blocks, then within one.
const BLOCK: usize = 256;

/// `softmax(logits)`, as the sums of its blocks.
#[derive(Debug, Clone)]
struct Distribution {
    maximum: f32,
    /// `Σ exp(logit − maximum)` over each block.
    masses: Vec<f64>,
    mass: f64,
}

impl Distribution {
    fn new(logits_v: &[f32]) -> Self {
        let maximum = maximum(logits_v);
        let masses: Vec<f64> = logits_v.chunks(BLOCK).map(|block| f64::from(sum_exp(block, maximum))).collect();
        let mass = masses.iter().sum();
        Self { maximum, masses, mass }
    }

    fn logprob(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.maximum) - self.mass.ln()) as f32
    }

    /// The id at which the summed mass first exceeds a uniform share of the whole.
    fn draw(&self, logits_v: &[f32], rng: &mut Stream) -> usize {
        let mut left = rng.random::<f64>() * self.mass;
        for (block, &mass) in self.masses.iter().enumerate() {
            if left >= mass {
                left -= mass;
                continue;
            }
            let (start, mut last) = (block * BLOCK, None);
            for (offset, &logit) in logits_v[start..].iter().take(BLOCK).enumerate() {
                let mass = f64::from(exp(logit - self.maximum));
                if mass > 0.0 {
                    if left < mass {
                        return start + offset;
                    }
                    left -= mass;
                    last = Some(start + offset);
                }
            }
            // Rounding: the parts of a block can sum to a little less than the block.
            return last.unwrap_or(start);
        }
        argmax(logits_v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, Seed};
    use proptest::prelude::*;

    fn stream(index: u64) -> Stream {
        Seed(1).stream(Purpose::Rollout, 0, index)
    }

    fn kept(logits: &[f32], params: &SamplingParams) -> Vec<usize> {
        let mut logits_v = logits.to_vec();
        truncate(&mut logits_v, params);
        (0..logits.len()).filter(|&id| logits_v[id] > f32::NEG_INFINITY).collect()
    }

    fn log_softmax(logits: &[f32]) -> Vec<f64> {
        let partition = logits.iter().map(|&z| f64::from(z).exp()).sum::<f64>().ln();
        logits.iter().map(|&z| f64::from(z) - partition).collect()
    }

    const PLAIN: fn() -> SamplingParams = SamplingParams::default;

    #[test]
    fn exp_is_exact_enough_everywhere_it_is_used() {
        let mut worst = 0.0f64;
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            worst = worst.max((f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs());
        }
        assert!(worst < 2.5e-7, "{worst}");
        assert_eq!([exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)], [1.0, 0.0, 0.0]);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let probabilities = [0.5f32, 0.3, 0.15, 0.05];
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln() * 0.7).collect();
        let (mut counts, draws) = ([0usize; 4], 20_000);
        let params = SamplingParams { temperature: 0.7, ..PLAIN() };
        for i in 0..draws {
            let choice = choose(&mut logits.clone(), &[], &params, &mut stream(i));
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
        let choice = choose(&mut [1.0, 3.0, 3.0, 2.0], &[], &params, &mut stream(0));
        assert_eq!((choice.id, choice.sampled_logprob), (1, 0.0));
        assert!((f64::from(choice.logprob) - log_softmax(&[1.0, 3.0, 3.0, 2.0])[1]).abs() < 1e-6);
    }

    #[test]
    fn the_penalty_moves_the_draw_but_not_the_recorded_logprob() {
        // 4/2 and −1·2: the ids seen lose their lead; `logprob` is that of the untouched logits.
        let params = SamplingParams { temperature: 0.0, repetition_penalty: 2.0, ..PLAIN() };
        let logits = [4.0, -1.0, 3.0, 0.0];
        let choice = choose(&mut logits.clone(), &[0, 1, 0, 99], &params, &mut stream(0));
        assert_eq!(choice.id, 2);
        let mut penalised = logits;
        penalise(&mut penalised, &[0, 1, 0, 99], &[], 2.0);
        assert_eq!(penalised, [2.0, -2.0, 3.0, 0.0]);

        let params = SamplingParams { repetition_penalty: 2.0, ..PLAIN() };
        for i in 0..20 {
            let choice = choose(&mut logits.clone(), &[0, 1], &params, &mut stream(i));
            let id = choice.id as usize;
            assert!((f64::from(choice.logprob) - log_softmax(&logits)[id]).abs() < 1e-6);
            assert!((f64::from(choice.sampled_logprob) - log_softmax(&penalised)[id]).abs() < 1e-6);
        }
    }

    #[test]
    fn excluded_ids_are_never_drawn() {
        for temperature in [0.0, 1.0] {
            let params = SamplingParams { temperature, ..PLAIN() };
            for i in 0..50 {
                let choice = choose_except(&mut [5.0, 1.0, 1.0], &[], &[0, 7], &params, &mut stream(i));
                assert_ne!(choice.id, 0);
                let expected = log_softmax(&[5.0, 1.0, 1.0])[choice.id as usize];
                assert!((f64::from(choice.logprob) - expected).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn truncation_by_hand() {
        let logits: Vec<f32> = [0.4f32, 0.1, 0.3, 0.2].iter().map(|p| p.ln()).collect();
        for (params, expected) in [
            (SamplingParams { top_k: Some(2), ..PLAIN() }, vec![0, 2]),
            (SamplingParams { top_k: Some(9), ..PLAIN() }, vec![0, 1, 2, 3]),
            (SamplingParams { top_p: 0.65, ..PLAIN() }, vec![0, 2]),
            (SamplingParams { top_p: 0.75, ..PLAIN() }, vec![0, 2, 3]),
            (SamplingParams { top_p: 1e-6, ..PLAIN() }, vec![0]),
            (SamplingParams { min_p: 0.45, ..PLAIN() }, vec![0, 2, 3]),
            (SamplingParams { min_p: 1.0, ..PLAIN() }, vec![0]),
            // 0.4/0.7 = 0.571 of what top-k leaves: the nucleus looks at the renormalised two.
            (SamplingParams { top_k: Some(2), top_p: 0.56, ..PLAIN() }, vec![0]),
        ] {
            assert_eq!(kept(&logits, &params), expected, "{params:?}");
        }
        // Ties: top-k keeps all that tie with the last, the nucleus keeps the higher ids.
        assert_eq!(kept(&[1.0, 2.0, 1.0, 0.0], &SamplingParams { top_k: Some(2), ..PLAIN() }), [0, 1, 2]);
        assert_eq!(kept(&[0.0; 4], &SamplingParams { top_p: 0.5, ..PLAIN() }), [2, 3]);
    }

    #[test]
    fn broken_logits_are_visible_and_do_not_panic() {
        for logits in [[f32::NAN; 3], [f32::NEG_INFINITY; 3], [1.0, f32::NAN, 2.0], [f32::INFINITY, 0.0, 0.0]] {
            for params in [
                PLAIN(),
                SamplingParams { temperature: 0.0, ..PLAIN() },
                SamplingParams { top_k: Some(2), top_p: 0.9, min_p: 0.1, repetition_penalty: 1.3, ..PLAIN() },
            ] {
                let choice = choose(&mut logits.clone(), &[0], &params, &mut stream(0));
                assert!(choice.id < 3 && !choice.logprob.is_finite(), "{logits:?} {choice:?}");
            }
        }
        assert_eq!(choose(&mut [0.3], &[], &PLAIN(), &mut stream(0)).logprob, 0.0);
    }

    #[test]
    fn values_without_meaning_are_refused() {
        assert!(PLAIN().check().is_ok() && PLAIN().is_plain());
        for (params, word) in [
            (SamplingParams { temperature: -1.0, ..PLAIN() }, "`temperature` is -1"),
            (SamplingParams { top_p: 0.0, ..PLAIN() }, "`top_p` is 0"),
            (SamplingParams { min_p: f32::NAN, ..PLAIN() }, "`min_p` is NaN"),
            (SamplingParams { repetition_penalty: 0.0, ..PLAIN() }, "`repetition_penalty` is 0"),
            (SamplingParams { top_k: Some(0), ..PLAIN() }, "`top_k` is 0"),
        ] {
            let message = params.check().expect_err("refused").to_string();
            assert!(message.contains(word), "{message}");
        }
    }

    proptest! {
        /// Against the definitions, with the vocabulary sorted.
        #[test]
        fn truncation_agrees_with_sorting(
            logits in prop::collection::vec(-8.0f32..8.0, 2..600), k in 1usize..80, top_p in 0.01f32..1.0, min_p in 0.0f32..0.5,
        ) {
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            let mut expected = order[..k.min(order.len())].to_vec();
            expected.sort_unstable();
            prop_assert_eq!(kept(&logits, &SamplingParams { top_k: Some(k), ..PLAIN() }), expected);

            let probabilities: Vec<f64> = log_softmax(&logits).iter().map(|l| l.exp()).collect();
            let (mut before, mut nucleus, mut is_close) = (0.0, Vec::new(), false);
            for &id in &order {
                is_close |= (before - f64::from(top_p)).abs() < 1e-5;
                if before >= f64::from(top_p) { break }
                nucleus.push(id);
                before += probabilities[id];
            }
            nucleus.sort_unstable();
            if !is_close {
                prop_assert_eq!(kept(&logits, &SamplingParams { top_p, ..PLAIN() }), nucleus);
            }

            let edge = probabilities[order[0]] * f64::from(min_p);
            let near = |p: f64| (p / edge - 1.0).abs() < 1e-5;
            if !probabilities.iter().any(|&p| near(p)) {
                let expected: Vec<usize> = (0..logits.len()).filter(|&id| probabilities[id] >= edge).collect();
                prop_assert_eq!(kept(&logits, &SamplingParams { min_p, ..PLAIN() }), expected);
            }
        }

        #[test]
        fn what_is_drawn_is_in_the_support_and_its_logprobs_are_right(
            logits in prop::collection::vec(-8.0f32..8.0, 2..600), seed in 0u64..1000,
        ) {
            let params = SamplingParams { temperature: 0.8, top_k: Some(20), top_p: 0.9, ..PLAIN() };
            let choice = choose(&mut logits.clone(), &[], &params, &mut stream(seed));
            let scaled: Vec<f32> = logits.iter().map(|z| z / 0.8).collect();
            let support = kept(&scaled, &params);
            prop_assert!(support.contains(&(choice.id as usize)));
            let all = log_softmax(&scaled);
            let mass = support.iter().map(|&id| all[id].exp()).sum::<f64>().ln();
            prop_assert!((f64::from(choice.logprob) - all[choice.id as usize]).abs() < 2e-6);
            prop_assert!((f64::from(choice.sampled_logprob) - (all[choice.id as usize] - mass)).abs() < 2e-6);
        }
    }
}
