//! The policy in training, and the one place that turns rollouts into forward passes.

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::batches::MicroBatch;
use crate::host::{constant, read};
use crate::model::{CausalLm, Packed, Targets, TokenLogprobs, Trunk};
use crate::rollout::Rollouts;

/// A policy, and a value head where the critic shares its trunk.
#[derive(Module, Debug)]
pub struct Actor {
    /// The policy.
    pub policy: CausalLm,
    /// Reads values from the policy's hidden states.
    pub value_head: Option<ValueHead>,
}

/// `V = w·h + b`.
#[derive(Module, Debug)]
pub struct ValueHead {
    /// `[D]`; one dimension, so weight decay leaves it alone.
    pub weight: Param<Tensor<1>>,
    /// `[1]`
    pub bias: Param<Tensor<1>>,
}

impl ValueHead {
    /// A head that says 0 of every state (Ziegler et al. 2019).
    pub fn zeros(width: usize, device: &Device) -> Self {
        Self::new(vec![0.0; width], 0.0, device)
    }

    /// A head with these weights.
    pub fn new(weight: Vec<f32>, bias: f32, device: &Device) -> Self {
        let width = weight.len();
        Self {
            weight: Param::from_tensor(Tensor::from_data(TensorData::new(weight, [width]), device)),
            bias: Param::from_tensor(Tensor::from_data(TensorData::new(vec![bias], [1]), device)),
        }
    }

    /// The value of each hidden state: `[M, D]` to `[M]`.
    pub fn values(&self, hidden_md: Tensor<2>) -> Tensor<1> {
        let weight_1d: Tensor<2> = self.weight.val().unsqueeze();
        (hidden_md * weight_1d).sum_dim(1).squeeze_dim::<1>(1) + self.bias.val()
    }
}

/// What one forward pass says of the completion tokens of its rollouts.
#[derive(Debug)]
pub struct Forward {
    /// Logprobs, entropies, …, `[M]` each.
    pub logprobs: TokenLogprobs,
    /// The value of the state before each token, where the actor has a value head.
    pub values_m: Option<Tensor<1>>,
}

impl Actor {
    /// One pass over packed sequences.
    pub fn forward(&self, packed: &Packed, targets: &Targets, temperature: f32) -> Forward {
        let hidden_nd = self.policy.hidden(packed);
        let values_m = self
            .value_head
            .as_ref()
            .map(|head| head.values(hidden_nd.clone().select(0, positions(&hidden_nd.device(), targets))));
        Forward { logprobs: self.policy.token_logprobs(hidden_nd, targets, temperature), values_m }
    }

    /// The values of the states before all completion tokens, one list per rollout; no gradient is kept.
    pub fn values(&self, rollouts: &Rollouts, passes: MicroBatch) -> Option<Vec<Vec<f32>>> {
        let head = self.value_head.as_ref()?;
        Some(per_rollout(&self.policy.trunk, rollouts, passes, |packed, targets| {
            let hidden_nd = self.policy.hidden(packed);
            let device = hidden_nd.device();
            read(&head.values(hidden_nd.select(0, positions(&device, targets))))
        }))
    }
}

/// The logprobs of all completion tokens under `model`, one list per rollout.
pub fn logprobs(model: &CausalLm, rollouts: &Rollouts, temperature: f32, passes: MicroBatch) -> Vec<Vec<f32>> {
    per_rollout(&model.trunk, rollouts, passes, |packed, targets| {
        read(&model.logprobs(packed, targets, temperature).logprobs_m)
    })
}

/// Runs `pass` over all rollouts and deals its values, one per completion token, to them.
pub(crate) fn per_rollout(
    trunk: &Trunk,
    rollouts: &Rollouts,
    passes: MicroBatch,
    mut pass: impl FnMut(&Packed, &Targets) -> Vec<f32>,
) -> Vec<Vec<f32>> {
    let all: Vec<usize> = (0..rollouts.len()).collect();
    let mut lists = Vec::with_capacity(rollouts.len());
    for range in passes.split(&lengths(rollouts, &all)) {
        let (packed, targets) = pack(trunk, rollouts, &all[range]);
        let values_m = pass(&packed, &targets);
        let mut rest = values_m.as_slice();
        for &count in &targets.counts_b {
            let (own, others) = rest.split_at(count);
            lists.push(own.to_vec());
            rest = others;
        }
    }
    lists
}

/// Prompt and completion of each chosen rollout; the completions are the targets. Neighbours with one prompt share it.
pub(crate) fn pack(trunk: &Trunk, rollouts: &Rollouts, chosen: &[usize]) -> (Packed, Targets) {
    let sequence = |&i: &usize| [&rollouts.prompt(i).ids[..], &rollouts.rollouts[i].completion_ids[..]].concat();
    let sequences: Vec<Vec<u32>> = chosen.iter().map(sequence).collect();
    let prompt = |&at: &usize| rollouts.rollouts[chosen[at]].prompt;
    let order: Vec<usize> = (0..chosen.len()).collect();
    let groups: Vec<Vec<usize>> = order.chunk_by(|a, b| prompt(a) == prompt(b)).map(<[usize]>::to_vec).collect();
    let packed = trunk.pack(&sequences, &groups);
    let completions: Vec<usize> = chosen.iter().map(|&i| rollouts.rollouts[i].completion_ids.len()).collect();
    let targets = Targets::completions(&packed, &completions);
    (packed, targets)
}

/// Tokens of prompt and completion of each chosen rollout.
pub(crate) fn lengths(rollouts: &Rollouts, chosen: &[usize]) -> Vec<usize> {
    chosen.iter().map(|&i| rollouts.prompt(i).ids.len() + rollouts.rollouts[i].completion_ids.len()).collect()
}

/// The packed indices of the states before the targets, for `select`.
pub(crate) fn positions(device: &Device, targets: &Targets) -> Tensor<1, Int> {
    let positions: Vec<i64> = targets.positions.iter().map(|&position| position as i64).collect();
    Tensor::from_data(TensorData::new(positions, [targets.len()]), device)
}

/// The lists of the chosen rollouts, end to end, as a tensor without gradient.
pub(crate) fn gather(lists: &[Vec<f32>], chosen: &[usize], device: &Device) -> Tensor<1> {
    constant(concat(lists, chosen), device)
}

/// The lists of the chosen rollouts, end to end.
pub(crate) fn concat(lists: &[Vec<f32>], chosen: &[usize]) -> Vec<f32> {
    chosen.iter().flat_map(|&i| lists[i].iter().copied()).collect()
}
