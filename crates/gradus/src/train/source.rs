//! Who samples the completions of a run: this process, or a server that may be ahead of the training.

use std::path::Path;

use super::online_inputs::Online;
use crate::algorithm::{Advantages, OffPolicy};
use crate::error::Result;
use crate::model::CausalLm;
use crate::progress::Progress;
use crate::rng::Purpose;
use crate::rollout::{LocalEngine, Policy, Prompt, RolloutSource, Rollouts, Sampler, ServerSource};
use crate::stats::Stats;

/// The source that the run asks for. `save` writes the policy for a server.
///
/// # Errors
/// When there is a server and it does not answer in time, or the shared folder cannot be written.
pub(super) fn open<'a>(
    task: &Online<'_>,
    save: &'a dyn Fn(&CausalLm, &Path) -> Result<()>,
    progress: &dyn Progress,
) -> Result<Box<dyn RolloutSource + 'a>> {
    Ok(match task.rollouts {
        Some(rollouts) => Box::new(ServerSource::connect(rollouts.options()?, save, progress)?),
        None => Box::new(LocalEngine { weights: task.settings.sampling_weights }),
    })
}

/// Has the source begin to sample for as many iterations after `iteration` as it is ahead, with the weights of now.
///
/// # Errors
/// When the weights cannot be written.
pub(super) fn begin_next(
    task: &Online<'_>,
    source: &mut dyn RolloutSource,
    sampler: &Sampler<'_>,
    policy: &dyn Fn() -> Policy,
    iteration: usize,
) -> Result<()> {
    let settings = task.settings;
    for next in iteration + 1..=(iteration + source.ahead()).min(settings.steps.saturating_sub(1)) {
        if !source.has_begun(next) {
            let prompts: Vec<Prompt> = task.rows(next).into_iter().map(|row| task.prompts[row].clone()).collect();
            let stream = |i: usize| settings.seed.stream(Purpose::Rollout, next as u64, i as u64);
            source.begin(next, policy(), prompts, sampler, &stream)?;
        }
    }
    Ok(())
}

/// How many nats a token server and trainer may be apart, as a mean, before the user is told; the same weights in other formats are
/// closer than a tenth of that.
const FAR: f64 = 0.5;

/// Notes what a server thought of the rollouts of `iteration`, and how old the weights are that it sampled with. Says where it seems to
/// have sampled with other weights than those that it was given.
pub(super) fn observe(
    task: &Online<'_>,
    rollouts: &Rollouts,
    iteration: usize,
    advantages: &mut Advantages,
    stats: &mut Stats,
) -> Option<String> {
    let config = task.rollouts?;
    let steps = rollouts.rollouts.iter().filter_map(|rollout| Some(rollout.sampled_with.as_ref()?.step));
    let ages: Vec<f32> = steps.map(|step| iteration.saturating_sub(step) as f32).collect();
    stats.mean_of("sampling/staleness", &ages);
    advantages.off_policy = Some(OffPolicy::of(rollouts, config.correction().as_ref(), stats));
    let apart = stats.value("sampling/sampling_logp_difference/mean").filter(|apart| *apart > FAR)?;
    let is_new = ages.iter().all(|age| *age == 0.0);
    is_new.then(|| {
        format!(
            "the server's log-probabilities are {apart:.2} nats a token away from those of the policy: does it serve the same model, and \
             log-probabilities at the sampling temperature (docs/servers.md)?"
        )
    })
}
