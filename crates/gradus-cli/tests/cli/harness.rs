//! Fixture of all command-line tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum time until a condition becomes true. It detects hangs and does not measure speed: on an idle machine, the conditions take
/// seconds.
const PATIENCE: Duration = Duration::from_secs(600);

/// Polls until `is_true` returns true. Fails with `what` after the time limit.
#[track_caller]
pub fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < PATIENCE, "never true: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a signal (`-INT`) to a process, or to a group (`-PID`).
#[cfg(unix)]
#[track_caller]
pub fn signal(name: &str, target: &str) {
    let sent = Command::new("kill").args([name, "--", target]).status().expect("`kill` runs");
    assert!(sent.success(), "kill {name} {target}");
}

/// A temporary directory in which the binary runs.
pub struct CliTest {
    directory: tempfile::TempDir,
}

/// Result of a run of the binary.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Path of a tiny model directory in the library's fixtures: `gpt2`, `qwen3` or `qwen3-reward`.
pub fn fixture_model(name: &str) -> String {
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus/tests/fixtures/parity/trajectories/models");
    let path = std::fs::canonicalize(Path::new(models).join(name)).expect("the fixture is part of the repository");
    path.to_str().expect("the path is UTF-8").to_owned()
}

impl CliTest {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a temporary directory can be made") }
    }

    /// Creates a test directory with one file.
    pub fn with(name: &str, text: &str) -> Self {
        let test = Self::new();
        test.write(name, text);
        test
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a file has a parent")).expect("directories can be made");
        std::fs::write(&path, text).expect("files can be written");
        path
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gradus"));
        command
            .args(arguments)
            .current_dir(self.path())
            .env_remove("GRADUS_LOG")
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        command
    }

    /// Runs `gradus ARGUMENTS`. In the output, the path of the test directory is replaced by `[DIR]`.
    pub fn run(&self, arguments: &[&str]) -> Run {
        let output = self.command(arguments).output().expect("the binary runs");
        let filter = |bytes: Vec<u8>| {
            let text = String::from_utf8(bytes).expect("the binary prints UTF-8");
            text.replace(&self.path().display().to_string(), "[DIR]")
        };
        Run { code: output.status.code().unwrap_or(-1), stdout: filter(output.stdout), stderr: filter(output.stderr) }
    }

    /// Runs `gradus ARGUMENTS`, which must fail with `code` and print exactly `stderr`.
    #[track_caller]
    pub fn fails(&self, arguments: &[&str], code: i32, stderr: &str) {
        let run = self.run(arguments);
        assert_eq!(run.stderr, stderr.trim_start_matches('\n'), "stderr of gradus {arguments:?}");
        assert_eq!((run.code, run.stdout.as_str()), (code, ""), "exit code and stdout of gradus {arguments:?}");
    }

    /// Runs `gradus ARGUMENTS`, which must succeed, and returns its stdout.
    #[track_caller]
    pub fn succeeds(&self, arguments: &[&str]) -> String {
        let run = self.run(arguments);
        assert_eq!(run.code, 0, "gradus {arguments:?} failed: {}", run.stderr);
        run.stdout
    }
}
