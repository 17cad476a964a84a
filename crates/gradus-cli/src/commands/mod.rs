//! The commands, one file each; this file lists them.
//!
//! A command turns its arguments into a plan or an options struct, calls the library once and shows the result. To add a command, write a
//! file with its `clap::Args` struct and `pub fn run(args, out)`, and one entry in [`entries`]. Commands of training methods are generated
//! from the library's description of the method.

use clap::{Arg, ArgMatches, Command, FromArgMatches};
use gradus::config::MethodConfig;

use crate::output::Output;

mod annotate;
mod bad_rows;
mod bench;
mod chat;
mod cluster;
mod columns;
mod compare;
mod completions;
mod config;
mod data;
mod demo;
mod device;
mod docs;
mod doctor;
mod eval;
mod export;
mod generate;
mod man;
mod merge;
mod new_model;
mod plan;
mod quantize;
pub mod runs;
mod score;
mod serve;
mod sweep;
mod text;
mod train;

/// One command of the binary.
pub struct Entry {
    /// Name on the command line.
    pub name: &'static str,
    /// Heading of the command in `--help`.
    pub group: Group,
    /// Description in one line.
    pub about: &'static str,
    /// Adds the arguments; called only if the command is used.
    pub arguments: fn(clap::Command) -> clap::Command,
    /// Runs the command.
    pub run: Box<Run>,
}

/// Function that runs a command with its arguments.
pub type Run = dyn Fn(&ArgMatches, &Output) -> anyhow::Result<()>;

/// Headings of `gradus --help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// First steps.
    Start,
    /// Training runs.
    Train,
    /// Use of models.
    Use,
    /// Data sets.
    Data,
    /// Machine and configuration.
    Setup,
}

impl Group {
    /// All headings, in the order of the help.
    pub const ALL: [Self; 5] = [Self::Start, Self::Train, Self::Use, Self::Data, Self::Setup];

    /// Returns the text of the heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Start => "Start",
            Self::Train => "Train",
            Self::Use => "Sample and measure",
            Self::Data => "Data",
            Self::Setup => "Setup",
        }
    }
}

/// Creates the entry of a command: one whose `$module::run` takes a `clap::Args` struct, or one with a function that adds
/// its arguments and a function that runs it.
macro_rules! entry {
    ($group:ident, $name:literal, $module:ident :: $arguments:ident, $about:literal) => {
        entry!(
            $group,
            $name,
            <$module::$arguments as clap::Args>::augment_args,
            |matches, out| $module::run($module::$arguments::from_arg_matches(matches)?, out),
            $about
        )
    };
    ($group:ident, $name:literal, $arguments:expr, $run:expr, $about:literal) => {
        Entry {
            name: $name,
            group: Group::$group,
            about: $about,
            arguments: |command| crate::help::brief(with_threads($arguments(command).about($about).long_about(None))),
            run: Box::new($run),
        }
    };
}

/// Creates the entry of a training method. Its flags are the configuration keys.
fn method(method: &MethodConfig) -> Entry {
    let (name, about) = (method.name(), method.method().about());
    Entry {
        name,
        group: Group::Train,
        about,
        arguments: |command| {
            let name = command.get_name().to_owned();
            crate::help::brief(crate::flags::add_method(command, &name))
        },
        run: Box::new(move |matches, out| train::run_method(name, matches, out)),
    }
}

/// Returns all commands, in the order of the help.
pub fn entries() -> Vec<Entry> {
    let mut entries = vec![entry!(
        Start,
        "demo",
        demo::DemoArgs,
        "Run a built-in task from random weights to aligned models, in minutes"
    )];
    entries.extend(MethodConfig::all().iter().map(method));
    entries.extend(others());
    entries
}

fn others() -> Vec<Entry> {
    vec![
        entry!(Train, "train", train::arguments, train::run_file, "Start the run that a configuration file describes"),
        entry!(Train, "plan", plan::arguments, plan::run, "Predict the memory of a run, phase by phase"),
        entry!(
            Train,
            "compare",
            compare::arguments,
            compare::run,
            "Train several methods from one start and compare them"
        ),
        entry!(Train, "sweep", sweep::SweepArgs, "Train many runs from one file, and compare them over seeds"),
        entry!(Train, "runs", runs::arguments, runs::run, "Browse, compare, tag, resume, export and remove runs"),
        entry!(Train, "cluster", cluster::ClusterArgs, "Write the job file of a run for Slurm, Kubernetes or SkyPilot"),
        entry!(Use, "generate", generate::GenerateArgs, "Sample completions of prompts"),
        entry!(Use, "chat", chat::ChatArgs, "Chat with a model, or with two side by side"),
        entry!(Use, "serve", serve::ServeArgs, "Serve the models of a folder: web pages and OpenAI's protocol"),
        entry!(
            Use,
            "annotate",
            annotate::AnnotateArgs,
            "Manage annotation projects: create, invite, export, measure agreement"
        ),
        entry!(Use, "score", score::ScoreArgs, "Print log-probabilities or rewards of rows"),
        entry!(Use, "eval", eval::arguments, eval::run, "Measure a model on a data set"),
        entry!(Use, "merge", merge::MergeArgs, "Merge an adapter into its base model"),
        entry!(Use, "export", export::ExportArgs, "Export a model as GGUF, for llama.cpp"),
        entry!(
            Use,
            "quantize",
            quantize::QuantizeArgs,
            "Quantize a model to 8 or 4 bits, and measure the loss of quality"
        ),
        entry!(Use, "new-model", new_model::NewModelArgs, "Create a model of any family with random weights"),
        entry!(Data, "data", data::DataArgs, "Inspect, check, convert and split data sets"),
        entry!(Setup, "config", config::ConfigArgs, "Check, explain and import configuration files"),
        entry!(Setup, "doctor", doctor::DoctorArgs, "Show devices, threads, memory and the features of this build"),
        entry!(Setup, "bench", bench::BenchArgs, "Measure this machine, and the speed of training and sampling"),
        entry!(Setup, "docs", docs::DocsArgs, "Read the documentation: list, show and search its pages"),
        entry!(Setup, "man", man::ManArgs, "Print a manual page for `man`"),
        entry!(Setup, "completions", completions::CompletionsArgs, "Print a completion script for a shell"),
    ]
}

/// Adds `--threads` to commands that compute but have no configuration.
fn with_threads(command: Command) -> Command {
    if !["generate", "chat", "serve", "score", "eval", "quantize"].contains(&command.get_name()) {
        return command;
    }
    let count = clap::value_parser!(u64).range(1..=1024);
    let help = "Number of threads [default: one per processor]";
    command.arg(Arg::new("threads").long("threads").value_name("N").value_parser(count).help(help))
}

/// Returns the number of threads that the arguments select, if any.
pub fn threads(matches: &ArgMatches) -> Option<usize> {
    let (_, arguments) = matches.subcommand()?;
    // Training methods have a flag of this name that is a configuration key.
    let threads = arguments.try_get_one::<u64>("threads").ok().flatten()?;
    usize::try_from(*threads).ok()
}

/// Returns whether the command that `matches` names computes on all threads.
pub fn computes(matches: &ArgMatches) -> bool {
    let name = matches.subcommand_name();
    let entry = entries().into_iter().find(|entry| Some(entry.name) == name);
    entry.is_some_and(|entry| matches!(entry.group, Group::Start | Group::Use) && entry.name != "serve")
}

/// Returns whether this is a training command, which divides its work among ranks.
pub fn trains(name: &str) -> bool {
    name == "train" || MethodConfig::all().iter().any(|method| method.name() == name)
}

/// Rejects several copies of a command that cannot divide its work among ranks.
///
/// # Errors
/// A launcher started several processes.
pub fn check_ranks(matches: &ArgMatches) -> anyhow::Result<()> {
    let Some((name, arguments)) = matches.subcommand() else { return Ok(()) };
    let has_ranks = trains(name) || (name == "runs" && arguments.subcommand_name() == Some("resume"));
    if has_ranks { Ok(()) } else { crate::ranks::refuse_copies(name) }
}

/// Runs the command that `matches` names.
pub fn run(matches: &ArgMatches, out: &Output) -> anyhow::Result<()> {
    let (name, arguments) = matches.subcommand().expect("clap requires a command");
    let entries = entries();
    let entry = entries.iter().find(|entry| entry.name == name).expect("clap accepts only commands of the table");
    (entry.run)(arguments, out)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Command;
    use gradus::config::{Schema, Scope, flags};

    use super::*;

    /// Names of arguments that name an input.
    const READ: &[&str] = &[
        "adapter",
        "allow_weights",
        "chat_template",
        "classifier",
        "config",
        "data",
        "directory",
        "file",
        "files",
        "folder",
        "home",
        "labels",
        "model",
        "mount",
        "named",
        "prompts",
        "questions",
        "reference_model",
        "resume-from",
        "reward_model",
        "runs",
        "runs_dir",
        "tokenizer",
        "versus",
        "versus_adapter",
    ];

    /// Arguments that name an output, with their commands.
    const WRITTEN: &[&str] = &[
        "METHOD output-dir",
        "annotate export output",
        "annotate new progress",
        "compare output-dir",
        "data convert output",
        "data show report",
        "data split test",
        "data split train",
        "demo output_dir",
        "eval predictions",
        "eval report",
        "export output",
        "merge output",
        "new-model output",
        "quantize output",
        "runs compare output_dir",
        "runs export output",
        "train output-dir",
    ];

    /// Commands that write but cannot overwrite: they only replace comparisons.
    const NEVER_OVERWRITE: &[&str] = &["runs compare"];

    /// Collects the output arguments of a command. `keys` are the configuration flags, which name inputs of a run.
    fn walk(command: &Command, path: &str, keys: &BTreeSet<String>, found: &mut BTreeSet<String>) {
        let takes_path = |argument: &&clap::Arg| {
            let names = argument.get_value_names().unwrap_or_default();
            names.iter().any(|name| ["FILE", "DIR", "PATH", "FOLDER"].iter().any(|word| name.contains(word)))
                || argument.get_value_parser().type_id() == clap::value_parser!(std::path::PathBuf).type_id()
        };
        for argument in command.get_arguments().filter(takes_path) {
            let id = argument.get_id().as_str();
            if READ.contains(&id) || keys.contains(id) {
                continue;
            }
            found.insert(format!("{path} {id}"));
            let can_overwrite = command.get_arguments().any(|other| other.get_id() == "overwrite");
            assert!(
                can_overwrite || NEVER_OVERWRITE.contains(&path),
                "`{path}` writes `{id}` and has no `--overwrite`"
            );
        }
        for inner in command.get_subcommands() {
            walk(inner, &format!("{path} {}", inner.get_name()), keys, found);
        }
    }

    #[test]
    fn every_command_that_writes_a_named_file_can_be_told_to_overwrite() {
        let schema = Schema::run_config();
        let methods = MethodConfig::all();
        let scopes = methods.iter().map(|method| Scope::Method(method.name()));
        let keys: BTreeSet<String> = scopes.flat_map(|scope| flags(&schema, scope)).map(|flag| flag.name).collect();
        let keys: BTreeSet<String> = keys.into_iter().filter(|name| name != "output-dir").collect();
        let mut found = BTreeSet::new();
        // `plan` shows a run and writes nothing; `runs resume` continues in the directory of a run.
        for entry in entries().into_iter().filter(|entry| entry.name != "plan") {
            let mut command = (entry.arguments)(Command::new(entry.name));
            command.build();
            let path = if MethodConfig::named(entry.name).is_some() { "METHOD" } else { entry.name };
            walk(&command, path, &keys, &mut found);
        }
        let listed: BTreeSet<String> = WRITTEN.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(
            found, listed,
            "an argument that takes a path is in `READ` or in `WRITTEN`; what is written needs a case in tests/cli/overwrite.rs"
        );
    }
}
