//! The demonstration: aligned models from scratch, on one machine, in minutes.
//!
//! A small model learns the simple language of [`task::demo`](crate::task::demo), and a reward model learns a
//! preference from noisy pairs. DPO, PPO and GRPO then each start from the same fine-tuned model. Every stage is an
//! ordinary run of [`train::run`], and its configuration file is stored next to its result. [`compare::run`] measures
//! the policies. Because the true rule is known, the report shows exactly what they have learned.

mod recipe;
mod report;
mod reuse;

use std::path::PathBuf;
use std::time::Instant;

use crate::compare;
use crate::config::{Plan, Request, RunConfig};
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::model::{CausalLm, ModelDir, save_causal};
use crate::rng::{Purpose, Seed};
use crate::run::Existing;
use crate::task::demo::tokenizer::{model_config, write_tokenizer};
use crate::task::demo::{Sizes, write_data};
use crate::train;
use crate::train::observer::{Event, Observer};

pub use recipe::{Budget, Layout, Stage};
pub use report::{PolicyReport, PromptReport, Report, Review};
pub use reuse::finished;

/// Settings of the demonstration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Directory for all files.
    pub output_dir: PathBuf,
    /// What to do if the directory is not empty.
    pub existing: Existing,
    /// Seed of data, weights, orders and samples.
    pub seed: u64,
    /// Amount of training.
    pub budget: Budget,
    /// Device to compute on.
    pub device: DeviceChoice,
}

/// Generates the task, trains, compares the policies, and writes `results.json`.
///
/// # Errors
/// If something cannot be written, or a run fails.
pub fn run(options: &Options, observer: &mut dyn Observer) -> Result<Report> {
    let started = Instant::now();
    let layout = Layout { root: options.output_dir.clone() };
    prepare(options, &layout)?;

    let train_one = |stage: Stage, observer: &mut dyn Observer| {
        let plan = plan(options, &layout, stage)?;
        observer.event(&Event::Message(&format!("{}: training in {}", stage.name(), plan.output_dir().display())));
        let began = Instant::now();
        let outcome = train::run(&plan, observer)?;
        Ok::<_, Error>((outcome, began.elapsed().as_secs_f64()))
    };
    let (_, sft_s) = train_one(Stage::Sft, observer)?;
    let (reward_model, _) = train_one(Stage::Reward, observer)?;

    let runs = Stage::POLICIES.map(|stage| plan(options, &layout, stage)).into_iter().collect::<Result<Vec<_>>>()?;
    // All policies are measured like PPO: on the held-out prompts, by the reward model.
    let judge = runs.iter().find(|plan| plan.method().name() == Stage::Ppo.name());
    let comparison = compare::run(&compare::ComparisonInput { runs: &runs, judge, directory: &layout.root }, observer)?;

    let accuracy = reward_model.results["after"]["eval_accuracy"].as_f64();
    let mut report = Report::new(&comparison, sft_s, accuracy, options.seed);
    report.elapsed_s = started.elapsed().as_secs_f64();
    let path = layout.root.join("results.json");
    let text = serde_json::to_string_pretty(&report).expect("numbers and texts can be written") + "\n";
    std::fs::write(&path, text).map_err(|source| Error::io(&path, source))?;
    Ok(report)
}

/// Writes rows, the tokenizer and a model with random weights.
fn prepare(options: &Options, layout: &Layout) -> Result<()> {
    let occupied = std::fs::read_dir(&layout.root).is_ok_and(|mut entries| entries.next().is_some());
    if occupied && options.existing == Existing::Refuse {
        let message = format!("`{}` is not empty", layout.root.display());
        return Err(Error::input(message).with_hint("choose another `--output-dir`, or pass `--overwrite`"));
    }
    if occupied && !recipe::is_written(layout) {
        let shown = layout.root.display();
        let message = format!("`{shown}` is not a demonstration of gradus: `--overwrite` would replace other files");
        return Err(Error::input(message).with_hint("choose another `--output-dir`"));
    }
    let start = layout.start();
    for dir in [&layout.data(), &start] {
        std::fs::create_dir_all(dir).map_err(|source| Error::io(dir, source))?;
    }
    let seed = Seed(options.seed);
    write_data(&layout.data(), seed, &Sizes::default())?;
    let dir = ModelDir::unsaved(model_config());
    let model = CausalLm::random(&dir, &mut seed.stream(Purpose::Init, 0, 0), &DeviceChoice::cpu().device())?;
    save_causal(&model, &dir, &start)?;
    write_tokenizer(&start)
}

/// Writes the configuration file of `stage`, and reads it as `gradus train` does.
fn plan(options: &Options, layout: &Layout, stage: Stage) -> Result<Plan> {
    let file = recipe::write(layout, stage, options.budget, (options.seed, &options.device))?;
    let written = RunConfig::load(&Request { file: Some(&file), ..Request::default() })?;
    Ok(Plan::check(&written, &Machine::detect())?.on_existing(options.existing))
}
