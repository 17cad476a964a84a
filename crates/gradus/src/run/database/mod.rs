//! `rollouts.sqlite`: every completion a run trained on, those of its evaluations, and what it warned of.
//!
//! [`RolloutWriter`] appends from a thread of its own; [`RolloutDb`] reads, also while the run goes on. The tables are
//! made for people at a `sqlite3` prompt: one row a completion, the prompt's text beside it, the parts of the reward as
//! one JSON object. A column a part would make every run's schema another one, and a table of parts would put a join
//! into every question; `json_extract(components, '$.length') > 0.5` and `json_each` filter them as they are. Where a part
//! stands elsewhere than at the end of the completion, `segments` says so token by token, as `advantages` does where tokens
//! of one completion were worth learning differently. Where an environment answered, `episode` holds the turns.
//!
//! While a run goes on the journal is a write-ahead log, so a reader that takes its time (`sqlite3 … | less`) never holds
//! up training. A finished run's file is rewritten without one: a single file, and the same bytes for the same rows.

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

/// Which completions are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Table {
    /// Those trained on.
    #[default]
    Train,
    /// Those of evaluations on held-out prompts.
    Eval,
    /// Those of test prompts, before the first step and after the last.
    Test,
}

impl Table {
    /// All tables of completions.
    pub const ALL: [Self; 3] = [Self::Train, Self::Eval, Self::Test];

    /// The table's name in the file.
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
    /// After how many steps an evaluation was made (0 is the start), or the step that trained on the completion, from 1.
    pub step: usize,
    /// Full passes over the prompts before it.
    pub epoch: usize,
    /// The row of the prompt in its data, from 0.
    pub prompt_index: usize,
    /// The place in the prompt's group, from 0.
    pub rollout_index: usize,
    /// The prompt as the model saw it.
    pub prompt: String,
    /// What it answered.
    pub completion: String,
    /// What that is worth, summed over tokens; none where the reward does not apply.
    pub reward: Option<f64>,
    /// The parts of the reward by name, before weighting; none is a part that was not finite.
    pub components: Vec<(String, Option<f64>)>,
    /// Where in the completion each part stands, before weighting; none of parts that stand on its last token alone.
    pub segments: Vec<(String, Vec<Segment>)>,
    /// The mean over tokens of what the completion was worth learning; none in evaluations.
    pub advantage: Option<f64>,
    /// What each token was worth learning, as it went into the loss; none where that is the same for all, and in evaluations.
    pub advantages: Vec<Segment>,
    /// Σ over tokens of `logprob − reference logprob`, in nats; none where no reference was asked.
    pub kl: Option<f64>,
    /// Sampled tokens, the stop id included.
    pub length: usize,
    /// Why it ended: `stop_id`, `stop_string` or `length`.
    pub stop_reason: String,
    /// What was said, turn by turn, where an environment answered.
    pub episode: Option<EpisodeRecord>,
    /// What the weights are called that sampled it, where a server did; none in evaluations.
    pub weight_version: Option<String>,
}

/// An episode: the turns of the policy, and what the environment answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpisodeRecord {
    /// Names it within the run: `step 12, prompt 5, completion 3`.
    #[serde(default)]
    pub name: String,
    /// What the environment added to the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opening: Option<String>,
    /// The turns, in order.
    pub turns: Vec<TurnRecord>,
    /// Why it ended: `done`, `turns`, `tokens`, `time`, or `failed`.
    pub end: String,
    /// What went wrong, where it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The environment's reward of the whole episode, beside those of its turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
}

/// One turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// What the policy wrote.
    pub text: String,
    /// What the environment answered.
    #[serde(flatten)]
    pub observation: Observation,
    /// Whether the policy read the replies.
    pub is_read: bool,
}

/// A token that carries some of a part of the reward, or an advantage.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// Its characters in the completion, from 0 (not bytes); empty for a stop id.
    pub characters: Range<usize>,
    /// What it is worth; of a part of the reward, before weighting.
    pub value: f64,
}

/// Something the run warned of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarningRecord {
    /// The step that showed it, from 1.
    pub step: usize,
    /// What kind it is, one word with underscores.
    pub kind: String,
    /// What was said.
    pub message: String,
}

/// `PRAGMA application_id`: `grad`.
const APPLICATION: i32 = 0x6772_6164;
/// `PRAGMA user_version`: of [`SCHEMA`].
const VERSION: i32 = 6;
/// What makes of each version the next, from the first.
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

/// The first version with the names of weights.
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

/// The table of test prompts, with the columns that `eval_rollouts` had when it was added.
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

/// How long to wait for others who hold the file: long enough for any commit, and a person would have noticed.
const PATIENCE: Duration = Duration::from_secs(60);

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection> {
    let open = || {
        let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(PATIENCE)?;
        Ok(connection)
    };
    open().map_err(|error| failure(path, error))
}

/// The version of the tables. Refuses files of other programs and of newer versions.
fn check_version(path: &Path, connection: &Connection) -> Result<i32> {
    let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let found = number("application_id").and_then(|application| Ok((application, number("user_version")?)));
    match found.map_err(|error| failure(path, error))? {
        (APPLICATION, version @ 1..=VERSION) => Ok(version),
        (APPLICATION, version) => {
            let message = format!("rollout database of version {version}, but this gradus reads versions to {VERSION}");
            Err(Error::data(path, None, message).with_hint("use the gradus that wrote it"))
        }
        _ => Err(Error::data(path, None, "not a rollout database of gradus").with_hint("move it away")),
    }
}

/// What SQLite says, as an error about the file at `path`.
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
