//! Warnings about common training failures, derived from the completions of a run while it trains.
//!
//! Every check is a pure function from statistics of the first and the last steps to a [`Reading`]. [`Watch`] stores both and reports each
//! kind once until it has recovered. Thresholds are constants next to their check. Those without a source are ours: far enough from healthy
//! runs to deserve a look. Nothing else depends on them.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::algorithm::Experience;
use crate::math::stats;
use crate::reward::{self, Score};
use crate::rollout::StopReason;

#[cfg(test)]
mod tests;

/// Number of first steps, with which later ones are compared.
const FIRST: usize = 10;
/// Number of last steps that are averaged, because a single batch is too noisy.
const LAST: usize = 10;
/// Minimum number of steps for checks that do not compare with the beginning.
const FEW: usize = 5;

/// Statistics of the completions of one step.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StepStats {
    /// Mean tokens per completion.
    pub length: f64,
    /// Nats per token: the mean of `−logprob` over sampled tokens, an unbiased estimate.
    pub entropy: f64,
    /// Share of groups with equal rewards; `None` for groups of one completion.
    pub flat_groups: Option<f64>,
    /// Mean of [`repeated`] over completions.
    pub repetition: f64,
    /// Share of completions that reached `max_new_tokens`; absent in older runs.
    #[serde(default)]
    pub cut_off: f64,
    /// Nats per completion; `None` without a reference.
    pub kl: Option<f64>,
    /// Parts of the reward that have values.
    pub parts: Vec<PartStats>,
    /// Parts whose models have an input limit; absent in older runs.
    #[serde(default)]
    pub unread: Vec<Unread>,
}

/// Inputs of a part of the reward that did not fit into its model in one step: segments or texts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unread {
    /// Name of the part.
    pub name: String,
    /// Number of inputs that did not fit.
    pub lost: f64,
    /// Number of all inputs.
    pub of: f64,
}

/// Statistics of one part of the reward in one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartStats {
    /// Its name.
    pub name: String,
    /// 1 if a larger value is better, −1 for a negative weight.
    pub sign: f64,
    /// Mean over completions.
    pub mean: f64,
    /// Standard deviation over completions.
    pub std: f64,
}

impl StepStats {
    /// Computes the statistics of a scored batch of rollouts.
    pub fn of(experience: &Experience, scores: &[Score], kls: Option<&[f64]>) -> Self {
        let each = || experience.iter();
        let count = experience.len().max(1) as f64;
        let tokens: usize = each().map(|rollout| rollout.counted()).sum();
        let logprobs: f64 = each().flat_map(|rollout| rollout.counted_logprobs().into_owned()).map(f64::from).sum();
        let groups = experience.totals();
        let groups: Vec<_> = groups.chunks(experience.group_size.max(1)).collect();
        let flat = groups.iter().filter(|group| group.windows(2).all(|pair| pair[0] == pair[1])).count();
        let cut_off = each().filter(|rollout| rollout.stop == StopReason::Length).count();
        let mut parts: Vec<(&reward::RewardPart, Vec<f32>)> = Vec::new();
        for part in scores.iter().flat_map(|score| &score.parts).filter(|part| part.total().is_finite()) {
            match parts.iter_mut().find(|(known, _)| known.name == part.name) {
                Some((_, values)) => values.push(part.total()),
                None => parts.push((part, vec![part.total()])),
            }
        }
        let part = |(part, values): (&reward::RewardPart, Vec<f32>)| PartStats {
            name: part.name.clone(),
            sign: f64::from(part.weight.signum()),
            mean: values.iter().map(|&value| f64::from(value)).sum::<f64>() / values.len() as f64,
            std: stats::std(&values, stats::Variance::Unbiased).unwrap_or(0.0),
        };
        let mut unread: Vec<Unread> = Vec::new();
        for count in scores.iter().flat_map(|score| &score.counts) {
            let Some(name) = count.over_limit() else { continue };
            match unread.iter_mut().find(|known| known.name == name) {
                Some(known) => (known.lost, known.of) = (known.lost + count.sum, known.of + count.of),
                None => unread.push(Unread { name: name.to_owned(), lost: count.sum, of: count.of }),
            }
        }
        Self {
            length: tokens as f64 / count,
            entropy: -logprobs / tokens.max(1) as f64,
            flat_groups: (experience.group_size > 1).then(|| flat as f64 / groups.len().max(1) as f64),
            repetition: each().map(|rollout| repeated(&rollout.completion_ids)).sum::<f64>() / count,
            cut_off: cut_off as f64 / count,
            kl: kls.map(|kls| kls.iter().sum::<f64>() / count),
            parts: parts.into_iter().map(part).collect(),
            unread,
        }
    }
}

/// Length in tokens of the n-grams that [`repeated`] counts.
const N_GRAM: usize = 4;

/// Share of 4-grams of tokens that repeat an earlier one in the same completion: `1 − distinct / all`, 0 without any.
///
/// `seq-rep-4` of Welleck et al. 2020, <https://arxiv.org/abs/1908.04319>.
pub fn repeated(completion_ids: &[u32]) -> f64 {
    let all: Vec<&[u32]> = completion_ids.windows(N_GRAM).collect();
    let distinct: BTreeSet<&[u32]> = all.iter().copied().collect();
    if all.is_empty() { 0.0 } else { 1.0 - distinct.len() as f64 / all.len() as f64 }
}

/// Result of a check: a number that is reported when it reaches `fires`, and again only after it fell below `calm`.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// Measured value.
    pub value: f64,
    /// Threshold for a warning.
    pub fires: f64,
    /// Threshold for recovery.
    pub calm: f64,
    /// Text of the warning.
    pub message: String,
}

/// Computes a reading from the first steps (empty while there are too few) and the last ones.
type Check = fn(&[StepStats], &[StepStats]) -> Option<Reading>;

/// Kinds of warnings and their checks.
const CHECKS: [(&str, Check); 8] = [
    ("length_drift", length_drift),
    ("entropy_collapse", entropy_collapse),
    ("flat_groups", flat_groups),
    ("repetition", repetition),
    ("cut_off", cut_off),
    ("kl_bounds", kl_bounds),
    ("parts_diverge", parts_diverge),
    ("unread", unread),
];

fn mean(steps: &[StepStats], of: impl Fn(&StepStats) -> f64) -> f64 {
    steps.iter().map(of).sum::<f64>() / steps.len().max(1) as f64
}

/// Completions became longer or shorter by a factor of 1.5; calm within 1.25.
pub fn length_drift(first: &[StepStats], last: &[StepStats]) -> Option<Reading> {
    let (before, now) = (mean(first, |stats| stats.length), mean(last, |stats| stats.length));
    let compared = first.len() == FIRST && before > 0.0 && now > 0.0;
    compared.then(|| Reading {
        value: (now / before).ln().abs(),
        fires: 1.5f64.ln(),
        calm: 1.25f64.ln(),
        message: format!(
            "completions became {}: {now:.1} tokens on average over the last {LAST} steps, {before:.1} over the first {FIRST}",
            if now > before { "longer" } else { "shorter" }
        ),
    })
}

/// Less than 30 % of the entropy is left; calm above 50 %.
pub fn entropy_collapse(first: &[StepStats], last: &[StepStats]) -> Option<Reading> {
    let (before, now) = (mean(first, |stats| stats.entropy), mean(last, |stats| stats.entropy));
    // Entropies below 0.001 cannot collapse: sampling is greedy, or the policy has only one answer.
    (first.len() == FIRST && before > 1e-3).then(|| Reading {
        value: 1.0 - now / before,
        fires: 0.7,
        calm: 0.5,
        message: format!(
            "entropy collapses: {now:.3} nats per token over the last {LAST} steps, {before:.3} over the first \
             {FIRST}; completions of one prompt become alike, and give less training signal"
        ),
    })
}

/// Half of all groups have equal rewards; calm below 35 %.
pub fn flat_groups(_: &[StepStats], last: &[StepStats]) -> Option<Reading> {
    let shares: Vec<f64> = last.iter().filter_map(|stats| stats.flat_groups).collect();
    let share = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
    (shares.len() >= FEW).then(|| Reading {
        value: share,
        fires: 0.5,
        calm: 0.35,
        message: format!(
            "{:.0} % of the groups of the last {} steps have the same reward throughout, and gave no training signal",
            100.0 * share,
            shares.len()
        ),
    })
}

/// 30 % of 4-grams are repetitions; calm below 20 %. Human text has less than 1 %, greedy text of a likelihood-trained model 44 % (Welleck
/// et al. 2020, table 2).
pub fn repetition(_: &[StepStats], last: &[StepStats]) -> Option<Reading> {
    let share = mean(last, |stats| stats.repetition);
    (last.len() >= FEW).then(|| Reading {
        value: share,
        fires: 0.3,
        calm: 0.2,
        message: format!(
            "completions repeat themselves: {:.0} % of their {N_GRAM}-grams of tokens over the last {} steps occur \
             earlier in the same completion",
            100.0 * share,
            last.len()
        ),
    })
}

/// More than half of all completions reach `max_new_tokens`; calm below 35 %.
pub fn cut_off(_: &[StepStats], last: &[StepStats]) -> Option<Reading> {
    let share = mean(last, |stats| stats.cut_off);
    (last.len() >= FEW).then(|| Reading {
        value: share,
        fires: 0.5f64.next_up(),
        calm: 0.35,
        message: format!(
            "{:.0} % of the completions of the last {} steps were cut off at `max_new_tokens`: they were rewarded for an \
             unfinished text, and the policy does not learn to end it; give it more tokens",
            100.0 * share,
            last.len()
        ),
    })
}

/// Maximum KL of the policy to its reference, in nats per token.
const KL_A_TOKEN: f64 = 0.5;
/// Maximum size of a negative KL estimate, in nats per completion; TRL's first PPO trainer warned there too (`mean_kl < -1`).
pub(super) const KL_BELOW: f64 = 1.0;
/// Meaning of a KL estimate at or below −[`KL_BELOW`].
pub(super) const FAR_BELOW_ZERO: &str =
    "far below 0, which a KL cannot be: sampler and trainer disagree, or the policy has broken down";

/// The KL is above 0.5 nats per token or below −1 nat per completion; calm at three quarters of either.
pub fn kl_bounds(_: &[StepStats], last: &[StepStats]) -> Option<Reading> {
    let known: Vec<(f64, f64)> = last.iter().filter_map(|stats| Some((stats.kl?, stats.length))).collect();
    let (sum, tokens) = known.iter().fold((0.0, 0.0), |(sum, tokens), (kl, length)| (sum + kl, tokens + length));
    let (a_completion, a_token) = (sum / known.len().max(1) as f64, sum / f64::max(tokens, 1.0));
    let steps = known.len();
    (steps >= FEW).then(|| Reading {
        value: (a_token / KL_A_TOKEN).max(-a_completion / KL_BELOW),
        fires: 1.0,
        calm: 0.75,
        message: if a_token > 0.0 {
            format!(
                "the policy is far from its reference: {a_token:.3} nats per token over the last {steps} steps (bound \
                 {KL_A_TOKEN}); use a larger KL coefficient or a smaller learning rate"
            )
        } else {
            format!(
                "the KL to the reference is {a_completion:.2} nats per completion over the last {steps} steps, which is \
                 {FAR_BELOW_ZERO}"
            )
        },
    })
}

/// One part of the reward rose by half its standard deviation over completions, and another fell by as much; calm at a quarter.
pub fn parts_diverge(first: &[StepStats], last: &[StepStats]) -> Option<Reading> {
    if first.len() < FIRST {
        return None;
    }
    let of = |steps: &[StepStats], name: &str| -> Option<(f64, f64)> {
        let found: Vec<&PartStats> =
            steps.iter().flat_map(|stats| &stats.parts).filter(|part| part.name == name).collect();
        let average =
            |value: fn(&PartStats) -> f64| found.iter().map(|part| value(part)).sum::<f64>() / found.len() as f64;
        (!found.is_empty()).then(|| (average(|part| part.mean), average(|part| part.std)))
    };
    let mut moved: Vec<(f64, &str, f64, f64)> = Vec::new();
    for PartStats { name, sign, .. } in &last.last()?.parts {
        if let (Some((before, spread)), Some((now, _))) = (of(first, name), of(last, name))
            && spread > 0.0
        {
            moved.push((sign * (now - before) / spread, name, before, now));
        }
    }
    let best = moved.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let worst = moved.iter().copied().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let (gained, lost) = ((best.1, best.2, best.3), (worst.1, worst.2, worst.3));
    Some(Reading {
        value: best.0.min(-worst.0),
        fires: 0.5,
        calm: 0.25,
        message: format!(
            "parts of the reward diverge between the first {FIRST} and the last {LAST} steps: `{}` got better ({:.3} \
             to {:.3}), `{}` got worse ({:.3} to {:.3})",
            gained.0, gained.1, gained.2, lost.0, lost.1, lost.2
        ),
    })
}

/// 1 % of the inputs of a part of the reward do not fit into its model; calm below 0.5 %.
pub fn unread(_: &[StepStats], last: &[StepStats]) -> Option<Reading> {
    let share = |name: &str| {
        let found = last.iter().flat_map(|stats| &stats.unread).filter(|unread| unread.name == name);
        let (lost, of) = found.fold((0.0, 0.0), |(lost, of), unread| (lost + unread.lost, of + unread.of));
        lost / f64::max(of, 1.0)
    };
    let shares = last.last()?.unread.iter().map(|unread| (share(&unread.name), &unread.name));
    let (share, name) = shares.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|_| last.len() >= FEW)?;
    Some(Reading {
        value: share,
        fires: 0.01,
        calm: 0.005,
        message: format!(
            "texts are longer than `{name}` can read: {:.1} % of the text to judge over the last {} steps was cut off, \
             and segments that are cut off score 0; shorten passages or prompts, or raise its `max_length` where the \
             model has the positions",
            100.0 * share,
            last.len()
        ),
    })
}

/// A warning of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Name of the check.
    pub kind: &'static str,
    /// Text of the warning.
    pub message: String,
}

/// State of the checks. With it, a resumed run reports the same warnings as an undisturbed one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Watch {
    steps: usize,
    first: Vec<StepStats>,
    last: VecDeque<StepStats>,
    /// Kinds that were reported and have not recovered.
    said: BTreeSet<String>,
}

impl Watch {
    /// Observes a step and returns new warnings.
    ///
    /// A step belongs either to the beginning or to the steps compared with it, never to both.
    pub fn observe(&mut self, stats: StepStats) -> Vec<Warning> {
        self.steps += 1;
        if self.steps <= FIRST {
            self.first.push(stats.clone());
        }
        self.last.push_back(stats);
        if self.last.len() > LAST {
            self.last.pop_front();
        }
        let first = if self.steps >= FIRST + LAST { &self.first[..] } else { &[] };
        let last = &*self.last.make_contiguous();
        let mut warnings = Vec::new();
        for (kind, check) in CHECKS {
            let Some(reading) = check(first, last) else { continue };
            if reading.value >= reading.fires && self.said.insert(kind.to_owned()) {
                warnings.push(Warning { kind, message: reading.message });
            } else if reading.value < reading.calm {
                self.said.remove(kind);
            }
        }
        warnings
    }
}
