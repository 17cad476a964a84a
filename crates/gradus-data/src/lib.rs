//! Text and data of gradus: tokenizers, chat templates, readers of rows, tasks, metrics and toxicity scorers. It has no
//! tensors and no models.
//!
//! Programs use the crate `gradus`, which exports these modules.

#![deny(missing_docs)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read the environment"))]

pub mod data;
pub mod metric;
pub mod plugin;
pub mod task;
#[cfg(test)]
mod test_support;
pub mod text;
pub mod toxicity;

// The modules name what is below them as if it were here.
use gradus_core::{Error, Result, border, error, files, hub, process, rng, service, suggest};
