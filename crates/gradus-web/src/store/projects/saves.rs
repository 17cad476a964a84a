//! Stored annotations. A save never overwrites a version that its page has not seen.

use gradus::Result;
use rusqlite::{OptionalExtension, Row, Transaction, params};
use serde::{Deserialize, Serialize};

use super::{Projects, count, json, read};
use crate::annotate::answer::Answer;
use crate::annotate::shown::Shown;
use crate::store::now;

/// State of an annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnnotationState {
    /// In progress.
    Open,
    /// Submitted.
    Done,
    /// Skipped, with a reason.
    Skipped,
}

impl AnnotationState {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Done => "done",
            Self::Skipped => "skipped",
        }
    }

    pub(super) fn of(name: &str) -> Self {
        [Self::Done, Self::Skipped].into_iter().find(|state| state.name() == name).unwrap_or(Self::Open)
    }
}

/// A person's annotation of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Annotation {
    /// Number of the task, from 1.
    pub task: usize,
    /// Name of the person.
    pub person: String,
    /// Content of the annotation.
    pub answer: Answer,
    /// State of the annotation.
    pub state: AnnotationState,
    /// Reason for skipping the task.
    pub reason: String,
    /// Seconds spent on the task.
    pub seconds: f64,
    /// Presentation of the answers. `None` for annotations from another tool.
    pub shown: Option<Shown>,
    /// Number of saves.
    pub revision: u64,
    /// Page of the last save.
    pub page: String,
    /// Time when it was last opened or changed, in seconds since 1970.
    pub changed: i64,
}

/// Save request of a page.
#[derive(Debug, Clone)]
pub struct Save<'a> {
    /// Content of the annotation.
    pub answer: &'a Answer,
    /// State of the annotation.
    pub state: AnnotationState,
    /// Reason for skipping the task.
    pub reason: &'a str,
    /// Seconds since the previous save.
    pub seconds: f64,
    /// Revision that the page began with or saved last.
    pub revision: u64,
    /// Random name of the page. Saves of one page never conflict with each other.
    pub page: &'a str,
}

impl<'a> Save<'a> {
    /// Creates a save by a program. Saves by programs never conflict with each other.
    #[cfg(test)]
    pub fn of(answer: &'a Answer, state: AnnotationState, seconds: f64) -> Self {
        Self { answer, state, reason: "", seconds, revision: 0, page: "" }
    }

    /// Returns whether `stored` came from another page after this page read it. A save whose response was lost is not a conflict.
    pub(super) fn is_stale(&self, stored: &Annotation) -> bool {
        let is_same = stored.answer == *self.answer && stored.state == self.state;
        stored.revision != self.revision && stored.page != self.page && !is_same
    }
}

/// Result of a save.
#[derive(Debug, Clone, PartialEq)]
pub enum Saved {
    /// It is stored, with this revision.
    Stored(u64),
    /// Another version, given here, was stored in the meantime.
    Stale(Box<Annotation>),
    /// The person does not have the task, or it does not exist.
    Nowhere,
}

pub(super) fn annotation(row: &Row<'_>) -> rusqlite::Result<Annotation> {
    Ok(Annotation {
        task: count(row, 0)?,
        person: row.get(1)?,
        answer: read(row, 2)?,
        state: AnnotationState::of(&row.get::<_, String>(3)?),
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

/// Returns a person's annotation of a task.
pub(super) fn annotation_of(
    open: &Transaction<'_>,
    project: i64,
    number: usize,
    by: i64,
) -> rusqlite::Result<Option<Annotation>> {
    let sought = format!("{ANNOTATION} WHERE project = ?1 AND tasks.number = ?2 AND person = ?3");
    open.query_row(&sought, params![project, number as i64, by], annotation).optional()
}

impl Projects<'_> {
    /// Returns all annotations of a project, by task and then by name.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn annotations(&self, project: i64) -> Result<Vec<Annotation>> {
        self.0.read(|open| {
            let mut found =
                open.prepare(&format!("{ANNOTATION} WHERE project = ?1 ORDER BY tasks.number, people.name"))?;
            found.query_map([project], annotation)?.collect()
        })
    }

    /// Returns a person's annotation of a task, if there is one.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn annotation(&self, project: i64, number: usize, by: i64) -> Result<Option<Annotation>> {
        self.0.read(|open| annotation_of(open, project, number, by))
    }

    /// Returns the numbers of a person's tasks in order, with their states.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn own(&self, project: i64, by: i64) -> Result<Vec<(usize, AnnotationState)>> {
        self.0.read(|open| {
            let sought = "SELECT number, state FROM annotations JOIN tasks ON tasks.id = task
                 WHERE project = ?1 AND person = ?2 ORDER BY number";
            let row = |row: &Row<'_>| Ok((count(row, 0)?, AnnotationState::of(&row.get::<_, String>(1)?)));
            open.prepare(sought)?.query_map([project, by], row)?.collect()
        })
    }

    /// Stores an annotation, unless another page has stored something else since this page read it. Seconds are added to the previous ones.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn save(&self, project: i64, number: usize, by: i64, save: &Save<'_>) -> Result<Saved> {
        self.0.change(|open| {
            let Some(stored) = annotation_of(open, project, number, by)? else { return Ok(Saved::Nowhere) };
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

    /// Returns how many tasks of a project a person has submitted and skipped.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn progress(&self, project: i64, by: i64) -> Result<(usize, usize)> {
        self.0.read(|open| {
            let counted = "SELECT count(*) FILTER (WHERE state = 'done'), count(*) FILTER (WHERE state = 'skipped')
                 FROM annotations JOIN tasks ON tasks.id = task WHERE project = ?1 AND person = ?2";
            open.query_row(counted, [project, by], |row| Ok((count(row, 0)?, count(row, 1)?)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::LEASE_MINUTES;
    use super::super::tests::{signed_in, task};
    use super::*;
    use crate::annotate::labels::LabelSet;
    use crate::store::Store;

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
        let as_save = |answer, revision, page| Save { revision, page, ..Save::of(answer, AnnotationState::Open, 1.0) };
        let save =
            |answer, revision, page| projects.save(project.id, 1, a, &as_save(answer, revision, page)).expect("saved");
        let stored = || projects.annotation(project.id, 1, a).expect("read").expect("there");
        assert_eq!(save(&one, 0, "x"), Saved::Stored(1));
        let Saved::Stale(found) = save(&other, 0, "y") else { panic!("it was overwritten") };
        assert_eq!((found.answer, found.revision, stored().answer), (one.clone(), 1, one.clone()));
        assert_eq!(save(&other, 1, "y"), Saved::Stored(2), "who has seen it may");
        assert_eq!(save(&other, 1, "x"), Saved::Stored(3), "the same again is no conflict");
        // The page's own save was stored, but its response was lost.
        assert_eq!(save(&one, 1, "x"), Saved::Stored(4));
        // Decisions follow the same rules.
        let decide = |answer, revision, page| {
            projects.decide(project.id, 1, a, &as_save(answer, revision, page)).expect("saved")
        };
        assert_eq!(decide(&one, 0, "x"), Saved::Stored(1));
        assert!(matches!(decide(&other, 0, "y"), Saved::Stale(_)));
        assert_eq!(projects.verdicts(project.id).expect("read")[&1].answer, one);
        assert_eq!(decide(&other, 1, "y"), Saved::Stored(2));
        assert_eq!(projects.decide(project.id, 7, a, &as_save(&one, 0, "x")).expect("saved"), Saved::Nowhere);
    }
}
