//! Sessions of browsers. A session is a secret in a cookie; nothing is kept of it until somebody signs in.
//!
//! What changes something must send the token of its page, which follows from the session by a key that only the server has.

use ring::{digest, hmac};
use rusqlite::{OptionalExtension, Transaction, params};

use super::{Store, now};
use crate::secret::{is_secret, secret};

pub(super) const TABLES: &str = "
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        csrf TEXT NOT NULL,
        begun INTEGER NOT NULL
    );
";

/// How long a sign-in lasts, in seconds: 30 days.
pub(super) const SIGNED_IN: i64 = 30 * 24 * 3600;

/// The name of the key of page tokens.
const PAGES: &str = "pages";

/// A browser's session.
#[derive(Clone, PartialEq, Eq)]
pub struct Session {
    id: String,
    /// What its pages send.
    pub csrf: String,
}

// A secret is not written to logs.
impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    /// What its cookie says.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What is kept of it.
    pub fn sum(&self) -> String {
        sum(&self.id)
    }
}

/// The SHA-256 sum of a secret, in hexadecimal digits.
pub fn sum(secret: &str) -> String {
    hex(digest::digest(&digest::SHA256, secret.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Replaces tokens and sessions by their sums, and gives sign-ins an end.
pub(super) fn without_secrets(change: &Transaction<'_>) -> rusqlite::Result<()> {
    change.execute_batch(
        "ALTER TABLE people RENAME COLUMN token TO token_sum;
         CREATE TABLE keys (name TEXT PRIMARY KEY, value TEXT NOT NULL);
         ALTER TABLE signed_in RENAME TO signed_in_before;
         CREATE TABLE signed_in (
             session_sum TEXT PRIMARY KEY,
             person INTEGER NOT NULL REFERENCES people (id) ON DELETE CASCADE,
             -- When it ends, in seconds since 1970.
             until INTEGER NOT NULL
         );",
    )?;
    let pairs = |sought: &str| -> rusqlite::Result<Vec<(i64, String)>> {
        change.prepare(sought)?.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    };
    for (person, token) in pairs("SELECT id, token_sum FROM people")? {
        change.execute("UPDATE people SET token_sum = ?2 WHERE id = ?1", params![person, sum(&token)])?;
    }
    for (person, session) in pairs("SELECT person, session FROM signed_in_before")? {
        let row = params![sum(&session), person, now() + SIGNED_IN];
        change.execute("INSERT INTO signed_in (session_sum, person, until) VALUES (?1, ?2, ?3)", row)?;
    }
    change.execute_batch("DROP TABLE signed_in_before; DROP TABLE sessions;")
}

/// The key of page tokens, made where there is none.
pub(super) fn key(change: &Transaction<'_>) -> rusqlite::Result<hmac::Key> {
    let known = change.query_row("SELECT value FROM keys WHERE name = ?1", [PAGES], |row| row.get(0)).optional()?;
    let key: String = match known {
        Some(key) => key,
        None => {
            let key = secret();
            change.execute("INSERT INTO keys (name, value) VALUES (?1, ?2)", [PAGES, &key])?;
            key
        }
    };
    Ok(hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()))
}

/// The sessions.
pub struct Sessions<'a>(pub(super) &'a Store);

impl Sessions<'_> {
    /// A new session.
    pub fn begin(&self) -> Session {
        self.of(&secret())
    }

    /// The session of a cookie; nothing where it is no secret that a server made.
    pub fn find(&self, id: &str) -> Option<Session> {
        is_secret(id).then(|| self.of(id))
    }

    /// The session `id`.
    pub(super) fn of(&self, id: &str) -> Session {
        Session { id: id.to_owned(), csrf: hex(hmac::sign(&self.0.key, id.as_bytes()).as_ref()) }
    }

    /// How many sign-ins are kept.
    ///
    /// # Errors
    /// When the file cannot be read.
    #[cfg(test)]
    pub fn kept(&self) -> gradus::Result<i64> {
        self.0.read(|open| open.query_row("SELECT count(*) FROM signed_in", [], |row| row.get(0)))
    }
}
