//! Generation: from prompts to completions, token ids in and token ids out.

mod engine;
pub mod sampler;

pub use engine::{Completion, NoStopRule, StopReason, StopRule, generate};
pub use sampler::SamplingParams;
