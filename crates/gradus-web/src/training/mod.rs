//! Training from pages: runs are started from a form, stopped, resumed, exported and deleted. All of this is disabled unless the server was
//! started with a [`RunStarter`].
//!
//! Pages never name paths or commands. Models and data are selected by name from lists of the folder's content. The directory of a run is
//! built here from a plain name. The started process is this program with a checked configuration. A run does not depend on the server: it
//! outlives the server, and its state is read from its directory like that of any other run.

mod choices;
mod fields;
mod form;
mod manage;
mod page;
mod processes;
mod start;

pub use choices::data_files;
pub use page::{actions, bare, bytes, offer_demo};

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use gradus::runs::Library;
use processes::runs_directory;
pub use processes::{Comparison, PendingProject, ProcessState, ProcessTask, RunStarter, RunningProcess, Training};

use crate::app::App;
use crate::page_error::PageError;
use crate::store::sessions::Session;
use crate::within;

/// Returns the script of pages that show the demonstration while it runs.
pub fn demo_scripts(app: &App) -> &'static [&'static str] {
    match app.training.demo() {
        Some(ProcessState::Running) => &["making.js"],
        _ => &[],
    }
}

/// Rejects users who may not manage runs. If other machines can reach the server, only owners may.
pub fn may_train(app: &App, session: &Session) -> Result<Arc<dyn RunStarter>, PageError> {
    let Some(starter) = &app.training.starter else {
        return Err(PageError::forbidden(
            "This server cannot start or change runs: it was started without --allow-training.",
        ));
    };
    app.check_changes_runs(session)?;
    Ok(Arc::clone(starter))
}

/// Returns the directory of a run to change. It must be inside the folder, not behind a link, and no link in it may lead out of the folder.
pub fn own(app: &App, name: &str) -> Result<PathBuf, PageError> {
    let path = crate::runs::query_params::find(app, name)?;
    let real = path.canonicalize().ok().filter(|real| real.starts_with(&app.folder) && *real != app.folder);
    let real =
        real.ok_or_else(|| PageError::missing("The run is outside the served folder, so it can only be shown."))?;
    within::check(&app.folder, &real)?;
    Ok(real)
}

/// Returns whether a text is a valid directory name: letters, digits, `-`, `_` and `.`, but neither `-` nor `.` at the beginning.
pub fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=80).contains(&name.len()) && name.chars().all(is_plain) && !name.starts_with('.') && !name.starts_with('-')
}

/// Returns the first free name of the form `stem-N`.
fn free(app: &App, stem: &str) -> String {
    let stem: String =
        stem.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    let stem = stem.trim_start_matches(['.', '-']).chars().take(60).collect::<String>();
    let (above, _) = runs_directory(&app.folder);
    let is_free = |name: &String| above.join(name).symlink_metadata().is_err();
    (1..).map(|n| format!("{stem}-{n}")).find(is_free).expect("some number is free")
}

/// Returns the library of the folder.
fn library(app: &App) -> Library {
    Library::new(&app.folder)
}

/// Returns the routes that change runs.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/runs/new", get(start::choose).post(start::plan))
        .route("/runs/start", post(start::start))
        .route("/runs/demo", post(start::demo))
        .route("/runs/stop", post(manage::stop))
        .route("/runs/resume", post(manage::resume))
        .route("/runs/export", post(manage::export))
        .route("/runs/delete", get(manage::ask).post(manage::delete))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names_and_nothing_else() {
        for name in ["sft-1", "a", "A_b.c-2"] {
            assert!(is_plain(name), "{name}");
        }
        let long = "x".repeat(81);
        for name in ["", ".", "..", ".a", "-rf", "a/b", "a\\b", "a b", "ä", "a\n", "$(x)", "`x`", "a;b", &long] {
            assert!(!is_plain(name), "{name:?}");
        }
    }
}
