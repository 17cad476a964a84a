//! Runs untrusted Python programs, such as those of a policy, in a process that can only compute.
//!
//! The host program [registers](register) the command that starts it, and is started again for each run. That child restricts itself and
//! then becomes Python. Enforcement of each bound, on Linux:
//!
//! | bound | enforced by |
//! |---|---|
//! | CPU time | `RLIMIT_CPU`; in wall-clock time, the parent kills the process one second later |
//! | no process without its parent | the kernel kills the process when its parent ends (`PR_SET_PDEATHSIG`) |
//! | memory | `RLIMIT_AS` |
//! | files: no writing, except to `/dev/null` | Landlock; `RLIMIT_FSIZE` 0 |
//! | files: no creation, renaming, removal or change of permissions | Landlock; seccomp for rights and owners |
//! | files: only those of the system's libraries and of Python are read | Landlock |
//! | no network, no sockets | seccomp; Landlock for TCP |
//! | no other processes | seccomp |
//! | no signals to others, no tracing | seccomp and Landlock |
//! | no root privileges | the capabilities are dropped, `no_new_privs` |
//! | output | the parent reads a limited amount, then kills the process |
//!
//! If the kernel has no Landlock, or on another system, no program is run.

#[cfg(target_os = "linux")]
mod confine;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::process::spawn;

/// First argument of a confined child.
const COMMAND: &str = "__sandbox";

/// Exit code of a child that could not confine itself.
pub const UNCONFINED: u8 = 84;

/// Limits of one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SandboxConfig {
    /// The interpreter. Default `python3`.
    pub python: PathBuf,
    /// The time limit of one program in seconds, both of CPU time and of wall-clock time. Default 5.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 600)))]
    pub seconds: u64,
    /// The memory limit of one program in megabytes. Default 256.
    #[cfg_attr(feature = "schema", schemars(range(min = 64, max = 65_536)))]
    pub memory_mb: u64,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self { python: "python3".into(), seconds: 5, memory_mb: 256 }
    }
}

/// Maximum output in bytes. A program that prints more is killed.
const OUTPUT_BYTES: usize = 64 << 10;

/// Maximum length of a program in bytes.
const CODE_BYTES: usize = 1 << 20;

/// How often the state of a running program is checked.
const GLANCE: Duration = Duration::from_millis(2);

struct Starter {
    program: PathBuf,
    arguments: Vec<OsString>,
}

static STARTER: OnceLock<Starter> = OnceLock::new();

/// Registers the command that starts confined programs: `program` with these arguments in front of its own. The program must call
/// [`answer`] before anything else. Only the first call has an effect; returns whether this call was the first.
pub fn register(program: PathBuf, arguments: Vec<OsString>) -> bool {
    STARTER.set(Starter { program, arguments }).is_ok()
}

/// Becomes the confined program if the arguments request it. In that case it returns only after a failure, with the error. The caller
/// writes the error to stderr and exits with [`UNCONFINED`].
pub fn answer(mut arguments: impl Iterator<Item = OsString>) -> Option<String> {
    if arguments.next()? != COMMAND {
        return None;
    }
    Some(become_confined(arguments))
}

/// Message to the child.
#[derive(Debug, Serialize, Deserialize)]
struct Bounds {
    /// Process that starts the child. The child must not outlive it.
    parent: u32,
    seconds: u64,
    memory_bytes: u64,
    readable: Vec<PathBuf>,
}

#[cfg(target_os = "linux")]
fn become_confined(mut arguments: impl Iterator<Item = OsString>) -> String {
    let bounds = arguments.next().and_then(|text| serde_json::from_str::<Bounds>(text.to_str()?).ok());
    let (Some(bounds), Some(program)) = (bounds, arguments.next()) else {
        return "a sandbox needs its bounds and a program".to_owned();
    };
    match confine::confine(&bounds) {
        Ok(()) => confine::become_program(&program, arguments),
        Err(error) => error,
    }
}

#[cfg(not(target_os = "linux"))]
fn become_confined(_: impl Iterator<Item = OsString>) -> String {
    "programs are confined on Linux only".to_owned()
}

/// Runs Python programs, each in a separate process.
#[derive(Debug, Clone)]
pub struct Sandbox {
    config: SandboxConfig,
    /// Path of the interpreter itself, behind wrappers.
    python: PathBuf,
    readable: Vec<PathBuf>,
}

/// Result of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramOutput {
    /// Text that the program printed.
    pub stdout: String,
    /// Text that the program wrote to its error channel.
    pub stderr: String,
    /// How the program ended.
    pub end: End,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It exited with this code.
    Code(i32),
    /// It exceeded its time limit.
    OutOfTime,
    /// It exceeded its output limit.
    TooMuchOutput,
    /// The system killed it: it exceeded its CPU time, or the machine ran out of memory.
    OverLimit,
    /// Another signal ended it, such as that of a crash.
    Killed(i32),
}

impl Sandbox {
    /// Finds Python and runs a test program in the sandbox.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if there is no Python, the system cannot confine it, or a limit is out of range.
    pub fn open(config: &SandboxConfig) -> Result<Self> {
        if !(1..=600).contains(&config.seconds) {
            return Err(Error::config(format!("`seconds` is {}, but must be from 1 to 600", config.seconds)));
        }
        if !(64..=65_536).contains(&config.memory_mb) {
            return Err(Error::config(format!("`memory_mb` is {}, but must be from 64 to 65536", config.memory_mb)));
        }
        if STARTER.get().is_none() {
            return Err(Error::config("this program cannot confine others: it has registered no sandbox")
                .with_hint("call `sandbox::register` first, and `sandbox::answer` at the start of `main`"));
        }
        let (python, readable) = installation(&config.python)?;
        let sandbox = Self { config: config.clone(), python, readable };
        let found = sandbox.run("print(6 * 7)", "")?;
        match found.end {
            End::Code(0) if found.stdout == "42\n" => Ok(sandbox),
            _ => {
                let message = format!("Python does not run in the sandbox ({}): {}", found.end, found.stderr.trim());
                Err(Error::config(message).with_hint("raise `memory_mb`; Linux 6.2 or later with Landlock is needed"))
            }
        }
    }

    /// Runs a program with `input` as its standard input.
    ///
    /// # Errors
    /// Returns [`Error::Episode`] if the process cannot be started. Failures of the program itself are in the [`ProgramOutput`].
    pub fn run(&self, code: &str, input: &str) -> Result<ProgramOutput> {
        if code.len() > CODE_BYTES {
            let stderr = format!("the program has {} bytes, but at most {CODE_BYTES} are run", code.len());
            return Ok(ProgramOutput { stdout: String::new(), stderr, end: End::Code(1) });
        }
        let starter = STARTER.get().ok_or_else(|| Error::episode("no sandbox is registered"))?;
        let bounds = Bounds {
            parent: std::process::id(),
            seconds: self.config.seconds,
            memory_bytes: self.config.memory_mb << 20,
            readable: self.readable.clone(),
        };
        let bounds = serde_json::to_string(&bounds).expect("numbers and paths");
        let mut command = Command::new(&starter.program);
        command
            .args(&starter.arguments)
            .args([COMMAND, &bounds])
            .arg(&self.python)
            .args(["-I", "-X", "utf8", "-c", LOADER])
            .env_clear()
            .envs([("PATH", "/usr/bin:/bin"), ("HOME", "/nonexistent"), ("LANG", "C.UTF-8"), ("OMP_NUM_THREADS", "1")])
            .envs([("OPENBLAS_NUM_THREADS", "1"), ("PYTHONDONTWRITEBYTECODE", "1")])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = spawn(&mut command)
            .map_err(|error| Error::episode(format!("the sandbox could not be started: {error}")))?;
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let text = format!("{}\n{code}{input}", code.len());
        let is_full = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // A program that does not read its input must not block this thread.
            scope.spawn(move || drop(stdin.write_all(text.as_bytes())));
            let stdout = child.stdout.take().expect("stdout is piped");
            let stderr = child.stderr.take().expect("stderr is piped");
            let (stdout, stderr) = (scope.spawn(|| kept(stdout, &is_full)), scope.spawn(|| kept(stderr, &is_full)));
            let is_over = || is_full.load(Ordering::Relaxed) && stdout.is_finished() && stderr.is_finished();
            let end = self.wait(&mut child, is_over);
            kill(&mut child);
            let [stdout, stderr] = [stdout, stderr].map(|channel| channel.join().unwrap_or_default());
            let end = match end? {
                _ if is_full.load(Ordering::Relaxed) => End::TooMuchOutput,
                None => End::OutOfTime,
                Some(status) => ended(status),
            };
            if end == End::Code(UNCONFINED.into()) {
                return Err(Error::episode(stderr.trim().to_owned()));
            }
            Ok(ProgramOutput { stdout, stderr, end })
        })
    }

    /// Waits until the program ends. Returns `None` if its time is over, or if it printed too much and does not end.
    fn wait(&self, child: &mut Child, is_over: impl Fn() -> bool) -> Result<Option<ExitStatus>> {
        // The wall-clock limit is one second longer, so that the CPU limit, which reports more, is reached first.
        let deadline = Instant::now() + Duration::from_secs(self.config.seconds + 1);
        let mut over = 0;
        loop {
            let status = child.try_wait().map_err(|error| Error::episode(format!("the sandbox is lost: {error}")))?;
            if status.is_some() || Instant::now() > deadline {
                return Ok(status);
            }
            // Nothing more is read. The program gets a moment to end by itself.
            over += u32::from(is_over());
            if over > 100 {
                return Ok(None);
            }
            std::thread::sleep(GLANCE);
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::OutOfTime => f.write_str("out of time"),
            Self::TooMuchOutput => f.write_str("too much output"),
            Self::OverLimit => f.write_str("out of CPU time or memory"),
            Self::Killed(signal) => write!(f, "ended by signal {signal}"),
        }
    }
}

/// Reads the program from standard input, whose first line is the program's length in bytes, and runs it in the module `__main__`, where
/// `pickle`, `unittest` and others look for a program's names.
const LOADER: &str = "\
def _program():
    import sys
    size = int(sys.stdin.buffer.readline())
    del globals()['_program']
    return compile(sys.stdin.buffer.read(size).decode(), '<program>', 'exec')
exec(_program())
";

/// Prints the interpreter's path, and then the paths that Python must be able to read, one per line. In a virtual environment, the interpreter
/// is a link, and Python finds the packages by the path of the link. Elsewhere, the folder of a link may be unreadable in the sandbox.
const PATHS: &str = "\
import os, sys, sysconfig
real = os.path.realpath(sys.executable)
found = {real, *sys.path, sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
print(real if sys.prefix == sys.base_prefix else sys.executable)
print('\\n'.join(sorted(path for path in found if path and os.path.exists(path) and path != os.getcwd() and path != '/')))
";

/// Returns the interpreter's path, and the paths that must be readable for it.
fn installation(python: &std::path::Path) -> Result<(PathBuf, Vec<PathBuf>)> {
    let missing = |what: String| {
        Error::config(format!("`{}` cannot be used: {what}", python.display()))
            .with_hint("install Python 3, or name an interpreter with `python`")
    };
    let mut command = Command::new(python);
    command.args(["-I", "-c", PATHS]).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = spawn(&mut command).and_then(Child::wait_with_output).map_err(|error| missing(error.to_string()))?;
    if !output.status.success() {
        return Err(missing(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines().map(PathBuf::from);
    let python = lines.next().ok_or_else(|| missing("it does not say where it is".to_owned()))?;
    let system = ["/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache", "/etc/alternatives"];
    let devices = ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"];
    let all = system.into_iter().chain(devices).map(PathBuf::from).chain(lines);
    Ok((python, all.filter(|path| path.exists()).collect()))
}

/// Reads a channel up to the limit. Sets `is_full` if there is more.
fn kept(mut channel: impl Read, is_full: &AtomicBool) -> String {
    let mut bytes = Vec::new();
    let _ = channel.by_ref().take(OUTPUT_BYTES as u64 + 1).read_to_end(&mut bytes);
    is_full.fetch_or(bytes.len() > OUTPUT_BYTES, Ordering::Relaxed);
    bytes.truncate(OUTPUT_BYTES);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn kill(child: &mut Child) {
    #[cfg(unix)]
    {
        use nix::sys::signal::{Signal, killpg};
        let _ = killpg(nix::unistd::Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(unix)]
fn ended(status: ExitStatus) -> End {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Code(code),
        (None, Some(libc::SIGKILL | libc::SIGXCPU)) => End::OverLimit,
        (None, signal) => End::Killed(signal.unwrap_or(0)),
    }
}

#[cfg(not(unix))]
fn ended(status: ExitStatus) -> End {
    End::Code(status.code().unwrap_or(1))
}
