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
    Lines { what: String, total: u64, started: Instant, shown: Cell<Option<Instant>>, out: Output },
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

    /// Plain lines, for logs.
    pub fn lines(what: &str, total: u64, out: Output) -> Self {
        Self(Kind::Lines { what: what.to_owned(), total, started: Instant::now(), shown: Cell::new(None), out })
    }

    /// Moves to `position` of the total; `numbers` are the values that matter.
    pub fn set(&self, position: u64, numbers: &str) {
        match &self.0 {
            Kind::Silent => {}
            Kind::Bar(bar) => {
                bar.set_position(position);
                bar.set_message(numbers.to_owned());
            }
            Kind::Lines { what, total, started, shown, out } => {
                let due = shown.get().is_none_or(|last| last.elapsed() >= LINE_INTERVAL);
                if due || position == *total {
                    shown.set(Some(Instant::now()));
                    let rate = position as f64 / started.elapsed().as_secs_f64().max(1e-9);
                    let left = Duration::from_secs_f64(total.saturating_sub(position) as f64 / rate.max(1e-9));
                    let left = indicatif::HumanDuration(left);
                    out.note(format_args!("{what} {position}/{total} {rate:.2}/s eta {left:#} {numbers}"));
                }
            }
        }
    }

    /// A message that stays above the bar.
    pub fn note(&self, message: &str) {
        match &self.0 {
            Kind::Silent => {}
            Kind::Bar(bar) => bar.println(message),
            Kind::Lines { out, .. } => out.note(message),
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Kind::Bar(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
