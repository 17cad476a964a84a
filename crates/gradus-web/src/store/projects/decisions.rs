//! Decisions of reviewers on tasks with different annotations.

use std::collections::BTreeMap;

use gradus::Result;
use rusqlite::{OptionalExtension, params};

use super::saves::annotation;
use super::{Annotation, Projects, Save, Saved, json};
use crate::store::now;

const VERDICT: &str = "SELECT tasks.number, people.name, answer, state, '', 0.0, NULL, revision, page, changed
     FROM verdicts JOIN tasks ON tasks.id = task JOIN people ON people.id = person";

impl Projects<'_> {
    /// Returns the reviewers' decisions and drafts, by task.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn verdicts(&self, project: i64) -> Result<BTreeMap<usize, Annotation>> {
        self.0.read(|open| {
            let mut found = open.prepare(&format!("{VERDICT} WHERE project = ?1"))?;
            let found = found.query_map([project], annotation)?;
            found.map(|annotation_of| annotation_of.map(|annotation_of| (annotation_of.task, annotation_of))).collect()
        })
    }

    /// Stores a reviewer's decision, unless another page has stored something else since this page read it.
    ///
    /// # Errors
    /// It cannot be stored.
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
}
