//! Python programs of strangers, such as a policy, in a process that can do nothing but compute.
//!
//! A program that [registers](register) how it is started starts itself once more for each run. That child limits itself and
//! then becomes Python. What enforces each bound, on Linux:
//!
//! | bound | enforced by |
//! |---|---|
//! | processor time | `RLIMIT_CPU`; by the clock, the parent ends the process after the same time |
//! | memory | `RLIMIT_AS` |
//! | files: none is written, made, renamed, removed or given other rights | Landlock; `RLIMIT_FSIZE` 0; seccomp for rights and owners |
//! | files: only those of the system's libraries and of Python are read | Landlock |
//! | no network, no sockets | seccomp; Landlock for TCP |
//! | no further processes | seccomp |
//! | no signals to others, no tracing | seccomp and Landlock |
//! | no rights of root | the capabilities are dropped, `no_new_privs` |
//! | what it prints | the parent reads so much and no more, then ends the process |
//!
//! Where the kernel has no Landlock, or on another system, nothing is run.

#[cfg(target_os = "linux")]
mod confine;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The first argument of a confined child.
const COMMAND: &str = "__sandbox";

/// How a child ends that could not confine itself.
pub const UNCONFINED: u8 = 84;

/// The bounds of one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SandboxConfig {
    /// The interpreter. Default `python3`.
    pub python: PathBuf,
    /// Seconds that one program may take, of the processor and by the clock. Default 5.
    pub seconds: u64,
    /// Megabytes of memory that one program may hold. Default 256.
    pub memory_mb: u64,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self { python: "python3".into(), seconds: 5, memory_mb: 256 }
    }
}

/// Bytes of output that are kept; a program that prints more is ended.
const OUTPUT_BYTES: usize = 64 << 10;

/// The longest program in bytes.
const CODE_BYTES: usize = 1 << 20;

/// How often a running program is looked at.
const GLANCE: Duration = Duration::from_millis(2);

struct Starter {
    program: PathBuf,
    arguments: Vec<OsString>,
}

static STARTER: OnceLock<Starter> = OnceLock::new();

/// From now on, confined programs are started by `program` with these arguments before its own. It must call [`answer`] before
/// anything else. The first call decides; returns whether this one was it.
pub fn register(program: PathBuf, arguments: Vec<OsString>) -> bool {
    STARTER.set(Starter { program, arguments }).is_ok()
}

/// Becomes the confined program if the arguments ask for one: then it returns only when that failed, with what went wrong. The
/// caller writes that to the error channel and ends with [`UNCONFINED`].
pub fn answer(mut arguments: impl Iterator<Item = OsString>) -> Option<String> {
    if arguments.next()? != COMMAND {
        return None;
    }
    Some(become_confined(arguments))
}

/// What the child is told.
#[derive(Debug, Serialize, Deserialize)]
struct Bounds {
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

/// Runs Python programs, each in a process of its own.
#[derive(Debug, Clone)]
pub struct Sandbox {
    config: SandboxConfig,
    /// The interpreter's own path, past links and wrappers.
    python: PathBuf,
    readable: Vec<PathBuf>,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What it printed.
    pub stdout: String,
    /// What it wrote to its error channel.
    pub stderr: String,
    /// How it ended.
    pub end: End,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself, with this code.
    Code(i32),
    /// It took too long.
    OutOfTime,
    /// It printed too much.
    TooMuchOutput,
    /// By a signal: out of memory, or of processor time.
    Killed(i32),
}

impl Sandbox {
    /// Finds Python and runs a program in it, to see that both work.
    ///
    /// # Errors
    /// [`Error::Config`] where there is no Python, the system cannot confine it, or a bound is out of its range.
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

    /// Runs a program, which reads `input`.
    ///
    /// # Errors
    /// [`Error::Episode`] when the process cannot be started. What the program does wrong is its [`Outcome`].
    pub fn run(&self, code: &str, input: &str) -> Result<Outcome> {
        if code.len() > CODE_BYTES {
            let stderr = format!("the program has {} bytes, but at most {CODE_BYTES} are run", code.len());
            return Ok(Outcome { stdout: String::new(), stderr, end: End::Code(1) });
        }
        let starter = STARTER.get().ok_or_else(|| Error::episode("no sandbox is registered"))?;
        let bounds = Bounds {
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
        let mut child =
            command.spawn().map_err(|error| Error::episode(format!("the sandbox could not be started: {error}")))?;
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let text = format!("{}\n{code}{input}", code.len());
        std::thread::scope(|scope| {
            // A program that reads nothing must not stop anybody.
            scope.spawn(move || drop(stdin.write_all(text.as_bytes())));
            let stdout = child.stdout.take().expect("stdout is piped");
            let stderr = child.stderr.take().expect("stderr is piped");
            let (stdout, stderr) = (scope.spawn(|| kept(stdout)), scope.spawn(|| kept(stderr)));
            let end = self.wait(&mut child, || stdout.is_finished() && stderr.is_finished());
            kill(&mut child);
            let (stdout, is_out) = stdout.join().unwrap_or_default();
            let (stderr, is_err) = stderr.join().unwrap_or_default();
            let end = match end? {
                _ if is_out || is_err => End::TooMuchOutput,
                None => End::OutOfTime,
                Some(status) => ended(status),
            };
            if end == End::Code(UNCONFINED.into()) {
                return Err(Error::episode(stderr.trim().to_owned()));
            }
            Ok(Outcome { stdout, stderr, end })
        })
    }

    /// Waits until the program ends, its time is over (none), or it has printed all that is read.
    fn wait(&self, child: &mut Child, is_drained: impl Fn() -> bool) -> Result<Option<ExitStatus>> {
        // The clock is a second more generous than the processor's limit, which says more.
        let deadline = Instant::now() + Duration::from_secs(self.config.seconds + 1);
        let mut drained = 0;
        loop {
            let status = child.try_wait().map_err(|error| Error::episode(format!("the sandbox is lost: {error}")))?;
            if status.is_some() || Instant::now() > deadline {
                return Ok(status);
            }
            // Both channels are at their end, or full: give it a moment to end by itself.
            drained += u32::from(is_drained());
            if drained > 100 {
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
            Self::Killed(signal) => write!(f, "ended by signal {signal}"),
        }
    }
}

/// Reads the program from standard input, whose first line is its length in bytes, and runs it as `__main__`.
const LOADER: &str = "\
import sys
_n = int(sys.stdin.buffer.readline())
_code = sys.stdin.buffer.read(_n).decode()
_main = {'__name__': '__main__', '__builtins__': __builtins__}
exec(compile(_code, '<program>', 'exec'), _main)
";

/// Prints what Python needs to read, one path a line.
const PATHS: &str = "\
import os, sys, sysconfig
found = {os.path.realpath(sys.executable), *sys.path, sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
print(os.path.realpath(sys.executable))
print('\\n'.join(sorted(path for path in found if path and os.path.exists(path) and path != os.getcwd() and path != '/')))
";

/// The interpreter's path, and what must be readable for it.
fn installation(python: &std::path::Path) -> Result<(PathBuf, Vec<PathBuf>)> {
    let missing = |what: String| {
        Error::config(format!("`{}` cannot be used: {what}", python.display()))
            .with_hint("install Python 3, or name an interpreter with `python`")
    };
    let output = Command::new(python)
        .args(["-I", "-c", PATHS])
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| missing(error.to_string()))?;
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

/// What comes out of a channel, and whether it was cut.
fn kept(mut channel: impl Read) -> (String, bool) {
    let mut bytes = Vec::new();
    let _ = channel.by_ref().take(OUTPUT_BYTES as u64 + 1).read_to_end(&mut bytes);
    let is_cut = bytes.len() > OUTPUT_BYTES;
    bytes.truncate(OUTPUT_BYTES);
    (String::from_utf8_lossy(&bytes).into_owned(), is_cut)
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
    status.code().map_or_else(|| End::Killed(status.signal().unwrap_or(0)), End::Code)
}

#[cfg(not(unix))]
fn ended(status: ExitStatus) -> End {
    End::Code(status.code().unwrap_or(1))
}
