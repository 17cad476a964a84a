//! Built-in functions.

mod calculator;
mod python;
mod search;

pub use calculator::Calculator;
pub use python::Python;
pub use search::{Search, SearchConfig};
