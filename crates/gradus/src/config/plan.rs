//! A configuration after all checks, with nothing left to decide: what the program runs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::change::Change;
use super::config_with_locations::ConfigWithLocations;
use super::{MethodConfig, RunConfig, rules, write};
use crate::device::DeviceChoice;
use crate::error::{Diagnostic, Error, Result};
use crate::machine::Machine;
use crate::model;
use crate::rng::Seed;
use crate::run::{Existing, Origin};
use crate::settings::{TooLong, TrainConfig};

/// A checked and resolved run. Trainers accept nothing else.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    config: RunConfig,
    set: BTreeSet<String>,
    learning_rate: f64,
    too_long: TooLong,
    best_metric: String,
    device: DeviceChoice,
    output_dir: PathBuf,
    existing: Existing,
    origin: Origin,
    /// Whether the run directory has a checkpoint to continue from.
    has_checkpoint: bool,
    changes: Vec<Change>,
    notes: Vec<Diagnostic>,
}

/// Number of lanes of a run on several ranks, if the configuration does not set it.
const LANES: usize = 8;

impl Plan {
    /// Checks `written` against the rules and this machine, and fills in the method's defaults.
    ///
    /// # Errors
    /// [`Error::Config`] with every problem found.
    pub fn check(written: &ConfigWithLocations, machine: &Machine) -> Result<Self> {
        let problems = rules::check(written, machine);
        if !problems.is_empty() {
            return Err(Error::Config(problems.into_iter().map(|found| found.diagnostic).collect()));
        }
        let mut config = written.config.clone();
        let device = DeviceChoice::named(&config.train.device)?;
        let (train, defaults) = (&mut config.train, config.method.method().defaults());
        let learning_rate = *train.learning_rate.get_or_insert(defaults.learning_rate);
        let too_long = *train.too_long.get_or_insert(defaults.too_long);
        let best_metric = train.best_metric.get_or_insert(defaults.best_metric.to_owned()).clone();
        let output_dir =
            config.output_dir.clone().unwrap_or_else(|| free_directory(config.method.name(), &config.model));
        config.output_dir = Some(output_dir.clone());
        let set = written.keys().into_iter().collect();
        Ok(Self {
            config,
            set,
            learning_rate,
            too_long,
            best_metric,
            device,
            output_dir,
            existing: Existing::Refuse,
            origin: Origin::default(),
            has_checkpoint: false,
            changes: Vec::new(),
            notes: written.notes.clone(),
        })
    }

    /// Checks several runs of one file.
    ///
    /// # Errors
    /// [`Error::Config`] with every problem, each once: a problem in shared keys occurs in every run.
    pub fn check_all<'w>(
        runs: impl IntoIterator<Item = &'w ConfigWithLocations>,
        machine: &Machine,
    ) -> Result<Vec<Self>> {
        let (mut plans, mut problems) = (Vec::new(), Vec::new());
        for written in runs {
            match Self::check(written, machine) {
                Ok(plan) => plans.push(plan),
                Err(Error::Config(found)) => {
                    for problem in found {
                        if !problems.contains(&problem) {
                            problems.push(problem);
                        }
                    }
                }
                Err(other) => return Err(other),
            }
        }
        if problems.is_empty() { Ok(plans) } else { Err(Error::Config(problems)) }
    }

    /// Creates a new output directory if the user named none, and returns the plan with it. Two runs that start at the
    /// same time get different numbers.
    ///
    /// # Errors
    /// [`Error::Io`] if no directory can be created.
    pub fn in_directory_of_its_own(mut self) -> Result<Self> {
        if self.is_set("output_dir") || self.existing != Existing::Refuse {
            return Ok(self);
        }
        loop {
            let path = free_directory(self.config.method.name(), &self.config.model);
            let parent = path.parent().unwrap_or(Path::new("."));
            let made = std::fs::create_dir_all(parent).and_then(|()| std::fs::create_dir(&path));
            match made {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(Error::io(path, source)),
                Ok(()) => {
                    self.config.output_dir = Some(path.clone());
                    self.output_dir = path;
                    return Ok(self);
                }
            }
        }
    }

    /// Returns the plan of a run on several ranks. It sums gradients in lanes, which ranks share; a configured number
    /// of lanes is kept, and so is that of a checkpoint.
    #[must_use]
    pub fn on_ranks(mut self) -> Self {
        if !self.has_checkpoint {
            self.config.train.lanes.get_or_insert(LANES);
        }
        self
    }

    /// Rejects more ranks than lanes.
    ///
    /// # Errors
    /// [`Error::Input`] with the number of lanes.
    pub fn check_ranks(&self, ranks: u64) -> Result<()> {
        let lanes = self.train().lanes.unwrap_or(1);
        if ranks <= lanes as u64 {
            return Ok(());
        }
        let message = format!("{ranks} ranks cannot share a run with `train.lanes: {lanes}`");
        let hint = "at most one rank per lane: start fewer ranks, or raise `train.lanes`. Runs with other lanes differ in \
                    the rounding of sums";
        Err(Error::input(message).with_hint(hint))
    }

    /// Returns the plan with another output directory.
    #[must_use]
    pub fn in_directory(mut self, path: PathBuf) -> Self {
        self.config.output_dir = Some(path.clone());
        Self { output_dir: path, ..self }
    }

    /// Returns the plan with another policy for an output directory that is not empty. The default is to reject it.
    #[must_use]
    pub fn on_existing(self, existing: Existing) -> Self {
        Self { existing, ..self }
    }

    /// Returns the plan of a run that resumes in `directory`, from its own checkpoint of `step` or the newest one, with `changes`. Without a
    /// checkpoint, the run begins there.
    pub(super) fn resuming(
        mut self,
        directory: &Path,
        step: Option<usize>,
        has_checkpoint: bool,
        changes: Vec<Change>,
    ) -> Self {
        directory.clone_into(&mut self.output_dir);
        self.config.output_dir = Some(directory.to_owned());
        Self { existing: Existing::Resume, origin: Origin::Own(step), has_checkpoint, changes, ..self }
    }

    /// Returns the plan of a new run that starts from another run's checkpoint, with `changes`.
    pub(super) fn branching(self, checkpoint: &Path, changes: Vec<Change>) -> Self {
        Self { existing: Existing::Refuse, origin: Origin::Other(checkpoint.to_owned()), changes, ..self }
    }

    /// Downloads the model and the rows from the hub, unless they exist locally. `on_progress` receives the file, the bytes
    /// that are done and the total.
    ///
    /// # Errors
    /// If something does not exist or cannot be downloaded.
    pub fn fetch(&self, on_progress: &mut dyn FnMut(&str, usize, usize)) -> Result<()> {
        model::resolve(&self.config.model, on_progress)?;
        let own = [Some(self.config.data.clone()), self.config.held_out(), self.config.test()];
        let mixed = self.config.mix.iter().map(|source| source.data.clone());
        own.into_iter().flatten().chain(mixed).try_for_each(|data| data.fetch(on_progress))
    }

    /// Returns the checkpoint that the run starts from, if it does not start from scratch.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns the keys that a resumed run changes.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Returns notes on the configuration files, as [`ConfigWithLocations::notes`]. The caller shows them to the user.
    pub fn notes(&self) -> &[Diagnostic] {
        &self.notes
    }

    /// Returns the configuration, with the method's defaults filled in.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// Whether the user set this key (`train.eval_fraction`), in the file or by a flag.
    pub fn is_set(&self, key: &str) -> bool {
        self.set.contains(key)
    }

    /// Returns the method and its keys.
    pub fn method(&self) -> &MethodConfig {
        &self.config.method
    }

    /// Returns the keys that all methods share.
    pub fn train(&self) -> &TrainConfig {
        &self.config.train
    }

    /// Returns the device to compute on.
    pub fn device(&self) -> &DeviceChoice {
        &self.device
    }

    /// Returns the peak learning rate: the given one, or the method's default.
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    /// Returns how rows over `max_length` are handled.
    pub fn too_long(&self) -> TooLong {
        self.too_long
    }

    /// Returns the held-out metric that selects `best/`.
    pub fn best_metric(&self) -> &str {
        &self.best_metric
    }

    /// Returns the run directory.
    pub fn output_dir(&self) -> &Path {
        &self.output_dir
    }

    /// Returns what to do if the run directory is not empty.
    pub fn existing(&self) -> Existing {
        self.existing
    }

    /// Returns the seed of every random stream.
    pub fn seed(&self) -> Seed {
        Seed(self.config.train.seed)
    }

    /// Returns the content of `config.yml`: every key, with a mark on those that the user set.
    pub fn to_yaml(&self) -> String {
        write::to_yaml(&self.config, &self.set)
    }
}

/// Returns `runs/<method>-<model>-<n>` with the first free `n`.
pub(super) fn free_directory(method: &str, model: &str) -> PathBuf {
    let parts: Vec<_> = model.split(['/', '\\']).filter(|part| !matches!(*part, "" | "." | "..")).collect();
    // Runs store their models in `model/` and `best/`. The run's name is more informative.
    let name = parts.iter().rev().find(|part| !matches!(**part, "model" | "best")).copied().unwrap_or("model");
    let numbered = |n: usize| Path::new("runs").join(format!("{method}-{name}-{n}"));
    (1..).map(numbered).find(|path| !path.exists()).expect("some number is free")
}
