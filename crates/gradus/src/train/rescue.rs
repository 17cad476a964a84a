//! Saves a checkpoint of the last complete step when a run fails between two steps. If the run directory was deleted, the checkpoint is
//! saved next to it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::recorder::Recorder;
use crate::error::{Error, Result};
use crate::observer::Event;

/// Runs `steps`. After an error or a panic, `save` writes a checkpoint if the weights are those of the last complete step, and returns
/// whether they are. The error or panic is then passed on.
pub(super) fn checkpoint_on_failure<'o, S>(
    trained: &mut S,
    recorder: &mut Recorder<'o>,
    steps: impl FnOnce(&mut S, &mut Recorder<'o>) -> Result<()>,
    save: impl FnOnce(&mut S, &mut Recorder<'o>) -> Result<bool>,
) -> Result<()> {
    let ended = catch_unwind(AssertUnwindSafe(|| steps(trained, recorder)));
    let is_interrupted = matches!(&ended, Ok(Err(Error::Interrupted)));
    if matches!(&ended, Ok(Ok(()))) || (is_interrupted && recorder.is_saved()) {
        return ended.unwrap_or(Ok(()));
    }
    if let Err(error) = recorder.complete_checkpoint() {
        recorder.emit(&Event::Warning(&error.to_string()));
    }
    let gone = recorder.is_deleted().then(|| recorder.run().clone());
    if gone.is_some()
        && let Err(error) = recorder.rescue()
    {
        recorder.emit(&Event::Warning(&format!("nothing could be saved next to the deleted run directory: {error}")));
        return ended.unwrap_or_else(|panic| resume_unwind(panic));
    }
    // A panic within a panic must not hide the first one.
    let saved = catch_unwind(AssertUnwindSafe(|| match recorder.state.step {
        0 => Ok(false),
        _ => save(trained, recorder),
    }));
    let kept = recorder.run().checkpoint_steps().ok().and_then(|steps| steps.last().copied());
    if let (Some(gone), Ok(_)) = (gone, &ended) {
        return Err(recorder.rescued(&gone, kept));
    }
    let resume = format!("resume with `{}`", recorder.resume_command());
    let way_on = match (&saved, kept) {
        (_, None) => None,
        // As requested: the state is saved, and there is no error.
        (Ok(Ok(true)), Some(_)) if is_interrupted => None,
        (Ok(Ok(true)), Some(step)) => Some(format!("the state after step {step} was saved in a checkpoint: {resume}")),
        (Ok(Err(error)), Some(step)) => {
            Some(format!("no checkpoint could be written ({error}); the last one is of step {step}: {resume}"))
        }
        (_, Some(step)) => Some(format!(
            "the step was not finished, so nothing new was saved; the last checkpoint is of step {step}: {resume}"
        )),
    };
    if let Some(text) = way_on {
        recorder.emit(&Event::Warning(&text));
    }
    ended.unwrap_or_else(|panic| resume_unwind(panic))
}
