//! Who is at work in a run directory, and how the last work in it ended: `.lock` and `state.json`.
//!
//! A trainer holds an operating-system lock on `.lock` for as long as it lives. The system lets go of it however the
//! process ends, so "is anybody at work here" has one answer, also after a kill; the file itself stays and says nothing.
//! `state.json` says the rest: since when, how it ended and why. A state that says `running` while nobody holds the lock
//! was left by a process that was killed.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::aside::Aside;
use crate::error::{Error, Result};
use crate::files::atomic;

/// The file that is locked.
pub(super) const LOCK: &str = ".lock";
/// The file that says how it went.
pub(super) const STATE: &str = "state.json";

/// Readers hold the lock for microseconds to see whether it is free; a trainer that meets one tries again.
const PATIENCE: Duration = Duration::from_millis(500);

/// How the work in a run directory stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Somebody is at work, or was killed at it.
    Running,
    /// All steps are done and everything is written.
    Finished,
    /// Stopped by the user, after a checkpoint.
    Interrupted,
    /// Stopped by an error.
    Failed,
}

/// Which process it was, so that another one of the same number is not taken for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since the machine started (Linux).
    pub start_ticks: Option<u64>,
    /// The machine's start (Linux: its boot id).
    pub boot_id: Option<String>,
    /// The machine.
    pub host: Option<String>,
}

/// What `state.json` holds. Readers ignore keys they do not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateFile {
    /// How it stands.
    pub state: Stage,
    /// When this stretch of work began, Unix seconds; a resumed run begins anew.
    pub started: u64,
    /// When it ended.
    #[serde(default)]
    pub ended: Option<u64>,
    /// Steps of the whole run, once they are known.
    #[serde(default)]
    pub steps: Option<usize>,
    /// Why it failed.
    #[serde(default)]
    pub error: Option<String>,
    /// What can be done about it.
    #[serde(default)]
    pub hint: Option<String>,
    /// Who did it.
    #[serde(default)]
    pub process: Process,
    /// The version of gradus.
    #[serde(default)]
    pub gradus: String,
}

/// The right to write in a run directory, for as long as it lives.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    /// Locked, where the file system can.
    _lock: Option<File>,
    state: Option<StateFile>,
    replaced: Option<Replaced>,
}

/// A run that this one replaces.
#[derive(Debug)]
struct Replaced {
    aside: Aside,
    /// Whether it comes back if this one fails before it has begun.
    returns: bool,
}

impl Claim {
    /// Claims a directory, or says who has it.
    ///
    /// # Errors
    /// [`Error::Input`] when a trainer is at work in it, [`Error::Io`] when the lock cannot be opened.
    pub fn take(directory: &Path) -> Result<Self> {
        let path = directory.join(LOCK);
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|source| Error::io(&path, source))?;
        let asked = std::time::Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => {
                    return Ok(Self { path: directory.to_owned(), _lock: Some(file), state: None, replaced: None });
                }
                Err(TryLockError::WouldBlock) if asked.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(TryLockError::WouldBlock) => return Err(busy(directory)),
                // Some network file systems have no locks: then the process in `state.json` has to do.
                Err(TryLockError::Error(_)) if is_held(directory) => return Err(busy(directory)),
                Err(TryLockError::Error(_)) => {
                    return Ok(Self { path: directory.to_owned(), _lock: None, state: None, replaced: None });
                }
            }
        }
    }

    /// Work begins in place of the run in `aside`, which comes back if it fails early and `returns`.
    pub(super) fn replaces(&mut self, aside: Aside, returns: bool) {
        self.replaced = Some(Replaced { aside, returns });
    }

    /// The work has something to show: the run that it replaces, if there is one, is removed.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn has_begun(&mut self) -> Result<()> {
        self.replaced.take().map_or(Ok(()), |replaced| replaced.aside.discard())
    }

    /// Writes that work begins.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn begin(&mut self) -> Result<()> {
        let state = StateFile {
            state: Stage::Running,
            started: now(),
            ended: None,
            steps: None,
            error: None,
            hint: None,
            process: Process::current(),
            gradus: env!("CARGO_PKG_VERSION").into(),
        };
        write(&self.path, &state)?;
        self.state = Some(state);
        Ok(())
    }

    /// Writes how many steps the whole run has.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn set_steps(&mut self, steps: usize) -> Result<()> {
        let Some(state) = &mut self.state else { return Ok(()) };
        state.steps = Some(steps);
        write(&self.path, state)
    }

    /// Writes how the work ended, and lets go of the directory. Work that failed before it had begun leaves the run that it was
    /// to replace as it was.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn end(mut self, failure: Option<&Error>) -> Result<()> {
        let stage = match failure {
            None => Stage::Finished,
            Some(Error::Interrupted) => Stage::Interrupted,
            Some(_) => Stage::Failed,
        };
        let error = failure.filter(|_| stage == Stage::Failed);
        self.close(stage, error.map(ToString::to_string), error.and_then(Error::hint).map(str::to_owned))
    }

    /// As if the process were killed now.
    #[cfg(test)]
    pub(super) fn let_go(mut self) -> impl Sized {
        (self.state.take(), self.replaced.take())
    }

    fn close(&mut self, stage: Stage, error: Option<String>, hint: Option<String>) -> Result<()> {
        let Some(state) = self.state.take() else { return Ok(()) };
        match self.replaced.take() {
            Some(Replaced { aside, returns: true }) if stage == Stage::Failed => return aside.put_back(),
            Some(Replaced { aside, .. }) if stage != Stage::Failed => aside.discard()?,
            _ => {}
        }
        write(&self.path, &StateFile { state: stage, ended: Some(now()), error, hint, ..state })
    }
}

impl Drop for Claim {
    /// Who leaves without a word has panicked: the stack unwinds through here.
    fn drop(&mut self) {
        let reason = if std::thread::panicking() { "a bug: the trainer panicked" } else { "stopped without a reason" };
        // Nothing better can be done; the free lock says that nobody is at work.
        let _ = self.close(Stage::Failed, Some(reason.into()), None);
    }
}

fn busy(directory: &Path) -> Error {
    let shown = directory.display();
    let who = match read_state(directory) {
        Ok(Some(StateFile { process, .. })) if process.pid != 0 => {
            let host = process.host.map_or(String::new(), |host| format!(" on {host}"));
            format!(" (process {}{host})", process.pid)
        }
        _ => String::new(),
    };
    Error::input(format!("run directory `{shown}` is in use by another gradus{who}"))
        .with_hint("wait until it has ended, stop it with Ctrl-C, or choose another `--output-dir`")
}

/// Whether somebody is at work in a run directory now.
pub fn is_held(directory: &Path) -> bool {
    let Ok(file) = File::open(directory.join(LOCK)) else { return false };
    match file.try_lock_shared() {
        // Let go of when the file closes, which is now.
        Ok(()) => false,
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Error(_)) => match read_state(directory) {
            Ok(Some(state)) => state.state == Stage::Running && state.process.is_alive(),
            _ => false,
        },
    }
}

/// Asks whoever is at work in a run directory to end, as Ctrl-C does: after the step and a checkpoint. It does not wait for
/// that; asked a second time, the trainer ends at once.
///
/// # Errors
/// [`Error::Input`] when nobody is at work there, or it is on another machine.
pub fn interrupt(directory: &Path) -> Result<()> {
    let shown = directory.display();
    let process = match read_state(directory)? {
        Some(StateFile { state: Stage::Running, process, .. }) if is_held(directory) => process,
        _ => return Err(Error::input(format!("nobody is at work in `{shown}`"))),
    };
    let elsewhere = || {
        let host = process.host.clone().unwrap_or_else(|| "another machine".into());
        Error::input(format!("the trainer in `{shown}` is on {host}")).with_hint("stop it there, with Ctrl-C")
    };
    // A number alone may be that of any other program.
    if !process.is_alive() { Err(elsewhere()) } else { process.interrupt(directory) }
}

/// What `state.json` says; nothing for a run without one.
///
/// # Errors
/// [`Error::Io`], or [`Error::Data`] when it is broken.
pub fn read_state(directory: &Path) -> Result<Option<StateFile>> {
    let path = directory.join(STATE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::io(path, source)),
    };
    let state = serde_json::from_str(&text);
    state.map(Some).map_err(|error| Error::data(path, Some(error.line()), format!("broken JSON: {error}")))
}

fn write(directory: &Path, state: &StateFile) -> Result<()> {
    let text = serde_json::to_string_pretty(state).expect("plain data with string keys") + "\n";
    atomic::write_bytes(&directory.join(STATE), text.as_bytes())
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Process {
    /// This process.
    pub fn current() -> Self {
        let pid = std::process::id();
        Self { pid, start_ticks: start_ticks(pid), boot_id: boot_id(), host: host() }
    }

    /// Sends it what Ctrl-C sends.
    #[cfg(unix)]
    fn interrupt(&self, directory: &Path) -> Result<()> {
        use nix::sys::signal::{Signal, kill};
        let pid = nix::unistd::Pid::from_raw(self.pid.cast_signed());
        kill(pid, Signal::SIGINT).map_err(|error| Error::io(directory, error.into()))
    }

    #[cfg(not(unix))]
    fn interrupt(&self, directory: &Path) -> Result<()> {
        let message = format!("this system has no way to stop the trainer in `{}` from here", directory.display());
        Err(Error::input(message).with_hint("press Ctrl-C where it was started"))
    }

    /// Whether it lives on this machine. What the system does not tell counts as a match.
    fn is_alive(&self) -> bool {
        let same =
            |mine: Option<String>, theirs: &Option<String>| mine.is_none() || theirs.is_none() || mine == *theirs;
        let here = same(host(), &self.host) && same(boot_id(), &self.boot_id);
        let found = start_ticks(self.pid);
        here && found.is_some() && (self.start_ticks.is_none() || found == self.start_ticks)
    }
}

/// Field 22 of `/proc/PID/stat`; the name in field 2 may contain anything, so counting begins after it.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn boot_id() -> Option<String> {
    first_line("/proc/sys/kernel/random/boot_id")
}

fn host() -> Option<String> {
    first_line("/proc/sys/kernel/hostname").or_else(|| std::env::var("HOSTNAME").ok())
}

fn first_line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.lines().next()?.trim().to_owned()).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(directory: &Path) -> Claim {
        let mut claim = Claim::take(directory).unwrap();
        claim.begin().unwrap();
        claim
    }

    #[test]
    fn only_one_works_in_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert!(!is_held(path));
        let claim = begun(path);
        assert!(is_held(path));
        let error = Claim::take(path).unwrap_err();
        let shown = format!("run directory `{}` is in use by another gradus (process {}", path.display(), claim_pid());
        assert!(error.to_string().starts_with(&shown), "{error}");
        claim.end(None).unwrap();
        assert!(!is_held(path));
        Claim::take(path).unwrap();
    }

    fn claim_pid() -> u32 {
        std::process::id()
    }

    #[test]
    fn the_end_is_recorded_with_its_reason() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let state = || read_state(path).unwrap().unwrap();
        assert_eq!(read_state(path).unwrap(), None);
        let mut claim = begun(path);
        claim.set_steps(40).unwrap();
        assert_eq!((state().state, state().steps, state().ended), (Stage::Running, Some(40), None));
        let error = Error::input("no room").with_hint("make some");
        claim.end(Some(&error)).unwrap();
        let failed = state();
        assert_eq!((failed.state, failed.steps), (Stage::Failed, Some(40)));
        assert_eq!((failed.error.as_deref(), failed.hint.as_deref()), (Some("no room"), Some("make some")));
        assert!(failed.ended >= Some(failed.started));
        begun(path).end(Some(&Error::Interrupted)).unwrap();
        assert_eq!((state().state, state().error), (Stage::Interrupted, None));
        begun(path).end(None).unwrap();
        assert_eq!(state().state, Stage::Finished);
    }

    #[test]
    fn a_panic_is_recorded_and_frees_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let panicked = std::panic::catch_unwind(|| {
            let _claim = begun(&path);
            panic!("out of bounds");
        });
        assert!(panicked.is_err() && !is_held(&path));
        let state = read_state(&path).unwrap().unwrap();
        assert_eq!((state.state, state.error.as_deref()), (Stage::Failed, Some("a bug: the trainer panicked")));
    }

    #[test]
    fn a_process_is_known_by_more_than_its_number() {
        let current = Process::current();
        if current.start_ticks.is_none() {
            crate::test_support::skipped("proc", "this system does not tell when a process started");
            return;
        }
        assert!(current.is_alive());
        assert!(!Process { start_ticks: current.start_ticks.map(|ticks| ticks + 1), ..current.clone() }.is_alive());
        assert!(!Process { boot_id: Some("another".into()), ..current.clone() }.is_alive());
        assert!(!Process { pid: u32::MAX, ..current }.is_alive());
    }

    #[test]
    fn a_broken_state_is_named() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(STATE), "{").unwrap();
        let message = read_state(directory.path()).unwrap_err().to_string();
        assert!(message.contains("state.json:1: broken JSON"), "{message}");
    }
}
