//! PPO's critic: a head on the policy's trunk, or a separate model.

use std::borrow::Borrow;
use std::path::Path;

use burn::tensor::Tensor;

use super::actor::{Actor, per_rollout, positions};
use crate::batches::MicroBatch;
use crate::error::Result;
use crate::files::atomic;
use crate::host::read;
use crate::learner::Learner;
use crate::model::{Batch, ModelDir, RewardModel, save_reward_model};
use crate::rollout::{Rollout, Rollouts};
use crate::run::NamedTensor;
use crate::run::tensors::write_tensors;

/// The critic predicts the value of the state before each token.
#[derive(Debug)]
pub enum Critic {
    /// The actor's value head. It is trained in the policy's own step.
    Shared,
    /// A separate model with its own optimizer.
    Separate(Box<SeparateCritic>),
}

/// A separate critic: a trunk with a scalar head, evaluated at every token.
#[derive(Debug)]
pub struct SeparateCritic {
    /// The model in training.
    pub learner: Learner<RewardModel>,
    /// Peak learning rate of the critic.
    pub learning_rate: f64,
    /// Directory it was loaded from. Its configuration and tokenizer are saved with the critic.
    pub source: ModelDir,
    /// Padding id, written into the saved configuration.
    pub pad_id: u32,
}

impl Critic {
    /// Returns the values of the states before all counted completion tokens, one list per rollout.
    pub fn values<R: Borrow<Rollout>>(
        &self,
        actor: &Actor,
        rollouts: &Rollouts<R>,
        passes: MicroBatch,
    ) -> Vec<Vec<f32>> {
        match self {
            Self::Shared => actor.values(rollouts, passes).expect("a shared critic is the actor's value head"),
            Self::Separate(critic) => {
                let model = critic.learner.frozen();
                per_rollout(&model.trunk, rollouts, passes, |_, batch| read(&at_targets(&model, batch)))
            }
        }
    }

    /// Writes the critic into `directory/critic`: a reward model directory, or the value head's two tensors.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, actor: &Actor, directory: &Path) -> Result<()> {
        atomic::write_dir(&directory.join("critic"), |path| match (self, &actor.value_head) {
            (Self::Separate(critic), _) => {
                save_reward_model(&critic.learner.frozen(), &critic.source, path, critic.pad_id)
            }
            (Self::Shared, Some(head)) => {
                let (weight, bias) = (read(&head.weight.val()), read(&head.bias.val()));
                let width = weight.len();
                let tensors = [NamedTensor::new("bias", [1], bias), NamedTensor::new("weight", [width], weight)];
                write_tensors(&path.join(VALUE_HEAD_FILE), &tensors)
            }
            (Self::Shared, None) => Ok(()),
        })
    }
}

impl SeparateCritic {
    /// Returns the values of the states before the `M` counted tokens of a micro-batch, `[M]`, with gradient to the
    /// critic's weights.
    pub fn values(&self, batch: &Batch) -> Tensor<1> {
        at_targets(self.learner.module(), batch)
    }
}

/// File of a value head that shares the policy's trunk.
pub(crate) const VALUE_HEAD_FILE: &str = "value_head.safetensors";

fn at_targets(model: &RewardModel, batch: &Batch) -> Tensor<1> {
    let values_n = model.values(batch);
    let device = values_n.device();
    values_n.select(0, positions(&device, batch.targets()))
}
