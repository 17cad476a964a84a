//! Learning rate schedules, as multipliers of the peak rate: a warm-up, then one of several shapes.
//!
//! `update` is the number of optimizer steps already made, 0 for the first. So a linear schedule without warm-up has
//! the multipliers N/N, (N−1)/N, …, 1/N, and the first update of a warm-up has multiplier 0. As in transformers 5.23.

use std::f64::consts::PI;

/// Returns the number of warm-up updates: `warmup` itself or, if `warmup` is below 1, that share of `updates`, rounded
/// up.
pub fn warmup_updates(warmup: f64, updates: usize) -> usize {
    if warmup >= 1.0 { warmup as usize } else { (warmup.max(0.0) * updates as f64).ceil() as usize }
}

/// The shape of a learning rate over a run. Ratios are relative to the peak rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Schedule {
    /// Falls linearly to 0 after the last update.
    Linear,
    /// Stays at the peak.
    Constant,
    /// Falls along `cycles` waves of a cosine to `floor`. Half a wave falls once.
    Cosine {
        /// Number of waves.
        cycles: f64,
        /// Lowest ratio.
        floor: f64,
    },
    /// As [`Self::Cosine`], but one update ahead: no update has the peak of the cosine, and the last one has its end.
    CosineAhead {
        /// Number of waves.
        cycles: f64,
        /// Lowest ratio.
        floor: f64,
        /// Ratio of the first update of the warm-up, whose last update then has the peak. `None`: one step of the warm-up.
        warmup_start: Option<f64>,
    },
    /// Falls along half a cosine to 0, and does so `cycles` times.
    CosineWithRestarts {
        /// Number of times.
        cycles: usize,
    },
    /// Falls to `end` as a power of the share of updates that are left.
    Polynomial {
        /// Ratio at the end.
        end: f64,
        /// The power.
        power: f64,
    },
    /// Falls as `1 / √(1 + k / timescale)`, k updates after the warm-up.
    InverseSqrt {
        /// Number of updates after which the square of the rate is halved.
        timescale: usize,
    },
    /// Stays at the peak, then falls.
    WarmupStableDecay {
        /// Updates at the peak. `None`: those between the warm-up and the decay.
        stable: Option<usize>,
        /// Updates of the decay.
        decay: usize,
        /// Curve of the warm-up, which begins at `floor`.
        rise: Curve,
        /// Curve of the decay.
        fall: Curve,
        /// Ratio at both ends.
        floor: f64,
        /// Number of waves, if the decay is a cosine.
        cycles: f64,
    },
}

/// A curve between 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// A line.
    Linear,
    /// A cosine.
    Cosine,
    /// One minus a square root.
    OneMinusSqrt,
}

impl Curve {
    /// Value on the way from 0 to 1.
    fn rising(self, progress: f64) -> f64 {
        match self {
            Self::Linear => progress,
            Self::Cosine => 0.5 * (1.0 - (PI * progress).cos()),
            Self::OneMinusSqrt => 1.0 - (1.0 - progress).sqrt(),
        }
    }

    /// Value on the way from 1 to 0. A cosine makes `cycles` waves.
    fn falling(self, progress: f64, cycles: f64) -> f64 {
        match self {
            Self::Linear => 1.0 - progress,
            Self::Cosine => wave(progress, cycles),
            Self::OneMinusSqrt => 1.0 - progress.sqrt(),
        }
    }
}

impl Schedule {
    /// Returns the schedule with each update divided into `parts`, which then count as updates.
    #[must_use]
    pub fn in_parts(self, parts: usize) -> Self {
        match self {
            Self::InverseSqrt { timescale } => Self::InverseSqrt { timescale: timescale.saturating_mul(parts) },
            Self::WarmupStableDecay { stable, decay, rise, fall, floor, cycles } => {
                let stable = stable.map(|updates| updates.saturating_mul(parts));
                Self::WarmupStableDecay { stable, decay: decay.saturating_mul(parts), rise, fall, floor, cycles }
            }
            other => other,
        }
    }

    /// Returns the multiplier of `update` in a run of `updates` updates, of which the first `warmup` are the warm-up.
    pub fn multiplier(self, update: usize, updates: usize, warmup: usize) -> f64 {
        if update < warmup { self.warming(update, warmup) } else { self.after_warmup(update, updates, warmup) }
    }

    /// Multiplier of an update of the warm-up.
    fn warming(self, update: usize, warmup: usize) -> f64 {
        let progress = share(update, warmup);
        match self {
            Self::CosineAhead { warmup_start: None, .. } => share(update + 1, warmup),
            Self::CosineAhead { warmup_start: Some(start), .. } => start + (1.0 - start) * share(update, warmup - 1),
            Self::WarmupStableDecay { rise, floor, .. } => above(floor, rise.rising(progress)),
            _ => progress,
        }
    }

    /// Multiplier of an update after the warm-up.
    fn after_warmup(self, update: usize, updates: usize, warmup: usize) -> f64 {
        let (done, all) = (update - warmup, updates.saturating_sub(warmup));
        let progress = share(done, all);
        match self {
            Self::Linear => share(updates.saturating_sub(update), all),
            Self::Constant => 1.0,
            Self::Cosine { cycles, floor } => above(floor, wave(progress, cycles)),
            Self::CosineAhead { cycles, floor, .. } => above(floor, wave(share(done + 1, all), cycles)),
            Self::CosineWithRestarts { .. } if progress >= 1.0 => 0.0,
            Self::CosineWithRestarts { cycles } => wave((cycles as f64 * progress) % 1.0, 0.5).max(0.0),
            Self::Polynomial { end, power } => above(end, (1.0 - progress).max(0.0).powf(power)),
            Self::InverseSqrt { timescale } => (timescale as f64 / (timescale as f64 + done as f64)).sqrt(),
            Self::WarmupStableDecay { stable, decay, fall, floor, cycles, .. } => {
                let stable = stable.unwrap_or(all.saturating_sub(decay));
                match done.checked_sub(stable) {
                    None => 1.0,
                    Some(into) if into < decay => above(floor, fall.falling(share(into, decay), cycles)),
                    Some(_) => floor,
                }
            }
        }
    }
}

/// Part of a whole; the whole itself if it is 0.
fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Height of a cosine after a share of `cycles` waves: 1 at their start, 0 after half of one.
fn wave(progress: f64, cycles: f64) -> f64 {
    0.5 * (1.0 + (PI * cycles * 2.0 * progress).cos())
}

/// Maps 0 to `floor` and 1 to 1.
fn above(floor: f64, height: f64) -> f64 {
    (height * (1.0 - floor) + floor).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSINE: Schedule = Schedule::Cosine { cycles: 0.5, floor: 0.0 };

    fn check(schedule: Schedule, (updates, warmup): (usize, usize), expected: &[f64]) {
        for (update, expected) in expected.iter().enumerate() {
            let found = schedule.multiplier(update, updates, warmup);
            assert!((found - expected).abs() < 1e-12, "{schedule:?}, update {update}: {found} against {expected}");
        }
    }

    #[test]
    fn multipliers_are_those_of_transformers() {
        // transformers 5.23: get_linear_schedule_with_warmup and its siblings, multipliers of the first updates.
        check(Schedule::Linear, (4, 0), &[1.0, 0.75, 0.5, 0.25, 0.0]);
        check(Schedule::Linear, (6, 2), &[0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]);
        check(COSINE, (4, 0), &[1.0, 0.853_553_390_593_273_8, 0.5, 0.146_446_609_406_726_2, 0.0]);
        check(COSINE, (6, 2), &[0.0, 0.5, 1.0, 0.853_553_390_593_273_8, 0.5]);
        check(Schedule::Constant, (9, 3), &[0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0, 1.0]);
        let restarts = Schedule::CosineWithRestarts { cycles: 2 };
        check(restarts, (4, 0), &[1.0, 0.5, 1.0, 0.5, 0.0]);
        check(Schedule::Polynomial { end: 0.1, power: 2.0 }, (4, 0), &[1.0, 0.606_25, 0.325, 0.156_25, 0.1]);
        check(Schedule::InverseSqrt { timescale: 3 }, (4, 1), &[0.0, 1.0, 0.75_f64.sqrt(), 0.6_f64.sqrt()]);
    }

    #[test]
    fn the_learning_rates_of_fine_grained_rlhf() {
        // Two GPUs: 100 · 4 · 2 units of warm-up, 1250 · 4 · 2 in total, a peak of 1e-5.
        for (unit, expected) in [(0, 0.0), (800, 1e-5), (5000, 5.4348e-6), (10_000, 0.0)] {
            let found = 1e-5 * Schedule::Linear.multiplier(unit, 10_000, 800);
            assert!((found - expected).abs() < 5e-11, "unit {unit}: {found}");
        }
    }

    #[test]
    fn warm_up_as_a_share_is_rounded_up() {
        for (warmup, updates, expected) in [(0.0, 10, 0), (0.1, 11, 2), (0.05, 1, 1), (1.0, 10, 1), (30.0, 10, 30)] {
            assert_eq!(warmup_updates(warmup, updates), expected, "{warmup} of {updates}");
        }
    }

    #[test]
    fn counts_of_updates_are_counts_of_their_parts() {
        let (rise, fall) = (Curve::Linear, Curve::Cosine);
        let stable = Schedule::WarmupStableDecay { stable: Some(2), decay: 3, rise, fall, floor: 0.1, cycles: 0.5 };
        let schedules = [Schedule::Linear, COSINE, Schedule::InverseSqrt { timescale: 5 }, stable];
        for schedule in schedules {
            for update in 0..10 {
                let (whole, part) =
                    (schedule.multiplier(update, 9, 2), schedule.in_parts(4).multiplier(4 * update, 36, 8));
                assert!((whole - part).abs() < 1e-12, "{schedule:?}, update {update}: {whole} against {part}");
            }
        }
    }

    #[test]
    fn a_warm_up_as_long_as_the_run_and_updates_past_its_end() {
        let linear = Schedule::Linear;
        assert_eq!(
            [linear.multiplier(3, 4, 4), linear.multiplier(4, 4, 4), linear.multiplier(9, 4, 0)],
            [0.75, 0.0, 0.0]
        );
        let (rise, fall) = (Curve::OneMinusSqrt, Curve::OneMinusSqrt);
        for schedule in [
            linear,
            Schedule::Constant,
            COSINE,
            Schedule::CosineAhead { cycles: 0.5, floor: 0.1, warmup_start: Some(0.2) },
            Schedule::CosineWithRestarts { cycles: 3 },
            Schedule::Polynomial { end: 0.1, power: 0.5 },
            Schedule::InverseSqrt { timescale: 1 },
            Schedule::WarmupStableDecay { stable: None, decay: 9, rise, fall, floor: 0.1, cycles: 0.5 },
        ] {
            for (update, updates, warmup) in [(0, 0, 0), (9, 4, 4), (9, 4, 0), (4, 4, 4), (0, 1, 1), (1, 1, 1)] {
                let found = schedule.multiplier(update, updates, warmup);
                assert!((0.0..=1.0).contains(&found), "{schedule:?}, update {update} of {updates}: {found}");
            }
        }
    }
}
