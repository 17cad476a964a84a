//! Training runs: take a method, its keys and its callables, and produce a run directory.

use std::path::PathBuf;
use std::sync::Arc;

use gradus::Error;
use gradus::config::{Argument, Plan, Registry, Request, Resume, ResumeFrom, RunConfig};
use gradus::machine::Machine;
use gradus::memory::Workload;
use gradus::ranks::Launch;
use gradus::run::{Existing, Origin};
use gradus::train::{FinishedRun, forecast};
use pyo3::exceptions::{PyFutureWarning, PyUserWarning};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;

use crate::callables::{Shared, register, text_of};
use crate::compute::compute;
use crate::convert::{from_json, to_json};
use crate::errors::exception;
use crate::observers::PyObserver;

/// Frames between the code of the user and the native function.
const STACK_LEVEL: u32 = 3;

/// A run as requested from Python.
struct RunRequest {
    method: Option<String>,
    config: Option<PathBuf>,
    arguments: Vec<Argument>,
    existing: String,
    resume_from: Option<String>,
    registry: Registry,
    shared: Arc<Shared>,
}

impl RunRequest {
    /// Returns the plan of the run. Notes on its configuration files become Python warnings.
    fn plan(&self, py: Python<'_>) -> PyResult<Plan> {
        let plan = self.checked().map_err(|error| exception(py, error))?;
        for note in plan.notes() {
            let warn = py.import("warnings")?.getattr("warn")?;
            warn.call1((&note.message, py.get_type::<PyFutureWarning>(), STACK_LEVEL))?;
        }
        Ok(plan)
    }

    fn checked(&self) -> gradus::Result<Plan> {
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

/// Reads the request of a run.
fn run_request(
    method: Option<String>,
    arguments: &Bound<'_, PyDict>,
    config: Option<PathBuf>,
    existing: &str,
    resume_from: Option<String>,
    callables: Vec<(String, String, Py<PyAny>)>,
) -> PyResult<RunRequest> {
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
    Ok(RunRequest { method, config, arguments: found, existing, resume_from, registry, shared })
}

/// Warns if a launcher may have started several processes. Each of them trains its own run.
fn warn_of_copies(py: Python<'_>) -> PyResult<()> {
    let copies = match Launch::detect() {
        Ok(Some(launch)) if launch.size > 1 => format!(
            "{} started {} processes, and this is rank {} (`{}` is in the environment)",
            launch.launcher.name(),
            launch.size,
            launch.rank,
            launch.launcher.size_variable()
        ),
        Ok(_) => return Ok(()),
        // A process without MPI, or with variables that contradict each other, may be one of several, too.
        Err(error) => error.to_string(),
    };
    let message = format!(
        "{copies}. The Python functions have no ranks: each process trains a run of its own. To train one run on several ranks, start \
         `gradus train CONFIG` with `mpiexec`. To train several runs, give each an `output_dir` of its own. If no launcher is running, \
         remove its variables from the environment."
    );
    py.import("warnings")?.getattr("warn")?.call1((message, py.get_type::<PyUserWarning>(), STACK_LEVEL))?;
    Ok(())
}

/// Trains a model. `handler(kind, details)` receives the events of the run. If it returns `False`, the run stops after a checkpoint.
///
/// # Errors
/// Raises an exception for wrong input; the exception of a callable, with its traceback; or `KeyboardInterrupt`, after a checkpoint.
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
    let request = run_request(method, arguments, config, existing, resume_from, callables)?;
    let shared = Arc::clone(&request.shared);
    let plan = request.plan(py)?;
    warn_of_copies(py)?;
    let plan = plan.in_directory_of_its_own().map_err(|error| exception(py, error))?;
    let directory = plan.output_dir().to_owned();
    let threads = plan.train().threads;
    let mut watcher = PyObserver::new(Arc::new(handler), wants_rollouts, Arc::clone(&shared));
    let outcome = compute(py, threads, &shared.interrupt, move || {
        plan.fetch(&mut |_, _, _| {})?;
        gradus::train::run(&plan, &mut watcher)
    });
    // An exception from Ctrl-C is raised unchanged. An exception of a callable is combined with the state of the run.
    let outcome = outcome?;
    match (outcome, shared.take()) {
        (Ok(FinishedRun { directory, results, .. }), None) => Ok((text_of(&directory), from_json(py, &results)?, true)),
        (Err(Error::Interrupted) | Ok(_), Some(raised)) => Err(raised),
        (Err(Error::Interrupted), None) => Ok((text_of(&directory), from_json(py, &Value::Null)?, false)),
        (Err(error), cause) => {
            let error = exception(py, error);
            error.set_cause(py, cause);
            Err(error)
        }
    }
}

/// Estimates the memory of a run, in the format of `gradus plan --json`.
///
/// # Errors
/// As [`train`].
#[pyfunction]
#[pyo3(signature = (method, arguments, config, callables))]
pub fn plan<'py>(
    py: Python<'py>,
    method: Option<String>,
    arguments: &Bound<'py, PyDict>,
    config: Option<PathBuf>,
    callables: Vec<(String, String, Py<PyAny>)>,
) -> PyResult<Bound<'py, PyAny>> {
    let request = run_request(method, arguments, config, "refuse", None, callables)?;
    let shared = Arc::clone(&request.shared);
    let plan = request.plan(py)?;
    let found: gradus::Result<Workload> = compute(py, None, &shared.interrupt, move || {
        plan.fetch(&mut |_, _, _| {})?;
        forecast::workload(&plan, 1, &mut gradus::observer::Silent)
    })?;
    let (workload, machine) = (found.map_err(|error| exception(py, error))?, Machine::detect());
    let found = workload.forecast();
    let memory = found.gpu.as_ref().map_or(machine.memory_bytes, |gpu| machine.device_memory(gpu));
    let mut report = serde_json::to_value(&found).expect("a forecast is plain data");
    report["memory_bytes"] = memory.into();
    report["fits"] = forecast::check(&workload, &machine).is_ok().into();
    from_json(py, &report)
}
