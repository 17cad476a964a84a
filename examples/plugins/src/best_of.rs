//! An online method that trains only on the best completion of each group.

use gradus::algorithm::grouped::Grouped;
use gradus::algorithm::step::{Denominator, PolicyLoss, Surrogate};
use gradus::algorithm::{Actor, Advantages, Algorithm, AlgorithmInputs, Experience, OnlineMethod, Update};
use gradus::data::{Need, TooLong};
use gradus::learner::Learner;
use gradus::loss::surrogate::Level;
use gradus::math::Reduction;
use gradus::method::{
    Cast, Defaults, Head, Iteration, Method, Problems, RolloutKeys, Shared, describe_defaults, flattened,
};
use gradus::settings::{Settings, TrainConfig};
use gradus::stats::StepReport;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

/// Supervised training on the best of the policy's own completions, sampled again in each iteration.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = |schema: &mut Schema| describe_defaults::<BestOf>(schema, "this example"))]
pub struct BestOf {
    /// How completions are sampled: the same keys as in built-in methods.
    #[serde(flatten, deserialize_with = "flattened::<BestOf, _, _>")]
    pub rollouts: RolloutKeys,
}

impl Default for BestOf {
    fn default() -> Self {
        Self { rollouts: RolloutKeys::new(4, 16, 1.0) }
    }
}

impl Method for BestOf {
    fn name(&self) -> &'static str {
        "best_of"
    }

    fn about(&self) -> &'static str {
        "Learn from the best completion of each prompt"
    }

    fn defaults(&self) -> Defaults {
        Defaults { learning_rate: 1e-5, too_long: TooLong::Skip, best_metric: "eval_reward" }
    }

    fn need(&self) -> Need {
        Need::Prompt
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        Cast::alone(shared, Head::Language).with_rewards(shared)
    }

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        problems.at_least("method.plugin.best_of.group_size", self.rollouts.group_size, 2);
        self.iteration().rules(problems, "plugin.best_of", train);
    }
}

impl OnlineMethod for BestOf {
    fn iteration(&self) -> Iteration<'_> {
        Iteration { regroups: true, ..Iteration::new(&self.rollouts, 1, 1) }
    }

    fn algorithm(&self, _: AlgorithmInputs) -> Box<dyn Algorithm> {
        // The algorithm has no state: all its inputs come with the rollouts.
        Box::new(self.clone())
    }
}

impl Algorithm for BestOf {
    fn needs_reference(&self) -> bool {
        false
    }

    /// Returns 1 for the tokens of the best completion of a group, 0 for all others.
    fn advantages(&mut self, _: &Actor, experience: &Experience, _: &Settings) -> Advantages {
        let totals = experience.totals();
        let best_of = |group: &[Option<f32>]| {
            let scored = group.iter().enumerate().filter_map(|(i, total)| Some((i, (*total)?)));
            scored.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(i, _)| i)
        };
        let best: Vec<Option<usize>> = totals.chunks(self.rollouts.group_size).map(best_of).collect();
        let is_best = |i: usize| best[i / self.rollouts.group_size] == Some(i % self.rollouts.group_size);
        let advantages_b: Vec<f32> = (0..experience.len()).map(|i| if is_best(i) { 1.0 } else { 0.0 }).collect();
        Advantages::of_rollouts(experience, &advantages_b)
    }

    fn update(
        &mut self,
        actor: &mut Learner<Actor>,
        experience: &Experience,
        advantages: &Advantages,
        update: Update<'_>,
    ) -> Result<StepReport, String> {
        let loss = PolicyLoss {
            coefficient: 1.0,
            temperature: 1.0,
            surrogate: Surrogate::PolicyGradient,
            level: Level::Token,
            denominator: Denominator::Weights(Reduction::TokenMean),
            kl: None,
            entropy_coefficient: 0.0,
            value: None,
            off_policy_threshold: None,
            top_entropy_quantile: None,
            clips_jointly: false,
        };
        let grouped = Grouped { loss, update_epochs: 1, mini_batches: 1, masks_truncated: false };
        grouped.update(actor, experience, advantages, update)
    }
}
