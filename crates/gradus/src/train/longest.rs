//! Tries the longest pass before the first step, so that a lack of memory shows at once and not after hours.
//!
//! It runs one forward and one backward pass and discards the gradients. It changes no weights, uses no random stream and records nothing,
//! so a run gives the same bits with and without it.

use super::recorder::Recorder;
use crate::algorithm::actor::batch;
use crate::algorithm::{Actor, Algorithm, Critic};
use crate::batches::MicroBatch;
use crate::learner::Learner;
use crate::method::Iteration;
use crate::model::{DropoutStream, EmbeddingNoise, Support};
use crate::objective::{LossContext, Objective, Readings, totals};
use crate::observer::Event;
use crate::rng::Seed;
use crate::rollout::{Prompt, Rollout, Rollouts, StopReason};
use crate::settings::Settings;

/// Tries the longest pass over `examples` that a step of `batch_size` examples can contain.
pub(super) fn offline<O: Objective>(
    objective: &O,
    examples: &[O::Example],
    batch_size: usize,
    settings: &Settings,
    learner: &Learner<O::Model>,
    recorder: &mut Recorder<'_>,
) {
    report_phase(recorder);
    let lengths: Vec<usize> = examples.iter().map(|example| objective.tokens(example)).collect();
    let batch: Vec<&O::Example> =
        settings.passes.longest(&lengths, batch_size).into_iter().map(|i| &examples[i]).collect();
    // The results are discarded, so this seed of dropout and noise affects nothing.
    let (totals, dropout) = (totals(objective, &batch), Some(DropoutStream::new(Seed(0), 0, 0)));
    let noise = settings.noise_alpha.map(|alpha| EmbeddingNoise::new(alpha, Seed(0), 0));
    let context = LossContext { totals, dropout, noise };
    let share = objective.loss(learner.module(), &batch, context, &mut Readings::default());
    if let Some(share) = share {
        drop(share.backward());
    }
}

/// Tries the longest pass over rollouts of `prompts` with completions of maximum length.
pub(super) fn online(
    prompts: &[Prompt],
    (batch_size, passes): (usize, MicroBatch),
    iteration: &Iteration<'_>,
    algorithm: &dyn Algorithm,
    actor: &Learner<Actor>,
    recorder: &mut Recorder<'_>,
) {
    report_phase(recorder);
    let (group, new) = (iteration.rollouts.group_size, iteration.rollouts.max_new_tokens);
    // The sampler rejects prompts without space for a completion, with its own message.
    let room = actor.module().policy.position_budget();
    let fits = |prompt: &&Prompt| !prompt.ids.is_empty() && room.holds(prompt.ids.len(), new);
    let candidates: Vec<&Prompt> = prompts.iter().filter(fits).flat_map(|prompt| vec![prompt; group]).collect();
    let lengths: Vec<usize> = candidates.iter().map(|prompt| prompt.ids.len() + new).collect();
    let chosen = passes.longest(&lengths, batch_size * group);
    if chosen.is_empty() {
        return;
    }
    let policy = &actor.module().policy;
    let rollouts = made_up(&candidates, &chosen, (group, new), policy.vocab_size());
    let mut batch = batch(&policy.trunk, &rollouts, &(0..rollouts.len()).collect::<Vec<_>>());
    if iteration.normalizes_over_supports {
        let targets = batch.targets().len();
        batch = batch.with_supports(vec![Support::All; targets]);
    }
    let forward = actor.module().forward(&batch, iteration.rollouts.trained_temperature());
    // As in an update: the backward pass includes a critic on the policy's trunk. Any other critic has its pass afterwards, while the
    // policy's gradients are still in memory.
    let loss =
        forward.values_m.into_iter().fold(forward.logprobs.logprobs_m.sum(), |loss, values_m| loss + values_m.sum());
    let gradients = loss.backward();
    if let Some(Critic::Separate(critic)) = algorithm.critic() {
        drop(critic.values(&batch).sum().backward());
    }
    drop(gradients);
}

/// Made-up completions of `new` ids for the `chosen` candidates; each prompt has `group` of them. The completions of a prompt have only the
/// prompt in common, as sampled ones do.
fn made_up(candidates: &[&Prompt], chosen: &[usize], (group, new): (usize, usize), vocabulary: usize) -> Rollouts {
    let mut made = Rollouts { prompts: Vec::new(), rollouts: Vec::new(), group_size: group, tokenizer: None };
    for neighbors in chosen.chunk_by(|a, b| a / group == b / group) {
        let ids = |i: usize| vec![(i % vocabulary) as u32; new];
        let rollout = |&i: &usize| Rollout::one_turn(made.prompts.len(), "", ids(i), StopReason::Length);
        made.rollouts.extend(neighbors.iter().map(rollout));
        made.prompts.push(candidates[neighbors[0]].clone());
    }
    made
}

fn report_phase(recorder: &mut Recorder<'_>) {
    recorder.emit(&Event::Phase { name: "trying the longest batch", total: None, done: 0 });
}
