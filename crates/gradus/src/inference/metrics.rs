//! Metrics of rows with predictions and references. Only the metrics themselves may use models.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::PASSES;
use crate::data::left_out;
use crate::data::{BadRows, RawRow, RowErrors, RowLocation, check_renames, open, reference_column, rename, resolve};
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::metric::{
    Interval, Measure, Metric, MetricConfig, Resampling, Row, by_prompt, distinct_names, intervals, of_row, remark_on,
};
use crate::metric_models::MetricModels;
use crate::process::Interrupt;

/// Settings of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricOptions {
    /// Rows with `prediction` or `completion`, `references` or `reference`, and other columns that metrics read.
    pub data: String,
    /// The metrics.
    pub metrics: Vec<MetricConfig>,
    /// Handling of invalid rows.
    pub bad_rows: BadRows,
    /// Columns with other names, as (name in the file, name here).
    pub rename: Vec<(String, String)>,
    /// Maximum number of rows.
    pub max_rows: Option<usize>,
    /// Resampling for the intervals.
    pub resampling: Resampling,
    /// Device for the models of metrics.
    pub device: DeviceChoice,
}

/// Result of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricReport {
    /// Number of rows.
    pub rows: usize,
    /// Remarks on rows and values, one sentence each.
    pub remarks: Vec<String>,
    /// The values, in the order of the metrics.
    pub values: Vec<MetricValue>,
}

/// One value of a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricValue {
    /// Name of the metric, followed by `/` and the part if it has several: `rouge/rougeL`.
    pub key: String,
    /// Value over all rows; NaN if there is nothing to measure.
    pub value: f64,
    /// Why there is no value, if the rows contain something to measure.
    pub reason: Option<String>,
    /// 95 % interval over resamples of prompts, each with all its rows.
    pub interval: Option<Interval>,
    /// Value of each row; NaN for rows without a value.
    pub rows: Option<Vec<f64>>,
}

impl MetricReport {
    /// Returns `{"metrics": {key: value}, "intervals": {key: [low, high]}, "rows": [{key: value}], "remarks": [text]}`.
    /// `remarks` is left out if there are none, and a value that is not a number is `null`.
    pub fn to_json(&self) -> Map<String, Value> {
        let metrics: Map<String, Value> = self.values.iter().map(|of| (of.key.clone(), of.value.into())).collect();
        let with_interval = |of: &MetricValue| {
            let Interval { low, high, .. } = of.interval?;
            Some((of.key.clone(), Value::from(vec![low, high])))
        };
        let intervals: Map<String, Value> = self.values.iter().filter_map(with_interval).collect();
        let row = |i: usize| -> Map<String, Value> {
            self.values.iter().filter_map(|of| Some((of.key.clone(), of.rows.as_ref()?[i].into()))).collect()
        };
        let rows: Vec<Value> = (0..self.rows).map(|i| Value::Object(row(i))).collect();
        let mut object = Map::from_iter([
            ("metrics".to_owned(), Value::Object(metrics)),
            ("intervals".to_owned(), Value::Object(intervals)),
            ("rows".to_owned(), Value::Array(rows)),
        ]);
        if !self.remarks.is_empty() {
            object.insert("remarks".to_owned(), self.remarks.clone().into());
        }
        object
    }
}

/// Measures the rows of a data set; `interrupt` ends the wait for programs.
///
/// # Errors
/// If a row, or a file that an option names, is invalid; [`Error::Interrupted`].
pub fn measure(options: &MetricOptions, interrupt: &Interrupt) -> Result<MetricReport> {
    let models = MetricModels::new(options.device.device(), PASSES);
    let names = distinct_names(options.metrics.iter().map(MetricConfig::name));
    let built = options.metrics.iter().map(|config| config.build(&models, interrupt));
    let metrics = names.into_iter().zip(built).map(|(name, built)| Ok((name, built?)));
    let metrics = metrics.collect::<Result<Vec<_>>>()?;
    let (found, bad) = read(options)?;
    let (locations, rows): (Vec<RowLocation>, Vec<Row>) = found.into_iter().unzip();
    let mut measured: Vec<(String, Measure)> = Vec::new();
    for (name, metric) in &metrics {
        let found = metric
            .measure(&rows)
            .map_err(|error| of_row(error, |row, message| locations[row].error(format!("`{name}`: {message}"))))?;
        measured.extend(found.into_iter().map(|measure| (measure.key(name), measure)));
    }
    let remark = |(name, metric): &(String, Box<dyn Metric>)| remark_on(name, &**metric, &mut rows.iter().cloned());
    let remarks = left_out(&bad.into_skipped()).into_iter().chain(metrics.iter().filter_map(remark)).collect();
    Ok(MetricReport { rows: rows.len(), remarks, values: values(&measured, &rows, options.resampling) })
}

/// Returns measures of `rows` with their intervals. Rows with the same prompt are one unit of the resampling.
pub(super) fn values(measured: &[(String, Measure)], rows: &[Row], resampling: Resampling) -> Vec<MetricValue> {
    let measures: Vec<&Measure> = measured.iter().map(|(_, measure)| measure).collect();
    let intervals = intervals(&measures, &by_prompt(rows), resampling);
    let value = |((key, measure), interval): (&(String, Measure), Option<Interval>)| MetricValue {
        key: key.clone(),
        value: measure.value(),
        reason: measure.reason().map(str::to_owned),
        interval,
        rows: measure.row_values(),
    };
    measured.iter().zip(intervals).map(value).collect()
}

/// Returns the valid rows of a data set with their locations, and the errors of the others.
fn read(options: &MetricOptions) -> Result<(Vec<(RowLocation, Row)>, RowErrors)> {
    let name = &options.data;
    let source = resolve(name, &mut |_, _, _| {})?;
    let (mut rows, mut bad, mut read) = (Vec::new(), RowErrors::new(options.bad_rows), 0);
    'files: for file in &source.files {
        for raw in open(file)? {
            if options.max_rows.is_some_and(|most| rows.len() >= most) {
                break 'files;
            }
            read += 1;
            let raw = match raw {
                Ok(raw) if read == 1 => check_renames(&raw, &options.rename).map(|()| raw)?,
                Ok(raw) => raw,
                Err(error @ Error::Data { line: Some(_), .. }) => {
                    bad.push(error);
                    continue;
                }
                Err(fatal) => return Err(fatal),
            };
            let RawRow { location, mut columns } = raw;
            rename(&mut columns, &options.rename);
            let has_prompt = columns.get("prompt").is_some_and(|prompt| !prompt.is_null());
            let row = match row(columns) {
                Ok(row) => row,
                Err(message) => {
                    bad.push(location.error(message));
                    continue;
                }
            };
            let check = |metric: &MetricConfig| {
                let error = metric.check_row(0, &row, has_prompt).err()?;
                Some((metric.name(), error))
            };
            match options.metrics.iter().find_map(check) {
                None => rows.push((location, row)),
                Some((name, error)) => {
                    bad.push(of_row(error, |_, message| location.error(format!("`{name}`: {message}"))));
                }
            }
        }
    }
    let bad = bad.settle(read, rows.len())?;
    if rows.is_empty() {
        let file = source.files.first().cloned().unwrap_or_else(|| PathBuf::from(name));
        return Err(Error::data(file, None, "no rows: the data set is empty"));
    }
    Ok((rows, bad))
}

/// Reads a row from its columns. If there is a `prediction`, the `completion` is the answer of the row that the prediction was made for.
fn row(mut columns: Map<String, Value>) -> Result<Row, String> {
    let found = ["prediction", "completion"].into_iter().find_map(|name| Some((name, columns.shift_remove(name)?)));
    let prediction = match found {
        Some((name, value)) => text(name, value)?,
        None => {
            let names = columns.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            return Err(format!("missing column `prediction` or `completion` (found {names})"));
        }
    };
    let references = match reference_column(&columns)? {
        Some((name, texts)) => {
            // The row has them as texts. Metrics and programs read answers as columns, too.
            if name.starts_with("reference") {
                columns.shift_remove(name);
            }
            texts
        }
        None => Vec::new(),
    };
    let prompt = match columns.shift_remove("prompt") {
        Some(Value::String(prompt)) => prompt,
        Some(Value::Null) | None => String::new(),
        Some(value) => value.to_string(),
    };
    Ok(Row { prompt, prediction, references, metadata: columns })
}

fn text(column: &str, value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(format!("column `{column}` holds {other}, expected text")),
    }
}
