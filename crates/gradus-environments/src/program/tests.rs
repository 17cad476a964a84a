//! Well-behaved and faulty programs.

use super::*;

#[path = "../../../gradus/tests/support/skip.rs"]
mod skip;

/// A program that needs only Python's standard library, if Python is installed.
fn python(script: &str) -> Option<ProgramConfig> {
    let program = ["python3", "-u", "-c", script].map(String::from).to_vec();
    let is_there = std::process::Command::new("python3").arg("--version").output().is_ok();
    if !is_there {
        skip::skipped("python3", "environments that are programs of Python");
    }
    Some(ProgramConfig { program, timeout_s: 20.0 }).filter(|_| is_there)
}

fn shell(script: &str, timeout_s: f64) -> ProgramConfig {
    ProgramConfig { program: ["sh", "-c", script].map(String::from).to_vec(), timeout_s }
}

fn start(name: &str) -> Start {
    Start { name: name.into(), seed: 3, row: Map::from_iter([("prompt".to_owned(), json!("p"))]) }
}

fn turn(text: &str) -> Turn {
    Turn { text: text.into(), content: text.into(), ..Turn::default() }
}

/// Counts the turns of each episode, and exits when it reads `crash`.
const COUNTS: &str = r#"
import json, sys
turns = {}
for line in sys.stdin:
    asked = json.loads(line)
    answer = {"id": asked["id"]}
    name = asked.get("episode")
    if asked["do"] == "describe":
        answer["tools"] = [{"name": "count", "description": "Counts."}]
        answer["deterministic"] = True
    elif asked["do"] == "reset":
        turns[name] = 0
        answer["message"] = f"{name} {asked['seed']} {asked['row']['prompt']}"
    elif asked["do"] == "step":
        if asked["turn"]["text"] == "crash":
            print("no more paper", file=sys.stderr)
            sys.exit(3)
        turns[name] += 1
        answer.update(replies=f"turn {turns[name]}", reward=0.5, done=turns[name] == 3, metrics={"turns": turns[name]})
    else:
        answer["reward"] = turns.pop(name)
    print(json.dumps(answer), flush=True)
"#;

#[test]
fn many_episodes_over_one_process() {
    let Some(config) = python(COUNTS) else { return };
    let environment = ProgramEnvironment::start(&config).expect("started");
    assert_eq!((environment.tools()[0].name.as_str(), environment.is_deterministic()), ("count", true));
    let begin = |name: &str| environment.begin(&start(name)).expect("begun");
    let (first, second) = (begin("first"), begin("second"));
    assert_eq!(first.opening.as_deref(), Some("first 3 p"));
    let (mut first, mut second) = (first.episode, second.episode);
    let step = |episode: &mut Box<dyn Episode>| episode.step(&turn("go")).expect("answered");
    assert_eq!(step(&mut first).replies[0].content(), "turn 1");
    assert_eq!(step(&mut second).replies[0].content(), "turn 1");
    assert_eq!(step(&mut first).metrics["turns"], 2.0);
    let last = step(&mut first);
    assert_eq!((last.is_done, last.reward, first.finish()), (true, Some(0.5), Ok(Some(3.0))));
}

#[test]
fn a_crash_costs_the_episodes_that_are_on_their_way_and_no_others() {
    let Some(config) = python(COUNTS) else { return };
    let environment = ProgramEnvironment::start(&config).expect("started");
    let begin = |name: &str| environment.begin(&start(name)).expect("begun").episode;
    let (mut first, mut second) = (begin("first"), begin("second"));
    let error = first.step(&turn("crash")).expect_err("it ended").to_string();
    assert!(error.contains("ended (exit status: 3)") && error.contains("no more paper"), "{error}");
    assert!(second.step(&turn("go")).is_err(), "the program that knew it is gone");
    let mut third = begin("third");
    assert_eq!(third.step(&turn("go")).expect("answered").replies[0].content(), "turn 1");
}

#[test]
fn an_episode_may_outlive_its_environment() {
    let Some(config) = python(COUNTS) else { return };
    let environment = ProgramEnvironment::start(&config).expect("started");
    let mut episode = environment.begin(&start("first")).expect("begun").episode;
    drop(environment);
    assert_eq!(episode.step(&turn("go")).expect("answered").replies[0].content(), "turn 1");
    let (send, dropped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(episode);
        send.send(()).expect("the test waits");
    });
    dropped.recv_timeout(std::time::Duration::from_secs(60)).expect("the last episode ends the program");
}

#[test]
fn what_cannot_be_used_is_a_configuration_error() {
    let refused = |config: &ProgramConfig| {
        let error = ProgramEnvironment::start(config).err().expect("refused");
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        error.to_string()
    };
    assert_eq!(refused(&ProgramConfig { program: Vec::new(), timeout_s: 1.0 }), "the environment has no program");
    assert!(refused(&shell("exit 0", 60.0)).contains("ended (exit status: 0)"));
    assert!(refused(&shell("exec sleep 60", 0.3)).contains("did not answer within 0.3 s"));
    let late = ProgramEnvironment::start(&shell("exec sleep 60", 0.3)).err().expect("refused");
    assert_eq!(late.hint(), Some("if it needs more time, raise `environment.command.timeout_s`"));
    let slow = refused(&shell("echo begun >&2; echo loading >&2; exec sleep 60", 2.0));
    assert!(slow.contains("did not answer within 2 s; its last line on stderr: `loading`"), "{slow}");
    assert!(refused(&shell("echo hello; exec sleep 60", 60.0)).contains("printed an invalid answer: it is not JSON"));
    assert!(refused(&shell("echo '{}'; exec sleep 60", 60.0)).contains("it has no whole number `id`"));
    assert!(refused(&shell("tr '\\0' x < /dev/zero", 20.0)).contains("printed a line of more than"));
    assert!(refused(&shell("echo '{\"id\": 1, \"tools\": 3}'; exec sleep 60", 60.0)).contains("not a list of tools"));
    assert!(
        refused(&ProgramConfig { program: vec!["/nowhere/env".into()], timeout_s: 1.0 })
            .contains("could not be started")
    );
    assert!(refused(&shell("true", 0.0)).contains("`timeout_s` is 0"));
}

/// Randomly changed answers: any output of a program is parsed as an observation or rejected with an error.
#[test]
fn whatever_an_answer_holds_is_read_or_refused() {
    let pieces = [
        "null",
        "true",
        "3",
        "-1e999",
        "\"text\"",
        "[]",
        "{}",
        "[[[[]]]]",
        "{\"content\": 3}",
        "{\"content\": \"a\"}",
        "{\"content\": \"a\", \"name\": \"t\"}",
        "{\"content\": \"a\", \"name\": 3, \"id\": []}",
        "1e308",
        "\"\\u0000\"",
        "[\"a\", 3]",
        "{\"a\": 1}",
        "{\"a\": \"b\"}",
        "18446744073709551616",
    ];
    let mut state = 1_u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        pieces[(state >> 33) as usize % pieces.len()]
    };
    let (mut read, mut refused) = (0, 0);
    for _ in 0..5000 {
        let text = format!(
            "{{\"id\": 1, \"replies\": {}, \"reward\": {}, \"done\": {}, \"metrics\": {}}}",
            draw(),
            draw(),
            draw(),
            draw()
        );
        match (DIALECT.read)(&text) {
            LineMeaning::Answer(_, object) => match observation(object) {
                Ok(_) => read += 1,
                Err(error) => {
                    assert!(matches!(error, Error::Episode { .. }), "{error:?}");
                    refused += 1;
                }
            },
            _ => refused += 1,
        }
    }
    assert!(read > 0 && refused > 1000, "{read} read, {refused} refused");
    let deep = format!("{{\"id\": 1, \"replies\": {}{}}}", "[".repeat(5000), "]".repeat(5000));
    assert!(matches!((DIALECT.read)(&deep), LineMeaning::Broken(_)));
    let many = json!({ "replies": vec!["a"; 65] });
    assert!(observation(many.as_object().cloned().expect("an object")).is_err());
}
