//! Claims: who works on a task, and for how long.

use gradus::Result;
use rusqlite::{OptionalExtension, Row, params};

use super::saves::annotation_of;
use super::{Annotation, AnnotationState, Project, Projects, count, json, read};
use crate::annotate::answer::Answer;
use crate::annotate::shown::Shown;
use crate::annotate::task::Task;
use crate::store::now;

/// Default lease: minutes until a task without activity is released.
pub const LEASE_MINUTES: u32 = 30;

/// Seconds after the last change until a view of the page renews the lease.
const RENEW_SECONDS: i64 = 60;

impl Project {
    /// Returns the time before which an open task must have changed for its lease to have ended.
    fn lease_began(&self) -> i64 {
        now() - 60 * i64::from(self.lease_minutes)
    }

    /// Returns whether an annotation still occupies a place of its task.
    pub fn holds(&self, annotation: &Annotation) -> bool {
        match annotation.state {
            AnnotationState::Done => true,
            AnnotationState::Open => annotation.changed > self.lease_began(),
            AnnotationState::Skipped => false,
        }
    }
}

impl Projects<'_> {
    /// Opens a person's task: renews its lease and stores what the person is shown. `None` if the person does not have the task. If the
    /// task was opened or changed very recently, it is only read, which waits for no other process.
    ///
    /// # Errors
    /// The database cannot be changed.
    pub fn open(&self, project: i64, number: usize, by: i64) -> Result<Option<Annotation>> {
        let found = self.annotation(project, number, by)?;
        let is_current = |annotation_of: &Annotation| {
            annotation_of.shown.is_some()
                && (annotation_of.state != AnnotationState::Open || annotation_of.changed > now() - RENEW_SECONDS)
        };
        if found.as_ref().is_none_or(is_current) {
            return Ok(found);
        }
        self.0.change(|open| {
            let Some(mut found) = annotation_of(open, project, number, by)? else { return Ok(None) };
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

    /// Ends claims on open tasks, of one task or all tasks and of one person or all people. Returns their number. Drafts are kept and may
    /// still be submitted.
    ///
    /// # Errors
    /// The database cannot be changed.
    pub fn release(&self, project: i64, number: Option<usize>, person: Option<&str>) -> Result<usize> {
        self.0.change(|open| {
            let which = "state = 'open' AND changed > 0 AND task IN (SELECT id FROM tasks WHERE project = ?1 AND (?2 IS NULL OR number = ?2))
                 AND (?3 IS NULL OR person = (SELECT id FROM people WHERE name = ?3))";
            let row = params![project, number.map(|number| number as i64), person];
            // Claims without changes contain nothing to keep.
            let removed = open.execute(&format!("DELETE FROM annotations WHERE revision = 0 AND {which}"), row)?;
            Ok(removed + open.execute(&format!("UPDATE annotations SET changed = 0 WHERE {which}"), row)?)
        })
    }

    /// Returns the next task of a person: one that they began, otherwise the first new one with a free place. A new task is claimed
    /// immediately, so that two simultaneous requests cannot get the same last place. A task whose lease has ended has a free place.
    ///
    /// # Errors
    /// The database cannot be read.
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
}

#[cfg(test)]
mod tests {
    use super::super::tests::{signed_in, task};
    use super::super::{LEASE_MINUTES, Save, Saved};
    use super::*;
    use crate::annotate::labels::LabelSet;
    use crate::store::Store;

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
        assert!(!say(c, 1, AnnotationState::Done), "the first is not theirs");
        assert!(say(a, 1, AnnotationState::Open) && say(a, 1, AnnotationState::Done));
        assert_eq!(next(a), Some(2));
        assert!(say(b, 1, AnnotationState::Skipped));
        assert_eq!(next(b), None, "the second has two by now");
        assert!(say(c, 2, AnnotationState::Done));
        assert_eq!(next(c), Some(1), "one that was skipped is free again");
        assert_eq!(projects.progress(project.id, a).expect("read"), (1, 0));
        let all = projects.annotations(project.id).expect("read");
        let seen: Vec<(usize, &str)> = all.iter().map(|found| (found.task, found.person.as_str())).collect();
        assert_eq!(seen, [(1, "a"), (1, "b"), (1, "c"), (2, "a"), (2, "c")]);
        assert_eq!((all[0].seconds, all[0].state), (3.0, AnnotationState::Done), "time adds up");
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

        // The draft is kept and may still be submitted by its author. Others may begin the task.
        let answer = Answer { feedback: "half".into(), ..Answer::default() };
        let save =
            |by, number, state| projects.save(project.id, number, by, &Save::of(&answer, state, 1.0)).expect("saved");
        assert_eq!(save(b, 2, AnnotationState::Open), Saved::Stored(1));
        assert_eq!(projects.release(project.id, Some(2), Some("b")).expect("changed"), 1);
        assert_eq!(projects.release(project.id, None, Some("nobody")).expect("changed"), 0);
        assert_eq!((next(a), next(b)), (Some(2), Some(2)));
        assert_eq!(save(b, 2, AnnotationState::Done), Saved::Stored(2));
        // An owner releases all open tasks.
        assert_eq!(projects.release(project.id, None, None).expect("changed"), 2);
        assert_eq!(save(c, 1, AnnotationState::Done), Saved::Nowhere);
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
            projects.save(project.id, number, a, &Save::of(&answer, AnnotationState::Done, 1.0)).expect("saved");
        }
        // The probability that all 24 are equal is 1 in 8 million.
        assert!(firsts.contains(&0) && firsts.contains(&1), "{firsts:?}");
    }
}
