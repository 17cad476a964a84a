//! Generation: from token ids of prompts to token ids of completions.

mod beam;
mod config;
mod distribution;
mod engine;
mod mask;
mod next;
mod params;
mod processors;
mod row;
mod run;
pub mod sampler;
mod truncate;

pub use beam::{BeamCompletion, BeamParams, EarlyStopping, beam_search};
pub use config::{BeamConfig, SamplingConfig, TrainedLogprobs};
pub use engine::{Engine, PREFILL_TOKENS, Request, Turn};
pub use mask::{Kept, LikeliestMask, LogitsMask, Masking};
pub use params::{Record, SamplingParams};
pub use processors::History;
pub use row::{Completion, Event, NoStopRule, StopReason, StopRule};
pub use run::{Hooks, ROWS_AT_ONCE, generate, generate_with};
