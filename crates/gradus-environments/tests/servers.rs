//! Environments and tools of other packages, if Python has them: servers of `openenv`, of `verifiers`, and of `mcp` (versions 1 and 2).
//!
//! `GRADUS_PYTHON` names the interpreter. The default is `python3`.

#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use gradus_environments::{
    Call, Environment, Error, McpConfig, McpServer, NewEpisode, Observation, OpenEnv, OpenEnvConfig, Reply,
    SampledTurn, Start, ToolConfig, ToolSource, Toolbox, Turn, Verifiers,
};
use serde_json::{Value, json};

#[path = "../../gradus/tests/support/skip.rs"]
mod skip;

/// Returns an interpreter with `package`. If there is none, reports that the test is skipped.
fn python(package: &str) -> Option<String> {
    let python = std::env::var("GRADUS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", &format!("import {package}")]).stderr(Stdio::null()).status();
    if has.is_ok_and(|status| status.success()) {
        return Some(python);
    }
    skip::skipped("servers", &format!("`{python}` has no package `{package}`"));
    None
}

/// A server that prints its port when it listens. It is ended when this value is dropped.
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
    Turn { text: text.into(), content: text.into(), ..Turn::default() }
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

/// Serves an app on a free port and prints the port.
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
    // Eight interleaved episodes.
    let mut episodes: Vec<NewEpisode> =
        (0..8).map(|i| environment.begin(&start(&format!("episode {i}"))).expect("begun")).collect();
    assert_eq!(episodes[5].opening.as_deref(), Some("Guess. (episode 5, 3)"));
    for (guess, expected) in [("5", "higher"), ("I say 9.", "lower"), ("no number", "Answer with a number.")] {
        for begun in &mut episodes {
            let observation = begun.episode.step(&turn(guess)).expect("answered");
            assert_eq!(observation.replies, [Reply::User { content: expected.into() }]);
            assert!(!observation.is_done);
        }
    }
    // A ninth episode exceeds the server's capacity.
    let full = environment.begin(&start("one more")).err().expect("refused");
    assert!(full.to_string().contains("CAPACITY_REACHED") && full.hint().is_some(), "{full}");
    for mut begun in episodes {
        let last = begun.episode.step(&turn("7")).expect("answered");
        assert_eq!((last.is_done, last.reward), (true, Some(1.0)));
        assert_eq!(begun.episode.finish(), Ok(None));
    }
    // Closed sessions become free again within a moment.
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
    assert!(wrong.metrics["tools/failures"] > 0.0 && wrong.replies[0].content().starts_with("{'error': "), "{wrong:?}");
    let none = episode.step(&call("subtract", json!({}))).expect("answered");
    assert_eq!(none.metrics["tools/failures"], 1.0);
    assert!(episode.step(&turn("It is 42.")).expect("answered").is_done);
}

/// Tools that compute, fail, wait for each other, return images, send requests and crash.
const MCP: &str = r#"
import asyncio, logging, os, sys
logging.disable(logging.CRITICAL)
try:
    from mcp.server.mcpserver import MCPServer as Server, Image, Context
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server, Image, Context

server = Server("tools")
here = set()

@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b

@server.tool()
def fail(why: str) -> str:
    raise ValueError(why)

@server.tool()
async def meet(name: str, of: int) -> str:
    """Waits until so many have come."""
    here.add(name)
    while len(here) < of:
        await asyncio.sleep(0.01)
    return f"{name} met"

@server.tool()
def look() -> list:
    return ["A picture:", Image(data=b"PNG", format="png")]

@server.tool()
async def ping(context: Context) -> str:
    """Asks the client whether it is there."""
    await context.info("a message aside") if hasattr(context, "info") else None
    await context.session.send_ping()
    return "it is there"

@server.tool()
async def ask(context: Context) -> str:
    """Asks the client for something that it does not have."""
    from pydantic import BaseModel
    class Name(BaseModel):
        name: str
    try:
        await context.elicit("Your name?", Name)
    except Exception as error:
        return f"no name: {error}"
    return "a name"

@server.tool()
def crash() -> str:
    print("out of paper", file=sys.stderr, flush=True)
    os._exit(3)

@server.tool()
def who() -> int:
    return os.getpid()
"#;

fn answer(server: &McpServer, name: &str, arguments: Value) -> Result<String, String> {
    let arguments = arguments.as_object().cloned().expect("an object");
    server.call(name, &arguments).expect("the server is there")
}

/// Checks that are the same for every transport.
fn use_tools(config: &McpConfig) -> McpServer {
    let server = McpServer::connect(config).expect("a server");
    let names: Vec<&str> = server.tools().iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["add", "fail", "meet", "look", "ping", "ask", "crash", "who"]);
    assert_eq!(server.tools()[0].description, "Adds two numbers.");
    assert_eq!(server.tools()[0].parameters["properties"]["b"]["type"], "integer");
    assert_eq!(answer(&server, "add", json!({ "a": 2, "b": 40 })), Ok("42".into()));
    let wrong = answer(&server, "add", json!({ "a": 2, "b": "forty" })).expect_err("refused");
    assert!(wrong.contains("valid integer"), "{wrong}");
    let failed = answer(&server, "fail", json!({ "why": "the moon" })).expect_err("failed");
    assert!(failed.contains("fail"), "{failed}");
    let unknown = answer(&server, "subtract", json!({})).expect_err("refused");
    assert!(unknown.contains("subtract"), "{unknown}");
    let picture = answer(&server, "look", json!({})).expect("a result");
    assert_eq!(picture, "A picture:\n(an image, image/png, which is not shown)");
    let name = answer(&server, "ask", json!({})).expect("a result");
    assert!(name.starts_with("no name: "), "{name}");
    // No call returns before all have started, so the calls are open concurrently.
    std::thread::scope(|scope| {
        let meet = |i: usize| answer(&server, "meet", json!({ "name": format!("caller {i}"), "of": 8 }));
        let callers: Vec<_> = (0..8).map(|i| scope.spawn(move || meet(i))).collect();
        for (i, caller) in callers.into_iter().enumerate() {
            assert_eq!(caller.join().expect("no panic"), Ok(format!("caller {i} met")));
        }
    });
    server
}

#[test]
fn tools_of_mcp_over_the_channels_of_a_process() {
    let Some(python) = python("mcp") else { return };
    let command = vec![python, "-c".to_owned(), format!("{MCP}\nserver.run('stdio')")];
    let config = McpConfig { command, ..McpConfig::default() };
    let server = use_tools(&config);
    assert_eq!(answer(&server, "ping", json!({})), Ok("it is there".into()));
    // After a crash, the episode of the open call fails. The next call starts the server again.
    let first = answer(&server, "who", json!({})).expect("a process");
    let toolbox = Toolbox::new(vec![Box::new(server)]).expect("one source");
    let begin = |name: &str| toolbox.begin(&start(name)).expect("begun").episode;
    let (mut one, mut other) = (begin("one"), begin("other"));
    let error = one.step(&call("crash", json!({}))).expect_err("the server is gone");
    assert!(matches!(error, Error::Episode { .. }), "{error:?}");
    assert!(error.to_string().contains("(exit status: 3)") && error.to_string().contains("out of paper"), "{error}");
    let Observation { replies, .. } = other.step(&call("who", json!({}))).expect("answered");
    assert!(replies[0].content() != first && replies[0].content().parse::<u32>().is_ok(), "{replies:?}");
    drop((one, other, toolbox));
    // Offers only some of the tools.
    let only = |only: &[&str], except: &[&str]| {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        let only = Some(list(only)).filter(|only| !only.is_empty());
        ToolConfig::built(&[ToolConfig::Mcp(McpConfig { only, except: list(except), ..config.clone() })])
    };
    let names = |toolbox: Toolbox| toolbox.tools().iter().map(|tool| tool.name.clone()).collect::<Vec<String>>();
    assert_eq!(names(only(&["who", "add"], &[]).expect("two")), ["add", "who"]);
    assert_eq!(names(only(&["who", "add"], &["who"]).expect("one")), ["add"]);
    let error = only(&["subtract"], &[]).err().expect("no such tool").to_string();
    assert!(error.contains("has no tool `subtract`; it has `add`, "), "{error}");
    let twice = [ToolConfig::Mcp(config.clone()), ToolConfig::Mcp(config)];
    assert_eq!(ToolConfig::built(&twice).err().expect("refused").to_string(), "two tools are called `add`");
}

/// Serves the tools over HTTP; `ARGS` are the arguments of the app. If there is a key, callers must send it.
const MCP_HTTP: &str = r#"
def arguments(**wanted):
    import inspect
    if "json_response" in inspect.signature(server.streamable_http_app).parameters:
        return wanted
    for name, value in wanted.items():
        setattr(server.settings, name, value)
    return {}

def guarded(app, key):
    async def inner(scope, receive, send):
        found = dict(scope.get("headers") or []).get(b"authorization", b"").decode()
        if scope["type"] == "http" and key and found != f"Bearer {key}":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": f"no key, but {found}".encode()})
        else:
            await app(scope, receive, send)
    return inner
"#;

fn serve_mcp(python: &str, arguments: &str, key: &str) -> Server {
    let serve = format!("serve(guarded(server.streamable_http_app(**arguments({arguments})), {key:?}))");
    Server::start(python, &format!("{SERVE}{MCP}{MCP_HTTP}{serve}"))
}

fn mcp_at(port: u16) -> McpConfig {
    McpConfig { url: Some(format!("http://127.0.0.1:{port}/mcp")), ..McpConfig::default() }
}

#[test]
fn tools_of_mcp_over_http() {
    let Some(python) = python("mcp, uvicorn") else { return };
    let events = serve_mcp(&python, "", "");
    let server = use_tools(&mcp_at(events.1));
    // If the server has ended, the episode fails.
    let error = server.call("crash", &serde_json::Map::new()).expect_err("the server is gone");
    assert!(matches!(error, Error::Episode { .. }), "{error:?}");
    assert!(server.call("who", &serde_json::Map::new()).is_err(), "nobody starts it again");
    drop(events);
}

#[test]
fn a_session_that_the_server_forgot_is_opened_again() {
    let Some(python) = python("mcp, uvicorn") else { return };
    let first = serve_mcp(&python, "", "");
    let server = McpServer::connect(&mcp_at(first.1)).expect("a server");
    let before = answer(&server, "who", json!({})).expect("a process");
    let port = first.1;
    drop(first);
    let again = MCP_AGAIN.replace("PORT", &port.to_string());
    let second =
        Server::start(&python, &format!("{again}{MCP}{MCP_HTTP}serve(server.streamable_http_app(**arguments()))"));
    assert_eq!(second.1, port);
    let after = answer(&server, "who", json!({})).expect("the session is opened again");
    assert_ne!(before, after);
}

/// Like `SERVE`, on a given port.
const MCP_AGAIN: &str = r#"
import socket, uvicorn
def serve(app):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", PORT))
    listener.listen(64)
    print(PORT, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
"#;

#[test]
fn mcp_over_http_has_keys() {
    let Some(python) = python("mcp, uvicorn") else { return };
    // Cargo sets this variable for tests.
    let (variable, key) = ("CARGO_PKG_NAME", std::env::var("CARGO_PKG_NAME").expect("set by cargo"));
    let listening = serve_mcp(&python, "json_response=True, stateless_http=True", &key);
    let config = mcp_at(listening.1);
    let error = McpServer::connect(&config).err().expect("no key");
    assert!(error.to_string().contains("status 401 Unauthorized: no key, but"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("key_variable")), "{error:?}");
    let with_key = McpConfig { key_variable: Some(variable.into()), ..config.clone() };
    let server = McpServer::connect(&with_key).expect("a key");
    assert_eq!(answer(&server, "add", json!({ "a": 2, "b": 40 })), Ok("42".into()));
    let wrong = McpConfig { key_variable: Some("PATH".into()), ..config.clone() };
    let error = McpServer::connect(&wrong).err().expect("refused").to_string();
    assert!(error.ends_with("no key, but Bearer …"), "the key is not told: {error}");
    let none = McpConfig { key_variable: Some("GRADUS_NO_SUCH_KEY".into()), ..config.clone() };
    let error = McpServer::connect(&none).err().expect("refused").to_string();
    assert!(error.starts_with("the environment variable `GRADUS_NO_SUCH_KEY` holds no key"), "{error}");
    let headers = [("authorization".to_owned(), format!("Bearer {key}"))].into();
    assert!(McpServer::connect(&McpConfig { headers, ..config }).is_ok());
}

/// A `verifiers` environment server whose agent takes turns in its own process. It prints its port.
const TEA: &str = include_str!("verifiers.py");

#[test]
fn a_server_of_verifiers_is_played() {
    let Some(python) = python("verifiers.v1.serve.server, renderers, transformers") else { return };
    let server = Server::start(&python, TEA);
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus/tests/fixtures/parity/trajectories/models/qwen3");
    let keys =
        json!({ "address": format!("tcp://127.0.0.1:{}", server.1), "tokenizer": tokenizer, "timeout_s": 120.0 });
    let environment = Verifiers::connect(&serde_json::from_value(keys).expect("keys")).expect("a server");
    let begin = |i: u32| {
        let row = json!({ "prompt": format!("Tea {i}?"), "turns": 2, "idx": i, "unknown": "column" });
        let start = Start { name: format!("episode {i}"), seed: 3, row: row.as_object().cloned().expect("an object") };
        environment.begin(&start).expect("begun").episode
    };
    // The template of this tokenizer writes the mark of a turn, the role, the text, and the end mark.
    let mut episodes: Vec<_> = (1..=4).map(begin).collect();
    let prompts: Vec<Vec<u32>> = episodes.iter().map(|episode| episode.prompt_ids().expect("ids").to_vec()).collect();
    assert!(prompts.iter().all(|ids| ids.len() > 10 && ids[0] == 3) && prompts[0] != prompts[1], "{prompts:?}");
    for (i, episode) in episodes.iter_mut().enumerate().rev() {
        let turn = |first: u32, is_cut: bool| SampledTurn {
            ids: vec![first, 30, 4],
            logprobs: vec![-0.5, -0.25, -0.125],
            is_cut,
        };
        let observation = episode.step_sampled(&Turn::default(), &turn(21, false)).expect("answered");
        let [Reply::Tokens { ids, .. }] = &observation.replies[..] else { panic!("{observation:?}") };
        assert!(ids.len() > 10 && !observation.is_done && observation.reward.is_none(), "{observation:?}");
        let observation = episode.step_sampled(&Turn::default(), &turn(22, i == 2)).expect("the end");
        // Half of the six sampled ids.
        assert_eq!((observation.is_done, observation.reward), (true, Some(3.0)), "{observation:?}");
        assert_eq!(observation.metrics.get("length"), Some(&6.0));
    }
    // The server rejects a row that is not a task, and other episodes continue.
    let row = json!({ "prompt": 7 }).as_object().cloned().expect("an object");
    let error = environment.begin(&Start { row, ..start("wrong") }).err().expect("no task").to_string();
    assert!(error.contains("ValidationError"), "{error}");
    drop(begin(5));
    assert!(begin(6).prompt_ids().is_some());
}
