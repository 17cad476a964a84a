//! The models of a run: from where they are loaded, what of them is trained, how the rest is held.
//!
//! With an adapter (`lora`, or `adapter` to go on with one) the policy is frozen weights with a trained low-rank part; a
//! reference without a model of its own is the same weights with that part off, or as it was at the start.

use std::path::Path;

use burn::module::Module;
use burn::tensor::Device;

use super::prepare::Start;
use super::recorder::restore_optimizer;
use crate::algorithm::actor::ValueHead;
use crate::algorithm::critic::{Critic, SeparateCritic, VALUE_HEAD_FILE};
use crate::algorithm::ppo::{CRITIC_PREFIX, CriticTrunk, PpoConfig};
use crate::batches::MicroBatch;
use crate::config::{MethodConfig, Plan};
use crate::error::{Error, Result};
use crate::learner::Learner;
use crate::learner::optimizer::{AdamW, AdamWConfig};
use crate::model::adapter::{Adaptable, PeftConfig, TaskType};
use crate::model::{CausalLm, Compute, DropoutKey, ModelDir, RewardModel, Weights, open_model};
use crate::reward::{self, Reward};
use crate::rng::Purpose;
use crate::run::Checkpoint;
use crate::run::tensors::read_tensors;

/// Makes the models that a plan names.
pub(super) struct Models<'a> {
    pub plan: &'a Plan,
    pub start: &'a Start,
    /// Where a resumed run goes on.
    pub checkpoint: Option<&'a Checkpoint>,
    /// With autodiff.
    pub device: &'a Device,
    /// What the masks of dropout are drawn from.
    pub dropout: DropoutKey,
}

/// Which stream of [`Purpose::Init`] draws what.
const HEAD: u64 = 0;
const POLICY_ADAPTER: u64 = 1;
const CRITIC_ADAPTER: u64 = 2;

impl Models<'_> {
    /// The policy, set up for training.
    pub fn policy(&self) -> Result<CausalLm> {
        let dir = self.source()?;
        let model = match self.adapts() {
            true => CausalLm::load_packed(&dir, self.frozen_weights(), self.device)?,
            false => CausalLm::load(&dir, self.device)?,
        };
        let fresh = self.fresh_adapter(model.adapter(), &self.start.model.dir, &self.plan.config().model)?;
        self.trained(model.with_compute(self.compute()), &self.start.model.dir, fresh, POLICY_ADAPTER)
    }

    /// The policy with autodiff, and the reference without: the same weights where both start from one model.
    pub fn policy_and_reference(&self, reference: Option<&str>) -> Result<(CausalLm, CausalLm)> {
        let policy = self.policy()?;
        let plain = self.device.clone().inner();
        let reference = match (reference, self.checkpoint) {
            (Some(name), _) => CausalLm::load_packed(&open_model(name)?, self.frozen_weights(), &plain)?,
            // A new adapter is nothing at first.
            (None, _) if policy.adapter().is_some() && self.start.model.dir.adapter.is_none() => {
                policy.without_adapter()
            }
            (None, Some(_)) if policy.adapter().is_some() => {
                policy.without_adapter().with_saved_adapter(&self.start.model.dir)?
            }
            (None, Some(_)) => CausalLm::load_packed(&self.start.model.dir, self.frozen_weights(), &plain)?,
            (None, None) => policy.valid(),
        };
        Ok((policy, reference.into_frozen(self.frozen_weights())))
    }

    /// The reward model in training: as it is, or with a fresh head on a language model's trunk.
    pub fn scalar(&self) -> Result<RewardModel> {
        let model = self.load_scalar(&self.source()?)?;
        let fresh = self.fresh_adapter(model.adapter(), &self.start.model.dir, &self.plan.config().model)?;
        self.trained(model.with_compute(self.compute()), &self.start.model.dir, fresh, POLICY_ADAPTER)
    }

    /// PPO's critic, and the value head where it shares the policy's trunk.
    pub fn critic(
        &self,
        config: &PpoConfig,
        policy: &CausalLm,
        optimizer: AdamWConfig,
        learning_rate: f64,
    ) -> Result<(Critic, Option<ValueHead>)> {
        let kept = self.checkpoint.map(|checkpoint| checkpoint.path.join("critic"));
        if config.critic.trunk == CriticTrunk::Shared {
            let head = match kept {
                Some(path) => {
                    let tensors = read_tensors(&path.join(VALUE_HEAD_FILE))?;
                    ValueHead::new(tensors[1].values.to_vec(), tensors[0].values[0], self.device)
                }
                None => ValueHead::zeros(policy.trunk.dims().1, self.device),
            };
            return Ok((Critic::Shared, Some(head)));
        }
        let learned = self.plan.config().reward.as_ref().and_then(|reward| reward.models().first().copied());
        let named = config.critic.model.as_deref().or(learned);
        let source = match named {
            Some(name) => open_model(name)?,
            None => self.start.model.dir.clone(),
        };
        let loaded = match (&kept, named) {
            (Some(path), _) if policy.adapter().is_some() => {
                Some(self.load_scalar(&source.without_adapter().with_adapter(path)?)?)
            }
            (Some(path), _) => Some(self.load_scalar(&ModelDir::open(path)?)?),
            (None, Some(_)) => Some(self.load_scalar(&source)?),
            (None, None) => None,
        };
        let model = match loaded {
            Some(model) => {
                let name = named.unwrap_or(&self.plan.config().model);
                let fresh = match policy.adapter() {
                    Some(_) => self.fresh_adapter(model.adapter(), &source, name)?,
                    None => None,
                };
                self.trained(model.with_compute(self.compute()), &source, fresh, CRITIC_ADAPTER)?
            }
            None => {
                let model = RewardModel::critic_from(policy).with_compute(self.compute());
                self.trained(model, &source, None, CRITIC_ADAPTER)?
            }
        };
        let learner = Learner::new(model, self.optimizer(CRITIC_PREFIX, optimizer)?);
        let learning_rate = config.critic.learning_rate.unwrap_or(learning_rate);
        let pad_id =
            source.pad_id().filter(|id| !source.eos_ids().contains(id)).unwrap_or_else(|| self.start.model.pad_id());
        Ok((Critic::Separate(Box::new(SeparateCritic { learner, learning_rate, source, pad_id })), None))
    }

    /// What completions are worth.
    pub fn reward(&self, passes: MicroBatch) -> Result<Box<dyn Reward>> {
        let Some(config) = &self.plan.config().reward else {
            return Err(Error::input(format!("`{}` needs a reward", self.plan.method().name()))
                .with_hint("set `reward:` in the file, or `--reward-model DIR`"));
        };
        let (weights, device) = (self.frozen_weights(), self.device.clone().inner());
        reward::build(config, &|name| {
            Ok(Box::new(reward::ModelReward::load(&open_model(name)?, &device, weights, passes)?) as Box<dyn Reward>)
        })
    }

    /// A fresh optimiser, or as the checkpoint left the one of this prefix.
    pub fn optimizer(&self, prefix: &str, config: AdamWConfig) -> Result<AdamW> {
        match self.checkpoint {
            Some(checkpoint) => restore_optimizer(checkpoint, prefix, config),
            None => Ok(AdamW::new(config)),
        }
    }

    /// Where the policy's weights come from: the checkpoint, or the start model.
    fn source(&self) -> Result<ModelDir> {
        match self.checkpoint {
            Some(checkpoint) if self.adapts() => self.start.model.dir.without_adapter().with_adapter(&checkpoint.path),
            Some(checkpoint) => ModelDir::open(&checkpoint.path),
            None => Ok(self.start.model.dir.clone()),
        }
    }

    /// Whether an adapter is trained, and not the model itself.
    fn adapts(&self) -> bool {
        self.plan.config().lora.is_some() || self.start.model.dir.adapter.is_some()
    }

    fn compute(&self) -> Compute {
        self.plan.train().compute
    }

    /// How weights are held that are not trained.
    fn frozen_weights(&self) -> Weights {
        self.plan.train().frozen_weights.unwrap_or(self.compute().into())
    }

    /// The adapter that a model without one gets: what `lora` says, or for a critic what the policy's is. `name` is what the
    /// user calls the model in `dir`.
    fn fresh_adapter(&self, present: Option<&PeftConfig>, dir: &ModelDir, name: &str) -> Result<Option<PeftConfig>> {
        if present.is_some() {
            return Ok(None);
        }
        let base = full_name(name);
        let task = match dir.is_reward_model() || matches!(self.plan.method(), MethodConfig::Reward(_)) {
            true => TaskType::SequenceClassification,
            false => TaskType::CausalLm,
        };
        match (&self.plan.config().lora, &self.start.model.dir.adapter) {
            (Some(lora), _) => Ok(Some(lora.peft_config(dir, task, base)?)),
            (None, Some(adapter)) => Ok(Some(adapter.config.based_on(base, task))),
            (None, None) => Ok(None),
        }
    }

    /// Masks belong to training on texts and pairs of a reward model; elsewhere they would make the policy's logprobs
    /// disagree with the sampler's and the reference's.
    fn dropout_of(&self, adapter: &PeftConfig) -> f32 {
        match self.plan.method() {
            MethodConfig::Sft(_) | MethodConfig::Reward(_) => {
                self.plan.config().lora.as_ref().map_or(adapter.dropout, |lora| lora.dropout) as f32
            }
            MethodConfig::Dpo(_) | MethodConfig::Ppo(_) | MethodConfig::Grpo(_) => 0.0,
        }
    }

    fn load_scalar(&self, dir: &ModelDir) -> Result<RewardModel> {
        let weights = self.adapts().then(|| self.frozen_weights());
        if dir.is_reward_model() {
            return match weights {
                Some(weights) => RewardModel::load_packed(dir, weights, self.device),
                None => RewardModel::load(dir, self.device),
            };
        }
        let mut stream = self.plan.seed().stream(Purpose::Init, 0, HEAD);
        RewardModel::from_causal(dir, weights, &mut stream, self.device)
    }

    /// `model`, read from `dir`, set up for training: with a `fresh` adapter drawn from this stream, or as it is.
    fn trained<M: Adaptable>(&self, mut model: M, dir: &ModelDir, fresh: Option<PeftConfig>, stream: u64) -> Result<M> {
        if let Some(adapter) = fresh {
            let mut stream = self.plan.seed().stream(Purpose::Init, 0, stream);
            model = model.with_fresh_adapter(dir, adapter, &mut stream)?;
        }
        model.adapted_mut().0.set_recompute(self.plan.train().recompute);
        let Some(adapter) = model.adapter() else {
            model.adapted().0.check_trainable(dir)?;
            return Ok(model);
        };
        let dropout = self.dropout_of(adapter);
        model.set_dropout(dropout, &self.dropout);
        Ok(model.train_adapter(self.frozen_weights()))
    }
}

/// A directory by its whole path, so that the adapter finds it from anywhere; a hub name as it is.
fn full_name(name: &str) -> String {
    Path::new(name).canonicalize().map_or_else(|_| name.to_owned(), |path| path.display().to_string())
}
