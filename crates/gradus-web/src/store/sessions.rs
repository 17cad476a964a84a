//! Sessions of browsers. A session is a secret in a cookie. It is not stored before a person signs in.
//!
//! Requests that change something must contain the token of their page. It is derived from the session with a key that only the server has.

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

/// Duration of a sign-in in seconds: 30 days.
pub(super) const SIGNED_IN: i64 = 30 * 24 * 3600;

/// Name of the key for page tokens.
const PAGES: &str = "pages";

/// Session of a browser.
#[derive(Clone, PartialEq, Eq)]
pub struct Session {
    id: String,
    /// Token that its pages send.
    pub csrf: String,
}

// Secrets are not written to logs.
impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    /// Returns the value of its cookie.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the hash that is stored.
    pub fn sum(&self) -> String {
        sum(&self.id)
    }
}

/// Returns the SHA-256 hash of a secret, in hexadecimal digits.
pub fn sum(secret: &str) -> String {
    hex(digest::digest(&digest::SHA256, secret.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Replaces tokens and sessions by their hashes, and adds expiry times to sign-ins.
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

/// Returns the key for page tokens, and creates it if necessary.
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

/// All sessions.
pub struct Sessions<'a>(pub(super) &'a Store);

impl Sessions<'_> {
    /// Creates a session.
    pub fn begin(&self) -> Session {
        self.of(&secret())
    }

    /// Returns the session of a cookie. `None` if the cookie does not have the form of a server's secret.
    pub fn find(&self, id: &str) -> Option<Session> {
        is_secret(id).then(|| self.of(id))
    }

    /// Returns the session `id`.
    pub(super) fn of(&self, id: &str) -> Session {
        Session { id: id.to_owned(), csrf: hex(hmac::sign(&self.0.key, id.as_bytes()).as_ref()) }
    }

    /// Returns the number of stored sign-ins.
    ///
    /// # Errors
    /// The database cannot be read.
    #[cfg(test)]
    pub fn kept(&self) -> gradus::Result<i64> {
        self.0.read(|open| open.query_row("SELECT count(*) FROM signed_in", [], |row| row.get(0)))
    }
}
