//! Writes files and directories atomically.
//!
//! The content is written to a temporary sibling (`.NAME.tmp-PID-N`), flushed to disk, and renamed. A directory cannot be renamed
//! over another one, so the old one is first renamed to `.NAME.old-PID-N`. If the process is killed between the two renames,
//! [`recover`] repairs the directory. A program that ends early on request, as on Ctrl-C, calls [`remove_unfinished`] before.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use super::durable;
use crate::error::{Error, Result};

/// Writes `path` through `write`. On any failure `path` is unchanged.
///
/// # Errors
/// The error of `write`, or [`Error::Io`] with the final path.
pub fn write_file(path: &Path, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let temporary = sibling(path, "tmp");
    let _registered = Unfinished::new(&temporary);
    let written = (|| {
        let mut file = BufWriter::new(File::create_new(&temporary)?);
        write(&mut file)?;
        file.flush()?;
        durable::sync(file.get_ref())?;
        drop(file);
        fs::rename(&temporary, path)?;
        sync_directory(parent(path))
    })();
    written.map_err(|source| {
        // The file may never have been created; the first error is the one to report.
        let _ = fs::remove_file(&temporary);
        Error::io(path, source)
    })
}

/// Writes `bytes` to `path` atomically.
///
/// # Errors
/// [`Error::Io`] with the final path.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    write_file(path, |file| file.write_all(bytes))
}

/// Writes `path` through `write`, which creates a file under the path it is given. On any failure `path` is unchanged.
///
/// That path is in a directory of its own. So additional files of a library, such as a journal or a temporary file, are removed
/// with the directory, even after a kill.
///
/// # Errors
/// The error of `write`, or [`Error::Io`] with the final path.
pub fn write_path(path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let directory = sibling(path, "tmp");
    let _registered = Unfinished::new(&directory);
    let temporary = directory.join(path.file_name().unwrap_or_default());
    let renamed = || {
        durable::sync(&File::open(&temporary)?)?;
        fs::rename(&temporary, path)?;
        sync_directory(parent(path))
    };
    let written = fs::create_dir(&directory)
        .map_err(|source| Error::io(path, source))
        .and_then(|()| write(&temporary))
        .and_then(|()| renamed().map_err(|source| Error::io(path, source)));
    // The directory may not exist. If writing succeeded, `path` is complete by now.
    let _ = fs::remove_dir_all(&directory);
    written
}

/// Fills a new directory through `fill` and renames it to `path`, replacing an existing directory.
///
/// `fill` need not flush its files. On any failure `path` is unchanged.
///
/// # Errors
/// The error of `fill`, or [`Error::Io`].
pub fn write_dir(path: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    fill_dir(path, fill)?.finish()
}

/// The first half of [`write_dir`]: fills a new directory next to `path`. [`FilledDir::finish`] is the second half. It needs only the disk,
/// so it may run on another thread.
///
/// # Errors
/// The error of `fill`, or [`Error::Io`].
pub fn fill_dir(path: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<FilledDir> {
    if let Some(missing) = path.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.is_dir()) {
        fs::create_dir_all(missing)
            .and_then(|()| sync_directory(parent(missing)))
            .map_err(|source| Error::io(missing, source))?;
    }
    let temporary = sibling(path, "tmp");
    let registered = Unfinished::new(&temporary);
    let filled = fs::create_dir(&temporary).map_err(|source| Error::io(path, source)).and_then(|()| fill(&temporary));
    if filled.is_err() {
        // The directory may not exist; the first error is the one to report.
        let _ = fs::remove_dir_all(&temporary);
    }
    filled.map_err(|error| error.relocated(&temporary, path))?;
    Ok(FilledDir { temporary, path: path.to_owned(), _registered: registered })
}

/// A complete directory that is neither flushed to disk nor under its final name. Dropping it removes it.
#[derive(Debug)]
#[must_use = "it is removed unless it is finished"]
pub struct FilledDir {
    temporary: PathBuf,
    path: PathBuf,
    _registered: Unfinished,
}

impl FilledDir {
    /// Where the files are until [`finish`](Self::finish).
    pub fn location(&self) -> &Path {
        &self.temporary
    }

    /// Flushes the files to disk and renames the directory, replacing an existing one. On any failure the final path is unchanged.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(self) -> Result<()> {
        // A directory inside another one that is being written is flushed with that one.
        let is_part = parent(&self.path).ancestors().any(|outer| outer.file_name().is_some_and(is_temporary));
        let flushed = if is_part { Ok(()) } else { sync_tree(&self.temporary) };
        let finished = flushed.and_then(|()| replace(&self.temporary, &self.path));
        finished.map_err(|error| error.relocated(&self.temporary, &self.path))
    }
}

impl Drop for FilledDir {
    fn drop(&mut self) {
        // After a successful `finish`, nothing has this name.
        let _ = fs::remove_dir_all(&self.temporary);
    }
}

/// Creates the directory `to` with the files of `from` as hard links, or as copies if links are not possible. Files may share their
/// bytes this way if they are only ever replaced, never written to.
///
/// # Errors
/// [`Error::Io`].
pub fn link_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to).map_err(|source| Error::io(to, source))?;
    link_files(from, to)
}

/// Like [`link_tree`], but into an existing directory.
///
/// # Errors
/// [`Error::Io`].
pub fn link_files(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).map_err(|source| Error::io(from, source))? {
        let entry = entry.map_err(|source| Error::io(from, source))?;
        let (path, at) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            link_tree(&path, &at)?;
        } else if fs::hard_link(&path, &at).is_err() {
            fs::copy(&path, &at).map_err(|source| Error::io(&at, source))?;
        }
    }
    Ok(())
}

/// Removes a directory so that a kill leaves nothing under its name.
///
/// # Errors
/// [`Error::Io`].
pub fn remove_dir(path: &Path) -> Result<()> {
    let doomed = sibling(path, "tmp");
    let _registered = Unfinished::new(&doomed);
    fs::rename(path, &doomed).and_then(|()| fs::remove_dir_all(&doomed)).map_err(|source| Error::io(path, source))
}

/// Flushes a file that was appended to. A missing file is ignored.
///
/// # Errors
/// [`Error::Io`].
pub fn sync_file(path: &Path) -> Result<()> {
    match File::open(path).and_then(|file| durable::sync(&file)) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path, source)),
        _ => Ok(()),
    }
}

/// Renames the directory `new` to `path`.
fn replace(new: &Path, path: &Path) -> Result<()> {
    // The process must not end between the two renames.
    let _renaming = ENDING.read().unwrap_or_else(PoisonError::into_inner);
    let error = |source| Error::io(path, source);
    let old = sibling(path, "old");
    let existed = path.symlink_metadata().is_ok();
    if existed {
        fs::rename(path, &old).map_err(error)?;
    }
    if let Err(source) = fs::rename(new, path) {
        if existed {
            // If this fails too, nothing more can be done; `recover` will try again.
            let _ = fs::rename(&old, path);
        }
        return Err(error(source));
    }
    sync_directory(parent(path)).map_err(error)?;
    if existed {
        remove(&old).map_err(error)?;
    }
    Ok(())
}

/// Removes temporary files of killed writers in `directory`, and restores a directory that one of them had renamed.
///
/// Call it only while nothing else writes there. Returns how many entries were cleaned up.
///
/// # Errors
/// [`Error::Io`] if an entry cannot be removed or renamed.
pub fn recover(directory: &Path) -> Result<usize> {
    let mut cleaned = 0;
    let entries = fs::read_dir(directory).map_err(|source| Error::io(directory, source))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let Some((name, kind)) = path.file_name().and_then(|name| name.to_str()).and_then(split_sibling) else {
            continue;
        };
        let final_path = directory.join(name);
        let done = match kind {
            "old" if final_path.symlink_metadata().is_err() => fs::rename(&path, &final_path),
            _ => remove(&path),
        };
        done.map_err(|source| Error::io(&path, source))?;
        cleaned += 1;
    }
    Ok(cleaned)
}

/// Temporary files and directories that this process is writing.
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Locked for reading while a directory is replaced, and for writing while the process ends.
static ENDING: RwLock<()> = RwLock::new(());

/// Registers a temporary file or directory for [`remove_unfinished`], until it is dropped.
#[derive(Debug)]
pub(super) struct Unfinished(PathBuf);

impl Unfinished {
    pub(super) fn new(path: &Path) -> Self {
        unfinished().insert(path.to_owned());
        Self(path.to_owned())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        unfinished().remove(&self.0);
    }
}

fn unfinished() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the temporary files of all writers of this process. Only for a process that ends immediately afterwards: from this call on,
/// every writer waits forever, so that none reports a missing file.
pub fn remove_unfinished() {
    let ending = ENDING.write().unwrap_or_else(PoisonError::into_inner);
    let registered = unfinished();
    for path in registered.iter() {
        // A writer may create another file while its directory is removed.
        let _ = (0..10).any(|_| remove(path).is_ok());
    }
    std::mem::forget((ending, registered));
}

/// Returns whether an entry of this name is a leftover of a killed writer.
pub(crate) fn is_temporary(name: &std::ffi::OsStr) -> bool {
    name.to_str().and_then(split_sibling).is_some()
}

/// Returns `.NAME.KIND-PID-N` next to `path`.
pub(super) fn sibling(path: &Path, kind: &str) -> PathBuf {
    static COUNTER: AtomicUsize = AtomicUsize::new(0);
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    parent(path).join(format!(".{name}.{kind}-{}-{count}", std::process::id()))
}

/// Splits the file name of a [`sibling`] into the final name and the kind.
fn split_sibling(name: &str) -> Option<(&str, &str)> {
    let (stem, suffix) = name.strip_prefix('.')?.rsplit_once('.')?;
    let mut parts = suffix.split('-');
    let kind = parts.next().filter(|&kind| kind == "tmp" || kind == "old")?;
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let numbered = parts.next().is_some_and(is_number) && parts.next().is_some_and(is_number);
    (numbered && parts.next().is_none() && !stem.is_empty()).then_some((stem, kind))
}

pub(super) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn remove(path: &Path) -> std::io::Result<()> {
    if path.symlink_metadata()?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Flushes every file below `directory`, and the directories themselves.
fn sync_tree(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory).map_err(|source| Error::io(directory, source))? {
        let entry = entry.map_err(|source| Error::io(directory, source))?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(|source| Error::io(entry.path(), source))?);
        if kind.is_dir() {
            sync_tree(&path)?;
        } else if kind.is_file() {
            File::open(&path).and_then(|file| durable::sync(&file)).map_err(|source| Error::io(&path, source))?;
        }
    }
    sync_directory(directory).map_err(|source| Error::io(directory, source))
}

/// Makes a rename in `directory` durable. Not every platform can open a directory; there the file system is responsible.
pub(super) fn sync_directory(directory: &Path) -> std::io::Result<()> {
    if cfg!(unix) { durable::sync(&File::open(directory)?) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .expect("readable")
            .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_failing_writer_leaves_the_old_file_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.json");
        write_bytes(&path, b"old").unwrap();
        let failed = write_file(&path, |file| {
            file.write_all(b"half of the new cont")?;
            Err(std::io::Error::from(std::io::ErrorKind::StorageFull))
        });
        assert!(matches!(failed, Err(Error::Io { path: at, .. }) if at == path));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(directory.path()), ["results.json"]);
    }

    #[test]
    fn a_failing_fill_leaves_the_old_directory_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("best");
        let fill = |content: &'static str| {
            move |at: &Path| {
                write_bytes(&at.join("config.json"), content.as_bytes())?;
                write_bytes(&at.join("model.safetensors"), content.as_bytes())
            }
        };
        let failed = write_dir(&path, |at| {
            fill("half")(at)?;
            Err(Error::input("stopped"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "stopped");
        assert!(names(directory.path()).is_empty());

        write_dir(&path, fill("first")).unwrap();
        write_dir(&path, |at| {
            fill("half")(at)?;
            Err(Error::input("stopped"))
        })
        .unwrap_err();
        assert_eq!(fs::read(path.join("config.json")).unwrap(), b"first");
        write_dir(&path, fill("second")).unwrap();
        assert_eq!(fs::read(path.join("config.json")).unwrap(), b"second");
        assert_eq!(names(directory.path()), ["best"]);
    }

    #[test]
    fn an_error_inside_a_new_directory_names_the_final_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("best");
        let failed = write_dir(&path, |at| {
            let full = || Err(std::io::Error::from(std::io::ErrorKind::StorageFull));
            write_file(&at.join("model.safetensors"), |_| full())
        });
        let shown = path.join("model.safetensors");
        assert_eq!(failed.unwrap_err().to_string(), format!("{}: no storage space", shown.display()));
    }

    #[test]
    fn a_panicking_fill_never_shows_under_the_final_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model");
        let panicked = std::panic::catch_unwind(|| {
            write_dir(&path, |at| {
                fs::write(at.join("config.json"), "{").unwrap();
                panic!("killed here");
            })
        });
        assert!(panicked.is_err() && !path.exists());
        assert_eq!(recover(directory.path()).unwrap(), 1);
        assert!(names(directory.path()).is_empty());
    }

    #[test]
    fn what_a_writer_leaves_beside_its_file_goes_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("reference.safetensors");
        let write = |at: &Path| {
            fs::write(at.with_file_name(".tmpRandom"), "as libraries name them").unwrap();
            fs::write(at, "whole").map_err(|source| Error::io(at, source))
        };
        write_path(&path, write).unwrap();
        assert_eq!(names(directory.path()), ["reference.safetensors"]);
        let panicked = std::panic::catch_unwind(|| {
            write_path(&path, |at| {
                write(at)?;
                panic!("killed here");
            })
        });
        assert!(panicked.is_err());
        assert_eq!(recover(directory.path()).unwrap(), 1);
        assert_eq!(names(directory.path()), ["reference.safetensors"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
    }

    #[test]
    fn recovery_puts_back_what_a_killed_writer_had_moved_aside() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        // State after a kill between the two renames: `best` is missing, and old and new are next to it.
        for (name, content) in [(".best.old-17-3", "old"), (".best.tmp-17-2", "new")] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("config.json"), content).unwrap();
        }
        fs::write(at(".results.json.tmp-17-9"), "{").unwrap();
        fs::create_dir(at(".rollouts.sqlite.tmp-17-8")).unwrap();
        fs::write(at(".rollouts.sqlite.tmp-17-8").join("rollouts.sqlite-journal"), "").unwrap();
        // Files of others.
        fs::write(at(".gitignore"), "*").unwrap();
        fs::write(at(".notes.tmp-mine"), "").unwrap();
        assert_eq!(recover(directory.path()).unwrap(), 4);
        assert_eq!(names(directory.path()), [".gitignore", ".notes.tmp-mine", "best"]);
        assert_eq!(fs::read_to_string(at("best").join("config.json")).unwrap(), "old");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_reported_as_such() {
        // Every write to /dev/full returns ENOSPC, as on a full file system.
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.json");
        let failed = write_file(&path, |_| {
            let mut full = File::options().write(true).open("/dev/full")?;
            full.write_all(&[0; 4096])
        });
        let error = failed.unwrap_err();
        assert_eq!(error.to_string(), format!("{}: No space left on device (os error 28)", path.display()));
        assert_eq!(error.hint(), Some("free some disk space; everything written before is intact"));
        assert!(names(directory.path()).is_empty());
    }

    /// Helper of the next test, which runs it in another process and kills it.
    #[test]
    #[ignore = "writes until it is killed"]
    fn endless_writer() {
        let variable = |name: &str| std::env::var(name).expect("started by another test");
        let path = Path::new(&variable("GRADUS_TEST_WRITER")).join("best");
        let start: u64 = variable("GRADUS_TEST_ROUND").parse().unwrap();
        for round in start << 32.. {
            write_dir(&path, |at| {
                for name in ["config.json", "model.safetensors"] {
                    write_bytes(&at.join(name), &round.to_le_bytes().repeat(4096))?;
                }
                Ok(())
            })
            .unwrap();
        }
    }

    /// Helper of the next test, which runs it in another process.
    #[test]
    #[ignore = "ends its process"]
    fn ending_writer() {
        let directory = PathBuf::from(std::env::var("GRADUS_TEST_WRITER").expect("started by another test"));
        write_dir(&directory.join("best"), |at| {
            write_file(&at.join("config.json"), |file| {
                file.write_all(b"half of the new cont")?;
                remove_unfinished();
                std::process::exit(130)
            })
        })
        .unwrap();
    }

    #[test]
    fn a_writer_that_ends_on_request_leaves_nothing() {
        use std::process::{Command, Stdio};
        let directory = tempfile::tempdir().unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "files::atomic::tests::ending_writer", "--ignored"])
            .env("GRADUS_TEST_WRITER", directory.path())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(130));
        assert!(names(directory.path()).is_empty(), "{:?}", names(directory.path()));
    }

    #[test]
    fn a_killed_writer_leaves_a_whole_directory() {
        use std::process::{Command, Stdio};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("best");
        let written = |name: &str| fs::read(path.join(name)).ok();
        let round_of = |file: &[u8]| file.first_chunk().map(|&bytes| u64::from_le_bytes(bytes) >> 32);
        for round in 1..=12 {
            let mut writer = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "files::atomic::tests::endless_writer", "--ignored"])
                .env("GRADUS_TEST_WRITER", directory.path())
                .env("GRADUS_TEST_ROUND", round.to_string())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let start = std::time::Instant::now();
            while written("config.json").and_then(|file| round_of(&file)) != Some(round) {
                assert!(start.elapsed().as_secs() < 600, "the writer of round {round} never wrote");
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_micros(300 * round));
            // SIGKILL on Unix.
            writer.kill().unwrap();
            writer.wait().unwrap();
            recover(directory.path()).unwrap();
            assert_eq!(names(directory.path()), ["best"], "after round {round}");
            let files = ["config.json", "model.safetensors"].map(|name| written(name).unwrap());
            assert_eq!(files[0], files[1], "both files are of one writing");
            assert_eq!((files[0].len(), round_of(&files[0])), (8 * 4096, Some(round)));
        }
    }
}
