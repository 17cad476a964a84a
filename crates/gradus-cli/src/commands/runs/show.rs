//! `gradus runs show`: shows one run on a page.

use std::fmt::Write as _;

use gradus::run::MetricsRow;
use gradus::runs::{
    Entry, Key, Library, Series, Settings, Snapshot, history, last_warnings, metric_keys, series, snapshots, sparkline,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::list::steps;
use super::painted;
use crate::numbers::now;
use crate::output::{Output, Paint, visible_line};
use crate::table::{age, bytes, date, laid_out};
use crate::watch::short;

/// Arguments of `gradus runs show`.
#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
    /// Show all configuration keys, not only those that were set
    #[arg(long)]
    all_keys: bool,
    /// Show all metrics, not only the most important ones
    #[arg(long)]
    all_metrics: bool,
    /// Number of last steps to show
    #[arg(long, value_name = "N", default_value_t = 5)]
    rows: usize,
}

/// Maximum number of metrics in the table by default.
const METRICS: usize = 10;
/// Maximum number of warnings on the page.
const WARNINGS: usize = 8;

/// Output with `--json`.
#[derive(Debug, Serialize)]
struct Page {
    #[serde(flatten)]
    entry: Entry,
    config: Vec<Key>,
    metrics: Vec<Summary>,
    snapshots: Vec<Snapshot>,
    warnings: Vec<String>,
    last_rows: Vec<Map<String, Value>>,
    plots: Vec<String>,
    report: Option<String>,
}

/// Summary of a metric over the run.
#[derive(Debug, Serialize)]
struct Summary {
    key: String,
    first: f64,
    last: f64,
    min: f64,
    max: f64,
    #[serde(skip)]
    curve: String,
}

/// Shows the run.
pub fn run(args: &ShowArgs, library: &Library, out: &Output) -> anyhow::Result<()> {
    let entry = library.entry(&args.name)?;
    let run = entry.directory()?;
    let mut config = Settings::read(&run.config()).unwrap_or_default().keys;
    config.retain(|key| args.all_keys || key.is_set);
    let rows = history(run.path()).unwrap_or_default();
    let mut metrics: Vec<Summary> = metric_keys(&rows).iter().filter_map(|key| summary(&series(&rows, key))).collect();
    if !args.all_metrics {
        metrics.truncate(METRICS);
    }
    let page = Page {
        snapshots: snapshots(&run, entry.figure.as_ref().map(|figure| figure.key.as_str()))?,
        warnings: last_warnings(run.path(), WARNINGS),
        last_rows: rows[rows.len().saturating_sub(args.rows)..].iter().map(MetricsRow::to_json).collect(),
        plots: pictures(&run.plots()),
        report: run.report().is_file().then(|| run.report().display().to_string()),
        entry,
        config,
        metrics,
    };
    out.result(&page, || text(&page, out.data_paint()))
}

fn summary(series: &Series) -> Option<Summary> {
    let (min, max) = series.range()?;
    let (first, last) = (series.points.first()?.1, series.last()?);
    Some(Summary { key: series.key.clone(), first, last, min, max, curve: sparkline(&series.points, 30) })
}

fn pictures(directory: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.path().display().to_string()).collect();
    names.sort();
    names
}

fn text(page: &Page, paint: Paint) -> String {
    let Page { entry, .. } = page;
    let unknown = || "?".to_owned();
    let mut text =
        format!("{}  {}", paint.bold(&visible_line(&entry.name)), painted(entry.state, entry.state.name(), paint));
    if let Some(reason) = &entry.reason {
        let _ = write!(text, ": {reason}");
    }
    let mut facts = vec![
        ("path", entry.path.display().to_string()),
        ("method", entry.method.clone().unwrap_or_else(unknown)),
        ("model", entry.model.clone().unwrap_or_else(unknown)),
        ("data", entry.data.clone().unwrap_or_else(unknown)),
        ("step", steps(entry)),
        ("size", bytes(entry.size_bytes)),
        ("started", entry.started.map_or_else(unknown, |at| format!("{} UTC", date(at)))),
        ("changed", entry.changed.map_or_else(unknown, |at| format!("{} ago", age(now().saturating_sub(at))))),
    ];
    if !entry.tags.is_empty() {
        facts.push(("tags", entry.tags.join(" ")));
    }
    if let Some(figure) = entry.figure.as_ref().filter(|figure| figure.never_beat_start()) {
        let (key, best, last) = (&figure.key, short(figure.best), short(figure.last));
        facts.push((
            "best",
            paint.bold(&format!("the start model: {key} was {best} and is now {last}; there is no `best/`")),
        ));
    }
    facts.extend(entry.note.clone().map(|note| ("note", note)));
    facts.extend(entry.replaced_run.clone().map(|replaced| ("replaced run", replaced)));
    facts.extend(entry.problems.iter().map(|problem| ("problem", problem.clone())));
    text.push('\n');
    text += &pairs(facts, paint);
    if !page.config.is_empty() {
        section(&mut text, "Configuration", paint);
        text += &pairs(page.config.iter().map(|key| (key.path.as_str(), key.value.clone())), paint);
    }
    if !page.metrics.is_empty() {
        section(&mut text, "Metrics", paint);
        let heading = ["metric", "first", "last", "min", "max", "curve"].map(str::to_owned).to_vec();
        let row = |summary: &Summary| {
            let Summary { key, first, last, min, max, curve } = summary;
            vec![key.clone(), short(*first), short(*last), short(*min), short(*max), curve.clone()]
        };
        text += &headed(std::iter::once(heading).chain(page.metrics.iter().map(row)).collect(), 1..=4, paint);
    }
    if !page.snapshots.is_empty() {
        section(&mut text, "Snapshots", paint);
        let heading = ["snapshot", "step", "value", "size", "path"].map(str::to_owned).to_vec();
        let rows = page.snapshots.iter().map(|snapshot| {
            let path = match &snapshot.defect {
                Some(defect) => format!("not complete: {defect}"),
                None => snapshot.path.display().to_string(),
            };
            let step = snapshot.step.map_or(String::new(), |step| step.to_string());
            vec![snapshot.name(), step, snapshot.value.map_or("–".into(), short), bytes(snapshot.size_bytes), path]
        });
        text += &headed(std::iter::once(heading).chain(rows).collect(), 1..=3, paint);
    }
    if !page.warnings.is_empty() {
        section(&mut text, "Warnings", paint);
        page.warnings.iter().for_each(|warning| {
            let _ = writeln!(text, "  {warning}");
        });
    }
    if !page.last_rows.is_empty() {
        section(&mut text, "Last steps", paint);
        text += &last_steps(page, paint);
    }
    if !page.plots.is_empty() {
        section(&mut text, "Pictures", paint);
        let plots = entry.path.join("plots").display().to_string();
        let _ = writeln!(text, "  {} curves in {}", page.plots.len(), visible_line(&plots));
    }
    if let Some(report) = &page.report {
        let _ = writeln!(text, "  report {}", visible_line(report));
    }
    text
}

/// Formats the last rows, with one column per metric of the table above.
fn last_steps(page: &Page, paint: Paint) -> String {
    let has = |key: &str| page.last_rows.iter().any(|row| row.get(key).is_some_and(Value::is_number));
    let keys = page.metrics.iter().map(|summary| summary.key.as_str()).filter(|key| has(key));
    let keys: Vec<&str> = std::iter::once("step").chain(keys.take(7)).collect();
    let cell = |row: &Map<String, Value>, key: &str| match row.get(key).and_then(Value::as_f64) {
        Some(step) if key == "step" => format!("{step:.0}"),
        Some(value) => short(value),
        None => String::new(),
    };
    let mut rows = vec![keys.iter().map(|&key| key.to_owned()).collect::<Vec<_>>()];
    rows.extend(page.last_rows.iter().map(|row| keys.iter().map(|key| cell(row, key)).collect()));
    headed(rows, 0..=7, paint)
}

pub(super) fn section(text: &mut String, title: &str, paint: Paint) {
    let _ = writeln!(text, "\n{}", paint.bold(title));
}

/// Formats a table with a dimmed heading, indented by two spaces.
pub(super) fn headed(rows: Vec<Vec<String>>, numbers: std::ops::RangeInclusive<usize>, paint: Paint) -> String {
    let style = |r: usize, _, cell: String| if r == 0 { paint.faint(&cell) } else { cell };
    indented(&laid_out(&rows, |column| numbers.contains(&column), style))
}

fn pairs<'a>(facts: impl IntoIterator<Item = (&'a str, String)>, paint: Paint) -> String {
    let rows: Vec<Vec<String>> = facts.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    indented(&laid_out(&rows, |_| false, |_, c, cell| if c == 0 { paint.faint(&cell) } else { cell }))
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
