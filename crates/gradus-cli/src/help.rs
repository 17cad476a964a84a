//! Short help: `-h` shows the most important flags and an example, `--help` shows every flag.

use clap::Command;
use gradus::config::MethodConfig;
use gradus::data::Need;

use crate::flags::has_several_meanings;

/// A command with more flags than this shows only those of [`TRAINING`] or [`KEPT`] in its short help.
const MANY: usize = 14;

/// Flags of [`TRAINING`] that a resumed run keeps.
const FIXED: [&str; 5] = ["data", "lora-rank", "model", "reward-command", "reward-model"];

/// Flags in the short help of training commands.
const TRAINING: [&str; 22] = [
    "batch-size",
    "beta",
    "data",
    "epochs",
    "eval-data",
    "eval-steps",
    "group-size",
    "kl-coefficient",
    "learning-rate",
    "lora-rank",
    "max-new-tokens",
    "max-steps",
    "methods",
    "model",
    "output-dir",
    "overwrite",
    "resume",
    "reward-command",
    "reward-model",
    "runs",
    "seed",
    "threads",
];

/// Flags in the short help of other commands.
const KEPT: [&str; 24] = [
    "adapter",
    "annotators",
    "chat-template",
    "data",
    "device",
    "format",
    "host",
    "labels",
    "max-new-tokens",
    "max-rows",
    "metrics",
    "model",
    "output",
    "port",
    "prompt",
    "prompts",
    "reward-model",
    "seed",
    "split",
    "stop",
    "system",
    "task",
    "temperature",
    "versus",
];

/// Examples of each command, by the command's name.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("demo", &["gradus demo"]),
    ("train", &["gradus train run.yml --max-steps 100"]),
    ("plan", &["gradus plan run.yml", "gradus plan METHOD --model gpt2 --data rows.jsonl"]),
    ("compare", &["gradus compare --methods all --model gpt2 --data pairs.jsonl --reward-model runs/reward/model"]),
    ("cluster slurm", &["gradus cluster slurm run.yml --nodes 4 --cpus 32 > run.sbatch"]),
    (
        "cluster kubernetes",
        &["gradus cluster kubernetes run.yml --nodes 4 --image gradus-mpi --mpi mpich --volume-claim shared --submit"],
    ),
    ("cluster skypilot", &["gradus cluster skypilot run.yml --nodes 4 --setup ./setup.sh > run.sky.yml"]),
    ("sweep", &["gradus sweep sweep.yml --at-once 2"]),
    ("runs list", &["gradus runs list --state interrupted --sort started"]),
    ("runs show", &["gradus runs show first"]),
    ("runs compare", &["gradus runs compare first second"]),
    ("runs tag", &["gradus runs tag first good --note \"the one for the report\""]),
    ("runs rename", &["gradus runs rename first baseline"]),
    ("runs stop", &["gradus runs stop first"]),
    ("runs rm", &["gradus runs rm first"]),
    ("runs resume", &["gradus runs resume first --max-steps 400"]),
    ("runs export", &["gradus runs export first --best --output models/happy"]),
    ("runs rollouts", &["gradus runs rollouts first --diff 1,100 --sort reward"]),
    ("runs audit", &["gradus runs audit first"]),
    ("generate", &["gradus generate --model gpt2 --prompts prompts.jsonl --max-new-tokens 64"]),
    ("chat", &["gradus chat --model runs/first"]),
    ("serve", &["gradus serve runs --model gpt2", "gradus serve runs --model gpt2 --training-api"]),
    ("annotate new", &["gradus annotate new tea --data pairs.jsonl --labels comparison --folder runs"]),
    ("annotate import", &["gradus annotate import tea --from argilla --data records.json --labels comparison"]),
    ("annotate invite", &["gradus annotate invite ada --role owner --folder runs"]),
    ("annotate export", &["gradus annotate export tea --output pairs.jsonl --folder runs"]),
    ("annotate list", &["gradus annotate list --folder runs"]),
    ("annotate release", &["gradus annotate release tea --person ada --folder runs"]),
    ("annotate rm", &["gradus annotate rm tea --folder runs"]),
    ("annotate stats", &["gradus annotate stats tea --folder runs"]),
    ("score", &["gradus score --model gpt2 --data rows.jsonl"]),
    ("eval", &["gradus eval --model runs/first --data prompts.jsonl --metrics rouge"]),
    ("merge", &["gradus merge --model runs/first --output models/merged"]),
    ("export", &["gradus export --model runs/first --weights q8_0 --output first.gguf"]),
    ("quantize", &["gradus quantize --model runs/first --format int8 --output models/small"]),
    ("new-model", &["gradus new-model --family t5 --size tiny --tokenizer DIR --output models/tiny"]),
    ("data show", &["gradus data show rows.jsonl"]),
    ("data check", &["gradus data check rows.jsonl"]),
    ("data convert", &["gradus data convert rows.csv -o rows.jsonl"]),
    ("data split", &["gradus data split rows.jsonl --train train.jsonl --test test.jsonl"]),
    ("config check", &["gradus config check run.yml"]),
    ("config explain", &["gradus config explain learning_rate"]),
    ("config import", &["gradus config import trl-dpo dpo.yml > run.yml", "gradus config import rl4lms imdb.yml"]),
    ("config schema", &["gradus config schema > gradus.schema.json"]),
    ("doctor", &["gradus doctor"]),
    ("bench", &["gradus bench --preset gpt2-tiny"]),
    ("docs", &["gradus docs", "gradus docs tutorial-dpo", "gradus docs --search learning_rate"]),
    ("man", &["gradus man grpo | man -l -"]),
    ("completions", &["gradus completions bash > ~/.local/share/bash-completion/completions/gradus"]),
];

/// Returns the example of a method, with rows of the right kind and a reward if it needs one.
fn of_method(method: &MethodConfig) -> String {
    let rows = match method.method().need() {
        Need::Preference => "pairs.jsonl",
        Need::Prompt => "prompts.jsonl",
        Need::Any | Need::Sft | Need::Unpaired | Need::Score | Need::Columns => "rows.jsonl",
    };
    let reward = if method.is_online() { " --reward-model runs/reward/model" } else { "" };
    format!("gradus {} --model gpt2 --data {rows}{reward} --max-steps 100", method.name())
}

/// Shortens the short help of `command` and of all its subcommands.
pub fn brief(command: Command) -> Command {
    let path = command.get_name().to_owned();
    at(command, &path)
}

fn at(mut command: Command, path: &str) -> Command {
    let flags = command.get_arguments().filter(|arg| !arg.is_hide_set()).count();
    if flags > MANY {
        let trains = command.get_arguments().any(|arg| arg.get_id() == "learning-rate");
        let kept = if trains { &TRAINING[..] } else { &KEPT };
        command = command.mut_args(|arg| {
            let name = arg.get_id().as_str().replace('_', "-");
            let is_kept = arg.is_required_set() || arg.is_positional() || kept.contains(&name.as_str());
            let is_fixed = path.ends_with("runs resume") && FIXED.contains(&name.as_str());
            let is_long = arg.get_help().is_some_and(|help| has_several_meanings(&help.to_string()));
            arg.hide_short_help(!is_kept || is_fixed || is_long)
        });
    }
    let below: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    for name in below {
        let path = format!("{path} {name}");
        command = command.mut_subcommand(name, |below| at(below, &path));
    }
    if command.has_subcommands() {
        return command;
    }
    let lines: Vec<String> = match EXAMPLES.iter().find(|(known, _)| *known == path) {
        Some((_, lines)) => lines.iter().map(|line| (*line).to_owned()).collect(),
        None => MethodConfig::named(path).iter().map(of_method).collect(),
    };
    if lines.is_empty() {
        return command;
    }
    let example = format!("Example:\n  {}", lines.join("\n  "));
    let after = match command.get_after_help() {
        Some(own) => format!("{example}\n\n{own}"),
        None => example,
    };
    let more = command.get_arguments().filter(|arg| arg.is_hide_short_help_set() && !arg.is_hide_set()).count();
    match more {
        0 => command.after_help(after),
        _ => command.after_help(format!("{after}\n\n{more} more options: gradus {path} --help")).after_long_help(after),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    /// Collects every command with its name, including groups.
    fn all(command: &Command, path: &str, found: &mut Vec<(String, Command)>) {
        for below in command.get_subcommands() {
            let path = format!("{path} {}", below.get_name()).trim().to_owned();
            all(below, &path, found);
            found.push((path, below.clone()));
        }
    }

    #[test]
    fn short_help_fits_a_screen_and_has_an_example_and_long_help_has_all() {
        let mut command = cli::command();
        command.build();
        let mut found = Vec::new();
        all(&command, "", &mut found);
        assert!(found.len() > 50, "{}", found.len());
        for (path, mut command) in found {
            let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
            let lines = short.lines().count();
            assert!(lines <= 64, "`gradus {path} -h` has {lines} lines:\n{short}");
            if !command.has_subcommands() {
                assert!(short.contains("Example"), "`gradus {path} -h` has no example:\n{short}");
            }
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let flag = arg.get_long().map_or_else(String::new, |long| format!("--{long}"));
                assert!(long.contains(&flag), "`gradus {path} --help` lacks {flag}");
            }
        }
    }

    #[test]
    fn every_example_is_a_command_that_is_read() {
        for (path, lines) in EXAMPLES {
            for line in *lines {
                let line = line.split(" | ").next().expect("a command");
                let line = line.split(" > ").next().expect("a command").replace("\"the one for the report\"", "note");
                // `METHOD` stands for any method.
                let line = line.replace("METHOD", MethodConfig::all()[0].name());
                let found = cli::command().try_get_matches_from(line.split_whitespace());
                assert!(found.is_ok(), "{path}: {line}: {}", found.err().map(|e| e.to_string()).unwrap_or_default());
            }
        }
        for method in MethodConfig::all() {
            let line = of_method(&method);
            assert!(cli::command().try_get_matches_from(line.split_whitespace()).is_ok(), "{line}");
        }
    }
}
