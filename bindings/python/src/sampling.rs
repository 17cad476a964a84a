//! Sampling parameters from keyword arguments.

use gradus::generate::SamplingParams;
use gradus::suggest::nearest;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Sets the field that has the name of a keyword argument.
macro_rules! fields {
    ($params:ident, $name:ident, $value:ident: $($field:ident),+) => {
        match $name.as_str() {
            $(stringify!($field) => $params.$field = $value.extract().map_err(|error| refused(&$name, &$value, &error))?,)+
            _ => {
                let near = nearest(&$name, [$(stringify!($field)),+]);
                let near = near.map_or_else(String::new, |near| format!(": did you mean `{near}`?"));
                return Err(PyTypeError::new_err(format!("unknown argument `{}`{near}", $name)));
            }
        }
    };
}

/// Returns the error about a value that could not be read because of `error`.
fn refused(name: &str, value: &Bound<'_, PyAny>, error: &PyErr) -> PyErr {
    if error.is_instance_of::<PyOverflowError>(value.py()) {
        return PyValueError::new_err(format!("`{name}` is {value}, which is below 0 or too large"));
    }
    let found = value.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
    PyTypeError::new_err(format!("`{name}` cannot be a `{found}`"))
}

/// Reads the sampling parameters from `arguments`. Missing ones and `None` have the default.
///
/// # Errors
/// Raises `TypeError` for an unknown name or a wrong type, and `ValueError` for an invalid value.
pub fn sampling(arguments: &Bound<'_, PyDict>) -> PyResult<SamplingParams> {
    let mut params = SamplingParams::default();
    for (name, value) in arguments {
        let name: String = name.extract()?;
        if value.is_none() {
            continue;
        }
        fields!(
            params, name, value: temperature, top_k, top_p, min_p, typical_p, repetition_penalty, no_repeat_ngram_size,
            encoder_no_repeat_ngram_size, bad_words_ids, suppress_tokens, forced_bos_token_id, forced_eos_token_id, max_new_tokens,
            min_new_tokens, stop_ids
        );
    }
    params.check().map_err(|error| crate::errors::exception(arguments.py(), error))?;
    Ok(params)
}
