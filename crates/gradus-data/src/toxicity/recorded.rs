//! Recorded scores: looks up texts in a file, and adds the scores of another scorer.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{ScoreResult, ScoringError, ToxicityScorer};
use crate::error::{Result, excerpt};
use crate::service::ledger::{Entry, Ledger};

/// Number of characters of a text that a message quotes.
const QUOTED: usize = 60;

/// Number of texts that are sent to the other scorer at once. Their scores are written to disk before the next request. With a
/// service that allows one request per second, a crash then loses a minute and not the whole evaluation.
const AT_ONCE: usize = 64;

/// A score, as a line of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedScore {
    /// Exact text.
    text: String,
    /// Toxicity, or `null` if its scorer has none. The key must be present.
    #[serde(deserialize_with = "Option::deserialize")]
    toxicity: Option<f32>,
    /// Name of the scorer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scorer: Option<String>,
}

impl Entry for RecordedScore {
    const FORM: &'static str = "{\"text\": …, \"toxicity\": a number or null}";
    const WHAT: &'static str = "score";

    fn key(&self) -> &str {
        &self.text
    }

    fn author(&self) -> Option<&str> {
        self.scorer.as_deref()
    }

    fn check(&self) -> Result<(), String> {
        match self.toxicity {
            Some(toxicity) if !toxicity.is_finite() => {
                Err(format!("`toxicity` is {toxicity}, expected a number or null"))
            }
            _ => Ok(()),
        }
    }
}

/// Looks up texts in a file. Another scorer scores the texts that the file lacks, and its scores are added to the file.
pub struct Recorded {
    ledger: Ledger<RecordedScore>,
    otherwise: Option<Box<dyn ToxicityScorer>>,
}

impl Recorded {
    /// Opens `path`. The file need not exist if there is another scorer.
    ///
    /// # Errors
    /// If the file cannot be read (or written, with another scorer), a line is not a valid score, or a score is from a different
    /// scorer than `otherwise`.
    pub fn open(path: &Path, otherwise: Option<Box<dyn ToxicityScorer>>) -> Result<Self> {
        let ledger = match &otherwise {
            Some(scorer) => Ledger::open(path, &scorer.name())?,
            None => Ledger::read(path)?,
        };
        Ok(Self { ledger, otherwise })
    }

    /// Scores each of `texts` once with the other scorer, and records its answers as they arrive, including those in the same batch
    /// as a failure. After a failure, no more texts are sent.
    fn score_missing(&self, texts: &[&str], otherwise: &dyn ToxicityScorer) -> HashMap<String, ScoringError> {
        let mut failed: HashMap<String, ScoringError> = HashMap::new();
        for texts in texts.chunks(AT_ONCE) {
            match failed.values().next().cloned() {
                Some(error) => failed.extend(texts.iter().map(|text| ((*text).to_owned(), error.clone()))),
                None => failed = self.ask_at_once(texts, otherwise),
            }
        }
        failed
    }

    fn ask_at_once(&self, texts: &[&str], otherwise: &dyn ToxicityScorer) -> HashMap<String, ScoringError> {
        let mut failed = HashMap::new();
        let mut lines = Vec::new();
        for (text, answer) in texts.iter().zip(otherwise.score(texts)) {
            match answer {
                Ok(toxicity) => {
                    let scorer = self.ledger.author().map(str::to_owned);
                    lines.push(RecordedScore { text: (*text).to_owned(), toxicity, scorer });
                }
                Err(error) => drop(failed.insert((*text).to_owned(), error)),
            }
        }
        if let Err(error) = self.ledger.add(lines) {
            let path = self.ledger.path().display();
            let error = ScoringError::new(format!("scores cannot be recorded in {path}: {error}"));
            failed.extend(texts.iter().map(|text| ((*text).to_owned(), error.clone())));
        }
        failed
    }
}

impl ToxicityScorer for Recorded {
    fn name(&self) -> String {
        self.ledger.author().map_or_else(|| format!("recorded in {}", self.ledger.path().display()), str::to_owned)
    }

    fn has_probabilities(&self) -> bool {
        self.otherwise.as_ref().is_some_and(|otherwise| otherwise.has_probabilities())
    }

    fn score(&self, texts: &[&str]) -> Vec<ScoreResult> {
        let missing = match self.ledger.missing(texts) {
            Ok(missing) => missing,
            Err(error) => return texts.iter().map(|_| Err((&error).into())).collect(),
        };
        let failed = match &self.otherwise {
            Some(otherwise) if !missing.is_empty() => self.score_missing(&missing, &**otherwise),
            _ => HashMap::new(),
        };
        let answer = |text: &&str| match (failed.get(*text), self.ledger.get(text)) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(line)) => Ok(line.toxicity),
            (None, None) => {
                let message = format!("{} has no score for `{}`", self.ledger.path().display(), excerpt(text, QUOTED));
                Err(ScoringError::new(message).with_hint(
                    "texts must match exactly; set a scorer for the other texts: `recorded: { file: …, otherwise: … }`",
                ))
            }
        };
        texts.iter().map(answer).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Mutex;

    use super::*;
    use crate::test_support::ByRule;

    fn by_length() -> Box<dyn ToxicityScorer> {
        Box::new(ByRule::new(|text: &str| match text {
            "unknown language" => Ok(None),
            "down" => Err(ScoringError::new("the line is dead")),
            text => Ok(Some(text.len() as f32 / 100.0)),
        }))
    }

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).expect("a file");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    #[test]
    fn what_is_asked_once_is_known_for_good() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("toxicity.jsonl");
        let scorer = Recorded::open(&path, Some(by_length())).expect("nothing to read");
        let found = scorer.score(&["four", "down", "unknown language", "four", "fou"]);
        assert_eq!(found[0], Ok(Some(0.04)));
        assert_eq!(found[1], Err(ScoringError::new("the line is dead")));
        assert_eq!((&found[2], &found[3], &found[4]), (&Ok(None), &Ok(Some(0.04)), &Ok(Some(0.03))));
        // Each text is written once; the failed one is not written.
        let written = lines(&path);
        assert_eq!(written.len(), 3);
        assert_eq!(written[1], serde_json::json!({"text": "unknown language", "toxicity": null, "scorer": "rule"}));

        let alone = Recorded::open(&path, None).expect("readable");
        assert_eq!(alone.name(), "rule");
        assert_eq!(alone.score(&["unknown language", "four"]), [Ok(None), Ok(Some(0.04))]);
        let error = alone.score(&["four "])[0].clone().expect_err("to the character");
        assert_eq!(error.message, format!("{} has no score for `four`", path.display()));
        assert!(error.hint.expect("a hint").contains("otherwise"));
    }

    /// Scorer that records how many of its texts are on disk at each call, and fails at one text.
    struct Looking(PathBuf, std::sync::Arc<Mutex<Vec<(usize, usize)>>>);

    impl ToxicityScorer for Looking {
        fn name(&self) -> String {
            "looking".into()
        }

        fn score(&self, texts: &[&str]) -> Vec<ScoreResult> {
            self.1.lock().expect("no panic").push((lines(&self.0).len(), texts.len()));
            let answer = |text: &&str| match *text {
                "150" => Err(ScoringError::new("the line is dead")),
                text => Ok(Some(text.parse::<f32>().expect("a number") / 1000.0)),
            };
            texts.iter().map(answer).collect()
        }
    }

    #[test]
    fn what_was_said_is_on_disk_before_more_is_asked() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("scores.jsonl");
        let seen = std::sync::Arc::default();
        let looking = Looking(path.clone(), std::sync::Arc::clone(&seen));
        let recorded = Recorded::open(&path, Some(Box::new(looking))).expect("opened");
        let texts: Vec<String> = (0..300).map(|i| i.to_string()).collect();
        let found = recorded.score(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(*seen.lock().expect("no panic"), [(0, 64), (64, 64), (128, 64)], "nobody is asked after a failure");
        assert_eq!(lines(&path).len(), 191, "what was said beside the failure is kept");
        for (i, answer) in found.iter().enumerate() {
            let expected = match i < 192 && i != 150 {
                true => Ok(Some(i as f32 / 1000.0)),
                false => Err(ScoringError::new("the line is dead")),
            };
            assert_eq!(*answer, expected, "{i}");
        }
    }

    #[test]
    fn scorers_of_one_file_find_what_another_added() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("toxicity.jsonl");
        let open = || Recorded::open(&path, Some(by_length())).expect("a file");
        let (first, second) = (open(), open());
        assert_eq!(first.score(&["four", "fou"]), [Ok(Some(0.04)), Ok(Some(0.03))]);
        assert_eq!(second.score(&["fou", "fo", "four"]), [Ok(Some(0.03)), Ok(Some(0.02)), Ok(Some(0.04))]);
        assert_eq!(first.score(&["fo"]), [Ok(Some(0.02))]);
        assert_eq!(lines(&path).len(), 3);
    }

    #[test]
    fn a_line_that_was_cut_off_is_written_anew() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("toxicity.jsonl");
        for (tail, known) in [("{\"text\": \"b\", \"tox", 1), ("{\"text\": \"b\", \"toxicity\": 0.5}", 2)] {
            std::fs::write(&path, format!("{{\"text\": \"a\", \"toxicity\": 0.25}}\n\n{tail}")).expect("written");
            let scorer = Recorded::open(&path, Some(by_length())).expect("readable");
            assert_eq!(scorer.ledger.len(), known);
            let b = if known == 2 { 0.5 } else { 0.01 };
            assert_eq!(scorer.score(&["a", "b", "ccc"]), [Ok(Some(0.25)), Ok(Some(b)), Ok(Some(0.03))]);
            drop(scorer);
            let again = Recorded::open(&path, None).expect("whole lines");
            assert_eq!(again.score(&["b", "ccc"]), [Ok(Some(b)), Ok(Some(0.03))]);
        }
    }

    #[test]
    fn what_is_no_score_is_told_with_its_line() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("toxicity.jsonl");
        let message_of = |text: &str| {
            std::fs::write(&path, text).expect("written");
            let otherwise = text.contains("scorer").then(by_length);
            Recorded::open(&path, otherwise).err().expect("refused").to_string()
        };
        let good = "{\"text\": \"a\", \"toxicity\": 0.25}\n";
        let found = message_of(&format!("{good}{{\"text\": \"b\"}}\n{good}"));
        assert!(found.starts_with(&format!("{}:2: expected `{{\"text\"", path.display())), "{found}");
        let found = message_of(&format!("{good}{{\"text\": \"b\", \"toxicity\": \"high\"}}\n"));
        assert!(found.contains(":2: expected"), "{found}");
        let found = message_of("{\"text\": \"b\", \"toxicity\": 0.5, \"scorer\": \"another\"}\n");
        assert!(found.ends_with(":1: the score is by \"another\", but \"rule\" is expected"), "{found}");
        let missing = Recorded::open(&dir.path().join("none.jsonl"), None).err().expect("refused").to_string();
        assert!(missing.contains("none.jsonl"), "{missing}");
    }
}
