//! gradus trains language models from human feedback: supervised fine-tuning, reward models, DPO, PPO and GRPO, with
//! sampling and training in one engine.
//!
//! The library prints nothing and parses no arguments; the binary does. It makes HTTP requests to the model hub, and to
//! servers, judges and services named in the configuration.

#![deny(missing_docs)]

pub mod algorithm;
pub mod batches;
pub mod bench;
mod border;
pub mod calendar;
pub mod compare;
pub mod config;
pub mod create;
pub mod data;
pub mod demo;
pub mod device;
pub mod error;
pub mod evaluation;
pub mod files;
pub mod generate;
mod host;
pub mod hub;
pub mod inference;
pub mod learner;
pub mod loss;
pub mod machine;
pub mod math;
pub mod memory;
pub mod method;
pub mod metric;
pub mod metric_models;
pub mod model;
pub mod objective;
pub mod observer;
pub mod optimizer_state;
pub mod plugin;
pub mod pretrained;
pub mod process;
pub mod progress;
pub mod ranks;
pub mod reports;
pub mod reward;
pub mod rng;
pub mod rollout;
pub mod run;
pub mod runs;
pub mod service;
pub mod settings;
pub mod stats;
pub mod suggest;
pub mod sweep;
pub mod task;
#[cfg(test)]
mod test_support;
pub mod text;
pub mod toxicity;
pub mod train;
pub mod trainer;

pub use error::{Error, Result};
