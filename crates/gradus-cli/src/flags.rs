//! Configuration keys as command-line arguments. Values stay text and are parsed like those of a file, so that errors in flags read like
//! errors in files.

mod methods;

use std::path::PathBuf;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command};
use gradus::config::{Flag, FlagKind, FlagSpec, Request, RunConfig, Schema, Scope, flags};
use gradus::task::DataConfig;

pub use methods::{MethodFlags, has_several_meanings};

/// Adds `--config`, the arguments of [`add`], and a flag for every key of `method`.
pub fn add_method(command: Command, method: &str) -> Command {
    let file = Arg::new("file").long("config").value_name("FILE").help("Configuration file; flags override it");
    add(command, file.value_parser(clap::value_parser!(PathBuf)), flags(&Schema::run_config(), Scope::Method(method)))
}

/// Adds the argument `file` for a configuration file, `--resume`, `--resume-from`, `--overwrite` and the flags `specs`.
pub fn add(command: Command, file: Arg, specs: Vec<FlagSpec>) -> Command {
    let run = |name: &'static str, help: &'static str| Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
    let mut command = command
        .next_help_heading("Run")
        .arg(file)
        .arg(run("resume", "Resume from the last checkpoint in the output directory").conflicts_with("overwrite"))
        .arg(
            Arg::new("resume-from")
                .long("resume-from")
                .value_name("STEP|DIR")
                .help(
                    "Resume from the checkpoint of this step and remove later ones; or start a new run from a \
                     checkpoint directory of another run",
                )
                .conflicts_with("overwrite"),
        )
        .arg(run("overwrite", "Replace the run in the output directory"))
        .args(crate::ranks::arguments())
        .arg(run("stop-with-stdin", "Stop after a checkpoint when stdin ends, as Ctrl-C does").hide(true));
    for spec in specs {
        command = command.next_help_heading(spec.section).args(arguments(&spec));
    }
    command.next_help_heading("Help")
}

/// Returns the given flags, in the order of the help.
pub fn given(matches: &ArgMatches, scope: Scope<'_>) -> Vec<Flag> {
    flags(&Schema::run_config(), scope).into_iter().filter_map(|spec| flag(matches, spec)).collect()
}

/// Adds only the reward flags.
pub fn add_rewards(command: Command) -> Command {
    rewards().fold(command, |command, spec| command.next_help_heading(spec.section).args(arguments(&spec)))
}

/// Returns the given reward flags.
pub fn given_rewards(matches: &ArgMatches) -> Vec<Flag> {
    rewards().filter_map(|spec| flag(matches, spec)).collect()
}

/// Returns the source of rows that the flags `data`, `task` and `split` define, parsed as for a run.
pub fn data(from: Option<&str>, task: Option<&str>, split: Option<&str>) -> gradus::Result<DataConfig> {
    let specs = flags(&Schema::run_config(), Scope::Shared);
    let given = [("data", from), ("task", task), ("split", split)].into_iter().filter_map(|(name, value)| {
        let spec = specs.iter().find(|spec| spec.name == name)?.clone();
        Some(Flag { written: format!("--{name}"), spec, values: vec![value?.to_owned()] })
    });
    let given: Vec<Flag> = given.collect();
    let request = Request { flags: &given, ..Request::default() };
    Ok(RunConfig::read("{model: '-', method: {sft: {}}}", &request)?.config.data)
}

fn rewards() -> impl Iterator<Item = FlagSpec> {
    flags(&Schema::run_config(), Scope::Shared).into_iter().filter(|spec| spec.key.starts_with("reward."))
}

/// Returns the flag `spec` if it was given.
pub fn flag(matches: &ArgMatches, spec: FlagSpec) -> Option<Flag> {
    if spec.kind == FlagKind::Switch {
        let off = format!("no-{}", spec.name);
        let (written, value) = match (matches.get_flag(&spec.name), matches.get_flag(&off)) {
            (true, _) => (format!("--{}", spec.name), "true"),
            (_, true) => (format!("--{off}"), "false"),
            _ => return None,
        };
        return Some(Flag { spec, written, values: vec![value.to_owned()] });
    }
    let values = matches.get_many::<String>(&spec.name)?.cloned().collect();
    Some(Flag { written: format!("--{}", spec.name), spec, values })
}

/// Creates the clap arguments of a flag. A switch has two.
pub fn arguments(spec: &FlagSpec) -> Vec<Arg> {
    let name = spec.name.clone();
    let arg = Arg::new(name.clone()).long(name.clone()).help(help(spec));
    match &spec.kind {
        FlagKind::Switch => {
            let off = format!("no-{name}");
            // Help shows the switch that changes the default. If there is no default, it shows both.
            let default = spec.default.as_ref().and_then(serde_json::Value::as_bool);
            let other = Arg::new(off.clone()).long(off.clone()).action(ArgAction::SetTrue).overrides_with(name.clone());
            let arg = arg.action(ArgAction::SetTrue).overrides_with(off);
            match default {
                Some(true) => vec![arg.hide(true), other.help(format!("Turn off: {}", help(spec)))],
                Some(false) => vec![arg, other.hide(true)],
                None => vec![arg, other.help(format!("Turn off: see --{name}"))],
            }
        }
        FlagKind::Value(placeholder) => vec![arg.value_name(*placeholder).allow_hyphen_values(true)],
        FlagKind::Words(words) => {
            let names: Vec<_> = words.iter().map(|word| word.name.as_str()).collect();
            let values = words.iter().map(|word| PossibleValue::new(word.name.clone())).collect();
            vec![arg.value_name(names.join("|")).hide_possible_values(true).value_parser(AnyText(values))]
        }
        FlagKind::WordList(words) => {
            let values = words.iter().map(|word| PossibleValue::new(word.name.clone())).collect();
            vec![arg.value_name("WORD,WORD").value_parser(AnyText(values))]
        }
        FlagKind::WordOrYaml(words) => {
            let values = words.iter().map(|word| PossibleValue::new(word.name.clone())).collect();
            vec![arg.value_name("WORD|YAML").value_parser(AnyText(values))]
        }
        FlagKind::Repeated => vec![arg.value_name("TEXT").action(ArgAction::Append).allow_hyphen_values(true)],
        FlagKind::Names => vec![arg.value_name("NAME,NAME").action(ArgAction::Append)],
        FlagKind::Arguments => vec![arg.value_name("PROGRAM ARGS")],
        FlagKind::Numbers => vec![arg.value_name("X,Y").allow_hyphen_values(true)],
        FlagKind::Yaml => vec![arg.value_name("YAML")],
    }
}

fn help(spec: &FlagSpec) -> String {
    let doc = spec.doc.trim_end_matches('.');
    match (&spec.kind, spec.doc.contains("Default")) {
        (FlagKind::Repeated, _) => format!("{doc}; can be repeated"),
        (FlagKind::Switch, false) | (_, true) => doc.to_owned(),
        (_, false) => match &spec.default {
            Some(default) if !default.is_null() => format!("{doc}. Default {default}"),
            _ => doc.to_owned(),
        },
    }
}

/// Lists the possible values for help and completion, but accepts any text. The configuration rejects invalid values with its own message.
#[derive(Clone)]
struct AnyText(Vec<PossibleValue>);

impl TypedValueParser for AnyText {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &std::ffi::OsStr) -> Result<String, clap::Error> {
        clap::builder::StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().cloned()))
    }
}
