//! Annotation: people mark, correct, compare and judge answers; what they say becomes training rows.
//!
//! The rules are [`answer`]'s. A page sends everything after every change and shows what comes back: what is still to do, and
//! that it is kept.

pub mod adjudicate;
pub mod answer;
pub mod export;
pub mod foreign;
pub mod labels;
mod page;
pub mod stats;
pub mod task;
pub mod terminal;
mod train;

use std::hash::Hasher;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State as Extracted};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Form, Router};
use gradus::files::output::OutputFile;
use serde::Deserialize;
use serde_json::{Value, json};
use siphasher::sip::SipHasher13;

use self::answer::{Answer, pairs};
use crate::app::App;
use crate::connections::Place;
use crate::failed::{Done, Failed, read};
use crate::guard::secret;
use crate::page::{Page, Place as Where};
use crate::passing::Passing;
use crate::runs::apart;
use crate::store::projects::{Person, Project, Role, State};
use crate::store::sessions::Session;

/// The longest time that one change can add, in seconds: whoever leaves the page open is not at work.
const SECONDS_MAX: f64 = 300.0;

/// What downloads end in, and what they are.
const DOWNLOADS: [(&str, &str); 5] = [
    ("jsonl", "application/jsonl; charset=utf-8"),
    ("json", "application/json"),
    ("csv", "text/csv; charset=utf-8"),
    ("parquet", "application/vnd.apache.parquet"),
    ("arrow", "application/vnd.apache.arrow.stream"),
];

/// The routes below `/annotate`.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/annotate", get(list))
        .route("/annotate/enter", post(enter))
        .route("/annotate/leave", post(leave))
        .route("/annotate/{project}", get(next))
        .route("/annotate/{project}/colours.css", get(colours))
        .route("/annotate/{project}/results", get(results))
        .route("/annotate/{project}/adjudicate", get(adjudicate::next))
        .route("/annotate/{project}/adjudicate/{number}", get(adjudicate::show))
        .route("/annotate/{project}/adjudicate/{number}/state", get(adjudicate::state))
        .route("/annotate/{project}/adjudicate/{number}/keep", post(adjudicate::keep))
        .route("/annotate/{project}/train", post(train::train))
        .route("/annotate/{project}/compare", post(train::compare))
        .route("/annotate/{project}/{form}", get(download))
        .route("/annotate/{project}/task/{number}", get(show))
        .route("/annotate/{project}/task/{number}/state", get(state))
        .route("/annotate/{project}/task/{number}/keep", post(keep))
}

fn project(app: &App, name: &str) -> Result<Project, Failed> {
    app.store.projects().find(name)?.ok_or_else(|| Failed::missing("There is no such project."))
}

fn who(app: &App, session: &Session) -> Result<Person, Failed> {
    let found = app.store.projects().who(session)?;
    found.ok_or_else(|| Failed::forbidden("Sign in first: the page Annotate has the form."))
}

async fn list(Extracted(app): Extracted<Arc<App>>, Extension(session): Extension<Session>) -> Done {
    let projects = app.store.projects();
    let person = projects.who(&session)?;
    let mut rows = Vec::new();
    for project in projects.list()? {
        let progress = person.as_ref().map(|person| projects.progress(project.id, person.id)).transpose()?;
        rows.push((project, progress));
    }
    let mut made = app.training.projects();
    made.retain(|making| rows.iter().all(|(project, _)| project.name != making.name));
    Ok(page::list(&session, person.as_ref(), &rows, &made).into_response())
}

#[derive(Deserialize)]
struct Entering {
    name: String,
    token: String,
}

async fn enter(
    Extracted(app): Extracted<Arc<App>>,
    Extension(session): Extension<Session>,
    place: Option<Extension<Arc<Place>>>,
    Form(Entering { name, token }): Form<Entering>,
) -> Done {
    match app.store.projects().sign_in(&session, name.trim(), token.trim())? {
        Some(session) => {
            let cookie = [(header::SET_COOKIE, app.guard.session_cookie(&session))];
            Ok((cookie, Redirect::to("/annotate")).into_response())
        }
        None => {
            app.wrong_guess(place.as_deref()).await;
            Err(Failed::forbidden("Name and token do not belong together."))
        }
    }
}

async fn leave(Extracted(app): Extracted<Arc<App>>, Extension(session): Extension<Session>) -> Done {
    app.store.projects().sign_out(&session)?;
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
        Page { title: &project.labels.name, place: Where::Annotate, scripts: &scripts, styles: &[&styles], body };
    Ok(page.framed(&session).into_response())
}

/// SipHash-1-3 with the key 0. It decides on which side an answer stands and which number a person has in an export, so it must be the
/// same in every build; the hasher of the standard library does not promise that.
fn stable_hash(write: impl FnOnce(&mut SipHasher13)) -> u64 {
    let mut hasher = SipHasher13::new();
    write(&mut hasher);
    hasher.finish()
}

/// Ends a text in a hash, so that `ab` and `c` differ from `a` and `bc`.
const END: u8 = 0xff;

/// Whether the pair is shown with its sides swapped: at random, and always the same for one person.
fn is_swapped(person: &str, number: usize, pair: usize) -> bool {
    let hash = stable_hash(|hasher| {
        hasher.write(person.as_bytes());
        hasher.write_u8(END);
        hasher.write_u64(number as u64);
        hasher.write_u64(pair as u64);
    });
    hash % 2 == 1
}

fn in_words(project: &Project, task: &task::Task, answer: &Answer) -> Value {
    json!({ "problems": answer.problems(&project.labels, task), "warnings": answer.warnings(&project.labels, task) })
}

/// What is still to do, for the page. What no page sends, and what is handed in unfinished, is refused.
fn judged(project: &Project, task: &task::Task, answer: &Answer, state: State) -> Result<Response, Failed> {
    if let Some(problem) = answer.broken(&project.labels, task).first() {
        return Err(Failed::request(problem));
    }
    let judged = in_words(project, task, answer);
    if state == State::Done && judged["problems"].as_array().is_some_and(|problems| !problems.is_empty()) {
        return Err(Failed::request("It is not finished: the page says what is to do."));
    }
    Ok(([(header::CONTENT_TYPE, "application/json")], judged.to_string()).into_response())
}

/// What a task asks of someone, for the page's script.
fn asked(project: &Project, person: &Person, number: usize, task: &task::Task, answer: &Answer) -> Response {
    let turned: Vec<bool> =
        (0..pairs(task.answers.len()).len()).map(|pair| is_swapped(&person.name, number, pair)).collect();
    let all = json!({
        "labels": project.labels,
        "answers": task.answers,
        "passages": task.passages.iter().map(|passage| passage.sentences.len()).collect::<Vec<_>>(),
        "turned": turned,
        "answer": answer,
        "judged": in_words(project, task, answer),
    });
    ([(header::CONTENT_TYPE, "application/json")], all.to_string()).into_response()
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
    Ok(asked(&project, &person, number, &task, &annotation.answer))
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
    let judged = judged(&project, &task, &answer, state)?;
    if state == State::Skipped && reason.trim().is_empty() {
        return Err(Failed::request("Say why you skip it."));
    }
    let seconds = if seconds.is_finite() { seconds.clamp(0.0, SECONDS_MAX) } else { 0.0 };
    match projects.keep(project.id, number, person.id, (&answer, state, reason.trim()), seconds)? {
        true => Ok(judged),
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
    let waiting = adjudicate::queue(&app.store, &project)?.len();
    let models = if person.role == Role::Owner { Some(train::models(&app).await) } else { None };
    let train = models.map(|models| train::section(&app, &session, &project, &models));
    Ok(page::results(&session, &project, &stats, waiting, train).into_response())
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
    let missing = || Failed::missing("There is no page at this address.");
    let (form, ending) = form.rsplit_once('.').ok_or_else(missing)?;
    let form = export::Form::of(form).ok_or_else(missing)?;
    let kind = DOWNLOADS.iter().find(|(known, _)| *known == ending).ok_or_else(missing)?.1;
    let rows = export::rows(&app.store, &project, form)?;
    let (of, ending) = (app.folder.clone(), ending.to_owned());
    let bytes = apart(move || -> gradus::Result<Vec<u8>> {
        let passing = Passing(of.join(format!(".{}.{ending}", secret())));
        gradus::data::write_rows(&OutputFile::new(&passing.0)?, &rows)?;
        std::fs::read(&passing.0).map_err(|error| gradus::Error::io(&passing.0, error))
    });
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, kind)], bytes.await??).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of earlier versions, which projects with annotations depend on.
    #[test]
    fn sides_stay_where_they_were() {
        let sides: String =
            (0..32).map(|i| if is_swapped(["ada", "grace"][i % 2], i / 2, i % 3) { '1' } else { '0' }).collect();
        assert_eq!(sides, "10110011111001011111011001100111");
    }
}
