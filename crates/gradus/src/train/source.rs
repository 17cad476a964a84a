//! Source of a run's completions: this process, or a server that may sample ahead of the training.

use std::path::Path;

use super::online_inputs::Online;
use crate::algorithm::Experience;
use crate::error::Result;
use crate::model::CausalLm;
use crate::progress::Progress;
use crate::rng::Purpose;
use crate::rollout::{LocalEngine, Policy, Prompt, RolloutSource, Sampler, ServerSource};
use crate::stats::Stats;

/// Opens the configured source. `save` writes the policy for a server.
///
/// # Errors
/// If the server does not answer in time, or the shared folder cannot be written.
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

/// Starts sampling with the current weights, for as many iterations after `iteration` as the source is ahead.
///
/// # Errors
/// If the weights cannot be written.
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

/// Mean difference of log-probabilities between server and trainer, in nats per token, above which the user is warned. The same weights in
/// other formats differ by less than a tenth of it.
const FAR: f64 = 0.5;

/// Records the server's log-probabilities of the rollouts of `iteration` and the age of its weights. Truncated completions do
/// not count with `masks_truncated`. Returns a warning if the server seems to have sampled with other weights.
pub(super) fn observe(
    task: &Online<'_>,
    experience: &mut Experience,
    iteration: usize,
    masks_truncated: bool,
    stats: &mut Stats,
) -> Option<String> {
    let config = task.rollouts?;
    let steps = experience.iter().filter_map(|rollout| Some(rollout.sampled_with.as_ref()?.step));
    let ages: Vec<f32> = steps.map(|step| iteration.saturating_sub(step) as f32).collect();
    stats.mean_of("sampling/staleness", &ages);
    experience.compare_with_sampler(config.correction().as_ref(), masks_truncated, stats);
    let difference = stats.value("sampling/sampling_logp_difference/mean").filter(|difference| *difference > FAR)?;
    let is_new = ages.iter().all(|age| *age == 0.0);
    is_new.then(|| {
        format!(
            "the server's log-probabilities are {difference:.2} nats per token away from those of the policy: does it serve \
             the same model, and log-probabilities at the sampling temperature (docs/servers.md)?"
        )
    })
}
