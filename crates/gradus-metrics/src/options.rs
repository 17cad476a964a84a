//! Checks of options that several metrics share.

use crate::error::{Error, Result};

/// Longest allowed n-gram.
const ORDER_MAX: usize = 64;

/// Rejects an order of n-grams that is out of bounds. `metric` and `option` are the names in the message.
///
/// # Errors
/// The order is out of bounds. The error names the option and its bounds.
pub fn check_order(metric: &str, option: &str, order: usize) -> Result<()> {
    match order {
        1..=ORDER_MAX => Ok(()),
        _ => Err(Error::options(format!(
            "the option `{option}` of `{metric}` is {order}, but must be from 1 to {ORDER_MAX}"
        ))),
    }
}
