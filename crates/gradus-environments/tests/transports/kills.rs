//! Processes that are killed at random points. No caller hangs, no process survives, and no answer is used twice.
//!
//! Each child, and a process that it starts, holds a connection to the test. The connection closes when the process
//! dies.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gradus_environments::{
    Environment, Error, McpConfig, McpServer, NewEpisode, ProgramConfig, ProgramEnvironment, Start, ToolSource, Turn,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Map, Value, json};

use crate::mutate::Dice;
use crate::{CHILD, child as command, hostile};

/// Episodes per worker, and number of workers.
const EPISODES: usize = 40;
const WORKERS: usize = 6;

/// No answer takes this long on any machine. A caller that waits longer hangs.
const PATIENCE: f64 = 300.0;

/// Turns that make the child die.
const BEFORE: &str = "die before";
const HALF: &str = "die within";
const AFTER: &str = "die after";

/// `PROTOCOL PORT`: a child that counts its answers; or `idle PORT`, which only stays alive.
#[allow(clippy::zombie_processes, reason = "gradus is to end the whole group")]
pub fn child(arguments: &[String]) {
    let (role, port) = (arguments[0].as_str(), arguments[1].as_str());
    let mut line = TcpStream::connect(format!("127.0.0.1:{port}")).expect("the test listens");
    writeln!(line, "{role} {}", std::process::id()).expect("the test listens");
    let mut byte = [0];
    if role == "idle" {
        // Wait until the test is over.
        let _ = line.read(&mut byte);
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let mut idle = Command::new(program);
    idle.args([CHILD, "counts", "idle", port]).stdin(Stdio::null());
    // The other children hold the output of their parent open.
    if role == "mcp" {
        idle.stdout(Stdio::null()).stderr(Stdio::null());
    }
    idle.spawn().expect("started");
    // A byte from the test kills this process, whatever it is doing.
    std::thread::spawn(move || {
        if line.read(&mut byte).is_ok_and(|count| count == 1) {
            die();
        }
    });
    let (mut output, mut answers) = (std::io::stdout(), 0);
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let request: Value = serde_json::from_str(&line).expect("gradus writes JSON");
        let Some((mut answer, turn_text)) = answer(&request, answers) else { continue };
        answers += 1;
        answer["id"] = request["id"].clone();
        let bytes = format!("{answer}\n").into_bytes();
        if turn_text == BEFORE {
            die();
        }
        let end = if turn_text == HALF { bytes.len() / 2 } else { bytes.len() };
        if output.write_all(&bytes[..end]).and_then(|()| output.flush()).is_err() {
            return;
        }
        if turn_text == HALF || turn_text == AFTER {
            die();
        }
    }
}

fn die() {
    let _ = kill(Pid::this(), Signal::SIGKILL);
    // The signal arrives at once, but possibly at another thread first.
    std::thread::park();
}

/// Answers a request of either protocol, with the process id and the number of answers so far. Also returns the text of
/// the turn.
fn answer(request: &Value, answers: usize) -> Option<(Value, String)> {
    let mark = |name: &str, turn_text: &str| format!("{} {answers} {name}: {turn_text}", std::process::id());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if let Some(what) = request["do"].as_str() {
        let (name, turn_text) = (text(&request["episode"]), text(&request["turn"]["text"]));
        let answer = match what {
            "reset" => json!({ "message": mark(&name, "") }),
            "step" => json!({ "replies": mark(&name, &turn_text) }),
            _ => json!({}),
        };
        return Some((answer, turn_text));
    }
    request.get("id")?;
    let result = match request["method"].as_str()? {
        "initialize" => json!({ "protocolVersion": "2025-11-25" }),
        "tools/list" => json!({ "tools": [{ "name": "say", "inputSchema": { "type": "object" } }] }),
        _ => {
            let (name, turn_text) =
                (text(&request["params"]["arguments"]["name"]), text(&request["params"]["arguments"]["said"]));
            let part = json!({ "type": "text", "text": mark(&name, &turn_text) });
            return Some((json!({ "jsonrpc": "2.0", "result": { "content": [part] } }), turn_text));
        }
    };
    Some((json!({ "jsonrpc": "2.0", "result": result }), String::new()))
}

/// Children by process id, each with a connection on which to kill it.
type Lives = Mutex<BTreeMap<u32, TcpStream>>;

/// All processes that have reported.
struct Watch {
    port: u16,
    lives: Arc<Lives>,
    born: Receiver<u32>,
    dead: Receiver<u32>,
}

impl Watch {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let lives = Arc::new(Mutex::new(BTreeMap::new()));
        let (is_born, born) = channel();
        let (is_dead, dead) = channel();
        let of = Arc::clone(&lives);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (is_born, is_dead, lives) = (is_born.clone(), is_dead.clone(), Arc::clone(&of));
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
                    let mut line = String::new();
                    let _ = reader.read_line(&mut line);
                    // A process that was killed before it could report is dead anyway.
                    let Some((role, pid)) = line.trim().split_once(' ') else { return };
                    let Ok(pid) = pid.parse() else { return };
                    let _ = is_born.send(pid);
                    if role != "idle" {
                        lives.lock().expect("no panic").insert(pid, stream);
                    }
                    let _ = reader.read_to_end(&mut Vec::new());
                    let _ = is_dead.send(pid);
                });
            }
        });
        Self { port, lives, born, dead }
    }

    /// Asserts that all processes are dead. Returns how many there were.
    fn nobody_is_left(&self) -> usize {
        let (mut born, mut dead) = (BTreeSet::new(), BTreeSet::new());
        loop {
            born.extend(self.born.try_iter());
            if born == dead {
                break;
            }
            match self.dead.recv_timeout(Duration::from_secs(120)) {
                Ok(pid) => drop(dead.insert(pid)),
                Err(_) => panic!("processes are left: {:?}", born.difference(&dead).collect::<Vec<_>>()),
            }
        }
        for pid in &born {
            let stat = format!("/proc/{pid}/stat");
            let is_gone = || {
                let stat = std::fs::read_to_string(&stat).unwrap_or_default();
                // A zombie waits for its parent or the system to collect it.
                stat.rsplit(") ").next().is_none_or(|state| state.is_empty() || state.starts_with(['Z', 'X']))
            };
            // Its connection has closed, but the process may need a moment to finish.
            let is_gone = (0..60_000).any(|_| {
                is_gone() || {
                    std::thread::sleep(Duration::from_millis(2));
                    false
                }
            });
            assert!(is_gone, "the process {pid} lives on");
        }
        assert_eq!(self.born.try_recv().ok(), None, "a process was left that reports only now");
        born.len()
    }
}

/// Observations of all workers.
#[derive(Default)]
struct Seen {
    marks: BTreeSet<(u32, usize)>,
    answered: usize,
    /// Number of episodes that ended, and that failed.
    ended: usize,
    failed: usize,
}

impl Seen {
    /// Checks an answer and returns the id of the process that sent it.
    fn take(&mut self, text: &str, name: &str, turn_text: &str) -> u32 {
        let mut parts = text.splitn(3, ' ');
        let mut number = || parts.next().and_then(|part| part.parse::<usize>().ok()).expect("a number");
        let (pid, count) = (number() as u32, number());
        assert_eq!(parts.next(), Some(&*format!("{name}: {turn_text}")), "the answer to something else");
        assert!(self.marks.insert((pid, count)), "the answer {count} of {pid} was taken twice");
        self.answered += 1;
        pid
    }

    fn fail(&mut self, error: &Error, noun: &str) {
        assert!(matches!(error, Error::Episode { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.starts_with(noun) && !message.contains("did not answer"), "{message}");
        self.failed += 1;
    }
}

/// Chooses the text of a turn. Sometimes it makes the process die, or the process is killed at the same time.
fn turn_text(dice: &mut Dice, lives: &Lives, pid: Option<u32>, turn: usize) -> String {
    match dice.below(200) {
        0 => BEFORE.to_owned(),
        1 => HALF.to_owned(),
        2 => AFTER.to_owned(),
        3 | 4 => {
            let lives = lives.lock().expect("no panic");
            if let Some(mut life) = pid.and_then(|pid| lives.get(&pid)) {
                let _ = life.write_all(b"x");
            }
            format!("turn {turn}")
        }
        _ => format!("turn {turn}"),
    }
}

/// Runs all workers to their end.
fn play(work: impl Fn(usize, &mut Dice, &Mutex<Seen>) + Sync) -> Seen {
    let seen = Mutex::new(Seen::default());
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (seen, work) = (&seen, &work);
            scope.spawn(move || {
                let mut dice = Dice::of(hostile::seed(), worker as u64);
                for episode in 0..EPISODES {
                    work(worker * EPISODES + episode, &mut dice, seen);
                }
            });
        }
    });
    seen.into_inner().expect("no panic")
}

fn check(name: &str, seen: &Seen, watch: &Watch) {
    let processes = watch.nobody_is_left();
    let lives = watch.lives.lock().expect("no panic").len();
    let Seen { answered, ended, failed, .. } = seen;
    println!(
        "{name:12} {answered} answers; {ended} episodes ended, {failed} failed; {lives} lives, {processes} processes, none left"
    );
    assert_eq!(ended + failed, WORKERS * EPISODES, "{name}: every episode has an end");
    assert!(*ended >= 40 && *failed >= 10 && lives >= 10, "{name}");
}

pub fn program() {
    let watch = Watch::start();
    let port = watch.port.to_string();
    let config = ProgramConfig { program: command(&["counts", "program", &port]), timeout_s: PATIENCE };
    let environment = ProgramEnvironment::start(&config).expect("started");
    let noun = "the environment";
    let lives = &watch.lives;
    let seen = play(|number, dice, seen| {
        let name = format!("episode {number}");
        let start = Start { name: name.clone(), seed: 1, row: Map::new() };
        let take = |text: &str, turn_text: &str| seen.lock().expect("no panic").take(text, &name, turn_text);
        let NewEpisode { mut episode, opening } = match environment.begin(&start) {
            Ok(begun) => begun,
            Err(error) => return seen.lock().expect("no panic").fail(&error, noun),
        };
        let pid = take(&opening.expect("a text"), "");
        for turn in 0..4 {
            let turn_text = turn_text(dice, lives, Some(pid), turn);
            match episode.step(&Turn { text: turn_text.clone(), ..Turn::default() }) {
                Ok(observation) => assert_eq!(take(observation.replies[0].content(), &turn_text), pid, "another life"),
                Err(error) => return seen.lock().expect("no panic").fail(&error, noun),
            }
        }
        match episode.finish() {
            Ok(_) => seen.lock().expect("no panic").ended += 1,
            Err(error) => seen.lock().expect("no panic").fail(&error, noun),
        }
    });
    drop(environment);
    check("program", &seen, &watch);
}

pub fn mcp() {
    let watch = Watch::start();
    let port = watch.port.to_string();
    let command = command(&["counts", "mcp", &port]);
    let server = McpServer::connect(&McpConfig { command, timeout_s: PATIENCE, ..McpConfig::default() });
    let server = server.expect("started");
    let lives = &watch.lives;
    let seen = play(|number, dice, seen| {
        let mut pid = None;
        for turn in 0..5 {
            let name = format!("episode {number}, call {turn}");
            let turn_text = turn_text(dice, lives, pid, turn);
            let arguments = Map::from_iter([("name".to_owned(), json!(name)), ("said".to_owned(), json!(turn_text))]);
            match server.call("say", &arguments) {
                Ok(text) => pid = Some(seen.lock().expect("no panic").take(&text.expect("a text"), &name, &turn_text)),
                Err(error) => return seen.lock().expect("no panic").fail(&error, "the MCP server"),
            }
        }
        seen.lock().expect("no panic").ended += 1;
    });
    drop(server);
    check("mcp, lines", &seen, &watch);
}
