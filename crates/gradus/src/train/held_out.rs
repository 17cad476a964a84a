//! `evaluation/`: scores of a finished reward model on all held-out pairs.

use serde_json::{Value, json};

use crate::error::Result;
use crate::files::atomic;
use crate::objective::PairScore;
use crate::plots::{Chart, LineChart};
use crate::reports::{reliability, reward_histogram};
use crate::run::RunDir;
use crate::run::metrics::number;

/// Writes `pairs.jsonl`, `rewards.png` and `calibration.png`, or nothing without scores.
///
/// # Errors
/// If the files cannot be written.
pub fn write(run: &RunDir, scores: &[PairScore]) -> Result<()> {
    if scores.is_empty() {
        return Ok(());
    }
    atomic::write_dir(&run.evaluation(), |directory| {
        let lines: String = scores.iter().map(line).collect();
        atomic::write_bytes(&directory.join("pairs.jsonl"), lines.as_bytes())?;
        let picture = |name: &str, chart: &LineChart| atomic::write_bytes(&directory.join(name), &chart.png());
        picture("rewards.png", &reward_histogram(scores))?;
        picture("calibration.png", &reliability(scores))
    })
}

/// Writes `report.json`, if there is a report.
///
/// # Errors
/// If the file cannot be written.
pub fn report(run: &RunDir, report: Option<Value>) -> Result<()> {
    let Some(report) = report else { return Ok(()) };
    let text = serde_json::to_string_pretty(&report).expect("JSON values serialize") + "\n";
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
}
