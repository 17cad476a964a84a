//! What the program runs: a configuration after all checks, with nothing left to decide.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::change::Change;
use super::written::Written;
use super::{MethodConfig, RunConfig, rules, write};
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::rng::Seed;
use crate::run::{Existing, Origin};
use crate::settings::{TooLong, TrainConfig};

/// A checked and resolved run; the only way into a trainer.
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
    changes: Vec<Change>,
}

/// The lanes of a run that is started on ranks and does not say how many.
const LANES: usize = 8;

impl Plan {
    /// Checks `written` against the rules and this machine, and fills in what depends on the method.
    ///
    /// # Errors
    /// [`Error::Config`] with every problem found.
    pub fn check(written: &Written, machine: &Machine) -> Result<Self> {
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
            changes: Vec::new(),
        })
    }

    /// The plan of a run for which nobody named a directory, in one that is made now and that nobody else gets: two runs that
    /// start at once take two numbers.
    ///
    /// # Errors
    /// [`Error::Io`] when none can be made.
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

    /// The plan of a run that is started on ranks: gradients are summed in lanes that ranks can share, unless the run says in how many.
    #[must_use]
    pub fn on_ranks(mut self) -> Self {
        if self.existing != Existing::Resume {
            self.config.train.lanes.get_or_insert(LANES);
        }
        self
    }

    /// The plan with another output directory.
    #[must_use]
    pub fn in_directory(mut self, path: PathBuf) -> Self {
        self.config.output_dir = Some(path.clone());
        Self { output_dir: path, ..self }
    }

    /// The plan with another answer to an output directory that is not empty; the default is to refuse it.
    #[must_use]
    pub fn on_existing(self, existing: Existing) -> Self {
        Self { existing, ..self }
    }

    /// The plan of a run that goes on in `directory`, from its own checkpoint of `step` or the newest, with `changes`.
    pub(super) fn resuming(mut self, directory: &Path, step: Option<usize>, changes: Vec<Change>) -> Self {
        directory.clone_into(&mut self.output_dir);
        self.config.output_dir = Some(directory.to_owned());
        Self { existing: Existing::Resume, origin: Origin::Own(step), changes, ..self }
    }

    /// The plan of a new run that begins where another was, with `changes`.
    pub(super) fn branching(self, checkpoint: &Path, changes: Vec<Change>) -> Self {
        Self { existing: Existing::Refuse, origin: Origin::Other(checkpoint.to_owned()), changes, ..self }
    }

    /// Where a run goes on from that does not start anew.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// What a resumed run has otherwise than before.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The configuration, with what depends on the method filled in.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// Whether the user asked for this key (`train.eval_fraction`), in the file or by a flag.
    pub fn is_set(&self, key: &str) -> bool {
        self.set.contains(key)
    }

    /// The method and its keys.
    pub fn method(&self) -> &MethodConfig {
        &self.config.method
    }

    /// Keys of every method.
    pub fn train(&self) -> &TrainConfig {
        &self.config.train
    }

    /// Where to compute.
    pub fn device(&self) -> &DeviceChoice {
        &self.device
    }

    /// Peak learning rate: as given, or the method's default.
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    /// What happens to rows over `max_length`.
    pub fn too_long(&self) -> TooLong {
        self.too_long
    }

    /// The held-out metric that decides which model is `best/`.
    pub fn best_metric(&self) -> &str {
        &self.best_metric
    }

    /// The run directory.
    pub fn output_dir(&self) -> &Path {
        &self.output_dir
    }

    /// What to do when the run directory is not empty.
    pub fn existing(&self) -> Existing {
        self.existing
    }

    /// The seed of every random stream.
    pub fn seed(&self) -> Seed {
        Seed(self.config.train.seed)
    }

    /// The content of `config.yml`: every key, those that were asked for marked.
    pub fn to_yaml(&self) -> String {
        write::to_yaml(&self.config, &self.set)
    }
}

/// `runs/<method>-<model>-<n>` with the first `n` that is free.
pub(super) fn free_directory(method: &str, model: &str) -> PathBuf {
    let parts: Vec<_> = model.split(['/', '\\']).filter(|part| !matches!(*part, "" | "." | "..")).collect();
    // Runs keep their models in `model/` and `best/`: there the run's name says more.
    let name = parts.iter().rev().find(|part| !matches!(**part, "model" | "best")).copied().unwrap_or("model");
    let numbered = |n: usize| Path::new("runs").join(format!("{method}-{name}-{n}"));
    (1..).map(numbered).find(|path| !path.exists()).expect("some number is free")
}
