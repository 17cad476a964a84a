//! Served environments behave like the environments themselves.

use gradus_environments::{
    Call, Environment, EnvironmentConfig, NoPlugin, Observation, ProgramConfig, ProgramEnvironment, Start, Turn,
};
use serde_json::{Map, Value, json};

use crate::mutate::Dice;
use crate::{child, skip};

/// Time limit of an answer in seconds. These programs are fast, and a busy machine must not fail the test.
const PATIENCE: f64 = 120.0;

fn start(seed: u64) -> Start {
    Start { name: format!("seed {seed}"), seed, row: Map::from_iter([("prompt".to_owned(), json!("p"))]) }
}

/// All outputs of an episode.
fn played(environment: &dyn Environment, seed: u64) -> (Option<String>, Vec<Observation>, Option<f64>) {
    let mut dice = Dice::of(seed, 7);
    let begun = environment.begin(&start(seed)).expect("begun");
    let (mut episode, mut observations) = (begun.episode, Vec::new());
    for _ in 0..12 {
        let words = ["north", "south", "east", "west", "nothing", "50", "25", "75", "1", "99"];
        let text = words[dice.below(words.len())].to_owned();
        let call = |arguments: Result<Value, String>| Call {
            id: dice_id(seed),
            name: "calculator".into(),
            arguments: arguments.map(|value| value.as_object().cloned().expect("an object")),
        };
        let calls = match dice.below(3) {
            0 => vec![call(Ok(json!({ "expression": "2 * 3" }))), call(Ok(json!({}))), call(Err("unreadable".into()))],
            1 => vec![call(Ok(json!({ "expression": format!("{text} / 7") })))],
            _ => Vec::new(),
        };
        let observation =
            episode.step(&Turn { content: text.clone(), text, calls, ..Turn::default() }).expect("answered");
        let is_done = observation.is_done;
        observations.push(observation);
        if is_done {
            break;
        }
    }
    (begun.opening, observations, episode.finish().expect("finished"))
}

fn dice_id(seed: u64) -> Option<String> {
    seed.is_multiple_of(2).then(|| format!("call {seed}"))
}

pub fn games() {
    for config in ["{\"guess\": {}}", "{\"maze\": {}}", "{\"arithmetic\": {}}"] {
        let here = serde_json::from_str::<EnvironmentConfig<NoPlugin>>(config)
            .expect("a configuration")
            .built()
            .expect("a game");
        let program = ProgramConfig { program: child(&["serve", config]), timeout_s: PATIENCE };
        let there = ProgramEnvironment::start(&program).expect("a program");
        assert_eq!((here.tools(), here.is_deterministic()), (there.tools(), there.is_deterministic()));
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (here, there) = (&here, &there);
                scope.spawn(move || {
                    for seed in (worker..40).step_by(4) {
                        assert_eq!(played(&**here, seed), played(there, seed), "{config}, seed {seed}");
                    }
                });
            }
        });
    }
}

/// Tests the example of the documentation, if cargo has built it; `cargo test` does.
pub fn example() {
    let program = std::env::current_exe().expect("this program");
    let built = program.parent().and_then(|deps| deps.parent()).expect("a target folder").join("examples/capitals");
    let built = built.with_extension(std::env::consts::EXE_EXTENSION);
    if !built.exists() {
        return skip::skipped(
            "example",
            "`cargo test -p gradus-environments` builds the example, `--test` alone does not",
        );
    }
    let config = ProgramConfig { program: vec![built.display().to_string()], timeout_s: PATIENCE };
    let environment = ProgramEnvironment::start(&config).expect("a program");
    let begun = environment.begin(&start(1)).expect("begun");
    assert_eq!(begun.opening.as_deref(), Some("What is the capital of Japan?"));
    let mut episode = begun.episode;
    let says = |text: &str| Turn { text: text.into(), content: text.into(), ..Turn::default() };
    let first = episode.step(&says("It is Tokyo.")).expect("answered");
    assert_eq!((first.replies[0].content(), first.metrics["right"]), ("Right. And of Kenya?", 1.0));
    let last = episode.step(&says("Mombasa")).expect("answered");
    assert_eq!((last.is_done, last.metrics["right"], episode.finish()), (true, 0.0, Ok(Some(0.5))));
}
