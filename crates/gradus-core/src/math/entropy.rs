//! Entropies of tokens: the mask of the highest ones, and the controller of the entropy bonus. Follows TRL 1.16.

use serde::{Deserialize, Serialize};

use super::stats;

/// Distance in nats below which two entropies are equal. Tokens after the same prefix have the same distribution, but a pass with other
/// rows rounds it differently.
const ROUNDING: f32 = 1e-5;

/// Returns 1 for each token with one of the highest entropies, a share `share` of all, and 0 for the others. Ties at the bound all have 1.
///
/// Wang et al. 2025 ("Beyond the 80/20 Rule"), <https://arxiv.org/abs/2506.01939>. The bound is the quantile 1 − `share`, as in PyTorch.
pub fn high_entropy_mask(entropies: &[f32], share: f64) -> Vec<f32> {
    // Without entropies there is no bound, and nothing to compare with it.
    let bound = stats::quantile(entropies, 1.0 - share).unwrap_or(0.0) as f32 - ROUNDING;
    entropies.iter().map(|&entropy| if entropy >= bound { 1.0 } else { 0.0 }).collect()
}

/// Rule that sets the coefficient of the entropy bonus.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EntropyController {
    /// The coefficient is constant.
    Fixed {
        /// The coefficient.
        coefficient: f64,
    },
    /// The coefficient follows the entropy.
    Adaptive {
        /// The rule.
        rule: AdaptiveEntropy,
        /// What the rule has measured so far.
        state: EntropyState,
    },
}

/// Adaptive entropy control: the coefficient rises while the entropy is at or below a target and falls while it is above. The bonus applies
/// only after a step whose entropy was at or below the target.
///
/// He et al. 2025 (Skywork-OR1), <https://arxiv.org/abs/2505.22312>.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaptiveEntropy {
    /// Target of the entropy, in nats per token.
    pub target: f64,
    /// Change of the coefficient per optimizer step.
    pub delta: f64,
    /// Lower bound of the coefficient.
    pub min: f64,
    /// Upper bound of the coefficient.
    pub max: f64,
}

/// State of an adaptive coefficient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EntropyState {
    /// The current coefficient.
    pub coefficient: f64,
    /// Entropy of the last optimizer step; `None` before the first.
    pub last_entropy: Option<f64>,
}

impl EntropyController {
    /// Creates a controller. Without a rule, the coefficient is constant.
    pub fn new(coefficient: f64, rule: Option<AdaptiveEntropy>) -> Self {
        match rule {
            None => Self::Fixed { coefficient },
            Some(rule) => Self::Adaptive { rule, state: EntropyState { coefficient, last_entropy: None } },
        }
    }

    /// Current coefficient, for the log.
    pub fn coefficient(&self) -> f64 {
        match self {
            Self::Fixed { coefficient } => *coefficient,
            Self::Adaptive { state, .. } => state.coefficient,
        }
    }

    /// Coefficient of the bonus in the next optimizer step: 0 for an adaptive one, unless the last entropy was at or below the target.
    pub fn applied(&self) -> f64 {
        match self {
            Self::Fixed { coefficient } => *coefficient,
            Self::Adaptive { rule, state } => {
                let is_low = state.last_entropy.is_some_and(|entropy| entropy <= rule.target);
                if is_low { state.coefficient } else { 0.0 }
            }
        }
    }

    /// Whether there can be a bonus.
    pub fn is_active(&self) -> bool {
        match self {
            Self::Fixed { coefficient } => *coefficient != 0.0,
            Self::Adaptive { .. } => true,
        }
    }

    /// State of an adaptive coefficient, for checkpoints.
    pub fn state(&self) -> Option<EntropyState> {
        match self {
            Self::Fixed { .. } => None,
            Self::Adaptive { state, .. } => Some(*state),
        }
    }

    /// Continues an adaptive coefficient from `saved`. A constant one stays.
    pub fn resume(&mut self, saved: EntropyState) {
        if let Self::Adaptive { state, .. } = self {
            *state = saved;
        }
    }

    /// Updates an adaptive coefficient after an optimizer step. `entropy` is the mean over the tokens of the step that carry the bonus.
    pub fn update(&mut self, entropy: f64) {
        let Self::Adaptive { rule, state } = self else { return };
        state.coefficient = match entropy <= rule.target {
            true => (state.coefficient + rule.delta).min(rule.max),
            false => (state.coefficient - rule.delta).max(rule.min),
        };
        state.last_entropy = Some(entropy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokens_above_the_quantile_are_kept() {
        let entropies = [0.5, 2.0, 0.1, 1.0, 1.5];
        for (share, expected) in [
            (1.0, [1.0; 5]),
            (0.5, [0.0, 1.0, 0.0, 1.0, 1.0]),
            (0.4, [0.0, 1.0, 0.0, 0.0, 1.0]),
            (0.9, [1.0, 1.0, 0.0, 1.0, 1.0]),
            (0.0, [0.0, 1.0, 0.0, 0.0, 0.0]),
        ] {
            assert_eq!(high_entropy_mask(&entropies, share), expected, "{share}");
        }
        assert_eq!(high_entropy_mask(&[], 0.5), Vec::<f32>::new());
    }

    #[test]
    fn entropies_that_differ_by_rounding_are_kept_or_dropped_together() {
        let near = [1.0, 1.0 + 2e-7, 1.0 - 2e-7, 1.0 + 1e-7, 0.5];
        assert_eq!(high_entropy_mask(&near, 0.5), [1.0, 1.0, 1.0, 1.0, 0.0]);
    }

    #[test]
    fn the_coefficient_moves_within_its_bounds_and_applies_one_step_later() {
        let rule = AdaptiveEntropy { target: 1.0, delta: 0.25, min: 0.0, max: 0.5 };
        let mut controller = EntropyController::new(0.25, Some(rule));
        let mut found = vec![(controller.coefficient(), controller.applied())];
        for entropy in [1.0, 0.5, 0.2, 1.5, 2.0, 3.0] {
            controller.update(entropy);
            found.push((controller.coefficient(), controller.applied()));
        }
        assert_eq!(found, [(0.25, 0.0), (0.5, 0.5), (0.5, 0.5), (0.5, 0.5), (0.25, 0.0), (0.0, 0.0), (0.0, 0.0)]);
        let mut fixed = EntropyController::new(0.25, None);
        fixed.update(0.0);
        assert_eq!((fixed.coefficient(), fixed.applied(), fixed.state()), (0.25, 0.25, None));
        let mut resumed = EntropyController::new(0.1, Some(rule));
        resumed.resume(controller.state().expect("it adapts"));
        assert_eq!(resumed, controller);
    }
}
