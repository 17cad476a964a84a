//! Annotation: people mark, correct, compare and rate answers. Their annotations become training rows.
//!
//! The rules are in [`answer`]. A page sends the whole annotation after every change. The server responds with the open parts and the
//! number of the stored revision. A page that has not seen the latest revision is rejected and shows both versions.

pub mod adjudicate;
pub mod answer;
pub mod export;
pub mod foreign;
pub mod labels;
mod page;
mod rank;
pub mod shown;
pub mod stats;
pub mod task;
pub mod terminal;
mod train;
mod turns;
pub mod words;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Form, Router};
use gradus::files::output::OutputFile;
use gradus::shell;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::answer::Answer;
use self::shown::Shown;
use crate::app::App;
use crate::connections::ClientConnection;
use crate::page::{Page, Section};
use crate::page_error::{PageError, PageResult, Path, read};
use crate::runs::blocking;
use crate::secret::secret;
use crate::store::projects::{Annotation, AnnotationState, LEASE_MINUTES, Person, Project, Role, Save, Saved};
use crate::store::sessions::Session;
use crate::temp_file::TempFile;
use crate::training::data_files;

/// Maximum time in seconds that one change can add. A person who leaves the page open is not working.
const SECONDS_MAX: f64 = 300.0;

/// File extensions of downloads, and their content types.
const DOWNLOADS: [(&str, &str); 5] = [
    ("jsonl", "application/jsonl; charset=utf-8"),
    ("json", "application/json"),
    ("csv", "text/csv; charset=utf-8"),
    ("parquet", "application/vnd.apache.parquet"),
    ("arrow", "application/vnd.apache.arrow.stream"),
];

/// Returns the routes below `/annotate`.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/annotate", get(list))
        .route("/annotate/enter", post(enter))
        .route("/annotate/leave", post(leave))
        // Names of projects cannot begin with `+`.
        .route("/annotate/+new", post(make))
        .route("/annotate/+invite", post(invite))
        .route("/annotate/{project}", get(next))
        .route("/annotate/{project}/colors.css", get(colors))
        .route("/annotate/{project}/results", get(results))
        .route("/annotate/{project}/adjudicate", get(adjudicate::next))
        .route("/annotate/{project}/adjudicate/{number}", get(adjudicate::show))
        .route("/annotate/{project}/adjudicate/{number}/state", get(adjudicate::state))
        .route("/annotate/{project}/adjudicate/{number}/keep", post(adjudicate::keep))
        .route("/annotate/{project}/release", post(release))
        .route("/annotate/{project}/train", post(train::train))
        .route("/annotate/{project}/compare", post(train::compare))
        .route("/annotate/{project}/{form}", get(download))
        .route("/annotate/{project}/task/{number}", get(show))
        .route("/annotate/{project}/task/{number}/state", get(state))
        .route("/annotate/{project}/task/{number}/keep", post(keep))
}

fn project(app: &App, name: &str) -> Result<Project, PageError> {
    app.store.projects().find(name)?.ok_or_else(|| PageError::missing("There is no such project."))
}

fn who(app: &App, session: &Session) -> Result<Person, PageError> {
    let found = app.store.projects().who(session)?;
    found.ok_or_else(|| PageError::forbidden("Sign in first, on the page Annotate."))
}

async fn list(State(app): State<Arc<App>>, Extension(session): Extension<Session>) -> PageResult {
    Ok(listed(&app, &session, None).await?.into_response())
}

/// Renders the page of projects. `refused` is the name of a person whose token was wrong.
async fn listed(app: &Arc<App>, session: &Session, refused: Option<&str>) -> Result<Html<String>, PageError> {
    let projects = app.store.projects();
    let person = projects.who(session)?;
    let mut rows = Vec::new();
    for project in projects.list()? {
        let progress = person.as_ref().map(|person| projects.progress(project.id, person.id)).transpose()?;
        rows.push((project, progress));
    }
    let mut made = app.training.projects();
    made.retain(|pending| rows.iter().all(|(project, _)| project.name != pending.name));
    let is_owner = person.as_ref().is_some_and(|person| person.role == Role::Owner);
    let data = if is_owner { files(app).await?.into_iter().map(|(name, _)| name).collect() } else { Vec::new() };
    let form = is_owner.then_some(page::ProjectForm { data: &data });
    Ok(page::list(session, person.as_ref(), &rows, &made, form.as_ref(), &folder(app), refused))
}

/// Returns the served folder, quoted for commands.
fn folder(app: &App) -> String {
    shell::path(&app.folder)
}

/// Returns the data files of the folder, with their names relative to it.
async fn files(app: &Arc<App>) -> Result<Vec<(String, std::path::PathBuf)>, PageError> {
    let folder = app.folder.clone();
    blocking(move || data_files(&folder)).await
}

/// Returns the owner of the session.
fn owner(app: &App, session: &Session) -> Result<Person, PageError> {
    let person = who(app, session)?;
    match person.role {
        Role::Owner => Ok(person),
        Role::Annotator | Role::Reviewer => Err(PageError::forbidden("Only owners create projects and invite people.")),
    }
}

#[derive(Deserialize)]
struct NewProject {
    name: String,
    data: String,
    labels: String,
    annotators: String,
}

/// Creates a project from a data file of the folder.
async fn make(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Form(NewProject { name, data, labels, annotators }): Form<NewProject>,
) -> PageResult {
    owner(&app, &session)?;
    let annotators = annotators.trim().parse::<usize>().ok().filter(|count| (1..=100).contains(count));
    let annotators = annotators.ok_or_else(|| PageError::request("People per task must be a number from 1 to 100."))?;
    // Accepts only the choices of the form. Pages cannot name paths.
    if !labels::BUILT_IN.iter().any(|(known, _)| *known == labels) {
        return Err(PageError::request("There is no such label set."));
    }
    let path = files(&app).await?.into_iter().find(|(known, _)| *known == data).map(|(_, path)| path);
    let path = path.ok_or_else(|| PageError::request("There is no such data file."))?;
    let new = terminal::NewProject {
        name: name.trim().to_owned(),
        data: path.to_string_lossy().into_owned(),
        labels,
        annotators,
        lease_minutes: LEASE_MINUTES,
        max_tasks: None,
        sampled: None,
        uncertain_to: None,
        device: gradus::device::DeviceChoice::cpu(),
    };
    let of = Arc::clone(&app);
    blocking(move || terminal::make_project(&of.folder, &of.store, &new, &mut |_, _| {})).await??;
    Ok(Redirect::to("/annotate").into_response())
}

#[derive(Deserialize)]
struct Invitation {
    name: String,
    role: String,
}

/// Creates a token for a person.
async fn invite(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Form(Invitation { name, role }): Form<Invitation>,
) -> PageResult {
    let own = owner(&app, &session)?;
    let (name, role) = (name.trim(), Role::of(&role).ok_or_else(|| PageError::request("There is no such role."))?);
    if name.is_empty() {
        return Err(PageError::request("A name is needed."));
    }
    if name == own.name {
        return Err(PageError::request(&format!(
            "A new token for yourself would sign you out. Use `gradus annotate invite {} --role owner --folder {}`.",
            shell::word(name),
            folder(&app)
        )));
    }
    let token = app.store.projects().invite(name, role)?;
    Ok(page::invited(&session, name, role, &token).into_response())
}

#[derive(Deserialize)]
struct SignInForm {
    name: String,
    token: String,
}

async fn enter(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    place: Option<Extension<Arc<ClientConnection>>>,
    Form(SignInForm { name, token }): Form<SignInForm>,
) -> PageResult {
    match app.store.projects().sign_in(&session, name.trim(), token.trim())? {
        Some(session) => {
            let cookie = [(header::SET_COOKIE, app.guard.session_cookie(&session))];
            Ok((cookie, Redirect::to("/annotate")).into_response())
        }
        None => {
            app.wrong_guess(place.as_deref()).await;
            Ok((StatusCode::FORBIDDEN, listed(&app, &session, Some(name.trim())).await?).into_response())
        }
    }
}

async fn leave(State(app): State<Arc<App>>, Extension(session): Extension<Session>) -> PageResult {
    app.store.projects().sign_out(&session)?;
    Ok(Redirect::to("/annotate").into_response())
}

async fn next(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path(name): Path<String>,
) -> PageResult {
    let (project, person) = (project(&app, &name)?, who(&app, &session)?);
    match app.store.projects().next(&project, person.id)? {
        Some(number) => Ok(Redirect::to(&page::task_path(&project, number)).into_response()),
        None => {
            let own = app.store.projects().own(project.id, person.id)?;
            Ok(page::nothing_left(&session, &project, &own).into_response())
        }
    }
}

async fn colors(State(app): State<Arc<App>>, Path(name): Path<String>) -> PageResult {
    let css = labels::stylesheet(&project(&app, &name)?.labels);
    Ok(([(header::CONTENT_TYPE, "text/css; charset=utf-8")], css).into_response())
}

async fn show(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path((name, number)): Path<(String, usize)>,
) -> PageResult {
    let (project, person) = (project(&app, &name)?, who(&app, &session)?);
    let projects = app.store.projects();
    let Some(annotation) = projects.open(project.id, number, person.id)? else {
        return Err(PageError::forbidden(
            "This task is not yours. Other people have it, you left it for too long, or it does not exist.",
        ));
    };
    let task = projects.task(project.id, number)?.ok_or_else(|| PageError::missing("There is no such task."))?;
    let own = projects.own(project.id, person.id)?;
    let body = page::task(&project, number, &task, &annotation, &own);
    Ok(framed(&session, &project, body).into_response())
}

/// Renders the page of a task, with the script and the colors that all such pages share.
fn framed(session: &Session, project: &Project, body: gradus::html::Html) -> Html<String> {
    let (styles, scripts) = (page::path(project, "colors.css"), ["page.js", "saving.js", "annotate.js"]);
    let page =
        Page { title: &project.labels.name, section: Section::Annotate, scripts: &scripts, styles: &[&styles], body };
    page.framed(session)
}

/// What a page shows about an answer.
#[derive(Serialize)]
struct Judgment {
    /// Missing steps. An answer is finished if there are none.
    problems: Vec<String>,
    warnings: Vec<String>,
}

impl Judgment {
    fn of(project: &Project, task: &task::Task, answer: &Answer, shown: &Shown) -> Self {
        let problems = answer.problems(&project.labels, task, shown);
        Self { problems, warnings: answer.warnings(&project.labels, task) }
    }
}

/// Judges an answer. Rejects annotations that no page can produce, and unfinished ones that are submitted.
fn judged(
    project: &Project,
    task: &task::Task,
    answer: &Answer,
    state: AnnotationState,
    shown: &Shown,
) -> Result<Judgment, PageError> {
    if let Some(problem) = answer.broken(&project.labels, task).first() {
        return Err(PageError::request(problem));
    }
    let judged = Judgment::of(project, task, answer, shown);
    if state == AnnotationState::Done && !judged.problems.is_empty() {
        return Err(PageError::request("The task is not finished. The page lists the missing steps."));
    }
    Ok(judged)
}

fn json_of(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// Returns the response to a save: the open parts and the stored revision. If another page has stored something else, returns both
/// versions.
fn saved(
    (project, task, shown): (&Project, &task::Task, &Shown),
    mine: &Answer,
    Judgment { problems, warnings }: Judgment,
    saved: Saved,
) -> PageResult {
    match saved {
        Saved::Stored(revision) => {
            Ok(json_of(&json!({ "problems": problems, "warnings": warnings, "revision": revision })))
        }
        Saved::Stale(stored) => {
            let lines = |answer: &Answer| page::in_words(project, task, answer, shown);
            let both = json!({
                "answer": stored.answer, "state": stored.state, "revision": stored.revision,
                "theirs": lines(&stored.answer), "mine": lines(mine),
            });
            Ok((StatusCode::CONFLICT, json_of(&both)).into_response())
        }
        Saved::Nowhere => Err(PageError::forbidden("This task is not yours any more.")),
    }
}

/// Returns the data for the script of a task's page.
fn task_data(
    project: &Project,
    person: &Person,
    task: &task::Task,
    (answer, revision, shown): (&Answer, u64, &Shown),
    annotations: &[Annotation],
) -> Response {
    let passages =
        task.passages.iter().map(|passage| json!({ "title": passage.title, "sentences": passage.sentences }));
    let annotations =
        annotations.iter().map(|annotation| json!({ "person": annotation.person, "answer": annotation.answer }));
    json_of(&json!({
        "labels": project.labels,
        "answers": task.answers,
        "words": words::words(task.answers.first().map_or("", String::as_str)),
        "passages": passages.collect::<Vec<_>>(),
        "shown": shown,
        "answer": answer,
        "revision": revision,
        "person": person.name,
        "said": annotations.collect::<Vec<_>>(),
        "judged": Judgment::of(project, task, answer, shown),
    }))
}

/// Returns the letters and sides that a person saw. An annotation from another tool that nobody has opened here has no order.
fn shown_of(annotation: &Annotation, task: &task::Task) -> Shown {
    let shown = annotation.shown.clone().filter(|shown| shown.fits(task.answers.len()));
    shown.unwrap_or_else(|| Shown::as_given(task.answers.len()))
}

async fn state(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path((name, number)): Path<(String, usize)>,
) -> PageResult {
    let (project, person) = (project(&app, &name)?, who(&app, &session)?);
    let projects = app.store.projects();
    let found = projects.annotation(project.id, number, person.id)?.zip(projects.task(project.id, number)?);
    let (annotation, task) = found.ok_or_else(|| PageError::missing("There is no such task of yours."))?;
    let shown = shown_of(&annotation, &task);
    Ok(task_data(&project, &person, &task, (&annotation.answer, annotation.revision, &shown), &[]))
}

#[derive(Deserialize)]
struct SaveBody {
    answer: Answer,
    state: AnnotationState,
    #[serde(default)]
    reason: String,
    seconds: f64,
    /// Latest revision that the page has seen.
    #[serde(default)]
    revision: u64,
    /// Name of the page. Programs have none.
    #[serde(default)]
    page: String,
}

/// Maximum length of a page's name.
const PAGE_NAME: usize = 64;

impl SaveBody {
    fn as_save(&self) -> Result<Save<'_>, PageError> {
        if self.page.len() > PAGE_NAME {
            return Err(PageError::request("The name of the page is too long."));
        }
        let seconds = if self.seconds.is_finite() { self.seconds.clamp(0.0, SECONDS_MAX) } else { 0.0 };
        let Self { answer, state, reason, revision, page, .. } = self;
        Ok(Save { answer, state: *state, reason: reason.trim(), seconds, revision: *revision, page })
    }
}

/// Stores an annotation. Unfinished annotations are stored too, but cannot be submitted.
async fn keep(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path((name, number)): Path<(String, usize)>,
    body: Bytes,
) -> PageResult {
    let (project, person) = (project(&app, &name)?, who(&app, &session)?);
    let kept: SaveBody = read(&body)?;
    let projects = app.store.projects();
    let found = projects.annotation(project.id, number, person.id)?.zip(projects.task(project.id, number)?);
    let (annotation, task) = found.ok_or_else(|| PageError::forbidden("This task is not yours."))?;
    let shown = shown_of(&annotation, &task);
    let judged = judged(&project, &task, &kept.answer, kept.state, &shown)?;
    if kept.state == AnnotationState::Skipped && kept.reason.trim().is_empty() {
        return Err(PageError::request("Enter why you skip the task."));
    }
    let stored = projects.save(project.id, number, person.id, &kept.as_save()?)?;
    saved((&project, &task, &shown), &kept.answer, judged, stored)
}

#[derive(Deserialize)]
struct Release {
    task: usize,
    person: String,
}

/// Ends a person's claim on an open task.
async fn release(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path(name): Path<String>,
    Form(Release { task, person }): Form<Release>,
) -> PageResult {
    let (project, owner) = (project(&app, &name)?, who(&app, &session)?);
    if owner.role != Role::Owner {
        return Err(PageError::forbidden("Only the owner of the project can release tasks."));
    }
    app.store.projects().release(project.id, Some(task), Some(&person))?;
    Ok(Redirect::to(&page::path(&project, "results")).into_response())
}

async fn results(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path(name): Path<String>,
) -> PageResult {
    let (project, person) = (project(&app, &name)?, who(&app, &session)?);
    if person.role == Role::Annotator {
        return Err(PageError::forbidden("Only reviewers see the results: annotators do not see the work of others."));
    }
    let stats = stats::stats(&app.store, &project)?;
    let waiting = adjudicate::queue(&app.store, &project)?.len();
    let owner = match person.role {
        Role::Owner => {
            let models = train::models(&app).await;
            let train = train::section(&app, &session, &project, &models);
            let mut forms = Vec::new();
            for form in export::Form::ALL {
                if !export::rows(&app.store, &project, form)?.is_empty() {
                    forms.push(form);
                }
            }
            Some(page::OwnerResults { forms, train })
        }
        Role::Annotator | Role::Reviewer => None,
    };
    Ok(page::results(&session, &project, &stats, waiting, owner, &folder(&app)).into_response())
}

async fn download(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path((name, form)): Path<(String, String)>,
) -> PageResult {
    let (project, person) = (project(&app, &name)?, who(&app, &session)?);
    if person.role != Role::Owner {
        return Err(PageError::forbidden("Exports are for the owner of the project."));
    }
    let missing = || PageError::missing("There is no page at this address.");
    let (form, ending) = form.rsplit_once('.').ok_or_else(missing)?;
    let form = export::Form::of(form).ok_or_else(missing)?;
    let kind = DOWNLOADS.iter().find(|(known, _)| *known == ending).ok_or_else(missing)?.1;
    let rows = export::rows(&app.store, &project, form)?;
    let (of, ending) = (app.folder.clone(), ending.to_owned());
    let bytes = blocking(move || -> gradus::Result<Vec<u8>> {
        let passing = TempFile(of.join(format!(".{}.{ending}", secret())));
        gradus::data::write_rows(&OutputFile::new(&passing.0)?, &rows)?;
        std::fs::read(&passing.0).map_err(|error| gradus::Error::io(&passing.0, error))
    });
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, kind)], bytes.await??).into_response())
}
