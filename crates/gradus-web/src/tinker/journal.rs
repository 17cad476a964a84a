//! Journal of accepted requests, flushed to disk before the response: one SQLite file in the folder of checkpoints.
//!
//! A request is written before the client learns that it was accepted, and its result before the client can retrieve it. A killed server
//! resumes from the last saved state of every model and repeats the later requests, which give the same bits. No accepted step is lost, and
//! none is applied twice.

use std::path::{Path, PathBuf};

use gradus::files::durable::sqlite_synchronous;
use gradus::{Error, Result};
use rusqlite::{Connection, OptionalExtension, params};

use super::checkpoints::now;
use super::outcome::RequestResult;

/// Name of the file.
const FILE: &str = "journal.sqlite";

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS sessions (
        id TEXT PRIMARY KEY, key TEXT UNIQUE, ended INTEGER NOT NULL DEFAULT 0, seen INTEGER NOT NULL DEFAULT 0) STRICT;
    CREATE TABLE IF NOT EXISTS models (
        id TEXT PRIMARY KEY, session TEXT NOT NULL, base TEXT NOT NULL, ended INTEGER NOT NULL DEFAULT 0) STRICT;
    CREATE TABLE IF NOT EXISTS requests (
        model TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL, body BLOB, outcome BLOB,
        PRIMARY KEY (model, seq)) STRICT;
    CREATE TABLE IF NOT EXISTS samplers (
        id TEXT PRIMARY KEY, session TEXT NOT NULL, base TEXT NOT NULL, directory TEXT, path TEXT,
        ended INTEGER NOT NULL DEFAULT 0) STRICT;
";

/// The journal.
pub struct Journal {
    path: PathBuf,
    file: Connection,
}

/// A stored request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRequest {
    /// Sequence number.
    pub seq: u64,
    /// Kind of the request.
    pub kind: String,
    /// Body; empty if it is no longer needed.
    pub body: Vec<u8>,
    /// Result, if the request has finished.
    pub outcome: Option<RequestResult>,
}

/// A stored session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    /// Id of the session.
    pub id: String,
    /// Stored time of its last request, in seconds since 1970.
    pub seen: u64,
}

/// A stored model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredModel {
    /// Id of the model.
    pub id: String,
    /// Id of its session.
    pub session: String,
    /// Name of its base model.
    pub base: String,
}

/// A stored sampler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSampler {
    /// Id of the sampler.
    pub id: String,
    /// Id of its session.
    pub session: String,
    /// Name of its base model.
    pub base: String,
    /// Directory of its adapter, relative to the folder of checkpoints.
    pub directory: Option<String>,
    /// Checkpoint that it was created from, if a client named one.
    pub path: Option<String>,
}

impl Journal {
    /// Opens the file in `folder` for exclusive use by this process.
    ///
    /// # Errors
    /// Another server uses it, or it is damaged.
    pub fn open(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(|error| Error::io(folder, error))?;
        let path = folder.join(FILE);
        let open = || {
            let file = Connection::open(&path)?;
            file.execute_batch(&format!(
                "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = {};",
                sqlite_synchronous()
            ))?;
            file.execute_batch(&format!("BEGIN EXCLUSIVE; {TABLES} COMMIT;"))?;
            // Earlier versions did not store the times of sessions. Those sessions count as active now.
            let sql = "SELECT COUNT(*) FROM pragma_table_info('sessions') WHERE name = 'seen'";
            if file.query_row(sql, [], |row| row.get::<_, i64>(0))? == 0 {
                file.execute_batch("ALTER TABLE sessions ADD COLUMN seen INTEGER NOT NULL DEFAULT 0;")?;
            }
            file.execute("UPDATE sessions SET seen = ?1 WHERE seen = 0", [now() as i64])?;
            Ok(file)
        };
        let file = open().map_err(|error: rusqlite::Error| match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
                Error::input(format!("another server trains in `{}`", folder.display()))
                    .with_hint("stop it, or serve another folder")
            }
            _ => failed(&path, &error),
        })?;
        Ok(Self { path, file })
    }

    fn done<T>(&self, done: rusqlite::Result<T>) -> Result<T> {
        done.map_err(|error| failed(&self.path, &error))
    }

    /// Adds a session, created at `time`. `key` identifies repeated requests.
    pub fn add_session(&self, id: &str, key: Option<&str>, time: u64) -> Result<()> {
        let sql = "INSERT INTO sessions (id, key, seen) VALUES (?1, ?2, ?3)";
        self.done(self.file.execute(sql, params![id, key, time as i64])).map(drop)
    }

    /// Stores the `time` of a session's last request.
    pub fn seen(&self, id: &str, time: u64) -> Result<()> {
        self.done(self.file.execute("UPDATE sessions SET seen = ?2 WHERE id = ?1", params![id, time as i64])).map(drop)
    }

    /// Returns the session that was added with `key`.
    pub fn session_of(&self, key: &str) -> Result<Option<String>> {
        let sql = "SELECT id FROM sessions WHERE key = ?1 AND NOT ended";
        self.done(self.file.query_row(sql, [key], |row| row.get(0)).optional())
    }

    /// Adds a model with the request that creates it.
    pub fn add_model(&mut self, model: &StoredModel, kind: &str, body: &[u8]) -> Result<()> {
        let added = (|| {
            let change = self.file.transaction()?;
            let StoredModel { id, session, base } = model;
            change.execute("INSERT INTO models (id, session, base) VALUES (?1, ?2, ?3)", params![id, session, base])?;
            let sql = "INSERT INTO requests (model, seq, kind, body) VALUES (?1, 0, ?2, ?3)";
            change.execute(sql, params![id, kind, body])?;
            change.commit()
        })();
        self.done(added)
    }

    /// Adds a request.
    pub fn add(&self, model: &str, seq: u64, kind: &str, body: &[u8]) -> Result<()> {
        let sql = "INSERT INTO requests (model, seq, kind, body) VALUES (?1, ?2, ?3, ?4)";
        self.done(self.file.prepare(sql).and_then(|mut add| add.execute(params![model, seq as i64, kind, body])))
            .map(drop)
    }

    /// Stores the result of a request.
    pub fn finish(&self, model: &str, seq: u64, outcome: &RequestResult) -> Result<()> {
        let sql = "UPDATE requests SET outcome = ?3 WHERE model = ?1 AND seq = ?2";
        let finish = |bytes: Vec<u8>| self.file.prepare(sql)?.execute(params![model, seq as i64, bytes]);
        self.done(finish(outcome.write())).map(drop)
    }

    /// Deletes the bodies of requests up to `seq`, which a saved state includes, and the results of requests before `kept`.
    pub fn forget(&mut self, model: &str, seq: u64, kept: u64) -> Result<()> {
        let forgotten = (|| {
            let change = self.file.transaction()?;
            let sql = "UPDATE requests SET body = NULL WHERE model = ?1 AND seq <= ?2 AND body IS NOT NULL AND outcome IS NOT NULL";
            change.execute(sql, params![model, seq as i64])?;
            let sql = "DELETE FROM requests WHERE model = ?1 AND seq < ?2 AND body IS NULL AND seq > 0";
            change.execute(sql, params![model, kept as i64])?;
            change.commit()
        })();
        self.done(forgotten)
    }

    /// Adds a sampler.
    pub fn add_sampler(&self, sampler: &StoredSampler) -> Result<()> {
        let StoredSampler { id, session, base, directory, path } = sampler;
        let sql = "INSERT INTO samplers (id, session, base, directory, path) VALUES (?1, ?2, ?3, ?4, ?5)";
        self.done(self.file.execute(sql, params![id, session, base, directory, path])).map(drop)
    }

    /// Removes a sampler.
    pub fn end_sampler(&self, id: &str) -> Result<()> {
        self.done(self.file.execute("UPDATE samplers SET ended = 1 WHERE id = ?1", [id])).map(drop)
    }

    /// Ends a model and deletes its requests.
    pub fn end_model(&mut self, id: &str) -> Result<()> {
        let ended = (|| {
            let change = self.file.transaction()?;
            change.execute("UPDATE models SET ended = 1 WHERE id = ?1", [id])?;
            change.execute("DELETE FROM requests WHERE model = ?1", [id])?;
            change.commit()
        })();
        self.done(ended)
    }

    /// Ends a session.
    pub fn end_session(&self, id: &str) -> Result<()> {
        self.done(self.file.execute("UPDATE sessions SET ended = 1 WHERE id = ?1", [id])).map(drop)
    }

    /// Returns whether a session has ended. `None` if it never existed.
    pub fn has_ended(&self, id: &str) -> Result<Option<bool>> {
        let sql = "SELECT ended FROM sessions WHERE id = ?1";
        self.done(self.file.query_row(sql, [id], |row| row.get(0)).optional())
    }

    /// Returns the sessions that have not ended, in the order in which they were added.
    pub fn sessions(&self) -> Result<Vec<StoredSession>> {
        self.all("SELECT id, seen FROM sessions WHERE NOT ended ORDER BY rowid", |row| {
            Ok(StoredSession { id: row.get(0)?, seen: row.get::<_, i64>(1)?.cast_unsigned() })
        })
    }

    /// Returns the models that have not ended.
    pub fn models(&self) -> Result<Vec<StoredModel>> {
        self.all("SELECT id, session, base FROM models WHERE NOT ended", |row| {
            Ok(StoredModel { id: row.get(0)?, session: row.get(1)?, base: row.get(2)? })
        })
    }

    /// Returns the samplers that have not ended, in the order in which they were added.
    pub fn samplers(&self) -> Result<Vec<StoredSampler>> {
        self.all("SELECT id, session, base, directory, path FROM samplers WHERE NOT ended ORDER BY rowid", |row| {
            let (id, session, base) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(StoredSampler { id, session, base, directory: row.get(3)?, path: row.get(4)? })
        })
    }

    /// Returns the stored requests of a model in order.
    pub fn requests(&self, model: &str) -> Result<Vec<StoredRequest>> {
        let read = || {
            let sql = "SELECT seq, kind, body, outcome FROM requests WHERE model = ?1 ORDER BY seq";
            let mut query = self.file.prepare(sql)?;
            let rows = query.query_map([model], |row| {
                let (body, outcome): (Option<Vec<u8>>, Option<Vec<u8>>) = (row.get(2)?, row.get(3)?);
                let outcome = outcome.and_then(|bytes| RequestResult::read(&bytes));
                let seq = row.get::<_, i64>(0)?.cast_unsigned();
                Ok(StoredRequest { seq, kind: row.get(1)?, body: body.unwrap_or_default(), outcome })
            })?;
            rows.collect()
        };
        self.done(read())
    }

    fn all<T>(&self, sql: &str, each: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>) -> Result<Vec<T>> {
        let read = || self.file.prepare(sql)?.query_map([], each)?.collect();
        self.done(read())
    }
}

/// Converts an error of SQLite to an I/O error. The API then reports a problem of the server, and clients retry.
fn failed(path: &Path, error: &rusqlite::Error) -> Error {
    Error::io(path, std::io::Error::other(error.to_string()))
}
