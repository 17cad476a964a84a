//! What several metrics ask of their options.

use crate::error::{Error, Result};

/// The longest n-gram that is counted.
const ORDER_MAX: usize = 64;

/// Refuses an order of n-grams out of bounds. `metric` and `option` are the names in the message.
///
/// # Errors
/// The option and its bounds.
pub fn check_order(metric: &str, option: &str, order: usize) -> Result<()> {
    match order {
        1..=ORDER_MAX => Ok(()),
        _ => Err(Error::options(format!(
            "the option `{option}` of `{metric}` is {order}, but must be from 1 to {ORDER_MAX}"
        ))),
    }
}
