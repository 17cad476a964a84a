//! The process that owns a run directory, and how the last one ended: `.lock` and `state.json`.
//!
//! A trainer holds an operating-system lock on `.lock` while it runs. The operating system releases the lock when the process ends, even
//! after a kill, so the lock tells reliably whether a trainer is running. The content of the file means nothing. `state.json` holds the
//! rest: when the trainer started, how it ended and why. If the state is `running` but no process holds the lock, the trainer was killed.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::replaced_run::ReplacedRun;
use crate::error::{Error, Result};
use crate::files::{self, atomic};

/// Name of the lock file.
pub(super) const LOCK: &str = ".lock";
/// Name of the state file.
pub(super) const STATE: &str = "state.json";

/// How long to retry the lock. Readers hold it for microseconds to see whether it is free.
const PATIENCE: Duration = Duration::from_millis(500);

/// State of the work in a run directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// A trainer is running, or was killed.
    Running,
    /// All steps are done and all files are written.
    Finished,
    /// Stopped by the user, after a checkpoint.
    Interrupted,
    /// Stopped by an error.
    Failed,
}

/// Identity of a process. It distinguishes later processes with the same pid.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot (Linux).
    pub start_ticks: Option<u64>,
    /// Boot id of the machine (Linux).
    pub boot_id: Option<String>,
    /// Host name of the machine.
    pub host: Option<String>,
}

/// Content of `state.json`. Readers ignore unknown keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateFile {
    /// State of the work.
    pub state: Stage,
    /// Start of this process's work in Unix seconds. A resumed run has a new start.
    pub started: u64,
    /// End of the work in Unix seconds.
    #[serde(default)]
    pub ended: Option<u64>,
    /// Total number of steps of the run, once it is known.
    #[serde(default)]
    pub steps: Option<usize>,
    /// Message of the error that stopped it.
    #[serde(default)]
    pub error: Option<String>,
    /// Hint of that error.
    #[serde(default)]
    pub hint: Option<String>,
    /// The process that did the work.
    #[serde(default)]
    pub process: Process,
    /// Version of gradus.
    #[serde(default)]
    pub gradus: String,
}

/// Exclusive right to write to a run directory, held until dropped.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    /// `None` if the file system has no locks.
    _lock: Option<File>,
    state: Option<StateFile>,
    replaced: Option<Replacement>,
}

/// A run that this work replaces.
#[derive(Debug)]
struct Replacement {
    replaced_run: ReplacedRun,
    /// Whether it is restored if this work fails before it has begun.
    restores: bool,
}

impl Claim {
    /// Claims a directory.
    ///
    /// # Errors
    /// [`Error::Input`] if a trainer is running in it; the message names the process. [`Error::Io`] if the lock file cannot be opened.
    pub fn take(directory: &Path) -> Result<Self> {
        let lock = lock(directory, || busy(directory))?;
        Ok(Self { path: directory.to_owned(), _lock: lock, state: None, replaced: None })
    }

    /// Records that the work replaces the run in `replaced_run`. If `restores`, that run is restored when the work fails early.
    pub(super) fn replaces(&mut self, replaced_run: ReplacedRun, restores: bool) {
        self.replaced = Some(Replacement { replaced_run, restores });
    }

    /// Marks the work as begun and removes the run that it replaces, if there is one.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn has_begun(&mut self) -> Result<()> {
        self.replaced.take().map_or(Ok(()), |replaced| replaced.replaced_run.discard())
    }

    /// Records the start of the work in `state.json`.
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

    /// Records the total number of steps of the run.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn set_steps(&mut self, steps: usize) -> Result<()> {
        let Some(state) = &mut self.state else { return Ok(()) };
        state.steps = Some(steps);
        write(&self.path, state)
    }

    /// Records how the work ended and releases the directory. If the work failed before it had begun, the run that it was to replace is
    /// restored.
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

    /// Releases the directory as if the process were killed now.
    #[cfg(test)]
    pub(super) fn let_go(mut self) -> impl Sized {
        (self.state.take(), self.replaced.take())
    }

    fn close(&mut self, stage: Stage, error: Option<String>, hint: Option<String>) -> Result<()> {
        let Some(state) = self.state.take() else { return Ok(()) };
        match self.replaced.take() {
            Some(Replacement { replaced_run, restores: true }) if stage == Stage::Failed => {
                return replaced_run.put_back();
            }
            Some(Replacement { replaced_run, .. }) if stage != Stage::Failed => replaced_run.discard()?,
            _ => {}
        }
        write(&self.path, &StateFile { state: stage, ended: Some(now()), error, hint, ..state })
    }
}

impl Drop for Claim {
    /// Records a failure. A claim that is dropped without [`end`](Self::end) usually means a panic.
    fn drop(&mut self) {
        let reason = if std::thread::panicking() { "a bug: the trainer panicked" } else { "stopped without a reason" };
        // The error is ignored: nothing better can be done, and the free lock shows that no trainer is running.
        let _ = self.close(Stage::Failed, Some(reason.into()), None);
    }
}

/// Exclusive right to train the runs of a sweep, held until dropped.
#[derive(Debug)]
pub struct SweepClaim {
    /// `None` if the file system has no locks.
    _lock: Option<File>,
}

impl SweepClaim {
    /// Claims the directory of a sweep and creates it if it is missing.
    ///
    /// # Errors
    /// [`Error::Input`] if another process trains the runs of a sweep in it; [`Error::Io`].
    pub fn take(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory).map_err(|source| Error::io(directory, source))?;
        let busy = || {
            Error::input(format!("another gradus trains the runs of the sweep in `{}`", directory.display())).with_hint(
                "wait until it has ended, or stop it with Ctrl-C; `--show` prints the finished runs meanwhile",
            )
        };
        Ok(Self { _lock: lock(directory, busy)? })
    }
}

/// Locks a directory for this process. `None` if the file system has no locks and no trainer is running.
fn lock(directory: &Path, busy: impl FnOnce() -> Error) -> Result<Option<File>> {
    let path = directory.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|source| Error::io(&path, source))?;
    let start = std::time::Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(TryLockError::WouldBlock) => return Err(busy()),
            // Some network file systems have no locks. Then the process in `state.json` decides.
            Err(TryLockError::Error(_)) if is_held(directory) => return Err(busy()),
            Err(TryLockError::Error(_)) => return Ok(None),
        }
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

/// Returns true if a trainer is running in a run directory now.
pub fn is_held(directory: &Path) -> bool {
    let Ok(file) = File::open(directory.join(LOCK)) else { return false };
    match file.try_lock_shared() {
        // The lock is released as the file closes at the end of this function.
        Ok(()) => false,
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Error(_)) => match read_state(directory) {
            Ok(Some(state)) => state.state == Stage::Running && state.process.is_alive(),
            _ => false,
        },
    }
}

/// Asks the trainer in a run directory to stop after the current step and a checkpoint, as Ctrl-C does. This does not wait. After a second
/// request the trainer stops at once.
///
/// # Errors
/// [`Error::Input`] if no trainer is running there or it is on another machine.
pub fn interrupt(directory: &Path) -> Result<()> {
    let shown = directory.display();
    let process = match read_state(directory)? {
        Some(StateFile { state: Stage::Running, process, .. }) if is_held(directory) => process,
        _ => return Err(Error::input(format!("no trainer is running in `{shown}`"))),
    };
    let elsewhere = || {
        let host = process.host.clone().unwrap_or_else(|| "another machine".into());
        Error::input(format!("the trainer in `{shown}` is on {host}")).with_hint("stop it there, with Ctrl-C")
    };
    // The pid alone could belong to any other program.
    if !process.is_alive() { Err(elsewhere()) } else { process.interrupt(directory) }
}

/// Reads `state.json`; `None` if the run has none.
///
/// # Errors
/// [`Error::Io`], or [`Error::Data`] if the file is corrupt.
pub fn read_state(directory: &Path) -> Result<Option<StateFile>> {
    let path = directory.join(STATE);
    let text = match files::read_run_text(&path) {
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
    /// Identity of the current process.
    pub fn current() -> Self {
        let pid = std::process::id();
        Self { pid, start_ticks: start_ticks(pid), boot_id: boot_id(), host: host() }
    }

    /// Sends the signal of Ctrl-C.
    #[cfg(unix)]
    fn interrupt(&self, directory: &Path) -> Result<()> {
        use nix::sys::signal::{Signal, kill};
        let pid = nix::unistd::Pid::from_raw(self.pid.cast_signed());
        kill(pid, Signal::SIGINT).map_err(|error| Error::io(directory, error.into()))
    }

    #[cfg(not(unix))]
    fn interrupt(&self, directory: &Path) -> Result<()> {
        let message = format!("the trainer in `{}` cannot be stopped from here on this system", directory.display());
        Err(Error::input(message).with_hint("press Ctrl-C where it was started"))
    }

    /// Returns true if the process is alive on this machine. Properties that the system does not report count as equal.
    fn is_alive(&self) -> bool {
        let same =
            |mine: Option<String>, theirs: &Option<String>| mine.is_none() || theirs.is_none() || mine == *theirs;
        let here = same(host(), &self.host) && same(boot_id(), &self.boot_id);
        let found = start_ticks(self.pid);
        here && found.is_some() && (self.start_ticks.is_none() || found == self.start_ticks)
    }
}

/// Reads field 22 of `/proc/PID/stat`. The name in field 2 may contain anything, so counting begins after it.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn boot_id() -> Option<String> {
    first_line("/proc/sys/kernel/random/boot_id")
}

/// Returns the name of this machine, if the system reports it.
#[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
pub fn host() -> Option<String> {
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
