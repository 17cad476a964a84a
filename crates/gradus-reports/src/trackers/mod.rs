//! Files for experiment trackers: TensorBoard's event file and an offline run of Weights & Biases.
//!
//! Both are created from `metrics.jsonl`, and tables from `rollouts.sqlite`. An [`Encoder`] turns each row into bytes, and [`Trackers`]
//! appends them. A resumed run writes the files again from the rows that are left, so no step occurs twice. Only the start time of the run
//! is not in the rows; it is part of the file names.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::files::atomic;
use crate::run::directory::RunDir;
use crate::run::metrics::{MetricsRow, read_metrics};

mod crc;
mod protobuf;
mod table;
mod tensorboard;
#[cfg(test)]
mod tests;
mod wandb;

pub use table::LoggedTable;
pub use tensorboard::TensorBoard;
pub use wandb::{Wandb, WandbRun};

/// Encodes logged rows for the file of a tracker. The bytes depend only on the input, never on the clock.
pub trait Encoder {
    /// Bytes before the first row.
    fn begin(&mut self) -> Vec<u8>;

    /// Encodes a row at `seconds` of training time, and its tables.
    fn row(&mut self, row: &MetricsRow, tables: &[LoggedTable], seconds: f64) -> Vec<u8>;

    /// Bytes after the last row of a finished run.
    fn end(&mut self, seconds: f64) -> Vec<u8>;
}

/// Enabled trackers of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EnabledTrackers {
    /// `tensorboard/events.out.tfevents.…`.
    pub tensorboard: bool,
    /// `wandb/offline-run-…`.
    pub wandb: bool,
}

/// The tracker files of a run.
pub struct Trackers {
    run: RunDir,
    files: Vec<TrackerFile>,
    clock: TrainingClock,
}

impl Trackers {
    /// Creates the files from the rows in `metrics.jsonl`.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Data`] if `metrics.jsonl` is corrupt.
    pub fn open(run: &RunDir, enabled: EnabledTrackers) -> Result<Self> {
        let any = enabled != EnabledTrackers::default();
        let rows = if any && run.metrics().is_file() { read_metrics(&run.metrics())? } else { Vec::new() };
        let mut clock = TrainingClock::default();
        let timed: Vec<(&MetricsRow, f64)> = rows.iter().map(|row| (row, clock.after(row))).collect();
        let none = |_: &MetricsRow| Ok(Vec::new());
        let mut files = Vec::new();
        if enabled.tensorboard {
            let directory = run.path().join("tensorboard");
            let known = entries(&directory)?.into_iter().find_map(|name| tensorboard::started_at(&name));
            let started = known.unwrap_or_else(now);
            let path = directory.join(tensorboard::file_name(started));
            files.push(TrackerFile::create(path, Box::new(TensorBoard::new(started)), &timed, &none)?);
        }
        if enabled.wandb {
            let directory = run.path().join("wandb");
            let known = entries(&directory)?.into_iter().find_map(|name| wandb::named(&name));
            let described = WandbRun::describe(run, known, now())?;
            let path = described.write_directory(&directory)?;
            let tables_directory = path.with_file_name("files");
            let tables = |row: &MetricsRow| tables(run, &tables_directory, row);
            let file = TrackerFile::create(path, Box::new(Wandb::new(described)), &timed, &tables)?;
            files.push(TrackerFile { tables_directory: Some(tables_directory), ..file });
        }
        Ok(Self { run: run.clone(), files, clock })
    }

    /// Appends a logged row.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn append(&mut self, row: &MetricsRow) -> Result<()> {
        let seconds = self.clock.after(row);
        self.files.iter_mut().try_for_each(|file| {
            let tables = file
                .tables_directory
                .as_ref()
                .map_or(Ok(Vec::new()), |tables_directory| tables(&self.run, tables_directory, row))?;
            let bytes = file.encoder.row(row, &tables, seconds);
            file.write(&bytes)
        })
    }

    /// Completes the files of a finished run.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(mut self) -> Result<()> {
        let seconds = self.clock.seconds;
        self.files.iter_mut().try_for_each(|file| {
            let bytes = file.encoder.end(seconds);
            file.write(&bytes)
        })
    }
}

/// A tracker file and its encoder.
struct TrackerFile {
    path: PathBuf,
    file: File,
    encoder: Box<dyn Encoder>,
    /// Directory for the files of tables, if the tracker has tables.
    tables_directory: Option<PathBuf>,
}

/// Builds the tables of a row and writes them below `tables_directory`.
fn tables(run: &RunDir, tables_directory: &Path, row: &MetricsRow) -> Result<Vec<LoggedTable>> {
    let tables = table::of_row(run, row)?;
    for table in &tables {
        let path = tables_directory.join(&table.path);
        let directory = path.parent().unwrap_or(tables_directory);
        fs::create_dir_all(directory).map_err(|source| Error::io(directory, source))?;
        atomic::write_bytes(&path, table.content.as_bytes())?;
    }
    Ok(tables)
}

impl TrackerFile {
    fn create(
        path: PathBuf,
        mut encoder: Box<dyn Encoder>,
        rows: &[(&MetricsRow, f64)],
        tables: &dyn Fn(&MetricsRow) -> Result<Vec<LoggedTable>>,
    ) -> Result<Self> {
        let error = |source| Error::io(&path, source);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(error)?;
        let mut bytes = encoder.begin();
        for (row, seconds) in rows {
            bytes.extend(encoder.row(row, &tables(row)?, *seconds));
        }
        atomic::write_bytes(&path, &bytes)?;
        let file = File::options().append(true).open(&path).map_err(error)?;
        Ok(Self { file, encoder, path, tables_directory: None })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|source| Error::io(&self.path, source))
    }
}

/// Training time in seconds, computed from the rows: the tokens since the last row, divided by the tokens per second.
#[derive(Debug, Clone, Copy, Default)]
struct TrainingClock {
    tokens: f64,
    seconds: f64,
}

impl TrainingClock {
    /// Returns the time at the end of the row's step.
    fn after(&mut self, row: &MetricsRow) -> f64 {
        let number = |key: &str| row.values.get(key).filter(|value| value.is_finite());
        if let (Some(tokens), Some(rate)) = (number("num_tokens"), number("tokens_per_s").filter(|&rate| rate > 0.0)) {
            self.seconds += (tokens - self.tokens).max(0.0) / rate;
            self.tokens = tokens;
        }
        self.seconds
    }
}

/// Sorted names in a directory; empty if it does not exist.
fn entries(directory: &Path) -> Result<Vec<String>> {
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(directory).map_err(|source| Error::io(directory, source))?;
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

/// Current time in seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
