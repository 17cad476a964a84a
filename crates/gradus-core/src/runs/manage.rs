//! Renaming and removing runs, and removing snapshots.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::settings::Settings;
use super::{Library, is_run};
use crate::error::{Error, Result};
use crate::run::RunDir;
use crate::run::claim::{Claim, interrupt, is_held};

impl Library {
    /// Renames the run `old` to `new`. Returns its new path.
    ///
    /// # Errors
    /// [`Error::Input`] if the name is taken or invalid, if it is a link to a run, or while the run is training; [`Error::Io`].
    pub fn rename(&self, old: &str, new: &str) -> Result<PathBuf> {
        let (name, from) = self.find(old)?;
        refuse_link(&from, "renamed", "rename the link with `mv`, or the run by its own path")?;
        let refuse = |why: &str| Err(Error::input(format!("`{new}` cannot be the name of a run: {why}")));
        let new_path = Path::new(new);
        if new.is_empty() || !new_path.components().all(|part| matches!(part, Component::Normal(_))) {
            return refuse("a name is a path below the directory of runs, such as `ppo-2` or `demo/ppo-2`");
        }
        if new_path.components().any(|part| part.as_os_str().to_string_lossy().starts_with('.')) {
            return refuse("names that begin with a dot are hidden");
        }
        let to = self.root().join(new_path);
        if to.symlink_metadata().is_ok() {
            return Err(Error::input(format!("there is already a `{new}` in `{}`", self.root().display())));
        }
        if to.ancestors().skip(1).any(|above| above != self.root() && is_run(above)) {
            return refuse("it would be inside another run");
        }
        let claim = claim_run(&name, &from, "renamed")?;
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(|source| Error::io(parent, source))?;
        }
        fs::rename(&from, &to).map_err(|source| Error::io(&from, source))?;
        drop(claim);
        Ok(to)
    }

    /// Removes a run with all files in its directory.
    ///
    /// # Errors
    /// [`Error::Input`] while it is training, or if no file shows that gradus wrote it; [`Error::Io`].
    pub fn remove(&self, name: &str) -> Result<()> {
        let (name, path) = self.find(name)?;
        Self::check_removable(&path)?;
        let claim = claim_run(&name, &path, "removed")?;
        let removed = fs::remove_dir_all(&path).map_err(|source| Error::io(&path, source));
        drop(claim);
        removed
    }

    /// Asks the trainer of a run to stop after the current step and a checkpoint, as Ctrl-C does. This does not wait.
    ///
    /// # Errors
    /// [`Error::Input`] if it is not training, or trains on another machine.
    pub fn stop(&self, name: &str) -> Result<()> {
        let (name, path) = self.find(name)?;
        if !is_held(&path) {
            return Err(Error::input(format!("`{name}` is not running")));
        }
        interrupt(&path)
    }

    /// Checks that a directory may be removed. Other programs also write files named `config.yml` or `metrics.jsonl`.
    ///
    /// # Errors
    /// [`Error::Input`] if no file shows that gradus wrote it, or if it is a link to a run.
    pub fn check_removable(path: &Path) -> Result<()> {
        refuse_link(path, "removed", "remove the link with `rm`, or the run by its own path")?;
        if RunDir::is_ours(path) {
            return Ok(());
        }
        let message = format!("`{}` is not removed: nothing in it shows that gradus wrote it", path.display());
        Err(Error::input(message).with_hint(
            "a run has a `config.yml` that begins with `# Written by gradus`, or a `state.json` with its state",
        ))
    }

    /// Removes the checkpoint of a run after `step`, and nothing else. The run then resumes from the newest one that is left.
    ///
    /// # Errors
    /// [`Error::Input`] if there is no checkpoint of that step, or while the run is training; [`Error::Io`].
    pub fn remove_checkpoint(&self, name: &str, step: usize) -> Result<()> {
        let (name, path) = self.find(name)?;
        let run = RunDir::open(&path)?;
        let steps = run.checkpoint_steps()?;
        if !steps.contains(&step) {
            let known: Vec<String> = steps.iter().map(|step| format!("`step {step}`")).collect();
            let hint = if known.is_empty() {
                "the run has no checkpoints".into()
            } else {
                format!("the run has {}", known.join(", "))
            };
            return Err(Error::input(format!("the run `{name}` has no checkpoint of step {step}")).with_hint(hint));
        }
        let claim = claim_run(&name, &path, "changed")?;
        let removed = run.remove_checkpoint(step);
        drop(claim);
        removed
    }

    /// Returns the runs whose configuration refers to a path inside the run at `path`, for example as their model or reward model.
    pub fn users_of(&self, path: &Path) -> Vec<String> {
        let shown = path.display().to_string();
        let names = |value: &str| {
            value.split(['"', ' ', ',']).any(|word| {
                let rest = word.strip_prefix("./").unwrap_or(word).strip_prefix(shown.trim_start_matches("./"));
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        };
        let uses = |at: &Path| {
            let settings = Settings::read(&at.join("config.yml")).unwrap_or_default();
            settings.keys.iter().any(|key| key.path != "output_dir" && names(&key.value))
        };
        self.names().into_iter().filter(|(_, at)| at != path && uses(at)).map(|(name, _)| name).collect()
    }
}

/// Rejects a link to a run. Without it the run would still exist, and in another folder it could lead nowhere.
fn refuse_link(path: &Path, what: &str, hint: &str) -> Result<()> {
    // Without a `/` at the end, which would follow the link.
    let own: PathBuf = path.components().collect();
    if !own.is_symlink() {
        return Ok(());
    }
    let run = path.canonicalize().map_err(|source| Error::io(path, source))?;
    let message = format!("`{}` is not {what}: it is a link to `{}`", own.display(), run.display());
    Err(Error::input(message).with_hint(hint))
}

/// Claims a run for a change to its whole directory.
fn claim_run(name: &str, path: &Path, what: &str) -> Result<Claim> {
    if is_held(path) {
        return Err(Error::input(format!("`{name}` is running and cannot be {what}"))
            .with_hint("`gradus runs stop` stops it after a checkpoint"));
    }
    Claim::take(path)
}
