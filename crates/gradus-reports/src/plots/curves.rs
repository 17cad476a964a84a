//! Assigns metrics to charts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{Chart, Curve, CurveKind, LineChart};
use crate::error::{Error, Result};
use crate::files::atomic;
use crate::run::metrics::{Axis, MetricsRow, TEST_PREFIX, is_of_evaluation};

/// A chart: the stem of its file name, its title, its unit and its metrics. A `*` matches any text.
struct Group {
    stem: &'static str,
    title: &'static str,
    unit: &'static str,
    show: Show,
    keys: &'static [&'static str],
}

/// Which metrics of a group are drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Show {
    /// All, to compare them.
    All,
    /// The first one present; the others are alternative names.
    First,
    /// All, if there are several; a single component only repeats the total.
    Parts,
}

const fn group(
    stem: &'static str,
    title: &'static str,
    unit: &'static str,
    show: Show,
    keys: &'static [&'static str],
) -> Group {
    Group { stem, title, unit, show, keys }
}

/// In the order of interest to readers. A metric belongs to the first group that lists it, with its prefix `eval_` or else without it.
const GROUPS: [Group; 30] = [
    group("reward", "Reward", "mean over completions", Show::First, &["reward", "objective/scores"]),
    group("rlhf_reward", "Reward less KL penalty", "mean over completions", Show::All, &["objective/rlhf_reward"]),
    group("loss", "Loss", "nats", Show::All, &["loss"]),
    group("policy_loss", "Policy loss", "", Show::First, &["loss/policy_avg", "policy_loss"]),
    group("value_loss", "Value loss", "", Show::First, &["loss/value_avg", "value_loss"]),
    group("accuracy", "Preference accuracy", "share of pairs", Show::First, &["rewards/accuracies", "accuracy"]),
    group("token_accuracy", "Token accuracy", "share of tokens", Show::All, &["mean_token_accuracy"]),
    group("calibration", "Calibration error", "expected, share of pairs", Show::All, &["calibration_error"]),
    group("margin", "Reward margin", "chosen − rejected", Show::First, &["rewards/margins", "margin"]),
    group("preference_rewards", "Rewards of both answers", "", Show::All, &["rewards/chosen", "rewards/rejected"]),
    group("reward_range", "Rewards of a batch", "", Show::All, &["min_reward", "mean_reward", "max_reward"]),
    group("held_out_kl", "KL to the reference, held-out", "nats per completion", Show::All, &["eval_kl"]),
    group("kl", "KL to the reference", "nats per completion", Show::All, &["objective/kl"]),
    group("kl_per_token", "KL in the loss", "nats per token", Show::All, &["kl"]),
    group("kl_coefficient", "KL coefficient", "", Show::First, &["kl_coefficient", "kl_coef", "objective/kl_coef"]),
    group("policy_kl", "KL of one update", "nats", Show::First, &["policy/approxkl_avg", "approx_kl"]),
    group("entropy", "Entropy", "nats per token", Show::First, &["entropy", "policy/entropy_avg"]),
    group("length", "Completion length", "tokens", Show::All, &["completions/mean_length", "length"]),
    group("cut_off", "Cut off", "share of completions", Show::All, &["completions/clipped_ratio", "clipped_ratio"]),
    group("reward_std", "Spread of rewards", "standard deviation", Show::All, &["reward_std"]),
    group("reward_parts", "Parts of the reward", "mean over completions", Show::Parts, &["rewards/*/mean"]),
    group(
        "clip_fraction",
        "Clipped tokens",
        "share",
        Show::All,
        &["clip_ratio/*_mean", "policy/clipfrac_avg", "val/clipfrac_avg", "clip_fraction"],
    ),
    group("reward_length", "Reward against length", "correlation", Show::All, &["reward_length_correlation"]),
    group(
        "explained_variance",
        "Explained variance",
        "share of the returns' variance",
        Show::All,
        &["explained_variance"],
    ),
    group("values", "Values and returns", "mean", Show::All, &["values/mean", "returns/mean"]),
    group("logprobs", "Log-probabilities", "nats per sequence", Show::All, &["logps/*"]),
    group("logits", "Logits", "mean", Show::All, &["logits/*"]),
    group("learning_rate", "Learning rate", "", Show::First, &["learning_rate", "lr"]),
    group("grad_norm", "Gradient norm", "", Show::All, &["grad_norm", "critic/grad_norm"]),
    group("time", "Time of one step", "seconds", Show::All, &["time/*_s"]),
];

/// Comes after all other known metrics.
const SPEED: Group = group("speed", "Speed", "tokens per second", Show::All, &["tokens_per_s"]);

/// Metrics without a chart: they are counters, repeat another metric, or are the extremes of a mean that is drawn.
const LEFT_OUT: [&str; 15] = [
    "epoch",
    "step",
    "num_tokens",
    "num_examples",
    "num_input_tokens_seen",
    "episode",
    "episodes",
    "elapsed_s",
    "optimizer_steps",
    "update_epochs",
    "completions/*",
    "clip_ratio/*",
    "val/*",
    "objective/*",
    "rewards/*/std",
];

fn groups() -> impl Iterator<Item = &'static Group> {
    GROUPS.iter().chain([&SPEED])
}

impl Group {
    /// Returns true if the run sets the metric instead of measuring it.
    fn is_set(&self) -> bool {
        matches!(self.stem, "learning_rate" | "kl_coefficient")
    }

    /// Index of the group's first key that matches.
    fn rank(&self, key: &str) -> Option<usize> {
        self.keys.iter().position(|pattern| fits(pattern, key))
    }
}

fn fits(pattern: &str, key: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == key,
        Some((start, end)) => key.len() > start.len() + end.len() && key.starts_with(start) && key.ends_with(end),
    }
}

/// A run in a comparison chart.
#[derive(Debug, Clone)]
pub struct ComparedRun {
    /// Name in legends.
    pub name: String,
    /// Index in the palette ([`colors`](super::colors)).
    pub color: usize,
    /// Logged metrics.
    pub rows: Vec<MetricsRow>,
}

/// Returns the curves of one run over `axis`: one chart per group of metrics, with the stem of its file name.
pub fn training_charts(rows: &[MetricsRow], axis: Axis) -> Vec<(String, LineChart)> {
    charts(&[("", 0, rows)], axis)
}

/// Returns the curves of several runs over `axis`, with all runs in each chart.
pub fn comparison_charts(runs: &[ComparedRun], axis: Axis) -> Vec<(String, LineChart)> {
    let runs: Vec<_> = runs.iter().map(|run| (run.name.as_str(), run.color, run.rows.as_slice())).collect();
    charts(&runs, axis)
}

/// Writes each chart to `directory/<stem>.png` and returns the paths.
///
/// # Errors
/// [`Error::Io`].
pub fn write_charts(directory: &Path, charts: &[(String, LineChart)]) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(directory).map_err(|source| Error::io(directory, source))?;
    let write = |(stem, chart): &(String, LineChart)| {
        let path = directory.join(format!("{stem}.png"));
        atomic::write_bytes(&path, &chart.png())?;
        Ok(path)
    };
    charts.iter().map(write).collect()
}

/// Curve of a metric before it is assigned to a chart.
struct MetricCurve {
    /// Index of the group and of its key; unknown metrics come after all groups.
    place: (usize, usize),
    /// Name without `eval_`.
    base: String,
    run: usize,
    held_out: bool,
    points: Vec<(f64, f64)>,
    intervals: Vec<(f64, f64, f64)>,
}

/// A run: name, index of its color, rows.
type Run<'a> = (&'a str, usize, &'a [MetricsRow]);

fn charts(runs: &[Run<'_>], axis: Axis) -> Vec<(String, LineChart)> {
    // A run whose rows lack this axis would be missing from every chart without notice.
    let is_placed = |rows: &&[MetricsRow]| rows.iter().any(|row| row.step > 0 && axis.of(row).is_some());
    if axis != Axis::Steps && runs.iter().any(|(_, _, rows)| !is_placed(rows)) {
        return Vec::new();
    }
    let mut found: Vec<MetricCurve> = Vec::new();
    for (run, (_, _, rows)) in runs.iter().enumerate() {
        found.extend(series(rows, axis).into_iter().map(|(key, points)| {
            let (held_out, base) = key.strip_prefix("eval_").map_or((false, key.as_str()), |base| (true, base));
            MetricCurve {
                place: place_of(&key, base),
                base: base.to_owned(),
                run,
                held_out,
                points,
                intervals: Vec::new(),
            }
        }));
    }
    intervals(&mut found);
    let mut sorted: BTreeMap<(usize, String), Vec<MetricCurve>> = BTreeMap::new();
    for found in found {
        let unknown = found.place.0 == usize::MAX;
        let name = if unknown { found.base.clone() } else { String::new() };
        sorted.entry((found.place.0, name)).or_default().push(found);
    }
    let chart = |((index, key), found): ((usize, String), Vec<MetricCurve>)| {
        let (stem, chart) = chart(runs, groups().nth(index), &key, found)?;
        Some((stem, LineChart { x_label: axis.name().into(), ..chart }))
    };
    let mut charts: Vec<(String, LineChart)> = sorted.into_iter().filter_map(chart).collect();
    // Different methods have different losses. Runs with different metrics are taken as different methods.
    let logged = |rows: &[MetricsRow]| -> BTreeSet<String> {
        let keys = rows.iter().flat_map(|row| row.values.iter()).map(|(key, _)| key.to_owned());
        keys.filter(|key| !is_of_evaluation(key)).collect()
    };
    if runs.windows(2).any(|pair| logged(pair[0].2) != logged(pair[1].2)) {
        charts.retain(|(stem, _)| !["loss", "policy_loss", "value_loss"].contains(&stem.as_str()));
    }
    charts
}

/// Returns the first group that lists the metric with its prefix, or else without it.
fn place_of(key: &str, base: &str) -> (usize, usize) {
    let place = |key: &str| groups().enumerate().find_map(|(index, group)| Some((index, group.rank(key)?)));
    place(key).or_else(|| place(base)).unwrap_or((usize::MAX, 0))
}

/// Returns one chart, or `None` if it would show nothing useful.
fn chart(runs: &[Run<'_>], group: Option<&Group>, key: &str, found: Vec<MetricCurve>) -> Option<(String, LineChart)> {
    let several = runs.len() > 1;
    let mut found = found;
    let show = group.map_or(Show::All, |group| group.show);
    // Many metrics of many runs are unreadable in one chart.
    if several && group.is_some_and(|group| group.keys.iter().any(|key| key.contains('*'))) {
        return None;
    }
    if several || show == Show::First {
        // With several runs, a chart shows one metric of the group, with one color per run.
        let first = found.iter().map(|found| found.place.1).min()?;
        let bases: Vec<String> =
            found.iter().filter(|found| found.place.1 == first).map(|found| found.base.clone()).collect();
        found.retain(|found| bases.contains(&found.base));
    }
    let is_parts = show == Show::Parts && found.iter().filter(|found| !found.held_out).count() < 2;
    let trivial = group.is_none_or(|group| group.stem == "kl_coefficient")
        && found.iter().all(|found| is_constant(&found.points));
    let alone = several && found.iter().all(|other| other.run == found[0].run);
    if is_parts || trivial || alone || found.iter().all(|found| found.points.len() < 2) {
        return None;
    }
    found.sort_by_key(|found| (found.held_out, found.place.1));
    let mut names: Vec<String> = found.iter().map(|found| found.base.clone()).collect();
    names.dedup();
    let curves = found.into_iter().enumerate().map(|(index, found)| {
        let whose = if several { runs[found.run].0 } else { &found.base };
        // With several metrics or runs, a held-out curve has the color of its training curve.
        let color = match names.as_slice() {
            _ if several => runs[found.run].1,
            [_] => index,
            names => names.iter().position(|name| *name == found.base).unwrap_or(0),
        };
        let (name, kind) = match found.held_out {
            true => (format!("{whose}, held-out"), CurveKind::Measured),
            false if group.is_some_and(Group::is_set) => (whose.to_owned(), CurveKind::Exact),
            false => (whose.to_owned(), CurveKind::Smoothed),
        };
        Curve { name, points: found.points, intervals: found.intervals, kind, color: Some(color) }
    });
    let stem = group.map_or_else(
        || key.replace(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_', "_"),
        |group| group.stem.to_owned(),
    );
    let (title, unit) = group.map_or((key, ""), |group| (group.title, group.unit));
    let chart = LineChart { title: title.into(), unit: unit.into(), x_label: String::new(), curves: curves.collect() };
    Some((stem, chart))
}

/// Turns `NAME_low` and `NAME_high` into intervals around `NAME`, if that exists.
fn intervals(found: &mut Vec<MetricCurve>) {
    let ends: Vec<(usize, bool, String)> = found
        .iter()
        .filter_map(|low| Some((low.run, low.held_out, low.base.strip_suffix("_low")?.to_owned())))
        .collect();
    for (run, held_out, base) in ends {
        let at = |found: &[MetricCurve], name: &str| {
            found.iter().position(|other| (other.run, other.held_out) == (run, held_out) && other.base == name)
        };
        let names = [format!("{base}_low"), format!("{base}_high")];
        let (Some(low), Some(high), Some(middle)) = (at(found, &names[0]), at(found, &names[1]), at(found, &base))
        else {
            continue;
        };
        let highs: BTreeMap<u64, f64> = found[high].points.iter().map(|point| (point.0.to_bits(), point.1)).collect();
        let pair = |&(step, low): &(f64, f64)| Some((step, low, *highs.get(&step.to_bits())?));
        found[middle].intervals = found[low].points.iter().filter_map(pair).collect();
        found.retain(|other| (other.run, other.held_out) != (run, held_out) || !names.contains(&other.base));
    }
}

fn is_constant(points: &[(f64, f64)]) -> bool {
    points.windows(2).all(|pair| (pair[0].1 - pair[1].1).abs() <= 1e-9 * pair[0].1.abs())
}

/// Points of every metric, in the order in which the metrics first appear.
fn series(rows: &[MetricsRow], axis: Axis) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut series: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for (row, x) in rows.iter().filter_map(|row| Some((row, axis.of(row)?))) {
        // Test rows are measured twice, and two points are no curve.
        for (key, value) in row.values.iter().filter(|(key, _)| !key.starts_with(TEST_PREFIX)) {
            let base = key.strip_prefix("eval_").unwrap_or(key);
            let named = groups().any(|group| group.rank(base).is_some() || group.rank(key).is_some());
            if !named && LEFT_OUT.iter().any(|pattern| fits(pattern, base)) {
                continue;
            }
            let point = (x, value);
            match series.iter_mut().find(|(known, _)| known == key) {
                Some((_, points)) => points.push(point),
                None => series.push((key.to_owned(), vec![point])),
            }
        }
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::metrics::Metrics;

    fn rows(keys: &[&str]) -> Vec<MetricsRow> {
        let row = |step: usize| {
            let values: Metrics =
                keys.iter().map(|&key| (key, (step as f64 * 0.3).sin() + step as f64 * 0.05)).collect();
            MetricsRow { step, values }
        };
        (1..=40).map(row).collect()
    }

    fn summary(charts: &[(String, LineChart)]) -> Vec<String> {
        let names =
            |chart: &LineChart| chart.curves.iter().map(|curve| curve.name.clone()).collect::<Vec<_>>().join(" + ");
        charts.iter().map(|(stem, chart)| format!("{stem}: {}", names(chart))).collect()
    }

    #[test]
    fn the_metrics_of_a_run_fall_into_pictures() {
        let rows = rows(&[
            "loss",
            "epoch",
            "eval_loss",
            "rewards/chosen",
            "rewards/rejected",
            "rewards/lexicon/mean",
            "rewards/lexicon/std",
            "rewards/length/mean",
            "kl",
            "objective/kl",
            "eval_kl",
            "completions/max_length",
            "my_own",
        ]);
        assert_eq!(
            summary(&training_charts(&rows, Axis::Steps)),
            [
                "loss: loss + loss, held-out",
                "preference_rewards: rewards/chosen + rewards/rejected",
                "held_out_kl: kl, held-out",
                "kl: objective/kl",
                "kl_per_token: kl",
                "reward_parts: rewards/lexicon/mean + rewards/length/mean",
                "my_own: my_own",
            ]
        );
    }

    #[test]
    fn runs_share_a_picture_a_metric() {
        let run = |name: &str, color: usize, keys: &[&str]| ComparedRun {
            name: name.into(),
            color,
            rows: rows(&[&["reward", "objective/kl", "eval_kl"], keys].concat()),
        };
        // The KL in GRPO's loss cannot be compared with another method's.
        let charts =
            comparison_charts(&[run("ppo", 5, &["value_loss"]), run("grpo", 1, &["my_own", "kl"])], Axis::Steps);
        assert_eq!(
            summary(&charts),
            ["reward: ppo + grpo", "held_out_kl: ppo, held-out + grpo, held-out", "kl: ppo + grpo"]
        );
        for (_, chart) in &charts {
            assert_eq!(chart.curves.iter().map(|curve| curve.color).collect::<Vec<_>>(), [Some(5), Some(1)]);
        }
    }

    #[test]
    fn losses_share_a_picture_only_where_the_same_is_logged() {
        let stems = |other: &[&str]| -> Vec<String> {
            let run = |name: &str, keys: &[&str]| ComparedRun { name: name.into(), color: 0, rows: rows(keys) };
            let runs = [run("one", &["loss", "margin"]), run("two", other)];
            comparison_charts(&runs, Axis::Steps).into_iter().map(|(stem, _)| stem).collect()
        };
        assert_eq!(stems(&["loss", "margin", "eval_loss"]), ["loss", "margin"]);
        assert_eq!(stems(&["loss", "margin", "kl"]), ["margin"]);
    }

    #[test]
    fn ends_of_an_interval_are_bars_and_what_is_set_is_not_smoothed() {
        let charts = training_charts(
            &rows(&["eval_accuracy", "eval_accuracy_low", "eval_accuracy_high", "learning_rate"]),
            Axis::Steps,
        );
        assert_eq!(summary(&charts), ["accuracy: accuracy, held-out", "learning_rate: learning_rate"]);
        assert_eq!(charts[0].1.curves[0].intervals.len(), 40);
        assert_eq!(charts[1].1.curves[0].kind, CurveKind::Exact);
        let svg = charts[0].1.svg().into_string();
        assert!(svg.contains("95 % intervals") && svg.contains("var(--ground"), "{svg}");
        // The legend shows the last measured value, not the end of the smoothed line.
        let last = super::super::short(charts[1].1.curves[0].points[39].1);
        assert!(charts[1].1.svg().into_string().contains(&format!(">{last}</text>")), "{last}");
    }

    #[test]
    fn pictures_are_png_files_of_the_stated_size() {
        let directory = tempfile::tempdir().unwrap();
        let paths = write_charts(directory.path(), &training_charts(&rows(&["loss"]), Axis::Steps)).unwrap();
        assert_eq!(paths, [directory.path().join("loss.png")]);
        let bytes = std::fs::read(&paths[0]).unwrap();
        assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.ends_with(b"IEND\xaeB`\x82"));
        assert_eq!(bytes[16..24], [1200u32.to_be_bytes(), 690u32.to_be_bytes()].concat());
        // The compressed rows decode to the pixels, with one filter byte each.
        let start = bytes.windows(4).position(|window| window == b"IDAT").unwrap();
        let length = u32::from_be_bytes(bytes[start - 4..start].try_into().unwrap()) as usize;
        let mut pixels = Vec::new();
        let data = &bytes[start + 4..start + 4 + length];
        std::io::Read::read_to_end(&mut flate2::read::ZlibDecoder::new(data), &mut pixels).unwrap();
        assert_eq!(pixels.len(), (1200 * 3 + 1) * 690);
    }

    #[test]
    fn gaps_and_single_points_are_drawn() {
        let mut rows = rows(&["loss"]);
        rows[7].values.set("loss", f64::NAN);
        rows.push(MetricsRow { step: 41, values: [("eval_loss", 0.5)].into_iter().collect() });
        let svg = training_charts(&rows, Axis::Steps)[0].1.svg().into_string();
        assert!(svg.starts_with("<svg role=\"img\" aria-label=\"Loss\"") && svg.contains("held-out"), "{svg}");
        let nothing =
            LineChart { title: "a < b".into(), unit: String::new(), x_label: "step".into(), curves: Vec::new() };
        assert!(nothing.svg().into_string().contains("a &lt; b") && !nothing.png().is_empty());
    }

    #[test]
    fn ranges_beyond_the_largest_number_are_drawn() {
        for values in [[-1.7e308, 1.7e308], [1.75e308; 2]] {
            let row = |step: usize| MetricsRow { step, values: [("loss", values[step % 2])].into_iter().collect() };
            let rows: Vec<MetricsRow> = (1..=5000).map(row).collect();
            let svg = training_charts(&rows, Axis::Steps)[0].1.svg().into_string();
            assert!(svg.contains("polyline") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn curves_are_drawn_over_what_was_seen_too() {
        let row =
            |step: usize, values: &[(&'static str, f64)]| MetricsRow { step, values: values.iter().copied().collect() };
        let rows = [
            row(0, &[("eval_loss", 2.0)]),
            row(1, &[("loss", 1.0), ("num_examples", 8.0), ("num_tokens", 100.0)]),
            row(2, &[("loss", 0.5), ("eval_loss", 1.0), ("num_examples", 12.0)]),
        ];
        let points = |axis| {
            let charts = training_charts(&rows, axis);
            let chart = &charts.first().expect("a picture").1;
            let curves: Vec<Vec<f64>> =
                chart.curves.iter().map(|curve| curve.points.iter().map(|point| point.0).collect()).collect();
            (chart.x_label.clone(), curves)
        };
        assert_eq!(points(Axis::Steps), ("step".into(), vec![vec![1.0, 2.0], vec![0.0, 2.0]]));
        assert_eq!(points(Axis::Examples), ("examples".into(), vec![vec![8.0, 12.0], vec![0.0, 12.0]]));
        // The last row has no token count.
        assert!(training_charts(&rows, Axis::Tokens).is_empty());
    }
}
