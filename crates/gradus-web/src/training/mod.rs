//! Runs from pages: begun from a form, stopped, gone on with, exported, deleted. Nothing of it is there unless the server was
//! started with a [`Trainer`].
//!
//! No page names a path or a command. Models and data are places in lists that are made by looking below the folder; a run's
//! directory is made here of a plain name; and what begins is the program itself with a configuration that was checked. A run
//! belongs to nobody here: it outlives the server, and how it stands is read from its directory like that of any other.

mod choices;
mod fields;
mod form;
mod manage;
mod page;
mod processes;
mod start;

pub use choices::data_files;
pub use fields::quoted;
pub use page::{actions, bare, bytes, offer_demo};

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use gradus::runs::Library;
use processes::place;
pub use processes::{Comparison, Going, Job, Making, Standing, Trainer, Training};

use crate::app::App;
use crate::failed::Failed;
use crate::store::sessions::Session;
use crate::within;

/// Refuses who may not act on runs: where others reach the server, owners alone may.
pub fn may_train(app: &App, session: &Session) -> std::result::Result<Arc<dyn Trainer>, Failed> {
    let Some(trainer) = &app.training.trainer else {
        return Err(Failed::forbidden(
            "Pages start and change no runs here: the server was started without --allow-training.",
        ));
    };
    app.check_changes_runs(session)?;
    Ok(Arc::clone(trainer))
}

/// The directory of the run `name`, which is changed: it lies in the folder itself and not behind a link, and no link in it leads
/// out.
pub fn own(app: &App, name: &str) -> std::result::Result<PathBuf, Failed> {
    let path = crate::runs::asked::find(app, name)?;
    let real = path.canonicalize().ok().filter(|real| real.starts_with(&app.folder) && *real != app.folder);
    let real =
        real.ok_or_else(|| Failed::missing("The run lies outside the folder that is served: it is only shown."))?;
    within::check(&app.folder, &real)?;
    Ok(real)
}

/// Whether a text can be a name of a directory: letters, digits, `-`, `_` and `.`, the last not in front.
pub fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=80).contains(&name.len()) && name.chars().all(is_plain) && !name.starts_with('.') && !name.starts_with('-')
}

/// The first name `stem-N` that no run has.
fn free(app: &App, stem: &str) -> String {
    let stem: String =
        stem.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    let stem = stem.trim_start_matches(['.', '-']).chars().take(60).collect::<String>();
    let (above, _) = place(&app.folder);
    let is_free = |name: &String| above.join(name).symlink_metadata().is_err();
    (1..).map(|n| format!("{stem}-{n}")).find(is_free).expect("some number is free")
}

/// The library of the folder.
fn library(app: &App) -> Library {
    Library::new(&app.folder)
}

/// The routes of what changes runs.
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
