//! A program that extends gradus without changing it. It adds a reward, a metric, a task, a post-processor, an observer,
//! an online method, an offline method and a family of models.
//!
//! ```sh
//! cargo run -p plugins -- DIRECTORY [RUN.yml]
//! ```
//!
//! runs the training of RUN.yml. Without a file, it creates a random model of a few thousand parameters and trains it
//! for two steps. All output goes to DIRECTORY.

mod best_of;
mod brevity;
mod events;
mod first_sentence;
mod repetition;
mod reviews;
mod sandwich;
mod slic;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use gradus::config::{Plan, Registry, Request, RunConfig};
use gradus::device::DeviceChoice;
use gradus::machine::Machine;
use gradus::model::{CausalLm, ModelDir, register_family, save_causal};
use gradus::observer::Silent;
use gradus::rng::{Purpose, Seed};
use gradus::task::demo::tokenizer;
use gradus::text::render;
use serde_json::{Value, json};

/// Registers the plug-ins that configurations may name.
fn registry() -> gradus::Result<Registry> {
    let mut registry = Registry::default();
    registry.reward("brevity", |options: &brevity::Brevity, _| Ok(options.clone()))?;
    registry.metric("repetition", |options: &repetition::Repetition, _| Ok(options.clone()))?;
    registry.task("reviews", |options: &reviews::Reviews| Ok(options.clone()))?;
    registry.post_processor("first_sentence", |options: &first_sentence::FirstSentence| Ok(*options))?;
    registry.observer("events", |options: &events::Events, run| Ok(options.of(run)))?;
    registry.online_method::<best_of::BestOf>("best_of")?;
    registry.offline_method::<slic::Slic>("slic")?;
    Ok(registry)
}

/// The run configuration if no file is given.
const RUN: &str = "
data: { task: { plugin: { reviews: { things: [kettle, lamp, chair] } } } }
method: { plugin: { best_of: { group_size: 2, max_new_tokens: 8 } } }
reward:
  mix:
    - { weight: 1, reward: { plugin: { brevity: { words: 8 } } } }
    - { weight: -1, reward: { metric: { plugin: { repetition: {} } } } }
observers: [{ events: { file: events.jsonl } }]
train:
  max_steps: 2
  batch_size: 2
  eval_steps: 1
  save_steps: 2
  evaluation:
    metrics: [rouge, { plugin: { repetition: { lowercase: true } } }]
    post_process: { plugin: { first_sentence: {} } }
";

/// Writes a random model of the family of [`sandwich`] with a vocabulary of a few words.
fn write_model(directory: &Path) -> gradus::Result<PathBuf> {
    let (files, model) = (directory.join("files"), directory.join("model"));
    for path in [&files, &model] {
        std::fs::create_dir_all(path).map_err(|error| gradus::Error::io(path, error))?;
    }
    tokenizer::write_tokenizer(&files)?;
    let config = json!({
        "model_type": "sandwich", "architectures": ["SandwichForCausalLM"], "vocab_size": tokenizer::vocabulary().len(),
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0, "residual_factor": 0.7,
    });
    let path = files.join("config.json");
    std::fs::write(&path, config.to_string()).map_err(|error| gradus::Error::io(path, error))?;
    let dir = ModelDir::open(&files)?;
    let device = DeviceChoice::cpu().device();
    save_causal(&CausalLm::random(&dir, &mut Seed(1).stream(Purpose::Init, 0, 0), &device)?, &dir, &model)?;
    Ok(model)
}

/// Trains and returns the results.
fn run(directory: &Path, file: Option<&Path>) -> gradus::Result<Value> {
    let registry = registry()?;
    let request = Request { file, registry: Some(&registry), ..Request::default() };
    let written = match file {
        Some(_) => RunConfig::load(&request)?,
        None => {
            let (model, run) = (write_model(directory)?, directory.join("run"));
            let text = format!("model: {}\noutput_dir: {}\n{RUN}", model.display(), run.display());
            RunConfig::read(&text, &request)?
        }
    };
    // The plan is complete: it contains the plug-ins that the configuration names.
    let plan = Plan::check(&written, &Machine::detect())?;
    Ok(gradus::train::run(&plan, &mut Silent)?.results)
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program says what came of it")]
fn main() -> ExitCode {
    // If this process was started only to render chat templates, it does nothing else.
    let connect = || render::streams(std::io::stdin(), std::io::stdout());
    if let Some(code) = render::answer(std::env::args_os().skip(1), connect).map(ExitCode::from) {
        return code;
    }
    // From here on, such a separate process renders the templates of models, which may be untrusted.
    if let Err(error) = render::this_program().map(render::register) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let mut words = std::env::args_os().skip(1).map(PathBuf::from);
    let Some(directory) = words.next() else {
        eprintln!("usage: plugins DIRECTORY [RUN.yml]");
        return ExitCode::from(2);
    };
    // Before any model is opened.
    let outcome = register_family(sandwich::SANDWICH).and_then(|()| run(&directory, words.next().as_deref()));
    match outcome {
        Ok(results) => {
            println!("{results}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            error.hint().into_iter().for_each(|hint| eprintln!("hint: {hint}"));
            ExitCode::FAILURE
        }
    }
}
