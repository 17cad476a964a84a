//! The key `timeout_s` of programs and servers.

use crate::error::{Error, Result};

/// Default time limit, in seconds.
pub fn default_s() -> f64 {
    60.0
}

/// Checks a time limit.
///
/// # Errors
/// Returns [`Error::Config`] if the limit is not a usable number of seconds.
pub fn check(timeout_s: f64) -> Result<()> {
    match timeout_s > 0.0 && timeout_s < 1e6 {
        true => Ok(()),
        false => Err(Error::config(format!("`timeout_s` is {timeout_s}, but seconds above 0 are needed"))),
    }
}
