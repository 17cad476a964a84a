//! Projects of annotations: what is asked, the tasks, the people, what they said.

use std::collections::BTreeMap;

use gradus::Result;
use rusqlite::{OptionalExtension, Row, Transaction, params};
use serde::{Deserialize, Serialize};

use super::sessions::{SIGNED_IN, Session, sum};
use super::{Store, chats, now};
use crate::annotate::answer::Answer;
use crate::annotate::foreign::Imported;
use crate::annotate::labels::LabelSet;
use crate::annotate::task::Task;
use crate::guard::{same, secret};

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

/// What reviewers decide, and tasks that everyone gets.
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

/// What someone may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Annotates.
    Annotator,
    /// Also sees what others said.
    Reviewer,
    /// Also exports.
    Owner,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Annotator, Self::Reviewer, Self::Owner];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Annotator => "annotator",
            Self::Reviewer => "reviewer",
            Self::Owner => "owner",
        }
    }

    /// The role of a word.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// Someone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// Their number.
    pub id: i64,
    /// Their name.
    pub name: String,
    /// What they may do.
    pub role: Role,
}

/// How an annotation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Begun.
    Open,
    /// Handed in.
    Done,
    /// Left out, with a reason.
    Skipped,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Done => "done",
            Self::Skipped => "skipped",
        }
    }

    fn of(name: &str) -> Self {
        [Self::Done, Self::Skipped].into_iter().find(|state| state.name() == name).unwrap_or(Self::Open)
    }
}

/// A project.
#[derive(Debug, Clone, PartialEq)]
pub struct Project {
    /// Its number.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// What is asked.
    pub labels: LabelSet,
    /// How many people look at each task.
    pub annotators: usize,
    /// How many tasks it has.
    pub tasks: usize,
}

/// What someone said of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Annotation {
    /// The task's number, from 1.
    pub task: usize,
    /// Who.
    pub person: String,
    /// What.
    pub answer: Answer,
    /// How it stands.
    pub state: State,
    /// Why it was left out.
    pub reason: String,
    /// How long they looked at it.
    pub seconds: f64,
}

/// The projects.
pub struct Projects<'a>(pub(super) &'a Store);

fn broken(column: usize, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error.into())
}

fn read<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    serde_json::from_str(&row.get::<_, String>(column)?).map_err(|error| broken(column, error))
}

/// A number that is never negative.
fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<usize> {
    let count: i64 = row.get(column)?;
    usize::try_from(count).map_err(|error| broken(column, error))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("numbers and texts are JSON")
}

const PROJECT: &str = "SELECT id, name, labels, annotators, (SELECT coalesce(max(number), 0) FROM tasks WHERE project = projects.id) FROM projects";

fn project(row: &Row<'_>) -> rusqlite::Result<Project> {
    Ok(Project {
        id: row.get(0)?,
        name: row.get(1)?,
        labels: read(row, 2)?,
        annotators: count(row, 3)?,
        tasks: count(row, 4)?,
    })
}

fn person(row: &Row<'_>) -> rusqlite::Result<Person> {
    let role: String = row.get(2)?;
    Ok(Person {
        id: row.get(0)?,
        name: row.get(1)?,
        role: Role::of(&role).ok_or_else(|| broken(2, "an unknown role"))?,
    })
}

fn annotation(row: &Row<'_>) -> rusqlite::Result<Annotation> {
    Ok(Annotation {
        task: count(row, 0)?,
        person: row.get(1)?,
        answer: read(row, 2)?,
        state: State::of(&row.get::<_, String>(3)?),
        reason: row.get(4)?,
        seconds: row.get(5)?,
    })
}

impl Projects<'_> {
    /// A new project; whether there was none of this name.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn begin(&self, name: &str, labels: &LabelSet, annotators: usize, tasks: &[Task]) -> Result<bool> {
        self.0.change(|open| Ok(begin(open, name, labels, annotators, tasks)?.is_some()))
    }

    /// A new project with what people said elsewhere; how many annotations are not finished by its rules, or nothing where the
    /// name is taken. Who is not known here gets a name without a way in.
    ///
    /// # Errors
    /// When it cannot be kept.
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
                let task = open.query_row(sought, params![id, (i + 1) as i64], |row| row.get(0))?;
                for (name, answer, seconds) in &item.said {
                    let stranger = params![name, sum(&secret()), Role::Annotator.name()];
                    open.execute("INSERT OR IGNORE INTO people (name, token_sum, role) VALUES (?1, ?2, ?3)", stranger)?;
                    let by = open.query_row("SELECT id FROM people WHERE name = ?1", [name], |row| row.get(0))?;
                    let is_done = answer.problems(labels, &item.task).is_empty();
                    unfinished += usize::from(!is_done);
                    let state = if is_done { State::Done } else { State::Open };
                    keep(open, task, by, answer, state, "", *seconds)?;
                }
            }
            Ok(Some(unfinished))
        })
    }

    /// All projects, by name.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn list(&self) -> Result<Vec<Project>> {
        self.0.read(|open| open.prepare(&format!("{PROJECT} ORDER BY name"))?.query_map([], project)?.collect())
    }

    /// The project `name`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn find(&self, name: &str) -> Result<Option<Project>> {
        self.0.read(|open| open.query_row(&format!("{PROJECT} WHERE name = ?1"), [name], project).optional())
    }

    /// Removes a project with its tasks and what was said of them.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn remove(&self, project: i64) -> Result<()> {
        self.0.change(|open| open.execute("DELETE FROM projects WHERE id = ?1", [project]).map(drop))
    }

    /// A task by its number, from 1.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn task(&self, project: i64, number: usize) -> Result<Option<Task>> {
        self.0.read(|open| {
            let sought = "SELECT given FROM tasks WHERE project = ?1 AND number = ?2";
            open.query_row(sought, params![project, number as i64], |row| read(row, 0)).optional()
        })
    }

    /// All tasks, in order.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn tasks(&self, project: i64) -> Result<Vec<Task>> {
        self.0.read(|open| {
            let mut found = open.prepare("SELECT given FROM tasks WHERE project = ?1 ORDER BY number")?;
            found.query_map([project], |row| read(row, 0))?.collect()
        })
    }

    /// Everything that was said in a project: by task, then by name.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn annotations(&self, project: i64) -> Result<Vec<Annotation>> {
        self.0.read(|open| {
            let mut found = open.prepare(
                "SELECT tasks.number, people.name, answer, state, reason, seconds FROM annotations
                 JOIN tasks ON tasks.id = task JOIN people ON people.id = person
                 WHERE project = ?1 ORDER BY tasks.number, people.name",
            )?;
            found.query_map([project], annotation)?.collect()
        })
    }

    /// What someone said of a task, if they did.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn annotation(&self, project: i64, number: usize, by: i64) -> Result<Option<Annotation>> {
        self.0.read(|open| {
            let sought = "SELECT tasks.number, people.name, answer, state, reason, seconds FROM annotations
                 JOIN tasks ON tasks.id = task JOIN people ON people.id = person
                 WHERE project = ?1 AND tasks.number = ?2 AND person = ?3";
            open.query_row(sought, params![project, number as i64, by], annotation).optional()
        })
    }

    /// The task that someone goes on with: one that they began, else the first that they have not seen and that has room for
    /// one more. Where it is new it is theirs from now on, so two people who ask at once do not get the same last place.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn next(&self, project: &Project, by: i64) -> Result<Option<usize>> {
        self.0.change(|open| {
            let begun = "SELECT number FROM annotations JOIN tasks ON tasks.id = task
                 WHERE project = ?1 AND person = ?2 AND state = 'open' ORDER BY number LIMIT 1";
            let begun = open.query_row(begun, [project.id, by], |row| count(row, 0)).optional()?;
            if begun.is_some() {
                return Ok(begun);
            }
            let fresh = "SELECT id, number FROM tasks WHERE project = ?1
                 AND NOT EXISTS (SELECT 1 FROM annotations WHERE task = tasks.id AND person = ?2)
                 AND (everyone OR (SELECT count(*) FROM annotations WHERE task = tasks.id AND state <> 'skipped') < ?3)
                 ORDER BY number LIMIT 1";
            let row = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, count(row, 1)?));
            let Some((id, number)) =
                open.query_row(fresh, params![project.id, by, project.annotators as i64], row).optional()?
            else {
                return Ok(None);
            };
            keep(open, id, by, &Answer::default(), State::Open, "", 0.0)?;
            Ok(Some(number))
        })
    }

    /// Keeps what someone says of a task; `seconds` are added to those before. Whether the task is theirs.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn keep(
        &self,
        project: i64,
        number: usize,
        by: i64,
        (answer, state, reason): (&Answer, State, &str),
        seconds: f64,
    ) -> Result<bool> {
        self.0.change(|open| {
            let own = "SELECT tasks.id FROM tasks JOIN annotations ON task = tasks.id
                 WHERE project = ?1 AND number = ?2 AND person = ?3";
            let Some(id) = open.query_row(own, params![project, number as i64, by], |row| row.get(0)).optional()?
            else {
                return Ok(false);
            };
            keep(open, id, by, answer, state, reason, seconds)?;
            Ok(true)
        })
    }

    /// What reviewers decided or began to, by task.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn verdicts(&self, project: i64) -> Result<BTreeMap<usize, Annotation>> {
        self.0.read(|open| {
            let mut found = open.prepare(
                "SELECT tasks.number, people.name, answer, state, '', 0.0 FROM verdicts
                 JOIN tasks ON tasks.id = task JOIN people ON people.id = person WHERE project = ?1",
            )?;
            let found = found.query_map([project], annotation)?;
            found.map(|said| said.map(|said| (said.task, said))).collect()
        })
    }

    /// Keeps what a reviewer decides of a task. Whether there is such a task.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn decide(&self, project: i64, number: usize, by: i64, answer: &Answer, state: State) -> Result<bool> {
        self.0.change(|open| {
            let kept = open.execute(
                "INSERT INTO verdicts (task, person, answer, state, changed)
                 SELECT id, ?3, ?4, ?5, ?6 FROM tasks WHERE project = ?1 AND number = ?2
                 ON CONFLICT (task) DO UPDATE SET person = excluded.person, answer = excluded.answer,
                 state = excluded.state, changed = excluded.changed",
                params![project, number as i64, by, json(answer), state.name(), now()],
            )?;
            Ok(kept > 0)
        })
    }

    /// How many tasks of a project someone has done and skipped.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn progress(&self, project: i64, by: i64) -> Result<(usize, usize)> {
        self.0.read(|open| {
            let counted = "SELECT count(*) FILTER (WHERE state = 'done'), count(*) FILTER (WHERE state = 'skipped')
                 FROM annotations JOIN tasks ON tasks.id = task WHERE project = ?1 AND person = ?2";
            open.query_row(counted, [project, by], |row| Ok((count(row, 0)?, count(row, 1)?)))
        })
    }

    /// A new person, or a new token for one that is there, whose sessions end; the token.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn invite(&self, name: &str, role: Role) -> Result<String> {
        let token = secret();
        self.0.change(|open| {
            let row = params![name, sum(&token), role.name()];
            open.execute(
                "INSERT INTO people (name, token_sum, role) VALUES (?1, ?2, ?3)
                 ON CONFLICT (name) DO UPDATE SET token_sum = excluded.token_sum, role = excluded.role",
                row,
            )?;
            let ended = "DELETE FROM signed_in WHERE person = (SELECT id FROM people WHERE name = ?1)";
            open.execute(ended, [name])
        })?;
        Ok(token)
    }

    /// Signs somebody in; their new session, or nothing where name and token do not belong together. The session has a new
    /// secret, so whoever knew that of `before` is not signed in. What was said in `before` belongs to the person from now on.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn sign_in(&self, before: &Session, name: &str, token: &str) -> Result<Option<Session>> {
        let session = self.0.sessions().begin();
        let is_in = self.0.change(|open| {
            let sought = "SELECT id, token_sum FROM people WHERE name = ?1";
            let row = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
            let known = open.query_row(sought, [name], row).optional()?;
            let Some((id, _)) = known.filter(|(_, known)| same(known, &sum(token))) else { return Ok(false) };
            open.execute("DELETE FROM signed_in WHERE session_sum = ?1 OR until <= ?2", params![before.sum(), now()])?;
            let row = params![session.sum(), id, now() + SIGNED_IN];
            open.execute("INSERT INTO signed_in (session_sum, person, until) VALUES (?1, ?2, ?3)", row)?;
            chats::hand_over(open, before, id)?;
            Ok(true)
        })?;
        Ok(is_in.then_some(session))
    }

    /// Signs a session out.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn sign_out(&self, session: &Session) -> Result<()> {
        self.0.change(|open| open.execute("DELETE FROM signed_in WHERE session_sum = ?1", [session.sum()]).map(drop))
    }

    /// Who is signed in.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn who(&self, session: &Session) -> Result<Option<Person>> {
        self.0.read(|open| {
            let sought = "SELECT id, name, role FROM people JOIN signed_in ON person = id
                 WHERE session_sum = ?1 AND until > ?2";
            open.query_row(sought, params![session.sum(), now()], person).optional()
        })
    }
}

/// A new project with its tasks; nothing where the name is taken.
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

fn keep(
    open: &Transaction<'_>,
    task: i64,
    by: i64,
    answer: &Answer,
    state: State,
    reason: &str,
    seconds: f64,
) -> rusqlite::Result<()> {
    let row = params![task, by, json(answer), state.name(), reason, seconds, now()];
    open.execute(
        "INSERT INTO annotations (task, person, answer, state, reason, seconds, changed) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (task, person) DO UPDATE SET answer = excluded.answer, state = excluded.state,
         reason = excluded.reason, seconds = seconds + excluded.seconds, changed = excluded.changed",
        row,
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(question: &str) -> Task {
        Task {
            question: question.into(),
            passages: Vec::new(),
            reference: String::new(),
            answers: vec!["a".into(), "b".into()],
            models: Vec::new(),
            expected: None,
            attention: false,
        }
    }

    fn signed_in(store: &Store, name: &str) -> Person {
        let token = store.projects().invite(name, Role::Annotator).expect("kept");
        let before = store.sessions().begin();
        assert!(store.projects().sign_in(&before, name, &token[1..]).expect("read").is_none());
        assert_eq!(store.projects().who(&before).expect("read"), None);
        let session = store.projects().sign_in(&before, name, &token).expect("kept").expect("signed in");
        assert_eq!(store.projects().who(&before).expect("read"), None, "who knew the session before is not in");
        store.projects().who(&session).expect("read").expect("signed in")
    }

    #[test]
    fn a_task_goes_to_as_many_as_are_asked_and_is_theirs_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a file");
        let labels = LabelSet::open("comparison").expect("a label set");
        let projects = store.projects();
        assert!(projects.begin("p", &labels, 2, &[task("1"), task("2")]).expect("kept"));
        assert!(!projects.begin("p", &labels, 2, &[task("1")]).expect("kept"), "a name is taken once");
        let project = projects.find("p").expect("read").expect("a project");
        assert_eq!((project.tasks, &project.labels), (2, &labels));
        let [a, b, c] = ["a", "b", "c"].map(|name| signed_in(&store, name).id);
        let next = |by| projects.next(&project, by).expect("read");
        assert_eq!([next(a), next(b), next(c)], [Some(1), Some(1), Some(2)], "two have the first");
        assert_eq!(next(a), Some(1), "it is gone on with");
        let say = |by, number, state| {
            projects.keep(project.id, number, by, (&Answer::default(), state, ""), 1.5).expect("kept")
        };
        assert!(!say(c, 1, State::Done), "the first is not theirs");
        assert!(say(a, 1, State::Open) && say(a, 1, State::Done));
        assert_eq!(next(a), Some(2));
        assert!(say(b, 1, State::Skipped));
        assert_eq!(next(b), None, "the second has two by now");
        assert!(say(c, 2, State::Done));
        assert_eq!(next(c), Some(1), "one that was skipped is free again");
        assert_eq!(projects.progress(project.id, a).expect("read"), (1, 0));
        let all = projects.annotations(project.id).expect("read");
        let seen: Vec<(usize, &str)> = all.iter().map(|found| (found.task, found.person.as_str())).collect();
        assert_eq!(seen, [(1, "a"), (1, "b"), (1, "c"), (2, "a"), (2, "c")]);
        assert_eq!((all[0].seconds, all[0].state), (3.0, State::Done), "time adds up");
    }

    #[test]
    fn a_new_invitation_and_time_end_what_was_signed_in() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a file");
        let projects = store.projects();
        let enter = |token: &str| projects.sign_in(&store.sessions().begin(), "ada", token).expect("kept");
        let token = projects.invite("ada", Role::Owner).expect("kept");
        let (one, other) = (enter(&token).expect("signed in"), enter(&token).expect("signed in"));
        let renewed = projects.invite("ada", Role::Annotator).expect("kept");
        assert!([&one, &other].iter().all(|session| projects.who(session).expect("read").is_none()));
        assert!(enter(&token).is_none(), "the token before is worth nothing");

        let session = enter(&renewed).expect("signed in");
        assert_eq!(projects.who(&session).expect("read").expect("signed in").role, Role::Annotator);
        store.change(|open| open.execute("UPDATE signed_in SET until = ?1", [now()])).expect("changed");
        assert!(projects.who(&session).expect("read").is_none(), "it has ended");
        let again = enter(&renewed).expect("signed in");
        assert_eq!(store.sessions().kept().expect("read"), 1, "what has ended is removed");
        projects.sign_out(&again).expect("kept");
        assert!(projects.who(&again).expect("read").is_none());
    }
}
