//! Training runs: a method, its keys and its callables in, a run directory out.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gradus::Error;
use gradus::config::{Argument, Plan, Registry, Request, Resume, ResumeFrom, RunConfig};
use gradus::machine::Machine;
use gradus::memory::Forecast;
use gradus::observer::{Event, Observer};
use gradus::process::Interrupt;
use gradus::run::{Existing, Origin};
use gradus::train::{Outcome, forecast};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde_json::Value;

use crate::callables::{Shared, register, text_of};
use crate::compute::compute;
use crate::convert::{from_json, to_json};
use crate::errors::exception;

/// How often progress within a step is told.
const TELLING: Duration = Duration::from_millis(100);

/// A run as Python asks for it.
struct Asked {
    method: Option<String>,
    config: Option<PathBuf>,
    arguments: Vec<Argument>,
    existing: String,
    resume_from: Option<String>,
    registry: Registry,
    shared: Arc<Shared>,
}

impl Asked {
    fn plan(&self) -> gradus::Result<Plan> {
        let machine = Machine::detect();
        let request = Request {
            file: self.config.as_deref(),
            method: self.method.as_deref(),
            arguments: &self.arguments,
            registry: Some(&self.registry),
            ..Request::default()
        };
        let origin = self.resume_from.as_deref().map(Origin::named);
        if let Some(Origin::Other(checkpoint)) = &origin {
            return Resume { from: ResumeFrom::Checkpoint(checkpoint), request }.plan(&machine);
        }
        if origin.is_some() || self.existing == "resume" {
            let directory = &Resume::directory_of(&request)?;
            let step = if let Some(Origin::Own(step)) = origin { step } else { None };
            return Resume { from: ResumeFrom::Run { directory, step }, request }.plan(&machine);
        }
        let existing = if self.existing == "overwrite" { Existing::Overwrite } else { Existing::Refuse };
        Ok(Plan::check(&RunConfig::load(&request)?, &machine)?.on_existing(existing))
    }
}

/// Reads what Python asks for.
fn asked(
    method: Option<String>,
    arguments: &Bound<'_, PyDict>,
    config: Option<PathBuf>,
    existing: &str,
    resume_from: Option<String>,
    callables: Vec<(String, String, Py<PyAny>)>,
) -> PyResult<Asked> {
    let py = arguments.py();
    let shared = Arc::new(Shared::default());
    let mut registry = Registry::default();
    register(&mut registry, callables, &shared).map_err(|error| exception(py, error))?;
    let mut found = Vec::with_capacity(arguments.len());
    for (name, value) in arguments {
        let name: String = name.extract()?;
        let value = to_json(&name, &value)?;
        let argument = Argument::named(&name, value, method.as_deref()).map_err(|message| {
            pyo3::exceptions::PyTypeError::new_err(match &method {
                Some(method) => format!("{method}() {message}"),
                None => message,
            })
        })?;
        found.push(argument);
    }
    let existing = existing.to_owned();
    Ok(Asked { method, config, arguments: found, existing, resume_from, registry, shared })
}

/// Trains. `handler(kind, details)` hears of what happens; where it returns `False`, the run stops after a checkpoint.
///
/// # Errors
/// The exception of what is wrong with the input; of a callable, with its traceback; `KeyboardInterrupt` after a checkpoint.
#[pyfunction]
#[pyo3(signature = (method, arguments, config, existing, resume_from, callables, handler, wants_rollouts))]
#[expect(clippy::too_many_arguments, reason = "one for each part of what Python hands over")]
pub fn train<'py>(
    py: Python<'py>,
    method: Option<String>,
    arguments: &Bound<'py, PyDict>,
    config: Option<PathBuf>,
    existing: &str,
    resume_from: Option<String>,
    callables: Vec<(String, String, Py<PyAny>)>,
    handler: Py<PyAny>,
    wants_rollouts: bool,
) -> PyResult<(String, Bound<'py, PyAny>, bool)> {
    let asked = asked(method, arguments, config, existing, resume_from, callables)?;
    let shared = Arc::clone(&asked.shared);
    let plan = asked.plan().and_then(Plan::in_directory_of_its_own).map_err(|error| exception(py, error))?;
    let directory = plan.output_dir().to_owned();
    let threads = plan.train().threads;
    let mut watcher = PyObserver { handler, wants_rollouts, shared: Arc::clone(&shared), told: None };
    let outcome = compute(py, threads, &shared.interrupt, move || {
        gradus_cli::fetch_inputs(&plan)?;
        gradus::train::run(&plan, &mut watcher)
    });
    // What Ctrl-C raised is told as it is; what a callable raised comes with what became of the run.
    let outcome = outcome?;
    match (outcome, shared.take()) {
        (Ok(Outcome { directory, results, .. }), None) => Ok((text_of(&directory), from_json(py, &results)?, true)),
        (Err(Error::Interrupted) | Ok(_), Some(raised)) => Err(raised),
        (Err(Error::Interrupted), None) => Ok((text_of(&directory), from_json(py, &Value::Null)?, false)),
        (Err(error), cause) => {
            let error = exception(py, error);
            error.set_cause(py, cause);
            Err(error)
        }
    }
}

/// What a run would need in memory, as `gradus plan --json` prints it.
///
/// # Errors
/// As of [`train`].
#[pyfunction]
#[pyo3(signature = (method, arguments, config, callables))]
pub fn plan<'py>(
    py: Python<'py>,
    method: Option<String>,
    arguments: &Bound<'py, PyDict>,
    config: Option<PathBuf>,
    callables: Vec<(String, String, Py<PyAny>)>,
) -> PyResult<Bound<'py, PyAny>> {
    let asked = asked(method, arguments, config, "refuse", None, callables)?;
    let shared = Arc::clone(&asked.shared);
    let plan = asked.plan().map_err(|error| exception(py, error))?;
    let found: gradus::Result<Forecast> = compute(py, None, &shared.interrupt, move || {
        gradus_cli::fetch_inputs(&plan)?;
        Ok(forecast::workload(&plan, 1, &mut gradus::observer::Silent)?.forecast())
    })?;
    let found = found.map_err(|error| exception(py, error))?;
    let mut report = serde_json::to_value(&found).expect("a forecast is plain data");
    let memory = Machine::detect().memory_bytes;
    report["memory_bytes"] = memory.into();
    report["fits"] = memory.is_none_or(|memory| memory >= found.peak_bytes).into();
    from_json(py, &report)
}

/// Tells Python what happens.
struct PyObserver {
    handler: Py<PyAny>,
    /// Whether it is told of completions, which costs a little for each.
    wants_rollouts: bool,
    shared: Arc<Shared>,
    /// When progress was told last.
    told: Option<Instant>,
}

impl PyObserver {
    /// Calls the handler with what `details` fills in. What it raises stops the run.
    fn tell(&self, kind: &str, details: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>) {
        Python::attach(|py| {
            let call = || -> PyResult<bool> {
                let dict = PyDict::new(py);
                details(&dict)?;
                let answer = self.handler.bind(py).call1((kind, dict))?;
                Ok(!answer.is_none() && !answer.is_truthy()?)
            };
            match call() {
                Ok(false) => {}
                Ok(true) => self.shared.interrupt.raise(),
                Err(error) => {
                    self.shared.keep(error);
                    self.shared.interrupt.raise();
                }
            }
        });
    }

    /// Whether it is time to tell progress again.
    fn is_due(&mut self) -> bool {
        let is_due = self.told.is_none_or(|told| told.elapsed() >= TELLING);
        if is_due {
            self.told = Some(Instant::now());
        }
        is_due
    }
}

fn numbers(dict: &Bound<'_, PyDict>, metrics: &gradus::run::Metrics) -> PyResult<()> {
    let values = PyDict::new(dict.py());
    for (name, value) in metrics.iter() {
        values.set_item(name, value)?;
    }
    dict.set_item("metrics", values)
}

impl Observer for PyObserver {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Phase { name, total, done } => self.tell("phase", |dict| {
                dict.set_item("name", name)?;
                dict.set_item("total", total)?;
                dict.set_item("done", done)
            }),
            Event::Progress { done } if self.is_due() => self.tell("progress", |dict| dict.set_item("done", done)),
            Event::Within { step, what, done, total } if self.is_due() => self.tell("within", |dict| {
                dict.set_item("step", step)?;
                dict.set_item("what", what)?;
                dict.set_item("done", done)?;
                dict.set_item("total", total)
            }),
            Event::Step { step, total, metrics } => {
                self.shared.step.store(*step, Ordering::Relaxed);
                self.shared.total.store(*total, Ordering::Relaxed);
                self.tell("step", |dict| {
                    dict.set_item("step", step)?;
                    dict.set_item("total", total)?;
                    numbers(dict, metrics)
                });
            }
            Event::Rollouts { step, completions } if self.wants_rollouts => self.tell("rollouts", |dict| {
                let py = dict.py();
                let list = PyList::empty(py);
                for completion in *completions {
                    let of = PyDict::new(py);
                    of.set_item("row", completion.row)?;
                    of.set_item("prompt", completion.prompt)?;
                    of.set_item("completion", completion.completion)?;
                    of.set_item("tokens", completion.tokens)?;
                    of.set_item("reward", completion.reward)?;
                    let parts = PyDict::new(py);
                    completion.parts.iter().try_for_each(|(name, value)| parts.set_item(name, value))?;
                    of.set_item("rewards", parts)?;
                    of.set_item("advantage", completion.advantage)?;
                    list.append(of)?;
                }
                dict.set_item("step", step)?;
                dict.set_item("rollouts", list)
            }),
            Event::Evaluated { step, metrics, best } => self.tell("evaluation", |dict| {
                dict.set_item("step", step)?;
                dict.set_item("best", best)?;
                numbers(dict, metrics)
            }),
            Event::Checkpoint { step, path } => self.tell("checkpoint", |dict| {
                dict.set_item("step", step)?;
                dict.set_item("path", text_of(path))
            }),
            Event::Message(text) => self.tell("message", |dict| dict.set_item("text", text)),
            Event::Warning(text) => self.tell("warning", |dict| dict.set_item("text", text)),
            _ => {}
        }
    }

    fn should_stop(&mut self) -> bool {
        self.shared.interrupt.is_raised()
    }

    fn interrupt(&self) -> Interrupt {
        self.shared.interrupt.clone()
    }
}
