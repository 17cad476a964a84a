//! Questions about documents: the policy searches, reads the passages, and answers.

use std::path::PathBuf;

use gradus_metrics::{ExactMatch, Metric, Row, TokenF1};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::environment::{Environment, Episode, NewEpisode, Observation, Reply, Start, Turn};
use crate::error::{Error, Result};
use crate::functions::{Search, SearchConfig};
use crate::think;
use crate::tool::Tool;
use crate::toolbox::{Toolbox, failure};

/// Marks around an answer.
const OPEN: &str = "<answer>";
const CLOSE: &str = "</answer>";

/// Reward of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AnswerReward {
    /// 1 if the answer is right up to case, punctuation and articles, otherwise 0 (SQuAD's exact match).
    #[default]
    Exact,
    /// The word overlap with a right answer, from 0 to 1 (SQuAD's F1).
    F1,
}

/// Questions about documents, with a search tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DocumentsConfig {
    /// The documents: a folder of `.txt`, `.md` and `.jsonl` files, or one such file. In `.jsonl` files the column `text` is used.
    pub path: PathBuf,
    /// The data column with the right answer: a text, or a list of right texts. Default `answer`.
    #[serde(default = "answer")]
    pub answer: String,
    /// The data column with the question, which is added to the prompt. Default: the prompt is the question.
    #[serde(default)]
    pub question: Option<String>,
    /// The number of passages per search. Default 3.
    #[serde(default = "three")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub results: usize,
    /// The number of searches per episode; further ones are rejected. Default 8.
    #[serde(default = "eight")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub searches: usize,
    /// The reward of an answer. Default `exact`.
    #[serde(default)]
    pub reward: AnswerReward,
    /// Add instructions for searching and answering to the prompt. Default true.
    #[serde(default = "yes")]
    pub explain: bool,
}

fn answer() -> String {
    "answer".to_owned()
}

fn three() -> usize {
    3
}

fn eight() -> usize {
    8
}

fn yes() -> bool {
    true
}

/// The environment. An episode ends with the first turn without a call; its answer gets the reward.
pub struct Documents {
    config: DocumentsConfig,
    toolbox: Toolbox,
}

impl Documents {
    /// Reads the documents.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if they cannot be read, or a key is out of range.
    pub fn new(config: DocumentsConfig) -> Result<Self> {
        for (key, value) in [("results", config.results), ("searches", config.searches)] {
            if value == 0 {
                return Err(Error::config(format!("`{key}` is 0, but must be at least 1")));
            }
        }
        let search = Search::open(&SearchConfig { folder: config.path.clone(), results: config.results })?;
        Ok(Self { config, toolbox: Toolbox::new(vec![Box::new(search)])? })
    }
}

impl Environment for Documents {
    fn tools(&self) -> &[Tool] {
        self.toolbox.tools()
    }

    fn begin(&self, start: &Start) -> Result<NewEpisode> {
        let column =
            |name: &str| start.row.get(name).ok_or_else(|| Error::episode(format!("the row has no column `{name}`")));
        let wrong = |name: &str, expected: &str, found: &Value| {
            let found = found.to_string();
            Error::episode(format!("the column `{name}` is `{}`, expected {expected}", crate::peer::excerpt(&found)))
        };
        let found = column(&self.config.answer)?;
        let list = match found {
            Value::Array(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        let answers: Option<Vec<String>> = list.iter().map(|text| text.as_str().map(str::to_owned)).collect();
        let answers = answers.filter(|answers| !answers.is_empty());
        let answers = answers.ok_or_else(|| wrong(&self.config.answer, "a text or a list of texts", found))?;
        let mut opening = Vec::new();
        if let Some(name) = &self.config.question {
            let found = column(name)?;
            opening.push(found.as_str().ok_or_else(|| wrong(name, "a text", found))?.to_owned());
        }
        if self.config.explain {
            let times = self.config.searches;
            opening.push(format!(
                "You can search the documents {times} times. Write the answer, as short as it can be, as {OPEN}…{CLOSE}."
            ));
        }
        let opening = Some(opening.join("\n\n")).filter(|text| !text.is_empty());
        let calls = self.toolbox.begin(start)?.episode;
        let episode = Question { config: self.config.clone(), calls, answers, searches: 0, is_seen: false, score: 0.0 };
        Ok(NewEpisode { episode: Box::new(episode), opening })
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

struct Question {
    config: DocumentsConfig,
    calls: Box<dyn Episode>,
    answers: Vec<String>,
    searches: usize,
    /// Whether a search found a passage with a right answer.
    is_seen: bool,
    score: f64,
}

impl Question {
    /// Whether a text contains a right answer.
    fn holds_answer(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        self.answers.iter().any(|answer| text.contains(&answer.to_lowercase()))
    }

    fn score(&self, text: &str) -> Result<f64> {
        let row = [Row::new(answer_in(text), self.answers.clone())];
        let measures = match self.config.reward {
            AnswerReward::Exact => ExactMatch.measure(&row),
            AnswerReward::F1 => TokenF1.measure(&row),
        };
        let values = measures.map_err(|error| Error::episode(error.to_string()))?;
        Ok(values.iter().map(gradus_metrics::Measure::value).sum())
    }
}

impl Episode for Question {
    fn step(&mut self, turn: &Turn) -> Result<Observation> {
        let left = self.config.searches - self.searches;
        let taken = turn.calls.len().min(left);
        let (allowed, refused) = turn.calls.split_at(taken);
        let mut observation = self.calls.step(&Turn { calls: allowed.to_vec(), ..turn.clone() })?;
        self.searches += taken;
        self.is_seen |= observation.replies.iter().any(|reply| self.holds_answer(reply.content()));
        let mut add = |name: &str, value: f64| *observation.metrics.entry(name.to_owned()).or_default() += value;
        add("searches", taken as f64);
        add("tools/calls", refused.len() as f64);
        add("tools/failures", refused.len() as f64);
        let number = |is_so: bool| f64::from(u8::from(is_so));
        if turn.calls.is_empty() {
            self.score = self.score(&turn.content)?;
            add("seen", number(self.is_seen));
            add("marked", number(turn.content.contains(OPEN)));
        }
        for call in refused {
            let content = failure("no searches are left: write the answer");
            observation.replies.push(Reply::Tool { name: call.name.clone(), id: call.id.clone(), content });
        }
        observation.is_done = turn.calls.is_empty();
        Ok(observation)
    }

    fn finish(&mut self) -> Result<Option<f64>> {
        Ok(Some(self.score))
    }
}

/// Returns the text between the last answer marks. Without marks, returns everything after the thoughts.
fn answer_in(text: &str) -> &str {
    let answer = text.rfind(think::CLOSE).map_or(text, |at| &text[at + think::CLOSE.len()..]);
    let marked = answer.rfind(OPEN).map(|at| &answer[at + OPEN.len()..]);
    marked.map_or(answer, |rest| rest.split(CLOSE).next().unwrap_or(rest)).trim()
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::tool::Call;

    const ROWS: &str = "{\"text\": \"The lighthouse of Ard was built in 1821 by Ada Holm.\"}\n\
                        {\"text\": \"Ard has a harbor.\"}\n{\"text\": \"Bees live in hives.\"}\n";

    fn environment(change: impl FnOnce(&mut DocumentsConfig)) -> Result<Documents> {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("rows.jsonl");
        std::fs::write(&path, ROWS).expect("written");
        let mut config: DocumentsConfig = serde_json::from_value(json!({ "path": path })).expect("a configuration");
        change(&mut config);
        Documents::new(config)
    }

    fn begin(environment: &Documents, row: Value) -> Result<NewEpisode> {
        let row = row.as_object().cloned().expect("an object");
        environment.begin(&Start { name: "a".into(), seed: 1, row })
    }

    fn search(query: &str) -> Turn {
        let arguments = Ok(Map::from_iter([("query".to_owned(), json!(query))]));
        Turn { calls: vec![Call { id: None, name: "search".into(), arguments }], ..Turn::default() }
    }

    fn says(text: &str) -> Turn {
        Turn { text: text.into(), content: text.into(), ..Turn::default() }
    }

    #[test]
    fn the_answer_is_found_and_rewarded() {
        let environment = environment(|config| config.question = Some("question".into())).expect("documents");
        let row = json!({ "question": "Who built the lighthouse of Ard?", "answer": ["Ada Holm", "Holm"] });
        let NewEpisode { mut episode, opening } = begin(&environment, row.clone()).expect("begun");
        assert!(opening.expect("a text").starts_with("Who built the lighthouse of Ard?\n\nYou can search"));
        let found = episode.step(&search("lighthouse")).expect("answered");
        assert_eq!(found.replies[0].content(), "[rows.jsonl] The lighthouse of Ard was built in 1821 by Ada Holm.");
        assert_eq!((found.is_done, found.metrics["searches"]), (false, 1.0));
        let last = episode.step(&says("<think>Holm? <answer>no</answer></think> So: <answer>the holm.</answer>"));
        let last = last.expect("answered");
        assert!(last.is_done && last.replies.is_empty());
        assert_eq!((last.metrics["seen"], last.metrics["marked"], episode.finish()), (1.0, 1.0, Ok(Some(1.0))));
        for (text, reward) in [("Ada Holm", 1.0), ("It was Ada Holm", 0.0), ("<answer>Ada</answer>", 0.0), ("", 0.0)] {
            let mut episode = begin(&environment, row.clone()).expect("begun").episode;
            assert_eq!(episode.finish(), Ok(Some(0.0)), "no answer is none that is right");
            let last = episode.step(&says(text)).expect("answered");
            assert_eq!((last.metrics["seen"], episode.finish()), (0.0, Ok(Some(reward))), "{text}");
        }
    }

    #[test]
    fn words_in_common_are_worth_a_part() {
        let environment = environment(|config| config.reward = AnswerReward::F1).expect("documents");
        let mut episode = begin(&environment, json!({ "answer": "Ada Holm" })).expect("begun").episode;
        episode.step(&says("<answer>Ada Berg Holm</answer>")).expect("answered");
        // Two common words, out of three and two.
        assert_eq!(episode.finish(), Ok(Some(0.8)));
    }

    #[test]
    fn searches_run_out() {
        let environment = environment(|config| config.searches = 2).expect("documents");
        let mut episode = begin(&environment, json!({ "answer": "x" })).expect("begun").episode;
        let calls = ["bees", "harbor", "lighthouse"].into_iter().flat_map(|query| search(query).calls).collect();
        let found = episode.step(&Turn { calls, ..Turn::default() }).expect("answered");
        assert_eq!(found.replies.len(), 3);
        assert!(
            found.replies[1].content().contains("harbor")
                && found.replies[2].content().contains("no searches are left")
        );
        assert_eq!((found.is_done, found.metrics["tools/calls"], found.metrics["tools/failures"]), (false, 3.0, 1.0));
        let more = episode.step(&search("bees")).expect("answered");
        assert!(!more.is_done && more.replies[0].content().contains("no searches are left"));
    }

    #[test]
    fn rows_without_an_answer_fail_and_keys_have_bounds() {
        let environment_of = environment(|config| config.explain = false).expect("documents");
        assert_eq!(begin(&environment_of, json!({ "answer": "x" })).expect("begun").opening, None);
        let error = begin(&environment_of, json!({})).err().expect("refused");
        assert_eq!(error, Error::episode("the row has no column `answer`"));
        for found in [json!(3), json!([]), json!(["a", 3])] {
            let error = begin(&environment_of, json!({ "answer": found })).err().expect("refused").to_string();
            assert!(error.ends_with("expected a text or a list of texts"), "{error}");
        }
        assert!(environment(|config| config.searches = 0).is_err());
        assert!(environment(|config| config.path = "/nowhere".into()).is_err());
    }
}
