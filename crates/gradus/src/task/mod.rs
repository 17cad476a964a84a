//! Tasks: each turns its source into prompts, references and metadata.

pub mod demo;
