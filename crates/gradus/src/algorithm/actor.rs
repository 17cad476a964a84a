//! The policy in training, and the conversion of rollouts into forward passes.

use std::borrow::Borrow;

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::batches::MicroBatch;
use crate::host::read;
use crate::model::{Batch, CausalLm, Counted, DropoutStream, Rows, Sequence, Support, Targets, TokenLogprobs, Trunk};
use crate::rollout::{Rollout, Rollouts};

/// A policy, with a value head if the critic shares its trunk.
#[derive(Module, Debug)]
pub struct Actor {
    /// The policy.
    pub policy: CausalLm,
    /// Computes values from the policy's hidden states.
    pub value_head: Option<ValueHead>,
}

/// Value head: `V = w·h + b`.
#[derive(Module, Debug)]
pub struct ValueHead {
    /// `[D]`. It has one dimension, so weight decay skips it.
    pub weight: Param<Tensor<1>>,
    /// `[1]`
    pub bias: Param<Tensor<1>>,
}

impl ValueHead {
    /// Creates a head that returns 0 for every state (Ziegler et al. 2019).
    pub fn zeros(width: usize, device: &Device) -> Self {
        Self::new(vec![0.0; width], 0.0, device)
    }

    /// Creates a head with these weights.
    pub fn new(weight: Vec<f32>, bias: f32, device: &Device) -> Self {
        let width = weight.len();
        Self {
            weight: Param::from_tensor(Tensor::from_data(TensorData::new(weight, [width]), device)),
            bias: Param::from_tensor(Tensor::from_data(TensorData::new(vec![bias], [1]), device)),
        }
    }

    /// Returns the value of each hidden state: `[M, D]` to `[M]`.
    pub fn values(&self, hidden_md: Tensor<2>) -> Tensor<1> {
        let weight_1d: Tensor<2> = self.weight.val().unsqueeze();
        (hidden_md * weight_1d).sum_dim(1).squeeze_dim::<1>(1) + self.bias.val()
    }
}

/// Output of one forward pass for the completion tokens of its rollouts.
#[derive(Debug)]
pub struct Forward {
    /// Logprobs, entropies and so on, `[M]` each.
    pub logprobs: TokenLogprobs,
    /// Value of the state before each token, if the actor has a value head.
    pub values_m: Option<Tensor<1>>,
}

impl Actor {
    /// Runs one forward pass over a batch.
    pub fn forward(&self, batch: &Batch, temperature: f32) -> Forward {
        let hidden_nd = self.policy.hidden(batch);
        let values_m = self
            .value_head
            .as_ref()
            .map(|head| head.values(hidden_nd.clone().select(0, positions(&hidden_nd.device(), batch.targets()))));
        Forward { logprobs: self.policy.token_logprobs(hidden_nd, batch.targets(), temperature), values_m }
    }

    /// Returns the values of the states before all counted completion tokens, one list per rollout, without gradient.
    pub fn values<R: Borrow<Rollout>>(&self, rollouts: &Rollouts<R>, passes: MicroBatch) -> Option<Vec<Vec<f32>>> {
        let head = self.value_head.as_ref()?;
        Some(per_rollout(&self.policy.trunk, rollouts, passes, |_, batch| {
            let hidden_nd = self.policy.hidden(batch);
            let device = hidden_nd.device();
            read(&head.values(hidden_nd.select(0, positions(&device, batch.targets()))))
        }))
    }
}

/// Returns the logprobs of all counted completion tokens under `model`, one list per rollout.
pub fn logprobs<R: Borrow<Rollout>>(
    model: &CausalLm,
    rollouts: &Rollouts<R>,
    temperature: f32,
    passes: MicroBatch,
) -> Vec<Vec<f32>> {
    per_rollout(&model.trunk, rollouts, passes, |_, batch| read(&model.logprobs(batch, temperature).logprobs_m))
}

/// [`logprobs`] with dropout, with masks drawn from `masks`: the policy as it is in training.
pub(crate) fn logprobs_dropping<R: Borrow<Rollout>>(
    model: &CausalLm,
    rollouts: &Rollouts<R>,
    temperature: f32,
    passes: MicroBatch,
    masks: DropoutStream,
) -> Vec<Vec<f32>> {
    per_rollout(&model.trunk, rollouts, passes, |number, batch| {
        let batch = batch.clone().dropping(Some(masks.part(number)));
        read(&model.logprobs(&batch, temperature).logprobs_m)
    })
}

/// [`logprobs`] over the whole vocabulary, even if tokens were sampled from a support.
pub fn raw_logprobs(model: &CausalLm, rollouts: &Rollouts, temperature: f32, passes: MicroBatch) -> Vec<Vec<f32>> {
    per_rollout(&model.trunk, rollouts, passes, |_, batch| {
        read(&model.logprobs(&batch.clone().with_supports(Vec::new()), temperature).logprobs_m)
    })
}

/// Runs `pass` over all rollouts and returns the values of each, one per counted completion token. `pass` receives the
/// number of the pass. Ranks share the passes.
pub(crate) fn per_rollout<R: Borrow<Rollout>>(
    trunk: &Trunk,
    rollouts: &Rollouts<R>,
    passes: MicroBatch,
    mut pass: impl FnMut(usize, &Batch) -> Vec<f32>,
) -> Vec<Vec<f32>> {
    let all: Vec<usize> = (0..rollouts.len()).collect();
    passes.deal("values of rollouts", &lengths(rollouts, &all), |number, range| {
        let batch = batch(trunk, rollouts, &all[range]);
        let values_m = pass(number, &batch);
        let mut rest = values_m.as_slice();
        let mut of_rollout = |count: usize| {
            let (own, others) = rest.split_at(count);
            rest = others;
            own.to_vec()
        };
        batch.counts_b().iter().map(|&count| of_rollout(count)).collect::<Vec<Vec<f32>>>()
    })
}

/// Returns the prompts and completions of the chosen rollouts as a batch, with their supports if those are recorded.
/// Adjacent rollouts with the same prompt share it.
pub(crate) fn batch<R: Borrow<Rollout>>(trunk: &Trunk, rollouts: &Rollouts<R>, chosen: &[usize]) -> Batch {
    let masks: Vec<Vec<bool>> = chosen.iter().map(|&i| rollouts.rollout(i).mask().collect()).collect();
    let mut groups: Vec<Vec<Sequence<'_>>> = Vec::new();
    let mut last = None;
    for (&i, mask) in chosen.iter().zip(&masks) {
        let (prompt, rollout) = (rollouts.prompt(i), rollouts.rollout(i));
        assert!(!prompt.ids.is_empty(), "a completion follows at least one prompt token");
        let counted = if mask.contains(&false) { Counted::Mask(mask) } else { Counted::All };
        let sequence = Sequence { counted, ..Sequence::completion(&prompt.ids, &rollout.completion_ids) };
        let is_next = last.replace(rollout.prompt) == Some(rollout.prompt);
        match groups.last_mut().filter(|_| is_next) {
            Some(group) => group.push(sequence),
            None => groups.push(vec![sequence]),
        }
    }
    let batch = trunk.batch(&Rows::Groups(groups));
    let are_limited = chosen.iter().any(|&i| !rollouts.rollout(i).supports.is_empty());
    let supports = |&i: &usize| -> Vec<Support> {
        let rollout = rollouts.rollout(i);
        match rollout.supports.is_empty() {
            true => vec![Support::All; rollout.counted()],
            false => rollout.counted_supports().cloned().collect(),
        }
    };
    batch.with_supports(if are_limited { chosen.iter().flat_map(supports).collect() } else { Vec::new() })
}

/// Returns the number of tokens in prompt and completion of each chosen rollout.
pub(crate) fn lengths<R: Borrow<Rollout>>(rollouts: &Rollouts<R>, chosen: &[usize]) -> Vec<usize> {
    chosen.iter().map(|&i| rollouts.prompt(i).ids.len() + rollouts.rollout(i).completion_ids.len()).collect()
}

/// Returns the packed indices of the states before the targets, for `select`.
pub(crate) fn positions(device: &Device, targets: &Targets) -> Tensor<1, Int> {
    let positions: Vec<i64> = targets.positions.iter().map(|&position| position as i64).collect();
    Tensor::from_data(TensorData::new(positions, [targets.len()]), device)
}

/// Returns the recorded logprobs of the counted tokens of the chosen rollouts, end to end.
pub(crate) fn old_logprobs<R: Borrow<Rollout>>(rollouts: &Rollouts<R>, chosen: &[usize]) -> Vec<f32> {
    chosen.iter().flat_map(|&i| rollouts.rollout(i).counted_logprobs().into_owned()).collect()
}

/// Returns the lists of the chosen rollouts, end to end.
pub(crate) fn concat(lists: &[Vec<f32>], chosen: &[usize]) -> Vec<f32> {
    concat_of(lists, chosen, |list| list)
}

/// Returns a list of each of the chosen `items`, end to end.
pub(crate) fn concat_of<T>(items: &[T], chosen: &[usize], of: impl Fn(&T) -> &Vec<f32>) -> Vec<f32> {
    chosen.iter().flat_map(|&i| of(&items[i]).iter().copied()).collect()
}
