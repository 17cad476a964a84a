//! Python callables as plug-ins: rewards, metrics, post-processors and tasks. `environments.rs` and `observers.rs` have the others.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gradus::config::Registry;
use gradus::data::{Message, RowLocation};
use gradus::metric::{Measure, Metric, MetricConfig, Row, RowError};
use gradus::process::{Interrupt, default_timeout_s};
use gradus::progress::{Progress, RunSteps, Unwatched};
use gradus::reward::{Count, Reward, RewardError, RewardPart, Score};
use gradus::rollout::{EpisodeObject, Rollouts, completion_messages};
use gradus::task::{Files, Origin, PostProcessor, Sample, Split, Task};
use pyo3::exceptions::{PyTimeoutError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::compute::{NoAnswer, call_python};
use crate::convert::{from_json, from_map, to_json};
use crate::environments::{PyEnvironment, PyTool};
use crate::observers::PyObserver;

/// State that a run shares with its callables.
#[derive(Debug, Default)]
pub struct Shared {
    /// Stops the run.
    pub interrupt: Interrupt,
    /// First exception raised by a callable.
    raised: Mutex<Option<PyErr>>,
}

impl Shared {
    /// Stores an exception, unless an earlier one is stored.
    pub fn keep(&self, error: PyErr) {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    /// Takes the stored exception.
    pub fn take(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Options that all callables have.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CallableOptions {
    /// The time limit of one call, in seconds. Default 60, as for programs.
    pub timeout_s: f64,
}

impl Default for CallableOptions {
    fn default() -> Self {
        Self { timeout_s: default_timeout_s() }
    }
}

impl CallableOptions {
    fn limit(&self) -> gradus::Result<Duration> {
        time_limit(self.timeout_s)
    }
}

/// Options of a task.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskOptions {
    /// The time limit for producing the samples of a split, in seconds. Default 600: a function may load a data set first.
    pub timeout_s: f64,
}

impl Default for TaskOptions {
    fn default() -> Self {
        Self { timeout_s: 600.0 }
    }
}

fn time_limit(seconds: f64) -> gradus::Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|limit| !limit.is_zero())
        .ok_or_else(|| gradus::Error::input(format!("`timeout_s` is {seconds}, but must be above 0")))
}

/// Options of callables without options.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NoOptions {}

/// Stores an exception that occurs while a run is prepared. The run stops and raises it.
fn stops(shared: &Shared, error: PyErr) -> gradus::Error {
    shared.keep(error);
    gradus::Error::Interrupted
}

/// Adds the callables of a run: `(kind, name, callable)`.
///
/// # Errors
/// Returns an error if a name is taken or is not valid for a plug-in.
pub fn register(
    registry: &mut Registry,
    callables: Vec<(String, String, Py<PyAny>)>,
    shared: &Arc<Shared>,
) -> gradus::Result<()> {
    for (kind, name, callable) in callables {
        let (callable, shared, own) = (Arc::new(callable), Arc::clone(shared), name.clone());
        match kind.as_str() {
            "reward" => registry.reward(&name, move |options: &CallableOptions, _| {
                let (callable, shared) = (Arc::clone(&callable), Arc::clone(&shared));
                Ok(PyReward { name: own.clone(), callable, limit: options.limit()?, shared })
            })?,
            "metric" => registry.metric(&name, move |options: &CallableOptions, _| {
                let (callable, shared) = (Arc::clone(&callable), Arc::clone(&shared));
                Ok(PyMetric { callable, limit: options.limit()?, shared })
            })?,
            "post_processor" => registry.post_processor(&name, move |options: &CallableOptions| {
                let (callable, shared) = (Arc::clone(&callable), Arc::clone(&shared));
                Ok(PyPostProcessor { name: own.clone(), callable, limit: options.limit()?, shared })
            })?,
            "tool" => registry.tool(&name, move |_: &NoOptions| {
                Python::attach(|py| PyTool::new(py, callable.clone_ref(py))).map_err(|error| stops(&shared, error))
            })?,
            "environment" => registry.environment(&name, move |_: &NoOptions| {
                let made = Python::attach(|py| PyEnvironment::new(py, Arc::clone(&callable), Arc::clone(&shared)));
                made.map_err(|error| stops(&shared, error))
            })?,
            "task" => registry.task(&name, move |options: &TaskOptions| {
                let (callable, shared) = (Arc::clone(&callable), Arc::clone(&shared));
                Ok(PyTask { name: own.clone(), callable, limit: time_limit(options.timeout_s)?, shared })
            })?,
            "observer" => registry.observer(&name, move |_: &NoOptions, _| {
                Ok(PyObserver::new(Arc::clone(&callable), true, Arc::clone(&shared)))
            })?,
            kind => return Err(gradus::Error::input(format!("a callable cannot be a `{kind}`"))),
        }
    }
    Ok(())
}

/// Returns `TypeName: message`, like the last line of a traceback, or `TypeName` for an exception without a message.
pub fn headline(error: &PyErr) -> String {
    let text = error.to_string();
    text.strip_suffix(": ").unwrap_or(&text).to_owned()
}

/// Describes why a callable returned no usable answer. `argument` sets its time limit; `None` if it cannot be changed.
fn failed(why: NoAnswer, limit: Duration, argument: Option<&str>) -> RewardError {
    let NoAnswer::TimedOut = why else { return RewardError::interrupted() };
    let change = match argument {
        Some(argument) => format!("raise `{argument}`, or "),
        None => "this limit is fixed: ".to_owned(),
    };
    RewardError::new(format!("no answer after {} s", limit.as_secs_f64()))
        .with_hint(format!("{change}find out why the function hangs; it was left running"))
}

/// One or several Python functions that score completions.
struct PyReward {
    name: String,
    /// A `gradus._callables.Rewards`.
    callable: Arc<Py<PyAny>>,
    limit: Duration,
    shared: Arc<Shared>,
}

/// A completion in the form that functions receive.
struct Judged {
    row: usize,
    prompt: String,
    messages: Option<Vec<Message>>,
    completion: String,
    /// Turns and answers of an episode, as messages.
    episode: Option<Vec<Value>>,
    ids: Vec<u32>,
    columns: Map<String, Value>,
    environment: EpisodeObject,
}

/// Result of the functions: their names and weights, one value per function and completion, and the numbers that they logged.
type Given = (Vec<String>, Vec<f32>, Vec<Vec<Option<f32>>>, Vec<(String, f64)>);

impl Reward for PyReward {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Vec<Result<Score, RewardError>> {
        self.score_with_progress(rollouts, &Unwatched)
    }

    fn score_with_progress(&mut self, rollouts: &Rollouts, progress: &dyn Progress) -> Vec<Result<Score, RewardError>> {
        let fail = |error: RewardError| vec![Err(error); rollouts.len()];
        let judged = (0..rollouts.len()).map(|i| {
            let (prompt, rollout) = (rollouts.prompt(i), &rollouts.rollouts[i]);
            Ok(Judged {
                row: prompt.row,
                prompt: prompt.text.clone(),
                messages: prompt.messages.clone(),
                completion: rollout.completion.clone(),
                episode: completion_messages(rollouts, i)?,
                ids: rollout.completion_ids.clone(),
                columns: prompt.columns.clone(),
                environment: rollout.episode.as_ref().map(|episode| episode.object.clone()).unwrap_or_default(),
            })
        });
        let judged: Vec<Judged> = match judged.collect::<gradus::Result<Vec<Judged>>>() {
            Ok(judged) => judged,
            Err(error) => return fail(RewardError::from(&error)),
        };
        let callable = Arc::clone(&self.callable);
        let steps = progress.run_steps().unwrap_or(RunSteps { done: 0, total: 0 });
        let called =
            call_python(self.limit, &self.shared.interrupt, move |py| call_rewards(py, &callable, &judged, steps));
        let lengths = rollouts.rollouts.iter().map(|rollout| rollout.completion_ids.len());
        match called {
            Err(why) => fail(failed(why, self.limit, Some("reward_timeout_s"))),
            Ok(Err(error)) => {
                let message = headline(&error);
                self.shared.keep(error);
                fail(RewardError::new(message))
            }
            Ok(Ok(given)) => scores(&given, lengths).into_iter().map(Ok).collect(),
        }
    }
}

fn call_rewards(py: Python<'_>, callable: &Py<PyAny>, judged: &[Judged], steps: RunSteps) -> PyResult<Given> {
    let prompts = PyList::empty(py);
    let completions = PyList::empty(py);
    let mut names: Vec<&str> = Vec::new();
    for of in judged {
        match &of.messages {
            None => {
                prompts.append(&of.prompt)?;
                completions.append(&of.completion)?;
            }
            Some(messages) => {
                let messages = serde_json::to_value(messages).expect("messages are plain data");
                prompts.append(from_json(py, &messages)?)?;
                let whole = || vec![json!({ "role": "assistant", "content": of.completion })];
                let answer = Value::Array(of.episode.clone().unwrap_or_else(whole));
                completions.append(from_json(py, &answer)?)?;
            }
        }
        names.extend(of.columns.keys().map(String::as_str).filter(|name| !names.contains(name)).collect::<Vec<_>>());
    }
    let columns = PyDict::new(py);
    for name in names {
        let values = PyList::empty(py);
        for of in judged {
            values.append(from_json(py, of.columns.get(name).unwrap_or(&Value::Null))?)?;
        }
        columns.set_item(name, values)?;
    }
    let ids: Vec<&[u32]> = judged.iter().map(|of| &of.ids[..]).collect();
    let rows: Vec<usize> = judged.iter().map(|of| of.row + 1).collect();
    let environment = |of: &Judged| Some(of.environment.0.as_ref()?.downcast_ref::<Py<PyAny>>()?.clone_ref(py));
    let environments: Vec<Option<Py<PyAny>>> = judged.iter().map(environment).collect();
    let environments = environments.iter().any(Option::is_some).then_some(environments);
    let RunSteps { done, total } = steps;
    callable.bind(py).call1((prompts, completions, ids, columns, rows, done, total, environments))?.extract()
}

/// Builds one part per function that scored the completion. The logged numbers are attached to the first completion.
fn scores((names, weights, values, logged): &Given, lengths: impl Iterator<Item = usize>) -> Vec<Score> {
    let is_alone = names.len() == 1;
    let score = |(i, length): (usize, usize)| {
        let part = |((name, &weight), values): ((&String, &f32), &Vec<Option<f32>>)| {
            let mut rewards_t = vec![0.0; length];
            *rewards_t.last_mut()? = values[i]?;
            // A single function has the name of the reward.
            Some(RewardPart { name: if is_alone { String::new() } else { name.clone() }, weight, rewards_t })
        };
        let counts = logged.iter().filter(|_| i == 0).map(|(name, value)| Count::new(name.clone(), *value, 1));
        Score { parts: names.iter().zip(weights).zip(values).filter_map(part).collect(), counts: counts.collect() }
    };
    lengths.enumerate().map(score).collect()
}

/// A Python function that measures predictions.
struct PyMetric {
    /// A `gradus._callables.Metric`.
    callable: Arc<Py<PyAny>>,
    limit: Duration,
    shared: Arc<Shared>,
}

/// Parts of a metric: name, value over all rows if it is not the mean, and values per row if available.
type MetricParts = Vec<(String, Option<f64>, Option<Vec<f64>>)>;

impl Metric for PyMetric {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let (callable, rows, count) = (Arc::clone(&self.callable), rows.to_vec(), rows.len());
        let called = call_python(self.limit, &self.shared.interrupt, move |py| -> PyResult<MetricParts> {
            let texts = |of: fn(&Row) -> &str| PyList::new(py, rows.iter().map(of));
            let predictions = texts(|row| &row.prediction)?;
            let prompts = texts(|row| &row.prompt)?;
            let references: Vec<&[String]> = rows.iter().map(|row| &row.references[..]).collect();
            let metadata: Vec<_> = rows.iter().map(|row| from_map(py, &row.metadata)).collect::<PyResult<_>>()?;
            callable.bind(py).call1((predictions, references, prompts, metadata))?.extract()
        });
        let refused = |error: RewardError| RowError {
            row: 0,
            message: error.message,
            hint: error.hint,
            is_interrupted: error.is_interrupted,
        };
        let parts = match called {
            Err(why) => return Err(refused(failed(why, self.limit, None))),
            Ok(Err(error)) => {
                let message = headline(&error);
                self.shared.keep(error);
                return Err(RowError::new(0, message));
            }
            Ok(Ok(parts)) => parts,
        };
        let measure = |(part, value, rows): (String, Option<f64>, Option<Vec<f64>>)| match (value, rows) {
            (_, Some(rows)) if rows.len() != count => {
                Err(RowError::new(0, format!("{} values for {count} rows", rows.len())))
            }
            (None, Some(rows)) => Ok(Measure::mean(part, &rows)),
            (Some(value), Some(rows)) => Ok(Measure::beside_rows(part, value, rows)),
            (Some(value), None) => Ok(Measure::whole(part, value)),
            (None, None) => Err(RowError::new(0, "no value")),
        };
        parts.into_iter().map(measure).collect()
    }
}

/// A Python function that changes a completion before it is measured.
struct PyPostProcessor {
    name: String,
    callable: Arc<Py<PyAny>>,
    limit: Duration,
    shared: Arc<Shared>,
}

impl PostProcessor for PyPostProcessor {
    /// An exception stops the run, and the returned text is not used.
    fn apply(&self, completion: &str) -> String {
        let (name, callable, text) = (self.name.clone(), Arc::clone(&self.callable), completion.to_owned());
        let called = call_python(self.limit, &self.shared.interrupt, move |py| -> PyResult<String> {
            let answer = callable.bind(py).call1((text,))?;
            match answer.cast::<PyString>() {
                Ok(text) => Ok(text.to_str()?.to_owned()),
                Err(_) => Err(PyTypeError::new_err(format!(
                    "the post-processor `{name}` returned a `{}`, but a text is needed",
                    answer.get_type().name()?
                ))),
            }
        });
        let error = match called {
            Ok(Ok(text)) => return text,
            Ok(Err(error)) => error,
            Err(why) => {
                let message = failed(why, self.limit, None).message;
                PyTimeoutError::new_err(format!("the post-processor `{}`: {message}", self.name))
            }
        };
        self.shared.keep(error);
        self.shared.interrupt.raise();
        completion.to_owned()
    }
}

/// A Python function that produces the samples of a task.
struct PyTask {
    name: String,
    /// A `gradus._callables.Task`.
    callable: Arc<Py<PyAny>>,
    limit: Duration,
    shared: Arc<Shared>,
}

impl Task for PyTask {
    fn origin(&self, _split: Split) -> Origin {
        Origin::Generated
    }

    fn samples(&self, files: &Files<'_>) -> gradus::Result<Vec<(RowLocation, Sample)>> {
        let (callable, split, max_samples) = (Arc::clone(&self.callable), files.split().name(), files.max_samples());
        let called = call_python(self.limit, files.interrupt(), move |py| -> PyResult<Vec<Sample>> {
            let found: Vec<(String, Vec<String>, Bound<'_, PyAny>)> =
                callable.bind(py).call1((split, max_samples))?.extract()?;
            let sample = |(prompt, references, columns): (String, Vec<String>, Bound<'_, PyAny>)| {
                let metadata = match to_json("sample", &columns)? {
                    Value::Object(columns) => columns,
                    _ => Map::new(),
                };
                Ok(Sample { prompt, references, metadata })
            };
            found.into_iter().map(sample).collect()
        });
        let samples = match called {
            Err(NoAnswer::Interrupted) => return Err(gradus::Error::Interrupted),
            Err(why) => {
                let RewardError { message, hint, .. } = failed(why, self.limit, None);
                let error = gradus::Error::input(format!("the task `{}`: {message}", self.name));
                return Err(hint.into_iter().fold(error, gradus::Error::with_hint));
            }
            Ok(Err(error)) => return Err(stops(&self.shared, error)),
            Ok(Ok(samples)) => samples,
        };
        let file: Arc<Path> = Path::new(&format!("the task `{}`", self.name)).into();
        let location = |i: usize| RowLocation { file: Arc::clone(&file), line: i + 1, row_in_array: None };
        Ok(samples.into_iter().enumerate().map(|(i, sample)| (location(i), sample)).collect())
    }

    /// Python tasks set no default metrics; the run names them itself.
    fn metrics(&self) -> Vec<MetricConfig> {
        Vec::new()
    }
}

/// Returns a path as the string that Python receives.
pub fn text_of(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
