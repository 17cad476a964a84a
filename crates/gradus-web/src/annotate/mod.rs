//! Annotation: people mark, correct, compare and judge answers; what they say becomes training rows.
//!
//! The rules are [`answer`]'s. A page sends everything after every change and shows what comes back: what is still to do, and
//! that it is kept.

pub mod answer;
pub mod export;
pub mod labels;
mod page;
pub mod stats;
pub mod task;
pub mod terminal;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State as Extracted};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect};
use axum::routing::{get, post};
use axum::{Extension, Form, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use self::answer::{Answer, pairs};
use crate::app::App;
use crate::failed::{Done, Failed, read};
use crate::page::{Page, Place};
use crate::store::projects::{Person, Project, Role, State};
use crate::store::sessions::Session;

/// The longest time that one change can add, in seconds: whoever leaves the page open is not at work.
const SECONDS_MAX: f64 = 300.0;

/// The routes below `/annotate`.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/annotate", get(list))
        .route("/annotate/enter", post(enter))
        .route("/annotate/leave", post(leave))
        .route("/annotate/{project}", get(next))
        .route("/annotate/{project}/colours.css", get(colours))
        .route("/annotate/{project}/results", get(results))
        .route("/annotate/{project}/{form}", get(download))
        .route("/annotate/{project}/task/{number}", get(show))
        .route("/annotate/{project}/task/{number}/state", get(state))
        .route("/annotate/{project}/task/{number}/keep", post(keep))
}

fn project(app: &App, name: &str) -> Result<Project, Failed> {
    app.store.projects().find(name)?.ok_or_else(|| Failed::missing("There is no such project."))
}

fn who(app: &App, session: &Session) -> Result<Person, Failed> {
    let found = app.store.projects().who(&session.id)?;
    found.ok_or_else(|| Failed::forbidden("Sign in first: the page Annotate has the form."))
}

async fn list(Extracted(app): Extracted<Arc<App>>, Extension(session): Extension<Session>) -> Done {
    let projects = app.store.projects();
    let person = projects.who(&session.id)?;
    let mut rows = Vec::new();
    for project in projects.list()? {
        let progress = person.as_ref().map(|person| projects.progress(project.id, person.id)).transpose()?;
        rows.push((project, progress));
    }
    Ok(page::list(&session, person.as_ref(), &rows).into_response())
}

#[derive(Deserialize)]
struct Entering {
    name: String,
    token: String,
}

async fn enter(
    Extracted(app): Extracted<Arc<App>>,
    Extension(session): Extension<Session>,
    Form(Entering { name, token }): Form<Entering>,
) -> Done {
    match app.store.projects().sign_in(&session.id, name.trim(), token.trim())? {
        true => Ok(Redirect::to("/annotate").into_response()),
        false => Err(Failed::forbidden("Name and token do not belong together.")),
    }
}

async fn leave(Extracted(app): Extracted<Arc<App>>, Extension(session): Extension<Session>) -> Done {
    app.store.projects().sign_out(&session.id)?;
    Ok(Redirect::to("/annotate").into_response())
}

async fn next(
    Extracted(app): Extracted<Arc<App>>,
    Extension(session): Extension<Session>,
    Path(name): Path<String>,
) -> Done {
    let (project, person) = (project(&app, &name)?, who(&app, &session)?);
    match app.store.projects().next(&project, person.id)? {
        Some(number) => Ok(Redirect::to(&page::task_path(&project, number)).into_response()),
        None => Ok(page::nothing_left(&session, &project).into_response()),
    }
}

async fn colours(Extracted(app): Extracted<Arc<App>>, Path(name): Path<String>) -> Done {
    let labels = project(&app, &name)?.labels;
    let types = labels.spans.iter().chain(&labels.missing).enumerate();
    // A colour was checked to be one when the label set was read.
    let css: String = types.map(|(i, kind)| format!(".kind-{i} {{ --kind: {}; }}\n", kind.colour)).collect();
    Ok(([(header::CONTENT_TYPE, "text/css; charset=utf-8")], css).into_response())
}

async fn show(
    Extracted(app): Extracted<Arc<App>>,
    Extension(session): Extension<Session>,
    Path((name, number)): Path<(String, usize)>,
) -> Done {
    let (project, person) = (project(&app, &name)?, who(&app, &session)?);
    let projects = app.store.projects();
    let Some(annotation) = projects.annotation(project.id, number, person.id)? else {
        return Err(Failed::forbidden("This task is not yours: others are at it, or it does not exist."));
    };
    let task = projects.task(project.id, number)?.ok_or_else(|| Failed::missing("There is no such task."))?;
    let progress = projects.progress(project.id, person.id)?;
    let body = page::task(&project, number, &task, annotation.state, progress);
    let (styles, scripts) = (page::path(&project, "colours.css"), ["page.js", "annotate.js"]);
    let page =
        Page { title: &project.labels.name, place: Place::Annotate, scripts: &scripts, styles: &[&styles], body };
    Ok(page.framed(&session).into_response())
}

/// Whether the pair is shown the other way round: by chance, and always the same for one person.
fn is_turned(person: &str, number: usize, pair: usize) -> bool {
    let mut hasher = DefaultHasher::new();
    (person, number, pair).hash(&mut hasher);
    hasher.finish() % 2 == 1
}

fn judged(project: &Project, task: &task::Task, answer: &Answer) -> Value {
    json!({ "problems": answer.problems(&project.labels, task), "warnings": answer.warnings(&project.labels, task) })
}

async fn state(
    Extracted(app): Extracted<Arc<App>>,
    Extension(session): Extension<Session>,
    Path((name, number)): Path<(String, usize)>,
) -> Done {
    let (project, person) = (project(&app, &name)?, who(&app, &session)?);
    let projects = app.store.projects();
    let found = projects.annotation(project.id, number, person.id)?.zip(projects.task(project.id, number)?);
    let (annotation, task) = found.ok_or_else(|| Failed::missing("There is no such task of yours."))?;
    let turned: Vec<bool> =
        (0..pairs(task.answers.len()).len()).map(|pair| is_turned(&person.name, number, pair)).collect();
    let all = json!({
        "labels": project.labels,
        "answers": task.answers,
        "passages": task.passages.iter().map(|passage| passage.sentences.len()).collect::<Vec<_>>(),
        "turned": turned,
        "answer": annotation.answer,
        "judged": judged(&project, &task, &annotation.answer),
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], all.to_string()).into_response())
}

#[derive(Deserialize)]
struct Kept {
    answer: Answer,
    state: State,
    #[serde(default)]
    reason: String,
    seconds: f64,
}

/// Keeps what someone says. What is not finished is kept too, but not handed in; what no page sends is not kept at all.
async fn keep(
    Extracted(app): Extracted<Arc<App>>,
    Extension(session): Extension<Session>,
    Path((name, number)): Path<(String, usize)>,
    body: Bytes,
) -> Done {
    let (project, person) = (project(&app, &name)?, who(&app, &session)?);
    let Kept { answer, state, reason, seconds } = read(&body)?;
    let projects = app.store.projects();
    let task = projects.task(project.id, number)?.ok_or_else(|| Failed::missing("There is no such task."))?;
    if let Some(problem) = answer.broken(&project.labels, &task).first() {
        return Err(Failed::request(problem));
    }
    let judged = judged(&project, &task, &answer);
    if state == State::Done && judged["problems"].as_array().is_some_and(|problems| !problems.is_empty()) {
        return Err(Failed::request("It is not finished: the page says what is to do."));
    }
    if state == State::Skipped && reason.trim().is_empty() {
        return Err(Failed::request("Say why you skip it."));
    }
    let seconds = if seconds.is_finite() { seconds.clamp(0.0, SECONDS_MAX) } else { 0.0 };
    match projects.keep(project.id, number, person.id, (&answer, state, reason.trim()), seconds)? {
        true => Ok(([(header::CONTENT_TYPE, "application/json")], judged.to_string()).into_response()),
        false => Err(Failed::forbidden("This task is not yours.")),
    }
}

async fn results(
    Extracted(app): Extracted<Arc<App>>,
    Extension(session): Extension<Session>,
    Path(name): Path<String>,
) -> Done {
    let (project, person) = (project(&app, &name)?, who(&app, &session)?);
    if person.role == Role::Annotator {
        return Err(Failed::forbidden("What others said is for reviewers: annotators are blind to each other."));
    }
    let stats = stats::stats(&app.store, &project)?;
    Ok(page::results(&session, &project, &stats).into_response())
}

async fn download(
    Extracted(app): Extracted<Arc<App>>,
    Extension(session): Extension<Session>,
    Path((name, form)): Path<(String, String)>,
) -> Done {
    let (project, person) = (project(&app, &name)?, who(&app, &session)?);
    if person.role != Role::Owner {
        return Err(Failed::forbidden("Exports are for the owner of the project."));
    }
    let form = form.strip_suffix(".jsonl").and_then(export::Form::of);
    let form = form.ok_or_else(|| Failed::missing("There is no page at this address."))?;
    let rows = export::rows(&app.store, &project, form)?;
    let text: String = rows.into_iter().map(|row| format!("{}\n", Value::Object(row))).collect();
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, "application/jsonl; charset=utf-8")], text).into_response())
}
