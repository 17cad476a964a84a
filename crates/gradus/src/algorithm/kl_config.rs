//! Keys of the KL penalty.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::method::Problems;

/// The KL penalty in the reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KlConfig {
    /// The coefficient β, or its initial value if it is adaptive. Default 0.05 (TRL).
    pub coefficient: f64,
    /// Estimator: k1 = d, k2 = d²/2, k3 = e^(−d) − 1 + d. Default k1 (TRL).
    pub estimator: KlEstimator,
    /// Adapt the coefficient so that the KL approaches this target. Default: fixed.
    pub target: Option<f64>,
    /// Number of sequences over which the adaptive coefficient moves. Default 10000 (Ziegler et al. 2019).
    pub horizon: f64,
    /// Move the adaptive coefficient by this share of its error in each iteration, independent of the number of
    /// sequences. Replaces `horizon`. Default: none (RL4LMs: 0.1).
    pub rate: Option<f64>,
    /// Unit of `target`: nats per `sequence` (Ziegler et al. 2019) or per `token` (RL4LMs). Default `sequence`.
    pub unit: KlUnit,
    /// Stop the run when `stop_after` iterations have had a KL above this, as a mean over their sequences in nats.
    /// Default: never (FineGrainedRLHF's `kl_threshold`).
    pub stop_above: Option<f64>,
    /// Number of iterations above `stop_above` that stop the run, not necessarily in a row. Default 5 (FineGrainedRLHF).
    #[schemars(range(min = 1))]
    pub stop_after: usize,
}

/// The limit at which a run stops because the policy is too far from its reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KlLimit {
    /// KL in nats, as a mean over the sequences of an iteration.
    pub above: f64,
    /// Number of iterations above it after which the run stops.
    pub after: usize,
}

impl Default for KlConfig {
    fn default() -> Self {
        Self {
            coefficient: 0.05,
            estimator: KlEstimator::K1,
            target: None,
            horizon: 10_000.0,
            rate: None,
            unit: KlUnit::Sequence,
            stop_above: None,
            stop_after: 5,
        }
    }
}

/// Estimators of KL(policy ‖ reference) from a sampled token; <http://joschu.net/blog/kl-approx.html>.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// d
    K1,
    /// d²/2
    K2,
    /// e^(−d) − 1 + d
    K3,
}

/// Unit of an adaptive KL target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlUnit {
    /// The sum over a sequence's tokens, averaged over sequences.
    Sequence,
    /// The mean over tokens.
    Token,
}

impl KlConfig {
    /// Reports invalid keys under `method`.`kl`.
    pub(crate) fn rules(&self, problems: &mut Problems<'_>, method: &str) {
        let key = |name: &str| format!("method.{method}.kl.{name}");
        problems.at_least(&key("coefficient"), self.coefficient, 0.0);
        problems.above_zero(&key("horizon"), self.horizon);
        let adapts_by_horizon = self.target.is_some() && self.rate.is_none();
        let is_valid = adapts_by_horizon || self.horizon == Self::default().horizon;
        let (reader, remedy) = ("`target` without `rate`", "set a `target` and no `rate`");
        problems.only_read_by(is_valid, &[&key("horizon"), &key("target"), &key("rate")], reader, remedy);
        problems.above_zero(&key("rate"), self.rate.unwrap_or(1.0));
        problems.above_zero(&key("stop_above"), self.stop_above.unwrap_or(1.0));
        problems.at_least(&key("stop_after"), self.stop_after, 1);
        let Some(target) = self.target else { return };
        let (target_key, coefficient) = (key("target"), key("coefficient"));
        problems.above_zero(&target_key, target);
        problems.require(self.coefficient != 0.0, &[&target_key, &coefficient], || {
            let message = format!(
                "`{target_key}` is {target}, but `{coefficient}` is 0: the controller multiplies the coefficient, so it would stay 0"
            );
            (message, Some("start from a small coefficient such as 0.05".into()))
        });
    }
}
