//! An observer: a line of JSON for every step, evaluation and checkpoint, for whatever watches the file.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use gradus::observer::{Event, Observer};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

/// Where the lines go.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct Events {
    /// The file's name in the run directory.
    pub file: String,
}

/// Writes as it hears.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    /// Opened at the first event: before it, the directory may be another run's.
    file: Option<File>,
}

impl Events {
    /// The observer of a run.
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
        // A file that cannot grow is no reason to stop.
        let _ = self.file.as_mut().map(|file| writeln!(file, "{line}"));
    }
}
