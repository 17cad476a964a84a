//! A run on the terminal: progress with the numbers that matter, and Ctrl-C.

use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use gradus::reward::Interrupt;
use gradus::run::Metrics;
use gradus::task::DataConfig;
use gradus::train::observer::{Event, Observer};

use crate::output::Output;
use crate::progress::Progress;

/// Raised by Ctrl-C; the trainer looks at it between rows and steps, and while it waits for a reward program.
static INTERRUPT: LazyLock<Interrupt> = LazyLock::new(Interrupt::default);

/// Ctrl-C on a terminal reaches a sweep and its runs, and the sweep hands it on to them: what comes twice so soon is one wish.
const TOGETHER: Duration = Duration::from_secs(1);

/// What a person wants to see move, most wanted first.
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

/// Shows what happens in a run.
#[derive(Debug)]
pub struct Watcher<'a> {
    out: &'a Output,
    phase: String,
    progress: Progress,
}

impl<'a> Watcher<'a> {
    /// Watches for Ctrl-C from now on. The first asks the run to stop after a checkpoint, the second ends it at once.
    pub fn new(out: &'a Output) -> Self {
        catch_interrupts(Some((out, STOPPING_TRAINING)));
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
                let best = if *best { ", the best so far" } else { "" };
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

/// What Ctrl-C raises, once it is caught.
pub fn interrupt() -> Interrupt {
    INTERRUPT.clone()
}

/// What Ctrl-C raises where a command may wait for a program; without one it ends with its process.
pub fn interrupt_of(starts_program: bool, out: &Output) -> Interrupt {
    if starts_program {
        catch_interrupts(Some((out, STOPPING)));
    }
    interrupt()
}

/// The answer to the first Ctrl-C where a run directory is written.
const STOPPING_TRAINING: &str = "stopping: the work under way is ended, and a checkpoint is written if a step is done; press \
                                 Ctrl-C again to stop now with what the last checkpoint holds";
/// The answer to the first Ctrl-C of other commands.
pub const STOPPING: &str = "stopping; press Ctrl-C again to stop now";

/// From now on the first Ctrl-C raises a flag, and an answer is printed at once; a second one, a second later or more, ends the
/// program.
pub fn catch_interrupts(answer: Option<(&Output, &'static str)>) {
    // A program with a life of its own handles its signals, and raises the flag itself.
    if answer.is_some_and(|(out, _)| out.is_captured()) {
        return;
    }
    static FIRST: OnceLock<Instant> = OnceLock::new();
    static ANSWER: Mutex<Option<(Output, &'static str)>> = Mutex::new(None);
    let mut current = ANSWER.lock().unwrap_or_else(PoisonError::into_inner);
    *current = answer.map(|(out, answer)| (out.clone(), answer));
    drop(current);
    // Only a second handler fails, and one is enough.
    let _ = ctrlc::set_handler(|| {
        if FIRST.get_or_init(Instant::now).elapsed() > TOGETHER {
            std::process::exit(130);
        }
        INTERRUPT.raise();
        // Once: what comes twice within a second is one wish.
        if let Some((out, answer)) = ANSWER.lock().unwrap_or_else(PoisonError::into_inner).take() {
            out.answer(answer);
        }
    });
}

/// Raises what Ctrl-C raises when stdin ends: a process that started this one has ended.
pub fn stop_with_stdin() {
    std::thread::spawn(|| {
        // An error is an end too.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        INTERRUPT.raise();
    });
}

/// Whether there was a Ctrl-C, or the signal with which schedulers end jobs.
pub fn is_interrupted() -> bool {
    INTERRUPT.is_raised()
}

/// Fetches a model from the hub with progress, when `name` is not a path and it is not here yet.
pub fn fetch(name: &str, out: &Output) -> anyhow::Result<()> {
    gradus::model::resolve(name, &mut downloads(out))?;
    Ok(())
}

/// The same for a data set.
pub fn fetch_data(name: &str, out: &Output) -> anyhow::Result<()> {
    gradus::data::resolve(name, &mut downloads(out))?;
    Ok(())
}

/// The same for the rows of a configuration.
pub fn fetch_rows(data: &DataConfig, out: &Output) -> anyhow::Result<()> {
    Ok(data.fetch(&mut downloads(out))?)
}

/// Shows the progress of one file after the other.
fn downloads(out: &Output) -> impl FnMut(&str, usize, usize) {
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

/// At most four of the numbers that matter, whose keys start with `prefix`.
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

/// Four digits that matter.
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
    fn the_numbers_that_matter_come_first() {
        let metrics =
            Metrics::from_iter([("learning_rate", 0.1), ("loss", 2.0), ("objective/kl", 0.5), ("reward", 1.0)]);
        assert_eq!(numbers("", &metrics), "reward 1.000 kl 0.5000 loss 2.000");
    }
}
