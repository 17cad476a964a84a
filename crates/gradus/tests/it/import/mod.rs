//! Configurations of TRL, LLaMA-Factory, axolotl and RL4LMs: their conversion, and a check that each key is converted or
//! reported.

mod axolotl;
mod llamafactory;
mod rl4lms;
mod several;
mod trl;

use gradus::config::{Imported, Plan, Request, RunConfig, import};
use gradus::error::Error;
use gradus::machine::Machine;
use serde_json::Value;

/// Returns the converted configuration and its messages. It must be runnable.
fn imported(system: &str, text: &str) -> (Value, Vec<String>, String) {
    let Imported { yaml, notes } = converted(system, text).unwrap_or_else(|error| panic!("{error}"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("config.yml");
    std::fs::write(&file, &yaml).expect("written");
    let written = RunConfig::load(&Request { file: Some(&file), ..Request::default() });
    let plan = written.and_then(|written| Plan::check(&written, &Machine::detect()));
    let plan = plan.unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    let config = serde_json::to_value(plan.config()).expect("plain data");
    (config, notes.into_iter().map(|note| note.message).collect(), yaml)
}

/// Returns the converted configuration, which may lack what a run needs.
fn converted(system: &str, text: &str) -> Result<Imported, Error> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("config.yml");
    std::fs::write(&file, text).expect("written");
    import(system.parse().expect("a system"), &file)
}

fn refused(system: &str, text: &str) -> String {
    converted(system, text).expect_err("it cannot be read").to_string()
}

#[track_caller]
fn check((config, _, yaml): &(Value, Vec<String>, String), expected: &[(&str, &str)]) {
    for (key, expected) in expected {
        assert_eq!(config.pointer(key).map(ToString::to_string).as_deref(), Some(*expected), "{key}\n{yaml}");
    }
}

const TRL_BASE: &str = "model_name_or_path: m\ndataset_name: d\n";
