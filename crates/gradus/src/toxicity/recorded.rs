//! Scores that were recorded: what a file says of a text, and what another scorer adds to it.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

use super::{Answer, ScoringError, ToxicityScorer};
use crate::error::{Error, Result, excerpt};
use crate::files;

/// Characters of a text that a message quotes.
const QUOTED: usize = 60;

/// Texts that the other scorer is asked at once. What it said of them is on disk before it is asked again: of a service that allows one
/// request a second, a death loses a minute and not the whole evaluation.
const AT_ONCE: usize = 64;

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    /// The text, to the character.
    text: std::borrow::Cow<'a, str>,
    /// Its toxicity; `null` where its scorer has none, which must be said.
    #[serde(deserialize_with = "Option::deserialize")]
    toxicity: Option<f32>,
    /// Who said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scorer: Option<String>,
}

/// Looks texts up in a file, and records there what another scorer says of those that it does not know.
///
/// Several scorers may share a file, also those of several processes: what one adds, the others find before they ask.
/// A line that was cut off as its writer died is written anew. Where a text stands twice, the later line holds.
pub struct Recorded {
    path: PathBuf,
    otherwise: Option<Box<dyn ToxicityScorer>>,
    /// Whose scores the file holds.
    scorer: Option<String>,
    known: Mutex<Known>,
}

struct Known {
    scores: HashMap<String, Option<f32>>,
    /// Up to where the file is known.
    end: u64,
    /// Where new lines go.
    file: Option<File>,
}

impl Recorded {
    /// Reads `path`, which need not exist where there is an `otherwise` to ask.
    ///
    /// # Errors
    /// When it cannot be read (with an `otherwise`: or written), a line is no score, or a score is of another scorer than the
    /// one that is asked otherwise.
    pub fn open(path: &Path, otherwise: Option<Box<dyn ToxicityScorer>>) -> Result<Self> {
        let mut scorer = otherwise.as_ref().map(|scorer| scorer.name());
        let mut known = Known { scores: HashMap::new(), end: 0, file: None };
        if otherwise.is_none() || path.exists() {
            let tail = known.read_on(path, &mut scorer)?;
            if otherwise.is_some() {
                mend(path, tail, known.end).map_err(|source| Error::io(path, source))?;
            }
        }
        if otherwise.is_some() {
            let file = OpenOptions::new().append(true).create(true).open(path);
            known.file = Some(file.map_err(|source| Error::io(path, source))?);
        }
        Ok(Self { path: path.to_owned(), otherwise, scorer, known: Mutex::new(known) })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The texts that the file does not know, each once, whoever has written to it meanwhile.
    fn missing<'t>(&self, texts: &[&'t str]) -> Result<Vec<&'t str>> {
        let mut known = self.known();
        if self.otherwise.is_some() && texts.iter().any(|text| !known.scores.contains_key(*text)) {
            known.read_on(&self.path, &mut self.scorer.clone())?;
        }
        let mut seen = HashSet::new();
        Ok(texts.iter().copied().filter(|text| !known.scores.contains_key(*text) && seen.insert(*text)).collect())
    }

    /// Asks the other scorer for `texts`, each once, and records its answers as they come: also those beside a failure, after which
    /// no others are asked.
    fn ask(&self, texts: &[&str], otherwise: &dyn ToxicityScorer) -> HashMap<String, ScoringError> {
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
        let answers = otherwise.score(texts);
        let mut known = self.known();
        for (text, answer) in texts.iter().zip(answers) {
            match answer {
                Ok(toxicity) => {
                    known.scores.insert((*text).to_owned(), toxicity);
                    let line = Line { text: (*text).into(), toxicity, scorer: self.scorer.clone() };
                    serde_json::to_writer(&mut lines, &line).expect("a text and a number");
                    lines.push(b'\n');
                }
                Err(error) => drop(failed.insert((*text).to_owned(), error)),
            }
        }
        // One write of whole lines, so that another process may append to the same file.
        if let Some(Err(error)) = known.file.as_mut().map(|file| file.write_all(&lines)) {
            let error = ScoringError::new(format!("scores cannot be recorded in {}: {error}", self.path.display()));
            failed.extend(texts.iter().map(|text| ((*text).to_owned(), error.clone())));
        }
        failed
    }
}

impl ToxicityScorer for Recorded {
    fn name(&self) -> String {
        self.scorer.clone().unwrap_or_else(|| format!("recorded in {}", self.path.display()))
    }

    fn score(&self, texts: &[&str]) -> Vec<Answer> {
        let missing = match self.missing(texts) {
            Ok(missing) => missing,
            Err(error) => {
                let error =
                    ScoringError { hint: error.hint().map(str::to_owned), ..ScoringError::new(error.to_string()) };
                return texts.iter().map(|_| Err(error.clone())).collect();
            }
        };
        let failed = match &self.otherwise {
            Some(otherwise) if !missing.is_empty() => self.ask(&missing, &**otherwise),
            _ => HashMap::new(),
        };
        let known = self.known();
        let answer = |text: &&str| match (failed.get(*text), known.scores.get(*text)) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(score)) => Ok(*score),
            (None, None) => {
                let message = format!("{} has no score of `{}`", self.path.display(), excerpt(text, QUOTED));
                Err(ScoringError::new(message).with_hint(
                    "texts are looked up to the character; name a scorer to ask instead: `recorded: { file: …, otherwise: … }`",
                ))
            }
        };
        texts.iter().map(answer).collect()
    }
}

/// How a file ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Tail {
    /// After a whole line, or it is empty.
    Clean,
    /// With a line that lacks only its end.
    Unended,
    /// In the middle of a line.
    Torn,
}

impl Known {
    /// Reads the lines that were not known yet.
    fn read_on(&mut self, path: &Path, scorer: &mut Option<String>) -> Result<Tail> {
        let read = || -> std::io::Result<_> {
            let mut file = files::open(path)?;
            file.seek(SeekFrom::Start(self.end))?;
            Ok(BufReader::new(file))
        };
        let mut lines = read().map_err(|source| Error::io(path, source))?;
        // Lines are counted from the beginning where all are read, as when a file is opened.
        let (mut bytes, mut number, begins) = (Vec::new(), 0, self.end == 0);
        loop {
            bytes.clear();
            number += 1;
            lines.read_until(b'\n', &mut bytes).map_err(|source| Error::io(path, source))?;
            let tail = match bytes.last() {
                None => return Ok(Tail::Clean),
                Some(b'\n') => Tail::Clean,
                Some(_) => Tail::Unended,
            };
            if !bytes.trim_ascii().is_empty() {
                match parse(&bytes, scorer) {
                    Ok(line) => drop(self.scores.insert(line.text.into_owned(), line.toxicity)),
                    Err(_) if tail == Tail::Unended => return Ok(Tail::Torn),
                    Err((message, hint)) => {
                        let error = Error::data(path, begins.then_some(number), message);
                        return Err(hint.into_iter().fold(error, Error::with_hint));
                    }
                }
            }
            if tail == Tail::Unended {
                return Ok(tail);
            }
            self.end += bytes.len() as u64;
        }
    }
}

/// A score, of `scorer` where one is known.
fn parse<'l>(
    bytes: &'l [u8],
    scorer: &mut Option<String>,
) -> std::result::Result<Line<'l>, (String, Option<&'static str>)> {
    let line: Line<'_> = serde_json::from_slice(bytes).map_err(|error| {
        let quoted = excerpt(&String::from_utf8_lossy(bytes), QUOTED);
        (format!("expected `{{\"text\": …, \"toxicity\": a number or null}}` (found `{quoted}`: {error})"), None)
    })?;
    if let Some(toxicity) = line.toxicity.filter(|toxicity| !toxicity.is_finite()) {
        return Err((format!("`toxicity` is {toxicity}, expected a number or null"), None));
    }
    match (&line.scorer, &scorer) {
        (Some(found), Some(wanted)) if found != wanted => {
            let message = format!("the score is of `{found}`, but those of `{wanted}` are wanted");
            return Err((message, Some("scores of different scorers do not compare: take another file for each")));
        }
        (Some(found), None) => *scorer = Some(found.clone()),
        _ => {}
    }
    Ok(line)
}

/// Ends the file behind a whole line, so that others can be added; whole lines reach to `end`.
fn mend(path: &Path, tail: Tail, end: u64) -> std::io::Result<()> {
    match tail {
        Tail::Clean => Ok(()),
        Tail::Unended => OpenOptions::new().append(true).open(path)?.write_all(b"\n"),
        Tail::Torn => OpenOptions::new().write(true).open(path)?.set_len(end),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_scorer::ByRule;
    use super::*;

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
        // Each text once, the failed one not at all.
        let written = lines(&path);
        assert_eq!(written.len(), 3);
        assert_eq!(written[1], serde_json::json!({"text": "unknown language", "toxicity": null, "scorer": "rule"}));

        let alone = Recorded::open(&path, None).expect("readable");
        assert_eq!(alone.name(), "rule");
        assert_eq!(alone.score(&["unknown language", "four"]), [Ok(None), Ok(Some(0.04))]);
        let error = alone.score(&["four "])[0].clone().expect_err("to the character");
        assert_eq!(error.message, format!("{} has no score of `four`", path.display()));
        assert!(error.hint.expect("a hint").contains("otherwise"));
    }

    /// Says how many of its texts are on disk when it is asked, and fails at one.
    struct Looking(PathBuf, std::sync::Arc<Mutex<Vec<(usize, usize)>>>);

    impl ToxicityScorer for Looking {
        fn name(&self) -> String {
            "looking".into()
        }

        fn score(&self, texts: &[&str]) -> Vec<Answer> {
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
            assert_eq!(scorer.known().scores.len(), known);
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
        let told = |text: &str| {
            std::fs::write(&path, text).expect("written");
            let otherwise = text.contains("scorer").then(by_length);
            Recorded::open(&path, otherwise).err().expect("refused").to_string()
        };
        let good = "{\"text\": \"a\", \"toxicity\": 0.25}\n";
        let found = told(&format!("{good}{{\"text\": \"b\"}}\n{good}"));
        assert!(found.starts_with(&format!("{}:2: expected `{{\"text\"", path.display())), "{found}");
        let found = told(&format!("{good}{{\"text\": \"b\", \"toxicity\": \"high\"}}\n"));
        assert!(found.contains(":2: expected"), "{found}");
        let found = told("{\"text\": \"b\", \"toxicity\": 0.5, \"scorer\": \"another\"}\n");
        assert!(found.ends_with(":1: the score is of `another`, but those of `rule` are wanted"), "{found}");
        let missing = Recorded::open(&dir.path().join("none.jsonl"), None).err().expect("refused").to_string();
        assert!(missing.contains("none.jsonl"), "{missing}");
    }
}
