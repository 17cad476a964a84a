//! Commands of the binary, metrics, and the keys of the configuration.

use std::ffi::OsString;

use gradus::config::{FlagKind, MethodConfig, Schema, Scope, flags};
use gradus::metric::{Row, RowError, configure};
use gradus::metric_models::MetricModels;
use gradus::process::Interrupt;
use gradus::text::render::Starter;
use gradus::{Error, batches::MicroBatch, device::DeviceChoice};
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyDict, PyList};
use serde_json::{Map, Value, json};

use crate::compute::{compute, refuse_fork};
use crate::convert::{from_json, to_json};
use crate::errors::{exception, of_command};

/// Runs the command line and returns its exit code. Errors are printed.
///
/// # Errors
/// Raises `RuntimeError` in a forked process.
#[pyfunction]
pub fn main(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    refuse_fork()?;
    Ok(py.detach(|| gradus_cli::main(arguments)))
}

/// Sets the command that starts this program again as a child process, for rendering chat templates and for sweeps.
#[pyfunction]
pub fn set_program(program: OsString, arguments: Vec<OsString>) {
    gradus_cli::start_as(Starter::new(program, arguments));
}

/// Runs a command with `--json`. Returns its output and its other messages.
///
/// # Errors
/// Raises the exception for the error that the command would have ended with.
#[pyfunction]
pub fn call(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<(String, Vec<String>)> {
    let interrupt = gradus_cli::interrupt();
    let called = compute(py, None, &interrupt, move || gradus_cli::call(arguments))?;
    called.map(|called| (called.output, called.messages)).map_err(|error| of_command(py, error))
}

/// Measures predictions. Returns `(part, value, values of rows)` for each part, and notes on how to read the values.
///
/// # Errors
/// Raises an exception for unknown names or options, and for rows that cannot be measured.
#[pyfunction]
#[pyo3(signature = (name, options, predictions, references, prompts, columns))]
pub fn measure<'py>(
    py: Python<'py>,
    name: &str,
    options: &Bound<'py, PyDict>,
    predictions: Vec<String>,
    references: Vec<Vec<String>>,
    prompts: Option<Vec<String>>,
    columns: &Bound<'py, PyList>,
) -> PyResult<(Bound<'py, PyList>, Option<String>)> {
    let (mut rows, has_prompts) = (Vec::with_capacity(predictions.len()), prompts.is_some());
    let prompts = prompts.unwrap_or_else(|| vec![String::new(); predictions.len()]);
    for (i, ((prediction, references), prompt)) in predictions.into_iter().zip(references).zip(prompts).enumerate() {
        let metadata = match columns.get_item(i) {
            Ok(columns) => match to_json("columns", &columns)? {
                Value::Object(map) => map,
                _ => Map::new(),
            },
            Err(_) => Map::new(),
        };
        rows.push(Row { prompt, prediction, references, metadata });
    }
    let mut given = Vec::with_capacity(options.len());
    for (key, value) in options {
        let key: String = key.extract()?;
        let value = match to_json(&key, &value)? {
            Value::String(text) => text,
            value => value.to_string(),
        };
        given.push(format!("{key}={value}"));
    }
    let metric = configure(&[name.to_owned()], &given).map_err(|error| exception(py, error))?.remove(0);
    let interrupt = Interrupt::default();
    let stopped = interrupt.clone();
    let found = compute(py, None, &interrupt, move || {
        let passes = MicroBatch::new(4096, None);
        let models = MetricModels::new(DeviceChoice::cpu().device(), passes);
        let of_row = |error: RowError| {
            let message = error.to_string();
            match error.hint {
                Some(hint) => Error::input(message).with_hint(hint),
                None => Error::input(message),
            }
        };
        let mut checked = rows.iter().enumerate().map(|(i, row)| metric.check_row(i, row, has_prompts));
        checked.try_for_each(|checked| checked).map_err(of_row)?;
        let metric = metric.build(&models, &stopped)?;
        let measures = metric.measure(&rows).map_err(of_row)?;
        let values = measures.into_iter().map(|measure| (measure.part.clone(), measure.value(), measure.row_values()));
        Ok((values.collect::<Vec<_>>(), metric.remark(&mut rows.iter().cloned())))
    })?;
    let (values, remark) = found.map_err(|error: Error| exception(py, error))?;
    Ok((PyList::new(py, values)?, remark))
}

/// Returns the methods and their keys, from which the Python functions of the methods are generated.
///
/// # Errors
/// Raises an exception if Python has no memory left.
#[pyfunction]
pub fn keys(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let schema = Schema::run_config();
    let methods: Vec<Value> = MethodConfig::all()
        .iter()
        .map(|method| {
            let keys: Vec<Value> = flags(&schema, Scope::Method(method.name()))
                .into_iter()
                .map(|spec| {
                    let (kind, words) = match &spec.kind {
                        FlagKind::Switch => ("switch", Vec::new()),
                        FlagKind::Value(placeholder) => (*placeholder, Vec::new()),
                        FlagKind::Words(words) => ("words", words.iter().map(|word| word.name.clone()).collect()),
                        FlagKind::WordList(words) => {
                            ("word_list", words.iter().map(|word| word.name.clone()).collect())
                        }
                        FlagKind::WordOrYaml(words) => {
                            ("word_or_yaml", words.iter().map(|word| word.name.clone()).collect())
                        }
                        FlagKind::Repeated => ("repeated", Vec::new()),
                        FlagKind::Names => ("names", Vec::new()),
                        FlagKind::Arguments => ("arguments", Vec::new()),
                        FlagKind::Numbers => ("numbers", Vec::new()),
                        FlagKind::Yaml => ("yaml", Vec::new()),
                    };
                    json!({
                        "name": spec.name.replace('-', "_"),
                        "key": spec.key,
                        "section": spec.section,
                        "doc": spec.doc,
                        "default": spec.default,
                        "kind": kind,
                        "words": words,
                    })
                })
                .collect();
            let is_online = method.is_online();
            json!({ "name": method.name(), "about": method.method().about(), "is_online": is_online, "keys": keys })
        })
        .collect();
    from_json(py, &Value::Array(methods))
}
