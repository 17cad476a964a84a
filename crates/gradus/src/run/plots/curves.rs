//! Which metrics become which picture.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Chart, Curve, CurveKind, LineChart};
use crate::error::{Error, Result};
use crate::run::atomic;
use crate::run::metrics::MetricsRow;

/// A picture: its file's stem, its title, the unit, and the metrics in it (`*` at the end: every one that begins so).
struct Group {
    stem: &'static str,
    title: &'static str,
    unit: &'static str,
    keys: &'static [&'static str],
}

const fn group(stem: &'static str, title: &'static str, unit: &'static str, keys: &'static [&'static str]) -> Group {
    Group { stem, title, unit, keys }
}

/// In the order in which a person wants to see them. A metric belongs to the first group that names it.
const GROUPS: [Group; 22] = [
    group("reward", "Reward", "mean of a batch", &["reward", "objective/scores"]),
    group("rlhf_reward", "Reward less KL penalty", "mean of a batch", &["objective/rlhf_reward"]),
    group("loss", "Loss", "nats", &["loss"]),
    group("policy_loss", "Policy loss", "", &["loss/policy_avg", "policy_loss"]),
    group("value_loss", "Value loss", "", &["loss/value_avg", "value_loss"]),
    group("accuracy", "Preference accuracy", "share of pairs", &["rewards/accuracies", "accuracy"]),
    group("token_accuracy", "Token accuracy", "share of tokens", &["mean_token_accuracy"]),
    group("margin", "Reward margin", "chosen − rejected", &["rewards/margins", "margin"]),
    group("preference_rewards", "Rewards of both answers", "", &["rewards/chosen", "rewards/rejected"]),
    group("reward_range", "Rewards of a batch", "", &["min_reward", "mean_reward", "max_reward"]),
    group("kl", "KL to the reference", "nats", &["kl", "objective/kl"]),
    group("kl_coefficient", "KL coefficient", "", &["kl_coefficient"]),
    group("policy_kl", "KL of one update", "nats", &["policy/approxkl_avg", "approx_kl"]),
    group("entropy", "Entropy", "nats per token", &["entropy", "objective/entropy", "policy/entropy_avg"]),
    group("reward_std", "Spread of rewards", "standard deviation", &["reward_std"]),
    group("reward_parts", "Parts of the reward", "mean of a batch", &["rewards/*"]),
    group(
        "clip_fraction",
        "Clipped tokens",
        "share",
        &["clip_ratio/*", "policy/clipfrac_avg", "val/clipfrac_avg", "clip_fraction"],
    ),
    group("length", "Completion length", "tokens", &["completions/mean_length", "completions/*_length"]),
    group("logprobs", "Log-probabilities", "nats per sequence", &["logps/*"]),
    group("learning_rate", "Learning rate", "", &["learning_rate", "lr"]),
    group("grad_norm", "Gradient norm", "", &["grad_norm"]),
    group("speed", "Speed", "tokens per second", &["tokens_per_s"]),
];

/// Not worth a picture: they count up or repeat the step.
const LEFT_OUT: [&str; 7] =
    ["epoch", "num_tokens", "num_input_tokens_seen", "episode", "elapsed_s", "step_time", "optimizer_steps"];

impl Group {
    fn holds(&self, key: &str) -> bool {
        self.keys.iter().any(|pattern| match pattern.split_once('*') {
            None => *pattern == key,
            Some((start, end)) => key.starts_with(start) && key.ends_with(end),
        })
    }
}

/// The curves of one run: a picture a group of metrics, with the file's stem.
pub fn training_charts(rows: &[MetricsRow]) -> Vec<(String, LineChart)> {
    charts(&[(String::new(), rows)])
}

/// The curves of several runs, all runs in each picture.
pub fn comparison_charts(runs: &[(String, Vec<MetricsRow>)]) -> Vec<(String, LineChart)> {
    let runs: Vec<_> = runs.iter().map(|(name, rows)| (name.clone(), rows.as_slice())).collect();
    charts(&runs)
}

/// Writes each picture to `directory/<stem>.png`; returns the paths.
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

/// Group index (those unknown come last, by name), then metric, to its curves.
type Sorted = BTreeMap<(usize, String), Vec<Curve>>;

fn charts(runs: &[(String, &[MetricsRow])]) -> Vec<(String, LineChart)> {
    let mut sorted = Sorted::new();
    for (color, (run, rows)) in runs.iter().enumerate() {
        for (key, points) in series(rows) {
            let (held_out, base) = key.strip_prefix("eval_").map_or((false, key.as_str()), |base| (true, base));
            let index = GROUPS.iter().position(|group| group.holds(base)).unwrap_or(GROUPS.len());
            let place = (index, if index < GROUPS.len() { String::new() } else { base.to_owned() });
            // One run: the metrics of a group share a picture. Several runs: a picture a metric, the runs share it.
            let place = if runs.len() == 1 { place } else { (index, base.to_owned()) };
            let kind = if held_out { CurveKind::Measured } else { CurveKind::Smoothed };
            let name = match (run.is_empty(), held_out) {
                (true, true) => format!("{base}, held-out"),
                (true, false) => base.to_owned(),
                (false, true) => format!("{run}, held-out"),
                (false, false) => run.clone(),
            };
            sorted.entry(place).or_default().push(Curve { name, points, kind, color });
        }
    }
    let several = runs.len() > 1;
    let mut used = Vec::new();
    sorted
        .into_iter()
        .filter(|(_, curves)| curves.iter().any(|curve| curve.points.len() > 1))
        .map(|((index, key), mut curves)| {
            let known = GROUPS.get(index);
            let first_of_group = !used.contains(&index);
            used.push(index);
            let plain = known.is_some_and(|group| !several || (first_of_group && group.keys[0] == key));
            let stem = match known {
                Some(group) if plain => group.stem.to_owned(),
                _ => key.replace(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_', "_"),
            };
            let title = match known {
                Some(group) if plain => group.title.to_owned(),
                Some(group) => format!("{} · {key}", group.title),
                None => key,
            };
            curves.sort_by_key(|curve| curve.kind == CurveKind::Measured);
            if !several {
                curves.iter_mut().enumerate().for_each(|(color, curve)| curve.color = color);
            }
            let unit = known.map_or(String::new(), |group| group.unit.to_owned());
            (stem, LineChart { title, unit, x_label: "step".into(), curves })
        })
        .collect()
}

/// Every metric's points, in the order in which metrics first appear.
fn series(rows: &[MetricsRow]) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut series: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in rows {
        for (key, value) in row.values.iter() {
            let base = key.strip_prefix("eval_").unwrap_or(key);
            if LEFT_OUT.contains(&base) || base.ends_with("runtime") || base.ends_with("_per_second") {
                continue;
            }
            let point = (row.step as f64, value);
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
            "my_own",
        ]);
        assert_eq!(
            summary(&training_charts(&rows)),
            [
                "loss: loss + loss, held-out",
                "preference_rewards: rewards/chosen + rewards/rejected",
                "reward_parts: rewards/lexicon/mean",
                "my_own: my_own",
            ]
        );
    }

    #[test]
    fn runs_share_a_picture_a_metric() {
        let runs =
            [("ppo".to_owned(), rows(&["reward", "kl"])), ("grpo".to_owned(), rows(&["reward", "kl", "objective/kl"]))];
        assert_eq!(summary(&comparison_charts(&runs)), ["reward: ppo + grpo", "kl: ppo + grpo", "objective_kl: grpo"]);
    }

    #[test]
    fn pictures_are_png_files_of_the_stated_size() {
        let directory = tempfile::tempdir().unwrap();
        let paths = write_charts(directory.path(), &training_charts(&rows(&["loss"]))).unwrap();
        assert_eq!(paths, [directory.path().join("loss.png")]);
        let bytes = std::fs::read(&paths[0]).unwrap();
        assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.ends_with(b"IEND\xaeB`\x82"));
        assert_eq!(bytes[16..24], [1200u32.to_be_bytes(), 690u32.to_be_bytes()].concat());
        // The pixels come back from the compressed rows, one filter byte each.
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
        let svg = training_charts(&rows)[0].1.svg();
        assert!(svg.starts_with("<svg role=\"img\" aria-label=\"Loss\"") && svg.contains("held-out"), "{svg}");
        let nothing =
            LineChart { title: "a < b".into(), unit: String::new(), x_label: "step".into(), curves: Vec::new() };
        assert!(nothing.svg().contains("a &lt; b") && !nothing.png().is_empty());
    }
}
