//! The registry of environments and tools: their names and keys.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::functions::{Calculator, Python, Search, SearchConfig};
use crate::games::{Arithmetic, ArithmeticConfig, Documents, DocumentsConfig, Guess, GuessConfig, Maze, MazeConfig};
use crate::mcp::{McpConfig, McpServer};
use crate::openenv::{OpenEnv, OpenEnvConfig};
use crate::program::{ProgramConfig, ProgramEnvironment};
use crate::sandbox::SandboxConfig;
use crate::toolbox::{ToolSource, Toolbox};
use crate::verifiers::{Verifiers, VerifiersConfig};

/// Placeholder type for programs without environments or tools of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoPlugin {}

/// Configuration of an environment; the key selects its kind. `P` is the configuration of an environment that the program itself supplies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentConfig<P> {
    /// A program that reads and prints lines of JSON (docs/environments.md).
    Command(ProgramConfig),
    /// An OpenEnv server.
    Openenv(OpenEnvConfig),
    /// A `verifiers` environment server.
    Verifiers(VerifiersConfig),
    /// Arithmetic questions, with a calculator as a tool.
    Arithmetic(ArithmeticConfig),
    /// Questions about documents, with a search over them as a tool.
    Documents(DocumentsConfig),
    /// Guess a number from `higher` and `lower`.
    Guess(GuessConfig),
    /// Find the exit of a maze in words.
    Maze(MazeConfig),
    /// An environment supplied by a program that uses gradus as a library.
    Plugin(P),
}

impl<P> EnvironmentConfig<P> {
    /// Builds the environment. `make` builds one that the program supplies. `refused` converts the error of a built-in one.
    ///
    /// # Errors
    /// Returns the error of `make`, or the converted [`Error::Config`] if a key is out of range or a program cannot be started.
    pub fn build<E>(
        &self,
        make: impl FnOnce(&P) -> Result<Arc<dyn Environment>, E>,
        refused: impl FnOnce(Error) -> E,
    ) -> Result<Arc<dyn Environment>, E> {
        let built: Result<Arc<dyn Environment>> = match self {
            Self::Plugin(plugin) => return make(plugin),
            Self::Command(config) => ProgramEnvironment::start(config).map(|started| Arc::new(started) as _),
            Self::Openenv(config) => OpenEnv::connect(config).map(|connected| Arc::new(connected) as _),
            Self::Verifiers(config) => Verifiers::connect(config).map(|connected| Arc::new(connected) as _),
            Self::Arithmetic(config) => Arithmetic::new(config.clone()).map(|game| Arc::new(game) as _),
            Self::Documents(config) => Documents::new(config.clone()).map(|game| Arc::new(game) as _),
            Self::Guess(config) => Guess::new(config.clone()).map(|game| Arc::new(game) as _),
            Self::Maze(config) => Maze::new(config.clone()).map(|game| Arc::new(game) as _),
        };
        built.map_err(refused)
    }

    /// Whether this environment starts a program.
    pub fn starts_program(&self) -> bool {
        matches!(self, Self::Command(_))
    }
}

impl EnvironmentConfig<NoPlugin> {
    /// Builds the environment.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if a key is out of range, or a program cannot be started.
    pub fn built(&self) -> Result<Arc<dyn Environment>> {
        self.build(|plugin| match *plugin {}, |error| error)
    }
}

/// Configuration of a source of tools; the key selects its kind. `P` is the configuration of a tool that the program itself supplies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolConfig<P> {
    /// Computes an arithmetic expression.
    Calculator {},
    /// Tools of a Model Context Protocol (MCP) server.
    Mcp(McpConfig),
    /// Runs Python programs in a sandbox (Linux).
    Python(SandboxConfig),
    /// Searches the texts of a local folder (BM25).
    Search(SearchConfig),
    /// A tool supplied by a program that uses gradus as a library.
    Plugin(P),
}

impl<P> ToolConfig<P> {
    /// Builds a toolbox of these tools. `make` builds a tool that the program supplies. `refused` converts the error of a built-in one.
    ///
    /// # Errors
    /// Returns the error of `make`, or the converted [`Error::Config`] if a folder cannot be searched, a server cannot be reached, or two
    /// tools have the same name.
    pub fn toolbox<E>(
        tools: &[Self],
        make: impl Fn(&P) -> Result<Box<dyn ToolSource>, E>,
        refused: impl Fn(Error) -> E,
    ) -> Result<Toolbox, E> {
        let build = |tool: &Self| -> Result<Box<dyn ToolSource>, E> {
            let built: Result<Box<dyn ToolSource>> = match tool {
                Self::Plugin(plugin) => return make(plugin),
                Self::Calculator {} => Ok(Box::new(Calculator::default())),
                Self::Mcp(config) => McpServer::connect(config).map(|server| Box::new(server) as _),
                Self::Python(config) => Python::open(config).map(|tool| Box::new(tool) as _),
                Self::Search(config) => Search::open(config).map(|tool| Box::new(tool) as _),
            };
            built.map_err(&refused)
        };
        Toolbox::new(tools.iter().map(build).collect::<Result<_, E>>()?).map_err(&refused)
    }
}

impl ToolConfig<NoPlugin> {
    /// Builds a toolbox of these tools.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if a folder cannot be searched, a server cannot be reached, or two tools have the same name.
    pub fn built(tools: &[Self]) -> Result<Toolbox> {
        Self::toolbox(tools, |plugin| match *plugin {}, |error| error)
    }
}
