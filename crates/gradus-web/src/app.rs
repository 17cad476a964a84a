//! What every request can reach.

use std::path::PathBuf;
use std::sync::Arc;

use gradus::Result;

use crate::connections::Place;
use crate::failed::Failed;
use crate::guard::Guard;
use crate::guesses::Guesses;
use crate::models::Models;
use crate::rich::Rich;
use crate::runs::Cache;
use crate::serving::Changing;
use crate::store::Store;
use crate::store::chats::Asker;
use crate::store::projects::Role;
use crate::store::sessions::Session;
use crate::training::Training;

/// The server's own: who is let in, what is served, what was kept.
pub struct App {
    /// Who is let in.
    pub guard: Guard,
    /// The folder that is served.
    pub folder: PathBuf,
    /// Its models.
    pub models: Arc<Models>,
    /// The runs that were read.
    pub runs: Cache,
    /// The runs that pages have begun.
    pub training: Training,
    /// Who may change adapters and weights, where anybody may.
    pub changing: Option<Changing>,
    /// The training server for programs, where there is one.
    pub tinker: Option<crate::tinker::Training>,
    /// What people did.
    pub store: Store,
    /// Answers as pages show them.
    pub rich: Rich,
    /// Who gave wrong tokens.
    pub guesses: Guesses,
}

impl App {
    /// Whose conversations a session may see: on this machine all, elsewhere their own.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn asker(&self, session: &Session) -> Result<Asker> {
        let person = self.store.projects().who(session)?;
        match self.guard.is_loopback {
            true => Ok(Asker::everyone(person.as_ref())),
            false => Ok(Asker::of(session, person.as_ref())),
        }
    }

    /// Whether a session may change runs: where others reach the server, that of an owner alone.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn may_change_runs(&self, session: &Session) -> Result<bool> {
        let is_owner = || Ok(self.store.projects().who(session)?.is_some_and(|person| person.role == Role::Owner));
        if self.guard.is_loopback { Ok(true) } else { is_owner() }
    }

    /// Refuses a session that may not change runs.
    ///
    /// # Errors
    /// When it may not, or the file cannot be read.
    pub fn check_changes_runs(&self, session: &Session) -> std::result::Result<(), Failed> {
        match self.may_change_runs(session)? {
            true => Ok(()),
            false => Err(Failed::forbidden(
                "Others reach this server, so only an owner who has signed in starts and changes runs: the page Annotate has the form.",
            )),
        }
    }

    /// Has whoever gave a wrong token wait.
    pub async fn wrong_guess(&self, place: Option<&Arc<Place>>) {
        if let Some(place) = place {
            tokio::time::sleep(self.guesses.wrong(place.client)).await;
        }
    }
}
