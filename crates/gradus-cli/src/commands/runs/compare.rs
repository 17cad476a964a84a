//! `gradus runs compare`: compares several runs.

use std::path::PathBuf;

use gradus::Error;
use gradus::comparison::{Comparison, Entry};
use gradus::run::{MetricsRow, RunDir};
use gradus::runs::{Difference, Library, Settings, differences, history, metric_keys, series, sparkline};
use gradus::suggest::nearest;
use serde_json::{Value, json};

use super::show::{headed, section};
use crate::output::{Output, Paint};
use crate::watch::short;

/// Arguments of `gradus runs compare`.
#[derive(Debug, clap::Args)]
pub struct CompareArgs {
    /// Two or more runs
    #[arg(value_name = "NAME", required = true, num_args = 2..)]
    names: Vec<String>,
    /// Directory for pictures and report. Default: `comparison` in the directory of runs
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Show the curves of these metrics
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    metric: Vec<String>,
    /// Include keys of a single method at their defaults
    #[arg(long)]
    all_keys: bool,
}

/// Maximum number of metrics whose curves are shown by default.
const METRICS: usize = 5;
/// Width of a curve in blocks.
const WIDTH: usize = 40;

/// A run in the comparison.
struct Side {
    name: String,
    settings: Settings,
    rows: Vec<MetricsRow>,
}

/// A comparison of several runs.
pub struct Compared {
    /// Comparison that is written and shown as a table.
    pub comparison: Comparison,
    sides: Vec<Side>,
    different: Vec<Difference>,
}

impl Compared {
    /// Reads the runs of these names.
    ///
    /// # Errors
    /// A name belongs to no run or is given twice, or a file cannot be read.
    pub fn of(library: &Library, names: &[String]) -> gradus::Result<Self> {
        let (mut sides, mut entries) = (Vec::new(), Vec::new());
        for requested in names {
            let (name, path) = library.find(requested)?;
            if sides.iter().any(|side: &Side| side.name == name) {
                return Err(Error::input(format!("`{name}` is named twice")));
            }
            let run = RunDir::open(path)?;
            let rows = history(run.path())?;
            sides.push(Side { settings: Settings::read(&run.config())?, rows, name: name.clone() });
            entries.push(Entry { name, ..Entry::from_run(run)? });
        }
        let settings: Vec<Settings> = sides.iter().map(|side| side.settings.clone()).collect();
        Ok(Self { comparison: comparison(&sides, entries)?, sides, different: differences(&settings) })
    }
}

/// Writes and shows the comparison.
pub fn run(args: &CompareArgs, library: &Library, out: &Output) -> anyhow::Result<()> {
    let found = Compared::of(library, &args.names)?;
    found.check_metrics(&args.metric)?;
    let directory = args.output_dir.clone().unwrap_or_else(|| library.root().join("comparison"));
    found.comparison.write(&directory)?;
    found.comparison.remarks().iter().for_each(|remark| out.warn(remark));
    out.note(format_args!("curves and report are in {}", directory.display()));
    let mut value = found.comparison.to_json();
    if let Value::Object(object) = &mut value {
        object.insert("differences".into(), json!(found.different));
        object.insert("directory".into(), json!(directory));
    }
    out.result(&value, || found.text(&args.metric, args.all_keys, out.data_paint()))
}

/// Builds the comparison, which includes the start models that the runs record.
fn comparison(sides: &[Side], mut entries: Vec<Entry>) -> gradus::Result<Comparison> {
    let starts = Entry::starts_of(entries.iter().filter_map(|entry| Some((entry.name.as_str(), entry.run.as_ref()?))));
    entries.splice(0..0, starts);
    let shared = |key: &str| {
        let mut values: Vec<String> = sides.iter().filter_map(|side| side.settings.text(key)).collect();
        values.dedup();
        values.join(", ")
    };
    Ok(Comparison {
        model: shared("model"),
        data: shared("data"),
        budget: "the settings of each run".into(),
        evaluation: "the last evaluation of each run".into(),
        entries,
    })
}

impl Compared {
    /// Rejects a metric that no run has.
    fn check_metrics(&self, requested: &[String]) -> gradus::Result<()> {
        let all: Vec<MetricsRow> = self.sides.iter().flat_map(|side| side.rows.iter().cloned()).collect();
        let known = metric_keys(&all);
        let Some(missing) = requested.iter().find(|key| !known.contains(key)) else { return Ok(()) };
        let names = known.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        let hint = match nearest(missing, known.iter().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}`? The runs have {names}"),
            None => format!("the runs have {names}"),
        };
        Err(Error::input(format!("no run has the metric `{missing}`")).with_hint(hint))
    }

    /// Formats the table, the curves of `metrics` (if empty: the most important ones), and the differences in configuration.
    pub fn text(&self, metrics: &[String], all_keys: bool, paint: Paint) -> String {
        let Self { comparison, sides, different } = self;
        let mut text = comparison.table();
        section(&mut text, "Curves", paint);
        text += &curves(metrics, sides, paint);
        section(&mut text, "Different settings", paint);
        if different.is_empty() {
            return text + "  none except the output directory\n";
        }
        let heading = std::iter::once("key".to_owned()).chain(sides.iter().map(|side| side.name.clone())).collect();
        let row = |difference: &Difference| {
            let values = difference.values.iter().map(|value| value.clone().unwrap_or_else(|| "–".into()));
            std::iter::once(difference.key.clone()).chain(values).collect()
        };
        let shown: Vec<&Difference> = different.iter().filter(|key| all_keys || key.is_telling()).collect();
        let rows = std::iter::once(heading).chain(shown.iter().map(|key| row(key))).collect();
        // No column contains only numbers.
        text += &headed(rows, usize::MAX..=usize::MAX, paint);
        let left_out = different.len() - shown.len();
        if left_out > 0 {
            let many = if left_out == 1 { "default" } else { "defaults" };
            text += &format!("  and {left_out} {many} that only one method has: `--all-keys`\n");
        }
        text
    }
}

/// Formats the curves of metrics that at least two of the runs have, one line per run.
fn curves(chosen: &[String], sides: &[Side], paint: Paint) -> String {
    let shared = |key: &String| sides.iter().filter(|side| !series(&side.rows, key).points.is_empty()).count() > 1;
    let keys: Vec<String> = if chosen.is_empty() {
        let all: Vec<MetricsRow> = sides.iter().flat_map(|side| side.rows.iter().cloned()).collect();
        metric_keys(&all).into_iter().filter(shared).take(METRICS).collect()
    } else {
        chosen.to_vec()
    };
    let mut rows = vec![["metric", "run", "curve", "first", "last", "min", "max"].map(str::to_owned).to_vec()];
    for key in &keys {
        for (index, side) in sides.iter().enumerate() {
            let found = series(&side.rows, key);
            let (first, last) = (found.points.first().map(|point| point.1), found.last());
            let (min, max) = (found.range().map(|range| range.0), found.range().map(|range| range.1));
            let numbers = [first, last, min, max].map(|value| value.map_or("–".into(), short));
            let key = if index == 0 { key.clone() } else { String::new() };
            rows.push([vec![key, side.name.clone(), sparkline(&found.points, WIDTH)], numbers.to_vec()].concat());
        }
    }
    headed(rows, 3..=6, paint)
}
