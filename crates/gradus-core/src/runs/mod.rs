//! The runs below a directory: their status, settings, results and models.
//!
//! A run is a directory with a `config.yml`, a `metrics.jsonl` or a `state.json`. Its files are not trusted: unreadable ones become
//! [`Entry::problems`] of that run, and the other runs are still listed.

mod audit;
mod curves;
mod entry;
mod labels;
mod manage;
mod settings;
mod snapshots;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

pub use crate::run::log::{last_warnings, log_tail};
pub use audit::{Audit, Finding, Suspicion, audit};
pub use curves::{Series, history, metric_keys, series, sparkline};
pub use entry::{Entry, Figure, Status, short_model};
pub use labels::Labels;
pub use settings::{Difference, Key, Settings, differences};
pub use snapshots::{Snapshot, SnapshotKind, export, snapshots, why_no_best, without_checkpoint};

use crate::error::{Error, Result};
use crate::run::RunDir;
use crate::run::directory::hint_at_runs;
use crate::suggest::nearest;

/// Maximum depth of run directories: runs may be in folders (`runs/demo/ppo`).
const DEPTH_MAX: usize = 8;

/// A directory of runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    root: PathBuf,
}

/// What a search of a library finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// As [`Library::names`].
    pub names: Vec<(String, PathBuf)>,
    /// The first folder that the search did not enter because it is too deep.
    pub unsearched: Option<PathBuf>,
}

impl Library {
    /// Creates a library of the runs below `root`. A directory that does not exist has no runs.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Path of the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns names and paths of all runs, sorted by name. A name is the path below the root, with `/`.
    pub fn names(&self) -> Vec<(String, PathBuf)> {
        self.search().names
    }

    /// Searches the directory once, for the names and for what was left out.
    pub fn search(&self) -> Found {
        let mut search = Search::default();
        search.walk(&self.root, "", 0);
        search.found.sort();
        Found { names: search.found, unsearched: search.too_deep.into_iter().min() }
    }

    /// Returns all runs, sorted by name.
    pub fn entries(&self) -> Vec<Entry> {
        Entry::read_all(self.names())
    }

    /// Finds a run by its name, by the end of its name (`ppo` for `demo/ppo`), or by its path.
    ///
    /// # Errors
    /// [`Error::Input`] with the most similar name, or with all matches.
    pub fn find(&self, name: &str) -> Result<(String, PathBuf)> {
        let names = self.names();
        let requested = name.trim_end_matches('/');
        if let Some(found) = names.iter().find(|(known, _)| known == requested) {
            return Ok(found.clone());
        }
        let path = Path::new(name);
        if is_run(path) {
            // A path to a listed run gets the run's name.
            let same = |listed: &Path| listed.canonicalize().ok() == path.canonicalize().ok();
            let listed = names.iter().find(|(_, listed)| same(listed)).map(|(known, _)| known.clone());
            return Ok((listed.unwrap_or_else(|| requested.to_owned()), path.to_owned()));
        }
        let end = format!("/{requested}");
        let fitting: Vec<_> = names.iter().filter(|(known, _)| known.ends_with(&end)).collect();
        match fitting.as_slice() {
            [one] => return Ok((*one).clone()),
            [] => {}
            several => {
                let several: Vec<String> = several.iter().map(|(known, _)| format!("`{known}`")).collect();
                return Err(
                    Error::input(format!("`{name}` may be {}", several.join(" or "))).with_hint("write the whole name")
                );
            }
        }
        if path.is_dir() {
            let message = format!("`{name}` is not a run directory: it has neither `config.yml` nor `metrics.jsonl`");
            return Err(hint_at_runs(Error::input(message), path));
        }
        let shown = self.root.display();
        let error = Error::input(format!("there is no run `{name}` in `{shown}`"));
        let ends = names.iter().filter_map(|(known, _)| known.rsplit('/').next());
        let known = names.iter().map(|(known, _)| known.as_str()).chain(ends);
        Err(match nearest(requested, known) {
            Some(near) => error.with_hint(format!("did you mean `{near}`?")),
            None if names.is_empty() => error.with_hint("the directory has no runs; `--runs-dir DIR` sets another one"),
            None => error.with_hint("`gradus runs list` shows the names; `--runs-dir DIR` sets another directory"),
        })
    }

    /// Finds a run as [`Library::find`] does, and reads it.
    ///
    /// # Errors
    /// As [`Library::find`].
    pub fn entry(&self, name: &str) -> Result<Entry> {
        let (name, path) = self.find(name)?;
        Ok(Entry::read(name, &path))
    }
}

/// Returns true if the directory is that of a run, or of one that a kill left while another was to replace it.
pub fn is_run(path: &Path) -> bool {
    ["config.yml", "metrics.jsonl", "state.json"].iter().any(|name| path.join(name).is_file())
        || RunDir::at(path).replaced_run().is_some()
}

/// A search for runs. Directories that cannot be read are skipped, as they have no name to list.
#[derive(Default)]
struct Search {
    found: Vec<(String, PathBuf)>,
    /// Folders below the maximum depth.
    too_deep: Vec<PathBuf>,
    /// Real paths of the directories. A link to a parent must not be followed forever.
    seen: BTreeSet<PathBuf>,
}

impl Search {
    fn walk(&mut self, at: &Path, name: &str, depth: usize) {
        let Ok(real) = at.canonicalize() else { return };
        if !self.seen.insert(real) {
            return;
        }
        if depth > 0 && is_run(at) {
            self.found.push((name.to_owned(), at.to_owned()));
            return;
        }
        let Ok(entries) = fs::read_dir(at) else { return };
        let mut paths: Vec<PathBuf> =
            entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        // A run with a link to it has its own name, not that of the link.
        paths.sort_by_cached_key(|path| path.is_symlink());
        for path in paths {
            let Some(own) = path.file_name().map(|own| own.to_string_lossy().into_owned()) else { continue };
            if own.starts_with('.') {
                continue;
            }
            if depth == DEPTH_MAX {
                self.too_deep.push(path);
            } else {
                let name = if name.is_empty() { own } else { format!("{name}/{own}") };
                self.walk(&path, &name, depth + 1);
            }
        }
    }
}

impl Entry {
    /// Opens the run's directory.
    ///
    /// # Errors
    /// As [`RunDir::open`].
    pub fn directory(&self) -> Result<RunDir> {
        RunDir::open(&self.path)
    }
}

#[cfg(test)]
mod tests;
