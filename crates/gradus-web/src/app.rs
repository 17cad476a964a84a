//! State that every request can access.

use std::path::PathBuf;
use std::sync::Arc;

use gradus::Result;

use crate::connections::ClientConnection;
use crate::guard::Guard;
use crate::guesses::Guesses;
use crate::models::Models;
use crate::page_error::PageError;
use crate::rich::Rich;
use crate::runs::Cache;
use crate::serving::Changing;
use crate::store::Store;
use crate::store::chats::Asker;
use crate::store::projects::Role;
use crate::store::sessions::Session;
use crate::training::Training;

/// State of the server.
pub struct App {
    /// Access control.
    pub guard: Guard,
    /// Folder that is served.
    pub folder: PathBuf,
    /// Models of the folder.
    pub models: Arc<Models>,
    /// Cache of runs.
    pub runs: Cache,
    /// Runs that pages have started.
    pub training: Training,
    /// Permissions of programs to change adapters and weights, if any.
    pub changing: Option<Changing>,
    /// Training server for programs, if enabled.
    pub tinker: Option<crate::tinker::Training>,
    /// Database.
    pub store: Store,
    /// Rendering of answers for pages.
    pub rich: Rich,
    /// Clients that gave wrong tokens.
    pub guesses: Guesses,
}

impl App {
    /// Returns which conversations a session may see: all of them on this machine, otherwise only its own.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn asker(&self, session: &Session) -> Result<Asker> {
        let person = self.store.projects().who(session)?;
        match self.guard.is_loopback {
            true => Ok(Asker::everyone(person.as_ref())),
            false => Ok(Asker::of(session, person.as_ref())),
        }
    }

    /// Returns whether a session may change runs. If other machines can reach the server, only an owner may.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn may_change_runs(&self, session: &Session) -> Result<bool> {
        let is_owner = || Ok(self.store.projects().who(session)?.is_some_and(|person| person.role == Role::Owner));
        if self.guard.is_loopback { Ok(true) } else { is_owner() }
    }

    /// Rejects a session that may not change runs.
    ///
    /// # Errors
    /// It may not, or the database cannot be read.
    pub fn check_changes_runs(&self, session: &Session) -> Result<(), PageError> {
        match self.may_change_runs(session)? {
            true => Ok(()),
            false => Err(PageError::forbidden(
                "Other machines can reach this server, so only signed-in owners can start and change runs. Sign in on \
                 the page Annotate.",
            )),
        }
    }

    /// Delays the response to a wrong token.
    pub async fn wrong_guess(&self, place: Option<&Arc<ClientConnection>>) {
        if let Some(place) = place {
            tokio::time::sleep(self.guesses.wrong(place.client)).await;
        }
    }
}
