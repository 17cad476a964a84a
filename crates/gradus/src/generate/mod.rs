//! Generation: from prompts to completions, token ids in and token ids out.

pub mod sampler;
