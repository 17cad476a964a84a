//! Checkpoints: `checkpoints/step-000100/`, complete or absent.
//!
//! ```text
//! config.json  model.safetensors  tokenizer files …   the model or adapter, written by the caller
//! optimizer.safetensors    moments: `exp_avg.<parameter>` and `exp_avg_sq.<parameter>`, f32; of RMSprop `square_avg.<parameter>`; in
//!                          eight bits u8, with the largest sizes of blocks as `exp_avg_absmax.<parameter>` and `exp_avg_sq_absmax.…`
//! trainer_state.json       under the names of `transformers`
//! run_state.json           what only gradus needs: cursors and controllers
//! rng.json                 the seed; every stream is derived from (seed, purpose, step, index)
//! run_config.yml           the run's `config.yml`
//! best/                    the best model so far (hard links, where the file system has them)
//! checksums.json           length and CRC-32 of all of these
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::checksums::Checksums;
use super::directory::RunDir;
use super::kept_records::KeptRecords;
use super::metrics;
use super::tensors::{NamedCodes, NamedTensor, StateTensor, read_state, write_state};
use super::trainer_state::TrainerState;
use crate::error::{Error, Result};
use crate::files;
use crate::files::atomic::{self, FilledDir};
use crate::shell;

/// State that a resumed run needs in addition to weights and moments. Readers ignore unknown keys.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunState {
    /// Optimizer updates so far, for bias correction and the learning rate schedule.
    pub optimizer_steps: usize,
    /// Finished steps (online methods: iterations). The directory is named after it.
    pub step: usize,
    /// Current pass over the data, counted from 0.
    pub epoch: usize,
    /// Rows (online methods: prompts) of that pass that are already used.
    pub rows_used: usize,
    /// Tokens that the model has processed.
    pub tokens: u64,
    /// Coefficient of the adaptive KL controller.
    pub kl_coefficient: Option<f64>,
    /// Iterations whose KL was above the limit, if there is one.
    pub above_kl_limit: usize,
    /// Step and value of the best evaluation by the deciding metric.
    pub best: Option<(usize, f64)>,
    /// Evaluations since then, for early stopping.
    pub evaluations_since_best: usize,
    /// Seconds of training so far, including before resumptions.
    pub elapsed_s: f64,
    /// Measurements since the last row of `metrics.jsonl`.
    pub pending: Map<String, Value>,
    /// Number and hash of the training rows and of the held-out rows.
    pub data: Option<DataFingerprint>,
    /// Hash of the files of each model that a resumed run reads again, by name.
    pub models: BTreeMap<String, String>,
    /// The warning that was shown when the run began to diverge.
    pub divergence: Option<String>,
    /// True if an interruption or a crash caused this checkpoint, so that an undisturbed run has none at this step.
    pub unplanned: bool,
    /// True if the step's evaluation was interrupted. A resumed run begins with it.
    pub evaluation_due: bool,
    /// State of the method, under the method's own keys.
    pub method: Map<String, Value>,
}

impl RunState {
    /// Returns the records that stay when the run resumes from this state.
    pub fn kept_records(&self) -> KeptRecords {
        KeptRecords::new(self.step, self.evaluation_due)
    }
}

/// Identifies a data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFingerprint {
    /// Training rows.
    pub train: RowsFingerprint,
    /// Held-out rows.
    pub held_out: RowsFingerprint,
    /// Test rows, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<RowsFingerprint>,
}

/// Number of rows, and a hash of their content in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsFingerprint {
    /// Number of rows.
    pub rows: usize,
    /// FNV-1a with 64 bits, in hexadecimal.
    pub fnv1a: String,
}

/// `rng.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RngState {
    /// Seed of the run.
    seed: u64,
    /// Name of the derivation of random streams from the seed.
    generator: String,
}

/// Content of a checkpoint except for the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Path of the checkpoint; the model is loaded from there.
    pub path: PathBuf,
    /// Cursors and controllers.
    pub run_state: RunState,
    /// State under the names of `transformers`.
    pub trainer_state: TrainerState,
    /// Seed of the run.
    pub seed: u64,
}

/// Checkpoint from which a run continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The run's own checkpoint: that of a step, or the newest.
    Own(Option<usize>),
    /// Directory of a checkpoint of another run: a new run begins there.
    Other(PathBuf),
}

impl Default for Origin {
    fn default() -> Self {
        Self::Own(None)
    }
}

impl Origin {
    /// Parses a step number; any other text is a directory.
    pub fn named(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Other(text.into()), |step| Self::Own(Some(step)))
    }
}

/// Parts of a new checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct CheckpointParts<'a> {
    /// Cursors and controllers.
    pub run_state: &'a RunState,
    /// State under the names of `transformers`.
    pub trainer_state: &'a TrainerState,
    /// Seed of the run.
    pub seed: u64,
    /// Tensors of the optimizer; see [`moments`].
    pub optimizer: &'a [StateTensor<'a>],
}

/// A checkpoint whose files are written, but which is not complete yet. If it is dropped, no checkpoint exists.
#[derive(Debug)]
#[must_use = "no checkpoint exists before it is finished"]
pub struct FilledCheckpoint {
    directory: FilledDir,
    run: RunDir,
    step: usize,
    keep: usize,
}

impl FilledCheckpoint {
    /// Adds the checksums, flushes all files to disk, gives the directory its name, and removes older checkpoints. Returns its path.
    ///
    /// # Errors
    /// [`Error::Io`]; existing checkpoints stay.
    pub fn finish(self) -> Result<PathBuf> {
        let path = self.run.checkpoint(self.step);
        let at = self.directory.location();
        let summed = Checksums::of(at).and_then(|sums| sums.write(at));
        summed.map_err(|error| error.relocated(at, &path))?;
        self.directory.finish()?;
        Checkpoint::tidy(&self.run, self.step, self.keep)?;
        Ok(path)
    }
}

/// Returns the optimizer state of one parameter under PyTorch's names: AdamW's two moments, or RMSprop's one.
pub fn moments<'a>(
    parameter: &str,
    shape: &[usize],
    first: Option<&'a [f32]>,
    second: &'a [f32],
) -> Vec<StateTensor<'a>> {
    match first {
        Some(first) => vec![
            NamedTensor::new(format!("{FIRST}{parameter}"), shape, first).into(),
            NamedTensor::new(format!("{SECOND}{parameter}"), shape, second).into(),
        ],
        None => vec![NamedTensor::new(format!("{SQUARE}{parameter}"), shape, second).into()],
    }
}

/// Prefix of AdamW's first moment, the mean of the gradient.
pub const FIRST: &str = "exp_avg.";
/// Prefix of AdamW's second moment, the mean of the squared gradient.
pub const SECOND: &str = "exp_avg_sq.";
/// Prefix of RMSprop's mean of the squared gradient.
pub const SQUARE: &str = "square_avg.";
/// Prefixes of the scales (largest absolute value per block) of AdamW's two moments in eight bits.
pub const SIZES: [&str; 2] = ["exp_avg_absmax.", "exp_avg_sq_absmax."];

/// [`moments`] of AdamW in eight bits: the codes and the scales of the blocks of each moment.
pub fn moments_in_int8<'a>(parameter: &str, moments: [(&'a [u8], &'a [f32]); 2]) -> Vec<StateTensor<'a>> {
    let of = |(codes, sizes): (&'a [u8], &'a [f32]), name: &str, name_of_sizes: &str| {
        let shape = vec![codes.len()];
        let codes = NamedCodes { name: format!("{name}{parameter}").into(), shape, codes: codes.into() };
        let sizes = NamedTensor::new(format!("{name_of_sizes}{parameter}"), [sizes.len()], sizes);
        [StateTensor::Codes(codes), sizes.into()]
    };
    let [first, second] = moments;
    [of(first, FIRST, SIZES[0]), of(second, SECOND, SIZES[1])].concat()
}

impl Checkpoint {
    /// Writes `checkpoints/step-<run_state.step>/` atomically, then removes older checkpoints: all unplanned ones, and the oldest planned
    /// ones beyond `keep`.
    ///
    /// `write_model` writes weights, `config.json` and tokenizer files into the directory it is given.
    ///
    /// # Errors
    /// Errors of `write_model`, or [`Error::Io`]; existing checkpoints stay.
    pub fn write(
        run: &RunDir,
        parts: &CheckpointParts<'_>,
        keep: usize,
        write_model: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        Self::fill(run, parts, keep, write_model)?.finish()
    }

    /// The first half of [`write`](Self::write): writes all files, which the operating system may still hold in memory.
    /// [`FilledCheckpoint::finish`] is the second half. It needs no weights, so training can continue meanwhile.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn fill(
        run: &RunDir,
        parts: &CheckpointParts<'_>,
        keep: usize,
        write_model: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<FilledCheckpoint> {
        let step = parts.run_state.step;
        run.sync_logs()?;
        let directory = atomic::fill_dir(&run.checkpoint(step), |directory| {
            write_model(directory)?;
            write_state(&directory.join("optimizer.safetensors"), parts.optimizer)?;
            write_text(&directory.join("trainer_state.json"), &parts.trainer_state.to_text())?;
            write_text(&directory.join("run_state.json"), &pretty(parts.run_state))?;
            let rng = RngState { seed: parts.seed, generator: "chacha8 (seed, purpose, step, index)".into() };
            write_text(&directory.join("rng.json"), &pretty(&rng))?;
            if run.config().is_file() {
                let copy = directory.join(CONFIG_FILE);
                fs::copy(run.config(), &copy).map_err(|source| Error::io(copy, source))?;
            }
            if run.best().is_dir() {
                atomic::link_tree(&run.best(), &directory.join(BEST_DIR))?;
            }
            Ok(())
        })?;
        Ok(FilledCheckpoint { directory, run: run.clone(), step, keep })
    }

    /// Removes the checkpoints that the newest one, of `step`, makes superfluous. These are older unplanned ones, so that an interrupted
    /// run ends with the same checkpoints as an undisturbed one, and the oldest planned ones beyond `keep`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn tidy(run: &RunDir, step: usize, keep: usize) -> Result<()> {
        let unplanned = |path: &Path| read_json::<RunState>(&path.join(STATE_FILE)).is_ok_and(|state| state.unplanned);
        for older in run.checkpoint_steps()?.into_iter().filter(|&older| older < step) {
            if unplanned(&run.checkpoint(older)) {
                run.remove_checkpoint(older)?;
            }
        }
        run.prune_checkpoints(keep).map(drop)
    }

    /// Reads a checkpoint directory and verifies every file against its checksum.
    ///
    /// # Errors
    /// [`Error::Model`] that names the missing or corrupt files.
    pub fn open(path: &Path) -> Result<Self> {
        Checksums::read(path)?.verify(path)?;
        Self::read(path)
    }

    /// Reads a checkpoint directory for inspection. It verifies only the lengths of the files, not their content.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn peek(path: &Path) -> Result<Self> {
        Checksums::read(path)?.verify_lengths(path)?;
        Self::read(path)
    }

    fn read(path: &Path) -> Result<Self> {
        let run_state = read_json(&path.join(STATE_FILE))?;
        let trainer_state = read_json(&path.join("trainer_state.json"))?;
        let rng: RngState = read_json(&path.join("rng.json"))?;
        let optimizer = path.join("optimizer.safetensors");
        if !optimizer.is_file() {
            return Err(Error::model(optimizer, "missing"));
        }
        Ok(Self { path: path.to_owned(), run_state, trainer_state, seed: rng.seed })
    }

    /// Reads the checkpoint of `step` of a run for inspection, as [`peek`](Self::peek) does.
    ///
    /// # Errors
    /// [`Error::Model`] if it is corrupt, as in [`of`](Self::of).
    pub fn peek_of(run: &RunDir, step: usize) -> Result<Self> {
        Self::peek(&run.checkpoint(step)).map_err(|error| corrupt(run, step, &error))
    }

    /// Opens the checkpoint to continue from: that of `step`, or the newest. Returns `None` if the run has no checkpoint.
    ///
    /// # Errors
    /// [`Error::Input`] if there is no checkpoint of `step`. [`Error::Model`] if it is corrupt; the error names the defects, and its hint the
    /// command that resumes from the checkpoint before. An older checkpoint is never used automatically.
    pub fn of(run: &RunDir, step: Option<usize>) -> Result<Option<Self>> {
        let Some(step) = Self::step_of(run, step)? else { return Ok(None) };
        Self::open(&run.checkpoint(step)).map(Some).map_err(|error| corrupt(run, step, &error))
    }

    /// Returns the path and the text of the `config.yml` of the checkpoint of `step`, or of the newest; `None` if the run has no
    /// checkpoint. Only this file is verified against its checksum.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn config_of(run: &RunDir, step: Option<usize>) -> Result<Option<(PathBuf, String)>> {
        let Some(step) = Self::step_of(run, step)? else { return Ok(None) };
        Self::config_in(&run.checkpoint(step)).map(Some).map_err(|error| corrupt(run, step, &error))
    }

    /// [`config_of`](Self::config_of) for a checkpoint directory of any run.
    ///
    /// # Errors
    /// [`Error::Input`] if the directory is no checkpoint; [`Error::Model`] if it is corrupt.
    pub fn config_in(directory: &Path) -> Result<(PathBuf, String)> {
        if !directory.join(STATE_FILE).is_file() {
            let shown = directory.display();
            let what = if directory.is_dir() { "is not a checkpoint directory" } else { "does not exist" };
            return Err(Error::input(format!("`{shown}` {what}, and is not a step either"))
                .with_hint("name a directory such as `runs/sft-1/checkpoints/step-000100`, or a step of this run"));
        }
        let path = directory.join(CONFIG_FILE);
        Checksums::read(directory)?.verify_file(directory, CONFIG_FILE)?;
        let text = files::read_run_text(&path).map_err(|source| Error::io(&path, source))?;
        Ok((path, text))
    }

    /// Makes this checkpoint the first one of the new run `run`, and copies the rows that the other run had logged until then. The other
    /// run is unchanged.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn adopted_by(&self, run: &RunDir) -> Result<Self> {
        let path = run.checkpoint(self.run_state.step);
        fs::create_dir_all(run.checkpoints()).map_err(|source| Error::io(run.checkpoints(), source))?;
        atomic::write_dir(&path, |directory| atomic::link_files(&self.path, directory))?;
        let origin = self.path.canonicalize().map_err(|source| Error::io(&self.path, source))?;
        let logged = origin.ancestors().nth(2).map(|run| run.join("metrics.jsonl")).filter(|path| path.is_file());
        if let Some(logged) = logged {
            fs::copy(&logged, run.metrics()).map_err(|source| Error::io(&logged, source))?;
            metrics::MetricsLog::resume(&run.metrics(), self.run_state.kept_records())?;
        }
        Ok(Self { path, ..self.clone() })
    }

    fn step_of(run: &RunDir, step: Option<usize>) -> Result<Option<usize>> {
        let steps = run.checkpoint_steps()?;
        let Some(step) = step else { return Ok(steps.last().copied()) };
        if steps.contains(&step) {
            return Ok(Some(step));
        }
        let all: Vec<String> = steps.iter().map(ToString::to_string).collect();
        let (message, hint) = (format!("`{}` has no checkpoint of step {step}", run.path().display()), all.join(", "));
        let error = Error::input(message);
        Err(if all.is_empty() { error } else { error.with_hint(format!("the run has checkpoints of steps {hint}")) })
    }

    /// Returns the optimizer's tensors in the order of their names.
    ///
    /// # Errors
    /// As [`read_state`].
    pub fn optimizer(&self) -> Result<Vec<StateTensor<'static>>> {
        read_state(&self.path.join("optimizer.safetensors"))
    }

    /// Rewinds the run to this checkpoint: removes later checkpoints and restores `best/`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn rewind(&self, run: &RunDir) -> Result<()> {
        for later in run.checkpoint_steps()?.into_iter().filter(|&step| step > self.run_state.step) {
            run.remove_checkpoint(later)?;
        }
        let (kept, best) = (self.path.join(BEST_DIR), run.best());
        if kept.is_dir() {
            atomic::write_dir(&best, |directory| atomic::link_files(&kept, directory))
        } else if best.is_dir() {
            fs::remove_dir_all(&best).map_err(|source| Error::io(best, source))
        } else {
            Ok(())
        }
    }

    /// Opens the run's `metrics.jsonl` to continue from this checkpoint. Later rows are removed.
    ///
    /// # Errors
    /// As [`MetricsLog::resume`](metrics::MetricsLog::resume).
    pub fn resume_metrics(&self, run: &RunDir) -> Result<metrics::MetricsLog> {
        metrics::MetricsLog::resume(&run.metrics(), self.run_state.kept_records())
    }
}

/// File with cursors and controllers.
const STATE_FILE: &str = "run_state.json";
/// File with the run's configuration.
const CONFIG_FILE: &str = "run_config.yml";
/// Directory with the best model at the time of the checkpoint.
const BEST_DIR: &str = "best";

/// Error for a corrupt checkpoint, with the command that resumes from the complete one before it.
fn corrupt(run: &RunDir, step: usize, error: &Error) -> Error {
    let path = run.checkpoint(step);
    let is_complete = |older: usize| older < step && Checkpoint::peek(&run.checkpoint(older)).is_ok();
    let before = run.checkpoint_steps().ok().and_then(|steps| steps.into_iter().rfind(|&older| is_complete(older)));
    let hint = match before {
        Some(before) => format!(
            "`gradus runs resume {} --resume-from {before}` removes it and resumes from the checkpoint before it",
            shell::path(run.path())
        ),
        None => "no earlier checkpoint is left; start again with `--overwrite`".to_owned(),
    };
    Error::model(path, format!("corrupt checkpoint: {error}")).with_hint(hint)
}

fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("plain data with string keys") + "\n"
}

fn write_text(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|source| Error::io(path, source))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = files::read_run_text(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::model(path, "missing"),
        _ => Error::io(path, source),
    })?;
    serde_json::from_str(&text).map_err(|error| Error::model(path, format!("broken JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use super::super::directory::Existing;
    use super::*;

    struct Fixture {
        _directory: tempfile::TempDir,
        run: RunDir,
    }

    fn fixture() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let run = RunDir::create(directory.path().join("my run"), Existing::Refuse).unwrap();
        fs::write(run.config(), "model: gpt2\n").unwrap();
        Fixture { _directory: directory, run }
    }

    fn write(run: &RunDir, step: usize, keep: usize) -> PathBuf {
        fill(run, step, keep).finish().unwrap()
    }

    fn fill(run: &RunDir, step: usize, keep: usize) -> FilledCheckpoint {
        let run_state = RunState {
            optimizer_steps: 4 * step,
            step,
            epoch: 1,
            rows_used: 24,
            tokens: 12_345,
            kl_coefficient: Some(0.1 + 0.2),
            above_kl_limit: 3,
            best: Some((step, -1.0 / 3.0)),
            evaluations_since_best: 1,
            evaluation_due: true,
            elapsed_s: 1.5,
            pending: Map::new(),
            data: None,
            models: BTreeMap::new(),
            divergence: None,
            unplanned: false,
            method: Map::from_iter([("beta".to_owned(), 2.into())]),
        };
        let trainer_state = TrainerState { global_step: step, ..TrainerState::default() };
        let optimizer = moments("wte.weight", &[2, 2], Some(&[0.1, 0.2, 0.3, 0.4]), &[1e-9, 0.0, 2.0, 3.0]);
        let parts =
            CheckpointParts { run_state: &run_state, trainer_state: &trainer_state, seed: 42, optimizer: &optimizer };
        Checkpoint::fill(run, &parts, keep, |directory| write_text(&directory.join("config.json"), "{}")).unwrap()
    }

    #[test]
    fn a_filled_checkpoint_exists_only_once_it_is_finished() {
        let Fixture { run, _directory } = fixture();
        write(&run, 1, 1);
        let filled = fill(&run, 2, 1);
        assert_eq!(run.checkpoint_steps().unwrap(), [1], "the older one stays until then");
        // As after a kill: the next process removes what is left.
        std::mem::forget(filled);
        assert_eq!(atomic::recover(&run.checkpoints()).unwrap(), 1);
        assert_eq!(run.checkpoint_steps().unwrap(), [1]);
        let filled = fill(&run, 2, 1);
        assert!(std::thread::spawn(move || filled.finish()).join().unwrap().unwrap().ends_with("step-000002"));
        assert_eq!(run.checkpoint_steps().unwrap(), [2]);
        assert_eq!(Checkpoint::of(&run, None).unwrap().unwrap().run_state.step, 2);
    }

    #[test]
    fn a_checkpoint_that_cannot_be_finished_leaves_the_older_one() {
        let Fixture { run, _directory } = fixture();
        write(&run, 1, 1);
        let filled = fill(&run, 2, 1);
        fs::remove_dir_all(filled.directory.location()).unwrap();
        let error = filled.finish().unwrap_err().to_string();
        assert!(error.contains("step-000002") && !error.contains(".tmp-"), "the final path is named: {error}");
        assert_eq!(run.checkpoint_steps().unwrap(), [1]);
        let dropped = fill(&run, 3, 1);
        drop(dropped);
        assert_eq!(atomic::recover(&run.checkpoints()).unwrap(), 0, "nothing is left of it");
    }

    #[test]
    fn a_checkpoint_comes_back_as_it_was() {
        let Fixture { run, _directory } = fixture();
        let path = write(&run, 100, 2);
        assert!(path.ends_with("checkpoints/step-000100"));
        let mut names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(
            names,
            [
                "checksums.json",
                "config.json",
                "optimizer.safetensors",
                "rng.json",
                "run_config.yml",
                "run_state.json",
                "trainer_state.json"
            ]
        );
        let checkpoint = Checkpoint::of(&run, None).unwrap().unwrap();
        assert_eq!((checkpoint.seed, checkpoint.trainer_state.global_step), (42, 100));
        assert_eq!(checkpoint.run_state.kl_coefficient, Some(0.1 + 0.2), "every bit");
        assert_eq!(checkpoint.run_state.best, Some((100, -1.0 / 3.0)));
        assert_eq!(checkpoint.run_state.method["beta"], 2);
        let optimizer = checkpoint.optimizer().unwrap();
        assert_eq!((optimizer[0].name(), optimizer[1].name()), ("exp_avg.wte.weight", "exp_avg_sq.wte.weight"));
        let StateTensor::Numbers(second) = &optimizer[1] else { panic!("it is in f32") };
        assert_eq!(*second.values, [1e-9, 0.0, 2.0, 3.0]);
    }

    #[test]
    fn a_run_without_checkpoints_has_no_last_one() {
        assert_eq!(Checkpoint::of(&fixture().run, None).unwrap(), None);
    }

    #[test]
    fn old_checkpoints_go_only_after_the_new_one_is_there() {
        let Fixture { run, _directory } = fixture();
        for step in [1, 2, 3] {
            write(&run, step, 2);
        }
        assert_eq!(run.checkpoint_steps().unwrap(), [2, 3]);
        let state = (RunState { step: 4, ..RunState::default() }, TrainerState::default());
        let parts = CheckpointParts { run_state: &state.0, trainer_state: &state.1, seed: 1, optimizer: &[] };
        Checkpoint::write(&run, &parts, 1, |_| Err(Error::input("no disk"))).unwrap_err();
        assert_eq!(run.checkpoint_steps().unwrap(), [2, 3]);
    }

    #[test]
    fn what_an_interruption_left_goes_with_the_next_checkpoint() {
        let Fixture { run, _directory } = fixture();
        let write = |step: usize, planned: bool, keep: usize| {
            let state = (RunState { step, unplanned: !planned, ..RunState::default() }, TrainerState::default());
            let parts = CheckpointParts { run_state: &state.0, trainer_state: &state.1, seed: 1, optimizer: &[] };
            Checkpoint::write(&run, &parts, keep, |_| Ok(())).unwrap();
            run.checkpoint_steps().unwrap()
        };
        assert_eq!((write(10, true, 2), write(15, true, 2)), (vec![10], vec![10, 15]));
        assert_eq!((write(17, false, 2), write(18, false, 2)), (vec![15, 17], vec![15, 18]));
        assert_eq!(write(20, true, 2), [15, 20]);
    }

    #[test]
    fn a_corrupt_checkpoint_is_named_and_the_one_before_it_only_taken_when_asked_for() {
        let Fixture { run, _directory } = fixture();
        for step in [1, 2] {
            write(&run, step, 3);
        }
        let flip = |file: &Path| {
            let mut bytes = fs::read(file).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
            fs::write(file, bytes).unwrap();
        };
        let refused = |step| {
            let error = Checkpoint::of(&run, step).unwrap_err();
            (error.to_string(), error.hint().map(ToOwned::to_owned))
        };
        for name in
            ["optimizer.safetensors", "run_state.json", "trainer_state.json", "rng.json", "config.json", CONFIG_FILE]
        {
            let file = run.checkpoint(2).join(name);
            flip(&file);
            let (message, hint) = refused(None);
            let start = format!("{}: corrupt checkpoint: {}: its content", run.checkpoint(2).display(), file.display());
            assert!(message.starts_with(&start), "{message}");
            let command = format!("`gradus runs resume '{}' --resume-from 1`", run.path().display());
            let expected = format!("{command} removes it and resumes from the checkpoint before it");
            assert_eq!(hint, Some(expected));
            assert_eq!(Checkpoint::config_of(&run, None).is_err(), name == CONFIG_FILE, "{name}");
            flip(&file);
            Checkpoint::of(&run, None).unwrap();
        }
        fs::remove_file(run.checkpoint(2).join("rng.json")).unwrap();
        let error = Checkpoint::peek_of(&run, 2).unwrap_err();
        assert!(
            error.to_string().ends_with("rng.json: missing") && error.hint() == refused(None).1.as_deref(),
            "{error}"
        );
        let checkpoint = Checkpoint::of(&run, Some(1)).unwrap().unwrap();
        assert_eq!(checkpoint.run_state.step, 1);
        checkpoint.rewind(&run).unwrap();
        assert_eq!(run.checkpoint_steps().unwrap(), [1], "nobody goes on from what comes after it");

        fs::write(run.checkpoint(1).join("run_state.json"), "{").unwrap();
        assert_eq!(refused(None).1.as_deref(), Some("no earlier checkpoint is left; start again with `--overwrite`"));
        let (message, hint) = refused(Some(7));
        assert_eq!(message, format!("`{}` has no checkpoint of step 7", run.path().display()));
        assert_eq!(hint.as_deref(), Some("the run has checkpoints of steps 1"));
    }

    #[test]
    fn the_best_model_is_what_it_was_at_the_checkpoint() {
        let Fixture { run, _directory } = fixture();
        write(&run, 1, 5);
        let best = |text: &str| {
            atomic::write_dir(&run.best(), |directory| write_text(&directory.join("config.json"), text)).unwrap();
        };
        best("of step 2");
        write(&run, 2, 5);
        best("of step 3");
        let rewind = |step| Checkpoint::of(&run, Some(step)).unwrap().unwrap().rewind(&run).unwrap();
        rewind(2);
        assert_eq!(fs::read_to_string(run.best().join("config.json")).unwrap(), "of step 2");
        rewind(1);
        assert!(!run.best().exists());
    }
}
