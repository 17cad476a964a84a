//! `gradus runs export`: copies a snapshot as a plain model directory.

use std::path::PathBuf;

use gradus::Error;
use gradus::runs::{Entry, Library, Snapshot, SnapshotKind, export, snapshots, why_no_best};
use serde_json::json;

use crate::output::Output;
use crate::watch::end_on_interrupts;

/// Arguments of `gradus runs export`.
#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
    /// Export the checkpoint of this step
    #[arg(long, value_name = "N", conflicts_with = "best")]
    step: Option<usize>,
    /// Export the model that was best on the held-out rows. Default: the final one, otherwise the newest checkpoint
    #[arg(long)]
    best: bool,
    /// Directory to write
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Replace the model in the directory if it exists
    #[arg(long)]
    overwrite: bool,
}

/// Copies the snapshot.
pub fn run(args: &ExportArgs, library: &Library, out: &Output) -> anyhow::Result<()> {
    let entry = library.entry(&args.name)?;
    let found = snapshots(&entry.directory()?, entry.figure.as_ref().map(|figure| figure.key.as_str()))?;
    let snapshot = chosen(args, &entry, &found)?;
    end_on_interrupts(out);
    let files = export(snapshot, &args.output, args.overwrite)?;
    out.note(format_args!("{} of {}: {} files", snapshot.name(), entry.name, files.len()));
    if files.iter().any(|name| name == "adapter_config.json") {
        out.note("this is an adapter: `gradus merge` merges it into its base model");
    }
    let value = json!({ "snapshot": snapshot, "output": args.output, "files": files });
    out.result(&value, || args.output.display().to_string())
}

fn chosen<'a>(args: &ExportArgs, entry: &Entry, found: &'a [Snapshot]) -> gradus::Result<&'a Snapshot> {
    let run = entry.directory()?;
    let of = |kind: SnapshotKind| found.iter().find(move |snapshot| snapshot.kind == kind);
    let checkpoints = || found.iter().filter(|snapshot| snapshot.kind == SnapshotKind::Checkpoint);
    let known = || {
        let names: Vec<String> = found.iter().map(|snapshot| format!("`{}`", snapshot.name())).collect();
        if names.is_empty() {
            "the run has no snapshots".to_owned()
        } else {
            format!("the run has {}", names.join(", "))
        }
    };
    let (checkpoint, what) = match (args.step, args.best) {
        (Some(step), _) => {
            (checkpoints().find(|found| found.step == Some(step)), format!("no checkpoint of step {step}"))
        }
        (None, true) => (of(SnapshotKind::Best), format!("no `best/`: {}", why_no_best(&run))),
        (None, false) => {
            let newest = || checkpoints().rfind(|found| found.defect.is_none());
            (of(SnapshotKind::Final).or_else(newest), "nothing to export".into())
        }
    };
    checkpoint.ok_or_else(|| Error::input(format!("the run `{}` has {what}", entry.name)).with_hint(known()))
}
