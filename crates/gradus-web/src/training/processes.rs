//! Processes started from pages: runs, projects with models' answers, the demonstration.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gradus::runs::Entry;
use gradus::{Error, Result};
use serde_json::Value;

use crate::within;

/// Starts runs. It is implemented by the program, which starts itself.
pub trait Trainer: Send + Sync + std::fmt::Debug {
    /// Returns the memory forecast of a run, in the form of `gradus plan --json`.
    ///
    /// # Errors
    /// The models or the rows are invalid.
    fn forecast(&self, config: &Path) -> Result<Value>;

    /// Starts a process for `work`. Its messages go to `log`.
    ///
    /// # Errors
    /// The process cannot be started.
    fn begin(&self, work: &Job<'_>, log: &Path) -> Result<Box<dyn Going>>;
}

/// Task of a process.
#[derive(Debug, Clone, Copy)]
pub enum Job<'a> {
    /// Train as a configuration file specifies.
    Train {
        /// Path of the file.
        config: &'a Path,
    },
    /// Resume a run from its last checkpoint.
    Resume {
        /// Directory of the run.
        run: &'a Path,
        /// New number of steps, if it changes.
        max_steps: Option<usize>,
    },
    /// Create an annotation project from models' answers.
    Compare(&'a Comparison<'a>),
    /// Run the demonstration.
    Demo {
        /// Directory of the demonstration, which does not exist yet.
        output: &'a Path,
    },
}

/// A project that compares models.
#[derive(Debug, Clone, Copy)]
pub struct Comparison<'a> {
    /// Served folder.
    pub folder: &'a Path,
    /// Name of the project.
    pub name: &'a str,
    /// File of prompts, and maximum number of them.
    pub prompts: (&'a Path, usize),
    /// Models to compare.
    pub models: &'a [&'a Path],
    /// Progress file with the number of answers: `{"done": 16, "of": 100}`.
    pub progress: &'a Path,
}

/// A project that is being created, or whose creation failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Making {
    /// Name of the project.
    pub name: String,
    /// State of its process.
    pub standing: Standing,
    /// Number of answers so far and in total, once there are any.
    pub answers: Option<(usize, usize)>,
}

/// A process that was started.
pub trait Going: Send {
    /// Returns whether it has ended.
    fn has_ended(&mut self) -> bool;
}

/// Maximum number of configurations that were shown but not started. The oldest one is removed.
pub(super) const DRAFTS: usize = 100;

/// Maximum number of concurrent runs started from pages.
pub(super) const AT_ONCE: usize = 4;

/// Directory of the demonstration.
pub(super) const DEMO: &str = "demo";

/// Subdirectory of configurations and logs of processes.
pub(super) const CONFIGS: &str = "configs";

/// Number of log lines of a failed process on a page.
const SAID: usize = 12;

/// Processes started since the server started.
pub struct Training {
    pub(super) trainer: Option<Arc<dyn Trainer>>,
    pub(super) device: String,
    kept: Mutex<Kept>,
}

#[derive(Default)]
pub(super) struct Kept {
    pub drafts: VecDeque<(String, Draft)>,
    pub begun: Vec<Begun>,
    /// Projects that are being created: name, log, and process.
    pub projects: Vec<(String, PathBuf, Box<dyn Going>)>,
    /// The demonstration: log and process.
    pub demo: Option<(PathBuf, Box<dyn Going>)>,
    /// Stop requests: directory and start time of the trainer. After a second request, a trainer would end without a checkpoint.
    pub stopping: Vec<(PathBuf, Option<u64>)>,
}

/// A checked run that can be started.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    /// Name among the runs of the folder.
    pub name: String,
    /// Directory of the run.
    pub directory: PathBuf,
    /// Configuration of the run.
    pub yaml: String,
}

/// Process of a run.
pub(super) struct Begun {
    pub name: String,
    pub directory: PathBuf,
    pub log: PathBuf,
    pub going: Box<dyn Going>,
    pub has_ended: bool,
    /// Whether its directory was seen. If it has disappeared, the run was removed.
    pub was_there: bool,
    /// Start time of the previous trainer; `None` for a new run. While the run still shows this time, the new trainer has not started yet.
    pub before: Option<u64>,
}

/// State of the process of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is running or starting.
    Going,
    /// It has ended, with these log lines.
    Ended(Vec<String>),
}

impl Training {
    /// Creates an empty state. `device` is the device of the runs.
    pub fn new(trainer: Option<Arc<dyn Trainer>>, device: String) -> Self {
        Self { trainer, device, kept: Mutex::default() }
    }

    /// Returns whether pages may start runs.
    pub fn is_allowed(&self) -> bool {
        self.trainer.is_some()
    }

    /// Locks the state and updates it from the processes. A panic leaves it consistent.
    pub(super) fn kept(&self) -> MutexGuard<'_, Kept> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        for begun in &mut kept.begun {
            begun.was_there |= gradus::runs::is_run(&begun.directory);
        }
        for begun in kept.begun.iter_mut().filter(|begun| !begun.has_ended) {
            begun.has_ended = begun.going.has_ended();
            if begun.has_ended {
                // If the run wrote nothing, its name becomes free again. A non-empty directory is kept.
                let _ = std::fs::remove_dir(&begun.directory);
            }
        }
        kept
    }

    /// Returns the state of a run's process, if one was started here.
    pub fn standing(&self, name: &str) -> Option<Standing> {
        let kept = self.kept();
        let begun = kept.begun.iter().rfind(|begun| begun.name == name)?;
        Some(match begun.has_ended {
            false => Standing::Going,
            true => Standing::Ended(said(&begun.log)),
        })
    }

    /// Returns the state of the process of a run with files. `None` if the process has begun its work, because the run's own state then
    /// describes it.
    pub fn standing_of(&self, entry: &Entry) -> Option<Standing> {
        let standing = self.standing(&entry.name)?;
        let is_before =
            || self.kept().begun.iter().any(|begun| begun.name == entry.name && begun.before == entry.started);
        (standing != Standing::Going || is_before()).then_some(standing)
    }

    /// Removes the processes of a run that was removed.
    pub(super) fn forget(&self, name: &str) {
        self.kept().begun.retain(|begun| begun.name != name || !begun.has_ended);
    }

    /// Returns whether a run's trainer was asked to stop.
    pub fn is_stopping(&self, entry: &Entry) -> bool {
        self.kept().stopping.iter().any(|(path, started)| *path == entry.path && *started == entry.started)
    }

    /// Lets models answer and creates a project from the answers.
    ///
    /// # Errors
    /// Starting processes is not allowed, or fails.
    pub fn compare(&self, folder: &Path, name: &str, prompts: (&Path, usize), models: &[&Path]) -> Result<()> {
        let trainer =
            self.trainer.as_ref().ok_or_else(|| Error::input("the server was started without --allow-training"))?;
        let configs = configs(folder)?;
        let (log, progress) = (configs.join(format!("project-{name}.log")), progress_of(&configs, name));
        let of = Comparison { folder, name, prompts, models, progress: &progress };
        let mut kept = self.kept();
        if kept.projects.iter_mut().any(|(known, _, going)| known == name && !going.has_ended()) {
            return Err(Error::input(format!("`{name}` is being created already")));
        }
        kept.projects.retain(|(known, ..)| known != name);
        // The progress of an earlier project with this name does not apply.
        let _ = std::fs::remove_file(&progress);
        let going = trainer.begin(&Job::Compare(&of), &log)?;
        kept.projects.push((name.to_owned(), log, going));
        Ok(())
    }

    /// Runs the demonstration in the folder.
    ///
    /// # Errors
    /// It exists or is running, or the process cannot be started.
    pub(super) fn begin_demo(&self, trainer: &dyn Trainer, folder: &Path) -> Result<()> {
        let output = place(folder).0.join(DEMO);
        let mut kept = self.kept();
        if kept.demo.as_mut().is_some_and(|(_, going)| !going.has_ended()) || output.symlink_metadata().is_ok() {
            return Err(Error::input(format!("`{}` exists already", output.display()))
                .with_hint("delete it first, or look at its runs"));
        }
        let log = configs(folder)?.join("demo.log");
        let going = trainer.begin(&Job::Demo { output: &output }, &log)?;
        kept.demo = Some((log, going));
        Ok(())
    }

    /// Returns the state of the demonstration, if it was started since the server started.
    pub fn demo(&self) -> Option<Standing> {
        let mut kept = self.kept();
        let (log, going) = kept.demo.as_mut()?;
        Some(if going.has_ended() { Standing::Ended(said(log)) } else { Standing::Going })
    }

    /// Returns the projects that are being created, and those whose creation failed.
    pub fn projects(&self) -> Vec<Making> {
        let mut kept = self.kept();
        let making = |(name, log, going): &mut (String, PathBuf, Box<dyn Going>)| {
            let standing = if going.has_ended() { Standing::Ended(said(log)) } else { Standing::Going };
            let answers = log.parent().and_then(|configs| answers(&progress_of(configs, name)));
            Making { name: name.clone(), standing, answers }
        };
        kept.projects.iter_mut().map(making).collect()
    }

    /// Returns the runs without files, with the states of their processes.
    pub fn without_directory(&self) -> Vec<(String, Standing)> {
        let names: Vec<String> = {
            let kept = self.kept();
            let is_removed = |begun: &Begun| begun.has_ended && begun.was_there;
            let bare = kept.begun.iter().filter(|begun| !gradus::runs::is_run(&begun.directory) && !is_removed(begun));
            bare.map(|begun| begun.name.clone()).collect()
        };
        names.into_iter().filter_map(|name| self.standing(&name).map(|standing| (name, standing))).collect()
    }
}

/// Returns the path of a project's progress file.
fn progress_of(configs: &Path, name: &str) -> PathBuf {
    configs.join(format!("project-{name}.progress"))
}

/// Reads the number of answers so far and in total.
fn answers(progress: &Path) -> Option<(usize, usize)> {
    let found: Value = serde_json::from_slice(&std::fs::read(progress).ok()?).ok()?;
    let number = |key: &str| found[key].as_u64().and_then(|number| usize::try_from(number).ok());
    number("done").zip(number("of"))
}

/// Returns the last log lines of a process. The file contains nothing else.
fn said(log: &Path) -> Vec<String> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(SAID)..].iter().map(|line| (*line).to_owned()).collect()
}

/// Returns the directory of new runs, and the prefix of their names: a folder `runs`, if it exists.
pub(super) fn place(folder: &Path) -> (PathBuf, &'static str) {
    let runs = folder.join("runs");
    match runs.is_dir() && !runs.is_symlink() && !gradus::runs::is_run(&runs) {
        true => (runs, "runs/"),
        false => (folder.to_owned(), ""),
    }
}

/// Returns the folder of configurations and logs, and creates it if necessary.
pub(super) fn configs(folder: &Path) -> Result<PathBuf> {
    let configs = within::made(folder, CONFIGS)?;
    within::check(folder, &configs)?;
    Ok(configs)
}
