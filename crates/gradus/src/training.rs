//! A training run of a program: the settings of the command line, with Rust closures as rewards.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::algorithm::{
    a2c::A2cConfig, grpo::GrpoConfig, nlpo::NlpoConfig, ppo::PpoConfig, rloo::RlooConfig, trpo::TrpoConfig,
};
use crate::config::{Argument, MethodConfig, Plan, Registry, Request, Resume, ResumeFrom, RunConfig, to_json};
use crate::error::{Diagnostic, Error, Result};
use crate::files::cache;
use crate::machine::Machine;
use crate::method::Method;
use crate::model::adapter::LoraConfig;
use crate::objective::{
    classify::ClassifyConfig, cpo::CpoConfig, distill::DistillConfig, dpo::DpoConfig, kto::KtoConfig, orpo::OrpoConfig,
    reward_model::RewardModelConfig, sft::SftConfig, simpo::SimpoConfig,
};
use crate::observer::{Event, Observer, Silent};
use crate::reward::{FnReward, RewardError};
use crate::rollout::{Prompt, Rollout};
use crate::run::Existing;
use crate::train::{self, FinishedRun};

/// Builder of a training run.
///
/// Settings have the names of the command line's flags and follow the same rules; [`docs/config.md`] describes each.
/// The setters of this type cover the common ones, and [`set`](Self::set) covers all. Nothing is checked before
/// [`plan`](Self::plan) or [`run`](Self::run). Each reports every problem of the setters and every unknown key at once,
/// and if there is none, every problem of the configuration.
///
/// [`docs/config.md`]: https://docs.rs/crate/gradus-cli/latest/source/docs/config.md
pub struct Training {
    start: Start,
    arguments: Vec<(String, Value)>,
    /// Problems of the setters.
    problems: Vec<Diagnostic>,
    registry: Registry,
    existing: Existing,
    cache: Option<PathBuf>,
    observer: Box<dyn Observer + Send>,
}

/// Where the configuration begins.
enum Start {
    Method(&'static str),
    /// Nothing but the settings.
    Settings,
    File(PathBuf),
    Run(PathBuf),
}

/// Options of a plug-in that has none.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoOptions {}

/// Name of the closure in the configuration: `reward: { plugin: { closure: {} } }`.
const CLOSURE: &str = "closure";

/// Constructors of methods with their default keys.
macro_rules! methods {
    ($($(#[$about:meta])+ $name:ident = $keys:ty;)+) => {
        impl Training {
            $(
                $(#[$about])+
                pub fn $name(model: impl Into<String>) -> Self {
                    Self::starting(Start::Method(<$keys>::default().name())).set("model", model.into())
                }
            )+
        }

        /// Names of the methods that have a constructor.
        #[cfg(test)]
        fn constructed() -> Vec<&'static str> {
            vec![$(<$keys>::default().name()),+]
        }
    };
}

methods! {
    /// Supervised fine-tuning of `model`, a directory or a hub name.
    sft = SftConfig;
    /// A reward model that starts from `model`.
    reward_model = RewardModelConfig;
    /// A classifier of texts or tokens that starts from `model`.
    classify = ClassifyConfig;
    /// Direct preference optimization of `model`.
    dpo = DpoConfig;
    /// Kahneman–Tversky optimization of `model`.
    kto = KtoConfig;
    /// Odds ratio preference optimization of `model`.
    orpo = OrpoConfig;
    /// Contrastive preference optimization of `model`.
    cpo = CpoConfig;
    /// Simple preference optimization of `model`.
    simpo = SimpoConfig;
    /// Distillation of a teacher into `model`. It needs a teacher: `set("teacher_model", "Qwen/Qwen3-4B")`.
    distill = DistillConfig;
    /// Proximal policy optimization of `model` with a critic. It needs a [`reward`](Training::reward).
    ppo = PpoConfig;
    /// Natural language policy optimization of `model`: PPO under a mask of unlikely tokens. It needs a
    /// [`reward`](Training::reward).
    nlpo = NlpoConfig;
    /// Advantage actor–critic training of `model`. It needs a [`reward`](Training::reward).
    a2c = A2cConfig;
    /// Trust region policy optimization of `model` with a critic. It needs a [`reward`](Training::reward).
    trpo = TrpoConfig;
    /// Group relative policy optimization of `model`. It needs a [`reward`](Training::reward).
    grpo = GrpoConfig;
    /// REINFORCE of `model` with a leave-one-out baseline. It needs a [`reward`](Training::reward).
    rloo = RlooConfig;
}

impl Training {
    fn starting(start: Start) -> Self {
        Self {
            start,
            arguments: Vec::new(),
            problems: Vec::new(),
            registry: Registry::default(),
            existing: Existing::Refuse,
            cache: None,
            observer: Box::new(Silent),
        }
    }

    /// Any method with its keys: `Training::new(&MethodConfig::Dpo(DpoConfig { beta: 0.3, ..DpoConfig::default() }), "gpt2")`.
    /// Keys that differ from their defaults count as set. A method of [`plug_in`](Self::plug_in) is a
    /// [`MethodConfig::Plugin`].
    pub fn new(method: &MethodConfig, model: impl Into<String>) -> Self {
        if method.is_plugin() {
            return Self::starting(Start::Settings).set("model", model.into()).set("method", method);
        }
        let training = Self::starting(Start::Method(method.name())).set("model", model.into());
        let keys_of =
            |method: &MethodConfig| -> Result<Value, String> { Ok(to_json("method", method)?[method.name()].take()) };
        let default = MethodConfig::named(method.name()).and_then(|default| keys_of(&default).ok()).unwrap_or_default();
        let keys = match keys_of(method) {
            Ok(keys) => keys,
            Err(message) => return training.with_problem(Error::input(message)),
        };
        let changed = keys.as_object().into_iter().flatten().filter(|(name, value)| default.get(name) != Some(value));
        changed.fold(training, |training, (name, value)| training.set(name, value))
    }

    /// The run of a configuration file. Settings override the file.
    pub fn from_file(path: impl Into<PathBuf>) -> Self {
        Self::starting(Start::File(path.into()))
    }

    /// Resumes the run in `directory` from its newest checkpoint, with its own configuration. A configuration cannot
    /// contain closures and observers: pass them again. Settings may only change what does not affect the finished
    /// steps.
    pub fn resume(directory: impl Into<PathBuf>) -> Self {
        Self::starting(Start::Run(directory.into()))
    }

    /// Sets a key by the name of its flag, with underscores: `set("beta", 0.1)`. The value of a section is a map. A
    /// number that is NaN or infinite is a problem.
    #[must_use]
    pub fn set(mut self, name: &str, value: impl Serialize) -> Self {
        match to_json(name, &value) {
            Ok(value) => {
                self.arguments.push((name.to_owned(), value));
                self
            }
            Err(message) => self.with_problem(Error::input(message)),
        }
    }

    /// Keeps a problem of a setter for [`plan`](Self::plan).
    fn with_problem(mut self, problem: Error) -> Self {
        self.problems.push(diagnostic(&problem));
        self
    }

    /// Training rows: a file, a directory or a hub name.
    #[must_use]
    pub fn data(self, name: impl Into<String>) -> Self {
        self.set("data", name.into())
    }

    /// Training rows of the program, as structs or maps with the columns of a data file. They are saved in the
    /// [`cache_dir`](Self::cache_dir), in a file that is named after its content, so that a resumed run finds them.
    #[must_use]
    pub fn rows<R: Serialize>(self, rows: impl IntoIterator<Item = R>) -> Self {
        self.kept_rows("data", rows)
    }

    /// Held-out rows, like [`data`](Self::data). By default, part of the training rows is held out.
    #[must_use]
    pub fn eval_data(self, name: impl Into<String>) -> Self {
        self.set("eval_data", name.into())
    }

    /// Held-out rows of the program, like [`rows`](Self::rows).
    #[must_use]
    pub fn eval_rows<R: Serialize>(self, rows: impl IntoIterator<Item = R>) -> Self {
        self.kept_rows("eval_data", rows)
    }

    /// Folder for the rows of later [`rows`](Self::rows) and [`eval_rows`](Self::eval_rows). Default: `rows` in
    /// `$GRADUS_CACHE`, or in `gradus` of the user's cache folder.
    #[must_use]
    pub fn cache_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.cache = Some(path.into());
        self
    }

    fn kept_rows<R: Serialize>(self, name: &str, rows: impl IntoIterator<Item = R>) -> Self {
        let folder = self.cache.clone().map_or_else(cache::rows_directory, Ok);
        match folder.and_then(|folder| cache::keep_rows(&folder, rows)) {
            Ok(path) => self.set(name, path),
            Err(problem) => self.with_problem(problem),
        }
    }

    /// Directory of the run. Default: `runs/<method>-<model>-<n>`.
    #[must_use]
    pub fn output_dir(self, path: impl AsRef<Path>) -> Self {
        self.set("output_dir", path.as_ref())
    }

    /// Replaces the earlier run in the output directory.
    #[must_use]
    pub fn overwrite(mut self) -> Self {
        self.existing = Existing::Overwrite;
        self
    }

    /// Peak learning rate.
    #[must_use]
    pub fn learning_rate(self, value: f64) -> Self {
        self.set("learning_rate", value)
    }

    /// Examples or prompts per step.
    #[must_use]
    pub fn batch_size(self, value: usize) -> Self {
        self.set("batch_size", value)
    }

    /// Number of steps.
    #[must_use]
    pub fn max_steps(self, value: usize) -> Self {
        self.set("max_steps", value)
    }

    /// Trains a low-rank adapter on the frozen model.
    #[must_use]
    pub fn lora(self, config: &LoraConfig) -> Self {
        self.set("lora", config)
    }

    /// Reward of a completion: a closure over the prompt, with the columns of its row, and the completion. `None`
    /// leaves the completion without a reward; an error stops the run.
    #[must_use]
    pub fn reward<F>(mut self, reward: F) -> Self
    where
        F: Fn(&Prompt, &Rollout) -> Result<Option<f32>, RewardError> + Send + Sync + 'static,
    {
        let reward = Arc::new(reward);
        let made = self.registry.reward(CLOSURE, move |_: &NoOptions, _| {
            let reward = Arc::clone(&reward);
            Ok(FnReward::new(CLOSURE, move |prompt: &Prompt, rollout: &Rollout| reward(prompt, rollout)))
        });
        let training = made.err().into_iter().fold(self, Self::with_problem);
        match training.start {
            // The configuration of the run has it.
            Start::Run(_) => training,
            Start::Method(_) | Start::Settings | Start::File(_) => {
                training.set("reward", json!({ "plugin": { CLOSURE: {} } }))
            }
        }
    }

    /// Registers plug-ins: rewards with options, metrics, tasks, environments, tools, methods. Settings name them.
    #[must_use]
    pub fn plug_in(mut self, register: impl FnOnce(&mut Registry) -> Result<()>) -> Self {
        let made = register(&mut self.registry);
        made.err().into_iter().fold(self, Self::with_problem)
    }

    /// Observer of the run's events, which may also stop the run.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer + Send + 'static) -> Self {
        self.observer = Box::new(observer);
        self
    }

    /// Checks all settings.
    ///
    /// # Errors
    /// [`Error::Config`] with every problem of the setters and every unknown key. If there is none, [`Error::Config`]
    /// with every problem of the configuration.
    pub fn plan(&mut self) -> Result<Plan> {
        let method = if let Start::Method(method) = self.start { Some(method) } else { None };
        let (mut arguments, mut problems) = (Vec::new(), self.problems.clone());
        for (name, value) in &self.arguments {
            match Argument::named(name, value.clone(), method) {
                Ok(argument) => arguments.push(argument),
                Err(message) => problems.push(diagnostic(&Error::input(format!("the run {message}")))),
            }
        }
        if !problems.is_empty() {
            return Err(Error::Config(problems));
        }
        let file = if let Start::File(path) = &self.start { Some(path.as_path()) } else { None };
        let request =
            Request { file, method, arguments: &arguments, registry: Some(&self.registry), ..Request::default() };
        let machine = Machine::detect();
        if let Start::Run(directory) = &self.start {
            return Resume { from: ResumeFrom::Run { directory, step: None }, request }.plan(&machine);
        }
        Ok(Plan::check(&RunConfig::load(&request)?, &machine)?.on_existing(self.existing))
    }

    /// Downloads what is missing from the hub, and trains.
    ///
    /// # Errors
    /// As [`plan`](Self::plan) and [`train::run`].
    pub fn run(mut self) -> Result<FinishedRun> {
        let plan = self.plan()?.in_directory_of_its_own()?;
        plan.fetch(&mut |_, _, _| {})?;
        let observer = &mut *self.observer;
        plan.notes().iter().for_each(|note| observer.event(&Event::Warning(&note.message)));
        match plan.train().threads {
            None => train::run(&plan, observer),
            Some(threads) => {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                let pool =
                    pool.map_err(|error| Error::input(format!("{threads} threads cannot be started: {error}")))?;
                pool.install(|| train::run(&plan, observer))
            }
        }
    }
}

/// Returns the problem as one of several.
fn diagnostic(problem: &Error) -> Diagnostic {
    Diagnostic { message: problem.to_string(), locations: Vec::new(), hint: problem.hint().map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_has_a_constructor() {
        let sorted = |mut names: Vec<&'static str>| {
            names.sort_unstable();
            names
        };
        let all = MethodConfig::all().iter().map(MethodConfig::name).collect();
        assert_eq!(sorted(constructed()), sorted(all));
    }
}
