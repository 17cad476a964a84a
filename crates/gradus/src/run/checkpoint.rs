//! Checkpoints: `checkpoints/step-000100/`, complete or absent.
//!
//! ```text
//! config.json  model.safetensors  tokenizer files …   the model or adapter, written by the caller
//! optimizer.safetensors    moments: `exp_avg.<parameter>` and `exp_avg_sq.<parameter>`, f32
//! trainer_state.json       under the names of `transformers`
//! run_state.json           what only gradus needs: cursors and controllers
//! rng.json                 the seed; every stream is derived from (seed, purpose, step, index)
//! run_config.yml           the run's `config.yml`
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::directory::RunDir;
use super::tensors::{NamedTensor, check_length, read_tensors, write_tensors};
use super::trainer_state::TrainerState;
use super::{atomic, metrics};
use crate::error::{Error, Result};

/// What a resumed run needs besides weights and moments. Readers ignore keys they do not know.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunState {
    /// Updates done by the optimiser, for its bias correction and the schedule.
    pub optimizer_steps: usize,
    /// Steps (online methods: iterations) done; the number in the directory's name.
    pub step: usize,
    /// The pass over the data, counted from 0.
    pub epoch: usize,
    /// Rows (online methods: prompts) of that pass already used.
    pub rows_used: usize,
    /// Tokens that went through the model.
    pub tokens: u64,
    /// The adaptive KL coefficient.
    pub kl_coefficient: Option<f64>,
    /// The best value of the deciding metric, and the step that reached it.
    pub best: Option<(usize, f64)>,
    /// Evaluations since then, for early stopping.
    pub evaluations_since_best: usize,
    /// Seconds of training so far, over all resumptions.
    pub elapsed_s: f64,
    /// The state of one method, under names of its own.
    pub method: Map<String, Value>,
}

/// `rng.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RngState {
    /// The seed of the run.
    seed: u64,
    /// How streams are derived from it.
    generator: String,
}

/// A checkpoint's content apart from the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Where it lies; the model is loaded from here.
    pub path: PathBuf,
    /// Cursors and controllers.
    pub run_state: RunState,
    /// The state under the names of `transformers`.
    pub trainer_state: TrainerState,
    /// The seed of the run.
    pub seed: u64,
}

/// What a checkpoint is made of.
#[derive(Debug, Clone, Copy)]
pub struct CheckpointParts<'a> {
    /// Cursors and controllers.
    pub run_state: &'a RunState,
    /// The state under the names of `transformers`.
    pub trainer_state: &'a TrainerState,
    /// The seed of the run.
    pub seed: u64,
    /// The optimiser's tensors; see [`moments`].
    pub optimizer: &'a [NamedTensor<'a>],
}

/// The newest usable checkpoint, and the newer ones that are corrupt.
#[derive(Debug, Clone, PartialEq)]
pub struct LastCheckpoint {
    /// The one to go on from.
    pub checkpoint: Checkpoint,
    /// Directories that were passed over, with the reason.
    pub corrupt: Vec<(PathBuf, String)>,
}

/// The two moments of one parameter under the names of the optimiser file.
pub fn moments<'a>(parameter: &str, shape: &[usize], first: &'a [f32], second: &'a [f32]) -> [NamedTensor<'a>; 2] {
    [
        NamedTensor::new(format!("exp_avg.{parameter}"), shape, first),
        NamedTensor::new(format!("exp_avg_sq.{parameter}"), shape, second),
    ]
}

impl Checkpoint {
    /// Writes `checkpoints/step-<run_state.step>/` as a whole, then removes the oldest ones beyond `keep`.
    ///
    /// `write_model` writes weights, `config.json` and tokenizer files into the directory it is given.
    ///
    /// # Errors
    /// What `write_model` returns, or [`Error::Io`]; the checkpoints that were there stay.
    pub fn write(
        run: &RunDir,
        parts: &CheckpointParts<'_>,
        keep: usize,
        write_model: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let path = run.checkpoint(parts.run_state.step);
        atomic::write_dir(&path, |directory| {
            write_model(directory)?;
            write_tensors(&directory.join("optimizer.safetensors"), parts.optimizer)?;
            write_text(&directory.join("trainer_state.json"), &parts.trainer_state.to_text())?;
            write_text(&directory.join("run_state.json"), &pretty(parts.run_state))?;
            let rng = RngState { seed: parts.seed, generator: "chacha8 (seed, purpose, step, index)".into() };
            write_text(&directory.join("rng.json"), &pretty(&rng))?;
            if run.config().is_file() {
                let copy = directory.join("run_config.yml");
                fs::copy(run.config(), &copy).map_err(|source| Error::io(copy, source))?;
            }
            Ok(())
        })?;
        run.prune_checkpoints(keep)?;
        Ok(path)
    }

    /// Reads and checks a checkpoint directory; tensors are not read, only their files' lengths compared.
    ///
    /// # Errors
    /// [`Error::Model`] that names the file that is missing or broken.
    pub fn open(path: &Path) -> Result<Self> {
        let run_state = read_json(&path.join("run_state.json"))?;
        let trainer_state = read_json(&path.join("trainer_state.json"))?;
        let rng: RngState = read_json(&path.join("rng.json"))?;
        let optimizer = path.join("optimizer.safetensors");
        if !optimizer.is_file() {
            return Err(Error::model(optimizer, "missing"));
        }
        for file in tensor_files(path)? {
            check_length(&file)?;
        }
        Ok(Self { path: path.to_owned(), run_state, trainer_state, seed: rng.seed })
    }

    /// The newest checkpoint that can be used; `None` when the run has none at all.
    ///
    /// # Errors
    /// [`Error::Model`] when there are checkpoints but all of them are corrupt; it names the newest one's defect.
    pub fn last(run: &RunDir) -> Result<Option<LastCheckpoint>> {
        let mut corrupt = Vec::new();
        for step in run.checkpoint_steps()?.into_iter().rev() {
            let path = run.checkpoint(step);
            match Self::open(&path) {
                Ok(checkpoint) => return Ok(Some(LastCheckpoint { checkpoint, corrupt })),
                Err(error) => corrupt.push((path, error.to_string())),
            }
        }
        match corrupt.first() {
            None => Ok(None),
            Some((path, reason)) => {
                let message = format!("corrupt checkpoint: {reason}");
                Err(Error::model(path, message)
                    .with_hint("no other checkpoint is left; start again with `--overwrite`"))
            }
        }
    }

    /// The optimiser's tensors in the order of their names.
    ///
    /// # Errors
    /// As [`read_tensors`].
    pub fn optimizer(&self) -> Result<Vec<NamedTensor<'static>>> {
        read_tensors(&self.path.join("optimizer.safetensors"))
    }

    /// Opens the run's `metrics.jsonl` for going on from here: later rows are removed.
    ///
    /// # Errors
    /// As [`MetricsLog::resume`](metrics::MetricsLog::resume).
    pub fn resume_metrics(&self, run: &RunDir) -> Result<metrics::MetricsLog> {
        metrics::MetricsLog::resume(&run.metrics(), self.run_state.step)
    }
}

/// Every safetensors file in the directory and its sub-directories (a critic's, say).
fn tensor_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(|source| Error::io(directory, source))?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(tensor_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "safetensors") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("plain data with string keys") + "\n"
}

fn write_text(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|source| Error::io(path, source))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path).map_err(|source| match source.kind() {
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
        let run = RunDir::create(directory.path().join("run"), Existing::Refuse).unwrap();
        fs::write(run.config(), "model: gpt2\n").unwrap();
        Fixture { _directory: directory, run }
    }

    fn write(run: &RunDir, step: usize, keep: usize) -> PathBuf {
        let run_state = RunState {
            optimizer_steps: 4 * step,
            step,
            epoch: 1,
            rows_used: 24,
            tokens: 12_345,
            kl_coefficient: Some(0.1 + 0.2),
            best: Some((step, -1.0 / 3.0)),
            evaluations_since_best: 1,
            elapsed_s: 1.5,
            method: Map::from_iter([("beta".to_owned(), 2.into())]),
        };
        let trainer_state = TrainerState { global_step: step, ..TrainerState::default() };
        let optimizer = moments("wte.weight", &[2, 2], &[0.1, 0.2, 0.3, 0.4], &[1e-9, 0.0, 2.0, 3.0]);
        let parts =
            CheckpointParts { run_state: &run_state, trainer_state: &trainer_state, seed: 42, optimizer: &optimizer };
        Checkpoint::write(run, &parts, keep, |directory| write_text(&directory.join("config.json"), "{}")).unwrap()
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
                "config.json",
                "optimizer.safetensors",
                "rng.json",
                "run_config.yml",
                "run_state.json",
                "trainer_state.json"
            ]
        );
        let LastCheckpoint { checkpoint, corrupt } = Checkpoint::last(&run).unwrap().unwrap();
        assert!(corrupt.is_empty());
        assert_eq!((checkpoint.seed, checkpoint.trainer_state.global_step), (42, 100));
        assert_eq!(checkpoint.run_state.kl_coefficient, Some(0.1 + 0.2), "every bit");
        assert_eq!(checkpoint.run_state.best, Some((100, -1.0 / 3.0)));
        assert_eq!(checkpoint.run_state.method["beta"], 2);
        let optimizer = checkpoint.optimizer().unwrap();
        assert_eq!(
            (optimizer[0].name.as_ref(), optimizer[1].name.as_ref()),
            ("exp_avg.wte.weight", "exp_avg_sq.wte.weight")
        );
        assert_eq!(*optimizer[1].values, [1e-9, 0.0, 2.0, 3.0]);
    }

    #[test]
    fn a_run_without_checkpoints_has_no_last_one() {
        assert_eq!(Checkpoint::last(&fixture().run).unwrap(), None);
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
    fn a_corrupt_checkpoint_is_named_and_passed_over() {
        let Fixture { run, _directory } = fixture();
        for step in [1, 2] {
            write(&run, step, 3);
        }
        let file = run.checkpoint(2).join("optimizer.safetensors");
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        let last = Checkpoint::last(&run).unwrap().unwrap();
        assert_eq!(last.checkpoint.run_state.step, 1);
        let reason = format!("{}: {} bytes, but its header promises {}", file.display(), bytes.len() - 1, bytes.len());
        assert_eq!(last.corrupt, [(run.checkpoint(2), reason)]);

        fs::remove_file(run.checkpoint(2).join("rng.json")).unwrap();
        fs::write(run.checkpoint(1).join("run_state.json"), "{").unwrap();
        let message = Checkpoint::last(&run).unwrap_err().to_string();
        let (path, file) = (run.checkpoint(2), run.checkpoint(2).join("rng.json"));
        assert_eq!(message, format!("{}: corrupt checkpoint: {}: missing", path.display(), file.display()));
    }
}
