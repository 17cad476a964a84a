//! An offline run of Weights & Biases: `wandb/offline-run-<start>-<id>/run-<id>.wandb`, for `wandb sync`.
//!
//! The file begins with `:W&B`, a magic number and a version. Then come blocks of 32 KiB with records in the format of LevelDB's log, but
//! with unmasked checksums: checksum (4 bytes, of type and content), length (2), type (1), content. A record that does not fit in its block
//! continues in the next one. The content is a `Record` of `wandb_internal.proto`.

use std::fs;
use std::path::{Path, PathBuf};

use chrono::NaiveDateTime;
use flate2::Crc;
use serde_json::{Map, Value};

use super::protobuf::Message;
use super::{Encoder, LoggedTable};
use crate::calendar;
use crate::error::{Error, Result};
use crate::files::atomic;
use crate::run::directory::RunDir;
use crate::run::metrics::{MetricsRow, readable};
use crate::run_report::{config_hash, fingerprint};

const HEADER: [u8; 7] = *b":W&B\xe1\xbe\x00";
const BLOCK: usize = 32 * 1024;
/// Size of checksum, length and type.
const FRAME: usize = 7;
/// Oldest version of `wandb` that can read these files.
const MIN_CONSUMER: &str = "0.70.0";
const PREFIX: &str = "offline-run-";
/// Default project.
const PROJECT: &str = "gradus";

/// Identity and configuration of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct WandbRun {
    /// Eight letters and digits, derived from configuration, directory and start.
    pub id: String,
    /// Display name: `train.wandb_name`, or the name of the run directory.
    pub name: String,
    /// Project: `train.wandb_project`, or `gradus`.
    pub project: String,
    /// Owner of the project, if `train.wandb_entity` is set.
    pub entity: Option<String>,
    /// Start in seconds since 1970.
    pub started: u64,
    /// The configuration.
    pub config: Map<String, Value>,
}

impl WandbRun {
    /// Describes the run in a directory. `known` is the start and the id from an earlier session of the run.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Data`] if `config.yml` cannot be read.
    pub fn describe(run: &RunDir, known: Option<(u64, String)>, now: u64) -> Result<Self> {
        let path = run.config();
        let text = if path.is_file() { fs::read_to_string(&path) } else { Ok(String::new()) };
        let text = text.map_err(|source| Error::io(&path, source))?;
        let config: Value = if text.trim().is_empty() {
            Value::Null
        } else {
            serde_saphyr::from_str(&text).map_err(|error| Error::data(&path, None, format!("not YAML: {error}")))?
        };
        let directory = run.path().canonicalize().unwrap_or_else(|_| run.path().to_owned());
        let what = || format!("{}\n{}\n{now}", config_hash(&text), directory.display());
        let (started, id) = known.unwrap_or_else(|| (now, base36(fingerprint(what().bytes()))));
        let setting = |key: &str| config.pointer(key).and_then(Value::as_str).map(str::to_owned);
        Ok(Self {
            id,
            name: setting("/train/wandb_name").unwrap_or_else(|| run.name()),
            project: setting("/train/wandb_project").unwrap_or_else(|| PROJECT.into()),
            entity: setting("/train/wandb_entity"),
            started,
            config: config.as_object().cloned().unwrap_or_default(),
        })
    }

    /// Creates the run's directory below `wandb/`, with the configuration in `files/`. Returns the path of the log.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn write_directory(&self, wandb: &Path) -> Result<PathBuf> {
        let directory = wandb.join(format!("{PREFIX}{}-{}", stamp(self.started), self.id));
        let files = directory.join("files");
        fs::create_dir_all(&files).map_err(|source| Error::io(&files, source))?;
        // Tables are written again with the rows. This also removes the tables of removed rows.
        let media = files.join("media");
        if media.is_dir() {
            fs::remove_dir_all(&media).map_err(|source| Error::io(&media, source))?;
        }
        // JSON is YAML.
        let line = |(key, value): (&String, &Value)| format!("{}:\n  value: {value}\n", Value::from(key.as_str()));
        let config: String = self.config.iter().map(line).collect();
        atomic::write_bytes(&files.join("config.yaml"), config.as_bytes())?;
        Ok(directory.join(format!("run-{}.wandb", self.id)))
    }
}

/// Start and id of a run according to the name of its directory.
pub(super) fn named(name: &str) -> Option<(u64, String)> {
    let (start, rest) = NaiveDateTime::parse_and_remainder(name.strip_prefix(PREFIX)?, STAMP).ok()?;
    Some((u64::try_from(start.and_utc().timestamp()).ok()?, rest.strip_prefix('-')?.to_owned()))
}

/// Format of timestamps such as `20261120_170417`.
const STAMP: &str = "%Y%m%d_%H%M%S";

/// Returns the timestamp of seconds since 1970, in UTC.
pub(super) fn stamp(seconds: u64) -> String {
    calendar::utc(seconds, STAMP)
}

/// Eight digits of base 36.
fn base36(mut number: u64) -> String {
    let mut digit = || {
        let digit = (number % 36) as u32;
        number /= 36;
        char::from_digit(digit, 36).unwrap_or('0')
    };
    (0..8).map(|_| digit()).collect()
}

/// Writes a `history` and a `summary` record per row.
#[derive(Debug, Clone)]
pub struct Wandb {
    run: WandbRun,
    /// Number of bytes so far, to find the ends of blocks.
    position: usize,
    records: u64,
}

impl Wandb {
    /// Creates the encoder for a run.
    pub fn new(run: WandbRun) -> Self {
        Self { run, position: 0, records: 0 }
    }

    /// A `Record` (`num` = 1, `_info` = 200 with `stream_id` = 1) with `content` as field `kind`.
    fn record(&mut self, kind: u32, content: Message) -> Vec<u8> {
        self.records += 1;
        let info = Message::new().text(1, &self.run.id);
        let record = Message::new().integer(1, self.records).message(kind, content).message(200, info);
        self.frame(&record.into_bytes())
    }

    /// Splits a record into frames. Zeros fill the end of a block that has no space for the header of a frame.
    fn frame(&mut self, mut content: &[u8]) -> Vec<u8> {
        let (mut bytes, mut first) = (Vec::with_capacity(content.len() + FRAME), true);
        loop {
            let room = BLOCK - (self.position + bytes.len()) % BLOCK;
            if room < FRAME {
                bytes.resize(bytes.len() + room, 0);
                continue;
            }
            let (part, rest) = content.split_at(content.len().min(room - FRAME));
            let kind = match (first, rest.is_empty()) {
                (true, true) => 1,
                (true, false) => 2,
                (false, false) => 3,
                (false, true) => 4,
            };
            let mut check = Crc::new();
            [&[kind], part].into_iter().for_each(|bytes| check.update(bytes));
            bytes.extend(check.sum().to_le_bytes());
            bytes.extend((part.len() as u16).to_le_bytes());
            bytes.push(kind);
            bytes.extend(part);
            (content, first) = (rest, false);
            if content.is_empty() {
                self.position += bytes.len();
                return bytes;
            }
        }
    }
}

/// Items of `HistoryRecord` and `SummaryRecord`: `nested_key` = 2, `value_json` = 16. A table is an object; each of its keys is an item
/// with two parts of `nested_key`.
fn items(row: &MetricsRow, tables: &[LoggedTable], started: u64, seconds: f64) -> Vec<Message> {
    let item = |key: &str, json: &str| Message::new().text(2, key).text(16, json);
    let number = |value: f64| match value {
        // As Python's `json` writes numbers that JSON does not have.
        value if value.is_nan() => "NaN".to_owned(),
        value if value.is_infinite() => if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        value => Value::from(readable(value)).to_string(),
    };
    let mut items: Vec<Message> = row.values.iter().map(|(key, value)| item(key, &number(value))).collect();
    for table in tables {
        let part =
            |(key, value): (&str, Value)| Message::new().text(2, &table.key).text(2, key).text(16, &value.to_string());
        items.extend(table.reference().map(part));
    }
    items.push(item("_timestamp", &number(started as f64 + seconds)));
    items.push(item("_runtime", &number(seconds)));
    items.push(item("_step", &row.step.to_string()));
    items
}

impl Encoder for Wandb {
    fn begin(&mut self) -> Vec<u8> {
        self.position = HEADER.len();
        let version = Message::new().text(1, "gradus").text(2, MIN_CONSUMER);
        let header = self.record(21, Message::new().message(1, version));
        let update = |(key, value): (&String, &Value)| Message::new().text(1, key).text(16, &value.to_string());
        let config = Message::new().messages(1, self.run.config.iter().map(update));
        let method = self.run.config.get("method").and_then(Value::as_object).and_then(|method| method.keys().next());
        let run = Message::new().text(1, &self.run.id);
        let run = match &self.run.entity {
            Some(entity) => run.text(2, entity),
            None => run,
        };
        let run = run
            .text(3, &self.run.project)
            .message(4, config)
            .text(7, method.map_or("", String::as_str))
            .text(8, &self.run.name)
            .message(17, Message::new().integer(1, self.run.started));
        [HEADER.to_vec(), header, self.record(17, run)].concat()
    }

    fn row(&mut self, row: &MetricsRow, tables: &[LoggedTable], seconds: f64) -> Vec<u8> {
        let items = items(row, tables, self.run.started, seconds);
        // A `FilesRecord` has `files` = 1 with `path` = 1: the files to upload.
        let file = |table: &LoggedTable| Message::new().message(1, Message::new().text(1, &table.path));
        let files: Vec<u8> = tables.iter().flat_map(|table| self.record(6, file(table))).collect();
        let summary = self.record(3, Message::new().messages(1, items.clone()));
        let step = Message::new().integer(1, row.step as u64);
        let history = self.record(2, Message::new().messages(1, items).message(2, step));
        [files, summary, history].concat()
    }

    fn end(&mut self, seconds: f64) -> Vec<u8> {
        self.record(18, Message::new().integer(2, seconds as u64))
    }
}
