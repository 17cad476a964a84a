//! Functions that are built in.

mod calculator;
mod search;

pub use calculator::Calculator;
pub use search::{Search, SearchConfig};
