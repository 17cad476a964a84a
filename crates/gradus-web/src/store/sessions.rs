//! Sessions of browsers: each has a secret of its own, which pages send along with what changes something.

use gradus::Result;
use rusqlite::{OptionalExtension, params};

use super::{Store, now};
use crate::guard::secret;

pub(super) const TABLES: &str = "
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        csrf TEXT NOT NULL,
        begun INTEGER NOT NULL
    );
";

/// A browser's session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// What its cookie says.
    pub id: String,
    /// What its pages send.
    pub csrf: String,
}

/// The sessions.
pub struct Sessions<'a>(pub(super) &'a Store);

impl Sessions<'_> {
    /// A new session. Where it cannot be kept, its pages can be read and change nothing.
    pub fn begin(&self) -> Session {
        let session = Session { id: secret(), csrf: secret() };
        let kept: Result<usize> = self.0.change(|open| {
            let row = params![session.id, session.csrf, now()];
            open.execute("INSERT INTO sessions (id, csrf, begun) VALUES (?1, ?2, ?3)", row)
        });
        if let Err(error) = kept {
            tracing::warn!("a session is not kept: {error}");
        }
        session
    }

    /// The session whose cookie says `id`.
    pub fn find(&self, id: &str) -> Option<Session> {
        let row = |row: &rusqlite::Row<'_>| Ok(Session { id: id.to_owned(), csrf: row.get(0)? });
        let found = self.0.lock().query_row("SELECT csrf FROM sessions WHERE id = ?1", [id], row).optional();
        found.unwrap_or_else(|error| {
            tracing::warn!("the sessions cannot be read: {error}");
            None
        })
    }
}
