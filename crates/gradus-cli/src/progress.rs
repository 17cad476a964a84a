//! Progress on stderr: a bar on a terminal, a line now and then elsewhere.

use std::cell::Cell;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Output;

/// Without a terminal, a line at most this often.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The progress of one loop.
#[derive(Debug)]
pub struct Progress(Kind);

#[derive(Debug)]
enum Kind {
    Silent,
    Bar(ProgressBar),
    Lines(Lines),
}

#[derive(Debug)]
struct Lines {
    what: String,
    total: u64,
    started: Instant,
    /// What was done before: a resumed run.
    before: Cell<u64>,
    shown: Cell<Option<Instant>>,
    out: Output,
}

impl Lines {
    fn set(&self, position: u64, numbers: &str) {
        let due = self.shown.get().is_none_or(|last| last.elapsed() >= LINE_INTERVAL);
        let done = position.saturating_sub(self.before.get());
        // Before anything is done there is no rate to tell.
        if done == 0 || (!due && position != self.total) {
            return;
        }
        self.shown.set(Some(Instant::now()));
        let rate = done as f64 / self.started.elapsed().as_secs_f64().max(1e-9);
        let left = (self.total.saturating_sub(position) as f64 / rate.max(1e-9)).min(1e9);
        let left = indicatif::HumanDuration(Duration::from_secs_f64(left));
        self.out.note(format_args!("{} {position}/{} {rate:.2}/s eta {left:#} {numbers}", self.what, self.total));
    }
}

impl Progress {
    /// Shows nothing.
    pub fn silent() -> Self {
        Self(Kind::Silent)
    }

    /// A bar with position, rate and the time left.
    pub fn bar(what: &str, total: u64) -> Self {
        let style = ProgressStyle::with_template("{prefix} {bar:24} {pos}/{len} {per_sec} eta {eta} {wide_msg}")
            .expect("the template is a constant")
            .progress_chars("━╸ ");
        let bar = ProgressBar::new(total).with_style(style).with_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(500));
        Self(Kind::Bar(bar))
    }

    /// A sign of life where nobody knows how long it takes.
    pub fn spinner(what: &str) -> Self {
        let style = ProgressStyle::with_template("{spinner} {prefix} {elapsed}").expect("the template is a constant");
        let bar = ProgressBar::new_spinner().with_style(style).with_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(Kind::Bar(bar))
    }

    /// Plain lines, for logs.
    pub fn lines(what: &str, total: u64, out: Output) -> Self {
        let (what, before, shown) = (what.to_owned(), Cell::new(0), Cell::new(None));
        Self(Kind::Lines(Lines { what, total, started: Instant::now(), before, shown, out }))
    }

    /// Starts at `position`, which was reached earlier and says nothing about the rate.
    pub fn resume_at(&self, position: u64) {
        match &self.0 {
            Kind::Silent => {}
            Kind::Bar(bar) => {
                bar.set_position(position);
                bar.reset_eta();
            }
            Kind::Lines(lines) => lines.before.set(position),
        }
    }

    /// Moves to `position` of the total; `numbers` are the values that matter.
    pub fn set(&self, position: u64, numbers: &str) {
        match &self.0 {
            Kind::Silent => {}
            Kind::Bar(bar) => {
                bar.set_position(position);
                bar.set_message(numbers.to_owned());
            }
            Kind::Lines(lines) => lines.set(position, numbers),
        }
    }

    /// Prints above the bar: `print` writes to stderr.
    pub fn above(&self, print: impl FnOnce()) {
        match &self.0 {
            Kind::Bar(bar) => bar.suspend(print),
            _ => print(),
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Kind::Bar(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Progress of a loop whose length is known only once it runs.
#[derive(Debug)]
pub struct Counter {
    what: &'static str,
    out: Output,
    progress: Option<Progress>,
}

impl Counter {
    /// Counts `what`.
    pub fn new(what: &'static str, out: Output) -> Self {
        Self { what, out, progress: None }
    }

    /// `done` of `total` are done.
    pub fn set(&mut self, done: usize, total: usize) {
        let progress = self.progress.get_or_insert_with(|| self.out.progress(self.what, total as u64));
        progress.set(done as u64, "");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
