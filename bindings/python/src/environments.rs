//! Python objects as tools and environments.

use std::any::Any;
use std::sync::Arc;

use gradus_environments::{
    Call, CallResult, Environment, Episode, Error, NewEpisode, Observation, Start, Tool, ToolSource, Toolbox, Turn,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use serde_json::{Map, Value};

use crate::callables::Shared;
use crate::convert::{from_json, from_map, to_json};

/// A Python function that the policy may call.
pub struct PyTool {
    tool: Tool,
    /// Callable that takes a dict of arguments and returns a text.
    callable: Py<PyAny>,
    is_deterministic: bool,
}

impl PyTool {
    /// Creates the tool from a `gradus._environments.Tool`.
    ///
    /// # Errors
    /// Returns an exception of Python.
    pub fn new(py: Python<'_>, callable: Py<PyAny>) -> PyResult<Self> {
        let object = callable.bind(py);
        let of = |name: &str| -> PyResult<String> { object.getattr(name)?.extract() };
        let parameters = to_json("the parameters of a tool", &object.getattr("parameters")?)?;
        let returns = object.getattr("returns")?;
        let returns = (!returns.is_none()).then(|| to_json("the result of a tool", &returns)).transpose()?;
        let tool = Tool { name: of("name")?, description: of("description")?, parameters, returns };
        Ok(Self { tool, is_deterministic: object.getattr("deterministic")?.extract()?, callable })
    }
}

/// Python itself refuses arguments that do not fit the function, so the policy reads the same text as in TRL.
impl ToolSource for PyTool {
    fn tools(&self) -> &[Tool] {
        std::slice::from_ref(&self.tool)
    }

    /// The text of an exception becomes the answer of the tool, as in TRL.
    fn call(&self, name: &str, arguments: &Map<String, Value>) -> gradus_environments::Result<CallResult> {
        let call = Call { id: None, name: name.to_owned(), arguments: Ok(arguments.clone()) };
        let arguments = call.fitted(&[self.tool.to_template()]).arguments.unwrap_or_default();
        Ok(Python::attach(|py| {
            let call = || -> PyResult<String> { self.callable.bind(py).call1((from_map(py, &arguments)?,))?.extract() };
            call().map_err(|error| match error.value(py).str() {
                Ok(text) => text.to_string_lossy().into_owned(),
                Err(_) => error.to_string(),
            })
        }))
    }

    fn is_deterministic(&self) -> bool {
        self.is_deterministic
    }
}

/// Creates the tools from a list of `gradus._environments.Tool`.
fn tools(py: Python<'_>, list: &Bound<'_, PyAny>) -> PyResult<Vec<PyTool>> {
    list.try_iter()?.map(|object| PyTool::new(py, object?.unbind())).collect()
}

/// Python classes that begin episodes.
pub struct PyEnvironment {
    /// Object of the class `gradus._environments.Environment`.
    object: Arc<Py<PyAny>>,
    tools: Vec<Tool>,
    is_deterministic: bool,
    shared: Arc<Shared>,
}

impl PyEnvironment {
    /// Creates the environment from a `gradus._environments.Environment`.
    ///
    /// # Errors
    /// Returns an exception of Python.
    pub fn new(py: Python<'_>, object: Arc<Py<PyAny>>, shared: Arc<Shared>) -> PyResult<Self> {
        let bound = object.bind(py);
        let is_deterministic = bound.getattr("deterministic")?.extract()?;
        let tools = tools(py, &bound.getattr("tools")?)?.into_iter().map(|tool| tool.tool).collect();
        Ok(Self { object, tools, is_deterministic, shared })
    }
}

/// Stores an exception of an environment. The run stops and raises it.
fn stops(shared: &Shared, error: PyErr) -> Error {
    shared.keep(error);
    Error::Interrupted
}

impl Environment for PyEnvironment {
    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn begin(&self, start: &Start) -> gradus_environments::Result<NewEpisode> {
        let begin = |py: Python<'_>| -> PyResult<NewEpisode> {
            let row = from_map(py, &start.row)?;
            let episode = self.object.bind(py).call_method1("begin", (&start.name, start.seed, row))?;
            let opening = episode.getattr("opening")?.extract()?;
            let calls = match episode.getattr("steps")?.extract()? {
                true => None,
                false => {
                    let tools = tools(py, &episode.getattr("tools")?)?.into_iter();
                    let toolbox = Toolbox::new(tools.map(|tool| Box::new(tool) as Box<dyn ToolSource>).collect());
                    let begun = toolbox.and_then(|toolbox| toolbox.begin(start));
                    Some(begun.map_err(|error| PyTypeError::new_err(error.to_string()))?.episode)
                }
            };
            let shared = Arc::clone(&self.shared);
            let episode = PyEpisode { object: episode.unbind(), calls, shared };
            Ok(NewEpisode { episode: Box::new(episode), opening })
        };
        Python::attach(begin).map_err(|error| stops(&self.shared, error))
    }

    fn is_deterministic(&self) -> bool {
        self.is_deterministic
    }
}

struct PyEpisode {
    /// Object of the class `gradus._environments.Episode`.
    object: Py<PyAny>,
    /// Answers calls of the episode's tools; `None` if the episode answers whole turns.
    calls: Option<Box<dyn Episode>>,
    shared: Arc<Shared>,
}

impl Episode for PyEpisode {
    fn step(&mut self, turn: &Turn) -> gradus_environments::Result<Observation> {
        if let Some(calls) = &mut self.calls {
            return calls.step(turn);
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

    /// The object of the user's class, for reward functions.
    fn object(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        let environment = Python::attach(|py| self.object.bind(py).getattr("environment").map(Bound::unbind));
        environment.ok().map(|environment| Arc::new(environment) as Arc<dyn Any + Send + Sync>)
    }

    fn finish(&mut self) -> gradus_environments::Result<Option<f64>> {
        let reward =
            Python::attach(|py| -> PyResult<Option<f64>> { self.object.bind(py).call_method0("finish")?.extract() });
        reward.map_err(|error| stops(&self.shared, error))
    }
}
