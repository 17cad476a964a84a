//! An algorithm that trains policy and critic together, in passes over the rollouts: PPO and A2C.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::actor::{Actor, lengths};
use super::estimator::Estimator;
use super::step::{Learners, MiniBatch, OldLogprobs, PassStats, PolicyLoss};
use super::{Advantages, Algorithm, Experience, Update, mini_batches};
use crate::learner::Learner;
use crate::model::DropoutStream;
use crate::rollout::StopReason;
use crate::settings::Settings;
use crate::stats::{Stats, StepReport};

/// Time at which the distance to the sampling policy is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TargetKlOver {
    /// After each pass over the rollouts.
    Pass,
    /// Before the step of each mini-batch.
    MiniBatch,
}

/// The algorithm. Its state is the critic and the KL controller.
#[derive(Debug)]
pub struct ActorCritic {
    /// Estimator of the advantages, which holds the critic.
    pub estimator: Estimator,
    /// Loss of a step.
    pub loss: PolicyLoss,
    /// Passes over the rollouts.
    pub update_epochs: usize,
    /// Mini-batches (optimizer steps) per pass.
    pub mini_batches: usize,
    /// Mean k3 to the sampling policy, in nats per token, beyond 1.5 times which the remaining passes are skipped, and
    /// the time at which it is checked.
    pub target_kl: Option<(f64, TargetKlOver)>,
    /// Whether the learning rate schedule advances with every optimizer step.
    pub lr_per_step: bool,
}

/// Multiple of `target_kl` beyond which the remaining passes are skipped (Spinning Up's PPO).
const TARGET_KL_SLACK: f64 = 1.5;

impl Algorithm for ActorCritic {
    fn needs_reference(&self) -> bool {
        true
    }

    fn advantages(&mut self, actor: &Actor, experience: &Experience, settings: &Settings) -> Advantages {
        self.estimator.advantages(actor, experience, settings)
    }

    fn update(
        &mut self,
        actor: &mut Learner<Actor>,
        experience: &Experience,
        advantages: &Advantages,
        update: Update<'_>,
    ) -> Result<StepReport, String> {
        let (scored, count) = (experience.scored(), self.mini_batches);
        let too_far = |moved: f64, at: TargetKlOver| {
            self.target_kl.is_some_and(|(target, over)| over == at && moved > TARGET_KL_SLACK * target)
        };
        let (mut stats, mut passes, mut goes_on) = (Stats::default(), 0, true);
        for epoch in 0..self.update_epochs {
            let order = update.order(&scored, count, epoch);
            let (mut steps, mut pass_stats) = (Stats::default(), PassStats::default());
            for (number, chosen) in mini_batches(&order, count).enumerate() {
                let pass = (epoch * count + number) as u64;
                update.report(pass as usize, count * self.update_epochs);
                let dropout = Some(DropoutStream::new(update.settings.seed, update.iteration as u64, pass));
                let own = self.estimator.of_mini_batch(advantages, chosen);
                let advantages = own.as_ref().unwrap_or(advantages);
                let batch =
                    MiniBatch { experience, advantages, chosen, skipped: &[], dropout, old: OldLogprobs::Sampled };
                let mut learners = Learners { actor, critic: Some(&mut self.estimator.critic) };
                let update = match self.lr_per_step {
                    true => update.within(pass as usize, count * self.update_epochs),
                    false => update,
                };
                let takes = |moved: f64| !too_far(moved, TargetKlOver::MiniBatch);
                let (losses, norms) = self.loss.step_if(&mut learners, batch, update, &mut pass_stats, takes)?;
                let value = self.loss.value.map_or(0.0, |value| value.coefficient * losses.value);
                let bonus = self.loss.entropy_coefficient * losses.entropy;
                steps.mean("loss", self.loss.coefficient * losses.policy + value - bonus, 1.0);
                steps.mean("loss/policy_avg", losses.policy, 1.0);
                steps.mean("loss/value_avg", losses.value, 1.0);
                let Some(norms) = norms else {
                    goes_on = false;
                    break;
                };
                steps.mean("grad_norm", norms.actor, 1.0);
                if let Some(norm) = norms.critic {
                    steps.mean("critic/grad_norm", norm, 1.0);
                }
            }
            passes += 1;
            let moved = close(&pass_stats, &steps, &mut stats);
            if !goes_on || too_far(moved, TargetKlOver::Pass) {
                break;
            }
        }
        stats.last("lr", update.settings.learning_rate * update.multiplier);
        stats.mean("update_epochs", f64::from(passes), 1.0);
        let tokens = lengths(experience, &scored).iter().sum();
        let ended = experience.iter().filter(|rollout| rollout.stop != StopReason::Length).count();
        stats.mean("val/num_eos_tokens", ended as f64, 1.0);
        Ok(StepReport { tokens, metrics: stats, kl: None })
    }

    fn estimator(&self) -> Option<&Estimator> {
        Some(&self.estimator)
    }
}

/// Ends one pass over the rollouts: adds its metrics to `total` and returns its mean k3.
fn close(pass_stats: &PassStats, steps: &Stats, total: &mut Stats) -> f64 {
    let (ratios, tokens) = (&pass_stats.ratios, pass_stats.ratios.tokens as f64);
    total.merge(steps);
    total.mean("policy/approxkl_avg", ratios.approx_kl() * tokens, tokens);
    total.mean("policy/k3_avg", ratios.k3() * tokens, tokens);
    total.mean("policy/clipfrac_avg", ratios.clip_fraction() * tokens, tokens);
    total.mean("policy/entropy_avg", pass_stats.entropy, tokens);
    total.mean("entropy", pass_stats.entropy, tokens);
    total.mean("val/clipfrac_avg", pass_stats.value_clipped, tokens);
    total.mean("val/ratio", ratios.ratio() * tokens, tokens);
    total.mean("val/ratio_var", ratios.ratio_variance() * tokens, tokens);
    total.max("val/ratio_max", ratios.ratio_max);
    ratios.k3()
}
