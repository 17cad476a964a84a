//! Online algorithms: from rollouts and rewards to an update of the policy.
//!
//! An [`Algorithm`] turns rewards into advantages ([`Algorithm::advantages`], on the host) and updates the policy
//! ([`Algorithm::update`]). The loop in `train/online` does everything else: sampling, scoring, reference
//! log-probabilities, evaluation and metrics.

pub mod a2c;
pub mod actor;
pub mod actor_critic;
mod advantage;
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
mod shaping;
pub mod step;
pub mod trpo;

use std::borrow::{Borrow, Cow};
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
use crate::learner::{Learner, LearnerState};
use crate::math::kl;
use crate::method::{Iteration, Method};
use crate::model::CausalLm;
use crate::progress::Progress;
use crate::rng::Purpose;
use crate::rollout::{Rollout, Rollouts, StopReason};
use crate::settings::Settings;
use crate::stats::{Mean, Stats, StepReport};

/// A method that trains on its own rollouts. The type holds the method's configuration keys.
pub trait OnlineMethod: Method {
    /// Describes the sampling and the updates of one iteration.
    fn iteration(&self) -> Iteration<'_>;

    /// Creates the algorithm from the models that its cast requires.
    fn algorithm(&self, inputs: AlgorithmInputs) -> Box<dyn Algorithm>;
}

/// Inputs of an algorithm in addition to its configuration.
#[derive(Debug, Default)]
pub struct AlgorithmInputs {
    /// The critic, if the cast has one.
    pub critic: Option<Critic>,
    /// The lagged copy of the policy, if the cast has one.
    pub lagged: Option<CausalLm>,
    /// Special ids of the tokenizer.
    pub special_ids: Vec<u32>,
    /// KL coefficient of a resumed run.
    pub kl_coefficient: Option<f64>,
    /// [`Algorithm::state`] of a resumed run, together with the state of the loop; empty in a new run.
    pub state: Map<String, Value>,
}

/// Writes a policy (without gradient) into a directory.
pub type SavePolicy<'a> = &'a dyn Fn(&CausalLm, &Path) -> Result<()>;

/// Scored rollouts: all data that an algorithm trains on.
pub type Experience = Rollouts<ScoredRollout>;

/// A rollout with the values that training adds to it. Lists have one value per counted token.
#[derive(Debug, Clone)]
pub struct ScoredRollout {
    /// The rollout.
    pub rollout: Rollout,
    /// Rewards; `None` for a rollout without a score.
    pub rewards_t: Option<Vec<f32>>,
    /// Parts that the rewards are the weighted sum of; empty for a rollout without a score.
    pub parts: Vec<PartTotal>,
    /// Logprobs of the reference; `None` if the algorithm needs no reference.
    pub reference_t: Option<Vec<f32>>,
    /// Logprobs of the policy from a pass like that of the reference ([`Algorithm::has_exact_kl`]); `None` if the KL uses
    /// the recorded ones.
    pub policy_t: Option<Vec<f32>>,
    /// Whether `reference_t` are logprobs over the whole vocabulary, even if training normalizes them over a support
    /// ([`Algorithm::has_raw_kl`]).
    pub raw_kl: bool,
    /// Logprobs of the sampler; `None` if the policy itself sampled the tokens.
    pub off_policy: Option<OffPolicy>,
}

/// One part of the reward of a rollout.
#[derive(Debug, Clone, PartialEq)]
pub struct PartTotal {
    /// Name in the log.
    pub name: String,
    /// Factor in the sum.
    pub weight: f32,
    /// Sum over tokens, before weighting.
    pub total: f32,
}

impl Borrow<Rollout> for ScoredRollout {
    fn borrow(&self) -> &Rollout {
        &self.rollout
    }
}

impl ScoredRollout {
    /// Returns the sum of the rewards.
    pub fn total(&self) -> Option<f32> {
        self.rewards_t.as_ref().map(|rewards_t| rewards_t.iter().sum())
    }

    /// Returns the logprobs of the policy that those of the reference are compared with.
    pub(crate) fn logprobs_of_kl(&self) -> Cow<'_, [f32]> {
        match &self.policy_t {
            Some(policy_t) => Cow::Borrowed(policy_t.as_slice()),
            None if self.raw_kl => self.rollout.counted_raw_logprobs().into(),
            None => self.rollout.counted_logprobs(),
        }
    }
}

impl Experience {
    /// Joins rollouts with their rewards and the logprobs of the reference, one list per rollout. The whole reward is its
    /// only part.
    ///
    /// # Panics
    /// If a list does not have one value per counted token.
    pub fn new(rollouts: Rollouts, rewards: Vec<Option<Vec<f32>>>, reference: Option<Vec<Vec<f32>>>) -> Self {
        let Rollouts { prompts, rollouts, group_size, tokenizer } = rollouts;
        assert_eq!(rewards.len(), rollouts.len(), "one list of rewards per rollout");
        let reference: Vec<Option<Vec<f32>>> = match reference {
            Some(reference) => reference.into_iter().map(Some).collect(),
            None => vec![None; rollouts.len()],
        };
        assert_eq!(reference.len(), rollouts.len(), "one list of reference logprobs per rollout");
        let lists = rollouts.into_iter().zip(rewards).zip(reference);
        let rollouts = lists.map(|((rollout, rewards_t), reference_t)| {
            for values_t in rewards_t.iter().chain(&reference_t) {
                assert_eq!(values_t.len(), rollout.counted(), "one value per counted token");
            }
            let whole =
                |rewards_t: &Vec<f32>| PartTotal { name: String::new(), weight: 1.0, total: rewards_t.iter().sum() };
            let parts = rewards_t.iter().map(whole).collect();
            ScoredRollout { rollout, rewards_t, parts, reference_t, policy_t: None, raw_kl: false, off_policy: None }
        });
        let rollouts = rollouts.collect();
        Self { prompts, rollouts, group_size, tokenizer }
    }

    /// Sets [`ScoredRollout::raw_kl`] of all rollouts.
    #[must_use]
    pub fn with_raw_kl(mut self, raw_kl: bool) -> Self {
        self.rollouts.iter_mut().for_each(|scored| scored.raw_kl = raw_kl);
        self
    }

    /// Sets [`ScoredRollout::parts`], one list per rollout.
    ///
    /// # Panics
    /// If there is not one list per rollout.
    #[must_use]
    pub fn with_parts(mut self, parts: Vec<Vec<PartTotal>>) -> Self {
        assert_eq!(parts.len(), self.rollouts.len(), "one list of parts per rollout");
        for (scored, parts) in self.rollouts.iter_mut().zip(parts) {
            scored.parts = parts;
        }
        self
    }

    /// Sets [`ScoredRollout::policy_t`], one list per rollout. `None` changes nothing.
    ///
    /// # Panics
    /// If a list does not have one value per counted token.
    #[must_use]
    pub fn with_policy(mut self, policy: Option<Vec<Vec<f32>>>) -> Self {
        let Some(policy) = policy else { return self };
        assert_eq!(policy.len(), self.rollouts.len(), "one list of policy logprobs per rollout");
        for (scored, policy_t) in self.rollouts.iter_mut().zip(policy) {
            assert_eq!(policy_t.len(), scored.rollout.counted(), "one value per counted token");
            scored.policy_t = Some(policy_t);
        }
        self
    }

    /// Returns the sum of each rollout's rewards.
    pub fn totals(&self) -> Vec<Option<f32>> {
        self.rollouts.iter().map(ScoredRollout::total).collect()
    }

    /// Returns [`totals`](Self::totals) minus `penalty` for completions that were cut off before a stop id.
    pub fn penalized_totals(&self, penalty: Option<f64>) -> Vec<Option<f32>> {
        let penalty = penalty.unwrap_or(0.0) as f32;
        let less = |scored: &ScoredRollout| match scored.rollout.stop {
            StopReason::Length => scored.total().map(|total| total - penalty),
            _ => scored.total(),
        };
        self.rollouts.iter().map(less).collect()
    }

    /// Returns KL(policy ‖ reference) of each rollout in nats, summed over its counted tokens. `None` without a reference.
    pub fn kls(&self) -> Option<Vec<f64>> {
        let of_one =
            |scored: &ScoredRollout| Some(kl::of_sequence(&scored.logprobs_of_kl(), scored.reference_t.as_ref()?));
        self.rollouts.iter().map(of_one).collect()
    }

    /// Returns the indices of the rollouts that have a score.
    pub fn scored(&self) -> Vec<usize> {
        (0..self.rollouts.len()).filter(|&i| self.rollouts[i].rewards_t.is_some()).collect()
    }

    /// Returns the mean number of counted tokens of the rollouts that have a score; 0 if none has one.
    pub(crate) fn mean_length(&self) -> f64 {
        let scored = self.scored();
        let tokens: usize = scored.iter().map(|&i| self.rollout(i).counted()).sum();
        tokens as f64 / scored.len().max(1) as f64
    }

    /// Returns the lists of the chosen rollouts, end to end; `None` if one of them is absent.
    pub(crate) fn gather<'a>(
        &'a self,
        chosen: &[usize],
        of: impl Fn(&'a ScoredRollout) -> Option<&'a Vec<f32>>,
    ) -> Option<Vec<f32>> {
        let lists: Vec<&[f32]> =
            chosen.iter().map(|&i| of(&self.rollouts[i]).map(Vec::as_slice)).collect::<Option<_>>()?;
        Some(lists.concat())
    }
}

/// Advantages and other training targets.
#[derive(Debug, Clone, Default)]
pub struct Advantages {
    /// Training targets of each rollout.
    pub targets: Vec<TokenTargets>,
    /// KL(policy ‖ reference) per completion in nats, by the estimator of the penalty; `None` if no KL is part of the reward.
    pub kl: Option<Mean>,
    /// Metrics of the computation.
    pub stats: Stats,
}

/// Training targets of the counted tokens of a rollout.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenTargets {
    /// Advantage of each token.
    pub advantages_t: Vec<f32>,
    /// Targets of the critic; `None` without a critic.
    pub critic: Option<CriticTargets>,
}

/// Targets of the critic for the counted tokens of a rollout.
#[derive(Debug, Clone, PartialEq)]
pub struct CriticTargets {
    /// Return of each token, which the critic learns.
    pub returns_t: Vec<f32>,
    /// The critic's value of the state before each token.
    pub values_t: Vec<f32>,
}

impl Advantages {
    /// Gives all counted tokens of a rollout the same advantage: `advantages_b` has one per rollout.
    pub fn of_rollouts<R: Borrow<Rollout>>(rollouts: &Rollouts<R>, advantages_b: &[f32]) -> Self {
        let of_one = |(rollout, &advantage): (&Rollout, &f32)| TokenTargets {
            advantages_t: vec![advantage; rollout.counted()],
            critic: None,
        };
        Self { targets: rollouts.iter().zip(advantages_b).map(of_one).collect(), ..Self::default() }
    }

    /// Returns the advantages of the chosen rollouts, end to end.
    pub(crate) fn gather(&self, chosen: &[usize]) -> Vec<f32> {
        actor::concat_of(&self.targets, chosen, |targets| &targets.advantages_t)
    }

    /// Returns the targets of the critic for the chosen rollouts, end to end.
    ///
    /// # Panics
    /// Without a critic.
    pub(crate) fn gather_critic(&self, chosen: &[usize], of: impl Fn(&CriticTargets) -> &Vec<f32>) -> Vec<f32> {
        actor::concat_of(&self.targets, chosen, |targets| {
            of(targets.critic.as_ref().expect("the algorithm has a critic"))
        })
    }
}

/// Position of an update in the run.
#[derive(Clone, Copy)]
pub struct Update<'a> {
    /// Index of the iteration, from 0.
    pub iteration: usize,
    /// Current value of the learning rate schedule; 1 at the peak.
    pub multiplier: f64,
    /// Settings that stay fixed during the run.
    pub settings: &'a Settings,
    /// Receives the number of completed optimizer steps. An update is never interrupted.
    pub progress: &'a dyn Progress,
}

impl Update<'_> {
    /// Reports that `done` of the update's `total` optimizer steps are done.
    pub(crate) fn report(&self, done: usize, total: usize) {
        // A request to stop takes effect after the update.
        let _ = self.progress.advance("updated", done, total);
    }

    /// Moves the schedule to optimizer step `step`, from 0, of the `steps` of this iteration.
    pub(crate) fn within(self, step: usize, steps: usize) -> Self {
        Self { multiplier: self.settings.multiplier_within(self.iteration, step, steps), ..self }
    }

    /// Returns the order in which update epoch `epoch` visits `rollouts`. It is shuffled if there are several
    /// mini-batches and the run shuffles.
    pub(crate) fn order(&self, rollouts: &[usize], mini_batches: usize, epoch: usize) -> Vec<usize> {
        let mut order = rollouts.to_vec();
        if mini_batches > 1 && self.settings.shuffle {
            let mut stream = self.settings.seed.stream(Purpose::UpdateOrder, self.iteration as u64, epoch as u64);
            order.shuffle(&mut stream);
        }
        order
    }
}

/// An algorithm that trains on rollouts.
pub trait Algorithm {
    /// Returns the algorithm's own mask over the vocabulary, for sampling in iterations or in an evaluation.
    fn masking(&self, _in_evaluation: bool) -> Option<Masking<'_>> {
        None
    }

    /// Returns how many times groups with equal rewards are replaced before the update.
    fn resample_rounds(&self) -> usize {
        0
    }

    /// Whether [`ScoredRollout::reference_t`] must be filled.
    fn needs_reference(&self) -> bool;

    /// Whether the KL to the reference uses logprobs over the whole vocabulary, even if training normalizes them over a support.
    fn has_raw_kl(&self) -> bool {
        false
    }

    /// Whether the KL to the reference compares two passes of the same kind, one of the policy and one of the reference. The
    /// sampler rounds differently. With its logprobs, the KL of equal weights is a small number instead of 0.
    fn has_exact_kl(&self) -> bool {
        false
    }

    /// Whether completions that were cut off before a stop id carry no loss.
    fn masks_truncated(&self) -> bool {
        false
    }

    /// Computes advantages from rewards, on the host. `actor` carries no gradient.
    fn advantages(&mut self, actor: &Actor, experience: &Experience, settings: &Settings) -> Advantages;

    /// Runs one or several passes over the rollouts. The caller fills in the KL of the report.
    ///
    /// # Errors
    /// Names the value that was not finite. The weights are those of the last finite step.
    fn update(
        &mut self,
        actor: &mut Learner<Actor>,
        experience: &Experience,
        advantages: &Advantages,
        update: Update<'_>,
    ) -> Result<StepReport, String>;

    /// Returns the estimator of the advantages, if the algorithm has a critic.
    fn estimator(&self) -> Option<&Estimator> {
        None
    }

    /// Returns the critic, if there is one. It is trained together with the actor.
    fn critic(&self) -> Option<&Critic> {
        self.estimator().map(|estimator| &estimator.critic)
    }

    /// Returns the algorithm's own learners (the critic's) for checkpoints, each with a unique prefix.
    fn learners(&self) -> Vec<(&str, LearnerState<'_>)> {
        self.estimator().map_or_else(Vec::new, Estimator::learners)
    }

    /// Writes the algorithm's own models that belong to the result (the critic) below `directory`.
    ///
    /// # Errors
    /// When they cannot be written.
    fn save(&self, actor: &Actor, directory: &Path) -> Result<()> {
        self.estimator().map_or(Ok(()), |estimator| estimator.save(actor, directory))
    }

    /// Writes further models that only a resumed run needs (a lagged policy) below a checkpoint's directory.
    ///
    /// # Errors
    /// When they cannot be written.
    fn save_state(&self, _directory: &Path, _save: SavePolicy<'_>) -> Result<()> {
        Ok(())
    }

    /// Returns the adaptive KL coefficient, for checkpoints and logs.
    fn kl_coefficient(&self) -> Option<f64> {
        self.estimator().map(Estimator::kl_coefficient)
    }

    /// Returns the KL at which the run stops because the policy is too far from the reference.
    fn kl_limit(&self) -> Option<KlLimit> {
        self.estimator().and_then(Estimator::kl_limit)
    }

    /// Returns other state that a resumed run needs, under unique names.
    fn state(&self) -> Map<String, Value> {
        Map::new()
    }
}

/// Splits `order` into `count` mini-batches of nearly equal size.
pub(crate) fn mini_batches(order: &[usize], count: usize) -> impl Iterator<Item = &[usize]> {
    order.chunks(order.len().div_ceil(count.max(1)).max(1))
}

#[cfg(test)]
mod tests;
