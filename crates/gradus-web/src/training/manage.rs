//! Actions on runs: stop, resume, export, delete. The library implements them; this module checks the permissions and selects the run.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::{IntoResponse, Redirect};
use axum::{Extension, Form};
use gradus::Error;
use gradus::runs::{Entry, Library, Status, export as copy, snapshots};
use serde::Deserialize;

use super::processes::{AT_ONCE, ProcessTask, StartedRun, configs};
use super::start::files;
use super::{is_plain, library, may_train, own, page};
use crate::app::App;
use crate::page::{Page, Section};
use crate::page_error::{PageError, PageResult};
use crate::runs::query_params::{QueryParams, first};
use crate::runs::{address, blocking};
use crate::store::sessions::Session;
use crate::within;

/// Subdirectory of exported models.
const MODELS: &str = "models";

#[derive(Deserialize)]
pub struct Named {
    run: String,
}

/// Asks the trainer of a run to stop after a checkpoint.
pub async fn stop(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Form(Named { run }): Form<Named>,
) -> PageResult {
    may_train(&app, &session)?;
    let path = own(&app, &run)?;
    let name = run.clone();
    let entry = blocking(move || Entry::read(name, &path)).await?;
    let stretch = (entry.path.clone(), entry.started);
    let mut processes = app.training.processes();
    if processes.stopping.contains(&stretch) {
        return Err(PageError::request(
            "The run is already stopping: it ends after its current step and a checkpoint.",
        ));
    }
    library(&app).stop(&run)?;
    processes.stopping.retain(|(path, _)| *path != stretch.0);
    processes.stopping.push(stretch);
    Ok(Redirect::to(&address("show", &run)).into_response())
}

#[derive(Deserialize)]
pub struct Resumed {
    run: String,
    #[serde(default)]
    max_steps: String,
}

/// Resumes a run from its last checkpoint.
pub async fn resume(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Form(Resumed { run, max_steps }): Form<Resumed>,
) -> PageResult {
    let starter = may_train(&app, &session)?;
    let path = own(&app, &run)?;
    let max_steps = match max_steps.trim() {
        "" => None,
        steps => Some(
            steps
                .parse::<usize>()
                .ok()
                .filter(|steps| *steps > 0)
                .ok_or_else(|| PageError::request(&format!("{steps} is not a number of steps.")))?,
        ),
    };
    let (of, at) = (run.clone(), path.clone());
    let entry = blocking(move || Entry::read(of, &at)).await?;
    if entry.state == Status::Running {
        return Err(PageError::request("The run is already running."));
    }
    if entry.state == Status::Finished && max_steps.is_none_or(|steps| steps <= entry.step) {
        return Err(PageError::request(
            "The run has finished all its steps. Set the total number of steps to train further.",
        ));
    }
    let mut processes = app.training.processes();
    let going = processes.started.iter().filter(|started| !started.has_ended).count();
    if going >= AT_ONCE {
        return Err(PageError::request(&format!("{going} runs are running, which is the limit: stop one, or wait.")));
    }
    if processes.started.iter().any(|started| started.name == run && !started.has_ended) {
        return Err(PageError::request("The run is already running."));
    }
    let (_, log) = files(&configs(&app.folder)?, &run);
    let going = starter.begin(&ProcessTask::Resume { run: &path, max_steps }, &log)?;
    processes.started.retain(|before| before.name != run);
    processes.started.push(StartedRun {
        name: run.clone(),
        directory: path,
        log,
        going,
        has_ended: false,
        was_there: true,
        before: entry.started,
    });
    Ok(Redirect::to(&address("show", &run)).into_response())
}

#[derive(Deserialize)]
pub struct Exported {
    run: String,
    snapshot: String,
    name: String,
}

/// Copies a model of a run to a separate folder.
pub async fn export(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Form(Exported { run, snapshot, name }): Form<Exported>,
) -> PageResult {
    may_train(&app, &session)?;
    let path = own(&app, &run)?;
    if !is_plain(&name) {
        return Err(PageError::request("This name cannot be used for a model: use letters, digits, -, _ and ."));
    }
    let folder = app.folder.clone();
    let done = blocking(move || -> gradus::Result<()> {
        let models = within::made(&folder, MODELS)?;
        let entry = Entry::read(run, &path);
        let found = snapshots(&entry.directory()?, None)?;
        let chosen = found.iter().find(|found| found.name() == snapshot);
        let chosen = chosen.ok_or_else(|| Error::input(format!("the run has no model `{snapshot}`")))?;
        copy(chosen, &models.join(name), false).map(drop)
    });
    done.await??;
    Ok(Redirect::to("/").into_response())
}

/// Renders the confirmation of a deletion, with everything that would be lost.
pub async fn ask(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Query(query): Query<QueryParams>,
) -> PageResult {
    may_train(&app, &session)?;
    let run = first(&query, "run").unwrap_or_default().to_owned();
    let path = own(&app, &run)?;
    Library::check_removable(&path)?;
    let (of, name) = (library(&app), run.clone());
    let (entry, users) = blocking(move || (Entry::read(name, &path), of.users_of(&path))).await?;
    let title = format!("Delete {run}?");
    let body = page::delete(&session, &entry, &users);
    Ok(Page { title: &title, section: Section::Runs, scripts: &[], styles: &[], body }.framed(&session).into_response())
}

#[derive(Deserialize)]
pub struct Deleted {
    run: String,
    #[serde(default)]
    confirm: String,
}

/// Deletes a run with everything in its directory, if the user typed its name.
pub async fn delete(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Form(Deleted { run, confirm }): Form<Deleted>,
) -> PageResult {
    may_train(&app, &session)?;
    own(&app, &run)?;
    if confirm.trim() != run {
        return Err(PageError::request("Nothing was deleted: the typed name differs from the name of the run."));
    }
    let (of, name) = (library(&app), run.clone());
    blocking(move || of.remove(&name)).await??;
    app.training.forget(&run);
    Ok(Redirect::to("/runs").into_response())
}
