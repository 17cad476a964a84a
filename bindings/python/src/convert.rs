//! Conversion between Python values and JSON.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde_json::{Map, Number, Value};

/// Maximum nesting depth. It catches values that contain themselves.
const DEPTH: usize = 64;

/// Converts `value` to JSON. Paths become strings, and numbers of other libraries (`numpy.float32`) become numbers.
///
/// # Errors
/// Raises `TypeError` or `ValueError`, which name the argument `name`.
pub fn to_json(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    json(name, value, 0)
}

fn json(name: &str, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > DEPTH {
        return Err(PyValueError::new_err(format!("`{name}` is nested more than {DEPTH} levels deep")));
    }
    if value.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(truth) = value.cast::<PyBool>() {
        return Ok(truth.is_true().into());
    }
    if let Ok(number) = value.cast::<PyInt>() {
        let signed = number.extract::<i64>().map(Value::from);
        return signed
            .or_else(|_| number.extract::<u64>().map(Value::from))
            .map_err(|_| PyValueError::new_err(format!("`{name}` holds an integer that does not fit into 64 bits")));
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        let number = number.value();
        return Number::from_f64(number)
            .map(Value::Number)
            .ok_or_else(|| PyValueError::new_err(format!("`{name}` is {number}, but a finite number is needed")));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return text.to_str().map(Value::from).map_err(|_| {
            PyValueError::new_err(format!("`{name}` is a text that is not valid Unicode: it holds a lone surrogate"))
        });
    }
    if let Ok(list) = value.cast::<PyList>() {
        return list.iter().map(|item| json(name, &item, depth + 1)).collect::<PyResult<_>>().map(Value::Array);
    }
    if let Ok(tuple) = value.cast::<PyTuple>() {
        return tuple.iter().map(|item| json(name, &item, depth + 1)).collect::<PyResult<_>>().map(Value::Array);
    }
    if let Ok(dict) = value.cast::<PyDict>() {
        let mut map = Map::with_capacity(dict.len());
        for (key, item) in dict.iter() {
            let key = key.cast::<PyString>().ok().and_then(|key| key.to_str().ok().map(str::to_owned));
            let key = key.ok_or_else(|| PyTypeError::new_err(format!("the keys of `{name}` must be texts")))?;
            map.insert(key, json(name, &item, depth + 1)?);
        }
        return Ok(Value::Object(map));
    }
    // A path, or a number of another library.
    for method in ["__fspath__", "item"] {
        if value.hasattr(method)?
            && let Ok(plain) = value.call_method0(method)
            && !plain.is(value)
        {
            return json(name, &plain, depth + 1);
        }
    }
    let found = value.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "`{name}` is a `{found}`, which a configuration cannot contain: expected numbers, texts, booleans, lists and dicts of them"
    )))
}

/// Converts `value` to a Python object.
///
/// # Errors
/// Raises an exception if Python has no memory left.
pub fn from_json<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(truth) => truth.into_pyobject(py)?.to_owned().into_any(),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => number.into_pyobject(py)?.into_any(),
            (None, Some(number)) => number.into_pyobject(py)?.into_any(),
            (None, None) => number.as_f64().unwrap_or(f64::NAN).into_pyobject(py)?.into_any(),
        },
        Value::String(text) => text.into_pyobject(py)?.into_any(),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| from_json(py, item)).collect::<PyResult<_>>()?;
            PyList::new(py, items)?.into_any()
        }
        Value::Object(map) => from_map(py, map)?.into_any(),
    })
}

/// Converts `map` to a dict.
///
/// # Errors
/// As [`from_json`].
pub fn from_map<'py>(py: Python<'py>, map: &Map<String, Value>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (key, value) in map {
        dict.set_item(key, from_json(py, value)?)?;
    }
    Ok(dict)
}
