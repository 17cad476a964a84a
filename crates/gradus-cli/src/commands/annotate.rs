//! `gradus annotate`: projects of annotations from the terminal; people annotate in the pages of `gradus serve`.

use std::fmt::Write as _;
use std::path::PathBuf;

use gradus::data::write_rows;
use gradus_web::{Form, NewProject, Number, Role, Stats, export_project, invite, new_project, project_stats};
use serde_json::{Value, json};

use crate::output::Output;
use crate::watch::fetch_data;

/// Arguments of `gradus annotate`.
#[derive(Debug, clap::Args)]
pub struct AnnotateArgs {
    #[command(subcommand)]
    verb: Verb,
    /// The folder that `gradus serve` serves; the projects are in its `gradus.sqlite`
    #[arg(long, value_name = "FOLDER", default_value = ".", global = true)]
    folder: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Make a project of the rows of a data file
    New(NewArgs),
    /// Give someone a name and a token to sign in with; again, a new token
    Invite(InviteArgs),
    /// Write what people said as training rows
    Export(ExportArgs),
    /// Show who did how much, how far people agree, and which models they prefer
    Stats(StatsArgs),
}

#[derive(Debug, clap::Args)]
struct NewArgs {
    /// The project's name
    name: String,
    /// Rows with `question` or `prompt`, and answers: `prediction 1`…, `completions`, `completion`, or `chosen` and `rejected`
    #[arg(long, value_name = "FILE")]
    data: String,
    /// What is asked: a YAML file, or one of fine-grained, comparison, likert-imdb, likert-commongen, likert-dialogue,
    /// likert-summarisation, likert-totto
    #[arg(long, value_name = "FILE")]
    labels: String,
    /// How many people look at each task, blind to each other
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    annotators: u16,
    /// Take at most this many rows
    #[arg(long, value_name = "N")]
    max_tasks: Option<usize>,
}

#[derive(Debug, clap::Args)]
struct InviteArgs {
    /// The person's name
    name: String,
    /// What they may do: annotator; reviewer, who also sees what others said; owner, who also downloads
    #[arg(long, value_name = "ROLE", default_value = "annotator", value_parser = role)]
    role: Role,
}

#[derive(Debug, clap::Args)]
struct ExportArgs {
    /// The project's name
    name: String,
    /// The file: .jsonl, .json, .csv or .parquet
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// feedback (spans, missing information, corrections, preferences of one task), preference (chosen and rejected), raw
    #[arg(long, value_name = "FORM", default_value = "preference", value_parser = form)]
    form: Form,
}

#[derive(Debug, clap::Args)]
struct StatsArgs {
    /// The project's name
    name: String,
}

fn role(text: &str) -> Result<Role, String> {
    Role::of(text).ok_or_else(|| "one of `annotator`, `reviewer`, `owner` is needed".into())
}

fn form(text: &str) -> Result<Form, String> {
    Form::of(text).ok_or_else(|| "one of `feedback`, `preference`, `raw` is needed".into())
}

/// Does what the verb says.
pub fn run(args: AnnotateArgs, out: &Output) -> anyhow::Result<()> {
    let folder = &args.folder;
    match args.verb {
        Verb::New(NewArgs { name, data, labels, annotators, max_tasks }) => {
            fetch_data(&data, out)?;
            let new = NewProject { name, data, labels, annotators: annotators.into(), max_tasks };
            let tasks = new_project(folder, &new)?;
            out.result(&json!({ "project": new.name, "tasks": tasks }), || {
                let many = if tasks == 1 { "" } else { "s" };
                format!("`{}` has {tasks} task{many}; `gradus annotate invite NAME` lets people in", new.name)
            })
        }
        Verb::Invite(InviteArgs { name, role }) => {
            let token = invite(folder, &name, role)?;
            out.result(&json!({ "name": name, "role": role.name(), "token": token }), || token.clone())
        }
        Verb::Export(ExportArgs { name, output, form }) => {
            let rows = export_project(folder, &name, form)?;
            if rows.is_empty() {
                anyhow::bail!(gradus::Error::input(format!("`{name}` has no {} rows yet", form.name())));
            }
            write_rows(&output, &rows)?;
            let count = rows.len();
            out.result(&json!({ "rows": count }), || format!("{count} rows in `{}`", output.display()))
        }
        Verb::Stats(StatsArgs { name }) => {
            let stats = project_stats(folder, &name)?;
            let value: Value = serde_json::to_value(&stats)?;
            out.result(&value, || shown(&stats))
        }
    }
}

fn number(number: &Number) -> String {
    match number {
        Number::Value(value) => format!("{value:.3}"),
        Number::Undefined(why) => format!("undefined ({why})"),
    }
}

fn shown(stats: &Stats) -> String {
    let mut text = format!("{} of {} tasks have all their annotations\n", stats.complete, stats.tasks);
    for work in &stats.people {
        let (median, fast) = (number(&work.median_seconds), work.fast);
        let _ = writeln!(
            text,
            "{}: {} done, {} skipped, median {median} s, {fast} too fast",
            work.name, work.done, work.skipped
        );
    }
    for of in &stats.agreement {
        let (raw, cohen, fleiss, alpha) = (number(&of.raw), number(&of.cohen), number(&of.fleiss), number(&of.alpha));
        let _ = writeln!(
            text,
            "{}, {} items: same {raw}, Cohen's kappa {cohen}, Fleiss' kappa {fleiss}, Krippendorff's alpha {alpha}",
            of.of, of.items
        );
    }
    if let Some(f1) = &stats.span_f1 {
        let _ = writeln!(text, "characters marked alike, F1: {}", number(f1));
    }
    for model in &stats.models {
        let (low, high) = model.interval;
        let _ = writeln!(text, "{}: {:.3} ({low:.3} to {high:.3})", model.model, model.log_strength);
    }
    if let Some(why) = stats.models_undefined {
        let _ = writeln!(text, "no strengths of models: {why}");
    }
    text
}
