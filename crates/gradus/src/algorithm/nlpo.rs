//! Natural language policy optimization: configuration and update.
//!
//! Ramamurthy et al. 2023 (RL4LMs), section 4.2, <https://arxiv.org/abs/2210.01241>: PPO with a policy that is
//! restricted to tokens that a lagged copy of it finds likely. Their code differs from the paper: the mask never
//! changes, and logprobs are not renormalized. The defaults follow the paper; keys select the behavior of the code.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::actor::Actor;
use super::actor_critic::ActorCritic;
use super::estimator::Estimator;
use super::ppo::PpoConfig;
use super::{Advantages, Algorithm, AlgorithmInputs, Experience, OnlineMethod, SavePolicy, Update};
use crate::data::Need;
use crate::error::Result;
use crate::files::atomic;
use crate::generate::{Kept, LikeliestMask, Masking, Record, TrainedLogprobs};
use crate::learner::Learner;
use crate::method::{Cast, Defaults, Iteration, Method, Preset, Problems, Role, Shared, Source};
use crate::model::CausalLm;
use crate::settings::{RolloutsConfig, Settings, TrainConfig};
use crate::stats::StepReport;

/// Keys of `method.nlpo`: those of `method.ppo` and those of the mask.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NlpoConfig {
    /// Keys shared with PPO.
    #[serde(flatten)]
    pub ppo: PpoConfig,
    /// Sample from the smallest set of tokens with this total probability under the mask's model; 1 keeps all tokens.
    /// Default 0.9 (RL4LMs).
    pub top_p: f64,
    /// Sample from this many of its likeliest tokens instead of `top_p`. Default: none.
    #[schemars(range(min = 1))]
    pub top_k: Option<usize>,
    /// Model that defines the mask. Default `lagged` (RL4LMs).
    pub mask_model: MaskModel,
    /// Updates of the lagged copy. Default `periodic` (RL4LMs' code: `frozen`).
    pub mask_update: MaskUpdate,
    /// Number of iterations after which the lagged copy is replaced by the current policy. Default 20 (RL4LMs' recipes).
    #[schemars(range(min = 1))]
    pub mask_update_iterations: usize,
    /// Minimum number of tokens that the mask keeps. Default 1 (RL4LMs' code: 100; with an encoder, one more than configured).
    #[schemars(range(min = 1))]
    pub min_tokens_to_keep: usize,
    /// Never mask the tokenizer's special tokens. Default true (RL4LMs' code).
    pub keep_special_tokens: bool,
    /// Renormalize the trained logprobs over the tokens that the mask keeps. RL4LMs' code uses the whole vocabulary
    /// (false). Default true.
    pub renormalise: bool,
    /// Tokens over which logprobs are renormalized: those that the mask keeps, or those that the mask and all of
    /// `sampling` keep. Default `nlpo_mask_only`.
    pub mask_scope: MaskScope,
    /// Apply the mask to completions of evaluations too, as in RL4LMs' code. Default false.
    pub mask_at_eval: bool,
}

impl Default for NlpoConfig {
    fn default() -> Self {
        Self {
            ppo: PpoConfig::default(),
            top_p: 0.9,
            top_k: None,
            mask_model: MaskModel::Lagged,
            mask_update: MaskUpdate::Periodic,
            mask_update_iterations: 20,
            min_tokens_to_keep: 1,
            keep_special_tokens: true,
            renormalise: true,
            mask_scope: MaskScope::NlpoMaskOnly,
            mask_at_eval: false,
        }
    }
}

/// Model that defines a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MaskModel {
    /// A copy of the policy as it was some iterations ago.
    Lagged,
    /// The policy itself (RL4LMs' `topk`).
    Policy,
}

/// Updates of a lagged copy of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MaskUpdate {
    /// Every `mask_update_iterations`.
    Periodic,
    /// Never: it stays the start model.
    Frozen,
}

/// Tokens over which logprobs are renormalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MaskScope {
    /// Tokens that the mask keeps.
    NlpoMaskOnly,
    /// Tokens that the mask and everything in `sampling` keep.
    Processed,
}

/// RL4LMs' IMDB recipe, with the behavior of its code where the paper differs. Batches are those of PPO's preset.
const RL4LMS: &str = "\
method:
  nlpo:
    group_size: 1
    max_new_tokens: 48
    temperature: 1
    update_epochs: 5
    mini_batches: 14
    clip_range: 0.2
    value_clip_range: 0
    value_coefficient: 1
    entropy_coefficient: 0
    discount: 0.99
    gae_lambda: 0.95
    whiten_rewards: false
    whiten_advantages: true
    kl: {coefficient: 0.1, estimator: k1, target: 0.1, rate: 0.1, unit: token}
    critic: {trunk: separate}
    sampling: {top_k: 50, min_new_tokens: 48, trained_logprobs: raw}
    quirks:
      value_clip: clipped
      target_kl_over: mini_batch
      clip_jointly: true
      whitening: {rewards: biased_deviation, center_rewards: true, advantages: deviation, advantages_over: mini_batch}
    top_p: 0.9
    mask_model: lagged
    mask_update: frozen
    mask_update_iterations: 5
    min_tokens_to_keep: 100
    keep_special_tokens: true
    renormalise: false
    mask_scope: processed
    mask_at_eval: true
train:
  batch_size: 28
  learning_rate: 1e-6
  lr_schedule: constant
  weight_decay: 1e-6
  max_grad_norm: 0.5
";

impl Method for NlpoConfig {
    fn name(&self) -> &'static str {
        "nlpo"
    }

    fn about(&self) -> &'static str {
        "Train a policy on rewards, with a critic and a mask of unlikely tokens"
    }

    fn defaults(&self) -> Defaults {
        self.ppo.defaults()
    }

    fn need(&self) -> Need {
        self.ppo.need()
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        let lagged = (self.mask_model == MaskModel::Lagged).then(|| Role::frozen(Source::Policy, shared));
        Cast { lagged, ..self.ppo.cast(shared) }
    }

    fn preset(&self, preset: Preset) -> Option<&'static str> {
        (preset == Preset::Rl4lms).then_some(RL4LMS)
    }

    fn drops_out(&self) -> bool {
        true
    }

    fn rollouts_rules(&self, problems: &mut Problems<'_>, _rollouts: &RolloutsConfig) {
        problems.require(false, &["rollouts", "method"], || {
            let message = "`nlpo` masks sampling with a second model, which a server does not support";
            (message.into(), Some("leave out `rollouts`, or use `ppo`".into()))
        });
    }

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        self.ppo.check_rules(problems, self.name(), train);
        problems.require(self.top_p > 0.0 && self.top_p <= 1.0, &["method.nlpo.top_p"], || {
            (format!("`method.nlpo.top_p` is {}, but must be above 0 and at most 1", self.top_p), None)
        });
        problems.at_least("method.nlpo.top_k", self.top_k.unwrap_or(1), 1);
        problems.at_least("method.nlpo.mask_update_iterations", self.mask_update_iterations, 1);
        problems.at_least("method.nlpo.min_tokens_to_keep", self.min_tokens_to_keep, 1);
        let is_raw = self.ppo.rollouts.sampling.trained_logprobs == TrainedLogprobs::Raw;
        let keys = ["method.nlpo.sampling.trained_logprobs", "method.nlpo.mask_scope"];
        problems.require(is_raw, &keys, || {
            let message = format!("`{}` is not `raw`, but the mask decides which logprobs are trained on", keys[0]);
            (message, Some("leave it out, and set `mask_scope: processed` where `renormalise` is true".into()))
        });
        let coarse = train.sampling_weights.is_some() && self.renormalise;
        problems.require(!coarse, &["method.nlpo.renormalise", "train.sampling_weights"], || {
            let message = "`method.nlpo.renormalise` is true, but `train.sampling_weights` is set: completions are then sampled from the coarser weights, not from the policy";
            (message.into(), Some("leave out `train.sampling_weights`, or set `renormalise: false`".into()))
        });
        let penalises = self.ppo.rollouts.sampling.repetition_penalty != 1.0;
        let processed = self.renormalise && self.mask_scope == MaskScope::Processed;
        let keys = ["method.nlpo.mask_scope", "method.nlpo.sampling.repetition_penalty"];
        problems.require(!(processed && penalises), &keys, || {
            let message =
                format!("`{}` is `processed`, which cannot be combined with `{}`: it bans nothing", keys[0], keys[1]);
            (message, Some("use `mask_scope: nlpo_mask_only`".into()))
        });
        let searches = train.evaluation.beams.is_some() && self.mask_at_eval;
        let keys = ["method.nlpo.mask_at_eval", "train.evaluation.beams"];
        problems.require(!searches, &keys, || {
            let message = format!(
                "`{}` is true, but with `{}` evaluations use beam search: the mask applies only to sampling",
                keys[0], keys[1]
            );
            (message, Some("set `mask_at_eval: false`, or leave out `beams`".into()))
        });
    }
}

impl OnlineMethod for NlpoConfig {
    fn iteration(&self) -> Iteration<'_> {
        Iteration { normalizes_over_supports: self.renormalise && self.masks(), ..self.ppo.iteration() }
    }

    fn algorithm(&self, inputs: AlgorithmInputs) -> Box<dyn Algorithm> {
        Box::new(Nlpo::new(self, inputs))
    }
}

impl NlpoConfig {
    fn kept(&self) -> Kept {
        self.top_k.map_or(Kept::TopP(self.top_p), Kept::TopK)
    }

    /// Whether the mask can exclude any token.
    fn masks(&self) -> bool {
        self.kept() != Kept::TopP(1.0)
    }
}

/// The algorithm: PPO, its mask and the lagged policy.
#[derive(Debug)]
pub struct Nlpo {
    config: NlpoConfig,
    ppo: ActorCritic,
    mask: LikeliestMask,
    lagged: Option<CausalLm>,
}

impl Nlpo {
    /// Creates the algorithm from `config` and the models of its cast.
    ///
    /// # Panics
    /// When there is no critic.
    pub fn new(config: &NlpoConfig, inputs: AlgorithmInputs) -> Self {
        let critic = inputs.critic.expect("its cast has a critic");
        let mask = LikeliestMask {
            kept: config.kept(),
            at_least: config.min_tokens_to_keep,
            always: if config.keep_special_tokens { inputs.special_ids } else { Vec::new() },
            temperature: config.ppo.rollouts.temperature as f32,
        };
        let ppo = config.ppo.actor_critic(critic, inputs.kl_coefficient);
        Self { config: config.clone(), ppo, mask, lagged: inputs.lagged }
    }

    /// Returns which ids are recorded per token in training.
    fn record(&self) -> Record {
        match (self.config.renormalise, self.config.mask_scope) {
            (false, _) => Record::Nothing,
            (true, MaskScope::NlpoMaskOnly) => Record::Mask,
            (true, MaskScope::Processed) => Record::Drawn,
        }
    }
}

impl Algorithm for Nlpo {
    fn masking(&self, in_evaluation: bool) -> Option<Masking<'_>> {
        let record = if in_evaluation { Record::Nothing } else { self.record() };
        let applies = !in_evaluation || self.config.mask_at_eval;
        // A mask that keeps all tokens needs no guide model.
        let guide = self.lagged.as_ref().filter(|_| self.config.masks());
        applies.then_some(Masking { mask: &self.mask, guide, record })
    }

    fn needs_reference(&self) -> bool {
        true
    }

    fn has_raw_kl(&self) -> bool {
        true
    }

    fn advantages(&mut self, actor: &Actor, experience: &Experience, settings: &Settings) -> Advantages {
        self.ppo.advantages(actor, experience, settings)
    }

    fn update(
        &mut self,
        actor: &mut Learner<Actor>,
        experience: &Experience,
        advantages: &Advantages,
        update: Update<'_>,
    ) -> Result<StepReport, String> {
        let mut report = self.ppo.update(actor, experience, advantages, update)?;
        let supports = experience.iter().flat_map(|rollout| &rollout.supports);
        for support in supports {
            report.metrics.mean("mask/kept", support.len(actor.module().policy.vocab_size()) as f64, 1.0);
        }
        let follows = self.config.mask_update == MaskUpdate::Periodic && self.lagged.is_some();
        if follows && (update.iteration + 1).is_multiple_of(self.config.mask_update_iterations) {
            self.lagged = Some(actor.frozen().policy);
        }
        Ok(report)
    }

    fn estimator(&self) -> Option<&Estimator> {
        self.ppo.estimator()
    }

    fn save_state(&self, directory: &Path, save: SavePolicy<'_>) -> Result<()> {
        let Some(lagged) = &self.lagged else { return Ok(()) };
        atomic::write_dir(&directory.join(LAGGED_DIR), |path| save(lagged, path))
    }

    fn state(&self) -> Map<String, Value> {
        self.ppo.state()
    }
}

/// Directory of the lagged policy in a checkpoint.
pub(crate) const LAGGED_DIR: &str = "lagged";
