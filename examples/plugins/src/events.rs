//! An observer that writes a line of JSON for each step, evaluation and checkpoint, for programs that watch the file.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use gradus::observer::{Event, Observer};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

/// Options of the observer.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct Events {
    /// Name of the file in the run directory.
    pub file: String,
}

/// Writes events as they arrive.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    /// Opened at the first event, because before it the directory may belong to another run.
    file: Option<File>,
}

impl Events {
    /// Creates the observer of a run.
    pub fn of(&self, run: &Path) -> EventWriter {
        EventWriter { path: run.join(&self.file), file: None }
    }
}

impl Observer for EventWriter {
    fn event(&mut self, event: &Event<'_>) {
        let line = match event {
            Event::Step { step, total, metrics } => {
                json!({ "step": step, "of": total, "reward": metrics.get("reward") })
            }
            Event::Evaluated { step, best, .. } => json!({ "evaluated": step, "best": best }),
            Event::Checkpoint { step, .. } => json!({ "checkpoint": step }),
            _ => return,
        };
        if self.file.is_none() {
            self.file = File::options().create(true).append(true).open(&self.path).ok();
        }
        // A failed write must not stop the run.
        let _ = self.file.as_mut().map(|file| writeln!(file, "{line}"));
    }
}
