//! Online algorithms: from rollouts and rewards to an update of the policy.
//!
//! An [`Algorithm`] says what it learns from ([`Algorithm::advantages`], on the host) and how the policy moves
//! ([`Algorithm::update`]). The loop in [`crate::train::online`] does everything else: sampling, scoring, the
//! reference, evaluation, records.

pub mod a2c;
pub mod actor;
pub mod advantage;
pub mod critic;
pub mod estimator;
pub mod fisher;
pub mod grouped;
pub mod grpo;
mod kl_config;
pub mod nlpo;
pub mod off_policy;
mod plugged;
pub mod ppo;
pub mod rloo;
pub mod shaping;
pub mod step;
pub mod trpo;

use std::path::Path;

use rand::seq::SliceRandom;
use serde_json::{Map, Value};

pub use actor::{Actor, Forward};
pub use critic::Critic;
pub use estimator::{Estimator, KlLimit};
pub use off_policy::OffPolicy;
pub use plugged::{Plugged, Unbound};

use crate::error::Result;
use crate::generate::Masking;
use crate::learner::{Learner, Trained};
use crate::math::kl;
use crate::method::{Iteration, Method};
use crate::model::CausalLm;
use crate::progress::Progress;
use crate::rng::Purpose;
use crate::rollout::{Rollout, Rollouts, StopReason};
use crate::settings::Settings;
use crate::stats::{Mean, Stats, StepReport};

/// A method that learns from what it samples, by its keys.
pub trait OnlineMethod: Method {
    /// What it does in one iteration.
    fn iteration(&self) -> Iteration<'_>;

    /// The algorithm, with what its cast asks for.
    fn algorithm(&self, inputs: AlgorithmInputs) -> Box<dyn Algorithm>;
}

/// What an algorithm is made of beside its keys.
#[derive(Debug, Default)]
pub struct AlgorithmInputs {
    /// The critic that the cast asks for.
    pub critic: Option<Critic>,
    /// The lagged copy of the policy that the cast asks for.
    pub lagged: Option<CausalLm>,
    /// The tokenizer's special ids.
    pub special_ids: Vec<u32>,
    /// The KL coefficient of a resumed run.
    pub kl_coefficient: Option<f64>,
}

/// Writes a policy (without gradient) into a directory.
pub type SavePolicy<'a> = &'a dyn Fn(&CausalLm, &Path) -> Result<()>;

/// Scored rollouts: everything an algorithm learns from.
#[derive(Debug, Clone)]
pub struct Experience {
    /// The rollouts.
    pub rollouts: Rollouts,
    /// One list per rollout, one reward per completion token that counts; `None` where a rollout could not be scored.
    pub rewards: Vec<Option<Vec<f32>>>,
    /// The reference's logprobs, one list per rollout; `None` when the algorithm needs no reference.
    pub reference: Option<Vec<Vec<f32>>>,
}

impl Experience {
    /// The sum of each rollout's rewards.
    pub fn totals(&self) -> Vec<Option<f32>> {
        self.rewards.iter().map(|rewards_t| rewards_t.as_ref().map(|rewards_t| rewards_t.iter().sum())).collect()
    }

    /// [`totals`](Self::totals), less `penalty` for a completion that was cut off before a stop id.
    pub fn totals_less(&self, penalty: Option<f64>) -> Vec<Option<f32>> {
        let penalty = penalty.unwrap_or(0.0) as f32;
        let less = |(total, rollout): (Option<f32>, &Rollout)| match rollout.stop {
            StopReason::Length => total.map(|total| total - penalty),
            _ => total,
        };
        self.totals().into_iter().zip(&self.rollouts.rollouts).map(less).collect()
    }

    /// KL(policy ‖ reference) of each rollout in nats, over its tokens that count; `is_raw`: of all ids
    /// ([`Algorithm::has_raw_kl`]). `None` without a reference.
    pub fn kls(&self, is_raw: bool) -> Option<Vec<f64>> {
        let pairs = self.rollouts.rollouts.iter().zip(self.reference.as_ref()?);
        let of_one = |(rollout, reference_t): (&Rollout, &Vec<f32>)| match is_raw {
            true => kl::of_sequence(&rollout.counted_raw_logprobs(), reference_t),
            false => kl::of_sequence(&rollout.counted_logprobs(), reference_t),
        };
        Some(pairs.map(of_one).collect())
    }

    /// The rollouts that could be scored.
    pub fn scored(&self) -> Vec<usize> {
        (0..self.rollouts.len()).filter(|&i| self.rewards[i].is_some()).collect()
    }
}

/// What each completion token that counts is worth learning; one list per rollout everywhere.
#[derive(Debug, Clone, Default)]
pub struct Advantages {
    /// One advantage per completion token.
    pub advantages: Vec<Vec<f32>>,
    /// What the critic is trained towards; empty without a critic.
    pub returns: Vec<Vec<f32>>,
    /// What the critic said of the state before each token; empty without a critic.
    pub values: Vec<Vec<f32>>,
    /// KL(policy ‖ reference) of completions in nats, by the estimator of the penalty, where it is part of the reward.
    pub kl: Option<Mean>,
    /// What another sampler thought of the tokens; none where the policy itself has sampled them.
    pub off_policy: Option<OffPolicy>,
    /// What was measured on the way.
    pub stats: Stats,
}

/// Where an update stands in the run.
#[derive(Clone, Copy)]
pub struct Update<'a> {
    /// Counted from 0.
    pub iteration: usize,
    /// The schedule's value now, 1 at the peak.
    pub multiplier: f64,
    /// What the run does not change.
    pub settings: &'a Settings,
    /// Receives how many of the update's optimizer steps are done. An update is never ended half-way.
    pub progress: &'a dyn Progress,
}

impl Update<'_> {
    /// Reports that `done` of the update's `total` optimizer steps are done.
    pub(crate) fn report(&self, done: usize, total: usize) {
        // The wish to stop is granted after the update.
        let _ = self.progress.advance("updated", done, total);
    }

    /// At the optimizer step `step`, from 0, of the `steps` of its iteration.
    pub(crate) fn within(self, step: usize, steps: usize) -> Self {
        Self { multiplier: self.settings.multiplier_within(self.iteration, step, steps), ..self }
    }

    /// The order in which update epoch `epoch` passes over `rollouts`: shuffled where it decides who shares a
    /// mini-batch, and where the run shuffles at all.
    pub(crate) fn order(&self, rollouts: &[usize], mini_batches: usize, epoch: usize) -> Vec<usize> {
        let mut order = rollouts.to_vec();
        if mini_batches > 1 && self.settings.shuffle {
            let mut stream = self.settings.seed.stream(Purpose::UpdateOrder, self.iteration as u64, epoch as u64);
            order.shuffle(&mut stream);
        }
        order
    }
}

/// One way of learning from rollouts.
pub trait Algorithm {
    /// A mask of its own over what is drawn, in iterations or in an evaluation.
    fn masking(&self, _in_evaluation: bool) -> Option<Masking<'_>> {
        None
    }

    /// How often groups whose rewards are all alike are replaced before anything is learned from them.
    fn resample_rounds(&self) -> usize {
        0
    }

    /// Whether [`Experience::reference`] is to be filled.
    fn needs_reference(&self) -> bool;

    /// Whether the KL to the reference is that of all ids, where logprobs are trained among some.
    fn has_raw_kl(&self) -> bool {
        false
    }

    /// From rewards to advantages, on the host. `actor` carries no gradient.
    fn advantages(&mut self, actor: &Actor, experience: &Experience, settings: &Settings) -> Advantages;

    /// One or several passes over the rollouts. The report's KL is the caller's to fill in.
    ///
    /// # Errors
    /// What was not finite; the weights are those of the last good step.
    fn update(
        &mut self,
        actor: &mut Learner<Actor>,
        experience: &Experience,
        advantages: &Advantages,
        update: Update<'_>,
    ) -> Result<StepReport, String>;

    /// What makes its advantages, where it has a critic.
    fn estimator(&self) -> Option<&Estimator> {
        None
    }

    /// The critic, where there is one: it learns beside the actor.
    fn critic(&self) -> Option<&Critic> {
        self.estimator().map(|estimator| &estimator.critic)
    }

    /// Learners of its own (the critic's), for checkpoints, each with a prefix that tells it apart.
    fn learners(&self) -> Vec<(&str, Trained<'_>)> {
        self.estimator().map_or_else(Vec::new, Estimator::learners)
    }

    /// Writes models of its own that are part of the result (the critic) below `directory`.
    ///
    /// # Errors
    /// When they cannot be written.
    fn save(&self, actor: &Actor, directory: &Path) -> Result<()> {
        self.estimator().map_or(Ok(()), |estimator| estimator.save(actor, directory))
    }

    /// Writes further models that only a resumed run needs (a lagged policy) below the directory of a checkpoint.
    ///
    /// # Errors
    /// When they cannot be written.
    fn save_state(&self, _directory: &Path, _save: SavePolicy<'_>) -> Result<()> {
        Ok(())
    }

    /// The adaptive KL coefficient, for checkpoints and logs.
    fn kl_coefficient(&self) -> Option<f64> {
        self.estimator().map(Estimator::kl_coefficient)
    }

    /// Where the run ends because the policy has moved away too far.
    fn kl_limit(&self) -> Option<KlLimit> {
        self.estimator().and_then(Estimator::kl_limit)
    }

    /// Other state a resumed run needs, under names of its own.
    fn state(&self) -> Map<String, Value> {
        Map::new()
    }
}

/// Rollouts of each mini-batch: `count` parts of nearly equal size, in the order given.
pub(crate) fn mini_batches(order: &[usize], count: usize) -> impl Iterator<Item = &[usize]> {
    order.chunks(order.len().div_ceil(count.max(1)).max(1))
}

#[cfg(test)]
mod tests;
