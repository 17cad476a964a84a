//! The real binary, serving a directory with tiny models.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Creates a directory with tiny models of the library's fixtures.
pub fn folder(models: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in models {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus/tests/fixtures/parity/trajectories/models");
        let (from, to) = (Path::new(fixtures).join(name), folder.path().join(name));
        std::fs::create_dir(&to).expect("a folder");
        for entry in std::fs::read_dir(from).expect("a fixture") {
            let file = entry.expect("a file").path();
            std::fs::copy(&file, to.join(file.file_name().expect("a name"))).expect("copied");
        }
    }
    folder
}

/// A server that is killed when the value is dropped.
pub struct Server {
    child: Child,
    /// Port of the server.
    pub port: u16,
}

impl Server {
    /// Starts a server that trains in `folder`. Port 0 takes a free one.
    pub fn start(folder: &Path, port: u16) -> Self {
        Self::with(folder, port, &[])
    }

    /// Starts a server like [`start`](Self::start), with additional arguments.
    pub fn with(folder: &Path, port: u16, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gradus"));
        command.arg("serve").arg(folder).args(["--training-api", "--json", "--port", &port.to_string()]).args(more);
        command.env("GRADUS_CACHE", folder.join(".cache")).env("HF_HUB_OFFLINE", "1");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the server starts");
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("its output"));
        lines.read_line(&mut line).expect("it tells where it listens");
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        let url = ready["url"].as_str().expect("an address");
        let port = url.trim_end_matches('/').rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        Self { child, port }
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Kills the server, as a failing machine would.
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the directory of a checkpoint.
pub fn checkpoint(folder: &Path, path: &str) -> PathBuf {
    let parts: Vec<&str> = path.trim_start_matches("tinker://").split('/').collect();
    folder.join("tinker").join(parts[0].replace(':', "-")).join(parts[1]).join(parts[2])
}
