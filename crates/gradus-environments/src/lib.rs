//! Environments that a language model acts in.
//!
//! An [`Environment`] begins [`Episode`]s. The policy writes a [`Turn`]; the episode answers with an [`Observation`]: messages
//! that the policy reads next, a reward, and whether the episode is over. The crate knows no tensors, models or tokens.

mod environment;
mod error;
mod tool;

pub use environment::{Begun, Environment, Episode, Observation, Reply, Start, Turn};
pub use error::{Error, Result};
pub use tool::{Call, Tool};
