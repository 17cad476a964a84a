//! Preferences among models: wins, ties and losses of each pair, and the resulting strengths.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::bradley_terry;

/// Result of the first of two models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The first model is better.
    First,
    /// Neither is better.
    Tie,
    /// The second model is better.
    Second,
}

/// A person's preference between two models. A model compared with itself is ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vote<'a> {
    /// First model.
    pub one: &'a str,
    /// Second model.
    pub other: &'a str,
    /// Result of the first model.
    pub outcome: Outcome,
}

/// A share with its 95 % interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Share {
    /// Share from 0 to 1.
    pub value: f64,
    /// Wilson's score interval.
    pub interval: (f64, f64),
}

impl Share {
    /// Returns `count` of `of`, which must not be 0.
    ///
    /// Wilson's interval (Wilson 1927; Brown, Cai and DasGupta 2001, equation 4), with z = 1.96:
    /// (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n).
    pub fn of(count: usize, of: usize) -> Self {
        const Z: f64 = 1.959_963_984_540_054;
        let (n, value) = (of as f64, count as f64 / of as f64);
        let middle = value + Z * Z / (2.0 * n);
        let reach = Z * (value * (1.0 - value) / n + Z * Z / (4.0 * n * n)).sqrt();
        let end = |at: f64| (at / (1.0 + Z * Z / n)).clamp(0.0, 1.0);
        Self { value, interval: (end(middle - reach), end(middle + reach)) }
    }
}

/// Comparison of two models.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Versus {
    /// First model.
    pub one: String,
    /// Second model.
    pub other: String,
    /// Number of votes.
    pub votes: usize,
    /// Share of votes for the first model.
    pub win: Share,
    /// Share of ties.
    pub tie: Share,
    /// Share of votes for the second model.
    pub loss: Share,
}

/// Strength of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Strength {
    /// Name of the model.
    pub model: String,
    /// Logarithm of its strength. The sum over all models is 0.
    pub log_strength: f64,
    /// 95 % interval.
    pub interval: (f64, f64),
}

/// Returns wins, ties and losses of every compared pair, sorted by name.
pub fn comparisons(votes: &[Vote<'_>]) -> Vec<Versus> {
    let mut counts: BTreeMap<(&str, &str), [usize; 3]> = BTreeMap::new();
    for &Vote { one, other, outcome } in votes.iter().filter(|vote| vote.one != vote.other) {
        let of = match (outcome, one < other) {
            (Outcome::Tie, _) => 1,
            (Outcome::First, true) | (Outcome::Second, false) => 0,
            (Outcome::Second, true) | (Outcome::First, false) => 2,
        };
        counts.entry((one.min(other), one.max(other))).or_default()[of] += 1;
    }
    let versus = |((one, other), [win, tie, loss]): ((&str, &str), [usize; 3])| {
        let votes = win + tie + loss;
        let [win, tie, loss] = [win, tie, loss].map(|count| Share::of(count, votes));
        Versus { one: one.to_owned(), other: other.to_owned(), votes, win, tie, loss }
    };
    counts.into_iter().map(versus).collect()
}

/// Returns the strengths of the models `named`, strongest first. `named` contains all models of the votes and possibly more. A tie is half
/// a win for each. Without votes there are no strengths. If there are votes but no strengths, also returns the reason.
pub fn strengths(named: &BTreeSet<&str>, votes: &[Vote<'_>]) -> (Vec<Strength>, Option<&'static str>) {
    let at: BTreeMap<&str, usize> = named.iter().enumerate().map(|(i, name)| (*name, i)).collect();
    let mut wins = vec![vec![0.0; at.len()]; at.len()];
    let mut has_votes = false;
    for vote in votes.iter().filter(|vote| vote.one != vote.other) {
        let (one, other) = (at[vote.one], at[vote.other]);
        let share = match vote.outcome {
            Outcome::First => 1.0,
            Outcome::Tie => 0.5,
            Outcome::Second => 0.0,
        };
        has_votes = true;
        wins[one][other] += share;
        wins[other][one] += 1.0 - share;
    }
    if !has_votes {
        return (Vec::new(), None);
    }
    let found = match bradley_terry(&wins) {
        Ok(found) => found,
        Err(why) => return (Vec::new(), Some(why)),
    };
    let of = |(i, name): (usize, &&str)| Strength {
        model: (*name).to_owned(),
        log_strength: found.log_strengths[i],
        interval: found.interval(i),
    };
    let mut models: Vec<Strength> = named.iter().enumerate().map(of).collect();
    models.sort_by(|a, b| b.log_strength.total_cmp(&a.log_strength));
    (models, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values from scipy 1.17.1: `binomtest(k, n).proportion_ci(method="wilson")`.
    #[test]
    fn intervals_are_wilsons() {
        for (count, of, low, high) in [
            (2, 2, 0.342_380_227_506_653_03, 1.0),
            (0, 7, 0.0, 0.354_330_435_066_687_43),
            (4, 8, 0.215_216_062_213_877_5, 0.784_783_937_786_122_4),
            (1, 8, 0.022_417_491_450_056_67, 0.470_888_182_212_853_5),
            (37, 120, 0.232_727_369_889_163_3, 0.395_829_977_238_006_7),
        ] {
            let (a, b) = Share::of(count, of).interval;
            assert!((a - low).abs() < 1e-9 && (b - high).abs() < 1e-9, "{count} of {of}: {a} to {b}");
        }
    }

    #[test]
    fn votes_are_counted_whichever_model_stands_first() {
        let vote = |one, other, outcome| Vote { one, other, outcome };
        let votes = [
            vote("b", "a", Outcome::First),
            vote("a", "b", Outcome::Second),
            vote("a", "b", Outcome::First),
            vote("b", "a", Outcome::Tie),
            vote("a", "a", Outcome::First),
        ];
        let found = comparisons(&votes);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].one.as_str(), found[0].other.as_str(), found[0].votes), ("a", "b", 4));
        assert_eq!((found[0].win.value, found[0].tie.value, found[0].loss.value), (0.25, 0.25, 0.5));
        // 2.5 wins out of 4: the strengths differ by ln(2.5 / 1.5).
        let (models, why) = strengths(&BTreeSet::from(["a", "b"]), &votes);
        assert_eq!((models[0].model.as_str(), why), ("b", None));
        assert!((models[0].log_strength - models[1].log_strength - (2.5f64 / 1.5).ln()).abs() < 1e-9);
        let (models, why) = strengths(&BTreeSet::from(["a", "b", "c"]), &votes);
        assert!(models.is_empty() && why.is_some(), "nobody met c");
        assert_eq!(strengths(&BTreeSet::from(["a"]), &votes[4..]), (Vec::new(), None));
    }
}
