//! Annotation projects: label sets, tasks, people, annotations.

mod claims;
mod decisions;
mod people;
mod person;
mod saves;

pub use claims::LEASE_MINUTES;
pub use person::{Person, Role};
pub use saves::{Annotation, AnnotationState, Save, Saved};

use gradus::Result;
use rusqlite::{OptionalExtension, Row, Transaction, params};
use serde::Serialize;

use super::sessions::sum;
use super::{Store, now};
use crate::annotate::foreign::Imported;
use crate::annotate::labels::LabelSet;
use crate::annotate::shown::Shown;
use crate::annotate::task::Task;
use crate::secret::secret;

pub(super) const TABLES: &str = "
    CREATE TABLE people (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        token TEXT NOT NULL,
        role TEXT NOT NULL
    );
    CREATE TABLE signed_in (
        session TEXT PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
        person INTEGER NOT NULL REFERENCES people (id) ON DELETE CASCADE
    );
    CREATE TABLE projects (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        labels TEXT NOT NULL,
        -- How many people look at each task.
        annotators INTEGER NOT NULL
    );
    CREATE TABLE tasks (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        project INTEGER NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
        -- From 1, in the order of the data.
        number INTEGER NOT NULL,
        given TEXT NOT NULL,
        UNIQUE (project, number)
    );
    CREATE TABLE annotations (
        task INTEGER NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
        person INTEGER NOT NULL REFERENCES people (id) ON DELETE CASCADE,
        answer TEXT NOT NULL,
        -- open, done, skipped
        state TEXT NOT NULL,
        reason TEXT NOT NULL,
        seconds REAL NOT NULL,
        changed INTEGER NOT NULL,
        PRIMARY KEY (task, person)
    );
    CREATE INDEX annotations_of ON annotations (person, state);
";

/// Decisions of reviewers, and tasks for everyone.
pub(super) const VERDICTS: &str = "
    ALTER TABLE tasks ADD COLUMN everyone INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE verdicts (
        task INTEGER PRIMARY KEY REFERENCES tasks (id) ON DELETE CASCADE,
        person INTEGER NOT NULL REFERENCES people (id) ON DELETE CASCADE,
        answer TEXT NOT NULL,
        -- open, done
        state TEXT NOT NULL,
        changed INTEGER NOT NULL
    );
";

/// Leases, revisions, and the presentation of answers.
const SHOWN: &str = "
    -- For how many minutes a task belongs to somebody who does nothing with it.
    ALTER TABLE projects ADD COLUMN lease_minutes INTEGER NOT NULL DEFAULT 30;
    -- JSON: the letters and sides of the answers; none of annotations of other tools.
    ALTER TABLE annotations ADD COLUMN shown TEXT;
    -- How often it was saved, and by which page last.
    ALTER TABLE annotations ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE annotations ADD COLUMN page TEXT NOT NULL DEFAULT '';
    ALTER TABLE verdicts ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE verdicts ADD COLUMN page TEXT NOT NULL DEFAULT '';
    UPDATE annotations SET revision = 1 WHERE state <> 'open' OR seconds > 0;
    UPDATE verdicts SET revision = 1;
";

/// Adds these columns. Earlier versions derived the presentation from a hash; now it is stored.
pub(super) fn store_what_was_shown(change: &Transaction<'_>) -> rusqlite::Result<()> {
    change.execute_batch(SHOWN)?;
    let mut found = change.prepare(
        "SELECT task, person, tasks.number, people.name, given FROM annotations
         JOIN tasks ON tasks.id = task JOIN people ON people.id = person",
    )?;
    let row = |row: &Row<'_>| {
        let (task, person): (i64, i64) = (row.get(0)?, row.get(1)?);
        let given: Task = read(row, 4)?;
        let shown = Shown::of_version_6(given.answers.len(), &row.get::<_, String>(3)?, count(row, 2)?);
        Ok((task, person, json(&shown)))
    };
    let rows = found.query_map([], row)?.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut update = change.prepare("UPDATE annotations SET shown = ?3 WHERE task = ?1 AND person = ?2")?;
    rows.iter().try_for_each(|(task, person, shown)| update.execute(params![task, person, shown]).map(drop))
}

/// An annotation project.
#[derive(Debug, Clone, PartialEq)]
pub struct Project {
    /// Id of the project.
    pub id: i64,
    /// Name of the project.
    pub name: String,
    /// Label set.
    pub labels: LabelSet,
    /// Number of people per task.
    pub annotators: usize,
    /// Minutes until an open task without activity is released.
    pub lease_minutes: u32,
    /// Number of tasks.
    pub tasks: usize,
}

/// All annotation projects.
pub struct Projects<'a>(pub(super) &'a Store);

fn broken(column: usize, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error.into())
}

fn read<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    serde_json::from_str(&row.get::<_, String>(column)?).map_err(|error| broken(column, error))
}

/// Reads a number that is never negative.
fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<usize> {
    let count: i64 = row.get(column)?;
    usize::try_from(count).map_err(|error| broken(column, error))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("numbers and texts are JSON")
}

const PROJECT: &str = "SELECT id, name, labels, annotators, lease_minutes, (SELECT coalesce(max(number), 0) FROM tasks WHERE project = projects.id) FROM projects";

fn project(row: &Row<'_>) -> rusqlite::Result<Project> {
    Ok(Project {
        id: row.get(0)?,
        name: row.get(1)?,
        labels: read(row, 2)?,
        annotators: count(row, 3)?,
        lease_minutes: row.get(4)?,
        tasks: count(row, 5)?,
    })
}

impl Projects<'_> {
    /// Creates a project. Returns whether the name was free. Tasks without activity are released after `lease_minutes`.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn begin(
        &self,
        name: &str,
        labels: &LabelSet,
        annotators: usize,
        lease_minutes: u32,
        tasks: &[Task],
    ) -> Result<bool> {
        self.0.change(|open| {
            let Some(id) = begin(open, name, labels, annotators, tasks)? else { return Ok(false) };
            open.execute("UPDATE projects SET lease_minutes = ?2 WHERE id = ?1", params![id, lease_minutes])?;
            Ok(true)
        })
    }

    /// Creates a project with annotations from elsewhere. Returns the number of unfinished annotations, or `None` if the name is taken.
    /// Unknown people get an account without a token.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn import(
        &self,
        name: &str,
        labels: &LabelSet,
        annotators: usize,
        items: &[Imported],
    ) -> Result<Option<usize>> {
        let tasks: Vec<Task> = items.iter().map(|item| item.task.clone()).collect();
        self.0.change(|open| {
            let Some(id) = begin(open, name, labels, annotators, &tasks)? else { return Ok(None) };
            let mut unfinished = 0;
            for (i, item) in items.iter().enumerate() {
                let sought = "SELECT id FROM tasks WHERE project = ?1 AND number = ?2";
                let task: i64 = open.query_row(sought, params![id, (i + 1) as i64], |row| row.get(0))?;
                for (name, answer, seconds) in &item.annotations {
                    let stranger = params![name, sum(&secret()), Role::Annotator.name()];
                    open.execute("INSERT OR IGNORE INTO people (name, token_sum, role) VALUES (?1, ?2, ?3)", stranger)?;
                    let by: i64 = open.query_row("SELECT id FROM people WHERE name = ?1", [name], |row| row.get(0))?;
                    let is_done = answer.problems(labels, &item.task, &Shown::as_given(item.task.answers.len())).is_empty();
                    unfinished += usize::from(!is_done);
                    let state = if is_done { AnnotationState::Done } else { AnnotationState::Open };
                    let row = params![task, by, json(answer), state.name(), seconds, now()];
                    open.execute(
                        "INSERT OR REPLACE INTO annotations (task, person, answer, state, reason, seconds, changed, revision)
                         VALUES (?1, ?2, ?3, ?4, '', ?5, ?6, 1)",
                        row,
                    )?;
                }
            }
            Ok(Some(unfinished))
        })
    }

    /// Returns all projects, by name.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn list(&self) -> Result<Vec<Project>> {
        self.0.read(|open| open.prepare(&format!("{PROJECT} ORDER BY name"))?.query_map([], project)?.collect())
    }

    /// Returns the project `name`.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn find(&self, name: &str) -> Result<Option<Project>> {
        self.0.read(|open| open.query_row(&format!("{PROJECT} WHERE name = ?1"), [name], project).optional())
    }

    /// Removes a project with its tasks and annotations.
    ///
    /// # Errors
    /// The database cannot be changed.
    pub fn remove(&self, project: i64) -> Result<()> {
        self.0.change(|open| open.execute("DELETE FROM projects WHERE id = ?1", [project]).map(drop))
    }

    /// Returns a task by its number, from 1.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn task(&self, project: i64, number: usize) -> Result<Option<Task>> {
        self.0.read(|open| {
            let sought = "SELECT given FROM tasks WHERE project = ?1 AND number = ?2";
            open.query_row(sought, params![project, number as i64], |row| read(row, 0)).optional()
        })
    }

    /// Returns all tasks in order.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn tasks(&self, project: i64) -> Result<Vec<Task>> {
        self.0.read(|open| {
            let mut found = open.prepare("SELECT given FROM tasks WHERE project = ?1 ORDER BY number")?;
            found.query_map([project], |row| read(row, 0))?.collect()
        })
    }
}

/// Creates a project with its tasks. `None` if the name is taken.
fn begin(
    open: &Transaction<'_>,
    name: &str,
    labels: &LabelSet,
    annotators: usize,
    tasks: &[Task],
) -> rusqlite::Result<Option<i64>> {
    let row = params![name, json(labels), annotators as i64];
    let made = open.execute("INSERT OR IGNORE INTO projects (name, labels, annotators) VALUES (?1, ?2, ?3)", row)?;
    if made == 0 {
        return Ok(None);
    }
    let id = open.last_insert_rowid();
    let mut insert = open.prepare("INSERT INTO tasks (project, number, given, everyone) VALUES (?1, ?2, ?3, ?4)")?;
    for (i, task) in tasks.iter().enumerate() {
        insert.execute(params![id, (i + 1) as i64, json(task), task.is_for_everyone()])?;
    }
    Ok(Some(id))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Creates a task with two answers.
    pub fn task(question: &str) -> Task {
        Task {
            question: question.into(),
            passages: Vec::new(),
            reference: String::new(),
            answers: vec!["a".into(), "b".into()],
            models: Vec::new(),
            expected: None,
            attention: false,
            original: None,
        }
    }

    /// Creates a person who has signed in.
    pub fn signed_in(store: &Store, name: &str) -> Person {
        let token = store.projects().invite(name, Role::Annotator).expect("kept");
        let before = store.sessions().begin();
        assert!(store.projects().sign_in(&before, name, &token[1..]).expect("read").is_none());
        assert_eq!(store.projects().who(&before).expect("read"), None);
        let session = store.projects().sign_in(&before, name, &token).expect("kept").expect("signed in");
        assert_eq!(store.projects().who(&before).expect("read"), None, "who knew the session before is not in");
        store.projects().who(&session).expect("read").expect("signed in")
    }
}
