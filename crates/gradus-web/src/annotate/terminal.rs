//! Projects as commands make and read them, without a server.

use std::path::Path;

use gradus::{Error, Result};
use serde_json::{Map, Value};

use super::export::{self, Form};
use super::labels::LabelSet;
use super::stats::{self, Stats};
use super::task::tasks;
use crate::store::Store;
use crate::store::projects::{Project, Role};

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
    /// At most so many tasks.
    pub max_tasks: Option<usize>,
}

/// Makes a project in `folder`; how many tasks it has.
///
/// # Errors
/// When the data or the label set is wrong, or the name is taken.
pub fn new_project(folder: &Path, new: &NewProject) -> Result<usize> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if new.name.is_empty()
        || !new.name.chars().all(is_plain)
        || new.name.starts_with('.')
        || new.name == "enter"
        || new.name == "leave"
    {
        let error = Error::input(format!("`{}` is no name for a project", new.name));
        return Err(error.with_hint("letters, digits, `-`, `_` and `.` make one"));
    }
    let labels = LabelSet::open(&new.labels)?;
    let tasks = tasks(&new.data, new.max_tasks)?;
    if labels.comparison
        && let Some(at) = tasks.iter().position(|task| task.answers.len() < 2)
    {
        return Err(Error::input(format!("row {} of `{}` has one answer, but comparisons need two", at + 1, new.data)));
    }
    match Store::open(folder)?.projects().begin(&new.name, &labels, new.annotators, &tasks)? {
        true => Ok(tasks.len()),
        false => Err(Error::input(format!("there is a project `{}` already", new.name))),
    }
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

/// The rows of a project.
///
/// # Errors
/// When there is no such project.
pub fn export_project(folder: &Path, name: &str, form: Form) -> Result<Vec<Map<String, Value>>> {
    let store = Store::open(folder)?;
    export::rows(&store, &find(&store, name)?, form)
}

/// How a project stands.
///
/// # Errors
/// When there is no such project.
pub fn project_stats(folder: &Path, name: &str) -> Result<Stats> {
    let store = Store::open(folder)?;
    stats::stats(&store, &find(&store, name)?)
}
