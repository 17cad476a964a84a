//! Training primitives for loops written in Python.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gradus::learner::optimizer::{AdamWConfig, MomentFormat, OptimizerConfig};
use gradus::model::adapter::LoraConfig;
use gradus::process::Interrupt;
use gradus::rng::Seed;
use gradus::trainer::{Datum, ForwardBackward, Loss, OptimStep, Trainer, TrainerOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::compute::compute;
use crate::convert::to_json;
use crate::errors::exception;
use crate::sampling::sampling;
use crate::session::{floats, word};

/// A policy in training.
#[pyclass(frozen, module = "gradus._native")]
pub struct NativeTrainer(Arc<Mutex<Trainer>>);

fn locked(trainer: &Mutex<Trainer>) -> MutexGuard<'_, Trainer> {
    trainer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A training row: prompt, completion, weights, and log-probabilities under the policy that sampled it.
type TrainingRow = (Vec<u32>, Vec<u32>, Vec<f32>, Vec<f32>);

/// Returns the loss with this name, with its bounds and the weight of its penalty. Bounds that are not given are those of the loss.
fn loss(name: &str, low: Option<f64>, high: Option<f64>, beta: f64) -> PyResult<Loss> {
    let bounds = |[default_low, default_high]: [f64; 2]| {
        let (low, high) = (low.unwrap_or(default_low), high.unwrap_or(default_high));
        match low <= high {
            true => Ok((low, high)),
            false => Err(PyValueError::new_err(format!("`low` is {low}, but `high` is only {high}"))),
        }
    };
    Ok(match name {
        "cross_entropy" => Loss::CrossEntropy,
        "importance_sampling" => Loss::ImportanceSampling,
        "ppo" => bounds(Loss::PPO_BOUNDS).map(|(low, high)| Loss::Ppo { low, high })?,
        "cispo" => bounds(Loss::CISPO_BOUNDS).map(|(low, high)| Loss::Cispo { low, high })?,
        "dro" => Loss::Dro { beta },
        _ => {
            return Err(PyValueError::new_err(format!(
                "`loss` is `{name}`, but must be `cross_entropy`, `importance_sampling`, `ppo`, `cispo` or `dro`"
            )));
        }
    })
}

impl NativeTrainer {
    /// Runs `job` with the trainer on the compute threads.
    fn with<T: Send + 'static>(
        &self,
        py: Python<'_>,
        job: impl FnOnce(&mut Trainer) -> gradus::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let trainer = Arc::clone(&self.0);
        let found = compute(py, None, &Interrupt::default(), move || job(&mut locked(&trainer)))?;
        found.map_err(|error| exception(py, error))
    }
}

#[pymethods]
impl NativeTrainer {
    #[new]
    #[pyo3(signature = (model, lora, weights, compute_in, device, betas, epsilon, weight_decay, seed))]
    #[expect(clippy::too_many_arguments, reason = "one for each option of a trainer")]
    fn new(
        py: Python<'_>,
        model: String,
        lora: Option<&Bound<'_, PyAny>>,
        weights: &str,
        compute_in: &str,
        device: &str,
        betas: [f64; 2],
        epsilon: f64,
        weight_decay: f64,
        seed: u64,
    ) -> PyResult<Self> {
        let lora = lora.map(|lora| {
            let found: Result<LoraConfig, _> = serde_json::from_value(to_json("lora", lora)?);
            found.map_err(|error| PyValueError::new_err(format!("`lora`: {error}")))
        });
        let options = TrainerOptions {
            model,
            lora: lora.transpose()?,
            weights: word("weights", weights)?,
            device: word("device", device)?,
            compute: word("compute", compute_in)?,
            optimizer: OptimizerConfig::AdamW(AdamWConfig { betas, epsilon, weight_decay, moments: MomentFormat::F32 }),
            seed: Seed(seed),
            ..TrainerOptions::default()
        };
        let opened = compute(py, None, &Interrupt::default(), move || {
            gradus_cli::fetch_model(&options.model)?;
            Trainer::open(&options)
        })?;
        let trainer = opened.map_err(|error| exception(py, error))?;
        Ok(Self(Arc::new(Mutex::new(trainer))))
    }

    /// Version of the policy's weights.
    #[getter]
    fn version(&self) -> u64 {
        locked(&self.0).version()
    }

    /// Encodes a text as ids.
    fn encode(&self, py: Python<'_>, text: &str, add_special_tokens: bool) -> PyResult<Vec<u32>> {
        locked(&self.0).tokenizer().encode(text, add_special_tokens).map_err(|error| exception(py, error))
    }

    /// Decodes ids to a text.
    fn decode(&self, py: Python<'_>, ids: Vec<u32>, skip_special_tokens: bool) -> PyResult<String> {
        locked(&self.0).tokenizer().decode(&ids, skip_special_tokens).map_err(|error| exception(py, error))
    }

    /// Adds the gradient of a loss. Returns its sum over tokens, the log-probabilities of each completion, and the number of computed
    /// tokens.
    #[pyo3(signature = (rows, name, low, high, beta))]
    fn forward_backward<'py>(
        &self,
        py: Python<'py>,
        rows: Vec<TrainingRow>,
        name: &str,
        low: Option<f64>,
        high: Option<f64>,
        beta: f64,
    ) -> PyResult<(f64, Vec<Bound<'py, PyBytes>>, usize)> {
        let loss = loss(name, low, high, beta)?;
        let datum = |(prompt, completion, weights, old_logprobs)| Datum { prompt, completion, weights, old_logprobs };
        let data: Vec<Datum> = rows.into_iter().map(datum).collect();
        let ForwardBackward { loss, logprobs, tokens } =
            self.with(py, move |trainer| trainer.forward_backward(&data, loss))?;
        Ok((loss, logprobs.iter().map(|logprobs| floats(py, logprobs)).collect(), tokens))
    }

    /// Updates the weights. Returns the norm of the gradient before clipping, and the new version of the weights.
    fn optim_step(&self, py: Python<'_>, learning_rate: f64, max_grad_norm: f64) -> PyResult<(f64, u64)> {
        let OptimStep { grad_norm, version } =
            self.with(py, move |trainer| trainer.optim_step(learning_rate, max_grad_norm))?;
        Ok((grad_norm, version))
    }

    /// Returns the log-probabilities of each completion after its prompt.
    fn logprobs<'py>(&self, py: Python<'py>, rows: Vec<(Vec<u32>, Vec<u32>)>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let found = self.with(py, move |trainer| {
            let rows: Vec<(&[u32], &[u32])> =
                rows.iter().map(|(prompt, completion)| (&prompt[..], &completion[..])).collect();
            trainer.logprobs(&rows)
        })?;
        Ok(found.iter().map(|logprobs| floats(py, logprobs)).collect())
    }

    /// Returns `group_size` completions of each prompt.
    fn sample<'py>(
        &self,
        py: Python<'py>,
        prompts: Vec<Vec<u32>>,
        group_size: usize,
        arguments: &Bound<'py, PyDict>,
        seed: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        let params = sampling(arguments)?;
        let found = self.with(py, move |trainer| {
            let prompts: Vec<&[u32]> = prompts.iter().map(|prompt| &prompt[..]).collect();
            trainer.sample(&prompts, group_size, &params, Seed(seed))
        })?;
        let list = PyList::empty(py);
        for completion in found {
            let of = PyDict::new(py);
            of.set_item("completion_ids", &completion.ids)?;
            of.set_item("logprobs", floats(py, &completion.logprobs))?;
            of.set_item("sampled_logprobs", floats(py, &completion.sampled_logprobs))?;
            of.set_item("stop", completion.stop.name())?;
            list.append(of)?;
        }
        Ok(list)
    }

    /// Writes the policy as a Hugging Face directory.
    fn save(&self, py: Python<'_>, directory: PathBuf) -> PyResult<()> {
        self.with(py, move |trainer| trainer.save(&directory))
    }
}
