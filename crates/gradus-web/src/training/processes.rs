//! What pages have begun: runs, projects of answers, the demonstration; each is a process of its own.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gradus::runs::Entry;
use gradus::{Error, Result};
use serde_json::Value;

use crate::within;

/// Who starts runs: the program, which starts itself.
pub trait Trainer: Send + Sync + std::fmt::Debug {
    /// What a run of this configuration file will need in memory, as `gradus plan --json` says it.
    ///
    /// # Errors
    /// What is wrong with the models or the rows.
    fn forecast(&self, config: &Path) -> Result<Value>;

    /// Begins a process that does `work`; what it says of itself goes to `log`.
    ///
    /// # Errors
    /// When no process can be started.
    fn begin(&self, work: &Job<'_>, log: &Path) -> Result<Box<dyn Going>>;
}

/// What a process is to do.
#[derive(Debug, Clone, Copy)]
pub enum Job<'a> {
    /// Train what a configuration file says.
    Train {
        /// The file.
        config: &'a Path,
    },
    /// Go on with a run from its last checkpoint.
    Resume {
        /// Its directory.
        run: &'a Path,
        /// How many steps it is to have, where that changes.
        max_steps: Option<usize>,
    },
    /// Make a project of annotations of what models answer.
    Compare(&'a Comparison<'a>),
    /// Make the demonstration.
    Demo {
        /// Its directory, which is not there yet.
        output: &'a Path,
    },
}

/// A project that compares models.
#[derive(Debug, Clone, Copy)]
pub struct Comparison<'a> {
    /// The folder that is served.
    pub folder: &'a Path,
    /// The project's name.
    pub name: &'a str,
    /// A file of prompts, and how many of them are asked at most.
    pub prompts: (&'a Path, usize),
    /// The models.
    pub models: &'a [&'a Path],
    /// Where it is written how many answers there are: `{"done": 16, "of": 100}`.
    pub progress: &'a Path,
}

/// A project that is being made, or of which nothing came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Making {
    /// Its name.
    pub name: String,
    /// How its process stands.
    pub standing: Standing,
    /// How many answers there are, of how many, once there are any.
    pub answers: Option<(usize, usize)>,
}

/// A process that was begun.
pub trait Going: Send {
    /// Whether it has ended.
    fn has_ended(&mut self) -> bool;
}

/// Configurations that were shown and not begun; the oldest goes.
pub(super) const DRAFTS: usize = 100;

/// Runs that pages have begun and that are at work, at once.
pub(super) const AT_ONCE: usize = 4;

/// Where the demonstration goes.
pub(super) const DEMO: &str = "demo";

/// The folder, below that which is served, of configurations and what processes said.
pub(super) const CONFIGS: &str = "configs";

/// Lines of a process that failed which a page shows.
const SAID: usize = 12;

/// What was begun since the server started.
pub struct Training {
    pub(super) trainer: Option<Arc<dyn Trainer>>,
    pub(super) device: String,
    kept: Mutex<Kept>,
}

#[derive(Default)]
pub(super) struct Kept {
    pub drafts: VecDeque<(String, Draft)>,
    pub begun: Vec<Begun>,
    /// Projects that are made: of each its name, what its process says, and the process.
    pub projects: Vec<(String, PathBuf, Box<dyn Going>)>,
    /// The demonstration: what its process says, and the process.
    pub demo: Option<(PathBuf, Box<dyn Going>)>,
    /// Stretches of work that were asked to end: directory and beginning. Asked twice, a trainer ends without its checkpoint.
    pub stopping: Vec<(PathBuf, Option<u64>)>,
}

/// A run that was checked and can be begun.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    /// Its name among the runs of the folder.
    pub name: String,
    /// Its directory.
    pub directory: PathBuf,
    /// Its configuration.
    pub yaml: String,
}

/// A process for a run.
pub(super) struct Begun {
    pub name: String,
    pub directory: PathBuf,
    pub log: PathBuf,
    pub going: Box<dyn Going>,
    pub has_ended: bool,
    /// Whether its directory was seen. Where it is gone, somebody removed the run.
    pub was_there: bool,
    /// When the stretch of work before it began; none of a new run. As long as that is the last, it is about to begin.
    pub before: Option<u64>,
}

/// How the process of a run stands that was begun here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is at work, or about to be.
    Going,
    /// It has ended, and said this.
    Ended(Vec<String>),
}

impl Training {
    /// Nothing was begun yet. `device` is where runs are computed.
    pub fn new(trainer: Option<Arc<dyn Trainer>>, device: String) -> Self {
        Self { trainer, device, kept: Mutex::default() }
    }

    /// Whether pages may start runs.
    pub fn is_allowed(&self) -> bool {
        self.trainer.is_some()
    }

    /// What is kept, with every process asked whether it goes on. A panic leaves nothing half done.
    pub(super) fn kept(&self) -> MutexGuard<'_, Kept> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        for begun in &mut kept.begun {
            begun.was_there |= gradus::runs::is_run(&begun.directory);
        }
        for begun in kept.begun.iter_mut().filter(|begun| !begun.has_ended) {
            begun.has_ended = begun.going.has_ended();
            if begun.has_ended {
                // Where nothing came of it, the name is free again; what is not empty stays.
                let _ = std::fs::remove_dir(&begun.directory);
            }
        }
        kept
    }

    /// How the process of a run stands, where one was begun here.
    pub fn standing(&self, name: &str) -> Option<Standing> {
        let kept = self.kept();
        let begun = kept.begun.iter().rfind(|begun| begun.name == name)?;
        Some(match begun.has_ended {
            false => Standing::Going,
            true => Standing::Ended(said(&begun.log)),
        })
    }

    /// The same of a run that has something to show: a process that is at work already is told by the run's state.
    pub fn standing_of(&self, entry: &Entry) -> Option<Standing> {
        let standing = self.standing(&entry.name)?;
        let is_before =
            || self.kept().begun.iter().any(|begun| begun.name == entry.name && begun.before == entry.started);
        (standing != Standing::Going || is_before()).then_some(standing)
    }

    /// Forgets the processes of a run that was removed.
    pub(super) fn forget(&self, name: &str) {
        self.kept().begun.retain(|begun| begun.name != name || !begun.has_ended);
    }

    /// Whether a run's trainer was asked to end.
    pub fn is_stopping(&self, entry: &Entry) -> bool {
        self.kept().stopping.iter().any(|(path, started)| *path == entry.path && *started == entry.started)
    }

    /// Has models answer, and a project made of that.
    ///
    /// # Errors
    /// When nothing may be started here, or cannot be.
    pub fn compare(&self, folder: &Path, name: &str, prompts: (&Path, usize), models: &[&Path]) -> Result<()> {
        let trainer =
            self.trainer.as_ref().ok_or_else(|| Error::input("the server was started without --allow-training"))?;
        let configs = configs(folder)?;
        let (log, progress) = (configs.join(format!("project-{name}.log")), progress_of(&configs, name));
        let of = Comparison { folder, name, prompts, models, progress: &progress };
        let mut kept = self.kept();
        if kept.projects.iter_mut().any(|(known, _, going)| known == name && !going.has_ended()) {
            return Err(Error::input(format!("`{name}` is being made already")));
        }
        kept.projects.retain(|(known, ..)| known != name);
        // What an earlier one of this name came to says nothing of this one.
        let _ = std::fs::remove_file(&progress);
        let going = trainer.begin(&Job::Compare(&of), &log)?;
        kept.projects.push((name.to_owned(), log, going));
        Ok(())
    }

    /// Makes the demonstration in the folder.
    ///
    /// # Errors
    /// When it is there or being made, or no process can be started.
    pub(super) fn begin_demo(&self, trainer: &dyn Trainer, folder: &Path) -> Result<()> {
        let output = place(folder).0.join(DEMO);
        let mut kept = self.kept();
        if kept.demo.as_mut().is_some_and(|(_, going)| !going.has_ended()) || output.symlink_metadata().is_ok() {
            return Err(Error::input(format!("`{}` is there already", output.display()))
                .with_hint("delete it first, or look at its runs"));
        }
        let log = configs(folder)?.join("demo.log");
        let going = trainer.begin(&Job::Demo { output: &output }, &log)?;
        kept.demo = Some((log, going));
        Ok(())
    }

    /// How the demonstration stands, where it was begun since the server started.
    pub fn demo(&self) -> Option<Standing> {
        let mut kept = self.kept();
        let (log, going) = kept.demo.as_mut()?;
        Some(if going.has_ended() { Standing::Ended(said(log)) } else { Standing::Going })
    }

    /// Projects that are being made, and those of which nothing came.
    pub fn projects(&self) -> Vec<Making> {
        let mut kept = self.kept();
        let making = |(name, log, going): &mut (String, PathBuf, Box<dyn Going>)| {
            let standing = if going.has_ended() { Standing::Ended(said(log)) } else { Standing::Going };
            let answers = log.parent().and_then(|configs| answers(&progress_of(configs, name)));
            Making { name: name.clone(), standing, answers }
        };
        kept.projects.iter_mut().map(making).collect()
    }

    /// Runs that have nothing to show yet, or never had: name and how their process stands.
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

/// Where it is written how many answers of a project there are.
fn progress_of(configs: &Path, name: &str) -> PathBuf {
    configs.join(format!("project-{name}.progress"))
}

/// How many answers there are, of how many.
fn answers(progress: &Path) -> Option<(usize, usize)> {
    let found: Value = serde_json::from_slice(&std::fs::read(progress).ok()?).ok()?;
    let number = |key: &str| found[key].as_u64().and_then(|number| usize::try_from(number).ok());
    number("done").zip(number("of"))
}

/// What a process said at its end: the file has nothing else in it.
fn said(log: &Path) -> Vec<String> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(SAID)..].iter().map(|line| (*line).to_owned()).collect()
}

/// Where new runs go, and what their names begin with: a folder `runs`, where there is one.
pub(super) fn place(folder: &Path) -> (PathBuf, &'static str) {
    let runs = folder.join("runs");
    match runs.is_dir() && !runs.is_symlink() && !gradus::runs::is_run(&runs) {
        true => (runs, "runs/"),
        false => (folder.to_owned(), ""),
    }
}

/// The folder of configurations and of what processes say, made where it is not there.
pub(super) fn configs(folder: &Path) -> Result<PathBuf> {
    let configs = within::made(folder, CONFIGS)?;
    within::check(folder, &configs)?;
    Ok(configs)
}
