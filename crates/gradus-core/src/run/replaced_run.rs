//! A run that another one replaces. Its files are moved aside until the new run has begun, and moved back if it never begins.
//!
//! The files move into `.replaced` inside the directory. During the move this folder is named `.replacing`, so that a kill at any moment
//! can be repaired: files in `.replacing` belong back where they were; with a `.replaced`, all other files are the new run's. `config.yml`
//! moves last and returns first, so the directory always states which run it holds.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::files::atomic;

const MOVING: &str = ".replacing";
const MOVED: &str = ".replaced";

/// A replaced run whose files have been moved aside.
#[derive(Debug)]
#[must_use = "a run that is out of the way is thrown away or put back"]
pub(super) struct ReplacedRun {
    directory: PathBuf,
    entries: &'static [&'static str],
}

impl ReplacedRun {
    /// Moves those of `entries` aside that exist in `directory`. Each move is a rename: nothing is copied, and a failure or a kill loses
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Io`]; all files are then back in place.
    pub fn move_aside(directory: &Path, entries: &'static [&'static str]) -> Result<Self> {
        let moving = directory.join(MOVING);
        fs::create_dir(&moving).map_err(|source| Error::io(&moving, source))?;
        let moved = (|| {
            // In reverse, so that `config.yml`, the first entry, moves last.
            for entry in entries.iter().rev() {
                let from = directory.join(entry);
                if from.symlink_metadata().is_ok() {
                    fs::rename(&from, moving.join(entry)).map_err(|source| Error::io(&from, source))?;
                }
            }
            fs::rename(&moving, directory.join(MOVED)).map_err(|source| Error::io(&moving, source))
        })();
        if let Err(error) = moved {
            return_from(&moving, directory)?;
            return Err(error);
        }
        Ok(Self { directory: directory.to_owned(), entries })
    }

    /// Returns the folder of a replaced run that a killed process left in `directory`, and whether all of its files are there.
    pub fn left_in(directory: &Path) -> Option<(PathBuf, bool)> {
        let is_run = |folder: &PathBuf| folder.join("config.yml").is_file();
        let (moving, moved) = (directory.join(MOVING), directory.join(MOVED));
        // In `.replacing`, `config.yml` is the last file to arrive and the first to leave.
        let is_moving = is_run(&moving) || (moving.is_dir() && directory.join("config.yml").is_file());
        if is_moving { Some((moving, false)) } else { is_run(&moved).then_some((moved, true)) }
    }

    /// Returns the replaced run that a killed process left in `directory`. Files of an unfinished move are put back first.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn recover(directory: &Path, entries: &'static [&'static str]) -> Result<Option<Self>> {
        let moving = directory.join(MOVING);
        if moving.is_dir() {
            return_from(&moving, directory)?;
        }
        Ok(directory.join(MOVED).is_dir().then(|| Self { directory: directory.to_owned(), entries }))
    }

    /// Removes the replaced run, after the new one has begun.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn discard(self) -> Result<()> {
        atomic::remove_dir(&self.directory.join(MOVED))
    }

    /// Puts the replaced run back, because the new one never began.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn put_back(self) -> Result<()> {
        remove_entries(&self.directory, self.entries)?;
        let (moved, moving) = (self.directory.join(MOVED), self.directory.join(MOVING));
        fs::rename(&moved, &moving).map_err(|source| Error::io(&moved, source))?;
        return_from(&moving, &self.directory)
    }
}

/// Moves everything in `moving` back into `directory` and removes `moving`.
fn return_from(moving: &Path, directory: &Path) -> Result<()> {
    let back = || {
        let mut names = fs::read_dir(moving)?
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<std::io::Result<Vec<_>>>()?;
        names.sort_by_key(|name| name != "config.yml");
        names.iter().try_for_each(|name| fs::rename(moving.join(name), directory.join(name)))?;
        fs::remove_dir(moving)
    };
    back().map_err(|source| Error::io(moving, source))
}

/// Removes those of `entries` that exist in `directory`.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn remove_entries(directory: &Path, entries: &[&str]) -> Result<()> {
    for entry in entries {
        let path = directory.join(entry);
        let removed = match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&path),
            Ok(_) => fs::remove_file(&path),
            Err(_) => Ok(()),
        };
        removed.map_err(|source| Error::io(&path, source))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: [&str; 3] = ["config.yml", "metrics.jsonl", "model"];

    fn old_run() -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("config.yml"), "old").expect("written");
        fs::create_dir(directory.path().join("model")).expect("created");
        fs::write(directory.path().join("model/config.json"), "old").expect("written");
        fs::write(directory.path().join("notes.txt"), "mine").expect("written");
        directory
    }

    /// The run's `config.yml`, whether it has a model and metrics, and all other names in the directory.
    fn seen(directory: &Path) -> (Option<String>, bool, bool, Vec<String>) {
        let mut names: Vec<String> = fs::read_dir(directory)
            .expect("readable")
            .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.retain(|name| !ENTRIES.contains(&name.as_str()));
        names.sort();
        let config = fs::read_to_string(directory.join("config.yml")).ok();
        let has = |name: &str| directory.join(name).exists();
        (config, has("model/config.json"), has("metrics.jsonl"), names)
    }

    #[test]
    fn a_replaced_run_is_thrown_away_or_comes_back_whole() {
        let whole = (Some("old".to_owned()), true, false, vec!["notes.txt".to_owned()]);
        for begins in [true, false] {
            let directory = old_run();
            let at = directory.path();
            let replaced_run = ReplacedRun::move_aside(at, &ENTRIES).expect("moved");
            assert_eq!(seen(at), (None, false, false, vec![".replaced".into(), "notes.txt".into()]));
            fs::write(at.join("config.yml"), "new").expect("written");
            fs::write(at.join("metrics.jsonl"), "{}").expect("written");
            match begins {
                true => replaced_run.discard().expect("removed"),
                false => replaced_run.put_back().expect("put back"),
            }
            let new = (Some("new".to_owned()), false, true, vec!["notes.txt".to_owned()]);
            assert_eq!(seen(at), if begins { new } else { whole.clone() });
        }
    }

    #[test]
    fn what_a_kill_left_on_its_way_comes_back() {
        let directory = old_run();
        let at = directory.path();
        // Killed while the old files were moving.
        fs::create_dir(at.join(MOVING)).expect("created");
        fs::rename(at.join("model"), at.join(MOVING).join("model")).expect("moved");
        assert!(ReplacedRun::recover(at, &ENTRIES).expect("repaired").is_none());
        assert_eq!(seen(at), (Some("old".into()), true, false, vec!["notes.txt".into()]));
        // Killed after all files had moved and new ones were written.
        drop(ReplacedRun::move_aside(at, &ENTRIES).expect("moved"));
        fs::write(at.join("metrics.jsonl"), "{}").expect("written");
        ReplacedRun::recover(at, &ENTRIES).expect("read").expect("one").put_back().expect("put back");
        assert_eq!(seen(at), (Some("old".into()), true, false, vec!["notes.txt".into()]));
    }
}
