//! Python objects that answer a policy: tools, and environments.

use std::sync::Arc;

use gradus_environments::{Begun, Environment, Episode, Error, Function, Observation, Start, Tool, Turn, answer_calls};
use pyo3::prelude::*;
use serde_json::{Map, Value};

use crate::callables::{Shared, headline};
use crate::convert::{from_json, from_map, to_json};

/// A Python function that the policy may call.
pub struct PyTool {
    tool: Tool,
    /// Takes a dict of arguments and returns a text.
    callable: Py<PyAny>,
    is_deterministic: bool,
}

impl PyTool {
    /// The tool that a `gradus._environments.Tool` is.
    ///
    /// # Errors
    /// An exception of Python.
    pub fn new(py: Python<'_>, callable: Py<PyAny>) -> PyResult<Self> {
        let object = callable.bind(py);
        let of = |name: &str| -> PyResult<String> { object.getattr(name)?.extract() };
        let parameters = to_json("the parameters of a tool", &object.getattr("parameters")?)?;
        let tool = Tool { name: of("name")?, description: of("description")?, parameters };
        Ok(Self { tool, is_deterministic: object.getattr("deterministic")?.extract()?, callable })
    }
}

impl Function for PyTool {
    fn tool(&self) -> &Tool {
        &self.tool
    }

    /// What a function raises is the answer of the tool, as in TRL.
    fn call(&self, arguments: &Map<String, Value>) -> Result<String, String> {
        Python::attach(|py| -> PyResult<String> {
            let arguments = from_map(py, arguments)?;
            self.callable.bind(py).call1((arguments,))?.extract()
        })
        .map_err(|error| headline(&error))
    }

    fn is_deterministic(&self) -> bool {
        self.is_deterministic
    }
}

/// The tools of a list of `gradus._environments.Tool`.
fn tools(py: Python<'_>, list: &Bound<'_, PyAny>) -> PyResult<Vec<Box<dyn Function>>> {
    let tool = |object: PyResult<Bound<'_, PyAny>>| -> PyResult<Box<dyn Function>> {
        Ok(Box::new(PyTool::new(py, object?.unbind())?))
    };
    list.try_iter()?.map(tool).collect()
}

/// Python classes that begin episodes.
pub struct PyEnvironment {
    /// A `gradus._environments.Environment`.
    object: Arc<Py<PyAny>>,
    tools: Vec<Tool>,
    is_deterministic: bool,
    shared: Arc<Shared>,
}

impl PyEnvironment {
    /// The environment that a `gradus._environments.Environment` is.
    ///
    /// # Errors
    /// An exception of Python.
    pub fn new(py: Python<'_>, object: Arc<Py<PyAny>>, shared: Arc<Shared>) -> PyResult<Self> {
        let bound = object.bind(py);
        let is_deterministic = bound.getattr("deterministic")?.extract()?;
        let tools = tools(py, &bound.getattr("tools")?)?.iter().map(|tool| tool.tool().clone()).collect();
        Ok(Self { object, tools, is_deterministic, shared })
    }
}

/// An exception of an environment stops the run, which then raises it.
fn stops(shared: &Shared, error: PyErr) -> Error {
    shared.keep(error);
    Error::Interrupted
}

impl Environment for PyEnvironment {
    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn begin(&self, start: &Start) -> gradus_environments::Result<Begun> {
        let begin = |py: Python<'_>| -> PyResult<Begun> {
            let row = from_map(py, &start.row)?;
            let episode = self.object.bind(py).call_method1("begin", (&start.name, start.seed, row))?;
            let opening = episode.getattr("opening")?.extract()?;
            let functions = tools(py, &episode.getattr("tools")?)?;
            let steps = episode.getattr("steps")?.extract()?;
            let shared = Arc::clone(&self.shared);
            let episode = PyEpisode { object: episode.unbind(), functions, steps, shared };
            Ok(Begun { episode: Box::new(episode), opening })
        };
        Python::attach(begin).map_err(|error| stops(&self.shared, error))
    }

    fn is_deterministic(&self) -> bool {
        self.is_deterministic
    }
}

struct PyEpisode {
    /// A `gradus._environments.Episode`.
    object: Py<PyAny>,
    /// Its tools.
    functions: Vec<Box<dyn Function>>,
    /// Whether it answers whole turns; else it answers calls of its tools.
    steps: bool,
    shared: Arc<Shared>,
}

impl Episode for PyEpisode {
    fn step(&mut self, turn: &Turn) -> gradus_environments::Result<Observation> {
        if !self.steps {
            return Ok(answer_calls(&self.functions, turn));
        }
        let answered = Python::attach(|py| -> PyResult<Value> {
            let turn = from_json(py, &turn.to_json())?;
            to_json("the answer of the environment", &self.object.bind(py).call_method1("step", (turn,))?)
        });
        match answered.map_err(|error| stops(&self.shared, error))? {
            Value::Object(answer) => gradus_environments::observation(answer),
            other => Err(Error::episode(format!("the environment answered with {other}, but a mapping is needed"))),
        }
    }

    fn finish(&mut self) -> gradus_environments::Result<Option<f64>> {
        let reward =
            Python::attach(|py| -> PyResult<Option<f64>> { self.object.bind(py).call_method0("finish")?.extract() });
        reward.map_err(|error| stops(&self.shared, error))
    }
}
