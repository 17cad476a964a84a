//! Models and passes of methods that compare groups of completions and have no critic: GRPO and RLOO.

use super::actor::{Actor, lengths, logprobs_dropping};
use super::step::{Learners, MiniBatch, OldLogprobs, PassStats, PolicyLoss, Surrogate};
use super::{Advantages, Experience, Update, mini_batches};
use crate::learner::Learner;
use crate::loss::surrogate::Statistics;
use crate::math::EntropyController;
use crate::method::{Cast, Head, Lifetime, RolloutKeys, Shared};
use crate::model::DropoutStream;
use crate::rollout::StopReason;
use crate::stats::{Stats, StepReport};

/// Returns the models of a run: policy, reward models and, if a KL is measured, the reference.
pub(super) fn cast(shared: &Shared<'_>, rollouts: &RolloutKeys, kl_coefficient: f64) -> Cast {
    let cast = Cast::alone(shared, Head::Language).with_rewards(shared);
    // With a coefficient of 0, only evaluations use the reference.
    match kl_coefficient != 0.0 || shared.train.eval_steps >= 0 {
        true => cast.with_reference(shared, rollouts.reference_model.as_deref(), Lifetime::WholeRun),
        false => cast,
    }
}

/// Settings of the passes over the rollouts.
#[derive(Debug, Clone)]
pub struct Grouped {
    /// Loss of a step.
    pub loss: PolicyLoss,
    /// Passes over the rollouts.
    pub update_epochs: usize,
    /// Mini-batches (optimizer steps) per pass.
    pub mini_batches: usize,
    /// Whether completions without a stop id carry no loss.
    pub masks_truncated: bool,
}

impl Grouped {
    /// Returns the rollouts of a step that carry loss, and the others. Groups stay together so that each prompt is computed
    /// once.
    fn split(&self, experience: &Experience, batch: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let stop = |i: usize| experience.rollout(i).stop;
        let counts = |i: &usize| !(self.masks_truncated && stop(*i) == StopReason::Length);
        let (mut chosen, mut skipped): (Vec<usize>, Vec<usize>) = batch.iter().copied().partition(counts);
        chosen.sort_unstable();
        skipped.sort_unstable();
        (chosen, skipped)
    }

    /// Takes the step of a mini-batch in which no rollout carries loss, with a gradient of 0, as TRL does. The optimizer's
    /// moments and weight decay still move the weights. Returns the norm of the gradient; `None` if there is no token.
    fn step_without_loss(
        &self,
        learners: &mut Learners<'_>,
        batch: MiniBatch<'_>,
        update: Update<'_>,
    ) -> Result<Option<f64>, String> {
        let MiniBatch { experience, skipped, .. } = batch;
        let with_tokens = skipped.iter().copied().filter(|&i| experience.rollout(i).counted() > 0);
        let shortest = with_tokens.min_by_key(|&i| experience.rollout(i).completion_ids.len());
        let Some(shortest) = shortest else { return Ok(None) };
        // Its loss has the weight 0, so every parameter gets a gradient of 0.
        let loss = PolicyLoss {
            coefficient: 0.0,
            kl: None,
            entropy_coefficient: 0.0,
            top_entropy_quantile: None,
            ..self.loss.clone()
        };
        let chosen = [shortest];
        let of_one = MiniBatch { chosen: &chosen, skipped: &[], ..batch };
        let (_, norms) = loss.step(learners, of_one, update, &mut PassStats::default())?;
        Ok(Some(norms.actor))
    }

    /// Runs one or several passes over the rollouts.
    ///
    /// # Errors
    /// Names the value that was not finite. The weights are those of the last finite step.
    pub fn update(
        &self,
        actor: &mut Learner<Actor>,
        experience: &Experience,
        advantages: &Advantages,
        update: Update<'_>,
    ) -> Result<StepReport, String> {
        let mut entropy = EntropyController::new(self.loss.entropy_coefficient, None);
        self.update_with(&mut entropy, actor, experience, advantages, update)
    }

    /// [`update`](Self::update) with a coefficient of the entropy bonus that changes between optimizer steps. It replaces
    /// [`PolicyLoss::entropy_coefficient`].
    ///
    /// # Errors
    /// As [`update`](Self::update).
    pub fn update_with(
        &self,
        entropy: &mut EntropyController,
        actor: &mut Learner<Actor>,
        experience: &Experience,
        advantages: &Advantages,
        update: Update<'_>,
    ) -> Result<StepReport, String> {
        let all: Vec<usize> = (0..experience.len()).collect();
        let steps = self.update_epochs * self.mini_batches;
        let masks = |pass: usize| DropoutStream::new(update.settings.seed, update.iteration as u64, pass as u64);
        let drops = actor.module().policy.trunk.drops_out();
        // The sampler uses no dropout, so its logprobs are higher on average. With dropout, ratios therefore compare
        // with logprobs under dropout. They come from the step itself if it is the only one, else from a pass before
        // the first step.
        let dropped = (drops && steps > 1).then(|| {
            let policy = &actor.frozen().policy;
            let (temperature, passes) = (self.loss.temperature, update.settings.passes);
            logprobs_dropping(policy, experience, temperature, passes, masks(steps))
        });
        let old = match (&dropped, drops) {
            (Some(dropped), _) => OldLogprobs::Given(dropped),
            (None, true) => OldLogprobs::Own,
            (None, false) => OldLogprobs::Sampled,
        };
        let mut learners = Learners { actor, critic: None };
        let mut stats = Stats::default();
        for epoch in 0..self.update_epochs {
            let order = update.order(&all, self.mini_batches, epoch);
            for (number, batch) in mini_batches(&order, self.mini_batches).enumerate() {
                update.report(epoch * self.mini_batches + number, self.mini_batches * self.update_epochs);
                let (chosen, skipped) = self.split(experience, batch);
                let dropout = drops.then(|| masks(epoch * self.mini_batches + number));
                let (batch, mut pass_stats) = (
                    MiniBatch { experience, advantages, chosen: &chosen, skipped: &skipped, dropout, old },
                    PassStats::default(),
                );
                if chosen.is_empty() {
                    if let Some(norm) = self.step_without_loss(&mut learners, batch, update)? {
                        stats.mean("loss", 0.0, 1.0);
                        stats.last("grad_norm", norm);
                        // As in TRL, the entropy of no token is 0.
                        entropy.update(pass_stats.entropy_with_bonus());
                    }
                    continue;
                }
                let loss = PolicyLoss { entropy_coefficient: entropy.applied(), ..self.loss.clone() };
                let (losses, norms) = loss.step(&mut learners, batch, update, &mut pass_stats)?;
                entropy.update(pass_stats.entropy_with_bonus());
                let tokens = pass_stats.tokens as f64;
                stats.mean("loss", losses.total, 1.0);
                stats.last("grad_norm", norms.actor);
                if let Some(kl) = pass_stats.kl {
                    stats.mean("kl", kl, tokens);
                }
                stats.mean("entropy", pass_stats.entropy, tokens);
                if entropy.is_active() {
                    stats.mean("policy_loss", losses.policy, 1.0);
                    stats.last("entropy_coef", entropy.coefficient());
                }
                if self.loss.off_policy_threshold.is_some() {
                    stats.mean("off_policy_masked", pass_stats.off_policy as f64, tokens);
                }
                let (weights, sequences) = pass_stats.weights;
                stats.mean("vespo/phi_seq_mean", weights, sequences as f64);
                observe(&self.loss.surrogate, &pass_stats.ratios, &mut stats);
            }
        }
        let tokens = lengths(experience, &all).iter().sum();
        Ok(StepReport { tokens, metrics: stats, kl: None })
    }
}

/// Records the clipping statistics of an update under TRL's names. Shares of tokens are means over all tokens. The extremes of the
/// sequences are means over updates.
fn observe(surrogate: &Surrogate, ratios: &Statistics, stats: &mut Stats) {
    let count = ratios.tokens as f64;
    match surrogate {
        Surrogate::Clipped(_) => {
            stats.mean("clip_ratio/low_mean", ratios.low_fraction() * count, count);
            stats.mean("clip_ratio/high_mean", ratios.high_fraction() * count, count);
            stats.mean("clip_ratio/region_mean", ratios.clip_fraction() * count, count);
            if let (Some(low), Some(high)) = (ratios.low_min, ratios.high_max) {
                stats.mean("clip_ratio/low_min", low, 1.0);
                stats.mean("clip_ratio/high_max", high, 1.0);
            }
        }
        Surrogate::Cispo(_) => stats.mean("cispo_clip_ratio", ratios.high_fraction() * count, count),
        Surrogate::Sapo(..) | Surrogate::Vespo(_) | Surrogate::PolicyGradient | Surrogate::Custom(_) => {}
    }
}
