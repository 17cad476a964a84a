//! Display of a run on the terminal, with progress and metrics, and handling of Ctrl-C.

use std::borrow::Cow;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use gradus::files::atomic::remove_unfinished;
use gradus::reward::Interrupt;
use gradus::run::Metrics;
use gradus::task::DataConfig;
use gradus::train::observer::{Event, Observer};

use crate::output::Output;
use crate::process::exit_at_once;
use crate::progress::Progress;
use crate::report::INTERRUPTED;

/// Raised by Ctrl-C. The trainer checks it between rows and steps, and while it waits for a reward program.
static INTERRUPT: LazyLock<Interrupt> = LazyLock::new(Interrupt::default);

/// Signals within this time count as one. Ctrl-C on a terminal reaches a sweep and its runs, and the sweep passes it on to them.
const TOGETHER: Duration = Duration::from_secs(1);

/// Metrics in the progress display, most important first.
const NUMBERS: [(&str, &str); 8] = [
    ("reward", "reward"),
    ("objective/scores", "reward"),
    ("objective/kl", "kl"),
    ("loss", "loss"),
    ("accuracy", "accuracy"),
    ("rewards/accuracies", "accuracy"),
    ("mean_token_accuracy", "accuracy"),
    ("entropy", "entropy"),
];

/// Shows the events of a run.
#[derive(Debug)]
pub struct Watcher<'a> {
    out: &'a Output,
    phase: String,
    progress: Progress,
}

impl<'a> Watcher<'a> {
    /// Starts to handle Ctrl-C. The first prints `answer` and asks the run to stop, the second ends it immediately.
    pub fn new(out: &'a Output, answer: &'static str) -> Self {
        catch_interrupts(Some((out, answer)));
        Self { out, phase: String::new(), progress: Progress::silent() }
    }

    fn start(&mut self, name: &str, total: usize) {
        if self.phase != name {
            self.progress.finish();
            self.progress = self.out.progress(name, total as u64);
            name.clone_into(&mut self.phase);
        }
    }
}

impl Observer for Watcher<'_> {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Phase { name, total: Some(total), done } => {
                self.start(name, *total);
                self.progress.resume_at(*done as u64);
            }
            Event::Phase { name, total: None, .. } => {
                self.progress.finish();
                self.progress = self.out.spinner(name);
                (*name).clone_into(&mut self.phase);
            }
            Event::Progress { done } => self.progress.set(*done as u64, ""),
            Event::Within { what, done, total, .. } => self.progress.within(&format!("{what} {done}/{total}")),
            Event::Step { step, total, metrics } => {
                self.start("training", *total);
                self.progress.set(*step as u64, &numbers("", metrics));
            }
            Event::Evaluated { step, metrics, best } => {
                let best = if *best { ", best so far" } else { "" };
                self.progress.above(|| self.out.note(format_args!("step {step}: {}{best}", numbers("eval_", metrics))));
            }
            Event::Checkpoint { step, path } => {
                tracing::info!("step {step}: checkpoint {}", path.display());
            }
            Event::Message(text) => self.progress.above(|| self.out.note(text)),
            Event::Warning(text) => self.progress.above(|| self.out.warn(text)),
            _ => {}
        }
    }

    fn should_stop(&mut self) -> bool {
        is_interrupted()
    }

    fn interrupt(&self) -> Interrupt {
        interrupt()
    }
}

/// Returns the flag that Ctrl-C raises once it is handled.
pub fn interrupt() -> Interrupt {
    INTERRUPT.clone()
}

/// Returns the flag that Ctrl-C raises. If the command may wait for another program, the first Ctrl-C raises the flag; otherwise it ends
/// the process.
pub fn interrupt_of(starts_program: bool, out: &Output) -> Interrupt {
    match starts_program {
        true => catch_interrupts(Some((out, STOPPING))),
        false => end_on_interrupts(out),
    }
    interrupt()
}

/// Message after the first Ctrl-C of commands whose runs can be resumed.
pub const STOPPING_TRAINING: &str = "stopping: training ends the current work and writes a checkpoint if a step is finished; press Ctrl-C again to stop now and keep only the last checkpoint";
/// Message after the first Ctrl-C of other commands.
pub const STOPPING: &str = "stopping; press Ctrl-C again to stop now";

/// Message after a Ctrl-C.
type Answer = (Output, Cow<'static, str>);

/// Reaction to Ctrl-C.
enum Reaction {
    /// The first one raises the flag, and another one ends the program.
    Raise(Option<Answer>),
    /// The first one ends the program with this exit code.
    End(Option<Answer>, u8),
}

/// Effect of one Ctrl-C.
#[derive(Debug)]
struct Effect<'a> {
    answer: Option<&'a Answer>,
    /// Exit code, if the program ends. Otherwise the flag is raised.
    code: Option<u8>,
}

impl Reaction {
    /// Returns the effect of a signal at this time after the first one. `None` for the first. Signals within a second count as one and have no
    /// further effect.
    fn effect(&self, after_first: Option<Duration>) -> Option<Effect<'_>> {
        match (self, after_first) {
            (_, Some(after)) if after <= TOGETHER => None,
            (Self::Raise(answer), None) => Some(Effect { answer: answer.as_ref(), code: None }),
            (Self::Raise(_), Some(_)) => Some(Effect { answer: None, code: Some(INTERRUPTED) }),
            (Self::End(answer, code), _) => Some(Effect { answer: answer.as_ref(), code: Some(*code) }),
        }
    }
}

static REACTION: Mutex<Reaction> = Mutex::new(Reaction::End(None, INTERRUPTED));
/// Time of the first Ctrl-C.
static FIRST: OnceLock<Instant> = OnceLock::new();

/// Handles Ctrl-C from now on: the first raises a flag and prints a message immediately. Another one, at least a second later, ends the
/// program.
pub fn catch_interrupts(answer: Option<(&Output, &'static str)>) {
    // A host program handles its signals and raises the flag itself.
    if answer.is_some_and(|(out, _)| out.is_captured()) {
        return;
    }
    set_reaction(Reaction::Raise(answer.map(|(out, answer)| (out.clone(), answer.into()))));
    handle_interrupts();
}

/// Lets Ctrl-C end the program, without leaving unfinished files. For commands that nothing can stop between two pieces of work.
pub fn end_on_interrupts(out: &Output) {
    if !out.is_captured() {
        handle_interrupts();
    }
}

/// Lets Ctrl-C print `answer` and end the program with `code`. For the end of a command, when its files are complete.
pub fn end_on_interrupts_with(out: &Output, answer: String, code: u8) {
    if !out.is_captured() {
        set_reaction(Reaction::End(Some((out.clone(), answer.into())), code));
        handle_interrupts();
    }
}

fn set_reaction(reaction: Reaction) {
    *REACTION.lock().unwrap_or_else(PoisonError::into_inner) = reaction;
}

fn handle_interrupts() {
    // Registering fails only if a handler is already installed, and one is enough.
    let _ = ctrlc::set_handler(|| {
        let after_first = FIRST.get().map(Instant::elapsed);
        FIRST.get_or_init(Instant::now);
        let reaction = REACTION.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Effect { answer, code }) = reaction.effect(after_first) else { return };
        if code.is_none() {
            INTERRUPT.raise();
        }
        if let Some((out, answer)) = answer {
            out.answer(answer);
        }
        if let Some(code) = code {
            remove_unfinished();
            exit_at_once(code);
        }
    });
}

/// Raises the flag of Ctrl-C when stdin ends, because the parent process has then ended.
pub fn stop_with_stdin() {
    std::thread::spawn(|| {
        // A read error counts as the end.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        INTERRUPT.raise();
    });
}

/// Returns whether Ctrl-C or a scheduler's termination signal was received.
pub fn is_interrupted() -> bool {
    INTERRUPT.is_raised()
}

/// Downloads a model from the hub with progress, unless `name` is a path or the model exists locally.
pub fn fetch(name: &str, out: &Output) -> anyhow::Result<()> {
    gradus::model::resolve(name, &mut downloads(out))?;
    Ok(())
}

/// Downloads a data set like [`fetch`].
pub fn fetch_data(name: &str, out: &Output) -> anyhow::Result<()> {
    gradus::data::resolve(name, &mut downloads(out))?;
    Ok(())
}

/// Downloads the rows of a configuration like [`fetch`].
pub fn fetch_rows(data: &DataConfig, out: &Output) -> anyhow::Result<()> {
    Ok(data.fetch(&mut downloads(out))?)
}

/// Shows the progress of each file in turn.
pub fn downloads(out: &Output) -> impl FnMut(&str, usize, usize) {
    let mut shown: Option<(String, Progress)> = None;
    move |file, done, total| {
        if shown.as_ref().is_none_or(|(current, _)| current != file) {
            shown = Some((file.to_owned(), out.progress(file, total as u64)));
        }
        if let Some((_, progress)) = &shown {
            progress.set(done as u64, "");
        }
    }
}

/// Formats at most four of the important metrics, with keys that start with `prefix`.
fn numbers(prefix: &str, metrics: &Metrics) -> String {
    let mut shown: Vec<(&str, String)> = Vec::new();
    for (key, name) in NUMBERS {
        if let Some(value) =
            metrics.get(&format!("{prefix}{key}")).filter(|_| shown.iter().all(|(seen, _)| *seen != name))
        {
            shown.push((name, short(value)));
        }
    }
    shown.into_iter().take(4).map(|(name, value)| format!("{prefix}{name} {value}")).collect::<Vec<_>>().join(" ")
}

/// Formats a number with four significant digits.
pub fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        x if !(1e-3..1e5).contains(&x) => format!("{value:.2e}"),
        x => format!("{value:.*}", (3 - x.log10().floor() as i32).clamp(0, 4) as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 1.0, -12.3456, 0.5, 0.012345, 1234.56, 1.5e-6, f64::NAN].map(short);
        assert_eq!(shown, ["0", "1.000", "-12.35", "0.5000", "0.0123", "1235", "1.50e-6", "NaN"]);
    }

    #[test]
    fn a_signal_raises_the_flag_and_a_later_one_ends_the_program() {
        let answer = || Some((Output::captured(), "stopping".into()));
        let effect = |reaction: &Reaction, after: Option<u64>| {
            let effect = reaction.effect(after.map(Duration::from_millis))?;
            Some((effect.answer.map(|(_, text)| text.to_string()), effect.code))
        };
        let text = || Some("stopping".to_owned());
        let training = Reaction::Raise(answer());
        assert_eq!(effect(&training, None), Some((text(), None)));
        assert_eq!(effect(&training, Some(500)), None, "the terminal and the launcher send the same one");
        assert_eq!(effect(&training, Some(1500)), Some((None, Some(130))));
        // A finished run waits for the other ranks.
        let finished = Reaction::End(answer(), 0);
        assert_eq!(effect(&finished, None), Some((text(), Some(0))));
        assert_eq!(effect(&finished, Some(500)), None, "the signal that stopped the run");
        assert_eq!(effect(&finished, Some(1500)), Some((text(), Some(0))));
    }

    #[test]
    fn the_numbers_that_matter_come_first() {
        let metrics =
            Metrics::from_iter([("learning_rate", 0.1), ("loss", 2.0), ("objective/kl", 0.5), ("reward", 1.0)]);
        assert_eq!(numbers("", &metrics), "reward 1.000 kl 0.5000 loss 2.000");
    }
}
