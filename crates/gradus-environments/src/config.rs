//! The registry: which environments and tools there are, under which names, with which keys.

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

/// Stands where a program has no environments or tools of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoPlugin {}

/// What answers the policy: the choice is the key. `P` is what stands for an environment of the program itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentConfig<P> {
    /// A program that reads and prints lines of JSON (docs/environments.md).
    Command(ProgramConfig),
    /// A server of OpenEnv.
    Openenv(OpenEnvConfig),
    /// An environment server of `verifiers`.
    Verifiers(VerifiersConfig),
    /// Questions of arithmetic, with a calculator as a tool.
    Arithmetic(ArithmeticConfig),
    /// Questions about documents, with a search over them as a tool.
    Documents(DocumentsConfig),
    /// Guess a number from `higher` and `lower`.
    Guess(GuessConfig),
    /// Find the exit of a maze in words.
    Maze(MazeConfig),
    /// An environment of a program that uses gradus as a library.
    Plugin(P),
}

impl<P> EnvironmentConfig<P> {
    /// The environment. `make` makes one of the program itself, and `refused` says that one of those here cannot be used.
    ///
    /// # Errors
    /// What `make` fails with; what `refused` makes of [`Error::Config`] where a key is out of its bounds, or a program cannot be started.
    pub fn build<E>(
        &self,
        make: impl FnOnce(&P) -> std::result::Result<Arc<dyn Environment>, E>,
        refused: impl FnOnce(Error) -> E,
    ) -> std::result::Result<Arc<dyn Environment>, E> {
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

    /// Whether a program is started for it.
    pub fn starts_program(&self) -> bool {
        matches!(self, Self::Command(_))
    }
}

impl EnvironmentConfig<NoPlugin> {
    /// The environment.
    ///
    /// # Errors
    /// [`Error::Config`] when a key is out of its bounds, or a program cannot be started.
    pub fn built(&self) -> Result<Arc<dyn Environment>> {
        self.build(|plugin| match *plugin {}, |error| error)
    }
}

/// Where tools come from: the choice is the key. `P` is what stands for a tool of the program itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolConfig<P> {
    /// Computes an arithmetic expression.
    Calculator {},
    /// Tools of a server of the Model Context Protocol.
    Mcp(McpConfig),
    /// Runs Python programs in a sandbox (Linux).
    Python(SandboxConfig),
    /// Searches the texts of a local folder (BM25).
    Search(SearchConfig),
    /// A tool of a program that uses gradus as a library.
    Plugin(P),
}

impl<P> ToolConfig<P> {
    /// A toolbox of these tools. `make` makes one of the program itself, and `refused` says that those here cannot be used.
    ///
    /// # Errors
    /// What `make` fails with; what `refused` makes of [`Error::Config`] where a folder cannot be searched, a server cannot be reached, or
    /// two tools have one name.
    pub fn toolbox<E>(
        tools: &[Self],
        make: impl Fn(&P) -> std::result::Result<Box<dyn ToolSource>, E>,
        refused: impl Fn(Error) -> E,
    ) -> std::result::Result<Toolbox, E> {
        let build = |tool: &Self| -> std::result::Result<Box<dyn ToolSource>, E> {
            let built: Result<Box<dyn ToolSource>> = match tool {
                Self::Plugin(plugin) => return make(plugin),
                Self::Calculator {} => Ok(Box::new(Calculator::default())),
                Self::Mcp(config) => McpServer::connect(config).map(|server| Box::new(server) as _),
                Self::Python(config) => Python::open(config).map(|tool| Box::new(tool) as _),
                Self::Search(config) => Search::open(config).map(|tool| Box::new(tool) as _),
            };
            built.map_err(&refused)
        };
        Toolbox::new(tools.iter().map(build).collect::<std::result::Result<_, E>>()?).map_err(&refused)
    }
}

impl ToolConfig<NoPlugin> {
    /// A toolbox of these tools.
    ///
    /// # Errors
    /// [`Error::Config`] when a folder cannot be searched, a server cannot be reached, or two tools have one name.
    pub fn built(tools: &[Self]) -> Result<Toolbox> {
        Self::toolbox(tools, |plugin| match *plugin {}, |error| error)
    }
}
