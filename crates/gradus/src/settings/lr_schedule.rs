//! The key `lr_schedule`: a name, or a name with its settings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::math::schedule::{Curve, Schedule, warmup_updates};

/// The shape of the learning rate after warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedule {
    /// Falls linearly to 0: update k of N has the multiplier (N − k)/N.
    Linear,
    /// Falls to 0 along half a cosine.
    Cosine,
    /// Stays constant.
    Constant,
    /// Falls along a cosine to a lowest learning rate, `min_lr` or `min_lr_ratio`.
    CosineWithMinLr(CosineWithMinLr),
    /// As `cosine_with_min_lr`, but warm-up and cosine are one step ahead: the first step has no learning rate of 0, and the last
    /// one has the lowest.
    CosineWarmupWithMinLr(CosineWarmupWithMinLr),
    /// Falls to 0 along half a cosine, and does so several times.
    CosineWithRestarts(CosineWithRestarts),
    /// Falls to `lr_end` as a power of the share of steps that are left.
    Polynomial(PolynomialDecay),
    /// Falls as one over the square root of the steps.
    InverseSqrt(InverseSqrtDecay),
    /// Stays constant, then falls over the last steps. The warm-up begins at `min_lr_ratio`.
    WarmupStableDecay(WarmupStableDecay),
}

/// Keys of a cosine with a lowest learning rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CosineWithMinLr {
    /// The lowest learning rate. Either this or `min_lr_ratio` is needed.
    pub min_lr: Option<f64>,
    /// The lowest learning rate as a ratio of the highest, from 0 to 1. Either this or `min_lr` is needed.
    pub min_lr_ratio: Option<f64>,
    /// Number of waves: 0.5 falls once. Default 0.5 (TRL).
    pub num_cycles: f64,
}

impl Default for CosineWithMinLr {
    fn default() -> Self {
        Self { min_lr: None, min_lr_ratio: None, num_cycles: 0.5 }
    }
}

/// Keys of a cosine with a lowest learning rate, one step ahead.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CosineWarmupWithMinLr {
    /// The lowest learning rate. Either this or `min_lr_ratio` is needed.
    pub min_lr: Option<f64>,
    /// The lowest learning rate as a ratio of the highest, from 0 to 1. Either this or `min_lr` is needed.
    pub min_lr_ratio: Option<f64>,
    /// Number of waves: 0.5 falls once. Default 0.5 (TRL).
    pub num_cycles: f64,
    /// Learning rate of the first step as a ratio of the highest, from 0 to 1. Default: one step of the warm-up (TRL).
    pub warmup_lr_ratio: Option<f64>,
}

impl Default for CosineWarmupWithMinLr {
    fn default() -> Self {
        Self { min_lr: None, min_lr_ratio: None, num_cycles: 0.5, warmup_lr_ratio: None }
    }
}

/// Keys of a cosine with restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CosineWithRestarts {
    /// Number of times that the learning rate falls to 0. Default 1 (TRL).
    #[schemars(range(min = 1))]
    pub num_cycles: usize,
}

impl Default for CosineWithRestarts {
    fn default() -> Self {
        Self { num_cycles: 1 }
    }
}

/// Keys of a polynomial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PolynomialDecay {
    /// The power: 1 falls linearly. Default 1 (TRL).
    pub power: f64,
    /// Learning rate at the end, below `learning_rate`. Default 1e-7 (TRL).
    pub lr_end: f64,
}

impl Default for PolynomialDecay {
    fn default() -> Self {
        Self { power: 1.0, lr_end: 1e-7 }
    }
}

/// Keys of an inverse square root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct InverseSqrtDecay {
    /// Number of steps after the warm-up until the learning rate has fallen to 1/√2. Default: the steps of the warm-up; without one,
    /// 10000 (TRL).
    #[schemars(range(min = 1))]
    pub timescale: Option<usize>,
}

/// Keys of a constant learning rate that falls at the end.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmupStableDecay {
    /// Steps over which the learning rate falls; below 1, a fraction of all steps.
    pub decay_steps: f64,
    /// Steps at the highest learning rate; below 1, a fraction of all steps. Steps after the decay have the lowest. Default: all steps
    /// between warm-up and decay (TRL).
    #[serde(default)]
    pub stable_steps: Option<f64>,
    /// Curve of the warm-up. Default `linear` (TRL).
    #[serde(default = "linear")]
    pub warmup_type: LrCurve,
    /// Curve of the decay. Default `cosine` (TRL).
    #[serde(default = "cosine")]
    pub decay_type: LrCurve,
    /// The lowest learning rate as a ratio of the highest, from 0 to 1. Default 0 (TRL).
    #[serde(default)]
    pub min_lr_ratio: f64,
    /// Number of waves of a decay along a cosine: 0.5 falls once. Default 0.5 (TRL).
    #[serde(default = "half_a_wave")]
    pub num_cycles: f64,
}

fn linear() -> LrCurve {
    LrCurve::Linear
}

fn cosine() -> LrCurve {
    LrCurve::Cosine
}

fn half_a_wave() -> f64 {
    0.5
}

/// Curve of a warm-up or a decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LrCurve {
    /// A line.
    Linear,
    /// Half a cosine.
    Cosine,
    /// One minus a square root.
    #[serde(rename = "1-sqrt")]
    OneMinusSqrt,
}

impl From<LrCurve> for Curve {
    fn from(curve: LrCurve) -> Self {
        match curve {
            LrCurve::Linear => Self::Linear,
            LrCurve::Cosine => Self::Cosine,
            LrCurve::OneMinusSqrt => Self::OneMinusSqrt,
        }
    }
}

impl LrSchedule {
    /// Returns the name in configurations.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Cosine => "cosine",
            Self::Constant => "constant",
            Self::CosineWithMinLr(_) => "cosine_with_min_lr",
            Self::CosineWarmupWithMinLr(_) => "cosine_warmup_with_min_lr",
            Self::CosineWithRestarts(_) => "cosine_with_restarts",
            Self::Polynomial(_) => "polynomial",
            Self::InverseSqrt(_) => "inverse_sqrt",
            Self::WarmupStableDecay(_) => "warmup_stable_decay",
        }
    }

    /// Returns the multipliers for a highest learning rate of `peak`, in a run of `steps` steps with `warmup_steps` as configured.
    pub fn resolve(&self, peak: f64, steps: usize, warmup_steps: f64) -> Schedule {
        let ratio = |rate: f64| if peak > 0.0 { rate / peak } else { 0.0 };
        let floor = |min_lr: Option<f64>, of_peak: Option<f64>| of_peak.or(min_lr.map(ratio)).unwrap_or(0.0);
        let warmup = warmup_updates(warmup_steps, steps);
        match *self {
            Self::Linear => Schedule::Linear,
            Self::Cosine => Schedule::Cosine { cycles: 0.5, floor: 0.0 },
            Self::Constant => Schedule::Constant,
            Self::CosineWithMinLr(CosineWithMinLr { min_lr, min_lr_ratio, num_cycles }) => {
                Schedule::Cosine { cycles: num_cycles, floor: floor(min_lr, min_lr_ratio) }
            }
            Self::CosineWarmupWithMinLr(keys) => Schedule::CosineAhead {
                cycles: keys.num_cycles,
                floor: floor(keys.min_lr, keys.min_lr_ratio),
                warmup_start: keys.warmup_lr_ratio,
            },
            Self::CosineWithRestarts(keys) => Schedule::CosineWithRestarts { cycles: keys.num_cycles },
            Self::Polynomial(PolynomialDecay { power, lr_end }) => Schedule::Polynomial { end: ratio(lr_end), power },
            Self::InverseSqrt(keys) => {
                let usual = if warmup > 0 { warmup } else { 10_000 };
                Schedule::InverseSqrt { timescale: keys.timescale.unwrap_or(usual).max(1) }
            }
            Self::WarmupStableDecay(keys) => Schedule::WarmupStableDecay {
                stable: keys.stable_steps.map(|stable| warmup_updates(stable, steps)),
                decay: keys.decay_updates(warmup_steps, steps),
                rise: keys.warmup_type.into(),
                fall: keys.decay_type.into(),
                floor: keys.min_lr_ratio,
                cycles: keys.num_cycles,
            },
        }
    }

    /// Returns whether the learning rate of a step depends on the number of all steps.
    pub fn depends_on_length(&self, warmup_steps: f64) -> bool {
        let of_shape = match self {
            Self::Constant | Self::InverseSqrt(_) => false,
            Self::WarmupStableDecay(keys) => keys.stable_steps.is_none_or(is_share) || is_share(keys.decay_steps),
            _ => true,
        };
        of_shape || is_share(warmup_steps)
    }

    /// Checks that warm-up and decay fit into a run of `steps` steps.
    ///
    /// # Errors
    /// A message if they do not.
    pub fn check_length(&self, warmup_steps: f64, steps: usize) -> Result<(), String> {
        let Self::WarmupStableDecay(keys @ WarmupStableDecay { stable_steps: None, .. }) = self else { return Ok(()) };
        let (warmup, decay) = (warmup_updates(warmup_steps, steps), keys.decay_updates(warmup_steps, steps));
        if warmup.saturating_add(decay) <= steps {
            return Ok(());
        }
        Err(format!("the warm-up has {warmup} steps and the decay {decay}, but the run has {steps}"))
    }
}

impl WarmupStableDecay {
    /// Steps of the decay. Warm-up and decay may be shares that make up the whole run. Both are rounded up, so the decay gives way by a step.
    fn decay_updates(&self, warmup_steps: f64, steps: usize) -> usize {
        let (warmup, decay) = (warmup_updates(warmup_steps, steps), warmup_updates(self.decay_steps, steps));
        let are_shares = is_share(warmup_steps) && is_share(self.decay_steps);
        if are_shares && warmup.saturating_add(decay) == steps.saturating_add(1) { decay - 1 } else { decay }
    }
}

/// Whether a number of steps is a fraction of all steps.
fn is_share(steps: f64) -> bool {
    steps > 0.0 && steps < 1.0
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn schedule(value: Value) -> LrSchedule {
        serde_json::from_value(value).expect("a schedule")
    }

    #[test]
    fn every_name_is_that_of_configurations() {
        let decay = json!({ "decay_steps": 1 });
        for (name, keys) in [
            ("linear", None),
            ("cosine", None),
            ("constant", None),
            ("cosine_with_min_lr", Some(json!({}))),
            ("cosine_warmup_with_min_lr", Some(json!({}))),
            ("cosine_with_restarts", Some(json!({}))),
            ("polynomial", Some(json!({}))),
            ("inverse_sqrt", Some(json!({}))),
            ("warmup_stable_decay", Some(decay)),
        ] {
            let written = keys.map_or_else(|| json!(name), |keys| json!({ name: keys }));
            assert_eq!(schedule(written).name(), name);
        }
    }

    #[test]
    fn learning_rates_become_ratios_of_the_highest() {
        let floor = |keys: Value, peak: f64| match schedule(json!({ "cosine_with_min_lr": keys })).resolve(peak, 9, 0.0)
        {
            Schedule::Cosine { floor, .. } => floor,
            other => panic!("{other:?}"),
        };
        assert_eq!(floor(json!({ "min_lr": 0.5 }), 2.0), 0.25);
        assert_eq!(floor(json!({ "min_lr_ratio": 0.5 }), 2.0), 0.5);
        assert_eq!(floor(json!({ "min_lr": 0.0 }), 0.0), 0.0, "no division by a learning rate of 0");
    }

    #[test]
    fn shares_that_make_up_the_run_fit_and_longer_ones_do_not() {
        let decay = |steps: f64| schedule(json!({ "warmup_stable_decay": { "decay_steps": steps } }));
        for steps in 1..40 {
            assert_eq!(decay(0.9).check_length(0.1, steps), Ok(()), "{steps} steps");
        }
        assert!(decay(0.6).check_length(0.6, 10).is_err());
        assert_eq!(decay(7.0).check_length(3.0, 10), Ok(()));
        let message = "the warm-up has 4 steps and the decay 7, but the run has 10";
        assert_eq!(decay(7.0).check_length(4.0, 10), Err(message.to_owned()));
        let stable = schedule(json!({ "warmup_stable_decay": { "decay_steps": 7, "stable_steps": 2 } }));
        assert_eq!(stable.check_length(4.0, 10), Ok(()), "the run may end within the decay");
    }

    #[test]
    fn some_schedules_do_not_depend_on_the_length_of_the_run() {
        let plateau = |keys: Value| json!({ "warmup_stable_decay": keys });
        for (value, expected) in [
            (json!("linear"), true),
            (json!("constant"), false),
            (json!({ "inverse_sqrt": {} }), false),
            (plateau(json!({ "decay_steps": 5 })), true),
            (plateau(json!({ "decay_steps": 5, "stable_steps": 5 })), false),
            (plateau(json!({ "decay_steps": 0.5, "stable_steps": 5 })), true),
        ] {
            assert_eq!(schedule(value.clone()).depends_on_length(2.0), expected, "{value}");
            assert!(schedule(value).depends_on_length(0.1));
        }
    }
}
