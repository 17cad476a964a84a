//! Processes started from pages: runs, projects with models' answers, the demonstration.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gradus::runs::Entry;
use gradus::{Error, Result};
use serde_json::Value;

use crate::within;

/// Starts runs. It is implemented by the program, which starts itself.
pub trait RunStarter: Send + Sync + std::fmt::Debug {
    /// Returns the memory forecast of a run, in the form of `gradus plan --json`.
    ///
    /// # Errors
    /// The models or the rows are invalid.
    fn forecast(&self, config: &Path) -> Result<Value>;

    /// Starts a process for `task`. Its messages go to `log`.
    ///
    /// # Errors
    /// The process cannot be started.
    fn begin(&self, task: &ProcessTask<'_>, log: &Path) -> Result<Box<dyn RunningProcess>>;
}

/// Task of a process.
#[derive(Debug, Clone, Copy)]
pub enum ProcessTask<'a> {
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
pub struct PendingProject {
    /// Name of the project.
    pub name: String,
    /// State of its process.
    pub state: ProcessState,
    /// Number of answers so far and in total, once there are any.
    pub answers: Option<(usize, usize)>,
}

/// A process that was started.
pub trait RunningProcess: Send {
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
const LOG_LINES: usize = 12;

/// Processes started since the server started.
pub struct Training {
    pub(super) starter: Option<Arc<dyn RunStarter>>,
    pub(super) device: String,
    processes: Mutex<Processes>,
}

#[derive(Default)]
pub(super) struct Processes {
    pub drafts: VecDeque<(String, Draft)>,
    pub started: Vec<StartedRun>,
    /// Projects that are being created: name, log, and process.
    pub projects: Vec<(String, PathBuf, Box<dyn RunningProcess>)>,
    /// The demonstration: log and process.
    pub demo: Option<(PathBuf, Box<dyn RunningProcess>)>,
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
pub(super) struct StartedRun {
    pub name: String,
    pub directory: PathBuf,
    pub log: PathBuf,
    pub going: Box<dyn RunningProcess>,
    pub has_ended: bool,
    /// Whether its directory was seen. If it has disappeared, the run was removed.
    pub was_there: bool,
    /// Start time of the previous trainer; `None` for a new run. While the run still shows this time, the new trainer has not started yet.
    pub before: Option<u64>,
}

/// State of the process of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessState {
    /// It is running or starting.
    Running,
    /// It has ended, with these log lines.
    Ended(Vec<String>),
}

impl Training {
    /// Creates an empty state. `device` is the device of the runs.
    pub fn new(starter: Option<Arc<dyn RunStarter>>, device: String) -> Self {
        Self { starter, device, processes: Mutex::default() }
    }

    /// Returns whether pages may start runs.
    pub fn is_allowed(&self) -> bool {
        self.starter.is_some()
    }

    /// Locks the state and updates it from the processes. A panic leaves it consistent.
    pub(super) fn processes(&self) -> MutexGuard<'_, Processes> {
        let mut processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        for started in &mut processes.started {
            started.was_there |= gradus::runs::is_run(&started.directory);
        }
        for started in processes.started.iter_mut().filter(|started| !started.has_ended) {
            started.has_ended = started.going.has_ended();
            if started.has_ended {
                // If the run wrote nothing, its name becomes free again. A non-empty directory is kept.
                let _ = std::fs::remove_dir(&started.directory);
            }
        }
        processes
    }

    /// Returns the state of a run's process, if one was started here.
    pub fn state(&self, name: &str) -> Option<ProcessState> {
        let processes = self.processes();
        let started = processes.started.iter().rfind(|started| started.name == name)?;
        Some(match started.has_ended {
            false => ProcessState::Running,
            true => ProcessState::Ended(log_lines(&started.log)),
        })
    }

    /// Returns the state of the process of a run with files. `None` if the process has begun its work, because the run's own state then
    /// describes it.
    pub fn state_of(&self, entry: &Entry) -> Option<ProcessState> {
        let state = self.state(&entry.name)?;
        let is_before = || {
            self.processes().started.iter().any(|started| started.name == entry.name && started.before == entry.started)
        };
        (state != ProcessState::Running || is_before()).then_some(state)
    }

    /// Removes the processes of a run that was removed.
    pub(super) fn forget(&self, name: &str) {
        self.processes().started.retain(|started| started.name != name || !started.has_ended);
    }

    /// Returns whether a run's trainer was asked to stop.
    pub fn is_stopping(&self, entry: &Entry) -> bool {
        self.processes().stopping.iter().any(|(path, started)| *path == entry.path && *started == entry.started)
    }

    /// Lets models answer and creates a project from the answers.
    ///
    /// # Errors
    /// Starting processes is not allowed, or fails.
    pub fn compare(&self, folder: &Path, name: &str, prompts: (&Path, usize), models: &[&Path]) -> Result<()> {
        let starter =
            self.starter.as_ref().ok_or_else(|| Error::input("the server was started without --allow-training"))?;
        let configs = configs(folder)?;
        let (log, progress) = (configs.join(format!("project-{name}.log")), progress_of(&configs, name));
        let of = Comparison { folder, name, prompts, models, progress: &progress };
        let mut processes = self.processes();
        if processes.projects.iter_mut().any(|(known, _, going)| known == name && !going.has_ended()) {
            return Err(Error::input(format!("`{name}` is being created already")));
        }
        processes.projects.retain(|(known, ..)| known != name);
        // The progress of an earlier project with this name does not apply.
        let _ = std::fs::remove_file(&progress);
        let going = starter.begin(&ProcessTask::Compare(&of), &log)?;
        processes.projects.push((name.to_owned(), log, going));
        Ok(())
    }

    /// Runs the demonstration in the folder.
    ///
    /// # Errors
    /// It exists or is running, or the process cannot be started.
    pub(super) fn begin_demo(&self, starter: &dyn RunStarter, folder: &Path) -> Result<()> {
        let output = runs_directory(folder).0.join(DEMO);
        let mut processes = self.processes();
        if processes.demo.as_mut().is_some_and(|(_, going)| !going.has_ended()) || output.symlink_metadata().is_ok() {
            return Err(Error::input(format!("`{}` exists already", output.display()))
                .with_hint("delete it first, or look at its runs"));
        }
        let log = configs(folder)?.join("demo.log");
        let going = starter.begin(&ProcessTask::Demo { output: &output }, &log)?;
        processes.demo = Some((log, going));
        Ok(())
    }

    /// Returns the state of the demonstration, if it was started since the server started.
    pub fn demo(&self) -> Option<ProcessState> {
        let mut processes = self.processes();
        let (log, going) = processes.demo.as_mut()?;
        Some(if going.has_ended() { ProcessState::Ended(log_lines(log)) } else { ProcessState::Running })
    }

    /// Returns the projects that are being created, and those whose creation failed.
    pub fn projects(&self) -> Vec<PendingProject> {
        let mut processes = self.processes();
        let making = |(name, log, going): &mut (String, PathBuf, Box<dyn RunningProcess>)| {
            let state = if going.has_ended() { ProcessState::Ended(log_lines(log)) } else { ProcessState::Running };
            let answers = log.parent().and_then(|configs| answers(&progress_of(configs, name)));
            PendingProject { name: name.clone(), state, answers }
        };
        processes.projects.iter_mut().map(making).collect()
    }

    /// Returns the runs without files, with the states of their processes.
    pub fn without_directory(&self) -> Vec<(String, ProcessState)> {
        let names: Vec<String> = {
            let processes = self.processes();
            let is_removed = |started: &StartedRun| started.has_ended && started.was_there;
            let bare = processes
                .started
                .iter()
                .filter(|started| !gradus::runs::is_run(&started.directory) && !is_removed(started));
            bare.map(|started| started.name.clone()).collect()
        };
        names.into_iter().filter_map(|name| self.state(&name).map(|state| (name, state))).collect()
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
fn log_lines(log: &Path) -> Vec<String> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].iter().map(|line| (*line).to_owned()).collect()
}

/// Returns the directory of new runs, and the prefix of their names: a folder `runs`, if it exists.
pub(super) fn runs_directory(folder: &Path) -> (PathBuf, &'static str) {
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
