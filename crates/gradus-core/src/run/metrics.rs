//! `metrics.jsonl`: one JSON object per logged step, with TRL's names, appended and flushed line by line.
//!
//! The first row may also have `remarks`, a list of sentences that readers of the numbers need. Readers ignore unknown keys and values that
//! are not numbers, and accept an incomplete last line.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Number, Value};

use super::kept_records::KeptRecords;
use crate::error::{Error, Result, excerpt};
use crate::files::{self, atomic};

/// Returns true if a key, in any file of a run, holds a measurement of the machine: time, speed or memory. All other values of a resumed
/// run must equal those of an undisturbed one.
pub fn is_measurement(key: &str) -> bool {
    MEASUREMENTS.contains(&key) || key.starts_with("time/")
}

/// Keys of measurements, except for those that start with `time/`.
const MEASUREMENTS: [&str; 4] = ["tokens_per_s", "elapsed_s", "busy_s", "peak_memory_bytes"];

/// Prefix of the names of test metrics.
pub const TEST_PREFIX: &str = "test_";

/// Returns true for metrics of an evaluation, on held-out rows (`eval_…`) or test rows (`test_…`).
pub fn is_of_evaluation(key: &str) -> bool {
    key.starts_with("eval_") || key.starts_with(TEST_PREFIX)
}

/// Named numbers in the order in which they were set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics(Vec<(String, f64)>);

impl Metrics {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `key`; an existing key keeps its position.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<f64>) {
        let (key, value) = (key.into(), value.into());
        match self.0.iter_mut().find(|(known, _)| *known == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key, value)),
        }
    }

    /// Value of `key`.
    pub fn get(&self, key: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == key).map(|&(_, value)| value)
    }

    /// Sets every entry of `other` with prefixed keys (`eval_` for held-out rows).
    pub fn extend(&mut self, prefix: &str, other: &Metrics) {
        for (key, value) in other.iter() {
            self.set(format!("{prefix}{key}"), value);
        }
    }

    /// Iterates over names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(key, value)| (key.as_str(), *value))
    }

    /// Returns true if there are no metrics.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Converts the metrics to a JSON object. Values that are not finite become `null`.
    pub fn to_json(&self) -> Map<String, Value> {
        self.iter().map(|(key, value)| (key.to_owned(), number(value))).collect()
    }
}

impl<K: Into<String>, V: Into<f64>> FromIterator<(K, V)> for Metrics {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut metrics = Self::new();
        for (key, value) in entries {
            metrics.set(key, value);
        }
        metrics
    }
}

/// X-axis of curves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Optimizer steps, or iterations.
    Steps,
    /// Rows, pairs or prompts that training has processed; repeated ones count each time.
    Examples,
    /// Tokens that the model has processed in training.
    Tokens,
}

impl Axis {
    /// All axes.
    pub const ALL: [Self; 3] = [Self::Steps, Self::Examples, Self::Tokens];

    /// Label of the axis.
    pub fn name(self) -> &'static str {
        match self {
            Self::Steps => "step",
            Self::Examples => "examples",
            Self::Tokens => "tokens",
        }
    }

    /// Position of `row` on the axis; `None` if the row does not contain it.
    pub fn of(self, row: &MetricsRow) -> Option<f64> {
        match self {
            Self::Steps => Some(row.step as f64),
            // Rows from before training have no counts.
            Self::Examples => row.values.get("num_examples").or((row.step == 0).then_some(0.0)),
            Self::Tokens => row.values.get("num_tokens").or((row.step == 0).then_some(0.0)),
        }
    }
}

/// Converts a number to JSON with the fewest digits: values that are exactly an `f32` are written with the digits of an `f32` (0.1, not
/// 0.10000000149011612).
pub fn number(value: f64) -> Value {
    Number::from_f64(readable(value)).map_or(Value::Null, Value::Number)
}

/// Converts a value that is exactly an `f32` to the `f64` with the same shortest digits.
pub fn readable(value: f64) -> f64 {
    let short = value as f32;
    if f64::from(short) == value { short.to_string().parse().unwrap_or(value) } else { value }
}

/// Returns true if a metric is better when it is smaller: losses, errors, divergences, edits, toxicity. For rewards, larger is always
/// better, whatever their components are named.
pub fn smaller_is_better(name: &str) -> bool {
    if name.contains("rewards/") {
        return false;
    }
    let words: Vec<&str> = name.split(['/', '_']).collect();
    ["loss", "error", "perplexity"].iter().any(|part| name.contains(part))
        || words.iter().any(|word| *word == "toxicity" || matches!(*word, "kl" | "approxkl"))
        || words.last() == Some(&"ter")
}

/// Returns true if `value` is better than `other`.
pub fn is_better(greater_is_better: bool, value: f64, other: f64) -> bool {
    if greater_is_better { value > other } else { value < other }
}

/// One logged step.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricsRow {
    /// The optimizer step (online methods: iteration), counted from 1.
    pub step: usize,
    /// All other values; `null` is read as NaN.
    pub values: Metrics,
}

impl MetricsRow {
    /// `{"step": …, …}`
    pub fn to_json(&self) -> Map<String, Value> {
        let mut object = Map::from_iter([("step".to_owned(), self.step.into())]);
        object.extend(self.values.to_json());
        object
    }

    fn from_json(object: &Map<String, Value>) -> Option<Self> {
        let step = usize::try_from(object.get("step")?.as_u64()?).ok()?;
        let value = |value: &Value| if value.is_null() { Some(f64::NAN) } else { value.as_f64() };
        let others = object.iter().filter(|(key, _)| *key != "step");
        Some(Self { step, values: others.filter_map(|(key, found)| Some((key.clone(), value(found)?))).collect() })
    }
}

/// Key of the remarks in the first row, and in other files that hold numbers of a run.
pub const REMARKS: &str = "remarks";

/// Appends to a `metrics.jsonl`.
#[derive(Debug)]
pub struct MetricsLog {
    path: PathBuf,
    file: File,
    /// Remarks for the first row.
    remarks: Vec<String>,
}

impl MetricsLog {
    /// Opens the file for appending, after removing an incomplete last line.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let open = || {
            let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
            file.set_len(whole as u64)?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        };
        let file = open().map_err(|source| Error::io(path, source))?;
        Ok(Self { path: path.to_owned(), file, remarks: Vec::new() })
    }

    /// Sets the remarks that the first row of the file gets, such as a metric that is computed without an external file.
    pub fn set_remarks(&mut self, remarks: Vec<String>) {
        self.remarks = remarks;
    }

    /// Remarks on the numbers of the run.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Opens the file to continue after the rows that `kept` keeps. Later ones are removed, so a resumed run writes them only once.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Data`] for a line that is no JSON object.
    pub fn resume(path: &Path, kept: impl Into<KeptRecords>) -> Result<Self> {
        let last = kept.into().last_evaluated();
        if path.exists() {
            // Lines are kept verbatim, with any keys that this version does not know.
            let kept: String = parse(path)?
                .into_iter()
                .filter(|(row, _)| row.step as i64 <= last)
                .flat_map(|(_, line)| [line, "\n".to_owned()])
                .collect();
            atomic::write_bytes(path, kept.as_bytes())?;
        }
        Self::open(path)
    }

    /// Appends one row and passes it to the operating system at once.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn append(&mut self, step: usize, metrics: &Metrics) -> Result<()> {
        let mut row = MetricsRow { step, values: metrics.clone() }.to_json();
        let write = || {
            let is_first = !self.remarks.is_empty() && self.file.metadata()?.len() == 0;
            if is_first {
                row.insert(REMARKS.into(), self.remarks.clone().into());
            }
            let line = Value::Object(row).to_string() + "\n";
            self.file.write_all(line.as_bytes())?;
            self.file.flush()
        };
        write().map_err(|source| Error::io(&self.path, source))
    }

    /// Returns true if the file is still at its path. After its directory was deleted, writing to the file would continue without an error.
    pub fn exists(&self) -> bool {
        match (self.file.metadata(), fs::metadata(&self.path)) {
            (Ok(own), Ok(found)) => is_same(&own, &found),
            _ => false,
        }
    }

    /// Continues at another path with all rows so far, even if the file has been deleted.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn move_to(&mut self, path: &Path) -> Result<()> {
        let mut rows = Vec::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_end(&mut rows));
        read.map_err(|source| Error::io(&self.path, source))?;
        atomic::write_bytes(path, &rows)?;
        let remarks = std::mem::take(&mut self.remarks);
        *self = Self { remarks, ..Self::open(path)? };
        Ok(())
    }
}

#[cfg(unix)]
fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Other systems do not report this, and do not delete open files.
#[cfg(not(unix))]
fn is_same(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

/// Reads a `metrics.jsonl`. An incomplete last line is left out.
///
/// # Errors
/// [`Error::Io`], or [`Error::Data`] for any other line that is no JSON object with a `step`.
pub fn read_metrics(path: &Path) -> Result<Vec<MetricsRow>> {
    Ok(parse(path)?.into_iter().map(|(row, _)| row).collect())
}

/// Reads the remarks of a `metrics.jsonl`. Empty if the file has none or cannot be read.
pub fn read_remarks(path: &Path) -> Vec<String> {
    let mut first = String::new();
    let read = files::open(path).and_then(|file| BufReader::new(file).read_line(&mut first));
    let row = read.ok().and_then(|_| serde_json::from_str::<Map<String, Value>>(&first).ok());
    row.as_ref().map_or_else(Vec::new, remarks)
}

/// Remarks in an object of a run's files.
pub fn remarks(object: &Map<String, Value>) -> Vec<String> {
    let texts = object.get(REMARKS).and_then(Value::as_array).into_iter().flatten();
    texts.filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

/// Parses the rows and returns each with its line.
fn parse(path: &Path) -> Result<Vec<(MetricsRow, String)>> {
    let bytes = files::read_run(path).map_err(|source| Error::io(path, source))?;
    let text = String::from_utf8_lossy(&bytes);
    let mut rows = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let parsed = serde_json::from_str::<Map<String, Value>>(line);
        match parsed.ok().and_then(|object| MetricsRow::from_json(&object)) {
            Some(row) => rows.push((row, line.trim_end().to_owned())),
            None if !line.ends_with('\n') => {}
            None => {
                let message = format!("not a JSON object with a `step` (found `{}`)", excerpt(line, 60));
                return Err(Error::data(path, Some(index + 1), message));
            }
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(entries: &[(&str, f64)]) -> Metrics {
        entries.iter().copied().collect()
    }

    #[test]
    fn which_way_is_better_follows_from_the_name() {
        let smaller =
            ["eval_loss", "eval_mean_squared_error", "eval_kl", "objective/kl", "eval_ter", "eval_perplexity/rows"];
        for name in smaller.into_iter().chain(["eval_toxicity/max", "toxicity/mean", "policy/approxkl_avg"]) {
            assert!(smaller_is_better(name), "{name}");
        }
        let larger = ["eval_reward", "eval_rouge/rougeL", "eval_sparkle", "eval_meteor", "eval_rewards/toxicity/mean"];
        for name in larger.into_iter().chain([
            "eval_rewards/typing_error/mean",
            "eval_rewards/ter",
            "eval_parent_totto/f_score",
        ]) {
            assert!(!smaller_is_better(name), "{name}");
        }
    }

    #[test]
    fn the_first_row_alone_has_the_remarks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let mut log = MetricsLog::open(&path).unwrap();
        log.set_remarks(vec!["`meteor` is computed without its file".into()]);
        log.append(0, &metrics(&[("eval_meteor", 0.25)])).unwrap();
        drop(log);
        let mut resumed = MetricsLog::open(&path).unwrap();
        resumed.set_remarks(vec!["`meteor` is computed without its file".into()]);
        resumed.append(1, &metrics(&[("eval_meteor", 0.5)])).unwrap();
        let expected = "{\"step\":0,\"eval_meteor\":0.25,\"remarks\":[\"`meteor` is computed without its file\"]}\n\
                        {\"step\":1,\"eval_meteor\":0.5}\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(read_remarks(&path), ["`meteor` is computed without its file"]);
        let rows = read_metrics(&path).unwrap();
        assert_eq!(rows[0].values, metrics(&[("eval_meteor", 0.25)]));
        let moved = directory.path().join("moved.jsonl");
        resumed.move_to(&moved).unwrap();
        assert_eq!((resumed.remarks().len(), fs::read_to_string(&moved).unwrap().as_str()), (1, expected));
        assert!(read_remarks(&directory.path().join("none.jsonl")).is_empty());
    }

    #[test]
    fn rows_come_back_as_they_were_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let mut log = MetricsLog::open(&path).unwrap();
        let first = metrics(&[("loss", f64::from(0.1f32)), ("learning_rate", 1e-6), ("rewards/chosen", 2.0)]);
        log.append(1, &first).unwrap();
        log.append(2, &metrics(&[("loss", f64::NAN), ("grad_norm", f64::INFINITY), ("third", 1.0 / 3.0)])).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "{\"step\":1,\"loss\":0.1,\"learning_rate\":1e-6,\"rewards/chosen\":2.0}\n\
             {\"step\":2,\"loss\":null,\"grad_norm\":null,\"third\":0.3333333333333333}\n"
        );
        let rows = read_metrics(&path).unwrap();
        assert_eq!(rows[0].values, metrics(&[("loss", 0.1), ("learning_rate", 1e-6), ("rewards/chosen", 2.0)]));
        assert!(rows[1].values.get("loss").unwrap().is_nan());
        assert_eq!((rows[1].step, rows[1].values.get("third")), (2, Some(1.0 / 3.0)));
    }

    #[test]
    fn a_torn_last_line_is_left_out_and_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        fs::write(&path, "{\"step\":1,\"loss\":2.0}\n{\"step\":2,\"lo").unwrap();
        assert_eq!(read_metrics(&path).unwrap().len(), 1);
        MetricsLog::open(&path).unwrap().append(2, &metrics(&[("loss", 1.5)])).unwrap();
        let losses: Vec<_> = read_metrics(&path).unwrap().iter().map(|row| row.values.get("loss")).collect();
        assert_eq!(losses, [Some(2.0), Some(1.5)]);
    }

    #[test]
    fn unknown_keys_are_kept_for_others_and_broken_lines_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let line = "{\"step\":1,\"loss\":2.0,\"phase\":\"warm-up\",\"nested\":{\"a\":1}}\n";
        fs::write(&path, format!("{line}{{\"step\":2,\"loss\":1.0}}\n")).unwrap();
        assert_eq!(read_metrics(&path).unwrap()[0].values, metrics(&[("loss", 2.0)]));
        MetricsLog::resume(&path, 1).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), line);

        fs::write(&path, "{\"step\":1}\n[1, 2]\n{\"step\":3}\n").unwrap();
        let message = read_metrics(&path).unwrap_err().to_string();
        assert_eq!(message, format!("{}:2: not a JSON object with a `step` (found `[1, 2]`)", path.display()));
    }

    #[test]
    fn going_on_from_a_checkpoint_drops_later_rows() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let mut log = MetricsLog::open(&path).unwrap();
        for step in 1..=5 {
            log.append(step, &Metrics::new()).unwrap();
        }
        MetricsLog::resume(&path, 3).unwrap().append(4, &Metrics::new()).unwrap();
        let steps: Vec<_> = read_metrics(&path).unwrap().iter().map(|row| row.step).collect();
        assert_eq!(steps, [1, 2, 3, 4]);
        // The row of a step whose evaluation is repeated is written again.
        MetricsLog::resume(&path, KeptRecords::new(3, true)).unwrap().append(3, &Metrics::new()).unwrap();
        let steps: Vec<_> = read_metrics(&path).unwrap().iter().map(|row| row.step).collect();
        assert_eq!(steps, [1, 2, 3]);
    }

    #[test]
    fn keys_are_set_once_and_prefixed() {
        let mut row = metrics(&[("loss", 1.0), ("kl", 2.0)]);
        row.set("loss", 3.0);
        row.extend("eval_", &metrics(&[("loss", 4.0)]));
        assert_eq!(row.iter().collect::<Vec<_>>(), [("loss", 3.0), ("kl", 2.0), ("eval_loss", 4.0)]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_reported_as_such() {
        let full = Path::new("/dev/full");
        let file = File::options().write(true).open(full).unwrap();
        let mut log = MetricsLog { path: full.to_owned(), file, remarks: Vec::new() };
        let error = log.append(1, &Metrics::new()).unwrap_err();
        assert_eq!(error.to_string(), "/dev/full: No space left on device (os error 28)");
    }
}
