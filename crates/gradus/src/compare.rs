//! `gradus compare`: several methods with the same start model and equal budgets, measured on the same held-out
//! prompts.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::Path;

use burn::tensor::Device;

use crate::comparison::{Comparison, Entry};
use crate::config::{Plan, other_settings};
use crate::data::{self, Need, TokenizeOptions};
use crate::error::{Error, Result};
use crate::evaluation::{Evaluated, Evaluation, Measuring, further_remarks};
use crate::generate::{BeamParams, Record, SamplingParams};
use crate::metric_models::MetricModels;
use crate::model::open_model;
use crate::model::{CausalLm, ModelDir, WeightFormat};
use crate::reward::config::Learned;
use crate::reward::{self, Interrupt, Reward, Score};
use crate::rng::Seed;
use crate::rollout::{Episodes, LocalEngine, Policy, Prompt, Sampler, Scene};
use crate::run::samples::Sample;
use crate::run::{Existing, RunDir};
use crate::run_report::reset_peak_memory;
use crate::train;
use crate::train::environment;
use crate::train::examples::{self, LengthKey};
use crate::train::observer::{Event, Observer};
use crate::train::prepare::{Start, report, rows, tokenize_options};

/// Maximum completion length if no method samples: TRL's default for GRPO. At most half of the positions.
const MAX_NEW_TOKENS: usize = 256;

/// Input of a comparison.
#[derive(Debug)]
pub struct ComparisonInput<'a> {
    /// One run per method, all with the same model and data.
    pub runs: &'a [Plan],
    /// Data and reward that measure all runs; without it, only lengths and KL are measured.
    pub judge: Option<&'a Plan>,
    /// Directory for `comparison/` and the runs.
    pub directory: &'a Path,
}

/// Trains each run, measures each policy and the start model on the same prompts, and writes `comparison/`.
///
/// With [`Existing::Resume`], finished runs are not trained again.
///
/// # Errors
/// As [`train::run`]; also if no held-out prompts are available, or if a run to resume was started with other settings.
pub fn run(input: &ComparisonInput<'_>, observer: &mut dyn Observer) -> Result<Comparison> {
    let first = input.runs.first().ok_or_else(|| Error::input("nothing to compare: no method was given"))?;
    check_settings(input.runs)?;
    let judge = Judge::open(input.judge.unwrap_or(first), input.judge.is_some(), observer)?;
    let is_finished =
        |plan: &Plan| plan.existing() == Existing::Resume && plan.output_dir().join("results.json").is_file();
    // A method that cannot train must not end the comparison after others have trained for hours.
    for plan in input.runs.iter().filter(|plan| !is_finished(plan)) {
        let name = plan.method().name();
        observer.event(&Event::Message(&format!("{name}: checking its rows")));
        train::forecast::check_inputs(plan, &mut Quiet(observer))?;
    }
    for plan in input.runs {
        let name = plan.method().name();
        if is_finished(plan) {
            observer.event(&Event::Message(&format!("{name}: already finished, in {}", plan.output_dir().display())));
            continue;
        }
        observer.event(&Event::Message(&format!("{name}: training in {}", plan.output_dir().display())));
        reset_peak_memory();
        train::run(plan, observer)?;
    }
    let start = judge.measure(&judge.reference, observer)?;
    let mut entries = vec![Entry::start(start.stats.metrics(""), samples(&start, 0))];
    entries[0].remarks = judge.remarks.borrow().clone();
    for plan in input.runs {
        let run = RunDir::open(plan.output_dir())?;
        observer.event(&Event::Message(&format!("{}: measuring", plan.method().name())));
        let policy = CausalLm::load(&ModelDir::open(&run.model())?, &judge.device)?;
        let mut entry = Entry::from_run(run)?;
        // All runs are measured here with the same reward.
        entry.before = Vec::new();
        entry.reward = None;
        let found = judge.measure(&policy, observer)?;
        entry.remarks = judge.remarks.borrow().clone();
        entry.name = plan.method().name().to_owned();
        entry.measured = found.stats.metrics("");
        entry.samples = samples(&found, entry.steps);
        entries.push(entry);
    }
    let comparison = Comparison {
        model: first.config().model.clone(),
        data: first.config().data.to_string(),
        budget: budget(input.runs, &entries),
        evaluation: judge.describe(),
        entries,
    };
    comparison.write(&input.directory.join("comparison"))?;
    Ok(comparison)
}

/// Rejects runs that were started with other settings. Their numbers would not belong to this comparison.
fn check_settings(runs: &[Plan]) -> Result<()> {
    let mut problems = Vec::new();
    for plan in runs.iter().filter(|plan| plan.existing() == Existing::Resume) {
        problems.extend(other_settings(plan)?);
    }
    if problems.is_empty() { Ok(()) } else { Err(Error::Config(problems)) }
}

/// Observer that passes on no messages, because the run repeats them. It can still end the work.
struct Quiet<'a>(&'a mut dyn Observer);

impl Observer for Quiet<'_> {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Phase { .. } | Event::Progress { .. } = event {
            self.0.event(event);
        }
    }

    fn should_stop(&mut self) -> bool {
        self.0.should_stop()
    }

    fn interrupt(&self) -> Interrupt {
        self.0.interrupt()
    }
}

/// Settings and models that measure each policy.
struct Judge<'a> {
    plan: &'a Plan,
    start: Start,
    reference: CausalLm,
    prompts: Vec<Prompt>,
    params: SamplingParams,
    beams: Option<BeamParams>,
    stop: Vec<String>,
    /// Environment that answers the policies, if the runs use an environment or tools.
    episodes: Option<Episodes>,
    device: Device,
    measuring: Measuring,
    has_reward: bool,
    /// Remarks on the measurements.
    remarks: RefCell<Vec<String>>,
    /// Whether the remarks of the reward have been reported.
    has_remarked: Cell<bool>,
    interrupt: Interrupt,
}

impl<'a> Judge<'a> {
    fn open(plan: &'a Plan, has_reward: bool, observer: &mut dyn Observer) -> Result<Self> {
        let device = plan.device().device();
        let start = Start::open(plan)?;
        let reference = CausalLm::load(&start.model.dir, &device)?;
        let iteration = plan.method().iteration();
        let (max_new_tokens, temperature, stop) = match iteration {
            Some(iteration) => {
                let keys = iteration.rollouts;
                (keys.max_new_tokens, keys.temperature, keys.stop.clone())
            }
            None => (examples::shortened(MAX_NEW_TOKENS, plan, &start)?, 1.0, Vec::new()),
        };
        let (new, key) = match plan.train().evaluation.max_new_tokens {
            Some(evaluated) => (evaluated, LengthKey::Evaluation),
            None => (max_new_tokens, LengthKey::Method),
        };
        let room = examples::room(plan, &start, new, key)?;
        // Rows that every method holds out. A method that replaces unusable rows holds out more.
        let split = rows(plan, &start.model.tokenizer, Need::Prompt, &|_| true, &observer.interrupt())?;
        let episodes = environment::open(plan, &start, HashMap::new())?;
        let tools = episodes.as_ref().map_or_else(Vec::new, |episodes| episodes.dialogue.tools.clone());
        let options = TokenizeOptions { tools, ..tokenize_options(plan, &start.model, Some(room))? };
        let found = data::prompts(&split.held_out, &start.model.tokenizer, start.model.template.as_ref(), &options)?;
        report("prompts to measure on", &found.counts, split.eval_limit(&split.held_out), observer);
        if found.examples.is_empty() {
            return Err(Error::input("there are no held-out prompts to measure the policies on")
                .with_hint("give `--eval-data`, or an `--eval-fraction` above 0"));
        }
        let evaluated = &plan.train().evaluation;
        let models = MetricModels::new(device.clone(), plan.train().passes());
        let measuring =
            Measuring::new(&evaluated.metrics, evaluated.post_process.as_ref(), &models, &observer.interrupt())?;
        let remarks = measuring.remarks(&found.examples.iter().collect::<Vec<_>>());
        remarks.iter().for_each(|remark| observer.event(&Event::Warning(remark)));
        let params = SamplingParams {
            temperature: temperature as f32,
            max_new_tokens,
            stop_ids: start.model.stop_ids(),
            ..SamplingParams::default()
        };
        let params =
            iteration.map_or_else(|| params.clone(), |iteration| iteration.rollouts.sampling.apply(params.clone()));
        let params = params.forcing(start.model.dir.forced_ids());
        let (params, beams) = plan.train().evaluation.to_evaluate(params);
        // The KL to the reference is over all tokens at the temperature, regardless of the distribution that a method
        // trains on.
        let params = SamplingParams { record: Record::Nothing, untempered: false, ..params };
        let interrupt = observer.interrupt();
        let prompts = found.examples;
        Ok(Self {
            plan,
            start,
            reference,
            prompts,
            params,
            beams,
            stop,
            episodes,
            device,
            measuring,
            has_reward,
            remarks: RefCell::new(remarks),
            has_remarked: Cell::new(false),
            interrupt,
        })
    }

    fn measure(&self, policy: &CausalLm, observer: &mut dyn Observer) -> Result<Evaluated> {
        let sampler = Sampler {
            tokenizer: &self.start.model.tokenizer,
            group_size: self.plan.train().evaluation.samples(),
            params: self.params.clone(),
            beams: self.beams,
            stop: &self.stop,
            masking: None,
            episodes: self.episodes.as_ref().map(|episodes| Scene { episodes, when: "comparison", earlier: &[] }),
            progress: &self.interrupt,
        };
        let evaluation = Evaluation {
            prompts: &self.prompts,
            sampler: &sampler,
            reference: Some(&self.reference),
            seed: Seed(self.plan.train().seed),
            passes: self.plan.train().passes(),
            measuring: &self.measuring,
        };
        let mut reward = self.reward()?;
        // Each policy has its own reward, but all these rewards have the same remarks.
        if let Some(reward) = reward.as_ref().filter(|_| !self.has_remarked.replace(true)) {
            let prompts: Vec<&Prompt> = self.prompts.iter().collect();
            let further = further_remarks(&self.remarks.borrow(), &**reward, &prompts);
            further.iter().for_each(|remark| observer.event(&Event::Warning(remark)));
            self.remarks.borrow_mut().extend(further);
        }
        // A `match` gives the shorter lifetime; `map` would keep that of the box.
        let (mut source, policy) = (LocalEngine::default(), Policy { model: policy.clone(), version: 0 });
        match &mut reward {
            Some(reward) => evaluation.run(&mut source, &policy, Some(&mut **reward)),
            None => evaluation.run(&mut source, &policy, None),
        }
    }

    /// Creates a new reward for each policy, because an external program may keep state.
    fn reward(&self) -> Result<Option<Box<dyn Reward>>> {
        let run = self.plan.config();
        let has_environment = run.environment.is_some() && self.has_reward;
        let in_environment = |reward| reward::in_environment(reward, run.episode.reward_weight);
        let Some(config) = run.reward.as_ref().filter(|_| self.has_reward) else {
            return has_environment.then(|| in_environment(None)).transpose();
        };
        let passes = self.plan.train().passes();
        let models = MetricModels::new(self.device.clone(), passes);
        let load = |learned: Learned<'_>| {
            reward::load_learned(learned, &open_model(learned.name())?, &self.device, WeightFormat::F32, passes)
        };
        let reward = reward::build(config, &load, &models, &self.interrupt)?;
        if has_environment { in_environment(Some(reward)).map(Some) } else { Ok(Some(reward)) }
    }

    fn describe(&self) -> String {
        let answered = match (self.plan.config().environment.is_some(), &self.episodes) {
            (true, _) => ", answered by the environment",
            (false, Some(_)) => ", with tools",
            (false, None) => "",
        };
        format!(
            "{} held-out prompts, one completion each of at most {} tokens at temperature {}, the same random streams for all{answered}",
            self.prompts.len(),
            self.params.max_new_tokens,
            self.params.temperature
        )
    }
}

fn samples(found: &Evaluated, step: usize) -> Vec<Sample> {
    let one = |(i, score): (usize, &Score)| {
        let (prompt, rollout) = (found.rollouts.prompt(i), &found.rollouts.rollouts[i]);
        Sample {
            step,
            row: prompt.row + 1,
            prompt: prompt.text.clone(),
            completion: rollout.completion.clone(),
            reward: score.total().map(f64::from),
            tokens: rollout.completion_ids.len(),
            stop: rollout.stop.name().to_owned(),
        }
    };
    found.scores.iter().enumerate().map(one).collect()
}

/// Describes the budget of each method, so that readers can judge whether the comparison is fair.
fn budget(runs: &[Plan], entries: &[Entry]) -> String {
    let one = |(plan, entry): (&Plan, &Entry)| {
        let (batch, steps) = (plan.train().batch_size, entry.steps);
        let given = match (plan.method().iteration(), plan.method().method().need()) {
            (Some(iteration), _) => {
                format!("{steps} iterations of {batch} prompts × {} completions", iteration.rollouts.group_size)
            }
            (None, Need::Preference) => format!("{steps} steps of {batch} pairs"),
            (None, _) => format!("{steps} steps of {batch} rows"),
        };
        format!("{} {given}", plan.method().name())
    };
    let each: Vec<String> = runs.iter().zip(entries.iter().skip(1)).map(one).collect();
    let seed = runs.first().map_or(0, |plan| plan.train().seed);
    format!("{}; seed {seed}", each.join("; "))
}
