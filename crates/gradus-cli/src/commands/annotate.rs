//! `gradus annotate`: projects of annotations from the terminal; people annotate in the pages of `gradus serve`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use gradus::data::write_rows;
use gradus::device::DeviceChoice;
use gradus::files::output::{OutputFile, Outputs};
use gradus::inference::model_of;
use gradus_web::{
    Answering, Form, LEASE_MINUTES, NewProject, Number, Overview, Role, Share, Stats, Tool, export_project,
    import_project, invite, new_project, project_overview, project_stats, projects, release_tasks, remove_project,
};
use serde_json::{Value, json};

use crate::output::Output;
use crate::table::aligned;
use crate::watch::{fetch, fetch_data};

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
    New(Box<NewArgs>),
    /// Make a project of another tool's file, with what people said there
    Import(ImportArgs),
    /// Give someone a name and a token to sign in with; again, a new token
    Invite(InviteArgs),
    /// Write what people said as training rows
    Export(ExportArgs),
    /// List the projects of the folder
    List,
    /// Free the tasks that people have opened, for others; marks so far are kept
    Release(ReleaseArgs),
    /// Remove a project with everything that people said in it
    Rm(RmArgs),
    /// Show who did how much, how far people agree, and which models they prefer
    Stats(StatsArgs),
}

#[derive(Debug, clap::Args)]
struct NewArgs {
    /// The project's name
    name: String,
    /// Rows with `question` or `prompt`, and answers: `prediction 1`…, `completions`, `completion`, or `chosen` and `rejected`.
    /// Pairs in the HH form, without a prompt of their own, and the CSV files of RL4LMs' studies are read too
    #[arg(long, value_name = "FILE")]
    data: String,
    /// What is asked: a YAML file, or one of fine-grained, comparison, comparison-strength, likert-imdb, likert-commongen, likert-dialogue,
    /// likert-summarisation, likert-totto
    #[arg(long, value_name = "FILE")]
    labels: String,
    /// How many people look at each task, blind to each other
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    annotators: u16,
    /// Give a task to others when the person who opened it does nothing with it for so many minutes
    #[arg(long, value_name = "MINUTES", default_value_t = LEASE_MINUTES, value_parser = clap::value_parser!(u32).range(1..=525_600))]
    lease: u32,
    /// Take at most this many rows
    #[arg(long, value_name = "N")]
    max_tasks: Option<usize>,
    /// Have this model answer the questions, in place of answers of the data: a directory, a run or a hub name. May be given several
    /// times
    #[arg(long, value_name = "DIR")]
    model: Vec<String>,
    /// Answers of each model
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8), requires = "model")]
    answers: u16,
    /// The longest answer in tokens
    #[arg(long, value_name = "N", default_value_t = 128, requires = "model")]
    max_new_tokens: usize,
    /// The sampling temperature; 0 is greedy
    #[arg(long, value_name = "X", default_value_t = 0.8, requires = "model")]
    temperature: f32,
    /// The seed of every random stream
    #[arg(long, value_name = "N", default_value_t = 42, requires = "model")]
    seed: u64,
    /// The order of the queue: as `given`, or by `uncertainty`, those first of which the reward model can least tell which answer is
    /// better
    #[arg(long, value_name = "given|uncertainty", default_value = "given", hide_possible_values = true)]
    order: Order,
    /// The reward model whose uncertainty orders the queue
    #[arg(long, value_name = "DIR", required_if_eq("order", "uncertainty"))]
    reward_model: Option<String>,
    /// Write how many answers there are into this file while models answer: `{"done": 16, "of": 100}`
    #[arg(long, value_name = "FILE", requires = "model")]
    progress: Option<PathBuf>,
    /// Replace the file of `--progress`, whatever is in it. One that tells of another project is replaced anyway
    #[arg(long, requires = "progress")]
    overwrite: bool,
    /// Where models compute: cpu; gpu or gpu:1 where built in (`gradus doctor` lists them)
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceChoice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Order {
    Given,
    Uncertainty,
}

#[derive(Debug, clap::Args)]
struct ImportArgs {
    /// The project's name
    name: String,
    /// Whose file it is: label-studio (its JSON export), argilla (records as `to_dict` has them) or fine-grained (rows with the `prompt` that FineGrainedRLHF's pages showed and the `response` that they submitted)
    #[arg(long, value_name = "TOOL", value_parser = tool)]
    from: Tool,
    /// The file
    #[arg(long, value_name = "FILE")]
    data: String,
    /// What was asked: a YAML file, or one of those that come along
    #[arg(long, value_name = "FILE")]
    labels: String,
    /// How many people look at each task
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    annotators: u16,
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
    /// The file: .jsonl, .json, .csv, .parquet or .arrow
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// preference (chosen and rejected, with the margin; TRL's form), feedback (spans, missing information, corrections, preferences of
    /// one task), r1, r2, r3 (FineGrainedRLHF's files for reward models), prompt, label-studio, argilla, raw
    #[arg(long, value_name = "FORM", default_value = "preference", value_parser = form)]
    form: Form,
    /// Replace the file if it is there
    #[arg(long)]
    overwrite: bool,
}

#[derive(Debug, clap::Args)]
struct ReleaseArgs {
    /// The project's name
    name: String,
    /// Release this task only; tasks are counted from 1
    #[arg(long, value_name = "N")]
    task: Option<usize>,
    /// Release the tasks of this person only
    #[arg(long, value_name = "NAME")]
    person: Option<String>,
}

#[derive(Debug, clap::Args)]
struct RmArgs {
    /// The project's name
    name: String,
    /// Ask nothing
    #[arg(long)]
    yes: bool,
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
    let names: Vec<String> = Form::ALL.iter().map(|form| format!("`{}`", form.name())).collect();
    Form::of(text).ok_or_else(|| format!("one of {} is needed", names.join(", ")))
}

fn tool(text: &str) -> Result<Tool, String> {
    Tool::of(text).ok_or_else(|| "`label-studio`, `argilla` or `fine-grained` is needed".into())
}

/// Writes how many answers there are; who reads it never sees half of it.
fn tell(file: &OutputFile, done: usize, of: usize) -> gradus::Result<()> {
    let told = json!({ "done": done, "of": of }).to_string();
    file.write(|file| file.write_all(told.as_bytes()))
}

/// The file that is told how many answers there are: a new one, or one that was told that before.
fn told(path: &Path, overwrite: bool) -> gradus::Result<OutputFile> {
    let is_ours = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let found: Option<Value> = serde_json::from_str(&text).ok();
        found.is_some_and(|found| found["done"].is_u64() && found["of"].is_u64())
    };
    Outputs::new(overwrite).file_unless(path, is_ours)?;
    // It is written many times: from here on what is there is ours.
    Outputs::new(true).file(path)
}

/// Does what the verb says.
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
                device,
                ..
            } = *args;
            let progress = progress.map(|path| told(&path, args.overwrite)).transpose()?;
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
                if let Some(Err(error)) = progress.as_ref().map(|file| tell(file, done, of)) {
                    out.warn(error);
                }
            })?;
            drop(bar);
            out.result(&json!({ "project": new.name, "tasks": tasks }), || {
                let many = if tasks == 1 { "" } else { "s" };
                format!("`{}` has {tasks} task{many}; `gradus annotate invite NAME` lets people in", new.name)
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
            out.result(&json!({ "name": name, "role": role.name(), "token": token }), || token.clone())
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
                0 => format!("no open task of `{name}` fits"),
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
            Number::Value(right) => format!(", {right:.3} of what is known right, {} not attentive", work.inattentive),
            Number::Undefined(_) => String::new(),
        };
        let _ = writeln!(
            text,
            "{}: {} done, {} skipped, median {median} s, {fast} too fast{known}",
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
