//! The longest pass, tried before the first step: where memory runs out, it runs out at once and not in hour three.
//!
//! One forward and one backward pass, whose gradients are dropped. No weight moves, no random stream is drawn from and
//! nothing is recorded, so a run gives the same bits with and without it.

use super::observer::Event;
use super::recorder::Recorder;
use crate::algorithm::{Actor, Algorithm, Critic};
use crate::batches::MicroBatch;
use crate::learner::Learner;
use crate::model::Targets;
use crate::objective::{Objective, totals};
use crate::rollout::Prompt;
use crate::stats::Stats;

/// Tries the longest pass over `examples` that a step of `batch_size` of them can hold.
pub(super) fn offline<O: Objective>(
    objective: &O,
    examples: &[O::Example],
    batch_size: usize,
    passes: MicroBatch,
    learner: &Learner<O::Model>,
    recorder: &mut Recorder<'_>,
) {
    tell(recorder);
    let lengths: Vec<usize> = examples.iter().map(|example| objective.tokens(example)).collect();
    let batch: Vec<&O::Example> = passes.longest(&lengths, batch_size).into_iter().map(|i| &examples[i]).collect();
    let share = objective.loss(learner.module(), &batch, totals(objective, &batch), &mut Stats::default());
    if let Some(share) = share {
        drop(share.backward());
    }
}

/// Tries the longest pass over rollouts of `prompts`, every completion as long as it may become.
pub(super) fn online(
    prompts: &[Prompt],
    batch_size: usize,
    passes: MicroBatch,
    algorithm: &dyn Algorithm,
    actor: &Learner<Actor>,
    recorder: &mut Recorder<'_>,
) {
    tell(recorder);
    let sampling = algorithm.sampling();
    let (group, new) = (sampling.group_size, sampling.max_new_tokens);
    // Prompts that cannot be sampled from are refused by the sampler, with its own words.
    let limit = actor.module().policy.max_positions().unwrap_or(usize::MAX);
    let fits = |prompt: &&Prompt| !prompt.ids.is_empty() && prompt.ids.len() + new <= limit;
    let rollouts: Vec<&Prompt> = prompts.iter().filter(fits).flat_map(|prompt| vec![prompt; group]).collect();
    let lengths: Vec<usize> = rollouts.iter().map(|prompt| prompt.ids.len() + new).collect();
    let chosen = passes.longest(&lengths, batch_size * group);
    if chosen.is_empty() {
        return;
    }
    // Completions of one prompt share it and nothing else, as those that are sampled.
    let policy = &actor.module().policy;
    let other_id = |i: usize| (i % policy.vocab_size()) as u32;
    let sequence = |&i: &usize| [&rollouts[i].ids[..], &vec![other_id(i); new]].concat();
    let sequences: Vec<Vec<u32>> = chosen.iter().map(sequence).collect();
    let order: Vec<usize> = (0..chosen.len()).collect();
    let prompt = |&at: &usize| chosen[at] / group;
    let groups: Vec<Vec<usize>> = order.chunk_by(|a, b| prompt(a) == prompt(b)).map(<[usize]>::to_vec).collect();
    let packed = policy.trunk.pack(&sequences, &groups);
    let targets = Targets::completions(&packed, &vec![new; chosen.len()]);
    let mut forward = actor.module().forward(&packed, &targets, sampling.temperature);
    // As in an update: a critic on the policy's trunk goes back together with it, another after it, but both forward
    // passes are in memory at once.
    let values_m = algorithm.critic().map(|critic| critic.forward(&mut forward, &packed, &targets));
    let loss = forward.logprobs.logprobs_m.sum();
    match (algorithm.critic(), values_m) {
        (Some(Critic::Separate(_)), Some(values_m)) => {
            drop(loss.backward());
            drop(values_m.sum().backward());
        }
        (_, Some(values_m)) => drop((loss + values_m.sum()).backward()),
        (_, None) => drop(loss.backward()),
    }
}

fn tell(recorder: &mut Recorder<'_>) {
    recorder.tell(&Event::Phase { name: "trying the longest batch", total: None, done: 0 });
}
