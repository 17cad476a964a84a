//! `gradus annotate`: annotation projects from the terminal. Annotation itself happens on the pages of `gradus serve`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use gradus::data::write_rows;
use gradus::files::output::{OutputFile, Outputs};
use gradus::inference::model_of;
use gradus_web::{
    Answering, Form, LEASE_MINUTES, NewProject, Number, Overview, Role, Share, Stats, Tool, export_project,
    import_project, invite, new_project, project_overview, project_stats, projects, release_tasks, remove_project,
};
use serde_json::{Value, json};

use super::device::DeviceArgs;
use crate::output::Output;
use crate::table::aligned;
use crate::watch::{fetch, fetch_data};

/// Arguments of `gradus annotate`.
#[derive(Debug, clap::Args)]
pub struct AnnotateArgs {
    #[command(subcommand)]
    verb: Verb,
    /// Folder that `gradus serve` serves; the projects are in its `gradus.sqlite`
    #[arg(long, value_name = "FOLDER", default_value = ".", global = true)]
    folder: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create a project from the rows of a data file
    New(Box<NewArgs>),
    /// Create a project from another tool's file, including its annotations
    Import(ImportArgs),
    /// Give a person a name and a sign-in token; a second call issues a new token
    Invite(InviteArgs),
    /// Write the annotations as training rows
    Export(ExportArgs),
    /// List the projects of the folder
    List,
    /// Release the tasks that people have opened; their drafts are kept
    Release(ReleaseArgs),
    /// Remove a project with all its annotations
    Rm(RmArgs),
    /// Show work per person, agreement between people, and which models they prefer
    Stats(StatsArgs),
}

#[derive(Debug, clap::Args)]
struct NewArgs {
    /// Name of the project
    name: String,
    /// Rows with `question` or `prompt`, and answers: `prediction 1`…, `completions`, `completion`, or `chosen` and `rejected`.
    /// Pairs in the HH form, without a prompt of their own, and the CSV files of RL4LMs' studies are read too
    #[arg(long, value_name = "FILE")]
    data: String,
    /// Questions: a YAML file, or one of fine-grained, comparison, comparison-strength, likert-imdb, likert-commongen, likert-dialogue,
    /// likert-summarisation, likert-totto
    #[arg(long, value_name = "FILE")]
    labels: String,
    /// Number of people who annotate each task independently
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    annotators: u16,
    /// Release a task if the person who opened it does nothing for this many minutes
    #[arg(long, value_name = "MINUTES", default_value_t = LEASE_MINUTES, value_parser = clap::value_parser!(u32).range(1..=525_600))]
    lease: u32,
    /// Take at most this many rows
    #[arg(long, value_name = "N")]
    max_tasks: Option<usize>,
    /// Let this model answer the questions, in place of answers of the data: a directory, a run or a hub name. May be given several times
    #[arg(long, value_name = "DIR")]
    model: Vec<String>,
    /// Number of answers of each model
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8), requires = "model")]
    answers: u16,
    /// Maximum length of an answer in tokens
    #[arg(long, value_name = "N", default_value_t = 128, requires = "model")]
    max_new_tokens: usize,
    /// Sampling temperature; 0 is greedy
    #[arg(long, value_name = "X", default_value_t = 0.8, requires = "model")]
    temperature: f32,
    /// Seed of every random stream
    #[arg(long, value_name = "N", default_value_t = 42, requires = "model")]
    seed: u64,
    /// Order of the queue: `given`, or `uncertainty`, which puts the tasks first whose answers the reward model can hardly distinguish
    #[arg(long, value_name = "given|uncertainty", default_value = "given", hide_possible_values = true)]
    order: Order,
    /// Reward model whose uncertainty orders the queue
    #[arg(long, value_name = "DIR", required_if_eq("order", "uncertainty"))]
    reward_model: Option<String>,
    /// Write the number of answers into this file while models answer: `{"done": 16, "of": 100}`
    #[arg(long, value_name = "FILE", requires = "model")]
    progress: Option<PathBuf>,
    /// Replace the file of `--progress`, whatever it contains. Progress files of earlier projects are always replaced
    #[arg(long, requires = "progress")]
    overwrite: bool,
    #[command(flatten)]
    on: DeviceArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Order {
    Given,
    Uncertainty,
}

#[derive(Debug, clap::Args)]
struct ImportArgs {
    /// Name of the project
    name: String,
    /// Tool that wrote the file: label-studio (its JSON export), argilla (records from `to_dict`) or fine-grained (rows with the `prompt`
    /// that FineGrainedRLHF's pages showed and the `response` that they submitted)
    #[arg(long, value_name = "TOOL", value_parser = tool)]
    from: Tool,
    /// File to import
    #[arg(long, value_name = "FILE")]
    data: String,
    /// Questions: a YAML file, or a built-in set
    #[arg(long, value_name = "FILE")]
    labels: String,
    /// Number of people who annotate each task
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    annotators: u16,
}

#[derive(Debug, clap::Args)]
struct InviteArgs {
    /// Name of the person
    name: String,
    /// Permissions: annotator; reviewer, who also sees the annotations of others; owner, who also downloads
    #[arg(long, value_name = "ROLE", default_value = "annotator", value_parser = role)]
    role: Role,
}

#[derive(Debug, clap::Args)]
struct ExportArgs {
    /// The project's name
    name: String,
    /// File to write: .jsonl, .json, .csv, .parquet or .arrow
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// preference (chosen and rejected, with the margin; TRL's form), feedback (spans, missing information, corrections, preferences of
    /// one task), r1, r2, r3 (FineGrainedRLHF's files for reward models), prompt, label-studio, argilla, raw
    #[arg(long, value_name = "FORM", default_value = "preference", value_parser = form)]
    form: Form,
    /// Replace the file if it exists
    #[arg(long)]
    overwrite: bool,
}

#[derive(Debug, clap::Args)]
struct ReleaseArgs {
    /// The project's name
    name: String,
    /// Release only this task; tasks are counted from 1
    #[arg(long, value_name = "N")]
    task: Option<usize>,
    /// Release only the tasks of this person
    #[arg(long, value_name = "NAME")]
    person: Option<String>,
}

#[derive(Debug, clap::Args)]
struct RmArgs {
    /// The project's name
    name: String,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, clap::Args)]
struct StatsArgs {
    /// The project's name
    name: String,
}

fn role(text: &str) -> Result<Role, String> {
    Role::of(text).ok_or_else(|| "expected `annotator`, `reviewer` or `owner`".into())
}

fn form(text: &str) -> Result<Form, String> {
    let names: Vec<String> = Form::ALL.iter().map(|form| format!("`{}`", form.name())).collect();
    Form::of(text).ok_or_else(|| format!("expected one of {}", names.join(", ")))
}

fn tool(text: &str) -> Result<Tool, String> {
    Tool::of(text).ok_or_else(|| "expected `label-studio`, `argilla` or `fine-grained`".into())
}

/// Writes the number of answers atomically, so that readers never see a partial file.
fn write_progress(file: &OutputFile, done: usize, of: usize) -> gradus::Result<()> {
    let progress = json!({ "done": done, "of": of }).to_string();
    file.write(|file| file.write_all(progress.as_bytes()))
}

/// Opens the progress file: a new one, or one from an earlier call. Other files are not replaced.
fn open_progress(path: &Path, overwrite: bool) -> gradus::Result<OutputFile> {
    let is_ours = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let found: Option<Value> = serde_json::from_str(&text).ok();
        found.is_some_and(|found| found["done"].is_u64() && found["of"].is_u64())
    };
    Outputs::new(overwrite).file_unless(path, is_ours)?;
    // The file is written many times. From now on its content is ours.
    Outputs::new(true).file(path)
}

/// Runs the subcommand.
pub fn run(args: AnnotateArgs, out: &Output) -> anyhow::Result<()> {
    let folder = &args.folder;
    match args.verb {
        Verb::New(args) => {
            let NewArgs {
                name,
                data,
                labels,
                annotators,
                lease,
                max_tasks,
                model,
                order,
                reward_model,
                progress,
                on: DeviceArgs { device },
                ..
            } = *args;
            let progress = progress.map(|path| open_progress(&path, args.overwrite)).transpose()?;
            fetch_data(&data, out)?;
            let uncertain_to = reward_model.filter(|_| order == Order::Uncertainty);
            for model in model.iter().chain(&uncertain_to) {
                fetch(&model_of(model.as_ref())?.to_string_lossy(), out)?;
            }
            let sampled = (!model.is_empty()).then_some(Answering {
                models: model,
                each: args.answers.into(),
                max_new_tokens: args.max_new_tokens,
                temperature: args.temperature,
                seed: args.seed,
            });
            let new = NewProject {
                name,
                data,
                labels,
                annotators: annotators.into(),
                lease_minutes: lease,
                max_tasks,
                sampled,
                uncertain_to,
                device,
            };
            let mut bar = out.counter("answers");
            let tasks = new_project(folder, &new, &mut |done, of| {
                bar.set(done, of);
                if let Some(Err(error)) = progress.as_ref().map(|file| write_progress(file, done, of)) {
                    out.warn(error);
                }
            })?;
            drop(bar);
            out.result(&json!({ "project": new.name, "tasks": tasks }), || {
                let many = if tasks == 1 { "" } else { "s" };
                let invite = format!("gradus annotate invite NAME{}", folder_flag(folder));
                format!("`{}` has {tasks} task{many}; `{invite}` invites people", new.name)
            })
        }
        Verb::Import(ImportArgs { name, from, data, labels, annotators }) => {
            let (tasks, annotations, open) = import_project(folder, &name, from, (&data, &labels), annotators.into())?;
            let value = json!({ "project": name, "tasks": tasks, "annotations": annotations, "unfinished": open });
            out.result(&value, || {
                format!(
                    "`{name}` has {tasks} tasks and {annotations} annotations, {open} of them unfinished by its rules"
                )
            })
        }
        Verb::Invite(InviteArgs { name, role }) => {
            let token = invite(folder, &name, role)?;
            out.result(&json!({ "name": name, "role": role.name(), "token": token }), || token.clone())?;
            let serve = gradus::shell::path(folder);
            out.note(format_args!(
                "`{name}` signs in with this name and token on the page `/annotate` of `gradus serve {serve}`"
            ));
            Ok(())
        }
        Verb::Export(ExportArgs { name, output, form, overwrite }) => {
            let file = Outputs::new(overwrite).file(&output)?;
            let rows = export_project(folder, &name, form)?;
            if rows.is_empty() {
                anyhow::bail!(gradus::Error::input(format!("`{name}` has no {} rows yet", form.name())));
            }
            write_rows(&file, &rows)?;
            let count = rows.len();
            out.result(&json!({ "rows": count }), || format!("{count} rows in `{}`", output.display()))
        }
        Verb::List => {
            let found = projects(folder)?;
            out.result(&found, || {
                let line = |of: &Overview| {
                    vec![of.name.clone(), of.tasks.to_string(), of.annotators.to_string(), of.done.to_string()]
                };
                let header = ["project", "tasks", "annotators", "annotations"].map(str::to_owned).to_vec();
                match found.is_empty() {
                    true => format!("no projects in `{}`", folder.display()),
                    false => aligned(&std::iter::once(header).chain(found.iter().map(line)).collect::<Vec<_>>()),
                }
            })
        }
        Verb::Release(ReleaseArgs { name, task, person }) => {
            let released = release_tasks(folder, &name, task, person.as_deref())?;
            out.result(&json!({ "project": name, "released": released }), || match released {
                0 => format!("no open task of `{name}` matches"),
                1 => "released 1 task".to_owned(),
                _ => format!("released {released} tasks"),
            })
        }
        Verb::Rm(RmArgs { name, yes }) => {
            let found = project_overview(folder, &name)?;
            let (tasks, done) = (found.tasks, found.done);
            let question = format!("remove `{name}` with {tasks} tasks and {done} finished annotations?");
            let is_removed = out.confirmed(&question, &format!("`{name}`"), yes)?;
            if is_removed {
                remove_project(folder, &name)?;
                out.note(format_args!("removed `{name}`"));
            }
            let removed: Vec<&str> = is_removed.then_some(name.as_str()).into_iter().collect();
            if out.is_json() { out.result(&json!({ "removed": removed }), String::new) } else { Ok(()) }
        }
        Verb::Stats(StatsArgs { name }) => {
            let stats = project_stats(folder, &name)?;
            let value: Value = serde_json::to_value(&stats)?;
            out.result(&value, || shown(&stats))
        }
    }
}

/// Returns the flag that selects `folder`, with a space before it. It is empty for the default.
fn folder_flag(folder: &Path) -> String {
    if folder == Path::new(".") { String::new() } else { format!(" --folder {}", gradus::shell::path(folder)) }
}

fn number(number: &Number) -> String {
    match number {
        Number::Value(value) => format!("{value:.3}"),
        Number::Undefined(why) => format!("undefined ({why})"),
    }
}

fn shown(stats: &Stats) -> String {
    let mut text = format!("{} of {} tasks have all their annotations\n", stats.complete, stats.tasks);
    let open = stats.claims.iter().filter(|claim| claim.holds).count();
    let _ = writeln!(text, "{} annotations submitted, {open} in progress", stats.submitted);
    for work in &stats.people {
        let (median, fast) = (number(&work.median_seconds), work.fast);
        let known = match &work.right {
            Number::Value(right) => {
                format!(", {right:.3} of the known answers right, {} attention checks missed", work.inattentive)
            }
            Number::Undefined(_) => String::new(),
        };
        let _ = writeln!(
            text,
            "{}: {} done, {} skipped, median {median} s, {fast} too fast{known}",
            work.name, work.done, work.skipped
        );
    }
    // Without an item with two labels, every measure of a part is undefined for the same reason.
    let (mut alone, mut reason) = (Vec::new(), "");
    for of in &stats.agreement {
        if let Number::Undefined(why) = of.raw {
            alone.push(of.of.as_str());
            reason = why;
            continue;
        }
        let (raw, cohen, fleiss, alpha) = (number(&of.raw), number(&of.cohen), number(&of.fleiss), number(&of.alpha));
        let _ = writeln!(
            text,
            "{}, {} items: same {raw}, Cohen's kappa {cohen}, Fleiss' kappa {fleiss}, Krippendorff's alpha {alpha}",
            of.of, of.items
        );
    }
    if !alone.is_empty() {
        let _ = writeln!(text, "agreement on {}: undefined ({reason})", alone.join(", "));
    }
    if let Some(f1) = &stats.span_f1 {
        let _ = writeln!(text, "characters marked alike, F1: {}", number(f1));
    }
    let percent = |share: &Share| {
        let (low, high) = share.interval;
        format!("{:.0} % ({:.0}–{:.0})", 100.0 * share.value, 100.0 * low, 100.0 * high)
    };
    for of in &stats.comparisons {
        let [win, tie, loss] = [&of.win, &of.tie, &of.loss].map(percent);
        let _ = writeln!(
            text,
            "{} against {}, {} votes: wins {win}, ties {tie}, losses {loss}",
            of.one, of.other, of.votes
        );
    }
    for model in &stats.models {
        let (low, high) = model.interval;
        let _ = writeln!(text, "{}: {:.3} ({low:.3} to {high:.3})", model.model, model.log_strength);
    }
    if let Some(why) = stats.models_undefined {
        let _ = writeln!(text, "no ranking of models (Bradley–Terry): {why}");
    }
    text
}
