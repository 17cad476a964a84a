//! Projects as commands make and read them, without a server.

use std::path::Path;

use gradus::device::DeviceChoice;
use gradus::files::output::OutputFile;
use gradus::generate::SamplingParams;
use gradus::inference::{Prompts, SampleOptions, ScoreOptions, Scored, model_of, rewards, sample};
use gradus::model::{Precision, WeightFormat};
use gradus::pretrained::TextFiles;
use gradus::rng::Seed;
use gradus::{Error, Result};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::export::{self, Form};
use super::foreign::{self, Tool};
use super::labels::LabelSet;
use super::rank::pairs;
use super::stats::{self, Stats};
use super::task::{ANSWERS, Expected, Task, tasks};
use crate::passing::Passing;
use crate::secret::secret;
use crate::store::projects::{Project, Role, State};
use crate::store::{self, Store};

/// A project that is to be.
#[derive(Debug, Clone)]
pub struct NewProject {
    /// Its name.
    pub name: String,
    /// The data: a file, a directory or a hub name.
    pub data: String,
    /// What is asked: a label set that comes along, or a YAML file.
    pub labels: String,
    /// How many people look at each task.
    pub annotators: usize,
    /// For how many minutes a task belongs to somebody who does nothing with it.
    pub lease_minutes: u32,
    /// At most so many tasks.
    pub max_tasks: Option<usize>,
    /// Models that answer the questions in place of the answers of the data.
    pub sampled: Option<Answering>,
    /// A reward model whose uncertainty orders the queue; without one it is as the data.
    pub uncertain_to: Option<String>,
    /// Where models are computed.
    pub device: DeviceChoice,
}

/// How models answer.
#[derive(Debug, Clone)]
pub struct Answering {
    /// The models: directories, runs or hub names.
    pub models: Vec<String>,
    /// Answers of each.
    pub each: usize,
    /// The longest answer in tokens.
    pub max_new_tokens: usize,
    /// The sampling temperature.
    pub temperature: f32,
    /// The seed of every random stream.
    pub seed: u64,
}

/// Prompts that a model answers together: `progress` hears of answers as often.
const AT_ONCE: usize = 16;

/// Makes a project in `folder`; how many tasks it has. `progress` hears how many of how many answers there are, where models answer.
///
/// # Errors
/// When the data or the label set is wrong, or the name is taken.
pub fn new_project(folder: &Path, new: &NewProject, progress: &mut dyn FnMut(usize, usize)) -> Result<usize> {
    // The folder stays as it is where the name or the label set is wrong.
    check_name(&new.name)?;
    LabelSet::open(&new.labels)?;
    make_project(folder, &Store::open(folder)?, new, progress)
}

/// The same in a folder whose file is open.
///
/// # Errors
/// As [`new_project`].
pub fn make_project(
    folder: &Path,
    store: &Store,
    new: &NewProject,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<usize> {
    check_name(&new.name)?;
    let labels = LabelSet::open(&new.labels)?;
    // Before models are asked, which takes long.
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
        let expected = task.expected.as_ref().map(Expected::as_answer).unwrap_or_default();
        if let Some(problem) = expected.broken(&labels, task).first() {
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

/// Makes a project in `folder` of another tool's file, with what people said there; how many tasks and annotations it has, and how
/// many of these are not finished by the rules of the label set.
///
/// # Errors
/// When the file or the label set is wrong, they do not fit, or the name is taken.
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
    let annotations = items.iter().map(|item| item.said.len()).sum();
    match Store::open(folder)?.projects().import(name, &labels, annotators, &items)? {
        Some(open) => Ok((items.len(), annotations, open)),
        None => Err(taken(name)),
    }
}

fn taken(name: &str) -> Error {
    Error::input(format!("there is a project `{name}` already"))
}

/// Has each model answer each question.
fn answered(
    tasks: &mut [Task],
    new: &NewProject,
    answering: &Answering,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<()> {
    let total = answering.models.len() * answering.each;
    if total == 0 || total > ANSWERS {
        return Err(Error::input(format!("{total} answers a task, but 1 to {ANSWERS} are needed")));
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
            at_once: Some(AT_ONCE),
            compute: Precision::F32,
            weights: WeightFormat::F32,
            text: TextFiles::default(),
            device: new.device.clone(),
        };
        let mut said = Vec::new();
        let before = place * tasks.len();
        let mut of_all = |done: usize, _: usize| progress((before + done) * answering.each, total * tasks.len());
        sample::<Error>(&options, &mut of_all, &mut |sampled| {
            said.push(sampled.completion.trim().to_owned());
            Ok(())
        })?;
        if said.len() != tasks.len() * answering.each {
            let (found, rows) = (said.len(), tasks.len());
            return Err(Error::input(format!("`{model}` gave {found} answers to the {rows} rows of `{}`", new.data)));
        }
        for (task, said) in tasks.iter_mut().zip(said.chunks(answering.each)) {
            task.answers.extend_from_slice(said);
            task.models.extend(vec![model.clone(); answering.each]);
        }
    }
    Ok(())
}

/// The tasks, those first of which a reward model can least tell which answer is better: there a person says most.
///
/// Of two answers that is σ(d) (1 − σ(d)) of the difference d of their rewards, the variance of the Bradley–Terry model; of several the
/// largest of all pairs.
fn by_uncertainty(tasks: Vec<Task>, judge: &str, folder: &Path, device: &DeviceChoice) -> Result<Vec<Task>> {
    if let Some(at) = tasks.iter().position(|task| task.answers.len() < 2) {
        return Err(Error::input(format!("task {} has one answer, but uncertainty is between two", at + 1)));
    }
    let rows = tasks.iter().flat_map(|task| {
        task.answers.iter().map(|answer| {
            Map::from_iter([("prompt".to_owned(), json!(task.question)), ("completion".to_owned(), json!(answer))])
        })
    });
    let rows: Vec<Map<String, Value>> = rows.collect();
    let passing = Passing(folder.join(format!(".{}.jsonl", secret())));
    gradus::data::write_rows(&OutputFile::new(&passing.0)?, &rows)?;
    let options = ScoreOptions {
        model: model_of(Path::new(judge))?.to_string_lossy().into_owned(),
        adapter: None,
        data: passing.0.to_string_lossy().into_owned(),
        add_eos: None,
        rename: Vec::new(),
        max_rows: None,
        text: TextFiles::default(),
        device: device.clone(),
    };
    let mut scores: Vec<f64> = Vec::new();
    rewards::<Error>(&options, &mut |_, _| {}, &mut |scored| {
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
    // A stable sort: those alike stay in the order of the data.
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

/// Whether a project can be called so.
///
/// # Errors
/// When it cannot.
pub fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if name.is_empty()
        || !name.chars().all(is_plain)
        || name.starts_with('.')
        || ["enter", "leave", "compare"].contains(&name)
    {
        let error = Error::input(format!("`{name}` is no name for a project"));
        return Err(error.with_hint("letters, digits, `-`, `_` and `.` make one"));
    }
    Ok(())
}

/// Invites someone into the projects of `folder`, or gives them a new token; the token.
///
/// # Errors
/// When it cannot be kept.
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
            "there is none here; `--folder` looks elsewhere".to_owned()
        } else {
            format!("there is {}", known.join(", "))
        };
        Error::input(format!("there is no project `{name}`")).with_hint(hint)
    })
}

/// Ends the claims of people on tasks that they have open, of one task or all and of one person or all; how many. What they marked so
/// far is kept.
///
/// # Errors
/// When there is no such project.
pub fn release_tasks(folder: &Path, name: &str, task: Option<usize>, person: Option<&str>) -> Result<usize> {
    let store = Store::open(folder)?;
    store.projects().release(find(&store, name)?.id, task, person)
}

/// The rows of a project.
///
/// # Errors
/// When there is no such project.
pub fn export_project(folder: &Path, name: &str, form: Form) -> Result<Vec<Map<String, Value>>> {
    let store = Store::open(folder)?;
    export::rows(&store, &find(&store, name)?, form)
}

/// A project in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// Its name.
    pub name: String,
    /// How many tasks it has.
    pub tasks: usize,
    /// How many people look at each task.
    pub annotators: usize,
    /// Finished annotations.
    pub done: usize,
}

impl Overview {
    fn of(store: &Store, project: Project) -> Result<Self> {
        let said = store.projects().annotations(project.id)?;
        let done = said.iter().filter(|said| said.state == State::Done).count();
        let Project { name, tasks, annotators, .. } = project;
        Ok(Self { name, tasks, annotators, done })
    }
}

/// The projects of a folder, by name. A folder without any stays as it is.
///
/// # Errors
/// When its file cannot be read.
pub fn projects(folder: &Path) -> Result<Vec<Overview>> {
    if !folder.join(store::FILE).exists() {
        return Ok(Vec::new());
    }
    let store = Store::open(folder)?;
    let found = store.projects().list()?;
    found.into_iter().map(|project| Overview::of(&store, project)).collect()
}

/// One project.
///
/// # Errors
/// When there is no such project.
pub fn project_overview(folder: &Path, name: &str) -> Result<Overview> {
    let store = Store::open(folder)?;
    Overview::of(&store, find(&store, name)?)
}

/// Removes a project with its tasks and everything that people said of them. People keep their names and tokens.
///
/// # Errors
/// When there is no such project.
pub fn remove_project(folder: &Path, name: &str) -> Result<()> {
    let store = Store::open(folder)?;
    store.projects().remove(find(&store, name)?.id)
}

/// How a project stands.
///
/// # Errors
/// When there is no such project.
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
