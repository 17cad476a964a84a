//! `gradus config check|explain|schema`: configuration files, without a device.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use gradus::config::{ConfigFile, Imported, KeyReference, Plan, RunConfig, Schema, System, explain, import, markdown};
use gradus::error::{Diagnostic, Location};
use gradus::machine::Machine;
use serde_json::{Value, json};

use super::compare::warn_left_out;
use crate::output::Output;

/// Arguments of `gradus config`.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Check configuration files of runs, sweeps and comparisons, and report each problem with its position
    Check {
        /// Files to check
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Print the whole configuration of each run, including defaults
        #[arg(long)]
        resolved: bool,
    },
    /// Show what keys mean, their types and defaults
    Explain {
        /// A key such as `method.ppo.kl`, or a name such as `clip_range`
        key: Option<String>,
        /// Print a Markdown page
        #[arg(long)]
        markdown: bool,
    },
    /// Convert the configuration file of another tool, and report what has no equivalent
    Import {
        /// The tool: trl-sft, trl-reward, trl-dpo, trl-kto, trl-grpo, trl-rloo, llamafactory, axolotl, rl4lms or fine_grained
        #[arg(value_name = "SYSTEM")]
        system: System,
        /// File to convert
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print the JSON schema, for editors that complete and check YAML
    Schema,
}

/// Runs the subcommand.
pub fn run(args: ConfigArgs, out: &Output) -> anyhow::Result<()> {
    match args.verb {
        Verb::Check { files, resolved } => check(&files, resolved, out),
        Verb::Explain { markdown: true, .. } => out.text(&markdown(&Schema::run_config())),
        Verb::Explain { key, .. } => {
            let keys = explain(&Schema::run_config(), key.as_deref())?;
            out.result(&keys, || list(&keys))
        }
        Verb::Import { system, file } => {
            let Imported { yaml, notes } = import(system, &file)?;
            for note in &notes {
                let line = note.locations.iter().find_map(|location| match location {
                    Location::File { line, .. } => Some(format!(":{line}")),
                    Location::Flag(_) | Location::Argument(_) => None,
                });
                out.warn(format_args!("{}{}: {}", file.display(), line.unwrap_or_default(), note.message));
            }
            out.text(&yaml)
        }
        Verb::Schema => out.data(RunConfig::json_schema()),
    }
}

fn check(files: &[PathBuf], resolved: bool, out: &Output) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    for file in files {
        let checked = Checked::read(file, out);
        if out.is_json() && !resolved {
            out.json_line(&findings(file, &checked))?;
        }
        match checked {
            Ok(Checked { plans, .. }) if resolved && out.is_json() => {
                plans.iter().try_for_each(|plan| out.json_line(plan.config()))?;
            }
            Ok(Checked { plans, .. }) if resolved => {
                out.text(&plans.iter().map(Plan::to_yaml).collect::<Vec<_>>().join("---\n"))?;
            }
            Ok(Checked { what, .. }) => out.note(format_args!("{}: {what} without problems", file.display())),
            Err(gradus::Error::Config(found)) => problems.extend(found),
            Err(other) => return Err(other.into()),
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(gradus::Error::Config(problems).into()) }
}

/// A file without problems.
struct Checked {
    /// The kind of the file, in words.
    what: String,
    /// Its runs.
    plans: Vec<Plan>,
}

impl Checked {
    /// Reads a file, and checks its runs as its command does.
    fn read(file: &Path, out: &Output) -> gradus::Result<Self> {
        let machine = Machine::detect();
        let runs = |count: usize| if count == 1 { "1 run".to_owned() } else { format!("{count} runs") };
        match ConfigFile::load(file)? {
            ConfigFile::Run(written) => {
                out.notes(written.notes());
                let plan = Plan::check(&written, &machine)?;
                Ok(Self { what: format!("a `{}` run", plan.method().name()), plans: vec![plan] })
            }
            ConfigFile::Sweep(sweep) => {
                out.notes(&sweep.notes);
                let plans = Plan::check_all(sweep.points.iter().flat_map(|point| &point.runs), &machine)?;
                Ok(Self { what: format!("a sweep of {}", runs(plans.len())), plans })
            }
            ConfigFile::Comparison(comparison) => {
                out.notes(&comparison.notes);
                warn_left_out(&comparison, out);
                let plans = Plan::check_all(&comparison.runs, &machine)?;
                Plan::check_all(&comparison.judge, &machine)?;
                Ok(Self { what: format!("a comparison of {}", runs(plans.len())), plans })
            }
        }
    }

    /// Returns the method of all runs, if they have the same one.
    fn method(&self) -> Option<&str> {
        let first = self.plans.first()?.method().name();
        self.plans.iter().all(|plan| plan.method().name() == first).then_some(first)
    }
}

/// Returns the JSON of one file: its method, or its problems.
fn findings(file: &Path, checked: &gradus::Result<Checked>) -> Value {
    let place = |location: &Location| match location {
        Location::File { path, line, column, .. } => {
            Some(json!({ "file": path.display().to_string(), "line": line, "column": column }))
        }
        Location::Flag(_) | Location::Argument(_) => None,
    };
    let problem = |problem: &Diagnostic| {
        let locations: Vec<Value> = problem.locations.iter().filter_map(place).collect();
        json!({ "message": problem.message, "hint": problem.hint, "locations": locations })
    };
    let problems: Vec<Value> = match checked {
        Ok(_) => Vec::new(),
        Err(gradus::Error::Config(found)) => found.iter().map(problem).collect(),
        Err(other) => vec![json!({ "message": other.to_string(), "hint": other.hint(), "locations": [] })],
    };
    let method = checked.as_ref().ok().and_then(Checked::method);
    json!({ "file": file.display().to_string(), "ok": checked.is_ok(), "method": method, "problems": problems })
}

fn list(keys: &[KeyReference]) -> String {
    let mut text = String::new();
    for key in keys {
        let default = match &key.default {
            _ if key.required => ", required".to_owned(),
            Some(default) => format!(", default {default}"),
            None => String::new(),
        };
        let _ = writeln!(text, "{}  ({}{default})\n    {}", key.key, key.kind, key.doc);
    }
    text
}
