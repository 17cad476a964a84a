//! Progress on stderr: a bar on a terminal, otherwise occasional lines.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

use crate::output::{Output, ProgressForm, visible};

/// Minimum time between two lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Progress of one loop.
#[derive(Debug)]
pub struct Progress(Kind);

#[derive(Debug)]
enum Kind {
    Silent,
    Bar(Bar),
    Lines(Lines),
}

/// Speed of a loop so far.
#[derive(Debug, Clone, Copy)]
struct Pace {
    started: Instant,
    /// Units done before `started`, by the run that is resumed.
    before: u64,
    /// Number of units done, and the time when that number was reached.
    last: (u64, Instant),
}

impl Pace {
    fn new(before: u64) -> Self {
        let now = Instant::now();
        Self { started: now, before, last: (before, now) }
    }

    fn reach(&mut self, position: u64, now: Instant) {
        if position != self.last.0 {
            self.last = (position, now);
        }
    }

    /// Returns the mean seconds per unit; `None` before the first one is done.
    fn seconds_each(&self) -> Option<f64> {
        let done = self.last.0.checked_sub(self.before).filter(|&done| done > 0)?;
        Some(self.last.1.duration_since(self.started).as_secs_f64() / done as f64)
    }

    /// Formats the rate and the remaining time at `now`: `2.31/s eta 3 minutes`. Before the first unit is done, there is no estimate. If the
    /// current unit takes longer than the others, only the time of the following ones is known: `eta over 3 minutes`.
    fn describe(&self, total: u64, now: Instant) -> String {
        let Some(each) = self.seconds_each() else { return "eta unknown".to_owned() };
        let rate = if each > 1.0 { format!("{each:.1} s each") } else { format!("{:.2}/s", 1.0 / each.max(1e-9)) };
        let since = now.duration_since(self.last.1).as_secs_f64();
        let units = total.saturating_sub(self.last.0) as f64;
        let time = |seconds: f64| format!("{:#}", HumanDuration(Duration::from_secs_f64(seconds.clamp(0.0, 1e9))));
        // A second more is nothing to report.
        let eta = match units > 0.0 && since > each + 1.0 {
            false => time(units * each - since),
            true if units > 1.0 => format!("over {}", time((units - 1.0) * each)),
            true => "unknown".into(),
        };
        format!("{rate} eta {eta}")
    }
}

#[derive(Debug)]
struct Bar {
    bar: ProgressBar,
    pace: Arc<Mutex<Pace>>,
    numbers: RefCell<String>,
}

impl Bar {
    fn pace(&self, change: impl FnOnce(&mut Pace)) {
        change(&mut self.pace.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

#[derive(Debug)]
struct Lines {
    what: String,
    total: u64,
    pace: Cell<Pace>,
    numbers: RefCell<String>,
    shown: Cell<Option<Instant>>,
    out: Output,
}

impl Lines {
    /// Returns whether the last line is old enough for a new one.
    fn is_due(&self, now: Instant) -> bool {
        self.shown.get().is_none_or(|last| now.duration_since(last) >= LINE_INTERVAL)
    }

    fn show(&self, text: &str, now: Instant) {
        self.shown.set(Some(now));
        let (pace, total) = (self.pace.get(), self.total);
        let line = format!("{} {}/{total} {} {text}", self.what, pace.last.0, pace.describe(total, now));
        self.out.note(line.trim_end());
    }

    fn set(&self, position: u64, numbers: &str, now: Instant) {
        let mut pace = self.pace.get();
        pace.reach(position, now);
        self.pace.set(pace);
        numbers.clone_into(&mut self.numbers.borrow_mut());
        // Before the first unit is done, there is no rate to show.
        if pace.seconds_each().is_some() && (self.is_due(now) || position == self.total) {
            self.show(numbers, now);
        }
    }

    fn within(&self, text: &str, now: Instant) {
        // A unit shorter than the interval is shown with its numbers when it is done.
        let is_long = now.duration_since(self.pace.get().last.1) >= LINE_INTERVAL;
        if is_long && self.is_due(now) {
            self.show(&beside(text, &self.numbers), now);
        }
    }
}

/// Formats the progress within a unit, followed by the numbers of the unit before it.
fn beside(text: &str, numbers: &RefCell<String>) -> String {
    format!("{text}  {}", numbers.borrow()).trim_end().to_owned()
}

impl Progress {
    /// Creates progress that shows nothing.
    pub fn silent() -> Self {
        Self(Kind::Silent)
    }

    /// Creates a bar with position, rate and remaining time.
    pub fn bar(what: &str, total: u64) -> Self {
        let pace = Arc::new(Mutex::new(Pace::new(0)));
        let shown = Arc::clone(&pace);
        let style = ProgressStyle::with_template("{prefix} {bar:24} {pos}/{len} {pace} {wide_msg}")
            .expect("the template is a constant")
            .with_key("pace", move |state: &ProgressState, text: &mut dyn std::fmt::Write| {
                let pace = *shown.lock().unwrap_or_else(PoisonError::into_inner);
                // If the rate cannot be written, it is left out.
                let _ = text.write_str(&pace.describe(state.len().unwrap_or(0), Instant::now()));
            })
            .progress_chars("━╸ ");
        let bar = ProgressBar::new(total).with_style(style).with_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(500));
        Self(Kind::Bar(Bar { bar, pace, numbers: RefCell::default() }))
    }

    /// Creates a spinner, for work of unknown duration.
    pub fn spinner(what: &str) -> Self {
        let style = ProgressStyle::with_template("{spinner} {prefix} {elapsed} {wide_msg}")
            .expect("the template is a constant");
        let bar = ProgressBar::new_spinner().with_style(style).with_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(Kind::Bar(Bar { bar, pace: Arc::new(Mutex::new(Pace::new(0))), numbers: RefCell::default() }))
    }

    /// Creates progress in plain lines, for logs.
    pub fn lines(what: &str, total: u64, out: Output) -> Self {
        let (what, pace, shown) = (what.to_owned(), Cell::new(Pace::new(0)), Cell::new(None));
        Self(Kind::Lines(Lines { what, total, pace, numbers: RefCell::default(), shown, out }))
    }

    /// Starts at `position`, which an earlier run reached and which does not count for the rate.
    pub fn resume_at(&self, position: u64) {
        match &self.0 {
            Kind::Silent => {}
            Kind::Bar(bar) => {
                bar.pace(|pace| *pace = Pace::new(position));
                bar.bar.set_position(position);
            }
            Kind::Lines(lines) => lines.pace.set(Pace::new(position)),
        }
    }

    /// Moves to `position`. `numbers` are the metrics to show.
    pub fn set(&self, position: u64, numbers: &str) {
        match &self.0 {
            Kind::Silent => {}
            Kind::Bar(bar) => {
                bar.pace(|pace| pace.reach(position, Instant::now()));
                bar.bar.set_position(position);
                bar.bar.set_message(numbers.to_owned());
                *bar.numbers.borrow_mut() = numbers.to_owned();
            }
            Kind::Lines(lines) => lines.set(position, numbers, Instant::now()),
        }
    }

    /// Shows the progress within the current unit: `sampled 312/1600`.
    pub fn within(&self, text: &str) {
        match &self.0 {
            Kind::Silent => {}
            Kind::Bar(bar) => bar.bar.set_message(beside(text, &bar.numbers)),
            Kind::Lines(lines) => lines.within(text, Instant::now()),
        }
    }

    /// Prints above the bar. `print` writes to stderr.
    pub fn above(&self, print: impl FnOnce()) {
        match &self.0 {
            Kind::Bar(bar) => bar.bar.suspend(print),
            _ => print(),
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Kind::Bar(bar) = &self.0 {
            bar.bar.finish_and_clear();
        }
    }
}

impl Output {
    /// Creates a progress bar over `total` steps on stderr. Plain lines if stderr is not a terminal, nothing with `--quiet`.
    pub fn progress(&self, what: &str, total: u64) -> Progress {
        match self.progress_form() {
            ProgressForm::Nothing => Progress::silent(),
            ProgressForm::Bar => Progress::bar(&visible(what), total),
            ProgressForm::Lines => Progress::lines(what, total, self.clone()),
        }
    }

    /// Creates a counter on stderr, whose total comes with the first count. It is quiet if the command's rows appear on the terminal.
    pub fn counter(&self, what: &'static str) -> Counter {
        Counter::new(what, self.beside_rows())
    }

    /// Creates a spinner on stderr. One line if stderr is not a terminal, nothing with `--quiet`.
    pub fn spinner(&self, what: &str) -> Progress {
        match self.progress_form() {
            ProgressForm::Nothing => Progress::silent(),
            ProgressForm::Bar => Progress::spinner(&visible(what)),
            ProgressForm::Lines => {
                self.note(what);
                Progress::silent()
            }
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
    /// Creates a counter of `what`.
    pub fn new(what: &'static str, out: Output) -> Self {
        Self { what, out, progress: None }
    }

    /// Sets the count to `done` of `total`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_numbers_of_the_last_unit() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let out = Output::captured();
        let progress = Progress::lines("training", 700, out.clone());
        let Kind::Lines(lines) = &progress.0 else { unreachable!() };
        lines.pace.set(Pace { started: start, before: 0, last: (0, start) });
        lines.within("accumulated 0/64", at(4));
        lines.set(1, "loss 2.5", at(5));
        // The unit has just begun, so its line would only replace the numbers of the next one.
        lines.within("accumulated 0/64", at(5));
        lines.within("accumulated 0/64", at(14));
        lines.set(2, "loss 2.4", at(16));
        // This unit is long.
        lines.within("accumulated 32/64", at(30));
        let shown = out.take().messages;
        assert_eq!(shown.len(), 3, "{shown:?}");
        assert!(shown[0].starts_with("training 1/700 ") && shown[0].ends_with(" loss 2.5"), "{shown:?}");
        assert!(shown[1].starts_with("training 2/700 ") && shown[1].ends_with(" loss 2.4"), "{shown:?}");
        assert!(shown[2].ends_with(" accumulated 32/64  loss 2.4"), "{shown:?}");
    }

    #[test]
    fn the_time_left_is_unknown_before_a_unit_is_done_and_counts_down_within_one() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut pace = Pace { started: start, before: 4, last: (4, start) };
        assert_eq!(pace.describe(10, at(600)), "eta unknown");
        pace.last = (6, at(600));
        assert_eq!(pace.describe(10, at(600)), "300.0 s each eta 20m");
        assert_eq!(pace.describe(10, at(720)), "300.0 s each eta 18m");
        assert_eq!(pace.describe(10, at(900)), "300.0 s each eta 15m");
        assert_eq!(pace.describe(10, at(7200)), "300.0 s each eta over 15m");
        pace.last = (9, at(1500));
        assert_eq!(pace.describe(10, at(1800)), "300.0 s each eta 0s");
        assert_eq!(pace.describe(10, at(7200)), "300.0 s each eta unknown");
        pace.last = (1004, at(100));
        assert_eq!(pace.describe(1004, at(100)), "10.00/s eta 0s");
    }
}
