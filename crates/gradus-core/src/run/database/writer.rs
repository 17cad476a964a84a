//! Writer of a rollout database: a thread that commits the rows that training appends.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rusqlite::{Connection, OpenFlags, Statement, params};
use serde_json::{Map, Value, json};

use super::{
    ADDED, APPLICATION, Record, RolloutTable, SCHEMA, Segment, TEST_ROLLOUTS, VERSION, WarningRecord, check_version,
    connect, failure,
};
use crate::error::{Error, Result};
use crate::files::durable::sqlite_synchronous;
use crate::files::{atomic, network_file_system};
use crate::run::KeptRecords;
use crate::run::metrics::readable;

/// Number of messages that may wait for the disk before training blocks.
const QUEUE: usize = 64;

enum Message {
    Records(RolloutTable, Vec<Record>),
    /// Deletes the completions of this step from the table.
    Remove(RolloutTable, usize),
    Warnings(Vec<WarningRecord>),
    /// Answered when all earlier messages are on disk.
    Flush(SyncSender<()>),
}

/// Appends to `rollouts.sqlite` from its own thread.
///
/// Appending costs training only the copy. It blocks only when the disk is 64 messages behind. All waiting messages are committed in one
/// transaction and flushed to disk. The next call returns the error of a failed write; rows that were committed before are kept. Dropping
/// the writer commits everything that was appended.
#[derive(Debug)]
pub struct RolloutWriter {
    path: PathBuf,
    sender: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<Result<Connection>>>,
}

impl RolloutWriter {
    /// Opens the database at `path` to continue after the rows that `kept` keeps, or creates it. Later rows are removed, because the run
    /// will write them again. Tables of an earlier version get the missing columns.
    ///
    /// # Errors
    /// If the file cannot be written, or is no rollout database of this or an earlier version.
    pub fn open(path: &Path, kept: impl Into<KeptRecords>) -> Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let connection = connect(path, flags)?;
        prepare(path, &connection, kept.into(), network_file_system(path).is_some())?;
        Self::start(path, connection)
    }

    pub(super) fn start(path: &Path, connection: Connection) -> Result<Self> {
        let (sender, receiver) = sync_channel(QUEUE);
        let at = path.to_owned();
        let thread = std::thread::Builder::new().name("rollouts.sqlite".into()).spawn(move || {
            let mut connection = connection;
            write(&mut connection, &receiver).map_err(|error| failure(&at, error))?;
            Ok(connection)
        });
        let thread = thread.map_err(|source| Error::io(path, source))?;
        Ok(Self { path: path.to_owned(), sender: Some(sender), thread: Some(thread) })
    }

    /// Appends completions.
    ///
    /// # Errors
    /// The error of an earlier write.
    pub fn append(&mut self, table: RolloutTable, records: Vec<Record>) -> Result<()> {
        self.send(Message::Records(table, records))
    }

    /// Writes the completions of an evaluation after `step` steps and replaces those that the table already has of this step. An
    /// interrupted evaluation that begins again is therefore stored once.
    ///
    /// # Errors
    /// The error of an earlier write.
    pub fn evaluation(&mut self, table: RolloutTable, step: usize, records: Vec<Record>) -> Result<()> {
        self.send(Message::Remove(table, step))?;
        self.append(table, records)
    }

    /// Appends warnings.
    ///
    /// # Errors
    /// The error of an earlier write.
    pub fn warn(&mut self, warnings: Vec<WarningRecord>) -> Result<()> {
        if warnings.is_empty() { Ok(()) } else { self.send(Message::Warnings(warnings)) }
    }

    /// Waits until everything appended is on disk.
    ///
    /// # Errors
    /// The error of a write.
    pub fn flush(&mut self) -> Result<()> {
        let (answer, done) = sync_channel(1);
        self.send(Message::Flush(answer))?;
        match done.recv() {
            Ok(()) => Ok(()),
            Err(_) => Err(self.stop_early()),
        }
    }

    /// Commits everything and leaves one file without a journal, whose bytes depend only on its rows.
    ///
    /// If a reader holds the file open, the file is not rewritten, but it is still complete.
    ///
    /// # Errors
    /// The error of a write; rows that were committed before are kept.
    pub fn finish(mut self) -> Result<()> {
        let Some(connection) = self.stop()? else { return Ok(()) };
        let error = |error| failure(&self.path, error);
        let busy = |error: &rusqlite::Error| {
            matches!(
                error.sqlite_error_code(),
                Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked)
            )
        };
        // Do not wait for a reader, which may be a browser that stays open.
        connection.busy_timeout(std::time::Duration::ZERO).map_err(error)?;
        let mode = connection.pragma_update_and_check(None, "journal_mode", "DELETE", |row| row.get::<_, String>(0));
        match mode {
            Ok(mode) if mode == "delete" => {}
            Err(found) if !busy(&found) => return Err(error(found)),
            _ => return Ok(()),
        }
        atomic::write_path(&self.path, |temporary| {
            connection.execute("VACUUM INTO ?1", [temporary.to_string_lossy()]).map_err(error)?;
            // SQLite counts changes of the schema, and a rewrite counts as one.
            let new = connect(temporary, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
            new.pragma_update_and_check(None, "journal_mode", "OFF", |_| Ok(())).map_err(error)?;
            new.pragma_update(None, "schema_version", 1).map_err(error)
        })
    }

    fn send(&mut self, message: Message) -> Result<()> {
        match self.sender.as_ref().map(|sender| sender.send(message)) {
            Some(Ok(())) => Ok(()),
            _ => Err(self.stop_early()),
        }
    }

    /// Ends the thread after it has written everything. Returns `None` if it was ended before.
    fn stop(&mut self) -> Result<Option<Connection>> {
        self.sender = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended.map(Some),
            Some(Err(_)) => Err(Error::io(&self.path, std::io::Error::other("its writer stopped"))),
            None => Ok(None),
        }
    }

    /// Returns the error that ended the thread early.
    fn stop_early(&mut self) -> Error {
        let ended = self.stop().err();
        ended.unwrap_or_else(|| Error::io(&self.path, std::io::Error::other("its writer has failed before")))
    }
}

impl Drop for RolloutWriter {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!("{error}");
        }
    }
}

/// Creates the tables, or removes the rows that are not `kept`. If other machines share the file system (`is_shared`), the database keeps a
/// rollback journal.
pub(super) fn prepare(path: &Path, connection: &Connection, kept: KeptRecords, is_shared: bool) -> Result<()> {
    let error = |error| failure(path, error);
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(error)?;
    let version = if tables > 0 { check_version(path, connection)? } else { VERSION };
    // With a write-ahead log, readers do not block the writer. It needs shared memory, which processes on different machines do not have.
    let journal = if is_shared { "DELETE" } else { "WAL" };
    connection.pragma_update_and_check(None, "journal_mode", journal, |_| Ok(())).map_err(error)?;
    connection.pragma_update(None, "synchronous", sqlite_synchronous()).map_err(error)?;
    let work = if tables == 0 {
        format!(
            "{SCHEMA} {TEST_ROLLOUTS} ALTER TABLE test_rollouts ADD COLUMN episode TEXT; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"
        )
    } else {
        let added = match &ADDED[version as usize - 1..] {
            [] => String::new(),
            lacking => format!("{} PRAGMA user_version = {VERSION};", lacking.concat()),
        };
        let last = |table: RolloutTable| match table {
            RolloutTable::Train => kept.last_trained(),
            RolloutTable::Eval | RolloutTable::Test => kept.last_evaluated(),
        };
        let tables = RolloutTable::ALL.map(|table| (table.name(), last(table)));
        let tables = tables.into_iter().chain([("warnings", kept.last_trained())]);
        added + &tables.map(|(table, last)| format!("DELETE FROM {table} WHERE step > {last};")).collect::<String>()
    };
    connection.execute_batch(&format!("BEGIN IMMEDIATE; {work} COMMIT;")).map_err(error)
}

/// Commits messages until the sender closes; all waiting messages form one transaction.
fn write(connection: &mut Connection, receiver: &Receiver<Message>) -> rusqlite::Result<()> {
    while let Ok(first) = receiver.recv() {
        let transaction = connection.transaction()?;
        let mut answers = Vec::new();
        {
            let mut insert = Insert::new(&transaction)?;
            insert.message(first, &mut answers)?;
            for message in receiver.try_iter().take(QUEUE) {
                insert.message(message, &mut answers)?;
            }
        }
        transaction.commit()?;
        for answer in answers {
            // The caller may have stopped waiting.
            let _ = answer.send(());
        }
    }
    Ok(())
}

struct Insert<'c> {
    rollouts: Statement<'c>,
    evaluations: Statement<'c>,
    tests: Statement<'c>,
    connection: &'c Connection,
    warnings: Statement<'c>,
}

impl<'c> Insert<'c> {
    fn new(connection: &'c Connection) -> rusqlite::Result<Self> {
        const COLUMNS: &str = "step, epoch, prompt_index, rollout_index, prompt, completion, reward, components, kl, length, stop_reason, segments, episode";
        const VALUES: &str = "?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13";
        let evaluated = |table: RolloutTable| {
            connection.prepare(&format!("INSERT INTO {} ({COLUMNS}) VALUES ({VALUES})", table.name()))
        };
        Ok(Self {
            rollouts: connection.prepare(&format!(
                "INSERT INTO rollouts ({COLUMNS}, advantage, advantages, weight_version) VALUES ({VALUES}, ?14, ?15, ?16)"
            ))?,
            evaluations: evaluated(RolloutTable::Eval)?,
            tests: evaluated(RolloutTable::Test)?,
            connection,
            warnings: connection.prepare("INSERT INTO warnings (step, kind, message) VALUES (?1, ?2, ?3)")?,
        })
    }

    fn message(&mut self, message: Message, answers: &mut Vec<SyncSender<()>>) -> rusqlite::Result<()> {
        match message {
            Message::Records(table, records) => records.iter().try_for_each(|record| self.record(table, record)),
            Message::Remove(table, step) => {
                let text = format!("DELETE FROM {} WHERE step = ?1", table.name());
                self.connection.execute(&text, [step as i64]).map(drop)
            }
            Message::Warnings(warnings) => warnings.iter().try_for_each(|warning| {
                self.warnings.execute(params![warning.step as i64, warning.kind, warning.message]).map(drop)
            }),
            Message::Flush(answer) => {
                answers.push(answer);
                Ok(())
            }
        }
    }

    fn record(&mut self, table: RolloutTable, record: &Record) -> rusqlite::Result<()> {
        let statement = match table {
            RolloutTable::Train => &mut self.rollouts,
            RolloutTable::Eval => &mut self.evaluations,
            RolloutTable::Test => &mut self.tests,
        };
        let value = |value: &Option<f64>| value.map_or(Value::Null, |value| Value::from(readable(value)));
        let components: Map<String, Value> =
            record.components.iter().map(|(name, found)| (name.clone(), value(found))).collect();
        let integers = [record.step, record.epoch, record.prompt_index, record.rollout_index];
        for (place, integer) in integers.into_iter().enumerate() {
            statement.raw_bind_parameter(place + 1, integer as i64)?;
        }
        statement.raw_bind_parameter(5, &record.prompt)?;
        statement.raw_bind_parameter(6, &record.completion)?;
        statement.raw_bind_parameter(7, record.reward.map(readable))?;
        statement.raw_bind_parameter(8, Value::Object(components).to_string())?;
        statement.raw_bind_parameter(9, record.kl.map(readable))?;
        statement.raw_bind_parameter(10, record.length as i64)?;
        statement.raw_bind_parameter(11, &record.stop_reason)?;
        statement.raw_bind_parameter(12, segments(&record.segments))?;
        let episode = record.episode.as_ref();
        let episode = episode.map(|episode| serde_json::to_string(episode).expect("plain data with string keys"));
        statement.raw_bind_parameter(13, episode)?;
        if table == RolloutTable::Train {
            statement.raw_bind_parameter(14, record.advantage.map(readable))?;
            let advantages = (!record.advantages.is_empty()).then(|| of_tokens(&record.advantages).to_string());
            statement.raw_bind_parameter(15, advantages)?;
            statement.raw_bind_parameter(16, &record.weight_version)?;
        }
        statement.raw_execute().map(drop)
    }
}

/// `{"component": [[first, end, value], …], …}`, in characters of the completion; `None` if there are no segments.
fn segments(parts: &[(String, Vec<Segment>)]) -> Option<String> {
    let of_part = |(name, found): &(String, Vec<Segment>)| (name.clone(), of_tokens(found));
    (!parts.is_empty()).then(|| Value::Object(parts.iter().map(of_part).collect()).to_string())
}

/// `[[first, end, value], …]`
fn of_tokens(tokens: &[Segment]) -> Value {
    let one = |Segment { characters, value }: &Segment| json!([characters.start, characters.end, readable(*value)]);
    tokens.iter().map(one).collect()
}
