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
use crate::annotate::shown::Shown;
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

/// Leases, revisions, and what was shown of the answers.
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

/// Adds them. What earlier versions showed followed from a hash: now it is stored.
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

/// For how many minutes a task belongs to somebody who does nothing with it, where a project says nothing else.
pub const LEASE_MINUTES: u32 = 30;

/// How many seconds after the last change a look at the page renews the lease.
const RENEW_SECONDS: i64 = 60;

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
    /// For how many minutes a task belongs to somebody who does nothing with it.
    pub lease_minutes: u32,
    /// How many tasks it has.
    pub tasks: usize,
}

impl Project {
    /// A task that somebody has open and last changed before this time is free for others.
    fn lease_began(&self) -> i64 {
        now() - 60 * i64::from(self.lease_minutes)
    }

    /// Whether an annotation still takes a place of its task.
    pub fn holds(&self, annotation: &Annotation) -> bool {
        match annotation.state {
            State::Done => true,
            State::Open => annotation.changed > self.lease_began(),
            State::Skipped => false,
        }
    }
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
    /// What they were shown of the answers; unknown where another tool made the annotation.
    pub shown: Option<Shown>,
    /// How often it was saved.
    pub revision: u64,
    /// Which page saved it last.
    pub page: String,
    /// When it was last opened or changed, in seconds since 1970.
    pub changed: i64,
}

/// What a page saves.
#[derive(Debug, Clone)]
pub struct Save<'a> {
    /// The annotation.
    pub answer: &'a Answer,
    /// How it stands.
    pub state: State,
    /// Why the task is skipped.
    pub reason: &'a str,
    /// Seconds since the save before.
    pub seconds: f64,
    /// The revision that the page began with or saved last.
    pub revision: u64,
    /// The page: a random name of its own. What a page saves never conflicts with what it saved before.
    pub page: &'a str,
}

impl<'a> Save<'a> {
    /// A save of a program, which conflicts with nothing that programs save.
    #[cfg(test)]
    pub fn of(answer: &'a Answer, state: State, seconds: f64) -> Self {
        Self { answer, state, reason: "", seconds, revision: 0, page: "" }
    }

    /// Whether `stored` came from elsewhere after the page read it. A save that was stored before its answer got lost is no
    /// conflict.
    fn is_stale(&self, stored: &Annotation) -> bool {
        let is_same = stored.answer == *self.answer && stored.state == self.state;
        stored.revision != self.revision && stored.page != self.page && !is_same
    }
}

/// What becomes of a save.
#[derive(Debug, Clone, PartialEq)]
pub enum Saved {
    /// It is stored, as this revision.
    Stored(u64),
    /// Something else was stored meanwhile: this.
    Stale(Box<Annotation>),
    /// The task is not theirs, or does not exist.
    Nowhere,
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
        shown: row.get::<_, Option<String>>(6)?.and_then(|text| serde_json::from_str(&text).ok()),
        revision: count(row, 7)? as u64,
        page: row.get(8)?,
        changed: row.get(9)?,
    })
}

const ANNOTATION: &str =
    "SELECT tasks.number, people.name, answer, state, reason, seconds, shown, revision, page, changed
     FROM annotations JOIN tasks ON tasks.id = task JOIN people ON people.id = person";

const VERDICT: &str = "SELECT tasks.number, people.name, answer, state, '', 0.0, NULL, revision, page, changed
     FROM verdicts JOIN tasks ON tasks.id = task JOIN people ON people.id = person";

/// What someone said of a task.
fn said(open: &Transaction<'_>, project: i64, number: usize, by: i64) -> rusqlite::Result<Option<Annotation>> {
    let sought = format!("{ANNOTATION} WHERE project = ?1 AND tasks.number = ?2 AND person = ?3");
    open.query_row(&sought, params![project, number as i64, by], annotation).optional()
}

impl Projects<'_> {
    /// A new project; whether there was none of this name. A task belongs to somebody who does nothing with it for `lease_minutes`.
    ///
    /// # Errors
    /// When it cannot be stored.
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
                let task: i64 = open.query_row(sought, params![id, (i + 1) as i64], |row| row.get(0))?;
                for (name, answer, seconds) in &item.said {
                    let stranger = params![name, sum(&secret()), Role::Annotator.name()];
                    open.execute("INSERT OR IGNORE INTO people (name, token_sum, role) VALUES (?1, ?2, ?3)", stranger)?;
                    let by: i64 = open.query_row("SELECT id FROM people WHERE name = ?1", [name], |row| row.get(0))?;
                    let is_done = answer.problems(labels, &item.task, &Shown::as_given(item.task.answers.len())).is_empty();
                    unfinished += usize::from(!is_done);
                    let state = if is_done { State::Done } else { State::Open };
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
            let mut found =
                open.prepare(&format!("{ANNOTATION} WHERE project = ?1 ORDER BY tasks.number, people.name"))?;
            found.query_map([project], annotation)?.collect()
        })
    }

    /// What someone said of a task, if they did.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn annotation(&self, project: i64, number: usize, by: i64) -> Result<Option<Annotation>> {
        self.0.read(|open| said(open, project, number, by))
    }

    /// Opens a task of someone: its lease begins anew, and from now on it is known what they are shown. None where the task is not
    /// theirs. A task that was opened or changed just now is only read, which waits for no other process.
    ///
    /// # Errors
    /// When the file cannot be changed.
    pub fn open(&self, project: i64, number: usize, by: i64) -> Result<Option<Annotation>> {
        let found = self.annotation(project, number, by)?;
        let is_current = |said: &Annotation| {
            said.shown.is_some() && (said.state != State::Open || said.changed > now() - RENEW_SECONDS)
        };
        if found.as_ref().is_none_or(is_current) {
            return Ok(found);
        }
        self.0.change(|open| {
            let Some(mut found) = said(open, project, number, by)? else { return Ok(None) };
            let sought = "SELECT id, given FROM tasks WHERE project = ?1 AND number = ?2";
            let row = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, read::<Task>(row, 1)?));
            let (id, given) = open.query_row(sought, params![project, number as i64], row)?;
            let answers = given.answers.len();
            let shown = found.shown.take().filter(|shown| shown.fits(answers));
            let shown = shown.unwrap_or_else(|| Shown::random(answers));
            let change = "UPDATE annotations SET shown = ?3, changed = CASE state WHEN 'open' THEN ?4 ELSE changed END
                 WHERE task = ?1 AND person = ?2";
            open.execute(change, params![id, by, json(&shown), now()])?;
            Ok(Some(Annotation { shown: Some(shown), ..found }))
        })
    }

    /// The numbers of the tasks that someone has or had, in order, and how each stands.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn own(&self, project: i64, by: i64) -> Result<Vec<(usize, State)>> {
        self.0.read(|open| {
            let sought = "SELECT number, state FROM annotations JOIN tasks ON tasks.id = task
                 WHERE project = ?1 AND person = ?2 ORDER BY number";
            let row = |row: &Row<'_>| Ok((count(row, 0)?, State::of(&row.get::<_, String>(1)?)));
            open.prepare(sought)?.query_map([project, by], row)?.collect()
        })
    }

    /// Ends the claims of people on tasks that they have open: of one task or all, of one person or all; how many. What they
    /// marked so far is kept, and they may still submit it.
    ///
    /// # Errors
    /// When the file cannot be changed.
    pub fn release(&self, project: i64, number: Option<usize>, person: Option<&str>) -> Result<usize> {
        self.0.change(|open| {
            let which = "state = 'open' AND changed > 0 AND task IN (SELECT id FROM tasks WHERE project = ?1 AND (?2 IS NULL OR number = ?2))
                 AND (?3 IS NULL OR person = (SELECT id FROM people WHERE name = ?3))";
            let row = params![project, number.map(|number| number as i64), person];
            // Who only looked has nothing to keep.
            let removed = open.execute(&format!("DELETE FROM annotations WHERE revision = 0 AND {which}"), row)?;
            Ok(removed + open.execute(&format!("UPDATE annotations SET changed = 0 WHERE {which}"), row)?)
        })
    }

    /// The task that someone continues with: one that they began, else the first that they have not seen and that has room for one
    /// more. A new one is theirs from now on, so two people who ask at once do not get the same last place. A task that somebody
    /// opened and left for longer than the lease has room again.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn next(&self, project: &Project, by: i64) -> Result<Option<usize>> {
        self.0.change(|open| {
            let lease_began = project.lease_began();
            let unseen =
                "DELETE FROM annotations WHERE person = ?2 AND state = 'open' AND revision = 0 AND changed <= ?3
                 AND task IN (SELECT id FROM tasks WHERE project = ?1)";
            open.execute(unseen, params![project.id, by, lease_began])?;
            let begun = "SELECT number FROM annotations JOIN tasks ON tasks.id = task
                 WHERE project = ?1 AND person = ?2 AND state = 'open' ORDER BY number LIMIT 1";
            let begun = open.query_row(begun, [project.id, by], |row| count(row, 0)).optional()?;
            if begun.is_some() {
                return Ok(begun);
            }
            let fresh = "SELECT id, number, given FROM tasks WHERE project = ?1
                 AND NOT EXISTS (SELECT 1 FROM annotations WHERE task = tasks.id AND person = ?2)
                 AND (everyone OR (SELECT count(*) FROM annotations WHERE task = tasks.id
                      AND (state = 'done' OR (state = 'open' AND changed > ?4))) < ?3)
                 ORDER BY number LIMIT 1";
            let row = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, count(row, 1)?, read::<Task>(row, 2)?));
            let Some((id, number, given)) = open
                .query_row(fresh, params![project.id, by, project.annotators as i64, lease_began], row)
                .optional()?
            else {
                return Ok(None);
            };
            let claim = "INSERT INTO annotations (task, person, answer, state, reason, seconds, changed, shown)
                 VALUES (?1, ?2, ?3, 'open', '', 0.0, ?4, ?5)";
            let shown = Shown::random(given.answers.len());
            open.execute(claim, params![id, by, json(&Answer::default()), now(), json(&shown)])?;
            Ok(Some(number))
        })
    }

    /// Stores what someone says of a task, unless another page has stored something else since theirs read it. Seconds are added to
    /// those before.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn save(&self, project: i64, number: usize, by: i64, save: &Save<'_>) -> Result<Saved> {
        self.0.change(|open| {
            let Some(stored) = said(open, project, number, by)? else { return Ok(Saved::Nowhere) };
            if save.is_stale(&stored) {
                return Ok(Saved::Stale(Box::new(stored)));
            }
            let revision = stored.revision + 1;
            let Save { answer, state, reason, seconds, page, .. } = save;
            open.execute(
                "UPDATE annotations SET answer = ?4, state = ?5, reason = ?6, seconds = seconds + ?7, changed = ?8, revision = ?9, page = ?10
                 WHERE task = (SELECT id FROM tasks WHERE project = ?1 AND number = ?2) AND person = ?3",
                params![
                    project, number as i64, by, json(answer), state.name(), reason, seconds, now(), revision as i64, page
                ],
            )?;
            Ok(Saved::Stored(revision))
        })
    }

    /// What reviewers decided or began to, by task.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn verdicts(&self, project: i64) -> Result<BTreeMap<usize, Annotation>> {
        self.0.read(|open| {
            let mut found = open.prepare(&format!("{VERDICT} WHERE project = ?1"))?;
            let found = found.query_map([project], annotation)?;
            found.map(|said| said.map(|said| (said.task, said))).collect()
        })
    }

    /// Stores what a reviewer decides of a task, unless another page has stored something else since theirs read it.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn decide(&self, project: i64, number: usize, by: i64, save: &Save<'_>) -> Result<Saved> {
        self.0.change(|open| {
            let sought = format!("{VERDICT} WHERE project = ?1 AND tasks.number = ?2");
            let stored = open.query_row(&sought, params![project, number as i64], annotation).optional()?;
            if let Some(stored) = stored.as_ref().filter(|stored| save.is_stale(stored)) {
                return Ok(Saved::Stale(Box::new(stored.clone())));
            }
            let revision = stored.map_or(0, |stored| stored.revision) + 1;
            let Save { answer, state, page, .. } = save;
            let kept = open.execute(
                "INSERT INTO verdicts (task, person, answer, state, changed, revision, page)
                 SELECT id, ?3, ?4, ?5, ?6, ?7, ?8 FROM tasks WHERE project = ?1 AND number = ?2
                 ON CONFLICT (task) DO UPDATE SET person = excluded.person, answer = excluded.answer, state = excluded.state,
                 changed = excluded.changed, revision = excluded.revision, page = excluded.page",
                params![project, number as i64, by, json(answer), state.name(), now(), revision as i64, page],
            )?;
            Ok(if kept > 0 { Saved::Stored(revision) } else { Saved::Nowhere })
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
        assert!(projects.begin("p", &labels, 2, LEASE_MINUTES, &[task("1"), task("2")]).expect("kept"));
        assert!(!projects.begin("p", &labels, 2, LEASE_MINUTES, &[task("1")]).expect("kept"), "a name is taken once");
        let project = projects.find("p").expect("read").expect("a project");
        assert_eq!((project.tasks, &project.labels), (2, &labels));
        let [a, b, c] = ["a", "b", "c"].map(|name| signed_in(&store, name).id);
        let next = |by| projects.next(&project, by).expect("read");
        assert_eq!([next(a), next(b), next(c)], [Some(1), Some(1), Some(2)], "two have the first");
        assert_eq!(next(a), Some(1), "it is gone on with");
        let say = |by, number, state| {
            let answer = Answer::default();
            matches!(
                projects.save(project.id, number, by, &Save::of(&answer, state, 1.5)).expect("saved"),
                Saved::Stored(_)
            )
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

    #[test]
    fn a_task_that_somebody_only_looked_at_is_free_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a file");
        let labels = LabelSet::open("comparison").expect("a label set");
        let projects = store.projects();
        assert!(projects.begin("p", &labels, 1, 5, &[task("1"), task("2")]).expect("stored"));
        let project = projects.find("p").expect("read").expect("a project");
        let [a, b] = ["a", "b"].map(|name| signed_in(&store, name).id);
        let next = |by| projects.next(&project, by).expect("read");
        let later = |seconds: i64| {
            let change = "UPDATE annotations SET changed = changed - ?1 WHERE state = 'open'";
            store.change(|open| open.execute(change, [seconds])).expect("changed");
        };
        assert_eq!([next(a), next(b), next(a)], [Some(1), Some(2), Some(1)]);
        // b opens the page again, so only a's lease ends.
        later(299);
        assert!(projects.open(project.id, 2, b).expect("read").is_some());
        later(2);
        let c = signed_in(&store, "c").id;
        assert_eq!([next(c), next(b)], [Some(1), Some(2)], "the first is free again");
        assert_eq!(next(a), None, "and no longer of who only looked");
        assert!(projects.open(project.id, 1, a).expect("read").is_none());

        // What was marked stays with its owner, who may still submit it; others may begin.
        let answer = Answer { feedback: "half".into(), ..Answer::default() };
        let save =
            |by, number, state| projects.save(project.id, number, by, &Save::of(&answer, state, 1.0)).expect("saved");
        assert_eq!(save(b, 2, State::Open), Saved::Stored(1));
        assert_eq!(projects.release(project.id, Some(2), Some("b")).expect("changed"), 1);
        assert_eq!(projects.release(project.id, None, Some("nobody")).expect("changed"), 0);
        assert_eq!((next(a), next(b)), (Some(2), Some(2)));
        assert_eq!(save(b, 2, State::Done), Saved::Stored(2));
        // An owner frees all that is open.
        assert_eq!(projects.release(project.id, None, None).expect("changed"), 2);
        assert_eq!(save(c, 1, State::Done), Saved::Nowhere);
    }

    #[test]
    fn a_save_from_another_page_is_never_overwritten_unseen() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a file");
        let labels = LabelSet::open("comparison").expect("a label set");
        let projects = store.projects();
        assert!(projects.begin("p", &labels, 1, LEASE_MINUTES, &[task("1")]).expect("stored"));
        let project = projects.find("p").expect("read").expect("a project");
        let a = signed_in(&store, "a").id;
        projects.next(&project, a).expect("read");
        let [one, other] = ["one", "other"].map(|text| Answer { feedback: text.into(), ..Answer::default() });
        let as_save = |answer, revision, page| Save { revision, page, ..Save::of(answer, State::Open, 1.0) };
        let save =
            |answer, revision, page| projects.save(project.id, 1, a, &as_save(answer, revision, page)).expect("saved");
        let stored = || projects.annotation(project.id, 1, a).expect("read").expect("there");
        assert_eq!(save(&one, 0, "x"), Saved::Stored(1));
        let Saved::Stale(found) = save(&other, 0, "y") else { panic!("it was overwritten") };
        assert_eq!((found.answer, found.revision, stored().answer), (one.clone(), 1, one.clone()));
        assert_eq!(save(&other, 1, "y"), Saved::Stored(2), "who has seen it may");
        assert_eq!(save(&other, 1, "x"), Saved::Stored(3), "the same again is no conflict");
        // The page's own save was stored, but it never heard so.
        assert_eq!(save(&one, 1, "x"), Saved::Stored(4));
        // The same for decisions.
        let decide = |answer, revision, page| {
            projects.decide(project.id, 1, a, &as_save(answer, revision, page)).expect("saved")
        };
        assert_eq!(decide(&one, 0, "x"), Saved::Stored(1));
        assert!(matches!(decide(&other, 0, "y"), Saved::Stale(_)));
        assert_eq!(projects.verdicts(project.id).expect("read")[&1].answer, one);
        assert_eq!(decide(&other, 1, "y"), Saved::Stored(2));
        assert_eq!(projects.decide(project.id, 7, a, &as_save(&one, 0, "x")).expect("saved"), Saved::Nowhere);
    }

    #[test]
    fn what_was_shown_is_stored_and_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a file");
        let labels = LabelSet::open("comparison").expect("a label set");
        let projects = store.projects();
        assert!(projects.begin("p", &labels, 1, LEASE_MINUTES, &vec![task("1"); 24]).expect("stored"));
        let project = projects.find("p").expect("read").expect("a project");
        let a = signed_in(&store, "a").id;
        let mut firsts = Vec::new();
        while let Some(number) = projects.next(&project, a).expect("read") {
            let shown = projects.open(project.id, number, a).expect("read").expect("theirs").shown.expect("stored");
            firsts.push(shown.order[0]);
            assert_eq!(shown.swapped, [shown.order[0] == 1], "A is on the left");
            let again = projects.open(project.id, number, a).expect("read").expect("theirs").shown;
            assert_eq!(again, Some(shown));
            let answer = Answer::default();
            projects.save(project.id, number, a, &Save::of(&answer, State::Done, 1.0)).expect("saved");
        }
        // All 24 alike has a probability of 1 in 8 million.
        assert!(firsts.contains(&0) && firsts.contains(&1), "{firsts:?}");
    }
}
