//! Pairwise win rates of policies on the same prompts, and the Pareto front of reward and KL.

use std::collections::HashMap;

use serde::Serialize;

use super::{Comparison, Entry};
use crate::plots::{Curve, CurveKind, LineChart, Range, Values, histogram};
use crate::run::samples::Sample;

/// Pairwise win rates.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WinRates {
    /// Names of the policies, for rows and columns.
    pub names: Vec<String>,
    /// Share of prompts on which the policy of the row has a better reward than that of the column; ties count half. `None` on the diagonal
    /// and for pairs without common prompts or with different rewards.
    pub shares: Vec<Vec<Option<f64>>>,
    /// Number of prompts behind each share.
    pub prompts: Vec<Vec<usize>>,
}

/// Identity of a prompt: its row and its text. The same row of other data is another prompt.
type Key<'s> = (usize, &'s str);

/// Mean reward of each prompt, which may have several samples.
fn rewards(samples: &[Sample]) -> HashMap<Key<'_>, f64> {
    let mut sums: HashMap<Key<'_>, (f64, f64)> = HashMap::new();
    for sample in samples {
        if let Some(reward) = sample.reward.filter(|reward| reward.is_finite()) {
            let (sum, count) = sums.entry((sample.row, sample.prompt.as_str())).or_default();
            *sum += reward;
            *count += 1.0;
        }
    }
    sums.into_iter().map(|(key, (sum, count))| (key, sum / count)).collect()
}

/// Share of common prompts on which `mine` is better, with ties as half, and the number of those prompts.
fn share(mine: &HashMap<Key<'_>, f64>, theirs: &HashMap<Key<'_>, f64>) -> (Option<f64>, usize) {
    let (mut wins, mut count) = (0.0, 0);
    for (key, mine) in mine {
        if let Some(theirs) = theirs.get(key) {
            wins += if mine > theirs { 1.0 } else { 0.5 * f64::from(u8::from(mine == theirs)) };
            count += 1;
        }
    }
    ((count > 0).then(|| wins / count as f64), count)
}

impl Comparison {
    /// Compares all policies pairwise; `None` if no two can be compared.
    pub fn win_rates(&self) -> Option<WinRates> {
        let rewards: Vec<HashMap<Key<'_>, f64>> = self.entries.iter().map(|entry| rewards(&entry.samples)).collect();
        let count = self.entries.len();
        let mut found = WinRates {
            names: self.entries.iter().map(|entry| entry.name.clone()).collect(),
            shares: vec![vec![None; count]; count],
            prompts: vec![vec![0; count]; count],
        };
        for (i, mine) in self.entries.iter().enumerate() {
            for (j, theirs) in self.entries.iter().enumerate().filter(|(j, _)| *j != i) {
                if mine.has_reward_of(theirs) {
                    (found.shares[i][j], found.prompts[i][j]) = share(&rewards[i], &rewards[j]);
                }
            }
        }
        found.shares.iter().flatten().any(Option::is_some).then_some(found)
    }

    /// Returns true if all policies have the same reward and one start, from which their KL is measured.
    fn is_uniform(&self) -> bool {
        let starts = self.entries.iter().filter(|entry| entry.run.is_none()).count();
        let all = || self.entries.iter();
        starts <= 1 && all().all(|entry| all().all(|other| entry.has_reward_of(other)))
    }

    /// Index, KL to the start and reward of each entry that has both.
    fn points(&self) -> Vec<(usize, f64, f64)> {
        let of = |(index, entry): (usize, &Entry)| {
            Some((index, entry.value("kl", self.start())?, entry.value("reward", self.start())?))
        };
        if self.is_uniform() { self.entries.iter().enumerate().filter_map(of).collect() } else { Vec::new() }
    }

    /// Returns the indices of the entries on the Pareto front of reward and KL, in order of KL. No other policy has at least their reward
    /// with less KL, or more reward with the same KL.
    pub fn front(&self) -> Vec<usize> {
        let mut points = self.points();
        points.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| b.2.total_cmp(&a.2)));
        let mut best = f64::NEG_INFINITY;
        points.retain(|&(_, _, reward)| {
            let is_better = reward > best;
            best = best.max(reward);
            is_better
        });
        points.into_iter().map(|(index, _, _)| index).collect()
    }

    /// Chart of reward against KL, with the front as a line; `None` with fewer than two points.
    pub(super) fn pareto(&self) -> Option<LineChart> {
        let points = self.points();
        if points.len() < 2 {
            return None;
        }
        let front = self.front();
        let at = |index: usize| points.iter().find(|point| point.0 == index).map(|&(_, kl, reward)| (kl, reward));
        let corners: Vec<(f64, f64)> = front.iter().filter_map(|&index| at(index)).collect();
        // The front is a staircase: a policy's reward counts for all larger KLs too.
        let mut stair = Vec::new();
        for (i, &(kl, reward)) in corners.iter().enumerate() {
            stair.push((kl, reward));
            let most = points.iter().map(|point| point.1).fold(kl, f64::max);
            stair.push((corners.get(i + 1).map_or(most, |next| next.0), reward));
        }
        let curve = |name: String, points, kind, color| Curve { name, points, intervals: Vec::new(), kind, color };
        let mut curves = vec![curve("Pareto front".into(), stair, CurveKind::Line, None)];
        let colors = self.colors();
        curves.extend(points.iter().map(|&(index, kl, reward)| {
            curve(self.entries[index].name.clone(), vec![(kl, reward)], CurveKind::Measured, colors[index])
        }));
        Some(LineChart {
            title: "Reward and KL".into(),
            unit: "mean held-out reward".into(),
            x_label: "KL to the start, nats per completion".into(),
            curves,
        })
    }

    /// Histogram of the rewards of each policy; `None` without rewards or with different rewards.
    pub(super) fn reward_histogram(&self) -> Option<LineChart> {
        let colors = self.colors();
        let kind = |(index, entry): (usize, &Entry)| {
            let values = entry.rewards();
            (!values.is_empty()).then(|| Values { name: entry.name.clone(), values, color: colors[index] })
        };
        let kinds: Vec<Values> = self.entries.iter().enumerate().filter_map(kind).collect();
        (self.is_uniform() && !kinds.is_empty())
            .then(|| histogram("Rewards", "held-out completions", "reward", &kinds, Range::All))
    }
}

impl Entry {
    /// Returns true if the rewards of both entries are comparable, as far as known.
    fn has_reward_of(&self, other: &Self) -> bool {
        match (&self.reward, &other.reward) {
            (Some(own), Some(others)) => own == others,
            _ => true,
        }
    }
}
