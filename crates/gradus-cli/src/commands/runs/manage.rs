//! `gradus runs tag`, `rename`, `stop` and `rm`.

use gradus::Error;
use gradus::runs::{Entry, Labels, Library, Snapshot, SnapshotKind, snapshots, without_checkpoint};
use serde_json::json;

use crate::output::{Output, visible_line};
use crate::table::bytes;

/// Arguments of `gradus runs tag`.
#[derive(Debug, clap::Args)]
pub struct TagArgs {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
    /// Tags to add; without any, the tags are shown
    #[arg(value_name = "TAG")]
    tags: Vec<String>,
    /// Remove this tag; may be given several times
    #[arg(long, value_name = "TAG")]
    remove: Vec<String>,
    /// Set a note on the run; an empty text removes it
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

/// Changes tags and note, and prints them.
pub fn tag(args: &TagArgs, library: &Library, out: &Output) -> anyhow::Result<()> {
    let (name, path) = library.find(&args.name)?;
    let before = Labels::read(&path)?;
    let mut labels = before.clone();
    for tag in &args.remove {
        if !labels.remove(tag) {
            out.warn(format_args!("`{name}` has no tag `{tag}`"));
        }
    }
    args.tags.iter().try_for_each(|tag| labels.add(tag))?;
    if let Some(note) = &args.note {
        labels.note = Some(note.trim().to_owned()).filter(|note| !note.is_empty());
    }
    if labels != before {
        labels.write(&path)?;
    }
    let value = json!({ "name": name, "tags": labels.tags, "note": labels.note });
    out.result(&value, || {
        let lines = [Some(labels.tags.join(" ")), labels.note.clone()];
        lines.into_iter().flatten().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
    })
}

/// Arguments of `gradus runs rename`.
#[derive(Debug, clap::Args)]
pub struct RenameArgs {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
    /// New name in the directory of runs
    #[arg(value_name = "NEW")]
    new: String,
}

/// Renames the run, and warns about other runs that refer to its old name.
pub fn rename(args: &RenameArgs, library: &Library, out: &Output) -> anyhow::Result<()> {
    let (_, old) = library.find(&args.name)?;
    let users = library.users_of(&old);
    let path = library.rename(&args.name, &args.new)?;
    if !users.is_empty() {
        out.warn(format_args!("the configuration of {} refers to {}", quoted(&users), old.display()));
    }
    out.result(&json!({ "name": args.new, "path": path }), || path.display().to_string())
}

/// Arguments of `gradus runs stop`.
#[derive(Debug, clap::Args)]
pub struct StopArgs {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
}

/// Asks the run's trainer to stop.
pub fn stop(args: &StopArgs, library: &Library, out: &Output) -> anyhow::Result<()> {
    library.stop(&args.name)?;
    out.result(&json!({ "stopping": args.name }), || {
        format!("`{}` stops after the current step and a checkpoint; a second request stops it at once", args.name)
    })
}

/// Arguments of `gradus runs rm`.
#[derive(Debug, clap::Args)]
pub struct RmArgs {
    /// Names of the runs
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Remove only the checkpoint of this step
    #[arg(long, value_name = "N")]
    step: Option<usize>,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

/// Removes the runs, each after a confirmation, or one checkpoint.
pub fn remove(args: &RmArgs, library: &Library, out: &Output) -> anyhow::Result<()> {
    // Resolve all names first, so that a mistake in the last one removes nothing.
    let entries = args.names.iter().map(|name| library.entry(name)).collect::<gradus::Result<Vec<_>>>()?;
    match (args.step, &entries[..]) {
        (None, _) => {}
        (Some(step), [entry]) => return remove_checkpoint(entry, step, args.yes, library, out),
        (Some(_), _) => {
            return Err(Error::input("`--step` removes a checkpoint of one run, but several runs are named").into());
        }
    }
    entries.iter().try_for_each(|entry| Library::check_removable(&entry.path))?;
    let mut removed = Vec::new();
    for entry in entries {
        let users = library.users_of(&entry.path);
        let (name, path) = (visible_line(&entry.name), visible_line(&entry.path.display().to_string()));
        if !users.is_empty() {
            out.warn(format_args!("the configuration of {} refers to {path}", quoted(&users)));
        }
        let question = format!("remove `{name}` with {} in {path}?", bytes(entry.size_bytes));
        if !out.confirmed(&question, &format!("`{name}`"), args.yes)? {
            continue;
        }
        library.remove(&entry.path.display().to_string())?;
        out.note(format_args!("removed {path}"));
        removed.push(entry.name);
    }
    if out.is_json() { out.result(&json!({ "removed": removed }), String::new) } else { Ok(()) }
}

/// Removes one checkpoint of a run. Warns about the consequences first.
fn remove_checkpoint(entry: &Entry, step: usize, yes: bool, library: &Library, out: &Output) -> anyhow::Result<()> {
    let found = snapshots(&entry.directory()?, None)?;
    let mut removed = Vec::new();
    if let Some(cost) = without_checkpoint(&found, step) {
        out.warn(format_args!("step {step} of `{}`: {cost}", entry.name));
    }
    let is_it = |found: &&Snapshot| found.kind == SnapshotKind::Checkpoint && found.step == Some(step);
    let size = found.iter().find(is_it).map_or(0, |found| found.size_bytes);
    let question = format!("remove step {step} of `{}` with {}?", entry.name, bytes(size));
    // The library reports missing checkpoints.
    if size == 0 || out.confirmed(&question, &format!("step {step} of `{}`", entry.name), yes)? {
        library.remove_checkpoint(&entry.path.display().to_string(), step)?;
        out.note(format_args!("removed step {step} of {}", entry.path.display()));
        removed.push(json!({ "name": entry.name, "step": step }));
    }
    if out.is_json() { out.result(&json!({ "removed": removed }), String::new) } else { Ok(()) }
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{}`", visible_line(name))).collect::<Vec<_>>().join(", ")
}
