//! What people do, kept: one SQLite file in the folder that is served.
//!
//! Every change is one transaction, written through to the disk before it is answered, so a server that is killed has lost
//! nothing that a page had been told is saved.

pub mod chats;
pub mod projects;
pub mod sessions;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gradus::{Error, Result};
use rusqlite::Connection;

/// The file, in the folder that is served.
pub const FILE: &str = "gradus.sqlite";

/// `PRAGMA application_id`: `grwb`.
const APPLICATION: i32 = 0x6772_7762;

/// The tables, by version: what a file of an older version lacks is added.
const VERSIONS: &[&str] = &[sessions::TABLES, chats::TABLES, projects::TABLES, projects::VERDICTS, chats::PARTS];

/// The file.
pub struct Store {
    path: PathBuf,
    connection: Mutex<Connection>,
}

impl Store {
    /// Opens or makes the file in `folder`.
    ///
    /// # Errors
    /// When it cannot be opened, is another program's, or is of a later version.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let failed = |error: rusqlite::Error| Error::input(format!("{}: {error}", path.display()));
        let mut connection = Connection::open(&path).map_err(failed)?;
        let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(failed);
        let (application, version) = (number("application_id")?, number("user_version")?);
        let tables: i64 =
            connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0)).map_err(failed)?;
        if application != i64::from(APPLICATION) && tables > 0 {
            return Err(Error::input(format!("{}: this is not a file of `gradus serve`", path.display()))
                .with_hint("move it away, or serve another folder"));
        }
        let known = VERSIONS.len();
        let version = usize::try_from(version).unwrap_or(usize::MAX);
        if version > known {
            let message = format!("{}: version {version}, but this gradus knows {known}", path.display());
            return Err(Error::input(message).with_hint("it was written by a later gradus: use that one"));
        }
        connection
            .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;")
            .map_err(failed)?;
        let change = connection.transaction().map_err(failed)?;
        for tables in &VERSIONS[version..] {
            change.execute_batch(tables).map_err(failed)?;
        }
        change.pragma_update(None, "application_id", APPLICATION).map_err(failed)?;
        change.pragma_update(None, "user_version", known as i64).map_err(failed)?;
        change.commit().map_err(failed)?;
        Ok(Self { path, connection: Mutex::new(connection) })
    }

    /// The sessions of browsers.
    pub fn sessions(&self) -> sessions::Sessions<'_> {
        sessions::Sessions(self)
    }

    /// The conversations.
    pub fn chats(&self) -> chats::Chats<'_> {
        chats::Chats(self)
    }

    /// The projects of annotations.
    pub fn projects(&self) -> projects::Projects<'_> {
        projects::Projects(self)
    }

    /// The connection. A change is one transaction, so a thread that panicked has left nothing half done.
    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something within one transaction.
    ///
    /// # Errors
    /// What `change` fails with; then nothing is changed.
    pub fn change<T>(&self, change: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T>) -> Result<T> {
        let mut connection = self.lock();
        let done = connection.transaction().and_then(|open| {
            let done = change(&open)?;
            open.commit()?;
            Ok(done)
        });
        done.map_err(|error| Error::input(format!("{}: {error}", self.path.display())))
    }
}

/// Now, in seconds since 1970.
pub fn now() -> i64 {
    let passed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    passed.map_or(0, |passed| passed.as_secs() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_program_or_of_later_is_refused_and_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE);
        Connection::open(&path).and_then(|other| other.execute_batch("CREATE TABLE theirs (x)")).expect("a file");
        let before = std::fs::read(&path).expect("a file");
        let message = Store::open(folder.path()).err().expect("refused").to_string();
        assert!(message.ends_with("this is not a file of `gradus serve`"), "{message}");
        assert_eq!(std::fs::read(&path).expect("a file"), before);
        std::fs::remove_file(&path).expect("removed");

        drop(Store::open(folder.path()).expect("a new file"));
        drop(Store::open(folder.path()).expect("the same again"));
        Connection::open(&path).and_then(|own| own.pragma_update(None, "user_version", 1000)).expect("changed");
        let message = Store::open(folder.path()).err().expect("refused").to_string();
        assert!(message.contains("version 1000, but this gradus knows"), "{message}");
    }
}
