//! `log.txt`: the events of a run, for later readers.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::observer::{Event, Observer};
use crate::reward::Interrupt;

/// Observer that logs important events and forwards all of them.
pub struct LogObserver<'a> {
    inner: &'a mut dyn Observer,
    file: File,
    started: Instant,
}

impl<'a> LogObserver<'a> {
    /// Opens the file at `path` for appending.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn new(path: &Path, inner: &'a mut dyn Observer) -> Result<Self> {
        let file = File::options().create(true).append(true).open(path).map_err(|source| Error::io(path, source))?;
        Ok(Self { inner, file, started: Instant::now() })
    }

    /// Logs the error that ended the run.
    pub fn ended_by(&mut self, error: &Error) {
        match error {
            Error::Interrupted => self.line("interrupted"),
            _ => self.line(&format!("error: {error}")),
        }
        if let Some(hint) = error.hint() {
            self.line(&format!("hint: {hint}"));
        }
    }

    fn line(&mut self, text: &str) {
        let line = format!("{:>9.1}s  {text}\n", self.started.elapsed().as_secs_f64());
        // A log that cannot grow is no reason to stop; the next write of metrics will report a full disk.
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            tracing::warn!("log.txt: {error}");
        }
    }

    /// Log line of an event. Steps and progress are left out: they are in `metrics.jsonl` and on the terminal.
    fn text(event: &Event<'_>) -> Option<String> {
        Some(match event {
            Event::Phase { name, total: Some(total), .. } => format!("{name}: {total} to do"),
            Event::Phase { name, total: None, .. } => (*name).to_owned(),
            Event::Evaluated { step, metrics, best } => {
                let numbers: Vec<String> = metrics.iter().map(|(key, value)| format!("{key} {value:.6}")).collect();
                format!("step {step}: {}{}", numbers.join(", "), if *best { " (best so far)" } else { "" })
            }
            Event::Checkpoint { step, path } => format!("step {step}: checkpoint {}", path.display()),
            Event::Message(text) => (*text).to_owned(),
            Event::Warning(text) => format!("warning: {text}"),
            Event::Progress { .. } | Event::Within { .. } | Event::Step { .. } | Event::Rollouts { .. } => return None,
        })
    }
}

impl Observer for LogObserver<'_> {
    fn event(&mut self, event: &Event<'_>) {
        if let Some(text) = Self::text(event) {
            self.line(&text);
        }
        self.inner.event(event);
    }

    fn should_stop(&mut self) -> bool {
        self.inner.should_stop()
    }

    fn interrupt(&self) -> Interrupt {
        self.inner.interrupt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::observer::Silent;

    #[test]
    fn what_is_worth_reading_again_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.txt");
        let (mut inner, metrics) = (Silent, [("eval_loss", 0.5)].into_iter().collect());
        let mut log = LogObserver::new(&path, &mut inner).unwrap();
        log.event(&Event::Phase { name: "training", total: Some(3), done: 0 });
        log.event(&Event::Progress { done: 1 });
        log.event(&Event::Evaluated { step: 3, metrics: &metrics, best: true });
        log.event(&Event::Warning("two rows were too long"));
        log.ended_by(&Error::input("the rows have no `text`").with_hint("`columns` names another column"));
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().map(|line| line.split("s  ").nth(1).unwrap()).collect();
        assert_eq!(
            lines,
            [
                "training: 3 to do",
                "step 3: eval_loss 0.500000 (best so far)",
                "warning: two rows were too long",
                "error: the rows have no `text`",
                "hint: `columns` names another column"
            ]
        );
    }
}
