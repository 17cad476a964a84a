//! Converts errors of gradus to Python exceptions, the classes of `gradus._errors`.

use gradus::Error;
use gradus_cli::error_text;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Name of the class in `gradus._errors` for an error.
fn class(error: &Error) -> &'static str {
    match error {
        Error::Config(_) => "ConfigError",
        Error::Data { .. } => "DataError",
        Error::Model { .. } => "ModelError",
        Error::Diverged { .. } => "DivergedError",
        Error::Reward { .. } => "RewardError",
        Error::Io { .. } => "FileError",
        Error::Network { .. } => "NetworkError",
        Error::Interrupted => "Interrupted",
        _ => "InputError",
    }
}

/// Creates an exception with the text that the command line prints, and with `hint`, `row` and `step` if known.
pub fn exception(py: Python<'_>, error: Error) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let name = class(&error);
        let details = PyDict::new(py);
        details.set_item("hint", error.hint())?;
        match &error {
            Error::Reward { row, .. } => details.set_item("row", row)?,
            Error::Diverged { step, .. } => details.set_item("step", step)?,
            Error::Data { line, .. } => details.set_item("row", line)?,
            _ => {}
        }
        let text = error_text(&error.into());
        let exception = py.import("gradus._errors")?.getattr(name)?.call((text,), None)?;
        for (key, value) in details {
            exception.setattr(key.extract::<String>()?.as_str(), value)?;
        }
        Ok(PyErr::from_value(exception))
    };
    make().unwrap_or_else(|error| error)
}

/// Converts the error of a command.
pub fn of_command(py: Python<'_>, error: gradus_cli::CommandError) -> PyErr {
    match error.downcast::<Error>() {
        Ok(error) => exception(py, error),
        Err(error) => {
            let text = error_text(&error);
            let make = || -> PyResult<PyErr> {
                let name = if gradus_cli::is_usage(&error) { "UsageError" } else { "InputError" };
                Ok(PyErr::from_value(py.import("gradus._errors")?.getattr(name)?.call((text,), None)?))
            };
            make().unwrap_or_else(|error| error)
        }
    }
}
