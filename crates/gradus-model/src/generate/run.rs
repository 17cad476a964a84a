//! Sampling in a single call, with an engine that exists only for that call.

use std::sync::Arc;

use super::engine::{Engine, Request, check_prompt};
use super::mask::Masking;
use super::params::SamplingParams;
use super::row::Event;
use super::row::{Completion, StopRule};
use crate::error::{Error, Result};
use crate::model::CausalLm;
use crate::progress::{Progress, Unwatched};
use crate::rng::Stream;

/// Maximum number of rows at the same time, over all prompts. It limits the memory of the cache and the logits.
pub const ROWS_AT_ONCE: usize = 256;

/// Samples `group` completions of each prompt. Completion `p · group + g` belongs to prompt `p`.
///
/// Each completion draws from its own stream, `stream(completion)`, and the logits of a row do not depend on the other
/// rows. Therefore the result does not depend on which rows are sampled together. Weights are packed for the whole call
/// in the model's compute format, unless they are already frozen.
///
/// # Errors
/// If a setting is invalid, or if a prompt is empty, contains an id outside the vocabulary, or leaves no room for
/// `max_new_tokens` within the model's positions.
pub fn generate(
    model: &CausalLm,
    prompts: &[&[u32]],
    group: usize,
    params: &SamplingParams,
    stop: &mut dyn StopRule,
    stream: &dyn Fn(usize) -> Stream,
) -> Result<Vec<Completion>> {
    generate_with((model, None), prompts, group, params, Hooks::unwatched(stop), stream)
}

/// Callbacks of sampling.
pub struct Hooks<'a> {
    /// Ends completions, in addition to the stop ids.
    pub stop: &'a mut dyn StopRule,
    /// Receives the number of completions `sampled`, and may end the call.
    pub progress: &'a dyn Progress,
}

impl<'a> Hooks<'a> {
    /// A stop rule without progress reports.
    pub fn unwatched(stop: &'a mut dyn StopRule) -> Self {
        Self { stop, progress: &Unwatched }
    }
}

/// [`generate`] with progress, and under a mask if there is one.
///
/// # Errors
/// As [`generate`]; [`Error::Interrupted`](crate::Error::Interrupted) if `progress` ends the call.
pub fn generate_with(
    (model, masking): (&CausalLm, Option<Masking<'_>>),
    prompts: &[&[u32]],
    group: usize,
    params: &SamplingParams,
    hooks: Hooks<'_>,
    stream: &dyn Fn(usize) -> Stream,
) -> Result<Vec<Completion>> {
    generate_at_once(ROWS_AT_ONCE, (model, masking), prompts, group, params, hooks, stream)
}

/// [`generate_with`] with at most `places` rows at the same time.
fn generate_at_once(
    places: usize,
    (model, masking): (&CausalLm, Option<Masking<'_>>),
    prompts: &[&[u32]],
    group: usize,
    params: &SamplingParams,
    Hooks { stop, progress }: Hooks<'_>,
    stream: &dyn Fn(usize) -> Stream,
) -> Result<Vec<Completion>> {
    params.check()?;
    for (i, prompt) in prompts.iter().enumerate() {
        check_prompt(&format!("prompt {}", i + 1), prompt, params, model)?;
    }
    let Some(count) = prompts.len().checked_mul(group).filter(|count| *count <= u32::MAX as usize) else {
        let prompts = prompts.len();
        let message = format!("{prompts} prompts with {group} completions each are too many for one call");
        return Err(Error::input(message).with_hint(format!("sample at most {} completions in a call", u32::MAX)));
    };
    if count == 0 {
        return Ok(Vec::new());
    }
    let (places, room) = (places.min(count), params.max_new_tokens);
    let mut engine = Engine::new(model, places, room);
    if let Some(Masking { mask, guide, .. }) = masking {
        engine = engine.with_mask(mask);
        if let Some(guide) = guide {
            engine = engine.with_guide(guide, places, room);
        }
    }
    let record = masking.map_or(params.record, |masking| masking.record);
    let params = Arc::new(SamplingParams { record, ..params.clone() });
    for (i, prompt) in prompts.iter().enumerate() {
        let streams = (i * group..(i + 1) * group).map(stream).collect();
        engine.submit(Request { prompt: prompt.to_vec(), params: Arc::clone(&params), streams, is_kept: false })?;
    }
    let mut completions = vec![None; count];
    let mut finished = 0;
    while engine.is_busy() {
        progress.advance("sampled", finished, count)?;
        for event in engine.step(stop) {
            if let Event::Finished { row, completion } = event {
                completions[row] = Some(completion);
                finished += 1;
            }
        }
    }
    Ok(completions.into_iter().map(|completion| completion.expect("every row ends")).collect())
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::generate::{NoStopRule, StopReason};
    use crate::model::ModelDir;
    use crate::rng::{Purpose, Seed};

    #[test]
    fn more_completions_than_can_be_counted_are_refused() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../gradus/tests/fixtures/parity/models");
        let dir = ModelDir::open(&root.join("gpt2")).expect("a fixture");
        let model = CausalLm::load(&dir, &Device::flex()).expect("a fixture");
        let params = SamplingParams { max_new_tokens: 1, ..SamplingParams::default() };
        let stream = |i: usize| Seed(1).stream(Purpose::Generate, 0, i as u64);
        for (prompts, group) in
            [(&[&[1u32][..]][..], usize::MAX), (&[&[1u32][..], &[2u32][..]][..], usize::MAX / 2 + 1)]
        {
            let error = generate(&model, prompts, group, &params, &mut NoStopRule, &stream).expect_err("refused");
            assert!(error.to_string().ends_with("are too many for one call"), "{error}");
        }
    }

    #[test]
    fn the_number_of_places_changes_nothing() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../gradus/tests/fixtures/parity/models");
        let dir = ModelDir::open(&root.join("gpt2")).expect("a fixture");
        let model = CausalLm::load(&dir, &Device::flex()).expect("a fixture");
        let prompts: Vec<Vec<u32>> = (1..6).map(|n| (0..n).map(|i| (i * 7 + n) % 30).collect()).collect();
        let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        // These stop ids end some rows early, so that others take their places.
        let params = SamplingParams { max_new_tokens: 9, stop_ids: (0..8).collect(), ..SamplingParams::default() };
        let stream = |row: usize| Seed(3).stream(Purpose::Generate, 0, row as u64);
        let sample = |slots| {
            let mut stop = NoStopRule;
            let hooks = Hooks::unwatched(&mut stop);
            generate_at_once(slots, (&model, None), &prompts, 3, &params, hooks, &stream).expect("sampled")
        };
        let all = sample(100);
        assert!(all.iter().any(|completion| completion.stop == StopReason::StopId), "some rows end early");
        assert!(all.iter().any(|completion| completion.stop == StopReason::Length), "some rows do not");
        for slots in [1, 2, 4, 7] {
            assert_eq!(sample(slots), all, "{slots} places");
        }
    }
}
