//! Tables of Weights & Biases: completions of an evaluation, as `files/media/table/<key>_<step>_<hash>.table.json`.
//!
//! The content is that of `wandb.Table`: `{"columns":[…],"data":[[…],…]}`. The run's history refers to a table by its file name, hash and
//! size.

use ring::digest::{SHA256, digest};
use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::run::database::{Query, Record, RolloutDb, RolloutTable};
use crate::run::directory::RunDir;
use crate::run::metrics::{MetricsRow, TEST_PREFIX, number};

/// Maximum number of rows of a table, as in the `wandb` package.
const MOST_ROWS: usize = 10_000;

/// A table of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedTable {
    /// Key in the history, such as `eval_predictions`.
    pub key: String,
    /// Path below `files/`.
    pub path: String,
    /// Content of its file.
    pub content: String,
    /// SHA-256 of the content, in hexadecimal.
    pub sha256: String,
    /// Number of columns.
    pub columns: usize,
    /// Number of rows.
    pub rows: usize,
}

impl LoggedTable {
    /// Creates the table `key` after `step` steps.
    pub fn new(key: &str, step: usize, columns: &[String], rows: &[Vec<Value>]) -> Self {
        let content = json!({ "columns": columns, "data": rows }).to_string();
        let hash = digest(&SHA256, content.as_bytes());
        let sha256: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let path = format!("media/table/{key}_{step}_{}.table.json", &sha256[..20]);
        Self { key: key.to_owned(), path, content, sha256, columns: columns.len(), rows: rows.len() }
    }

    /// Entry of the table in the history.
    pub(super) fn reference(&self) -> [(&'static str, Value); 7] {
        [
            ("_type", "table-file".into()),
            ("sha256", self.sha256.clone().into()),
            ("size", self.content.len().into()),
            ("path", self.path.clone().into()),
            ("ncols", self.columns.into()),
            ("nrows", self.rows.into()),
            ("log_mode", "IMMUTABLE".into()),
        ]
    }
}

/// Returns the tables of the evaluations in `row`: `eval_predictions` and `test_predictions`. Empty without completions.
///
/// # Errors
/// If the completions cannot be read.
pub(super) fn of_row(run: &RunDir, row: &MetricsRow) -> Result<Vec<LoggedTable>> {
    let mut tables = Vec::new();
    if !run.rollouts().is_file() {
        return Ok(tables);
    }
    for (key, prefix, table) in
        [("eval_predictions", "eval_", RolloutTable::Eval), ("test_predictions", TEST_PREFIX, RolloutTable::Test)]
    {
        if row.values.iter().any(|(key, _)| key.starts_with(prefix)) {
            let step = Some(row.step);
            let query = Query { table, first_step: step, last_step: step, limit: Some(MOST_ROWS), ..Query::default() };
            let records = RolloutDb::open(run)?.query(&query)?;
            tables.extend((!records.is_empty()).then(|| of_records(key, row.step, &records)));
        }
    }
    Ok(tables)
}

fn of_records(key: &str, step: usize, records: &[Record]) -> LoggedTable {
    // Completions usually have the same components, but a plugin may leave some out.
    let mut parts: Vec<&String> = Vec::new();
    for (name, _) in records.iter().flat_map(|record| &record.components) {
        if !parts.contains(&name) {
            parts.push(name);
        }
    }
    let known = ["row", "prompt", "completion", "reward", "kl", "length", "stop_reason"];
    let columns: Vec<String> =
        known.iter().map(|&name| name.to_owned()).chain(parts.iter().map(|name| (*name).clone())).collect();
    let cell = |value: Option<f64>| value.map_or(Value::Null, number);
    let row = |record: &Record| -> Vec<Value> {
        let values: Map<String, Value> =
            record.components.iter().map(|(name, value)| (name.clone(), cell(*value))).collect();
        let own = [
            json!(record.prompt_index + 1),
            json!(record.prompt),
            json!(record.completion),
            cell(record.reward),
            cell(record.kl),
            json!(record.length),
            json!(record.stop_reason),
        ];
        own.into_iter().chain(parts.iter().map(|name| values.get(*name).cloned().unwrap_or_default())).collect()
    };
    LoggedTable::new(key, step, &columns, &records.iter().map(row).collect::<Vec<_>>())
}
