//! Adjudication: a reviewer decides tasks that two or more people submitted differently, starting with the largest difference. The
//! reviewer's decision is the task's answer in every export.

use std::hash::Hasher;
use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect};
use gradus::Result;

use super::answer::Answer;
use super::labels::LabelSet;
use super::rank::pairs;
use super::shown::{Shown, stable_hash};
use super::task::Task;
use super::{SaveBody, framed, judged, page, project, saved, task_data, who};
use crate::agreement::{Span, span_f1};
use crate::app::App;
use crate::page_error::{PageError, PageResult, Path, read};
use crate::store::Store;
use crate::store::projects::{Annotation, AnnotationState, Person, Project, Role};
use crate::store::sessions::Session;

/// Computes the difference of two annotations of a task, from 0 to 1: the mean over the parts that the label set contains.
pub fn difference(labels: &LabelSet, task: &Task, one: &Answer, other: &Answer) -> f64 {
    let mut parts: Vec<f64> = Vec::new();
    if !labels.spans.is_empty() || !labels.missing.is_empty() {
        let spans = |answer: &Answer| -> Vec<Span> {
            let span =
                |span: &super::answer::Marked| Span { characters: span.start..span.end, kind: span.kind.clone() };
            answer.spans.iter().map(span).collect()
        };
        let (a, b) = (spans(one), spans(other));
        // If neither has marked anything, the F1 is undefined and the difference is 0.
        parts.push(1.0 - span_f1(vec![(&a[..], &b[..])]).unwrap_or(1.0));
        parts.push(f64::from(u8::from(one.no_error != other.no_error)));
    }
    if labels.comparison {
        let all = pairs(task.answers.len());
        let differ = |pair: &&(usize, usize)| {
            let name = super::rank::pair_name(**pair);
            one.ranks.get(&name) != other.ranks.get(&name)
        };
        parts.push(all.iter().filter(differ).count() as f64 / all.len().max(1) as f64);
    }
    for question in &labels.questions {
        let of = |answer: &Answer| answer.questions.get(&question.name).map(|value| f64::from(*value));
        let range = f64::from(question.to - question.from);
        parts.push(match (of(one), of(other)) {
            (Some(a), Some(b)) => (a - b).abs() / range,
            (None, None) => 0.0,
            _ => 1.0,
        });
    }
    if labels.correction && parts.is_empty() {
        parts.push(f64::from(u8::from(one.correction != other.correction)));
    }
    if parts.is_empty() { 0.0 } else { parts.iter().sum::<f64>() / parts.len() as f64 }
}

/// Returns the tasks that need a decision with their difference, largest first. At least two people have submitted such a task, not all
/// annotations are equal, and no reviewer has decided it.
pub fn queue(store: &Store, project: &Project) -> Result<Vec<(usize, f64)>> {
    let projects = store.projects();
    let verdicts = projects.verdicts(project.id)?;
    let annotations = projects.annotations(project.id)?;
    let mut waiting = Vec::new();
    for all in annotations.chunk_by(|a, b| a.task == b.task) {
        let done: Vec<&Annotation> =
            all.iter().filter(|annotation| annotation.state == AnnotationState::Done).collect();
        let number = all[0].task;
        if done.len() < 2 || verdicts.get(&number).is_some_and(|annotation| annotation.state == AnnotationState::Done) {
            continue;
        }
        let Some(task) = projects.task(project.id, number)?.filter(|task| !task.attention) else { continue };
        let both = pairs(done.len());
        let of = |(a, b): &(usize, usize)| difference(&project.labels, &task, &done[*a].answer, &done[*b].answer);
        let mean = both.iter().map(of).sum::<f64>() / both.len() as f64;
        if mean > 0.0 {
            waiting.push((number, mean));
        }
    }
    waiting.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    Ok(waiting)
}

/// Returns the reviewer of the session.
fn reviewer(app: &App, session: &Session) -> Result<Person, PageError> {
    let person = who(app, session)?;
    match person.role {
        Role::Annotator => {
            Err(PageError::forbidden("Only reviewers decide: annotators do not see the work of others."))
        }
        Role::Reviewer | Role::Owner => Ok(person),
    }
}

/// Redirects to the task with the largest difference.
pub async fn next(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path(name): Path<String>,
) -> PageResult {
    reviewer(&app, &session)?;
    let project = project(&app, &name)?;
    match queue(&app.store, &project)?.first() {
        Some((number, _)) => Ok(Redirect::to(&page::path(&project, &format!("adjudicate/{number}"))).into_response()),
        None => Ok(page::all_decided(&session, &project).into_response()),
    }
}

/// Returns a task with its submitted annotations. Fails if there are fewer than two.
fn done_annotations(app: &App, project: &Project, number: usize) -> Result<(Task, Vec<Annotation>), PageError> {
    let all = app.store.projects().annotations(project.id)?;
    let done: Vec<Annotation> = all
        .into_iter()
        .filter(|annotation| annotation.task == number && annotation.state == AnnotationState::Done)
        .collect();
    let task = app.store.projects().task(project.id, number)?.filter(|_| done.len() > 1);
    Ok((task.ok_or_else(|| PageError::missing("Fewer than two people have submitted this task."))?, done))
}

/// Shows a task with its submitted annotations.
pub async fn show(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path((name, number)): Path<(String, usize)>,
) -> PageResult {
    reviewer(&app, &session)?;
    let project = project(&app, &name)?;
    let (task, annotations) = done_annotations(&app, &project, number)?;
    let left = queue(&app.store, &project)?.len();
    let verdict = app.store.projects().verdicts(project.id)?.remove(&number);
    let body = page::decision(
        &project,
        number,
        (&task, &shown(&project, number, &task)),
        &annotations,
        verdict.as_ref(),
        left,
    );
    Ok(framed(&session, &project, body).into_response())
}

/// Letters of a task's answers, which are the same for all reviewers. They reveal nothing about the models and differ from the annotators'
/// letters.
fn shown(project: &Project, number: usize, task: &Task) -> Shown {
    let seed = stable_hash(|hasher| {
        hasher.write_i64(project.id);
        hasher.write_u64(number as u64);
    });
    Shown::shuffled(task.answers.len(), seed)
}

/// Data for the script of the page: the decision so far, initially empty, and the annotations.
pub async fn state(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path((name, number)): Path<(String, usize)>,
) -> PageResult {
    let person = reviewer(&app, &session)?;
    let project = project(&app, &name)?;
    let (task, annotations) = done_annotations(&app, &project, number)?;
    let verdict = app.store.projects().verdicts(project.id)?.remove(&number);
    let (answer, revision) = verdict.map_or_else(Default::default, |verdict| (verdict.answer, verdict.revision));
    Ok(task_data(&project, &person, &task, (&answer, revision, &shown(&project, number, &task)), &annotations))
}

/// Stores a decision.
pub async fn keep(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path((name, number)): Path<(String, usize)>,
    body: Bytes,
) -> PageResult {
    let person = reviewer(&app, &session)?;
    let project = project(&app, &name)?;
    let kept: SaveBody = read(&body)?;
    let (task, _) = done_annotations(&app, &project, number)?;
    let shown = shown(&project, number, &task);
    let judged = judged(&project, &task, &kept.answer, kept.state, &shown)?;
    if kept.state == AnnotationState::Skipped {
        return Err(PageError::request(
            "A task that waits for a decision cannot be skipped. Leave it to another reviewer.",
        ));
    }
    let stored = app.store.projects().decide(project.id, number, person.id, &kept.as_save()?)?;
    saved((&project, &task, &shown), &kept.answer, judged, stored)
}

#[cfg(test)]
mod tests {
    use super::super::answer::Marked;
    use super::super::rank::Rank;
    use super::*;

    #[test]
    fn how_far_two_differ_is_a_share() {
        let task = Task {
            question: "Q".into(),
            passages: Vec::new(),
            reference: String::new(),
            answers: vec!["a b c".into(), "d".into(), "e".into()],
            models: Vec::new(),
            expected: None,
            attention: false,
            original: None,
        };
        let of = |set: &str, one: &Answer, other: &Answer| {
            let labels = LabelSet::open(set).expect("a label set");
            let (there, back) = (difference(&labels, &task, one, other), difference(&labels, &task, other, one));
            assert_eq!(there, back);
            there
        };
        let ranked = |ranks: &[(&str, Rank)]| Answer {
            ranks: ranks.iter().map(|(name, rank)| ((*name).to_owned(), *rank)).collect(),
            ..Answer::default()
        };
        let one = ranked(&[("1v2", Rank::First), ("1v3", Rank::First), ("2v3", Rank::Tie)]);
        let other = ranked(&[("1v2", Rank::First), ("1v3", Rank::Second), ("2v3", Rank::Bad)]);
        assert_eq!(of("comparison", &one, &one), 0.0);
        assert_eq!(of("comparison", &one, &other), 2.0 / 3.0);
        let rated = |value| Answer {
            questions: [("coherence".to_owned(), value), ("sentiment".to_owned(), 1)].into(),
            ..Answer::default()
        };
        assert_eq!(of("likert-imdb", &rated(1), &rated(5)), 0.5, "one of two scales from end to end");
        let marked = |start, end| Answer {
            spans: vec![Marked { kind: "Irrelevant".into(), start, end, ..Marked::default() }],
            ..Answer::default()
        };
        let none = Answer { no_error: true, ..Answer::default() };
        assert_eq!(of("fine-grained", &marked(0, 1), &marked(0, 1)), 0.0);
        assert_eq!(of("fine-grained", &marked(0, 1), &marked(2, 3)), 0.5);
        assert_eq!(of("fine-grained", &marked(0, 1), &none), 1.0);
        assert_eq!(of("fine-grained", &none, &none), 0.0);
    }
}
