//! `evaluation/`: what a finished reward model makes of every held-out pair.

use serde_json::{Value, json};

use crate::error::Result;
use crate::files::atomic;
use crate::math::stats::calibration;
use crate::objective::{CALIBRATION_BINS, PairScore};
use crate::run::RunDir;
use crate::run::metrics::number;
use crate::run::plots::{Chart, Curve, CurveKind, LineChart};

/// Bars of the histogram.
const BINS: usize = 30;

/// Writes `pairs.jsonl`, `rewards.png` and `calibration.png`; nothing where no pair was scored.
///
/// # Errors
/// When the files cannot be written.
pub fn write(run: &RunDir, scores: &[PairScore]) -> Result<()> {
    if scores.is_empty() {
        return Ok(());
    }
    atomic::write_dir(&run.evaluation(), |directory| {
        let lines: String = scores.iter().map(line).collect();
        atomic::write_bytes(&directory.join("pairs.jsonl"), lines.as_bytes())?;
        let picture = |name: &str, chart: &LineChart| atomic::write_bytes(&directory.join(name), &chart.png());
        picture("rewards.png", &histogram(scores))?;
        picture("calibration.png", &reliability(scores))
    })
}

/// Writes `report.json`; nothing where there is none.
///
/// # Errors
/// When the file cannot be written.
pub fn report(run: &RunDir, report: Option<Value>) -> Result<()> {
    let Some(report) = report else { return Ok(()) };
    let text = serde_json::to_string_pretty(&report).expect("JSON values serialise") + "\n";
    atomic::write_dir(&run.evaluation(), |directory| {
        atomic::write_bytes(&directory.join("report.json"), text.as_bytes())
    })
}

fn line(score: &PairScore) -> String {
    let of = |reward: f32| number(f64::from(reward));
    let object = json!({
        "row": score.row + 1,
        "chosen": of(score.chosen),
        "rejected": of(score.rejected),
        "margin": score.margin.map(of),
        "chosen_tokens": score.chosen_tokens,
        "rejected_tokens": score.rejected_tokens,
    });
    format!("{object}\n")
}

/// How many texts got which reward: the outline of the bars.
fn histogram(scores: &[PairScore]) -> LineChart {
    let (chosen, rejected): (Vec<f64>, Vec<f64>) =
        scores.iter().map(|score| (f64::from(score.chosen), f64::from(score.rejected))).unzip();
    let finite = || chosen.iter().chain(&rejected).copied().filter(|reward| reward.is_finite());
    let (low, high) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    let (low, high) = if low < high { (low, high) } else { (low.min(0.0) - 0.5, high.max(0.0) + 0.5) };
    let outline = |name: &str, rewards: &[f64], color| Curve {
        name: name.into(),
        points: outline(rewards, low, high),
        intervals: Vec::new(),
        kind: CurveKind::Line,
        color,
    };
    LineChart {
        title: "Rewards of held-out texts".into(),
        unit: format!("{} pairs", scores.len()),
        x_label: "reward".into(),
        curves: vec![outline("chosen", &chosen, 0), outline("rejected", &rejected, 1)],
    }
}

/// The bars of equal width between `low` and `high` as one line.
fn outline(values: &[f64], low: f64, high: f64) -> Vec<(f64, f64)> {
    let width = (high - low) / BINS as f64;
    let mut counts = [0usize; BINS];
    for value in values.iter().filter(|value| value.is_finite()) {
        counts[(((value - low) / width) as usize).min(BINS - 1)] += 1;
    }
    let edge = |i: usize| low + width * i as f64;
    let bar = |(i, &count): (usize, &usize)| [(edge(i), count as f64), (edge(i + 1), count as f64)];
    let bars = counts.iter().enumerate().flat_map(bar);
    [(low, 0.0)].into_iter().chain(bars).chain([(high, 0.0)]).collect()
}

/// How often the model's choice was right, by how sure it was of it.
fn reliability(scores: &[PairScore]) -> LineChart {
    let sure: Vec<f32> = scores.iter().map(PairScore::confidence).collect();
    let right: Vec<bool> = scores.iter().map(PairScore::is_right).collect();
    let bins = calibration(&sure, &right, CALIBRATION_BINS, 0.5);
    let measured = bins.iter().filter(|bin| bin.count > 0).map(|bin| (bin.confidence, bin.accuracy)).collect();
    let curve =
        |name: &str, points, kind, color| Curve { name: name.into(), points, intervals: Vec::new(), kind, color };
    LineChart {
        title: "Calibration on held-out pairs".into(),
        unit: "share of choices that were right".into(),
        x_label: "probability the model gives its choice".into(),
        curves: vec![
            curve("as sure as right", vec![(0.5, 0.5), (1.0, 1.0)], CurveKind::Line, 7),
            curve("measured", measured, CurveKind::Measured, 0),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Existing;

    fn score(row: usize, chosen: f32, rejected: f32) -> PairScore {
        PairScore { row, chosen, rejected, margin: None, chosen_tokens: 5, rejected_tokens: 3 }
    }

    #[test]
    fn every_pair_is_a_line_and_two_pictures_show_them() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let run = RunDir::create(directory.path().join("reward"), Existing::Refuse).expect("created");
        write(&run, &[]).expect("nothing to write");
        assert!(!run.evaluation().exists());
        write(&run, &[score(3, 0.1, -2.5), score(0, 1.0, 1.0)]).expect("written");
        let lines = std::fs::read_to_string(run.evaluation().join("pairs.jsonl")).expect("there");
        let expected = "{\"row\":4,\"chosen\":0.1,\"rejected\":-2.5,\"margin\":null,\"chosen_tokens\":5,\
                        \"rejected_tokens\":3}\n";
        assert!(lines.starts_with(expected) && lines.lines().count() == 2, "{lines}");
        for name in ["rewards.png", "calibration.png"] {
            let bytes = std::fs::read(run.evaluation().join(name)).expect("there");
            assert!(bytes.starts_with(b"\x89PNG"), "{name}");
        }
    }

    #[test]
    fn bars_hold_every_value_once() {
        let points = outline(&[0.0, 0.05, 1.5, 3.0, f64::NAN], 0.0, 3.0);
        assert_eq!(points.len(), 2 + 2 * BINS);
        assert_eq!((points[0], points[1], points[2]), ((0.0, 0.0), (0.0, 2.0), (0.1, 2.0)));
        // Each bar has two corners; the last value belongs to the last bar.
        assert_eq!(points.iter().map(|point| point.1).sum::<f64>(), 8.0);
        assert_eq!((points[2 * BINS], points[2 * BINS + 1]), ((3.0, 1.0), (3.0, 0.0)));
    }

    #[test]
    fn the_calibration_curve_is_the_mean_of_its_bins() {
        // σ(ln 9) = 0.9 thrice: right twice; σ(0) = ½, a tie, is wrong.
        let sure = 9f32.ln();
        let chart = reliability(&[score(0, sure, 0.0), score(1, 0.0, sure), score(2, sure, 0.0), score(3, 1.0, 1.0)]);
        let [(x0, y0), (x1, y1)] = chart.curves[1].points[..] else { panic!("two bins: {:?}", chart.curves[1]) };
        assert_eq!((x0, y0), (0.5, 0.0));
        assert!((x1 - 0.9).abs() < 1e-6 && (y1 - 2.0 / 3.0).abs() < 1e-12, "{x1} {y1}");
    }
}
