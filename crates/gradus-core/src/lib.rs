//! The base of gradus: errors, random streams, atomic files, ranks, run directories with their metrics and database. It
//! has no tensors, no rows and no models.
//!
//! Programs use the crate `gradus`, which exports these modules.

#![deny(missing_docs)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read the environment"))]

pub mod border;
pub mod error;
pub mod files;
pub mod hub;
pub mod math;
pub mod process;
pub mod progress;
pub mod ranks;
pub mod rng;
pub mod run;
pub mod runs;
pub mod search;
pub mod service;
pub mod shell;
pub mod stats;
pub mod suggest;
pub mod sweep;
#[cfg(test)]
mod test_support;
pub mod visible;

pub use error::{Error, Result};
