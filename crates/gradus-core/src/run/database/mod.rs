//! `rollouts.sqlite`: every completion that a run trained on, the completions of its evaluations, and its warnings.
//!
//! [`RolloutWriter`] appends from its own thread. [`RolloutDb`] reads, also during training. The tables are made for people at a `sqlite3`
//! prompt: one row per completion with the prompt's text, and the components of the reward in one JSON object. With one column per
//! component, each run would have another schema; with a table of components, every query would need a join.
//! `json_extract(components, '$.length') > 0.5` and `json_each` filter the JSON directly. `segments` holds rewards that are not on the last
//! token, and `advantages` those that differ between tokens, each per token. `episode` holds the turns with an environment.
//!
//! During training the journal is a write-ahead log, so a slow reader (`sqlite3 … | less`) never blocks training. At the end the file is
//! rewritten without one: a single file, with the same bytes for the same rows.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use gradus_environments::Observation;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use reader::{ComponentBound, Query, RolloutDb, Sort};
pub use writer::RolloutWriter;

/// A table of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RolloutTable {
    /// Completions that the run trained on.
    #[default]
    Train,
    /// Completions of evaluations on held-out prompts.
    Eval,
    /// Completions of test prompts, before the first step and after the last one.
    Test,
}

impl RolloutTable {
    /// All tables of completions.
    pub const ALL: [Self; 3] = [Self::Train, Self::Eval, Self::Test];

    /// Name of the table in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "rollouts",
            Self::Eval => "eval_rollouts",
            Self::Test => "test_rollouts",
        }
    }
}

/// One completion.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Record {
    /// The step that trained on the completion, from 1. For evaluations, the number of steps before it (0 is the start).
    pub step: usize,
    /// Number of full passes over the prompts before it.
    pub epoch: usize,
    /// Row of the prompt in its data, from 0.
    pub prompt_index: usize,
    /// Index in the prompt's group, from 0.
    pub rollout_index: usize,
    /// Prompt as the model received it.
    pub prompt: String,
    /// Text that the model generated.
    pub completion: String,
    /// Reward, summed over tokens; `None` if the reward does not apply.
    pub reward: Option<f64>,
    /// Components of the reward by name, before weighting; `None` if a component was not finite.
    pub components: Vec<(String, Option<f64>)>,
    /// Per-token values of each component, before weighting. Components that are on the last token alone are left out.
    pub segments: Vec<(String, Vec<Segment>)>,
    /// Mean advantage over tokens; `None` in evaluations.
    pub advantage: Option<f64>,
    /// Advantage of each token, as used in the loss. Empty if it is the same for all tokens, and in evaluations.
    pub advantages: Vec<Segment>,
    /// Σ over tokens of `logprob − reference logprob`, in nats; `None` without a reference.
    pub kl: Option<f64>,
    /// Number of sampled tokens, including the stop id.
    pub length: usize,
    /// Why generation ended: `stop_id`, `stop_string` or `length`.
    pub stop_reason: String,
    /// Turns of the episode, if an environment replied.
    pub episode: Option<EpisodeRecord>,
    /// Weights that a server sampled it with: `v3` after step 3. `None` without a server and in evaluations.
    pub weight_version: Option<String>,
}

/// An episode: the turns of the policy and the replies of the environment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpisodeRecord {
    /// Name within the run: `step 12, prompt 5, completion 3`.
    #[serde(default)]
    pub name: String,
    /// Text that the environment added to the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opening: Option<String>,
    /// Turns, in order.
    pub turns: Vec<TurnRecord>,
    /// Why the episode ended: `done`, `turns`, `tokens`, `time` or `failed`.
    pub end: String,
    /// Error of a failed episode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Reward of the environment for the whole episode, in addition to those of the turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
}

/// One turn of an episode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// Text of the policy.
    pub text: String,
    /// Reply of the environment.
    #[serde(flatten)]
    pub observation: Observation,
    /// Whether the policy received the replies.
    pub is_read: bool,
}

/// A token with its share of a reward component, or with its advantage.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// Range of its characters (not bytes) in the completion, from 0; empty for a stop id.
    pub characters: Range<usize>,
    /// Reward before weighting, or advantage.
    pub value: f64,
}

/// A warning of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarningRecord {
    /// Step that caused it, from 1.
    pub step: usize,
    /// Kind of warning, in snake_case.
    pub kind: String,
    /// Text of the warning.
    pub message: String,
}

/// `PRAGMA application_id`: `grad`.
const APPLICATION: i32 = 0x6772_6164;
/// `PRAGMA user_version`: version of [`SCHEMA`].
const VERSION: i32 = 6;
/// SQL that upgrades each version to the next, from the first.
const ADDED: [&str; VERSION as usize - 1] = [
    "ALTER TABLE rollouts ADD COLUMN segments TEXT; ALTER TABLE eval_rollouts ADD COLUMN segments TEXT;",
    "ALTER TABLE rollouts ADD COLUMN advantages TEXT;",
    TEST_ROLLOUTS,
    "ALTER TABLE rollouts ADD COLUMN episode TEXT; ALTER TABLE eval_rollouts ADD COLUMN episode TEXT; \
     ALTER TABLE test_rollouts ADD COLUMN episode TEXT;",
    "ALTER TABLE rollouts ADD COLUMN weight_version TEXT;",
];
/// The first version with [`TEST_ROLLOUTS`].
const WITH_TEST_ROLLOUTS: i32 = 4;

/// The first version with episodes.
const WITH_EPISODES: i32 = 5;

/// The first version with names of weights.
const WITH_WEIGHT_VERSIONS: i32 = 6;

const SCHEMA: &str = "
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY,
    step INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    prompt_index INTEGER NOT NULL,
    rollout_index INTEGER NOT NULL,
    prompt TEXT NOT NULL,
    completion TEXT NOT NULL,
    reward REAL,
    components TEXT NOT NULL,
    advantage REAL,
    kl REAL,
    length INTEGER NOT NULL,
    stop_reason TEXT NOT NULL,
    segments TEXT,
    advantages TEXT,
    episode TEXT,
    weight_version TEXT
);
CREATE INDEX rollouts_by_step ON rollouts (step);
CREATE TABLE eval_rollouts (
    id INTEGER PRIMARY KEY,
    step INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    prompt_index INTEGER NOT NULL,
    rollout_index INTEGER NOT NULL,
    prompt TEXT NOT NULL,
    completion TEXT NOT NULL,
    reward REAL,
    components TEXT NOT NULL,
    kl REAL,
    length INTEGER NOT NULL,
    stop_reason TEXT NOT NULL,
    segments TEXT,
    episode TEXT
);
CREATE INDEX eval_rollouts_by_step ON eval_rollouts (step);
CREATE TABLE warnings (
    id INTEGER PRIMARY KEY,
    step INTEGER NOT NULL,
    kind TEXT NOT NULL,
    message TEXT NOT NULL
);
";

/// Table of test prompts, with the columns that `eval_rollouts` had when this table was introduced.
const TEST_ROLLOUTS: &str = "
CREATE TABLE test_rollouts (
    id INTEGER PRIMARY KEY,
    step INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    prompt_index INTEGER NOT NULL,
    rollout_index INTEGER NOT NULL,
    prompt TEXT NOT NULL,
    completion TEXT NOT NULL,
    reward REAL,
    components TEXT NOT NULL,
    kl REAL,
    length INTEGER NOT NULL,
    stop_reason TEXT NOT NULL,
    segments TEXT
);
CREATE INDEX test_rollouts_by_step ON test_rollouts (step);
";

/// How long to wait for another process that holds the file: long enough for any commit, and for a person to notice.
const PATIENCE: Duration = Duration::from_secs(60);

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection> {
    let open = || {
        let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(PATIENCE)?;
        Ok(connection)
    };
    open().map_err(|error| failure(path, error))
}

/// Opens the database at `path` for reading.
///
/// A kill in a commit leaves a journal that must be rolled back before anything can be read. A connection that only reads cannot do that,
/// so one that may write does it first.
fn connect_to_read(path: &Path) -> Result<Connection> {
    let first_read = |connection: &Connection| connection.pragma_query_value(None, "schema_version", |_| Ok(()));
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let is_left_by_kill =
        |error: &rusqlite::Error| error.sqlite_extended_error_code() == Some(rusqlite::ffi::SQLITE_READONLY_ROLLBACK);
    if first_read(&connection).is_err_and(|error| is_left_by_kill(&error)) {
        first_read(&connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?).map_err(|error| failure(path, error))?;
    }
    Ok(connection)
}

/// Returns the version of the tables. Rejects files of other programs and of newer versions.
fn check_version(path: &Path, connection: &Connection) -> Result<i32> {
    let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let found = number("application_id").and_then(|application| Ok((application, number("user_version")?)));
    match found.map_err(|error| failure(path, error))? {
        (APPLICATION, version @ 1..=VERSION) => Ok(version),
        (APPLICATION, version) => {
            let message =
                format!("rollout database of version {version}, but this gradus reads versions up to {VERSION}");
            Err(Error::data(path, None, message).with_hint("use the gradus that wrote it"))
        }
        _ => Err(Error::data(path, None, "not a rollout database of gradus").with_hint("move it away")),
    }
}

/// Converts an error of SQLite into an error about the file at `path`.
fn failure(path: &Path, error: rusqlite::Error) -> Error {
    let Some(code) = error.sqlite_error_code() else { return Error::io(path, std::io::Error::other(error)) };
    let io = |kind| Error::io(path, std::io::Error::new(kind, error.to_string()));
    match code {
        ErrorCode::DiskFull => io(std::io::ErrorKind::StorageFull),
        ErrorCode::PermissionDenied | ErrorCode::ReadOnly => io(std::io::ErrorKind::PermissionDenied),
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
            let hint = "`sqlite3 FILE .recover` saves what can be read; without the file a run starts a new one";
            Error::data(path, None, format!("not a usable database: {error}")).with_hint(hint)
        }
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
            let hint = "another program holds it in a transaction; close that program";
            Error::data(path, None, format!("locked for {} s", PATIENCE.as_secs())).with_hint(hint)
        }
        _ => io(std::io::ErrorKind::Other),
    }
}
