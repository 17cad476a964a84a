//! Environments that a language model acts in.
//!
//! An [`Environment`] begins [`Episode`]s. The policy writes a [`Turn`]; the episode answers with an [`Observation`]: messages
//! that the policy reads next, a reward, and whether the episode is over. The crate knows no tensors, models or tokens.
//!
//! A [`Toolbox`] offers tools; [`CallFormat`] reads the calls that a policy writes. [`ProgramEnvironment`] is a program of the user's.
//! [`games`] are environments to learn from.

mod config;
mod environment;
mod error;
pub mod functions;
pub mod games;
mod openenv;
pub mod process;
mod program;
mod replay;
pub mod sandbox;
#[cfg(test)]
#[path = "../../gradus/tests/support/skip.rs"]
mod skip;
mod tool;
mod tool_calls;
mod toolbox;

pub use config::{EnvironmentConfig, ToolConfig};
pub use environment::{Begun, Environment, Episode, Observation, Reply, Start, Turn};
pub use error::{Error, Result};
pub use openenv::{OpenEnv, OpenEnvConfig};
pub use program::{ProgramConfig, ProgramEnvironment, observation};
pub use replay::{Recorded, Replay};
pub use tool::{Call, Tool};
pub use tool_calls::CallFormat;
pub use toolbox::{Function, Toolbox, answer_calls};
