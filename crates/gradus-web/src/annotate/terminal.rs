//! Projects for the command line, without a server.

use std::path::Path;

use gradus::data::BadRows;
use gradus::device::DeviceChoice;
use gradus::files::output::OutputFile;
use gradus::generate::SamplingParams;
use gradus::inference::{Prompts, SampleOptions, ScoreOptions, Scored, model_of, rewards, sample};
use gradus::model::{Precision, WeightFormat};
use gradus::pretrained::TextFiles;
use gradus::rng::Seed;
use gradus::{Error, Result};
use serde::Serialize;
use serde_json::{Map, Value};

use super::export::{self, Form};
use super::foreign::{self, Tool};
use super::labels::LabelSet;
use super::rank::pairs;
use super::stats::{self, Stats};
use super::task::{ANSWERS, Task, tasks};
use crate::secret::secret;
use crate::store::projects::{AnnotationState, Project, Role};
use crate::store::{self, Store};
use crate::temp_file::TempFile;

/// Settings of a new project.
#[derive(Debug, Clone)]
pub struct NewProject {
    /// Name of the project.
    pub name: String,
    /// Data: a file, a directory or a hub name.
    pub data: String,
    /// Questions: a built-in label set, or a YAML file.
    pub labels: String,
    /// Number of people per task.
    pub annotators: usize,
    /// Minutes after which an open task without activity is released.
    pub lease_minutes: u32,
    /// Maximum number of tasks.
    pub max_tasks: Option<usize>,
    /// Models that answer the questions instead of the data's answers.
    pub sampled: Option<Answering>,
    /// Reward model whose uncertainty orders the queue. Without one, the queue has the order of the data.
    pub uncertain_to: Option<String>,
    /// Device of the models.
    pub device: DeviceChoice,
}

/// Settings of the models' answers.
#[derive(Debug, Clone)]
pub struct Answering {
    /// Models: directories, runs or hub names.
    pub models: Vec<String>,
    /// Number of answers per model.
    pub each: usize,
    /// Maximum length of an answer in tokens.
    pub max_new_tokens: usize,
    /// Sampling temperature.
    pub temperature: f32,
    /// Seed of every random stream.
    pub seed: u64,
}

/// Number of prompts that a model answers together. `progress` is called after each batch.
const AT_ONCE: usize = 16;

/// Creates a project in `folder` and returns its number of tasks. If models answer, `progress` receives the number of answers so far and in
/// total.
///
/// # Errors
/// The data or the label set is invalid, or the name is taken.
pub fn new_project(folder: &Path, new: &NewProject, progress: &mut dyn FnMut(usize, usize)) -> Result<usize> {
    // An invalid name or label set leaves the folder unchanged.
    check_name(&new.name)?;
    LabelSet::open(&new.labels)?;
    make_project(folder, &Store::open(folder)?, new, progress)
}

/// Creates a project in a folder whose database is open.
///
/// # Errors
/// Same as [`new_project`].
pub fn make_project(
    folder: &Path,
    store: &Store,
    new: &NewProject,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<usize> {
    check_name(&new.name)?;
    let labels = LabelSet::open(&new.labels)?;
    // Checked before the models answer, which takes long.
    if store.projects().find(&new.name)?.is_some() {
        return Err(taken(&new.name));
    }
    let mut tasks = tasks(&new.data, new.max_tasks, new.sampled.is_none())?;
    if let Some(answering) = &new.sampled {
        answered(&mut tasks, new, answering, progress)?;
    }
    if labels.comparison
        && let Some(at) = tasks.iter().position(|task| task.answers.len() < 2)
    {
        return Err(Error::input(format!("row {} of `{}` has one answer, but comparisons need two", at + 1, new.data)));
    }
    for (at, task) in tasks.iter().enumerate() {
        if let Some(problem) = task.expected_problem(&labels) {
            return Err(Error::input(format!("row {} of `{}`, `expected`: {problem}", at + 1, new.data)));
        }
    }
    if let Some(judge) = &new.uncertain_to {
        tasks = by_uncertainty(tasks, judge, folder, &new.device)?;
    }
    match store.projects().begin(&new.name, &labels, new.annotators, new.lease_minutes, &tasks)? {
        true => Ok(tasks.len()),
        false => Err(taken(&new.name)),
    }
}

/// Creates a project in `folder` from another tool's file, including its annotations. Returns the numbers of tasks, of annotations, and of
/// annotations that are unfinished by the rules of the label set.
///
/// # Errors
/// The file or the label set is invalid, they do not match, or the name is taken.
pub fn import_project(
    folder: &Path,
    name: &str,
    tool: Tool,
    (file, labels): (&str, &str),
    annotators: usize,
) -> Result<(usize, usize, usize)> {
    check_name(name)?;
    let labels = LabelSet::open(labels)?;
    let items = foreign::read(tool, file, &labels)?;
    let annotations = items.iter().map(|item| item.annotations.len()).sum();
    match Store::open(folder)?.projects().import(name, &labels, annotators, &items)? {
        Some(open) => Ok((items.len(), annotations, open)),
        None => Err(taken(name)),
    }
}

fn taken(name: &str) -> Error {
    Error::input(format!("there is a project `{name}` already"))
}

/// Lets each model answer each question.
fn answered(
    tasks: &mut [Task],
    new: &NewProject,
    answering: &Answering,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<()> {
    let total = answering.models.len() * answering.each;
    if total == 0 || total > ANSWERS {
        return Err(Error::input(format!("{total} answers per task, but 1 to {ANSWERS} are needed")));
    }
    tasks.iter_mut().for_each(|task| task.answers.clear());
    for (place, model) in answering.models.iter().enumerate() {
        let options = SampleOptions {
            model: model_of(Path::new(model))?.to_string_lossy().into_owned(),
            adapter: None,
            prompts: Prompts::Data(new.data.clone()),
            params: SamplingParams {
                temperature: answering.temperature,
                max_new_tokens: answering.max_new_tokens,
                ..SamplingParams::default()
            },
            group_size: answering.each,
            beams: None,
            stop: Vec::new(),
            seed: Seed(answering.seed),
            rename: Vec::new(),
            max_rows: Some(tasks.len()),
            bad_rows: BadRows::Fail,
            at_once: Some(AT_ONCE),
            compute: Precision::F32,
            weights: WeightFormat::F32,
            text: TextFiles::default(),
            device: new.device.clone(),
        };
        let mut answers = Vec::new();
        let before = place * tasks.len();
        let mut of_all = |done: usize, _: usize| progress((before + done) * answering.each, total * tasks.len());
        sample::<Error>(&options, &mut of_all, &mut |sampled| {
            answers.push(sampled.completion.trim().to_owned());
            Ok(())
        })?;
        if answers.len() != tasks.len() * answering.each {
            let (found, rows) = (answers.len(), tasks.len());
            return Err(Error::input(format!("`{model}` gave {found} answers to the {rows} rows of `{}`", new.data)));
        }
        for (task, answers) in tasks.iter_mut().zip(answers.chunks(answering.each)) {
            task.answers.extend_from_slice(answers);
            task.models.extend(vec![model.clone(); answering.each]);
        }
    }
    Ok(())
}

/// Orders the tasks by uncertainty: first those whose answers a reward model can hardly distinguish, because a person's answer is most
/// informative there.
///
/// For two answers, the uncertainty is σ(d) (1 − σ(d)) of the difference d of their rewards, the variance in the Bradley–Terry model. For
/// more answers, it is the maximum over all pairs.
fn by_uncertainty(tasks: Vec<Task>, judge: &str, folder: &Path, device: &DeviceChoice) -> Result<Vec<Task>> {
    if let Some(at) = tasks.iter().position(|task| task.answers.len() < 2) {
        return Err(Error::input(format!("task {} has one answer, but uncertainty needs two", at + 1)));
    }
    let rows = tasks.iter().flat_map(|task| {
        (0..task.answers.len()).map(move |at| {
            Map::from_iter([("prompt".to_owned(), task.prompt()), ("completion".to_owned(), task.answer(at))])
        })
    });
    let rows: Vec<Map<String, Value>> = rows.collect();
    let passing = TempFile(folder.join(format!(".{}.jsonl", secret())));
    gradus::data::write_rows(&OutputFile::new(&passing.0)?, &rows)?;
    let options = ScoreOptions {
        model: model_of(Path::new(judge))?.to_string_lossy().into_owned(),
        adapter: None,
        data: passing.0.to_string_lossy().into_owned(),
        add_eos: None,
        rename: Vec::new(),
        max_rows: None,
        bad_rows: BadRows::Fail,
        text: TextFiles::default(),
        device: device.clone(),
    };
    let mut scores: Vec<f64> = Vec::new();
    rewards::<Error>(&options, &mut |_, _| {}, &mut |_, scored| {
        match scored {
            Scored::One(row) => scores.push(f64::from(row.reward)),
            Scored::Pair { .. } => return Err(Error::input("a row became a pair")),
        }
        Ok(())
    })?;
    let mut rest = scores.as_slice();
    let mut ranked: Vec<(f64, Task)> = Vec::new();
    for task in tasks {
        let (own, others) = rest.split_at(task.answers.len());
        rest = others;
        ranked.push((uncertainty(own), task));
    }
    // The sort is stable, so equal tasks keep the order of the data.
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    Ok(ranked.into_iter().map(|(_, task)| task).collect())
}

fn uncertainty(rewards: &[f64]) -> f64 {
    let of = |(one, other): (usize, usize)| {
        let better = 1.0 / (1.0 + (rewards[other] - rewards[one]).exp());
        better * (1.0 - better)
    };
    pairs(rewards.len()).into_iter().map(of).fold(0.0, f64::max)
}

/// Checks the name of a project.
///
/// # Errors
/// The name is not allowed.
pub fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if name.is_empty()
        || !name.chars().all(is_plain)
        || name.starts_with('.')
        || ["enter", "leave", "compare"].contains(&name)
    {
        let error = Error::input(format!("`{name}` cannot be the name of a project"));
        return Err(error.with_hint("use letters, digits, `-`, `_` and `.`"));
    }
    Ok(())
}

/// Invites a person to the projects of `folder`, or issues a new token. Returns the token.
///
/// # Errors
/// The token cannot be stored.
pub fn invite(folder: &Path, name: &str, role: Role) -> Result<String> {
    if name.trim().is_empty() {
        return Err(Error::input("a name is needed"));
    }
    Store::open(folder)?.projects().invite(name.trim(), role)
}

fn find(store: &Store, name: &str) -> Result<Project> {
    store.projects().find(name)?.ok_or_else(|| {
        let known = store.projects().list().unwrap_or_default();
        let known: Vec<String> = known.iter().map(|project| format!("`{}`", project.name)).collect();
        let hint = if known.is_empty() {
            "the folder has no projects; `--folder` sets another folder".to_owned()
        } else {
            format!("the folder has {}", known.join(", "))
        };
        Error::input(format!("there is no project `{name}`")).with_hint(hint)
    })
}

/// Ends claims on open tasks, of one task or all tasks and of one person or all people. Returns their number. Drafts are kept.
///
/// # Errors
/// The project does not exist.
pub fn release_tasks(folder: &Path, name: &str, task: Option<usize>, person: Option<&str>) -> Result<usize> {
    let store = Store::open(folder)?;
    store.projects().release(find(&store, name)?.id, task, person)
}

/// Returns the rows of a project.
///
/// # Errors
/// The project does not exist.
pub fn export_project(folder: &Path, name: &str, form: Form) -> Result<Vec<Map<String, Value>>> {
    let store = Store::open(folder)?;
    export::rows(&store, &find(&store, name)?, form)
}

/// A project in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// Name of the project.
    pub name: String,
    /// Number of tasks.
    pub tasks: usize,
    /// Number of people per task.
    pub annotators: usize,
    /// Number of finished annotations.
    pub done: usize,
}

impl Overview {
    fn of(store: &Store, project: Project) -> Result<Self> {
        let annotations = store.projects().annotations(project.id)?;
        let done = annotations.iter().filter(|annotation| annotation.state == AnnotationState::Done).count();
        let Project { name, tasks, annotators, .. } = project;
        Ok(Self { name, tasks, annotators, done })
    }
}

/// Returns the projects of a folder, by name. A folder without a database stays unchanged.
///
/// # Errors
/// The database cannot be read.
pub fn projects(folder: &Path) -> Result<Vec<Overview>> {
    if !folder.join(store::FILE).exists() {
        return Ok(Vec::new());
    }
    let store = Store::open(folder)?;
    let found = store.projects().list()?;
    found.into_iter().map(|project| Overview::of(&store, project)).collect()
}

/// Returns one project.
///
/// # Errors
/// The project does not exist.
pub fn project_overview(folder: &Path, name: &str) -> Result<Overview> {
    let store = Store::open(folder)?;
    Overview::of(&store, find(&store, name)?)
}

/// Removes a project with its tasks and annotations. People keep their names and tokens.
///
/// # Errors
/// The project does not exist.
pub fn remove_project(folder: &Path, name: &str) -> Result<()> {
    let store = Store::open(folder)?;
    store.projects().remove(find(&store, name)?.id)
}

/// Returns the statistics of a project.
///
/// # Errors
/// The project does not exist.
pub fn project_stats(folder: &Path, name: &str) -> Result<Stats> {
    let store = Store::open(folder)?;
    stats::stats(&store, &find(&store, name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_as_good_are_the_least_certain() {
        assert_eq!(uncertainty(&[1.0, 1.0]), 0.25);
        assert!(uncertainty(&[0.0, 9.0]) < 1e-3);
        assert_eq!(uncertainty(&[-9.0, 2.0, 9.0, 2.0]), 0.25, "one pair is enough");
        assert_eq!(uncertainty(&[1.0]), 0.0);
    }
}
