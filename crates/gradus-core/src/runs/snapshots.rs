//! Models of a run: its checkpoints, the best and the final one.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::entry::{read_results, size};
use crate::error::{Error, Result};
use crate::files::output::Outputs;
use crate::run::tensors::check_length;
use crate::run::{Checkpoint, RunDir, read_metrics};

/// Files in a checkpoint that belong to the run and not to the model.
const OF_THE_RUN: [&str; 8] = [
    "optimizer.safetensors",
    "trainer_state.json",
    "run_state.json",
    "rng.json",
    "run_config.yml",
    "checksums.json",
    "critic",
    "value_head.safetensors",
];

/// Kind of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotKind {
    /// `checkpoints/step-000100/`: the state from which the run can continue.
    Checkpoint,
    /// `best/`: the model with the best value of the deciding metric so far.
    Best,
    /// `model/`: the model that the finished run produced.
    Final,
}

/// One model of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snapshot {
    /// Kind of the snapshot.
    pub kind: SnapshotKind,
    /// Number of steps before it, if known.
    pub step: Option<usize>,
    /// Directory of the model.
    pub path: PathBuf,
    /// The run's deciding metric at this step, if it was measured.
    pub value: Option<f64>,
    /// Size of its files in bytes.
    pub size_bytes: u64,
    /// Defect of the model; `None` if it is complete.
    pub defect: Option<String>,
}

impl Snapshot {
    /// Name in tables: `step 100`, `best`, `model`.
    pub fn name(&self) -> String {
        match (self.kind, self.step) {
            (SnapshotKind::Checkpoint, step) => format!("step {}", step.unwrap_or(0)),
            (SnapshotKind::Best, _) => "best".into(),
            (SnapshotKind::Final, _) => "model".into(),
        }
    }
}

/// Returns all models of a run: checkpoints by step, then the best, then the final one. `metric` is the deciding metric.
///
/// # Errors
/// [`Error::Io`] if the directory of checkpoints cannot be read.
pub fn snapshots(run: &RunDir, metric: Option<&str>) -> Result<Vec<Snapshot>> {
    let rows = read_metrics(&run.metrics()).unwrap_or_default();
    let measured = |step: Option<usize>| {
        let row = rows.iter().find(|row| Some(row.step) == step)?;
        row.values.get(metric?).filter(|value| value.is_finite())
    };
    let mut found = Vec::new();
    for step in run.checkpoint_steps()? {
        let path = run.checkpoint(step);
        let defect = Checkpoint::peek(&path).and_then(|_| check_model(&path)).err().map(|error| error.to_string());
        let step = Some(step);
        found.push(Snapshot {
            kind: SnapshotKind::Checkpoint,
            step,
            value: measured(step),
            size_bytes: size(&path),
            path,
            defect,
        });
    }
    let (best, last) = (best(run), rows.last().map(|row| row.step));
    for (kind, path, step) in
        [(SnapshotKind::Best, run.best(), best.map(|best| best.0)), (SnapshotKind::Final, run.model(), last)]
    {
        if path.is_dir() {
            let known = best.filter(|_| kind == SnapshotKind::Best).map(|best| best.1);
            let defect = check_model(&path).err().map(|error| error.to_string());
            let value = known.or_else(|| measured(step));
            found.push(Snapshot { kind, step, value, size_bytes: size(&path), path, defect });
        }
    }
    Ok(found)
}

/// Returns the consequence of removing the checkpoint of `step`, as a warning before it is removed. `None` if the run would not resume from
/// it.
pub fn without_checkpoint(snapshots: &[Snapshot], step: usize) -> Option<String> {
    let steps =
        || snapshots.iter().filter(|found| found.kind == SnapshotKind::Checkpoint).filter_map(|found| found.step);
    (steps().max() == Some(step)).then(|| match steps().filter(|&other| other != step).max() {
        Some(before) => format!("it is the newest: the run would resume from step {before}"),
        None => "it is the only one: the run could not be resumed".into(),
    })
}

/// Reason why a run has no `best/`.
pub fn why_no_best(run: &RunDir) -> String {
    match best(run) {
        Some((0, start)) => format!("no evaluation beat the start ({start:.4})"),
        _ => "nothing was evaluated".to_owned(),
    }
}

/// Step and value of `best/` according to the results, or else to the newest checkpoint. Step 0 is the start, which is not copied.
fn best(run: &RunDir) -> Option<(usize, f64)> {
    let results = read_results(run.path()).ok().flatten().and_then(|results| {
        let best = results.get("best")?;
        Some((best.get("step")?.as_u64()? as usize, best.get("value")?.as_f64()?))
    });
    let checkpoint = || {
        let step = run.checkpoint_steps().ok()?.pop()?;
        Checkpoint::peek(&run.checkpoint(step)).ok()?.run_state.best
    };
    results.or_else(checkpoint)
}

/// Checks that a model directory has a configuration and complete weights.
fn check_model(path: &Path) -> Result<()> {
    if !["config.json", "adapter_config.json"].iter().any(|name| path.join(name).is_file()) {
        return Err(Error::model(path, "neither `config.json` nor `adapter_config.json`"));
    }
    let mut weights = 0;
    for entry in fs::read_dir(path).map_err(|source| Error::io(path, source))?.flatten() {
        let file = entry.path();
        let is_weights = file.extension().is_some_and(|extension| extension == "safetensors");
        if is_weights && !OF_THE_RUN.contains(&entry.file_name().to_string_lossy().as_ref()) {
            check_length(&file)?;
            weights += 1;
        }
    }
    if weights == 0 { Err(Error::model(path, "no weights: there is no `.safetensors` file")) } else { Ok(()) }
}

/// Copies a model to `output` atomically, as a plain model directory without the files of the run. `overwrite` allows replacing an existing
/// model.
///
/// # Errors
/// [`Error::Config`] if [`Outputs::model_dir`] rejects `output`, [`Error::Model`] for an incomplete model, [`Error::Io`].
pub fn export(snapshot: &Snapshot, output: &Path, overwrite: bool) -> Result<Vec<String>> {
    if let Some(defect) = &snapshot.defect {
        return Err(Error::model(&snapshot.path, format!("not complete: {defect}")));
    }
    let output = Outputs::new(overwrite).reading(&snapshot.path).model_dir(output)?;
    check_model(&snapshot.path)?;
    if snapshot.kind == SnapshotKind::Checkpoint {
        Checkpoint::open(&snapshot.path)?;
    }
    let mut names = Vec::new();
    output.write(|directory| {
        let entries = fs::read_dir(&snapshot.path).map_err(|source| Error::io(&snapshot.path, source))?;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if OF_THE_RUN.contains(&name.as_str()) || name.starts_with('.') || !entry.path().is_file() {
                continue;
            }
            let to = directory.join(entry.file_name());
            fs::copy(entry.path(), &to).map_err(|source| Error::io(to, source))?;
            names.push(name);
        }
        Ok(())
    })?;
    names.sort();
    Ok(names)
}
