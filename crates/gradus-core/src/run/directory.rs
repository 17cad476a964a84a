//! Paths of the files of a run, and the rules for starting in a directory that may not be empty.

use std::fs;
use std::path::{Path, PathBuf};

use super::claim::{self, Claim};
use super::replaced_run::{ReplacedRun, remove_entries};
use crate::error::{Error, Result};
use crate::files::{self, atomic};

/// What to do with an output directory that is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// Stop with a message that lists the alternatives.
    #[default]
    Refuse,
    /// Replace the files of an earlier run, and no others, once the new run has begun.
    Overwrite,
    /// Keep everything and resume.
    Resume,
}

/// First line of the `config.yml` of a run. It distinguishes the file from an unrelated one of the same name.
pub const WRITTEN_BY: &str = "# Written by gradus ";

/// Files that a run writes. No other file in its directory is ever removed.
const ENTRIES: [&str; 26] = [
    "config.yml",
    "state.json",
    "metrics.jsonl",
    "tensorboard",
    "wandb",
    "rollouts.sqlite",
    "rollouts.sqlite-wal",
    "rollouts.sqlite-shm",
    "rollouts.sqlite-journal",
    "rollouts.jsonl",
    "log.txt",
    "checkpoints",
    "model",
    "best",
    "critic",
    "plots",
    "results.json",
    "report.html",
    "samples.jsonl",
    "samples.md",
    "bad_batches",
    "comparison",
    "evaluation",
    "reference.safetensors",
    "held_out_rows.jsonl",
    "skipped_rows.jsonl",
];

/// The directory of one run: `runs/<name>/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
}

/// Maximum number of runs that a hint names.
const NAMED_MAX: usize = 3;

/// Adds a hint to an error about `folder`, which is not a run, if it contains runs.
pub(crate) fn hint_at_runs(error: Error, folder: &Path) -> Error {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_run = |path: &PathBuf| ["config.yml", "metrics.jsonl"].iter().any(|name| path.join(name).is_file());
    let mut runs: Vec<PathBuf> = entries.filter(is_run).collect();
    if runs.is_empty() {
        return error;
    }
    runs.sort();
    let more = if runs.len() > NAMED_MAX { ", …" } else { "" };
    let runs: Vec<String> = runs.iter().take(NAMED_MAX).map(|path| format!("`{}`", path.display())).collect();
    error.with_hint(format!("it is a folder of runs; name one of them: {}{more}", runs.join(", ")))
}

impl RunDir {
    /// Returns true if gradus wrote the content of a directory, according to its `config.yml` or `state.json`. Only such directories are
    /// ever removed.
    pub fn is_ours(path: &Path) -> bool {
        let config = files::read_run(path.join("config.yml")).unwrap_or_default();
        config.starts_with(WRITTEN_BY.as_bytes()) || claim::read_state(path).is_ok_and(|state| state.is_some())
    }

    /// Prepares the directory for writing: creates it, checks it and removes files that a killed run left half-written.
    ///
    /// # Errors
    /// [`Error::Input`] if the directory is not empty (unless `existing` allows it), is a file, cannot be written, or contains files that a
    /// run would replace and that gradus did not write.
    pub fn create(path: impl Into<PathBuf>, existing: Existing) -> Result<Self> {
        let (run, _claim) = Self::claim(path, existing)?;
        if existing == Existing::Overwrite {
            remove_entries(&run.path, &ENTRIES)?;
        }
        Ok(run)
    }

    /// As [`RunDir::create`], with exclusive access until the claim is dropped. A run to be replaced stays until [`RunDir::set_aside`]
    /// moves it.
    ///
    /// # Errors
    /// As [`RunDir::create`], and [`Error::Input`] if a trainer is running in the directory.
    pub fn claim(path: impl Into<PathBuf>, existing: Existing) -> Result<(Self, Claim)> {
        let run = Self { path: path.into() };
        let shown = run.path.display();
        if run.path.is_file() {
            return Err(Error::input(format!("output directory `{shown}` is a file"))
                .with_hint("choose another `--output-dir`"));
        }
        fs::create_dir_all(&run.path).and_then(|()| probe(&run.path)).map_err(|source| {
            Error::input(format!("output directory `{shown}` cannot be written: {source}"))
                .with_hint("choose another `--output-dir`")
        })?;
        let check = |is_held: bool| {
            if existing == Existing::Overwrite && !is_held && !Self::is_ours(&run.path) {
                run.check_free()?;
            }
            if existing != Existing::Refuse || is_held || run.is_empty()? {
                return Ok(());
            }
            Err(Error::input(format!("output directory `{shown}` exists and is not empty")).with_hint(
                "resume it with `--resume`, replace it with `--overwrite`, or choose another `--output-dir`",
            ))
        };
        // Checked before locking, so that unrelated directories stay untouched, and again under the lock, when no other process changes the
        // directory.
        check(claim::is_held(&run.path))?;
        let mut claim = Claim::take(&run.path)?;
        check(false)?;
        if let Some(replaced_run) = ReplacedRun::recover(&run.path, &ENTRIES)? {
            match existing {
                // The replacing run was killed before its first step was done.
                Existing::Overwrite => replaced_run.put_back()?,
                _ => claim.replaces(replaced_run, false),
            }
        }
        // Only under the lock: before, another process may have been writing.
        atomic::recover(&run.path)?;
        if existing == Existing::Refuse {
            // Left by a run that ended before its first step. The log of the new run begins empty.
            remove_entries(&run.path, &["log.txt"])?;
        }
        for inner in [run.checkpoints(), run.plots(), run.path.join("bad_batches")] {
            if inner.is_dir() {
                atomic::recover(&inner)?;
            }
        }
        Ok((run, claim))
    }

    /// Returns true if the directory contains any file of a run.
    pub fn holds_run(&self) -> bool {
        ENTRIES.iter().any(|entry| self.path.join(entry).symlink_metadata().is_ok())
    }

    /// Moves the existing run aside. `claim` removes it once the new run has begun, and restores it if the new run never begins.
    ///
    /// # Errors
    /// [`Error::Io`]; the run is then back in place.
    pub fn set_aside(&self, claim: &mut Claim) -> Result<()> {
        claim.replaces(ReplacedRun::move_aside(&self.path, &ENTRIES)?, true);
        Ok(())
    }

    /// Returns true if replacing the run would delete `input`, because it is or is inside a file that a run writes.
    pub fn would_lose(&self, input: &Path) -> bool {
        let whole = |path: &Path| [path.canonicalize().ok(), std::path::absolute(path).ok()];
        let inside = |input: &Path, directory: &Path| match input.strip_prefix(directory).map(|rest| rest.iter().next())
        {
            Ok(Some(first)) => ENTRIES.iter().any(|entry| first == *entry),
            Ok(None) => true,
            Err(_) => false,
        };
        let (inputs, directories) = (whole(input), whole(&self.path));
        inputs.iter().flatten().any(|input| directories.iter().flatten().any(|directory| inside(input, directory)))
    }

    /// Returns the folder of a run that this one was to replace before it was killed, and whether all of its files are there. A running
    /// trainer has one, too, until its first step is done.
    pub fn replaced_run(&self) -> Option<(PathBuf, bool)> {
        ReplacedRun::left_in(&self.path)
    }

    /// Creates a new directory next to this one, which was deleted: `NAME-rescued`, or with the first free number appended.
    ///
    /// # Errors
    /// As [`RunDir::claim`].
    pub fn rescued(&self) -> Result<(Self, Claim)> {
        let name = self.path.file_name().map_or("run".into(), |name| name.to_string_lossy());
        let numbered = |n: usize| match n {
            1 => self.path.with_file_name(format!("{name}-rescued")),
            n => self.path.with_file_name(format!("{name}-rescued-{n}")),
        };
        let free = (1..).map(numbered).find(|path| path.symlink_metadata().is_err()).expect("some number is free");
        Self::claim(free, Existing::Refuse)
    }

    /// The run in a directory, without any check.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Opens an existing run for reading.
    ///
    /// # Errors
    /// [`Error::Input`] if the directory does not exist or contains no files of a run.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let run = Self { path: path.into() };
        if !run.path.is_dir() {
            return Err(Error::input(format!("run directory `{}` does not exist", run.path.display())));
        }
        if !run.metrics().is_file() && !run.results().is_file() && !run.config().is_file() {
            let message = format!(
                "`{}` is not a run directory: it has neither `config.yml` nor `metrics.jsonl` nor `results.json`",
                run.path.display()
            );
            return Err(hint_at_runs(Error::input(message), &run.path));
        }
        Ok(run)
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Name of the directory, for tables and legends.
    pub fn name(&self) -> String {
        let name = self.path.canonicalize().ok().and_then(|path| path.file_name().map(|name| name.to_owned()));
        name.map_or_else(|| self.path.display().to_string(), |name| name.to_string_lossy().into_owned())
    }

    /// `config.yml`: resolved, with all defaults.
    pub fn config(&self) -> PathBuf {
        self.path.join("config.yml")
    }

    /// `metrics.jsonl`: one object per logged step.
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// `log.txt`: the messages on stderr.
    pub fn log(&self) -> PathBuf {
        self.path.join("log.txt")
    }

    /// Log of a new run during its checks, while the run to be replaced is still in place. Its name is a temporary one, so a later start
    /// removes what a kill leaves.
    pub fn next_log(&self) -> PathBuf {
        self.path.join(".log.txt.tmp-0-0")
    }

    /// `checkpoints/`.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// `checkpoints/step-000100/`.
    pub fn checkpoint(&self, step: usize) -> PathBuf {
        self.checkpoints().join(format!("step-{step:06}"))
    }

    /// `model/`: the final model, a Hugging Face directory.
    pub fn model(&self) -> PathBuf {
        self.path.join("model")
    }

    /// `best/`: the model that was best on the held-out rows, a Hugging Face directory.
    pub fn best(&self) -> PathBuf {
        self.path.join("best")
    }

    /// `plots/`: training curves.
    pub fn plots(&self) -> PathBuf {
        self.path.join("plots")
    }

    /// `results.json`: final metrics.
    pub fn results(&self) -> PathBuf {
        self.path.join("results.json")
    }

    /// `report.html`: the run on one page.
    pub fn report(&self) -> PathBuf {
        self.path.join("report.html")
    }

    /// `rollouts.sqlite`: every completion of training and of evaluations.
    pub fn rollouts(&self) -> PathBuf {
        self.path.join("rollouts.sqlite")
    }

    /// `bad_batches/step-000100.json`: the batch whose loss or gradient was not finite.
    pub fn bad_batch(&self, step: usize) -> PathBuf {
        self.path.join("bad_batches").join(format!("step-{step:06}.json"))
    }

    /// `evaluation/`: evaluation of a reward model on the held-out pairs.
    pub fn evaluation(&self) -> PathBuf {
        self.path.join("evaluation")
    }

    /// `reference.safetensors`: log-probabilities of the examples under the reference, computed before the first step.
    pub fn reference(&self) -> PathBuf {
        self.path.join("reference.safetensors")
    }

    /// `held_out_rows.jsonl`: positions of the rows that are never trained on.
    pub fn held_out_rows(&self) -> PathBuf {
        self.path.join("held_out_rows.jsonl")
    }

    /// `skipped_rows.jsonl`: positions of the skipped bad rows, with their problems.
    pub fn skipped_rows(&self) -> PathBuf {
        self.path.join("skipped_rows.jsonl")
    }

    /// `comparison/`: comparison of several methods.
    pub fn comparison(&self) -> PathBuf {
        self.path.join("comparison")
    }

    /// Returns the steps that have a checkpoint, in ascending order.
    ///
    /// # Errors
    /// [`Error::Io`] if the directory cannot be read.
    pub fn checkpoint_steps(&self) -> Result<Vec<usize>> {
        let directory = self.checkpoints();
        if !directory.is_dir() {
            return Ok(Vec::new());
        }
        let entries = fs::read_dir(&directory).map_err(|source| Error::io(&directory, source))?;
        let mut steps: Vec<usize> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok())
            .collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// Removes the oldest checkpoints until `keep` are left (at least one). Returns the removed steps.
    ///
    /// # Errors
    /// [`Error::Io`] if one cannot be removed.
    pub fn prune_checkpoints(&self, keep: usize) -> Result<Vec<usize>> {
        let mut steps = self.checkpoint_steps()?;
        steps.truncate(steps.len().saturating_sub(keep.max(1)));
        steps.iter().try_for_each(|&step| self.remove_checkpoint(step))?;
        Ok(steps)
    }

    /// Removes the checkpoint of a step. After a kill during removal, no partial checkpoint looks complete.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn remove_checkpoint(&self, step: usize) -> Result<()> {
        atomic::remove_dir(&self.checkpoint(step))
    }

    /// Flushes `metrics.jsonl` to disk, so that no checkpoint survives a power loss that its metrics do not.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync_logs(&self) -> Result<()> {
        atomic::sync_file(&self.metrics())
    }

    /// Removes the files of a run that never reached a checkpoint, so that it can start again. Configuration, state and log stay.
    ///
    /// # Errors
    /// [`Error::Input`] if the run has finished, because its models must not be deleted. [`Error::Io`].
    pub fn restart(&self) -> Result<()> {
        if self.results().is_file() || self.model().is_dir() {
            let shown = self.path.display();
            return Err(Error::input(format!(
                "the run in `{shown}` has finished, and no checkpoint is left to resume from"
            ))
            .with_hint("replace it with `--overwrite`, or choose another `--output-dir`"));
        }
        let kept = ["config.yml", "state.json", "log.txt"];
        let entries: Vec<&str> = ENTRIES.into_iter().filter(|entry| !kept.contains(entry)).collect();
        remove_entries(&self.path, &entries)
    }

    fn is_empty(&self) -> Result<bool> {
        let entries = fs::read_dir(&self.path).map_err(|source| Error::io(&self.path, source))?;
        // A run that ended before its first step has left only its configuration and its log.
        let is_ours = self.path.join(claim::STATE).is_file();
        let says_nothing = |name: &std::ffi::OsStr| is_ours && (name == "config.yml" || name == "log.txt");
        let counts = |name: &std::ffi::OsStr| {
            name != claim::LOCK && name != claim::STATE && !atomic::is_temporary(name) && !says_nothing(name)
        };
        Ok(!entries.flatten().any(|entry| counts(&entry.file_name())))
    }

    /// Rejects a directory that contains a file with the name of a run's file.
    fn check_free(&self) -> Result<()> {
        let taken = ENTRIES.iter().find(|entry| **entry != claim::STATE && self.path.join(entry).exists());
        taken.map_or(Ok(()), |entry| {
            let shown = self.path.display();
            Err(Error::input(format!(
                "`{shown}` is not a run of gradus: `--overwrite` would remove the `{entry}` in it"
            ))
            .with_hint("choose another `--output-dir`, or move its files"))
        })
    }
}

/// Checks that files can be written here, so that the run does not fail after an hour of training.
fn probe(directory: &Path) -> std::io::Result<()> {
    let path = directory.join(format!(".probe.tmp-{}-0", std::process::id()));
    fs::write(&path, b"gradus\n")?;
    fs::remove_file(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path) -> (String, Option<String>) {
        let error = RunDir::create(path, Existing::Refuse).unwrap_err();
        (error.to_string(), error.hint().map(ToOwned::to_owned))
    }

    #[test]
    fn an_existing_directory_is_refused_resumed_or_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("runs/first");
        let run = RunDir::create(&path, Existing::Refuse).unwrap();
        // Still empty, so allowed.
        RunDir::create(&path, Existing::Refuse).unwrap();
        fs::write(run.config(), format!("{WRITTEN_BY}0.1.0\n")).unwrap();
        fs::write(run.metrics(), "{}\n").unwrap();
        fs::create_dir_all(run.checkpoint(3)).unwrap();
        fs::write(path.join("notes.txt"), "mine").unwrap();

        let (message, hint) = refused(&path);
        assert_eq!(message, format!("output directory `{}` exists and is not empty", path.display()));
        assert_eq!(
            hint.as_deref(),
            Some("resume it with `--resume`, replace it with `--overwrite`, or choose another `--output-dir`")
        );
        RunDir::create(&path, Existing::Resume).unwrap();
        assert!(run.metrics().exists());
        RunDir::create(&path, Existing::Overwrite).unwrap();
        assert!(!run.metrics().exists() && !run.checkpoints().exists());
        assert_eq!(fs::read_to_string(path.join("notes.txt")).unwrap(), "mine");
    }

    #[test]
    fn what_others_wrote_under_our_names_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("site");
        fs::create_dir_all(path.join("model")).unwrap();
        fs::write(path.join("config.yml"), "title: mine\n").unwrap();
        let error = RunDir::create(&path, Existing::Overwrite).unwrap_err();
        let expected =
            format!("`{}` is not a run of gradus: `--overwrite` would remove the `config.yml` in it", path.display());
        assert_eq!(error.to_string(), expected);
        fs::remove_file(path.join("config.yml")).unwrap();
        let error = RunDir::create(&path, Existing::Overwrite).unwrap_err().to_string();
        assert!(error.ends_with("would remove the `model` in it"), "{error}");
        assert!(path.join("model").is_dir());
        // No file in it has the name of a run's file.
        fs::rename(path.join("model"), path.join("images")).unwrap();
        RunDir::create(&path, Existing::Overwrite).unwrap();
        assert!(path.join("images").is_dir());
    }

    #[test]
    fn a_replaced_run_is_there_until_the_new_one_has_begun() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run");
        let text = |name: &str| fs::read_to_string(path.join(name)).ok();
        for (begins, killed, expected) in
            [(false, false, "old"), (true, false, "new"), (false, true, "old"), (true, true, "new")]
        {
            let _ = fs::remove_dir_all(&path);
            let (run, mut claim) = RunDir::claim(&path, Existing::Refuse).unwrap();
            fs::write(run.config(), format!("{WRITTEN_BY}0.1.0\n")).unwrap();
            fs::write(run.metrics(), "old").unwrap();
            claim.begin().unwrap();
            claim.end(None).unwrap();
            let state = text("state.json");

            let (run, mut claim) = RunDir::claim(&path, Existing::Overwrite).unwrap();
            assert!(run.holds_run() && text("metrics.jsonl").as_deref() == Some("old"), "nothing is lost by claiming");
            run.set_aside(&mut claim).unwrap();
            assert!(!run.holds_run());
            claim.begin().unwrap();
            fs::write(run.metrics(), "new").unwrap();
            if begins {
                claim.has_begun().unwrap();
            }
            match killed {
                true => drop(claim.let_go()),
                false => claim.end(Some(&Error::input("no room"))).unwrap(),
            }
            if killed && !begins {
                // A second replacement finds the old run; `--resume` finds the new one.
                drop(RunDir::claim(&path, Existing::Resume).unwrap());
                assert_eq!(text("metrics.jsonl").as_deref(), Some("new"));
                drop(RunDir::claim(&path, Existing::Overwrite).unwrap());
            }
            assert_eq!(text("metrics.jsonl").as_deref(), Some(expected), "begins: {begins}, killed: {killed}");
            assert_eq!(text("state.json") == state, !begins, "begins: {begins}, killed: {killed}");
            assert!(!path.join(".replaced").exists());
        }
    }

    #[test]
    fn what_replacing_a_run_would_take_away() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunDir::create(directory.path().join("run"), Existing::Refuse).unwrap();
        fs::create_dir_all(run.model()).unwrap();
        let at = |name: &str| run.would_lose(&directory.path().join(name));
        assert!(at("run/model") && at("run/model/config.json") && at("run/../run/model") && at("run"));
        assert!(!at("run/data.jsonl") && !at("other/model") && !at("run-2/model"));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(run.path(), directory.path().join("link")).unwrap();
            assert!(at("link/model") && at("link"));
        }
    }

    #[test]
    fn a_directory_at_work_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run");
        let (run, claim) = RunDir::claim(&path, Existing::Refuse).unwrap();
        fs::write(run.config(), format!("{WRITTEN_BY}0.1.0\n")).unwrap();
        fs::write(run.metrics(), "{}\n").unwrap();
        for existing in [Existing::Refuse, Existing::Resume, Existing::Overwrite] {
            let message = RunDir::create(&path, existing).unwrap_err().to_string();
            assert_eq!(message, format!("run directory `{}` is in use by another gradus", path.display()));
        }
        assert!(run.metrics().exists(), "nothing was cleared");
        drop(claim);
        RunDir::create(&path, Existing::Overwrite).unwrap();
        assert!(!run.metrics().exists());

        let foreign = directory.path().join("photos");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("cat.png"), "").unwrap();
        RunDir::create(&foreign, Existing::Refuse).unwrap_err();
        assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1, "no lock is left in it");
    }

    #[test]
    fn an_impossible_directory_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("taken");
        fs::write(&file, "").unwrap();
        let hint = Some("choose another `--output-dir`".to_owned());
        assert_eq!(refused(&file), (format!("output directory `{}` is a file", file.display()), hint.clone()));

        let below = file.join("run");
        let (message, below_hint) = refused(&below);
        let expected = format!("output directory `{}` cannot be written: ", below.display());
        assert_eq!((message.starts_with(&expected), below_hint), (true, hint), "{message}");
    }

    #[test]
    #[cfg(unix)]
    fn an_unwritable_directory_says_why() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locked");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o555)).unwrap();
        if fs::write(path.join("probe"), "").is_ok() {
            crate::test_support::skipped("user", "this user may write anywhere");
            return;
        }
        let (message, _) = refused(&path);
        assert_eq!(
            message,
            format!("output directory `{}` cannot be written: Permission denied (os error 13)", path.display())
        );
    }

    #[test]
    fn pruning_keeps_the_newest_checkpoints() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunDir::create(directory.path().join("run"), Existing::Refuse).unwrap();
        for step in [900, 1000, 5, 1_000_000] {
            fs::create_dir_all(run.checkpoint(step)).unwrap();
        }
        assert!(run.checkpoint(100).ends_with("checkpoints/step-000100"));
        assert_eq!(run.prune_checkpoints(2).unwrap(), [5, 900]);
        assert_eq!(run.checkpoint_steps().unwrap(), [1000, 1_000_000]);
        assert_eq!(run.prune_checkpoints(0).unwrap(), [1000], "the last one stays");
    }
}
