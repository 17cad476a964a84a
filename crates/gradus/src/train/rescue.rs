//! When a run fails between two steps, what it has is kept: a checkpoint of the last complete step.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::observer::Event;
use super::recorder::Recorder;
use crate::error::{Error, Result};

/// Runs `steps` on what is being trained. On an error or a panic, `save` writes a checkpoint if the weights are those of
/// the last complete step, and says whether they were; then the error or the panic goes on.
pub(super) fn guard<'o, S>(
    trained: &mut S,
    recorder: &mut Recorder<'o>,
    steps: impl FnOnce(&mut S, &mut Recorder<'o>) -> Result<()>,
    save: impl FnOnce(&mut S, &mut Recorder<'o>) -> Result<bool>,
) -> Result<()> {
    let ended = catch_unwind(AssertUnwindSafe(|| steps(trained, recorder)));
    if let Ok(Ok(()) | Err(Error::Interrupted)) = &ended {
        return ended.unwrap_or(Ok(()));
    }
    // A panic within a panic must not hide the first.
    let saved = catch_unwind(AssertUnwindSafe(|| match recorder.state.step {
        0 => Ok(false),
        _ => save(trained, recorder),
    }));
    let kept = recorder.run().checkpoint_steps().ok().and_then(|steps| steps.last().copied());
    let way_on = match (&saved, kept) {
        (_, None) => None,
        (Ok(Ok(true)), Some(step)) => {
            Some(format!("the state after step {step} is kept in a checkpoint: go on with `--resume`"))
        }
        (Ok(Err(error)), Some(step)) => Some(format!(
            "no checkpoint could be written ({error}); the last one is of step {step}: go on with `--resume`"
        )),
        (_, Some(step)) => Some(format!(
            "the step was under way, so nothing new is kept; the last checkpoint is of step {step}: go on with `--resume`"
        )),
    };
    if let Some(text) = way_on {
        recorder.tell(&Event::Warning(&text));
    }
    ended.unwrap_or_else(|panic| resume_unwind(panic))
}
