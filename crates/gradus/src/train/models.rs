//! Loads the models of a run, prepares the trained parts, and freezes the rest.
//!
//! With an adapter (`lora`, or `adapter` to continue one), the policy consists of frozen weights and a trained low-rank part. A reference
//! without a model of its own uses the same weights without that part, or with the part as it was at the start.

use std::path::Path;

use burn::module::Module;
use burn::tensor::Device;

use super::cast::SAME_ARCHITECTURE;
use super::player::Player;
use super::prepare::Start;
use super::recorder::restore_optimizer;
use crate::algorithm::actor::ValueHead;
use crate::algorithm::critic::{Critic, SeparateCritic, VALUE_HEAD_FILE};
use crate::algorithm::estimator::CRITIC_PREFIX;
use crate::algorithm::nlpo::LAGGED_DIR;
use crate::batches::MicroBatch;
use crate::config::Plan;
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::learner::Learner;
use crate::learner::optimizer::{Optimizer, OptimizerConfig};
use crate::method::{Cast, Head, TrainedBy, TrainedParts};
use crate::metric_models::MetricModels;
use crate::model::adapter::{Adaptable, PeftConfig, TaskType};
use crate::model::{CausalLm, Layers, ModelDir, REFERENCE_DIR, Reference, ReferenceSync, RewardModel};
use crate::pretrained::Trainable;
use crate::ranks::Ranks;
use crate::reward::config::Learned;
use crate::reward::{self, Interrupt, Reward};
use crate::rng::Purpose;
use crate::run::Checkpoint;
use crate::run::tensors::read_tensors;
use crate::settings::Settings;

/// Loads the models of a cast.
pub(super) struct Models<'a> {
    pub plan: &'a Plan,
    pub start: &'a Start,
    pub cast: &'a Cast<Player>,
    /// Checkpoint of a resumed run.
    pub checkpoint: Option<&'a Checkpoint>,
    /// With autodiff.
    pub device: &'a Device,
    /// Ranks that share the moments.
    pub ranks: Ranks,
}

/// Indices of the streams of [`Purpose::Init`].
const HEAD: u64 = 0;
const POLICY_ADAPTER: u64 = 1;
const CRITIC_ADAPTER: u64 = 2;

impl Models<'_> {
    /// Loads the policy and prepares it for training.
    pub fn policy<M: Trainable>(&self) -> Result<M> {
        let player = &self.cast.policy;
        let model: M = self.open(player, &self.source()?)?;
        let fresh = self.fresh_adapter(model.adapter(), player)?;
        self.trained(model, player, fresh, POLICY_ADAPTER)
    }

    /// Loads the model that this run has saved in `path`, without autodiff.
    pub fn saved<M: Trainable>(&self, path: &Path) -> Result<M> {
        let player = &self.cast.policy;
        let dir = match self.adapts() {
            true => self.start.model.dir.without_adapter().with_adapter(path)?,
            false => ModelDir::open(path)?,
        };
        let packed = self.adapts().then_some(player.role.weights);
        let mut head = self.plan.seed().stream(Purpose::Init, 0, HEAD);
        let model = M::open(&dir, packed, &mut head, &self.device.clone().inner())?;
        Ok(model.computing(self.plan.train().compute))
    }

    /// Loads the reference, without autodiff. It shares the policy's weights if both start from the same model.
    pub fn reference(&self, policy: &CausalLm) -> Result<Option<Reference>> {
        let Some(player) = &self.cast.reference else { return Ok(None) };
        if let Some(sync) = self.plan.train().reference_sync() {
            return self.following_reference(player, policy, sync).map(Some);
        }
        let (start, weights) = (&self.start.model.dir, player.role.weights);
        let plain = self.device.clone().inner();
        let reference = match self.checkpoint {
            _ if player.is_named() => CausalLm::load_packed(&player.dir, weights, &plain)?,
            // A new adapter has no effect at first.
            _ if policy.adapter().is_some() && start.adapter.is_none() => policy.without_adapter(),
            Some(_) if policy.adapter().is_some() => policy.without_adapter().with_saved_adapter(start)?,
            Some(_) => CausalLm::load_packed(start, weights, &plain)?,
            None => policy.valid(),
        };
        Ok(Some(Reference::frozen(reference.into_frozen(weights))))
    }

    /// Loads a reference that follows the policy. Its weights stay dense and in f32.
    fn following_reference(&self, player: &Player, policy: &CausalLm, sync: ReferenceSync) -> Result<Reference> {
        let plain = self.device.clone().inner();
        let model = match self.checkpoint {
            Some(checkpoint) => {
                let mut dir = ModelDir::open(&checkpoint.path.join(REFERENCE_DIR))?;
                // It is written with the policy's configuration, but a named reference has its own.
                dir.config = player.dir.config.clone();
                CausalLm::load(&dir, &plain)?.with_compute(policy.compute())
            }
            None if player.is_named() => CausalLm::load(&player.dir, &plain)?.with_compute(policy.compute()),
            None => policy.valid(),
        };
        Reference::following(&model, policy, sync).map_err(|what| {
            let message = format!("`train.sync_ref_model` mixes this reference with the policy, but {what}");
            Error::model(&player.dir.path, message).with_hint(SAME_ARCHITECTURE)
        })
    }

    /// Loads the lagged policy of some iterations ago, without autodiff. At first it has the policy's own weights.
    pub fn lagged(&self, policy: &CausalLm) -> Result<Option<CausalLm>> {
        if self.cast.lagged.is_none() {
            return Ok(None);
        }
        let Some(checkpoint) = self.checkpoint else { return Ok(Some(policy.valid())) };
        let path = checkpoint.path.join(LAGGED_DIR);
        let lagged = match policy.adapter().is_some() {
            true => {
                let dir = self.start.model.dir.without_adapter().with_adapter(&path)?;
                policy.without_adapter().with_saved_adapter(&dir)?
            }
            false => {
                CausalLm::load(&ModelDir::open(&path)?, &self.device.clone().inner())?.with_compute(policy.compute())
            }
        };
        Ok(Some(lagged.valid()))
    }

    /// Loads the critic, and the value head if the critic shares the policy's trunk.
    pub fn critic(&self, policy: &CausalLm, settings: &Settings) -> Result<(Option<Critic>, Option<ValueHead>)> {
        let Some(player) = &self.cast.critic else { return Ok((None, None)) };
        let kept = self.checkpoint.map(|checkpoint| checkpoint.path.join("critic"));
        let TrainedBy::Own(learning_rate, parts) = player.role.trained_by else {
            return Ok((Some(Critic::Shared), Some(self.value_head(kept.as_deref(), policy)?)));
        };
        let adapts = policy.adapter().is_some();
        let loaded: Option<RewardModel> = match kept {
            Some(path) if adapts => Some(self.open(player, &player.dir.without_adapter().with_adapter(&path)?)?),
            Some(path) => Some(self.open(player, &ModelDir::open(&path)?)?),
            None if player.is_named() => Some(self.open(player, &player.dir)?),
            None => None,
        };
        let (model, fresh) = match loaded {
            Some(model) if adapts => {
                let fresh = self.fresh_adapter(model.adapter(), player)?;
                (model, fresh)
            }
            Some(model) => (model, None),
            None => (RewardModel::critic_from(policy), None),
        };
        let model = match player.role.head {
            Head::Scalar(layers) => model.with_head(layers, &mut self.plan.seed().stream(Purpose::Init, 0, HEAD)),
            Head::Language | Head::Labels => model,
        };
        let model = self.trained(model, player, fresh, CRITIC_ADAPTER)?;
        let model = if parts == TrainedParts::Head { model.train_head() } else { model };
        let optimizer = self.optimizer(CRITIC_PREFIX, settings.optimizer, &model)?;
        let learner = Learner::new(model, optimizer);
        let learning_rate = learning_rate.unwrap_or(settings.learning_rate);
        let source = player.dir.clone();
        let pad_id =
            source.pad_id().filter(|id| !source.eos_ids().contains(id)).unwrap_or_else(|| self.start.model.pad_id());
        let critic = SeparateCritic { learner, learning_rate, source, pad_id };
        Ok((Some(Critic::Separate(Box::new(critic))), None))
    }

    /// Value head on the policy's trunk: from the checkpoint, or initialized with zeros.
    fn value_head(&self, kept: Option<&Path>, policy: &CausalLm) -> Result<ValueHead> {
        let Some(path) = kept else { return Ok(ValueHead::zeros(policy.trunk.dims().1, self.device)) };
        read_value_head(&path.join(VALUE_HEAD_FILE), policy.trunk.dims().1, self.device)
    }

    /// Loads the reward. An `interrupt` ends the wait for a score.
    pub fn reward(&self, passes: MicroBatch, interrupt: &Interrupt) -> Result<Box<dyn Reward>> {
        let run = self.plan.config();
        if run.environment.is_some() && run.reward.is_none() {
            return reward::in_environment(None, run.episode.reward_weight);
        }
        let Some(config) = &run.reward else {
            return Err(Error::input(format!("`{}` needs a reward", self.plan.method().name()))
                .with_hint("pass `--reward-model DIR`, `--reward-command \"python3 FILE\"` or a `--reward-rule-…`, or set `reward:` in the file"));
        };
        let device = self.device.clone().inner();
        let load = |learned: Learned<'_>| {
            let player = self.cast.rewards.iter().find(|player| player.name == learned.name());
            let Player { dir, role, .. } = player.expect("the cast has every reward model");
            reward::load_learned(learned, dir, &device, role.weights, passes)
        };
        let config = config.clone().recorded_in(self.plan.output_dir()).shared_by(self.ranks.size());
        let reward = reward::build(&config, &load, &MetricModels::new(device.clone(), passes), interrupt)?;
        match run.environment {
            None => Ok(reward),
            Some(_) => reward::in_environment(Some(reward), run.episode.reward_weight),
        }
    }

    /// Creates an optimizer for `module`, or restores the one that the checkpoint has under `prefix`.
    pub fn optimizer<M: Module>(&self, prefix: &str, config: OptimizerConfig, module: &M) -> Result<Optimizer> {
        let moments_device = self.plan.train().offload_moments.then(|| DeviceChoice::cpu().device());
        let optimizer = match self.checkpoint {
            Some(checkpoint) => {
                restore_optimizer(checkpoint, prefix, config, module, moments_device.as_ref().unwrap_or(self.device))?
            }
            None => Optimizer::new(config),
        };
        let optimizer = optimizer.with_moments_on(moments_device);
        let ranks = if self.plan.train().shard_moments { self.ranks } else { Ranks::ALONE };
        Ok(optimizer.sharded(ranks, module))
    }

    /// Source of the policy's weights: the checkpoint or the start model.
    fn source(&self) -> Result<ModelDir> {
        match self.checkpoint {
            Some(checkpoint) if self.adapts() => self.start.model.dir.without_adapter().with_adapter(&checkpoint.path),
            Some(checkpoint) => ModelDir::open(&checkpoint.path),
            None => {
                let head = self.start.model.labels.get().map(|labels| labels.task.clone());
                Ok(self.start.model.dir.clone().with_head(head))
            }
        }
    }

    /// Returns true if an adapter is trained instead of the model itself.
    fn adapts(&self) -> bool {
        self.start.adapts(self.plan)
    }

    /// Configuration of a new adapter for a model without one: that of `lora`, or for a critic that of the policy's adapter.
    fn fresh_adapter(&self, present: Option<&PeftConfig>, player: &Player) -> Result<Option<PeftConfig>> {
        if present.is_some() {
            return Ok(None);
        }
        let (base, task) = (full_name(&player.name), task(player));
        match (&self.plan.config().lora, &self.start.model.dir.adapter) {
            (Some(lora), _) => Ok(Some(lora.peft_config(&player.dir, task, base)?)),
            (None, Some(adapter)) => Ok(Some(adapter.config.based_on(base, task))),
            (None, None) => Ok(None),
        }
    }

    fn open<M: Trainable>(&self, player: &Player, dir: &ModelDir) -> Result<M> {
        let packed = self.adapts().then_some(player.role.weights);
        let mut head = self.plan.seed().stream(Purpose::Init, 0, HEAD);
        M::open(dir, packed, &mut head, self.device)
    }

    /// Prepares `model` of `player` for training, with a `fresh` adapter initialized from this stream, or as it is.
    fn trained<M: Trainable>(
        &self,
        mut model: M,
        player: &Player,
        fresh: Option<PeftConfig>,
        stream: u64,
    ) -> Result<M> {
        if let Some(adapter) = fresh {
            let mut stream = self.plan.seed().stream(Purpose::Init, 0, stream);
            model = model.with_fresh_adapter(&player.dir, adapter, &mut stream)?;
        }
        model = model.computing(self.plan.train().compute);
        model.adapted_mut().0.set_recompute(self.plan.train().recompute);
        model.adapted_mut().0.set_dropout(self.plan.train().dropout);
        let Some(adapter) = model.adapter() else {
            model.adapted().0.check_trainable(&player.dir)?;
            return Ok(model);
        };
        let config = self.plan.config();
        let method = self.plan.method();
        // The dropout in an adapter's file describes its earlier training. A policy that samples uses it only with `dropout`.
        let own = if method.iteration().is_some() && !config.train.dropout { 0.0 } else { adapter.dropout };
        let dropout =
            if method.method().drops_out() { config.lora.as_ref().map_or(own, |lora| lora.dropout) } else { 0.0 };
        model.set_adapter_dropout(dropout as f32);
        Ok(model.train_adapter(player.role.weights))
    }
}

/// Reads the value head in `path` for a trunk of this width.
fn read_value_head(path: &Path, width: usize, device: &Device) -> Result<ValueHead> {
    let tensors = read_tensors(path)?;
    match tensors.as_slice() {
        [bias, weight]
            if (&*bias.name, &*weight.name) == ("bias", "weight") && bias.shape == [1] && weight.shape == [width] =>
        {
            Ok(ValueHead::new(weight.values.to_vec(), bias.values[0], device))
        }
        _ => {
            let found: Vec<_> = tensors.iter().map(|tensor| format!("`{}` {:?}", tensor.name, tensor.shape)).collect();
            let found = if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
            let message = format!("holds {found}, but the value head of this policy is `bias` [1], `weight` [{width}]");
            Err(Error::model(path, message).with_hint("resume from another checkpoint, or start a new run"))
        }
    }
}

/// Task type of an adapter on a model.
pub(super) fn task(player: &Player) -> TaskType {
    match player.role.head {
        Head::Scalar(_) | Head::Labels => TaskType::SequenceClassification,
        Head::Language if player.shape.has_encoder() => TaskType::Seq2SeqLm,
        Head::Language => TaskType::CausalLm,
    }
}

/// Returns the absolute path of a directory, so that the adapter finds it from anywhere. Names on the hub are unchanged.
fn full_name(name: &str) -> String {
    Path::new(name).canonicalize().map_or_else(|_| name.to_owned(), |path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::NamedTensor;
    use crate::run::tensors::write_tensors;

    #[test]
    fn a_value_head_of_other_tensors_is_refused() {
        let (file, device) = (tempfile::NamedTempFile::new().expect("a file"), Device::flex().autodiff());
        let read = |tensors: &[(&'static str, usize)]| {
            let tensors: Vec<_> = tensors.iter().map(|&(name, n)| NamedTensor::new(name, [n], vec![0.5; n])).collect();
            write_tensors(file.path(), &tensors).expect("written");
            read_value_head(file.path(), 3, &device).map_err(|error| error.to_string())
        };
        assert!(read(&[("bias", 1), ("weight", 3)]).is_ok());
        let reason = "but the value head of this policy is `bias` [1], `weight` [3]";
        for (tensors, found) in [
            (&[("bias", 1), ("weight", 4)][..], "`bias` [1], `weight` [4]"),
            (&[("scale", 1), ("weight", 3)], "`scale` [1], `weight` [3]"),
            (&[("weight", 3)], "`weight` [3]"),
            (&[], "nothing"),
        ] {
            let expected = format!("{}: holds {found}, {reason}", file.path().display());
            assert_eq!(read(tensors).expect_err("another head"), expected);
        }
    }
}
