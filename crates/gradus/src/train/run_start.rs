//! When a run takes over its directory: at once, or, if it replaces another run, after all checks have passed.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::player::Player;
use super::prepare::Start;
use crate::config::Plan;
use crate::error::{Error, Result};
use crate::files::atomic;
use crate::method::Cast;
use crate::run::{Claim, Existing, RunDir};

/// A run that is about to begin.
pub(super) struct RunStart<'a> {
    plan: &'a Plan,
    directory: &'a RunDir,
    claim: &'a RefCell<Claim>,
    /// True while the run to be replaced is still in place.
    waits: Cell<bool>,
}

impl<'a> RunStart<'a> {
    /// Begins the run, unless there is a run to replace.
    ///
    /// # Errors
    /// If writing fails.
    pub fn new(plan: &'a Plan, directory: &'a RunDir, claim: &'a RefCell<Claim>) -> Result<Self> {
        let waits = plan.existing() == Existing::Overwrite && directory.holds_run();
        let run_start = Self { plan, directory, claim, waits: Cell::new(waits) };
        if !waits {
            run_start.write()?;
        }
        Ok(run_start)
    }

    /// Path of the log, which has a temporary name until the run begins.
    pub fn log(&self) -> PathBuf {
        if self.waits.get() { self.directory.next_log() } else { self.directory.log() }
    }

    /// Begins the run, if it has not begun yet. Call this after all checks, before anything is written.
    ///
    /// # Errors
    /// If writing fails.
    pub fn begin(&self) -> Result<()> {
        if !self.waits.get() {
            return Ok(());
        }
        self.directory.set_aside(&mut self.claim.borrow_mut())?;
        self.waits.set(false);
        self.write()?;
        let (from, to) = (self.directory.next_log(), self.directory.log());
        fs::rename(&from, &to).map_err(|source| Error::io(from, source))
    }

    /// Returns true if the directory belongs to this run.
    pub fn has_begun(&self) -> bool {
        !self.waits.get()
    }

    fn write(&self) -> Result<()> {
        self.claim.borrow_mut().begin()?;
        atomic::write_bytes(&self.directory.config(), self.plan.to_yaml().as_bytes())
    }

    /// Rejects the replacement of a run that the new one reads from.
    ///
    /// # Errors
    /// The first input that would be lost.
    pub fn check_inputs(&self, start: &Start, cast: &Cast<Player>) -> Result<()> {
        if !self.waits.get() {
            return Ok(());
        }
        let Some(lost) = inputs(self.plan, start, cast).into_iter().find(|input| self.directory.would_lose(input))
        else {
            return Ok(());
        };
        let message =
            format!("`{}` is in the run that `--overwrite` would replace, and the new run reads it", lost.display());
        Err(Error::input(message).with_hint("choose another `--output-dir`, or move it out of there first"))
    }
}

impl Drop for RunStart<'_> {
    fn drop(&mut self) {
        if self.waits.get() {
            // The run never begins. The log may not exist.
            let _ = fs::remove_file(self.directory.next_log());
        }
    }
}

/// Paths of the existing files and directories that a run reads.
fn inputs(plan: &Plan, start: &Start, cast: &Cast<Player>) -> Vec<PathBuf> {
    let config = plan.config();
    let others =
        [&cast.critic, &cast.reference, &cast.lagged].into_iter().flatten().chain(&cast.rewards).chain(&cast.metrics);
    let dirs = [&start.model.dir].into_iter().chain(others.map(|player| &player.dir));
    let mut found: Vec<PathBuf> = dirs
        .flat_map(|dir| [Some(dir.path.clone()), dir.adapter.as_ref().map(|adapter| adapter.path.clone())])
        .flatten()
        .collect();
    found.extend(start.model.dir.tokenizer.clone());
    let mut config = serde_json::to_value(config).expect("a configuration is plain values");
    config["output_dir"] = Value::Null;
    add_files(&config, &mut found);
    found
}

/// Keys of files that a run writes as well as reads.
const WRITTEN: [&str; 2] = ["record", "cache"];

/// Adds every text of `config` that names an existing file: data, word lists, programs and their arguments, also those
/// of plug-ins.
fn add_files(config: &Value, found: &mut Vec<PathBuf>) {
    match config {
        Value::String(text) => found.extend(Some(PathBuf::from(text)).filter(|path| path.exists())),
        Value::Array(items) => items.iter().for_each(|item| add_files(item, found)),
        Value::Object(keys) => {
            keys.iter()
                .filter(|(key, _)| !WRITTEN.contains(&key.as_str()))
                .for_each(|(_, value)| add_files(value, found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
