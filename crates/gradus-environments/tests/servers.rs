//! Environments and tools of other packages, where Python has them: servers of `openenv` and of `fastmcp`.
//!
//! `GRADUS_PYTHON` names the interpreter; else `python3` is asked.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use gradus_environments::{Begun, Call, Environment, OpenEnv, OpenEnvConfig, Reply, Start, Turn};
use serde_json::{Value, json};

#[path = "../../gradus/tests/support/skip.rs"]
mod skip;

/// An interpreter that has `package`; none where it has not, which is told.
fn python(package: &str) -> Option<String> {
    let python = std::env::var("GRADUS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", &format!("import {package}")]).stderr(Stdio::null()).status();
    if has.is_ok_and(|status| status.success()) {
        return Some(python);
    }
    skip::skipped("servers", &format!("`{python}` has no package `{package}`"));
    None
}

/// A server that prints its port when it listens; it ends with this value.
struct Server(Child, u16);

impl Server {
    fn start(python: &str, script: &str) -> Self {
        let mut child = Command::new(python)
            .args(["-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("Python starts");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let port = line.trim().parse().expect("a port");
        Self(child, port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(name: &str) -> Start {
    let row = json!({ "secret": 7, "unknown": "column" }).as_object().cloned().expect("an object");
    Start { name: name.into(), seed: 3, row }
}

fn turn(text: &str) -> Turn {
    Turn { text: text.into(), content: text.into(), calls: Vec::new() }
}

fn call(name: &str, arguments: Value) -> Turn {
    let arguments = Ok(arguments.as_object().cloned().expect("an object"));
    Turn { calls: vec![Call { id: None, name: name.into(), arguments }], ..Turn::default() }
}

fn config(port: u16) -> OpenEnvConfig {
    OpenEnvConfig {
        url: format!("http://127.0.0.1:{port}"),
        action: None,
        observation: None,
        deterministic: true,
        timeout_s: 60.0,
    }
}

/// Serves an app on a free port, which it prints.
const SERVE: &str = r#"
import socket, uvicorn, asyncio
def serve(app):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
"#;

const GUESS: &str = r#"
from openenv.core.env_server import Environment, create_fastapi_app
from openenv.core.env_server.types import Action, Observation, State

class Guess(Action):
    number: int

class Answer(Observation):
    message: str

class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def __init__(self):
        super().__init__()
        self._state = State(episode_id=None, step_count=0)
    def reset(self, seed=None, episode_id=None, secret=0):
        self.secret = secret
        self._state = State(episode_id=episode_id, step_count=0)
        return Answer(message=f"Guess. ({episode_id}, {seed})")
    def step(self, action):
        self._state.step_count += 1
        right = action.number == self.secret
        message = "Right." if right else "higher" if action.number < self.secret else "lower"
        return Answer(message=message, reward=float(right), done=right)
    @property
    def state(self):
        return self._state

serve(create_fastapi_app(Game, Guess, Answer, max_concurrent_envs=8))
"#;

#[test]
fn a_server_of_openenv_is_played() {
    let Some(python) = python("openenv, uvicorn") else { return };
    let server = Server::start(&python, &format!("{SERVE}{GUESS}"));
    let environment = OpenEnv::connect(&config(server.1)).expect("a server");
    assert!(environment.tools().is_empty() && environment.is_deterministic());
    // Eight episodes at a time, interleaved.
    let mut episodes: Vec<Begun> =
        (0..8).map(|i| environment.begin(&start(&format!("episode {i}"))).expect("begun")).collect();
    assert_eq!(episodes[5].opening.as_deref(), Some("Guess. (episode 5, 3)"));
    for (guess, expected) in [("5", "higher"), ("I say 9.", "lower"), ("no number", "Answer with a number.")] {
        for begun in &mut episodes {
            let observation = begun.episode.step(&turn(guess)).expect("answered");
            assert_eq!(observation.replies, [Reply::User { content: expected.into() }]);
            assert!(!observation.is_done);
        }
    }
    // A ninth is one too many.
    let full = environment.begin(&start("one more")).err().expect("refused");
    assert!(full.to_string().contains("CAPACITY_REACHED") && full.hint().is_some(), "{full}");
    for mut begun in episodes {
        let last = begun.episode.step(&turn("7")).expect("answered");
        assert_eq!((last.is_done, last.reward), (true, Some(1.0)));
        assert_eq!(begun.episode.finish(), Ok(None));
    }
    // Closed sessions are free again, at the latest a moment later.
    let again = (0..600).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        environment.begin(&start("again")).is_ok()
    });
    assert!(again);
    drop(server);
    assert!(environment.begin(&start("gone")).is_err());
}

const TOOLS: &str = r#"
from fastmcp import FastMCP
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State

class Adding(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def __init__(self):
        mcp = FastMCP("adding")
        @mcp.tool()
        def add(a: int, b: int) -> int:
            """Adds two numbers."""
            return a + b
        super().__init__(mcp)
        self._state = State(episode_id=None, step_count=0)
    def reset(self, seed=None, episode_id=None, **kwargs):
        return Observation()
    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation()
    @property
    def state(self):
        return self._state

serve(create_fastapi_app(Adding, CallToolAction, CallToolObservation, max_concurrent_envs=4))
"#;

#[test]
fn tools_of_a_server_of_openenv_are_called() {
    let Some(python) = python("openenv, uvicorn, fastmcp") else { return };
    let server = Server::start(&python, &format!("{SERVE}{TOOLS}"));
    let environment = OpenEnv::connect(&config(server.1)).expect("a server");
    let tool = &environment.tools()[0];
    assert_eq!((tool.name.as_str(), tool.description.as_str()), ("add", "Adds two numbers."));
    assert_eq!(tool.parameters["properties"]["a"]["type"], "integer");
    let mut episode = environment.begin(&start("a")).expect("begun").episode;
    let found = episode.step(&call("add", json!({ "a": 2, "b": 40 }))).expect("answered");
    assert_eq!(found.replies[0].content(), "42");
    let wrong = episode.step(&call("add", json!({ "a": "two" }))).expect("a tool's error is an answer");
    assert!(
        wrong.metrics["tools/failures"] > 0.0 && wrong.replies[0].content().starts_with("{\"error\":"),
        "{wrong:?}"
    );
    let none = episode.step(&call("subtract", json!({}))).expect("answered");
    assert_eq!(none.metrics["tools/failures"], 1.0);
    assert!(episode.step(&turn("It is 42.")).expect("answered").is_done);
}
