//! The registry: which environments and tools there are, under which names, with which keys.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::error::Result;
use crate::functions::{Calculator, Python, Search, SearchConfig};
use crate::games::{Arithmetic, ArithmeticConfig, Documents, DocumentsConfig, Guess, GuessConfig, Maze, MazeConfig};
use crate::mcp::{McpConfig, McpServer};
use crate::openenv::{OpenEnv, OpenEnvConfig};
use crate::program::{ProgramConfig, ProgramEnvironment};
use crate::sandbox::SandboxConfig;
use crate::toolbox::{ToolSource, Toolbox};

/// What answers the policy: the choice is the key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentConfig {
    /// A program that reads and prints lines of JSON (docs/environments.md).
    Command(ProgramConfig),
    /// A server of OpenEnv.
    Openenv(OpenEnvConfig),
    /// Questions of arithmetic, with a calculator as a tool.
    Arithmetic(ArithmeticConfig),
    /// Questions about documents, with a search over them as a tool.
    Documents(DocumentsConfig),
    /// Guess a number from `higher` and `lower`.
    Guess(GuessConfig),
    /// Find the exit of a maze in words.
    Maze(MazeConfig),
}

impl EnvironmentConfig {
    /// The environment.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) when a key is out of its bounds, or a program cannot be started.
    pub fn build(&self) -> Result<Arc<dyn Environment>> {
        Ok(match self {
            Self::Command(config) => Arc::new(ProgramEnvironment::start(config)?),
            Self::Openenv(config) => Arc::new(OpenEnv::connect(config)?),
            Self::Arithmetic(config) => Arc::new(Arithmetic::new(config.clone())?),
            Self::Documents(config) => Arc::new(Documents::new(config.clone())?),
            Self::Guess(config) => Arc::new(Guess::new(config.clone())?),
            Self::Maze(config) => Arc::new(Maze::new(config.clone())?),
        })
    }

    /// Whether a program is started for it.
    pub fn starts_program(&self) -> bool {
        matches!(self, Self::Command(_))
    }
}

/// Where tools come from: the choice is the key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolConfig {
    /// Computes an arithmetic expression.
    Calculator {},
    /// Tools of a server of the Model Context Protocol.
    Mcp(McpConfig),
    /// Runs Python programs in a sandbox (Linux).
    Python(SandboxConfig),
    /// Searches the texts of a local folder (BM25).
    Search(SearchConfig),
}

impl ToolConfig {
    /// A toolbox of these tools.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) when a folder cannot be searched, a server cannot be reached, or two tools have one
    /// name.
    pub fn toolbox(tools: &[Self]) -> Result<Toolbox> {
        let build = |tool: &Self| -> Result<Box<dyn ToolSource>> {
            Ok(match tool {
                Self::Calculator {} => Box::new(Calculator::default()),
                Self::Mcp(config) => Box::new(McpServer::connect(config)?),
                Self::Python(config) => Box::new(Python::open(config)?),
                Self::Search(config) => Box::new(Search::open(config)?),
            })
        };
        Toolbox::new(tools.iter().map(build).collect::<Result<_>>()?)
    }
}
