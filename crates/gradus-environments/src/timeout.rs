//! The key `timeout_s` of whatever answers from outside: programs, and servers.

use crate::error::{Error, Result};

/// Its default, in seconds.
pub fn default_s() -> f64 {
    60.0
}

/// Refuses a limit that is none.
///
/// # Errors
/// [`Error::Config`] with what was found.
pub fn check(timeout_s: f64) -> Result<()> {
    match timeout_s > 0.0 && timeout_s < 1e6 {
        true => Ok(()),
        false => Err(Error::config(format!("`timeout_s` is {timeout_s}, but seconds above 0 are needed"))),
    }
}
