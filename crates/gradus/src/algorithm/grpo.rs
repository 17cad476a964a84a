//! Group relative policy optimisation: its keys, and how it learns from rollouts.
//!
//! Shao et al. 2024, <https://arxiv.org/abs/2402.03300>. Follows TRL 1.16; differs in that denominators belong to the
//! optimiser step (`bnpo` excepted, which is defined by the micro-batch), and that the KL's and the entropy's means are
//! reduced as the policy's loss and over the step's tokens.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::actor::{Actor, lengths};
use super::advantage::of_groups;
use super::step::{Denominator, Learners, MiniBatch, PolicyLoss, Seen, Surrogate};
use super::{Advantages, Algorithm, Experience, OnlineMethod, Parts, Sampling, Update, mini_batches};
use crate::data::{Need, TooLong};
use crate::generate::{SamplingConfig, TrainedLogprobs};
use crate::learner::Learner;
use crate::loss::kl::KlCorrection;
use crate::loss::surrogate::{Clip, Statistics};
use crate::math::{Baseline, Reduction, Scale};
use crate::method::{Cast, Defaults, Head, Iteration, Method, Problems, Shared, Stay};
use crate::rollout::StopReason;
use crate::settings::{Settings, TrainConfig};
use crate::stats::{NEW_TOKENS, Stats};

/// Keys of `method.grpo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GrpoConfig {
    /// Completions of each prompt, G. Default 8 (TRL).
    #[schemars(range(max = 65_536))]
    pub group_size: usize,
    /// Longest completion in tokens. Default 512 (TRL).
    #[schemars(range(max = 100_000_000))]
    pub max_new_tokens: usize,
    /// Sampling temperature, also that of the logprobs trained on. Default 1 (TRL).
    pub temperature: f64,
    /// Passes over one batch of rollouts, μ. Default 1 (TRL).
    #[schemars(range(max = 10_000))]
    pub update_epochs: usize,
    /// Mini-batches (optimiser steps) of one pass. Default 1.
    #[schemars(range(max = 1_000_000))]
    pub mini_batches: usize,
    /// Lower clip range of the ratio: 1 − clip_range. Default 0.2 (TRL).
    pub clip_range: f64,
    /// Upper clip range: 1 + clip_range_high. Default: `clip_range`.
    pub clip_range_high: Option<f64>,
    /// Upper bound of the ratio even where the advantage is negative (two-sided clipping). Default: none.
    pub delta: Option<f64>,
    /// Weight of the KL term (k3) in the loss; 0 needs no reference. Default 0 (TRL).
    pub kl_coefficient: f64,
    /// Whether the KL term is multiplied by the importance ratio, which makes its gradient that of the reverse KL. Default true (TRL).
    pub kl_bias_correction: bool,
    /// Reduction of the token losses. Default `dapo` (TRL).
    pub loss_type: GrpoLossType,
    /// What a reward is compared with. Default `group_mean` (TRL).
    pub baseline: GroupBaseline,
    /// What advantages are divided by. Default `group` (TRL).
    pub scale_rewards: ScaleRewards,
    /// Leave completions without a stop id out of the loss. Default false (TRL).
    pub mask_truncated_completions: bool,
    /// Weight of the entropy bonus. Default 0.
    pub entropy_coefficient: f64,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// What else shapes the distribution that completions are drawn from.
    pub sampling: SamplingConfig,
    /// The reference: a model directory. Default: the model training starts from.
    pub reference_model: Option<String>,
}

impl Default for GrpoConfig {
    fn default() -> Self {
        Self {
            group_size: 8,
            max_new_tokens: 512,
            temperature: 1.0,
            update_epochs: 1,
            mini_batches: 1,
            clip_range: 0.2,
            clip_range_high: None,
            delta: None,
            kl_coefficient: 0.0,
            kl_bias_correction: true,
            loss_type: GrpoLossType::Dapo,
            baseline: GroupBaseline::GroupMean,
            scale_rewards: ScaleRewards::Group,
            mask_truncated_completions: false,
            entropy_coefficient: 0.0,
            stop: Vec::new(),
            sampling: SamplingConfig::default(),
            reference_model: None,
        }
    }
}

/// How token losses become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrpoLossType {
    /// Mean over each sequence, then over sequences (Shao et al. 2024).
    Grpo,
    /// Sum divided by sequences × `max_new_tokens` (Liu et al. 2025).
    DrGrpo,
    /// Mean over the tokens of a micro-batch.
    Bnpo,
    /// Mean over the tokens of the step (Yu et al. 2025).
    Dapo,
}

/// What a completion's reward is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GroupBaseline {
    /// The mean of its group, itself included (Shao et al. 2024).
    GroupMean,
    /// The mean of the others of its group; with `scale_rewards: none` it is RLOO's advantage (Ahmadian et al. 2024).
    LeaveOneOut,
}

/// What advantages are divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScaleRewards {
    /// The standard deviation of the group.
    Group,
    /// The standard deviation of the batch.
    Batch,
    /// Nothing.
    None,
}

impl Method for GrpoConfig {
    fn name(&self) -> &'static str {
        "grpo"
    }

    fn about(&self) -> &'static str {
        "Train a policy on rewards, with groups of completions"
    }

    fn defaults(&self) -> Defaults {
        Defaults { learning_rate: 1e-6, too_long: TooLong::Skip, best_metric: "eval_reward" }
    }

    fn need(&self) -> Need {
        Need::Prompt
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        let cast = Cast::alone(shared, Head::Language).with_rewards(shared);
        // Without a KL term only evaluations ask the reference.
        match self.kl_coefficient != 0.0 || shared.train.eval_steps >= 0 {
            true => cast.with_reference(shared, self.reference_model.as_deref(), Stay::Whole),
            false => cast,
        }
    }

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        problems.unless(self.group_size >= 2, &["method.grpo.group_size"], || {
            let reason = "an advantage is the distance from the mean of the group, which is always 0 in a group of one";
            let message = format!("`method.grpo.group_size` is {}, but must be at least 2: {reason}", self.group_size);
            (message, Some("8 is usual; `gradus ppo` works with one completion a prompt".into()))
        });
        problems.between("method.grpo.clip_range", self.clip_range, 0.0, 1.0);
        problems.at_least("method.grpo.entropy_coefficient", self.entropy_coefficient, 0.0);
        self.iteration().rules(problems, self.name(), train);
        problems.at_least("method.grpo.kl_coefficient", self.kl_coefficient, 0.0);
        if let Some(high) = self.clip_range_high {
            problems.above_zero("method.grpo.clip_range_high", high);
        }
        if let Some(delta) = self.delta {
            let least = 1.0 + self.clip_range_high.unwrap_or(self.clip_range);
            problems.unless(delta > least, &["method.grpo.delta", "method.grpo.clip_range_high"], || {
                let message = format!(
                    "`method.grpo.delta` is {delta}, but must be above 1 + the upper clip range ({least}), which bounds the ratio already"
                );
                (message, None)
            });
        }
    }
}

impl OnlineMethod for GrpoConfig {
    fn iteration(&self) -> Iteration<'_> {
        Iteration {
            group_size: self.group_size,
            max_new_tokens: self.max_new_tokens,
            temperature: self.temperature,
            stop: &self.stop,
            sampling: &self.sampling,
            update_epochs: self.update_epochs,
            mini_batches: self.mini_batches,
            among_supports: self.sampling.trained_logprobs == TrainedLogprobs::Processed,
            vectors: None,
            regroups: true,
        }
    }

    fn algorithm(&self, _: Parts) -> Box<dyn Algorithm> {
        Box::new(Grpo::new(self))
    }
}

/// The algorithm. It has no state: everything it needs comes with the rollouts.
#[derive(Debug, Clone)]
pub struct Grpo {
    config: GrpoConfig,
}

impl Grpo {
    /// The algorithm that `config` asks for.
    pub fn new(config: &GrpoConfig) -> Self {
        Self { config: config.clone() }
    }

    /// Whether the completion of a rollout carries loss.
    fn counts(&self, stop: StopReason) -> bool {
        !(self.config.mask_truncated_completions && stop == StopReason::Length)
    }

    /// The loss of a step.
    fn loss(&self) -> PolicyLoss {
        let config = &self.config;
        let correction = if config.kl_bias_correction { KlCorrection::ImportanceRatio } else { KlCorrection::None };
        PolicyLoss {
            temperature: config.temperature as f32,
            surrogate: Surrogate::Clipped(Clip {
                low: config.clip_range,
                high: config.clip_range_high.unwrap_or(config.clip_range),
                delta: config.delta,
            }),
            denominator: match config.loss_type {
                GrpoLossType::Grpo => Denominator::Weights(Reduction::SequenceMean),
                GrpoLossType::DrGrpo => Denominator::Weights(Reduction::FixedLength(config.max_new_tokens)),
                GrpoLossType::Dapo => Denominator::Weights(Reduction::TokenMean),
                GrpoLossType::Bnpo => Denominator::MicroBatches(Reduction::TokenMean),
            },
            kl: Some((config.kl_coefficient, correction)).filter(|(coefficient, _)| *coefficient != 0.0),
            entropy_coefficient: config.entropy_coefficient,
            value: None,
            clips_jointly: false,
        }
    }

    /// The rollouts of a step that carry loss, groups together: their prompts are computed once. And how many do not.
    fn split(&self, experience: &Experience, batch: &[usize]) -> (Vec<usize>, usize) {
        let counts = |i: &usize| self.counts(experience.rollouts.rollouts[*i].stop);
        let mut chosen: Vec<usize> = batch.iter().copied().filter(counts).collect();
        chosen.sort_unstable();
        let silent = batch.len() - chosen.len();
        (chosen, silent)
    }
}

impl Algorithm for Grpo {
    fn sampling(&self) -> Sampling {
        Sampling::of(&self.config.iteration())
    }

    fn needs_reference(&self) -> bool {
        self.config.kl_coefficient != 0.0
    }

    fn advantages(&mut self, _actor: &Actor, experience: &Experience, _settings: &Settings) -> Advantages {
        let baseline = match self.config.baseline {
            GroupBaseline::GroupMean => Baseline::Mean,
            GroupBaseline::LeaveOneOut => Baseline::LeaveOneOut,
        };
        let scale = match self.config.scale_rewards {
            ScaleRewards::Group => Scale::Group,
            ScaleRewards::Batch => Scale::Batch,
            ScaleRewards::None => Scale::None,
        };
        of_groups(experience, baseline, scale)
    }

    fn update(
        &mut self,
        actor: &mut Learner<Actor>,
        experience: &Experience,
        advantages: &Advantages,
        update: Update<'_>,
    ) -> Result<Stats, String> {
        let GrpoConfig { update_epochs, mini_batches: count, entropy_coefficient, .. } = self.config;
        let all: Vec<usize> = (0..experience.rollouts.len()).collect();
        let (loss, mut learners) = (self.loss(), Learners { actor, critic: None });
        let (mut stats, mut ratios) = (Stats::default(), Statistics::default());
        for epoch in 0..update_epochs {
            let order = update.order(&all, count, epoch);
            for batch in mini_batches(&order, count) {
                let (chosen, silent) = self.split(experience, batch);
                if chosen.is_empty() {
                    continue;
                }
                let (batch, mut seen) =
                    (MiniBatch { experience, advantages, chosen: &chosen, silent }, Seen::default());
                let (losses, norms) = loss.step(&mut learners, batch, update, &mut seen)?;
                let tokens = seen.ratios.tokens as f64;
                stats.mean("loss", losses.total, 1.0);
                stats.mean("grad_norm", norms.actor, 1.0);
                if let Some(kl) = seen.kl {
                    stats.mean("kl", kl, tokens);
                }
                stats.mean("entropy", seen.entropy, tokens);
                if entropy_coefficient != 0.0 {
                    stats.mean("policy_loss", losses.policy, 1.0);
                    stats.last("entropy_coef", entropy_coefficient);
                }
                ratios.add(&seen.ratios);
            }
        }
        let tokens = ratios.tokens as f64;
        stats.mean("clip_ratio/low_mean", ratios.low_fraction() * tokens, tokens);
        stats.mean("clip_ratio/high_mean", ratios.high_fraction() * tokens, tokens);
        stats.mean("clip_ratio/region_mean", ratios.clip_fraction() * tokens, tokens);
        if let (Some(low), Some(high)) = (ratios.low_min, ratios.high_max) {
            stats.min("clip_ratio/low_min", low);
            stats.max("clip_ratio/high_max", high);
        }
        stats.sum(NEW_TOKENS, lengths(&experience.rollouts, &all).iter().sum::<usize>() as f64);
        Ok(stats)
    }
}
