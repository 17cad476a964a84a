//! Environments that a language model acts in.
//!
//! An [`Environment`] begins [`Episode`]s. The policy writes a [`Turn`]; the episode answers with an [`Observation`]: messages that the
//! policy reads next, a reward, and whether the episode is over. The crate does not depend on tensors, models or tokenizers.
//!
//! A [`Toolbox`] offers tools of [`ToolSource`]s: functions, and servers of the Model Context Protocol ([`McpServer`]). [`CallFormat`]
//! parses the calls that a policy writes. A [`ProgramEnvironment`] runs a program of the user; in Rust, [`serve`] turns any environment
//! into such a program. [`games`] contains environments for learning and testing.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read the environment"))]

mod combined;
mod config;
mod environment;
mod error;
pub mod functions;
pub mod games;
mod mcp;
mod openenv;
mod peer;
pub mod process;
mod program;
mod replay;
mod restartable;
pub mod sandbox;
mod serve;
pub mod think;
mod timeout;
mod tool;
mod tool_calls;
mod toolbox;
mod verifiers;

pub use combined::Combined;
pub use config::{EnvironmentConfig, NoPlugin, ToolConfig};
pub use environment::{Environment, Episode, NewEpisode, Observation, Reply, SampledTurn, Start, Turn};
pub use error::{Error, Result};
pub use mcp::{McpConfig, McpServer};
pub use openenv::{OpenEnv, OpenEnvConfig};
pub use program::{ProgramConfig, ProgramEnvironment, observation};
pub use replay::{Recorded, Replay};
pub use serve::serve;
pub use tool::{Call, Tool};
pub use tool_calls::{CallFormat, ParsedTurn};
pub use toolbox::{CallResult, Function, ToolSource, Toolbox};
pub use verifiers::{Verifiers, VerifiersConfig};
