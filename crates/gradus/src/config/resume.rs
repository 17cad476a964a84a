//! Resuming a run: its configuration comes from the checkpoint, and the current request overrides it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::argument::Argument;
use super::change::{Change, Effect};
use super::config_with_locations::ConfigWithLocations;
use super::load::{Request, file_tree, method_of, resolve, resolved, text};
use super::node::Value;
use super::{MethodConfig, Plan, RunConfig};
use crate::error::{Diagnostic, Error, Result, excerpt};
use crate::machine::Machine;
use crate::run::claim::{Stage, read_state};
use crate::run::{Checkpoint, RunDir, RunState};
use crate::shell;

/// Returns the command that resumes the run of `method` in `directory`.
pub(crate) fn resume_command(method: &str, directory: &Path) -> String {
    format!("gradus {method} --output-dir {} --resume", shell::path(directory))
}

impl Plan {
    /// Returns the command that resumes this run.
    pub fn resume_command(&self) -> String {
        resume_command(self.method().name(), self.output_dir())
    }
}

/// A request to resume a run.
#[derive(Debug, Clone, Copy)]
pub struct Resume<'a> {
    /// What to resume.
    pub from: ResumeFrom<'a>,
    /// Request that overrides the configuration of the checkpoint.
    pub request: Request<'a>,
}

/// Starting point of a resumed run.
#[derive(Debug, Clone, Copy)]
pub enum ResumeFrom<'a> {
    /// A run in its directory.
    Run {
        /// The run directory.
        directory: &'a Path,
        /// Step of the checkpoint; `None` means the newest one.
        step: Option<usize>,
    },
    /// A checkpoint directory of any run. It stays unchanged: a new run starts from it.
    Checkpoint(&'a Path),
}

impl Resume<'_> {
    /// Returns the run directory that the flags or the file of `request` name.
    ///
    /// # Errors
    /// [`Error::Config`] if neither does, or if the file cannot be read.
    pub fn directory_of(request: &Request<'_>) -> Result<PathBuf> {
        let flag = request.flags.iter().rfind(|flag| flag.spec.key == "output_dir").and_then(|flag| flag.values.last());
        if let Some(directory) = flag {
            return Ok(directory.into());
        }
        let argument = request.arguments.iter().rfind(|argument| argument.key() == "output_dir");
        if let Some(Json::String(directory)) = argument.map(Argument::value) {
            return Ok(directory.into());
        }
        let named = match request.file {
            Some(path) => file_tree(path, &text(path)?)?.0.entry("output_dir").map(|entry| entry.node.value.clone()),
            None => None,
        };
        match named {
            Some(Value::Scalar { text, .. }) if !text.is_empty() => Ok(text.into()),
            _ => Err(Error::Config(vec![Diagnostic {
                message: "the run to resume is not named".into(),
                locations: Vec::new(),
                hint: Some("pass `--output-dir DIR`, the run's directory".into()),
            }])),
        }
    }

    /// Reports that there is no run to resume. If the given keys are not a complete run either, this is the actual mistake.
    fn no_run(&self, error: Error) -> Error {
        let (ResumeFrom::Run { directory, .. }, Error::Config(mut problems)) = (&self.from, error) else {
            return Error::input("there is no run to resume");
        };
        problems.retain(|problem| !problem.message.ends_with("is missing"));
        let message = format!("`{}` contains no run to resume", directory.display());
        // A run that was to replace another one was killed before its first step.
        let replaced = directory.join(".replaced");
        let hint = match replaced.join("config.yml").is_file() {
            true => format!(
                "the run that was to be replaced is complete in `{}`: move its files back to `{}`, or start the new run again \
                 with `--overwrite`",
                replaced.display(),
                directory.display()
            ),
            false => "`gradus runs list --runs-dir DIR` shows the runs in a directory".into(),
        };
        let hint = Some(hint);
        problems.insert(0, Diagnostic { message, locations: Vec::new(), hint });
        Error::Config(problems)
    }

    /// Reports a command for another method than that of the run.
    fn other_method(&self, of_run: &str, method: &str) -> Error {
        let (what, command) = match self.from {
            ResumeFrom::Run { directory, .. } => {
                let shown = directory.display();
                (format!("the run in `{shown}` trains with"), resume_command(of_run, directory))
            }
            ResumeFrom::Checkpoint(directory) => {
                let shown = directory.display();
                let word = shell::path(directory);
                (format!("the run of `{shown}` trains with"), format!("gradus {of_run} --resume-from {word}"))
            }
        };
        Error::Config(vec![Diagnostic {
            message: format!("{what} `{of_run}`, but the command is `gradus {method}`"),
            locations: Vec::new(),
            hint: Some(format!("resume it with `{command}`")),
        }])
    }

    /// Plans the resumed run: checks it like any other run, and compares it with its previous configuration.
    ///
    /// A run with a configuration but no checkpoint starts again with this configuration. A directory without either
    /// starts from the given keys. A new run from a checkpoint uses the given directory, or a free one. Of flags that
    /// belong to several methods, those of the run's method count.
    ///
    /// # Errors
    /// [`Error::Config`] with every problem, including keys that must not change; [`Error::Model`] if the checkpoint is
    /// corrupt; [`Error::Input`] if there is none of `step`.
    pub fn plan(&self, machine: &Machine) -> Result<Plan> {
        let Some((path, text, from_checkpoint)) = self.base()? else {
            let written = RunConfig::load(&self.request).map_err(|error| self.no_run(error))?;
            return Ok(self.finish(Plan::check(&written, machine)?, false, Vec::new()));
        };
        let (mut base, mut notes) = file_tree(&path, &text)?;
        if let ResumeFrom::Checkpoint(_) = self.from {
            base.take("output_dir");
        }
        let mut marked = vec![path];
        let over = match self.request.file {
            Some(path) => {
                let text = self::text(path)?;
                if resolved(&text) {
                    marked.push(path.to_owned());
                }
                let (tree, of_file) = file_tree(path, &text)?;
                notes.extend(of_file);
                Some(tree)
            }
            None => None,
        };
        if let (Some(method), Some(of_run)) = (self.request.method, method_of(&base))
            && of_run != method
            && MethodConfig::named(&of_run).is_some()
        {
            return Err(self.other_method(&of_run, method));
        }
        let was = resolve(base.clone(), None, &Request { registry: self.request.registry, ..Request::default() })?;
        let mut written = resolve(base, over, &self.request)?;
        (written.marked, written.notes) = (marked, notes);
        let plan = Plan::check(&written, machine)?;
        let changes = match from_checkpoint {
            true => changes(&was.config, plan.config(), |key| plan.is_set(key)),
            false => Vec::new(),
        };
        let refused: Vec<&Change> = changes.iter().filter(|change| change.effect == Effect::Refused).collect();
        // A section that appears or disappears is one problem, not one per key in it.
        let is_within = |key: &str, section: &str| key.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'));
        let is_first = |change: &&&Change| !refused.iter().any(|section| is_within(&change.key, &section.key));
        let problems: Vec<Diagnostic> =
            refused.iter().filter(is_first).map(|change| refusal(change, &written)).collect();
        if !problems.is_empty() {
            return Err(Error::Config(problems));
        }
        self.check_unfinished(&was.config, &plan, &changes)?;
        self.check_steps_left(&written, &plan, &changes)?;
        Ok(self.finish(plan, from_checkpoint, changes))
    }

    /// Rejects changes to a finished run, unless they add steps. With other changes it would train nothing, and its
    /// files would name settings that no step used.
    fn check_unfinished(&self, was: &RunConfig, plan: &Plan, changes: &[Change]) -> Result<()> {
        let ResumeFrom::Run { directory, step: None } = self.from else { return Ok(()) };
        let Some(state) = read_state(directory).ok().flatten().filter(|state| state.state == Stage::Finished) else {
            return Ok(());
        };
        if changes.is_empty() {
            return Ok(());
        }
        let run = RunDir::open(directory)?;
        let Some(&done) = run.checkpoint_steps()?.last() else { return Ok(()) };
        let end = End::of(&Checkpoint::peek_of(&run, done)?.run_state);
        let stop = end.stop_under(plan.config());
        let total = was.train.max_steps.or(state.steps);
        let stopped_early = match total {
            Some(total) => total > done,
            None => end.stop_under(was).is_some(),
        };
        let has_steps_left = stopped_early && plan.train().max_steps.is_none_or(|steps| steps > done);
        let is_longer = changes.iter().any(|change| match change.key.as_str() {
            "train.max_steps" => plan.train().max_steps.is_none_or(|steps| steps > done),
            "train.epochs" => {
                plan.train().max_steps.is_none() && change.to.parse::<f64>().ok() > change.from.parse().ok()
            }
            _ => false,
        });
        let has_steps = has_steps_left || is_longer;
        if has_steps && stop.is_none() {
            return Ok(());
        }
        let run = directory.display();
        let message = match (stopped_early, total) {
            (true, Some(total)) => format!("`{run}` stopped early at step {done} of {total}"),
            (true, None) => format!("`{run}` stopped early at step {done}"),
            (false, _) => format!("`{run}` has finished all {done} steps"),
        };
        let steps = (!has_steps).then(|| format!("`--max-steps N` with N above {done}"));
        let needed: Vec<String> = steps.into_iter().chain(stop).collect();
        Err(Error::input(message).with_hint(format!(
            "pass {} to train further; other settings need a new run with another `--output-dir`",
            needed.join(" and ")
        )))
    }

    /// Rejects a changed number of steps if the run has already done as many. Such a run would train nothing and would
    /// not evaluate its last step, and its files would name fewer steps than it has.
    fn check_steps_left(&self, written: &ConfigWithLocations, plan: &Plan, changes: &[Change]) -> Result<()> {
        let is_changed = changes.iter().any(|change| change.key == "train.max_steps");
        let Some(steps) = plan.train().max_steps.filter(|_| is_changed) else { return Ok(()) };
        let done = match self.from {
            ResumeFrom::Checkpoint(directory) => Checkpoint::peek(directory)?.run_state.step,
            ResumeFrom::Run { step: Some(step), .. } => step,
            ResumeFrom::Run { directory, step: None } => {
                RunDir::open(directory)?.checkpoint_steps()?.last().copied().unwrap_or(0)
            }
        };
        if steps > done {
            return Ok(());
        }
        Err(Error::Config(vec![Diagnostic {
            message: format!("`train.max_steps` is {steps}, but the run resumes after step {done}"),
            locations: written.given("train.max_steps").cloned().into_iter().collect(),
            hint: Some(format!("pass `--max-steps N` with N above {done}, or leave it out")),
        }]))
    }

    /// Returns the run's stored configuration: path, text, and whether it belongs to a checkpoint.
    fn base(&self) -> Result<Option<(PathBuf, String, bool)>> {
        let (directory, step) = match self.from {
            ResumeFrom::Checkpoint(directory) => {
                let (path, text) = Checkpoint::config_in(directory)?;
                return Ok(Some((path, text, true)));
            }
            ResumeFrom::Run { directory, step } => (directory, step),
        };
        if !directory.is_dir() {
            return Ok(None);
        }
        let Ok(run) = RunDir::open(directory) else { return Ok(None) };
        if let Some((path, text)) = Checkpoint::config_of(&run, step)? {
            return Ok(Some((path, text, true)));
        }
        let path = run.config();
        if path.is_file() { text(&path).map(|text| Some((path, text, false))) } else { Ok(None) }
    }

    fn finish(&self, plan: Plan, has_checkpoint: bool, changes: Vec<Change>) -> Plan {
        match self.from {
            ResumeFrom::Run { directory, step } => plan.resuming(directory, step, has_checkpoint, changes),
            ResumeFrom::Checkpoint(directory) => plan.branching(directory, changes),
        }
    }
}

/// How far a finished run had come to each of its limits for an early stop.
struct End {
    evaluations_since_best: usize,
    above_kl_limit: usize,
}

impl End {
    fn of(state: &RunState) -> Self {
        Self { evaluations_since_best: state.evaluations_since_best, above_kl_limit: state.above_kl_limit }
    }

    /// Returns the flag that lets the run train further, if it would stop at once with `config`.
    fn stop_under(&self, config: &RunConfig) -> Option<String> {
        let evaluations = self.evaluations_since_best;
        let patience = config.train.early_stopping_patience;
        if patience > 0 && evaluations >= patience {
            return Some(format!("`--early-stopping-patience N` with N above {evaluations}, or 0 for no early stop,"));
        }
        let method = serde_json::to_value(&config.method).expect("a configuration is plain data");
        let kl = &method.as_object()?.values().next()?["kl"];
        let (_, after) = kl["stop_above"].as_f64().zip(kl["stop_after"].as_u64())?;
        let above = self.above_kl_limit;
        (above as u64 >= after).then(|| format!("`--kl-stop-after N` with N above {above}"))
    }
}

/// Returns a problem for each setting in which `plan` differs from the run in its directory. Such a run cannot be
/// measured next to runs with the settings of `plan`. Settings without an effect on the result may differ, except the
/// number of steps. A run without a checkpoint begins again, so all of its settings may differ.
///
/// # Errors
/// If the configuration of the run cannot be read.
pub(crate) fn other_settings(plan: &Plan) -> Result<Vec<Diagnostic>> {
    let directory = plan.output_dir();
    let run = RunDir::at(directory);
    let (path, text) = match run.results().is_file() {
        true => (run.config(), text(&run.config())?),
        false => match Checkpoint::config_of(&run, None)? {
            Some(found) => found,
            None => return Ok(Vec::new()),
        },
    };
    let was = stored(&path, &text)?;
    let is_length = |key: &str| matches!(key, "train.max_steps" | "train.epochs");
    let problem = |change: &Change| Diagnostic {
        message: format!(
            "`{}` is {}, but the run in `{}` was started with {}: runs of one comparison share their settings",
            change.key,
            change.to,
            directory.display(),
            change.from
        ),
        locations: Vec::new(),
        hint: Some("leave it as it was to resume, or start a new comparison with another `--output-dir`".into()),
    };
    let changes = changes(&was, plan.config(), |key| plan.is_set(key));
    let refused = changes.iter().filter(|change| change.effect != Effect::None || is_length(&change.key));
    Ok(refused.map(problem).collect())
}

/// Reads the `config.yml` of a run, which has every key. Plug-ins do not have to be registered.
fn stored(path: &Path, text: &str) -> Result<RunConfig> {
    let (root, _) = file_tree(path, text)?;
    serde_json::from_value(root.to_json()).map_err(|error| {
        let message = format!("`{}` is not the configuration of a run: {error}", path.display());
        Error::input(message).with_hint("restore the file, or start again with another `--output-dir`")
    })
}

/// A value that is missing or null.
const NOT_SET: &str = "not set";
/// Maximum number of characters of a value in a message.
const VALUE_SHOWN: usize = 200;

fn refusal(change: &Change, written: &ConfigWithLocations) -> Diagnostic {
    let was = match change.from.as_str() {
        NOT_SET => "without it".to_owned(),
        value => format!("with {}", excerpt(value, VALUE_SHOWN)),
    };
    Diagnostic {
        message: format!(
            "`{}` is {}, but the run was started {was}: it cannot continue with another value",
            change.key,
            excerpt(&change.to, VALUE_SHOWN)
        ),
        locations: written.given(&change.key).cloned().into_iter().collect(),
        hint: Some("leave it out to resume, or start a new run with another `--output-dir`".into()),
    }
}

/// Returns every leaf that differs, in the order of the configuration. The user set the keys for which `is_set` is true.
fn changes(was: &RunConfig, is: &RunConfig, is_set: impl Fn(&str) -> bool) -> Vec<Change> {
    let sensitivity = Sensitivity { to_evaluations: evaluations_move_rows(was, is, is_set), ..Sensitivity::of(is) };
    let json = |config: &RunConfig| serde_json::to_value(config).expect("a configuration is plain data");
    let (mut was, mut is) = (json(was), json(is));
    for config in [&mut was, &mut is] {
        // Without the key, a run on one rank has 1 lane.
        if let Some(lanes) = config.pointer_mut("/train/lanes").filter(|lanes| lanes.is_null()) {
            *lanes = 1.into();
        }
    }
    let mut paths = Vec::new();
    leaves(&was, "", &mut paths);
    leaves(&is, "", &mut paths);
    let mut seen = BTreeSet::new();
    let changed = |path: String| {
        let value = |config| at(config, &path).filter(|value: &&Json| !value.is_null());
        let (from, to) = (value(&was), value(&is));
        let differs = from != to && seen.insert(path.clone()) && path != "output_dir";
        let shown = |value: Option<&Json>| value.map_or_else(|| NOT_SET.to_owned(), ToString::to_string);
        differs.then(|| Change { effect: effect(&path, sensitivity), from: shown(from), to: shown(to), key: path })
    };
    paths.into_iter().filter_map(changed).collect()
}

/// Returns true if one of the runs evaluates held-out rows and the other does not, and therefore has other rows. Without evaluations, `eval_data`
/// is not read, and rows are held out only if the user set the share.
fn evaluations_move_rows(was: &RunConfig, is: &RunConfig, is_set: impl Fn(&str) -> bool) -> bool {
    let evaluates = |config: &RunConfig| config.train.eval_steps >= 0;
    let holds_out_by_default = is.train.shuffle && !is_set("train.eval_fraction");
    evaluates(was) != evaluates(is) && (is.held_out().is_some() || holds_out_by_default)
}

fn leaves(value: &Json, path: &str, paths: &mut Vec<String>) {
    match value {
        Json::Object(object) if !object.is_empty() => {
            for (key, value) in object {
                leaves(value, &if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, paths);
            }
        }
        _ => paths.push(path.to_owned()),
    }
}

fn at<'a>(value: &'a Json, path: &str) -> Option<&'a Json> {
    path.split('.').try_fold(value, |value, key| value.get(key))
}

/// Properties of a configuration that decide the effect of some keys.
#[derive(Debug, Clone, Copy)]
struct Sensitivity {
    /// Whether the learning rate of a step depends on the number of all steps.
    to_length: bool,
    /// Whether the result of a step depends on the split of its rows into passes, by more than rounding.
    to_passes: bool,
    /// Whether the rows change with the evaluations of the resumed run.
    to_evaluations: bool,
}

impl Sensitivity {
    /// Returns the properties of `config` alone.
    fn of(config: &RunConfig) -> Self {
        let train = &config.train;
        let to_length = train.lr_schedule.depends_on_length(train.warmup_steps);
        // Each pass draws its own masks of dropout.
        let drops_out = train.dropout || config.lora.as_ref().is_some_and(|lora| lora.dropout != 0.0);
        let to_passes = drops_out || config.method.method().averages_over_passes();
        Self { to_length, to_passes, to_evaluations: false }
    }
}

/// Returns the effect of a changed key. This is the only list of effects.
fn effect(key: &str, sensitivity: Sensitivity) -> Effect {
    let method_key = key.strip_prefix("method.").and_then(|rest| rest.split_once('.')).map(|(_, key)| key);
    match (key, method_key) {
        // Keys that determine the weights, the moments and the rows.
        _ if matches!(
            key.split('.').next(),
            Some("model" | "tokenizer" | "data" | "mix" | "eval_data" | "test_data")
        ) =>
        {
            Effect::Refused
        }
        (
            "train.seed"
            | "train.optimizer"
            | "train.moments"
            | "train.priority_scale"
            | "train.batch_size"
            | "train.shuffle"
            | "train.skip_bad_rows"
            | "train.max_rows"
            | "train.max_rows_at_random"
            | "train.max_eval_rows"
            | "train.eval_fraction"
            | "train.eval_sample"
            | "train.max_length"
            | "train.max_prompt_length"
            | "train.prompt_truncation"
            | "train.too_long"
            | "train.text_column"
            | "train.transcripts_as_messages"
            | "train.chat_template"
            | "train.column"
            | "train.system_prompt"
            | "train.best_metric"
            | "train.greater_is_better"
            | "train.sync_ref_model"
            | "method.classify.task"
            | "method.classify.labels"
            | "method.classify.label_column"
            | "method.classify.ignored_label"
            | "method.classify.text"
            | "method.classify.pair"
            | "method.classify.truncate"
            | "method.nlpo.mask_model",
            _,
        )
        | (
            _,
            Some(
                "reference_model"
                | "critic.trunk"
                | "critic.model"
                | "critic.head"
                | "critic.freeze_trunk"
                | "add_eos"
                | "completion_only_loss"
                | "assistant_only_loss"
                | "packing"
                | "max_target_length"
                | "truncation",
            ),
        ) => Effect::Refused,
        _ if key == "train.filter" || key.starts_with("train.filter.") => Effect::Refused,
        _ if key.starts_with("method.") && method_key.is_none() => Effect::Refused,
        _ if key.strip_prefix("method.plugin.").is_some_and(|rest| !rest.contains('.')) => Effect::Refused,
        // Keys that define an adapter. Changing `lora` itself switches between training the whole model and an adapter.
        ("adapter" | "lora", _) => Effect::Refused,
        _ if key.starts_with("lora.") && key != "lora.dropout" => Effect::Refused,
        // Without evaluations, other rows are held out.
        ("train.eval_steps", _) if sensitivity.to_evaluations => Effect::Refused,
        // Length of a run, if its learning rate does not depend on it.
        ("train.max_steps" | "train.epochs", _) if !sensitivity.to_length => Effect::None,
        ("train.micro_batch_size" | "train.micro_batch_tokens", _) if !sensitivity.to_passes => Effect::None,
        (
            "train.threads"
            | "train.device"
            | "train.shard_moments"
            | "train.offload_moments"
            | "train.try_longest"
            | "train.memory_check"
            | "train.recompute"
            | "train.save_steps"
            | "train.keep_checkpoints"
            | "train.logging_steps"
            | "train.save_rollouts"
            | "train.tensorboard"
            | "train.wandb"
            | "train.wandb_project"
            | "train.wandb_entity"
            | "train.wandb_name",
            _,
        ) => Effect::None,
        (
            "rollouts.server"
            | "rollouts.kind"
            | "rollouts.model"
            | "rollouts.shared"
            | "rollouts.shared_at_server"
            | "rollouts.key_variable"
            | "rollouts.connections"
            | "rollouts.timeout_s"
            | "rollouts.wait_s",
            _,
        ) => Effect::None,
        (
            _,
            Some(
                "teacher_server.server"
                | "teacher_server.kind"
                | "teacher_server.model"
                | "teacher_server.key_variable"
                | "teacher_server.connections"
                | "teacher_server.timeout_s"
                | "teacher_server.wait_s",
            ),
        ) => Effect::None,
        _ if key == "observers" || key.starts_with("observers[") => Effect::None,
        _ => Effect::Differs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_change() {
        let all = |is: bool| Sensitivity { to_length: is, to_passes: is, to_evaluations: is };
        let sensitive = |key: &str| effect(key, all(true));
        let insensitive = |key: &str| effect(key, all(false));
        for (key, expected) in [
            ("model", Effect::Refused),
            ("train.seed", Effect::Refused),
            ("train.skip_bad_rows", Effect::Refused),
            ("method.sft.packing", Effect::Refused),
            ("method.sft.max_target_length", Effect::Refused),
            ("method.sft.add_eos", Effect::Refused),
            ("method.sft.completion_only_loss", Effect::Refused),
            ("method.sft.assistant_only_loss", Effect::Refused),
            ("method.sft.label_smoothing", Effect::Differs),
            ("method.classify.task", Effect::Refused),
            ("method.classify.labels", Effect::Refused),
            ("method.classify.label_column", Effect::Refused),
            ("method.classify.ignored_label", Effect::Refused),
            ("method.classify.text", Effect::Refused),
            ("method.classify.class_weights", Effect::Differs),
            ("method.ppo.critic.trunk", Effect::Refused),
            ("method.ppo.critic.freeze_trunk", Effect::Refused),
            ("method.ppo.critic.head", Effect::Refused),
            ("method.nlpo.mask_model", Effect::Refused),
            ("method.nlpo.mask_update", Effect::Differs),
            ("lora.rank", Effect::Refused),
            ("train.learning_rate", Effect::Differs),
            ("method.ppo.clip_range", Effect::Differs),
            ("reward.model", Effect::Differs),
            ("train.save_steps", Effect::None),
            ("train.save_rollouts", Effect::None),
            ("train.tensorboard", Effect::None),
            ("train.wandb", Effect::None),
            ("train.wandb_project", Effect::None),
            ("rollouts.server", Effect::None),
            ("rollouts.max_staleness", Effect::Differs),
            ("method.distill.teacher_server.server", Effect::None),
            ("method.distill.teacher_server.top_k", Effect::Differs),
        ] {
            assert_eq!([sensitive(key), insensitive(key)], [expected, expected], "{key}");
        }
        for key in ["train.max_steps", "train.epochs", "train.micro_batch_size", "train.micro_batch_tokens"] {
            assert_eq!([sensitive(key), insensitive(key)], [Effect::Differs, Effect::None], "{key}");
        }
        let of_evaluations = [sensitive("train.eval_steps"), insensitive("train.eval_steps")];
        assert_eq!(of_evaluations, [Effect::Refused, Effect::Differs]);
    }

    #[test]
    fn evaluations_begin_or_end_only_if_the_rows_stay() {
        let config = |rest: &str, train: &str| {
            let text = format!("model: m\ndata: d\nmethod: {{ sft: {{}} }}\n{rest}train: {{ {train} }}\n");
            RunConfig::parse(&text).expect("a configuration").config
        };
        let effect_of = |rest: &str, train: &str, steps: [i64; 2], set: &str| {
            let [was, is] = steps.map(|steps| config(rest, &format!("eval_steps: {steps}{train}")));
            let found = changes(&was, &is, |key| key == set);
            found.iter().find(|change| change.key == "train.eval_steps").map(|change| change.effect)
        };
        let fraction = "train.eval_fraction";
        for (rest, train, steps, set, expected) in [
            ("", "", [1, -1], "", Effect::Refused),
            ("", "", [-1, 0], "", Effect::Refused),
            ("", "", [1, 0], "", Effect::Differs),
            ("", ", shuffle: false", [1, -1], "", Effect::Differs),
            ("", ", eval_fraction: 0.2", [1, -1], fraction, Effect::Differs),
            ("", ", eval_fraction: 0", [-1, 0], fraction, Effect::Differs),
            ("eval_data: e\n", ", eval_fraction: 0.2", [0, -1], fraction, Effect::Refused),
        ] {
            assert_eq!(effect_of(rest, train, steps, set), Some(expected), "{rest}{train} {steps:?}");
        }
    }

    #[test]
    fn what_the_length_and_the_passes_change() {
        let sensitivity = |rest: &str| {
            let config = RunConfig::parse(&format!("model: m\ndata: d\n{rest}")).expect("a configuration").config;
            let Sensitivity { to_length, to_passes, .. } = Sensitivity::of(&config);
            (to_length, to_passes)
        };
        let sft = |train: &str| sensitivity(&format!("method: {{ sft: {{}} }}\ntrain: {{ {train} }}\n"));
        assert_eq!(sft("seed: 1"), (true, false), "the learning rate falls");
        for (warmup, to_length) in [("0", false), ("0.1", true), ("1", false), ("20", false)] {
            assert_eq!(sft(&format!("lr_schedule: constant, warmup_steps: {warmup}")).0, to_length, "{warmup}");
        }
        assert!(sft("dropout: true").1);
        assert!(sensitivity("method: { sft: {} }\nlora: { dropout: 0.1 }\n").1);
        assert!(!sensitivity("method: { sft: {} }\nlora: { rank: 2 }\n").1);
        let grpo = |loss: &str| sensitivity(&format!("method: {{ grpo: {{ loss_type: {loss} }} }}\n"));
        assert_eq!((grpo("bnpo").1, grpo("dapo").1), (true, false));
    }

    #[test]
    fn a_run_that_used_up_its_patience_stops_at_once_unless_it_is_raised() {
        let end = End { evaluations_since_best: 2, above_kl_limit: 3 };
        let stop = |text: &str| {
            let config = RunConfig::parse(&format!("model: m\ndata: d\n{text}")).expect("a configuration").config;
            end.stop_under(&config)
        };
        let patience = |patience: usize| {
            stop(&format!("method: {{ sft: {{}} }}\ntrain: {{ eval_steps: 1, early_stopping_patience: {patience} }}\n"))
        };
        for spent in [1, 2] {
            let flag = patience(spent).expect("it stops");
            assert!(flag.starts_with("`--early-stopping-patience N` with N above 2, or 0"), "{flag}");
        }
        assert_eq!((patience(0), patience(3)), (None, None));
        let kl =
            |after: usize| stop(&format!("method: {{ ppo: {{ kl: {{ stop_above: 1.0, stop_after: {after} }} }} }}\n"));
        assert_eq!(kl(3).as_deref(), Some("`--kl-stop-after N` with N above 3"));
        assert_eq!((kl(4), stop("method: { ppo: {} }\n")), (None, None));
    }

    #[test]
    fn the_stored_configuration_equals_the_one_that_was_written() {
        let text = "model: m\ndata: d\noutput_dir: a\nmethod: { ppo: { clip_range: 0.1 } }\n\
                    reward: { rule: { substring: \"1e5\" } }\n\
                    train: { seed: 18446744073709551615, learning_rate: 1e-5, evaluation: { metrics: [rouge] } }\n";
        let written = RunConfig::parse(text).expect("a configuration");
        let plan = Plan::check(&written, &Machine::detect()).expect("a plan");
        let read = stored("config.yml".as_ref(), &plan.to_yaml()).expect("it reads");
        assert_eq!(changes(&read, plan.config(), |_| false), []);
    }

    #[test]
    fn differing_leaves_are_found_in_both_directions() {
        let config = |text: &str| RunConfig::parse(text).unwrap().config;
        let start = "model: m\ndata: d\noutput_dir: a\n";
        let was = config(&format!("{start}method: {{ sft: {{}} }}\ntrain: {{ max_steps: 3 }}"));
        let is = config("model: m\ndata: d\noutput_dir: b\nmethod: { sft: {} }\ntrain: { learning_rate: 0.5 }");
        let shown: Vec<String> = changes(&was, &is, |_| false).iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "`train.max_steps` was 3 and is not set from this step on: the result differs from a run with either \
                 value from the start",
                "`train.learning_rate` was not set and is 0.5 from this step on: the result differs from a run with \
                 either value from the start",
            ]
        );
        let other = config(&format!("{start}method: {{ dpo: {{}} }}"));
        assert!(changes(&was, &other, |_| false).iter().any(|change| change.effect == Effect::Refused));
        assert_eq!(changes(&was, &was, |_| false), []);
    }

    #[test]
    fn a_run_without_lanes_has_one() {
        let config = |train: &str| {
            let text = format!("model: m\ndata: d\nmethod: {{ sft: {{}} }}\ntrain: {{ {train} }}\n");
            RunConfig::parse(&text).expect("a configuration").config
        };
        let (without, one, two) = (config("seed: 1"), config("seed: 1, lanes: 1"), config("seed: 1, lanes: 2"));
        assert_eq!(changes(&without, &one, |_| false), []);
        assert_eq!(changes(&one, &without, |_| false), []);
        assert_eq!(changes(&without, &two, |_| false).len(), 1);
    }
}
