//! A loaded model: completions, conversations and log-probabilities.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gradus::data::Message;
use gradus::device::DeviceChoice;
use gradus::inference::{ChatFormat, ChatOptions, CompletionRequest, Piece, Session, TemplateInputs};
use gradus::model::{Precision, WeightFormat};
use gradus::pretrained::TextFiles;
use gradus::process::Interrupt;
use gradus::rng::{Purpose, Seed};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::callables::text_of;
use crate::compute::compute;
use crate::convert::to_json;
use crate::errors::exception;
use crate::sampling::sampling;

/// Number of rows that are sampled concurrently. Others wait.
const PLACES: usize = 64;

/// Update of a row: a token id with its log-probability, the new final text, and the reason for the end.
type SessionEvent = (Option<(u32, f32)>, String, Option<&'static str>);

/// A model in memory.
#[pyclass(frozen, module = "gradus._native")]
pub struct NativeSession(Arc<Mutex<SessionState>>);

struct SessionState {
    session: Session,
    /// Updates of rows that the caller has not fetched yet.
    reported: HashMap<usize, VecDeque<gradus::Result<SessionEvent>>>,
}

impl SessionState {
    /// Samples one more token for every row.
    fn step(&mut self) {
        for piece in self.session.step() {
            let (row, reported) = match piece {
                Piece::Token { row, score, text } => (row, Ok((Some((score.id, score.logprob)), text, None))),
                Piece::End { row, text, end } => (row, end.map(|end| (None, text, Some(end.name())))),
            };
            self.reported.entry(row).or_default().push_back(reported);
        }
    }
}

/// Parses the value `text` of the argument `name`.
pub fn word<T: std::str::FromStr<Err: std::fmt::Display>>(name: &str, text: &str) -> PyResult<T> {
    text.parse().map_err(|error| PyValueError::new_err(format!("`{name}` is `{text}`: {error}")))
}

/// Converts a list of messages.
fn messages(value: &Bound<'_, PyAny>) -> PyResult<Vec<Message>> {
    let serde_json::Value::Array(items) = to_json("messages", value)? else {
        return Err(PyTypeError::new_err(
            "a conversation is a list of messages: `[{\"role\": \"user\", \"content\": …}]`",
        ));
    };
    let message = |(i, item): (usize, &serde_json::Value)| {
        Message::read(item).map_err(|error| PyValueError::new_err(format!("message {} {error}", i + 1)))
    };
    items.iter().enumerate().map(message).collect()
}

/// Prompt of a model: ids, a text, or a conversation.
enum Prompt {
    Ids(Vec<u32>),
    Text(String),
    Messages(Vec<Message>, TemplateInputs),
}

impl Prompt {
    fn read(value: &Bound<'_, PyAny>, inputs: &TemplateInputs) -> PyResult<Self> {
        if let Ok(text) = value.extract::<String>() {
            return Ok(Self::Text(text));
        }
        if let Ok(ids) = value.extract::<Vec<u32>>() {
            return Ok(Self::Ids(ids));
        }
        let inputs = TemplateInputs { tools: inputs.tools.clone(), variables: inputs.variables.clone() };
        Ok(Self::Messages(messages(value)?, inputs))
    }

    /// Returns the prompt's ids, its text if it has one, and the stop strings for the completion.
    fn ids(&self, session: &Session, stop: &[String]) -> gradus::Result<(Vec<u32>, String, Vec<String>)> {
        let prompter = session.prompter();
        Ok(match self {
            Self::Ids(ids) => (ids.clone(), String::new(), stop.to_vec()),
            Self::Text(text) => (prompter.ids_of(text, true)?, text.clone(), stop.to_vec()),
            Self::Messages(messages, inputs) => {
                let text = prompter.text_of(messages, inputs)?;
                (prompter.prompt_of(messages, inputs)?, text, session.stop_of(stop))
            }
        })
    }
}

fn locked(state: &Mutex<SessionState>) -> MutexGuard<'_, SessionState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl NativeSession {
    #[new]
    #[pyo3(signature = (model, adapter, weights, device, tokenizer, chat_template, format))]
    #[expect(clippy::too_many_arguments, reason = "one for each option of a chat")]
    fn new(
        py: Python<'_>,
        model: String,
        adapter: Option<String>,
        weights: &str,
        device: &str,
        tokenizer: Option<String>,
        chat_template: Option<std::path::PathBuf>,
        format: Option<&str>,
    ) -> PyResult<Self> {
        let options = ChatOptions {
            model,
            adapter,
            compute: Precision::F32,
            weights: word::<WeightFormat>("weights", weights)?,
            text: TextFiles { tokenizer, chat_template },
            format: format.map(|format| word::<ChatFormat>("format", format)).transpose()?,
            device: word::<DeviceChoice>("device", device)?,
        };
        let opened = compute(py, None, &Interrupt::default(), move || {
            gradus_cli::fetch_model(&options.model)?;
            Session::open(&options, PLACES)
        })?;
        let session = opened.map_err(|error| exception(py, error))?;
        Ok(Self(Arc::new(Mutex::new(SessionState { session, reported: HashMap::new() }))))
    }

    /// Directory of the model.
    #[getter]
    fn directory(&self) -> String {
        text_of(locked(&self.0).session.directory())
    }

    /// Size of the vocabulary.
    #[getter]
    fn vocab_size(&self) -> usize {
        locked(&self.0).session.vocab_size()
    }

    /// Maximum number of tokens of a prompt and its completion together, if limited.
    #[getter]
    fn max_positions(&self) -> Option<usize> {
        locked(&self.0).session.max_positions()
    }

    /// Encodes a text as ids.
    fn encode(&self, py: Python<'_>, text: String, add_special_tokens: bool) -> PyResult<Vec<u32>> {
        let state = Arc::clone(&self.0);
        let found = py.detach(move || locked(&state).session.tokenizer().encode(&text, add_special_tokens));
        found.map_err(|error| exception(py, error))
    }

    /// Decodes ids to a text.
    fn decode(&self, py: Python<'_>, ids: Vec<u32>, skip_special_tokens: bool) -> PyResult<String> {
        let state = Arc::clone(&self.0);
        let found = py.detach(move || locked(&state).session.tokenizer().decode(&ids, skip_special_tokens));
        found.map_err(|error| exception(py, error))
    }

    /// Returns `group_size` completions of each prompt, in the order of the prompts.
    fn generate<'py>(
        &self,
        py: Python<'py>,
        prompts: Vec<Bound<'py, PyAny>>,
        group_size: usize,
        arguments: &Bound<'py, PyDict>,
        stop: Vec<String>,
        seed: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        let params = sampling(arguments)?;
        let nothing = TemplateInputs::default();
        let prompts = prompts.iter().map(|prompt| Prompt::read(prompt, &nothing)).collect::<PyResult<Vec<_>>>()?;
        let (state, interrupt) = (Arc::clone(&self.0), Interrupt::default());
        let stopped = interrupt.clone();
        let found = compute(py, None, &interrupt, move || -> gradus::Result<_> {
            let mut state = locked(&state);
            let mut rows: Vec<(usize, String)> = Vec::new();
            let submitted = prompts.iter().enumerate().try_for_each(|(i, prompt)| {
                let (prompt, text, stop) = prompt.ids(&state.session, &stop)?;
                let first = i * group_size;
                let streams = first..first + group_size;
                let streams = streams.map(|i| Seed(seed).stream(Purpose::Generate, 0, i as u64)).collect();
                let own = state.session.submit(CompletionRequest {
                    prompt,
                    params: params.clone(),
                    stop,
                    streams,
                    kept: Vec::new(),
                })?;
                rows.extend(own.map(|row| (row, text.clone())));
                Ok(())
            });
            let mut is_cut_off = submitted.is_err();
            while !is_cut_off && rows.iter().any(|(row, _)| !has_ended(&state, *row)) {
                state.step();
                is_cut_off = stopped.is_raised();
            }
            let reported = rows.into_iter().map(|(row, text)| {
                state.session.cancel(row);
                (text, state.reported.remove(&row).unwrap_or_default())
            });
            let reported: Vec<_> = reported.collect();
            submitted.map(|()| reported)
        })?;
        let list = PyList::empty(py);
        for (prompt, reported) in found.map_err(|error| exception(py, error))? {
            let (mut completion, mut ids, mut logprobs, mut end) = (String::new(), Vec::new(), Vec::new(), "");
            for reported in reported {
                let (token, text, ended) = reported.map_err(|error| exception(py, error))?;
                completion.push_str(&text);
                if let Some((id, logprob)) = token {
                    ids.push(id);
                    logprobs.push(logprob);
                }
                end = ended.unwrap_or(end);
            }
            let of = PyDict::new(py);
            of.set_item("prompt", prompt)?;
            of.set_item("completion", completion)?;
            of.set_item("completion_ids", ids)?;
            of.set_item("logprobs", floats(py, &logprobs))?;
            of.set_item("stop", end)?;
            list.append(of)?;
        }
        Ok(list)
    }

    /// Requests one completion of a prompt and returns its row.
    #[expect(clippy::too_many_arguments, reason = "one for each part of a request")]
    fn submit(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        tools: &Bound<'_, PyAny>,
        variables: &Bound<'_, PyDict>,
        arguments: &Bound<'_, PyDict>,
        stop: Vec<String>,
        seed: u64,
    ) -> PyResult<usize> {
        let params = sampling(arguments)?;
        let serde_json::Value::Array(tools) = to_json("tools", tools)? else {
            return Err(PyTypeError::new_err("`tools` is a list of descriptions of functions"));
        };
        let serde_json::Value::Object(variables) = to_json("variables", variables)? else {
            return Err(PyTypeError::new_err("the variables of a template are a dict"));
        };
        let prompt = Prompt::read(prompt, &TemplateInputs { tools, variables })?;
        let state = Arc::clone(&self.0);
        let found = compute(py, None, &Interrupt::default(), move || {
            let mut state = locked(&state);
            let (prompt, _, stop) = prompt.ids(&state.session, &stop)?;
            let streams = vec![Seed(seed).stream(Purpose::Generate, 0, 0)];
            Ok(state.session.submit(CompletionRequest { prompt, params, stop, streams, kept: Vec::new() })?.start)
        })?;
        found.map_err(|error| exception(py, error))
    }

    /// Returns the updates of a row since the last call, at least one: `(id, logprob)`, text, and the reason for the end. Returns an empty
    /// list if the row has ended.
    fn next(&self, py: Python<'_>, row: usize) -> PyResult<Vec<SessionEvent>> {
        let state = Arc::clone(&self.0);
        let found = compute(py, None, &Interrupt::default(), move || {
            let mut state = locked(&state);
            while !state.reported.contains_key(&row) && state.session.is_busy() {
                state.step();
            }
            state.reported.remove(&row).unwrap_or_default()
        })?;
        found.into_iter().collect::<gradus::Result<_>>().map_err(|error| exception(py, error))
    }

    /// Releases a row.
    fn cancel(&self, row: usize) {
        let mut state = locked(&self.0);
        state.session.cancel(row);
        state.reported.remove(&row);
    }

    /// Returns the log-probabilities of each completion after its prompt, as bytes of `float32`. Prompts and completions are texts or ids.
    fn logprobs<'py>(
        &self,
        py: Python<'py>,
        rows: Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let nothing = TemplateInputs::default();
        let read = |(prompt, completion): &(Bound<'py, PyAny>, Bound<'py, PyAny>)| {
            Ok((Prompt::read(prompt, &nothing)?, Prompt::read(completion, &nothing)?))
        };
        let rows = rows.iter().map(read).collect::<PyResult<Vec<_>>>()?;
        let (state, interrupt) = (Arc::clone(&self.0), Interrupt::default());
        let stopped = interrupt.clone();
        let found = compute(py, None, &interrupt, move || -> gradus::Result<Vec<Vec<f32>>> {
            let state = locked(&state);
            let score = |(i, (prompt, completion)): (usize, &(Prompt, Prompt))| {
                if stopped.is_raised() {
                    return Err(gradus::Error::Interrupted);
                }
                let (mut ids, ..) = prompt.ids(&state.session, &[])?;
                let completion = match completion {
                    Prompt::Text(text) => state.session.prompter().ids_of(text, false)?,
                    Prompt::Ids(ids) => ids.clone(),
                    Prompt::Messages(..) => {
                        return Err(gradus::Error::input("a completion is a text or a list of ids"));
                    }
                };
                if ids.is_empty() {
                    return Err(gradus::Error::input(
                        "a prompt needs at least one id: nothing predicts the first token",
                    ));
                }
                let first = ids.len() - 1;
                let (of_prompt, of_completion) = (ids.len(), completion.len());
                ids.extend(completion);
                if let Some(limit) = state.session.max_positions().filter(|limit| *limit < ids.len()) {
                    let message = format!(
                        "row {} has {of_prompt} tokens of a prompt and {of_completion} of a completion, but the model has {limit} positions",
                        i + 1
                    );
                    return Err(gradus::Error::input(message).with_hint("shorten the texts"));
                }
                Ok(state.session.score(&ids, 0)?[first..].iter().map(|score| score.logprob).collect())
            };
            rows.iter().enumerate().map(score).collect()
        })?;
        let found = found.map_err(|error| exception(py, error))?;
        Ok(found.iter().map(|logprobs| floats(py, logprobs)).collect())
    }
}

/// Whether all updates of a row, including its end, have arrived.
fn has_ended(state: &SessionState, row: usize) -> bool {
    let last = state.reported.get(&row).and_then(VecDeque::back);
    last.is_some_and(|reported| !matches!(reported, Ok((_, _, None))))
}

/// Returns numbers as the bytes of a `float32` array.
pub fn floats<'py>(py: Python<'py>, numbers: &[f32]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    PyBytes::new(py, &bytes)
}
