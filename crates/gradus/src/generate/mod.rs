//! Generation: from prompts to completions, token ids in and token ids out.

mod config;
mod distribution;
mod engine;
mod params;
mod processors;
mod row;
mod run;
pub mod sampler;
mod truncate;

pub use config::{SamplingConfig, TrainedLogprobs};
pub use engine::{Engine, Event, LogitsMask, Request, Turn};
pub use params::SamplingParams;
pub use processors::History;
pub use row::{Completion, NoStopRule, StopReason, StopRule};
pub use run::generate;
