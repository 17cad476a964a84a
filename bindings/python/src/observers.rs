//! Reports the events of a run to Python.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gradus::observer::{Event, Observer};
use gradus::process::Interrupt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::callables::{Shared, text_of};

/// Minimum time between two reports of progress within a step.
const TELLING: Duration = Duration::from_millis(100);

/// Calls a Python function for each event: the handler of the run itself, or an observer in `observers`.
pub struct PyObserver {
    handler: Arc<Py<PyAny>>,
    /// Whether completions are reported, which costs a little for each one. Otherwise, only their step is.
    wants_rollouts: bool,
    shared: Arc<Shared>,
    /// Time of the last progress report.
    last_report: Option<Instant>,
}

impl PyObserver {
    /// Reports events to `handler(kind, details)`. If it returns `False`, the run stops after a checkpoint.
    pub fn new(handler: Arc<Py<PyAny>>, wants_rollouts: bool, shared: Arc<Shared>) -> Self {
        Self { handler, wants_rollouts, shared, last_report: None }
    }

    /// Calls the handler with the dict that `details` fills. An exception in the handler stops the run.
    fn send(&self, kind: &str, details: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>) {
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

    /// Whether it is time for the next progress report.
    fn is_due(&mut self) -> bool {
        let is_due = self.last_report.is_none_or(|last_report| last_report.elapsed() >= TELLING);
        if is_due {
            self.last_report = Some(Instant::now());
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
            Event::Phase { name, total, done } => self.send("phase", |dict| {
                dict.set_item("name", name)?;
                dict.set_item("total", total)?;
                dict.set_item("done", done)
            }),
            Event::Progress { done } if self.is_due() => self.send("progress", |dict| dict.set_item("done", done)),
            Event::Within { step, what, done, total } if self.is_due() => self.send("within", |dict| {
                dict.set_item("step", step)?;
                dict.set_item("what", what)?;
                dict.set_item("done", done)?;
                dict.set_item("total", total)
            }),
            Event::Step { step, total, metrics } => self.send("step", |dict| {
                dict.set_item("step", step)?;
                dict.set_item("total", total)?;
                numbers(dict, metrics)
            }),
            Event::Rollouts { step, completions } if self.wants_rollouts => self.send("rollouts", |dict| {
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
            Event::Rollouts { step, .. } => self.send("rollouts", |dict| dict.set_item("step", step)),
            Event::Evaluated { step, metrics, best } => self.send("evaluation", |dict| {
                dict.set_item("step", step)?;
                dict.set_item("best", best)?;
                numbers(dict, metrics)
            }),
            Event::Checkpoint { step, path } => self.send("checkpoint", |dict| {
                dict.set_item("step", step)?;
                dict.set_item("path", text_of(path))
            }),
            Event::Message(text) => self.send("message", |dict| dict.set_item("text", text)),
            Event::Warning(text) => self.send("warning", |dict| dict.set_item("text", text)),
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
