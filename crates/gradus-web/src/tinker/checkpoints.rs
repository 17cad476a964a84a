//! Paths of checkpoints: `tinker/RUN/weights/NAME` and `tinker/RUN/sampler_weights/NAME` in the served folder. Each is an adapter in the
//! library's format. Checkpoints for training also contain the state of the optimizer.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use gradus::calendar::utc;
use gradus::files::atomic;
use gradus::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Prefix of the addresses of checkpoints.
const SCHEME: &str = "tinker://";

/// File with the metadata of a checkpoint.
const FILE: &str = "tinker.json";

/// Last state of a model, from which a restarted server resumes.
const STATE: &str = ".state";

/// Adapters of unnamed samplers.
const SAMPLERS: &str = ".samplers";

/// Name of the last state of a model that has ended.
const FINAL: &str = "final";

/// Maximum length of a name.
const NAME_MAX: usize = 128;

/// Purpose of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// To resume training: `weights`.
    Training,
    /// To sample: `sampler_weights`.
    Sampling,
}

impl Use {
    /// Returns the name of the folder, which is also a part of the address.
    pub fn segment(self) -> &'static str {
        match self {
            Self::Training => "weights",
            Self::Sampling => "sampler_weights",
        }
    }

    /// Returns the purpose in clients' terms.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Sampling => "sampler",
        }
    }
}

/// Address of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointAddress {
    /// Id of the model that wrote it.
    pub run: String,
    /// Purpose of the checkpoint.
    pub of: Use,
    /// Name of the checkpoint.
    pub name: String,
}

/// Metadata of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointMetadata {
    /// Name of the base model.
    pub base_model: String,
    /// Rank r of the adapter.
    pub rank: usize,
    /// Time when it was written, in seconds since 1970.
    pub time: u64,
    /// Metadata from the client.
    pub user_metadata: Option<Value>,
    /// Number of the last request that it includes.
    pub seq: u64,
}

impl CheckpointAddress {
    /// Parses an address.
    ///
    /// # Errors
    /// The address is malformed.
    pub fn parse(path: &str) -> Result<Self> {
        let wrong = || {
            Error::input(format!("`{path}` is not the address of a checkpoint"))
                .with_hint("an address looks like `tinker://RUN/weights/NAME`, as `save_state` returns it")
        };
        let parts: Vec<&str> = path.strip_prefix(SCHEME).ok_or_else(wrong)?.split('/').collect();
        let [run, segment, name] = parts[..] else { return Err(wrong()) };
        let of = [Use::Training, Use::Sampling].into_iter().find(|of| of.segment() == segment).ok_or_else(wrong)?;
        let is_run =
            !run.is_empty() && run.len() <= NAME_MAX && run.bytes().all(|b| b.is_ascii_alphanumeric() || b == b':');
        if !is_run {
            return Err(wrong());
        }
        check_name(name)?;
        Ok(Self { run: run.to_owned(), of, name: name.to_owned() })
    }

    /// Creates the address of a model's checkpoint.
    ///
    /// # Errors
    /// The name is not a valid folder name on all systems.
    pub fn new(run: &str, of: Use, name: &str) -> Result<Self> {
        check_name(name)?;
        Ok(Self { run: run.to_owned(), of, name: name.to_owned() })
    }

    /// Returns the address as text.
    pub fn path(&self) -> String {
        format!("{SCHEME}{}/{}/{}", self.run, self.of.segment(), self.name)
    }

    /// Returns the directory below `folder`.
    pub fn directory(&self, folder: &Path) -> PathBuf {
        run_directory(folder, &self.run).join(self.of.segment()).join(&self.name)
    }

    /// Returns the metadata.
    ///
    /// # Errors
    /// The checkpoint does not exist.
    pub fn about(&self, folder: &Path) -> Result<CheckpointMetadata> {
        let directory = self.directory(folder);
        if !directory.is_dir() {
            return Err(Error::input(format!("there is no checkpoint `{}`", self.path())));
        }
        read_about(&directory)
    }
}

/// Rejects names that could lead outside the folder.
fn check_name(name: &str) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let fits = (1..=NAME_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_plain);
    match fits {
        true => Ok(()),
        false => Err(Error::input(format!("`{name}` cannot be the name of a checkpoint"))
            .with_hint(format!("use 1 to {NAME_MAX} letters, digits, `-`, `_` and `.`; the first must not be `.`"))),
    }
}

/// Returns the folder of a model. Its id contains colons, which some file systems do not allow.
fn run_directory(folder: &Path, run: &str) -> PathBuf {
    folder.join(run.replace(':', "-"))
}

/// Returns the directory of a model's last state.
pub fn state(folder: &Path, run: &str) -> PathBuf {
    run_directory(folder, run).join(STATE)
}

/// Returns the directory of an unnamed sampler's adapter, relative to `folder`.
pub fn sampler(run: &str, seq: u64) -> String {
    format!("{}/{SAMPLERS}/{seq}", run.replace(':', "-"))
}

/// Removes the adapters of unnamed samplers that are not used.
pub fn drop_samplers(folder: &Path, used: &BTreeSet<String>) {
    for run in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        for sampler in std::fs::read_dir(run.path().join(SAMPLERS)).into_iter().flatten().flatten() {
            let name = format!("{}/{SAMPLERS}/{}", run.file_name().display(), sampler.file_name().display());
            if !used.contains(&name) {
                // It may have been removed already.
                let _ = std::fs::remove_dir_all(sampler.path());
            }
        }
    }
}

/// Repairs files that a killed server left incomplete.
///
/// # Errors
/// A file cannot be removed or renamed.
pub fn recover(folder: &Path) -> Result<()> {
    for run in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let within = [Use::Training.segment(), Use::Sampling.segment(), SAMPLERS].map(|name| run.join(name));
        for directory in [run].into_iter().chain(within).filter(|path| path.is_dir()) {
            atomic::recover(&directory)?;
        }
    }
    Ok(())
}

/// Turns the last state of a model that has ended, if any, into a checkpoint.
///
/// # Errors
/// It cannot be renamed.
pub fn keep_state(folder: &Path, run: &str) -> Result<()> {
    let state = state(folder, run);
    if !state.is_dir() {
        return Ok(());
    }
    let weights = run_directory(folder, run).join(Use::Training.segment());
    std::fs::create_dir_all(&weights).map_err(|error| Error::io(&weights, error))?;
    let free = (1..).map(|i| if i == 1 { FINAL.to_owned() } else { format!("{FINAL}-{i}") });
    let to = free.map(|name| weights.join(name)).find(|path| !path.exists()).expect("there is a free number");
    std::fs::rename(&state, &to).map_err(|error| Error::io(&to, error))
}

/// Writes a checkpoint: the files of `fill` and the metadata. It replaces what `directory` holds, which belongs to the server.
///
/// # Errors
/// The error of `fill`, or the metadata cannot be written.
pub fn write(directory: &Path, about: &CheckpointMetadata, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    atomic::write_dir(directory, |path| {
        fill(path)?;
        let text = serde_json::to_vec_pretty(about).expect("plain data");
        atomic::write_bytes(&path.join(FILE), &text)
    })
}

/// Reads the metadata of a checkpoint.
///
/// # Errors
/// They are missing or malformed.
pub fn read_about(directory: &Path) -> Result<CheckpointMetadata> {
    let path = directory.join(FILE);
    let text = std::fs::read(&path).map_err(|error| Error::io(&path, error))?;
    serde_json::from_slice(&text).map_err(|error| Error::model(&path, format!("broken JSON: {error}")))
}

/// Returns the current time in seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs())
}

/// Formats a time for clients, in UTC.
pub fn time(seconds: u64) -> String {
    utc(seconds, "%Y-%m-%dT%H:%M:%SZ")
}

/// A checkpoint on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Address of the checkpoint.
    pub address: CheckpointAddress,
    /// Metadata of the checkpoint.
    pub about: CheckpointMetadata,
    /// Size of its files.
    bytes: u64,
}

impl Checkpoint {
    /// Describes the checkpoint for clients.
    pub fn described(&self) -> Value {
        let Self { address, about, bytes } = self;
        json!({
            "checkpoint_id": format!("{}/{}", address.of.segment(), address.name),
            "checkpoint_type": address.of.kind(),
            "time": time(about.time),
            "tinker_path": address.path(),
            "size_bytes": bytes,
            "public": false,
            "user_metadata": about.user_metadata,
            "expires_at": null,
        })
    }
}

/// Lists the checkpoints of a run, the newest last.
pub fn list(folder: &Path, run: &str) -> Vec<Checkpoint> {
    let mut found = Vec::new();
    for of in [Use::Training, Use::Sampling] {
        let within = run_directory(folder, run).join(of.segment());
        for entry in std::fs::read_dir(within).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let (Ok(address), Ok(about)) = (CheckpointAddress::new(run, of, &name), read_about(&entry.path())) else {
                continue;
            };
            let files = std::fs::read_dir(entry.path()).into_iter().flatten().flatten();
            let bytes: u64 = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
            found.push(Checkpoint { address, about, bytes });
        }
    }
    found.sort_by(|a, b| (a.about.time, &a.address.name).cmp(&(b.about.time, &b.address.name)));
    found
}

/// Returns the ids of the models that have a folder, sorted, so that the pages of a list fit together.
pub fn runs(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir());
    // An id contains no hyphen: see `run_directory`.
    let mut runs: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().replace('-', ":")).collect();
    runs.sort();
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_nowhere_else() {
        let address = CheckpointAddress::parse("tinker://s1:train:0/weights/step-3").expect("an address");
        assert_eq!(address.path(), "tinker://s1:train:0/weights/step-3");
        assert_eq!(address.directory(Path::new("/f")), Path::new("/f/s1-train-0/weights/step-3"));
        for wrong in [
            "",
            "tinker://",
            "tinker://a/weights",
            "tinker://a/weights/..",
            "tinker://../weights/x",
            "tinker://a/b/c",
            "tinker://a/weights/x/y",
            "tinker://a/weights/.state",
            "tinker://a/weights/x\\y",
            "/etc/passwd",
            "file://a/weights/x",
        ] {
            assert!(CheckpointAddress::parse(wrong).is_err(), "{wrong}");
        }
        assert!(CheckpointAddress::new("a", Use::Training, &"x".repeat(129)).is_err());
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        // Expected values from `date -u -d @SECONDS +%FT%TZ` of GNU coreutils.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_764_115_199, "2025-11-25T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(time(seconds), text);
        }
    }
}
