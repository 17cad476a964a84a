//! A language model as a judge, at an OpenAI-compatible endpoint. It returns a number on a scale or the better of two
//! completions.
//!
//! Zheng et al. 2023, <https://arxiv.org/abs/2306.05685>: the verdict is in double brackets. Pairs are judged in both
//! orders because judges prefer a position.

use std::collections::HashMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Reward, RewardError, Score, Scores, column_text, report};
use crate::error::{Result, excerpt};
use crate::process::Interrupt;
use crate::progress::{Progress, Unwatched};
use crate::rollout::{Prompt, Rollout, Rollouts};
use crate::service::ledger::{Entry, Ledger};
use crate::service::{Client, Endpoint, KeyPlace, Reply, ServiceError, refusal};
use crate::text::think;

/// Number of questions per round. The answers of a round are on disk before the next round starts.
const AT_ONCE: usize = 64;

/// Keys of `reward.judge`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JudgeConfig {
    /// Endpoint up to `/v1`, such as `http://localhost:8000/v1`; `/chat/completions` is appended.
    pub url: String,
    /// Name of the judging model at the endpoint.
    pub model: String,
    /// Environment variable that holds the API key. The key is sent as a bearer token and never stored. Default: no
    /// key.
    #[serde(default)]
    pub key_variable: Option<String>,
    /// Form of the verdict. Default: a scale from 1 to 10.
    #[serde(default)]
    pub verdict: Verdict,
    /// Template of the question, with `{prompt}`, `{completion}` and any column of the row in braces; for pairs
    /// `{completion_a}` and `{completion_b}`. The judge must end with its verdict in double brackets: `[[7]]`, or
    /// `[[A]]`, `[[B]]` or `[[C]]` for a tie. Default: a built-in question.
    #[serde(default)]
    pub template: Option<String>,
    /// Maximum number of tokens of an answer. Default 512.
    #[serde(default = "tokens")]
    #[schemars(range(min = 1))]
    pub max_tokens: usize,
    /// Temperature of the judge. Default 0.
    #[serde(default)]
    pub temperature: f64,
    /// File of the judge's answers; questions that it contains are not sent again. Default: `judgements.jsonl` in the
    /// directory of the run.
    #[serde(default)]
    pub record: Option<PathBuf>,
    /// Maximum number of requests per second, over all connections and ranks. Default 20.
    #[serde(default = "twenty")]
    pub requests_per_second: f64,
    /// Number of concurrent requests. Default 8.
    #[serde(default = "eight")]
    #[schemars(range(min = 1, max = 256))]
    pub connections: usize,
    /// Number of times that a question is sent again after a temporary refusal (429), a server error, a broken
    /// connection or an answer without a verdict. Default 5.
    #[serde(default = "five")]
    #[schemars(range(max = 20))]
    pub retries: usize,
    /// Time limit of one request in seconds. Default 60.
    #[serde(default = "sixty")]
    pub timeout_s: f64,
}

fn tokens() -> usize {
    512
}

fn twenty() -> f64 {
    20.0
}

fn eight() -> usize {
    8
}

fn five() -> usize {
    5
}

fn sixty() -> f64 {
    60.0
}

/// Form of a judge's verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A number from `low` to `high`, mapped to a reward from 0 to 1.
    Scale(Scale),
    /// The better of two completions: the reward is 1, 0.5 for a tie, or 0, averaged over both orders.
    Pairwise(Pairwise),
}

impl Default for Verdict {
    fn default() -> Self {
        Self::Scale(Scale::default())
    }
}

/// Ends of a scale.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// Worst value. Default 1.
    #[serde(default = "lowest")]
    pub low: f64,
    /// Best value. Default 10.
    #[serde(default = "highest")]
    pub high: f64,
}

impl Default for Scale {
    fn default() -> Self {
        Self { low: lowest(), high: highest() }
    }
}

fn lowest() -> f64 {
    1.0
}

fn highest() -> f64 {
    10.0
}

/// Opponent of a completion in a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pairwise {
    /// Text in this column of the row.
    Column(String),
    /// This many of the other completions of its prompt, starting with the next one.
    Group(usize),
}

impl JudgeConfig {
    /// Returns the mistakes in its values, each with the path of its key below this one.
    pub(crate) fn mistakes(&self) -> Vec<(&'static str, &'static str)> {
        let mut found = Vec::new();
        let mut unless = |holds: bool, key, message| {
            if !holds {
                found.push((key, message));
            }
        };
        let is_url = self.url.starts_with("http://") || self.url.starts_with("https://");
        unless(is_url, "url", "it does not begin with `https://` or `http://`");
        let rate = self.requests_per_second;
        unless(rate >= 1e-3 && rate.is_finite(), "requests_per_second", "it must be 0.001 or more");
        unless(self.timeout_s > 0.0 && self.timeout_s <= 3600.0, "timeout_s", "it must be above 0, and 3600 at most");
        unless((1..=256).contains(&self.connections), "connections", "it must be from 1 to 256");
        unless(self.retries <= 20, "retries", "it must be 20 at most");
        unless(self.max_tokens > 0, "max_tokens", "it must be above 0");
        unless(self.temperature >= 0.0 && self.temperature.is_finite(), "temperature", "it must be 0 or above");
        match &self.verdict {
            Verdict::Scale(Scale { low, high }) => unless(low < high, "verdict.scale.high", "it must be above `low`"),
            Verdict::Pairwise(Pairwise::Group(others)) => {
                unless(*others > 0, "verdict.pairwise.group", "it must be above 0");
            }
            Verdict::Pairwise(Pairwise::Column(_)) => {}
        }
        found
    }

    fn template(&self) -> &str {
        self.template.as_deref().unwrap_or(match self.verdict {
            Verdict::Scale(_) => SCALE,
            Verdict::Pairwise(_) => PAIR,
        })
    }
}

const SCALE: &str = "\
Judge the answer of an assistant. Consider whether it is correct, helpful, relevant and clear.

[Question]
{prompt}

[Answer]
{completion}

Explain your judgement in a few sentences. Then give a number from {low} (worst) to {high} (best) in double brackets, such as [[{high}]].";

const PAIR: &str = "\
Judge which of two answers of an assistant is better. Consider whether they are correct, helpful, relevant and clear. Their order \
and their length do not matter.

[Question]
{prompt}

[Answer A]
{completion_a}

[Answer B]
{completion_b}

Explain your judgement in a few sentences. Then give your verdict in double brackets: [[A]] if A is better, [[B]] if B is better, \
[[C]] if they are equally good.";

/// Advice if a judge answers without a verdict.
const NO_VERDICT: &str = "let `template` ask for a verdict such as `[[7]]`, raise `max_tokens` if the answer is cut off, or \
                          raise `retries`";

/// Advice if a judge answers without a text.
const NO_TEXT: &str = "raise `max_tokens`: a judge that thinks can spend all of them on its thoughts";

/// Advice if the body of an answer is no JSON, although it begins like JSON.
const CUT: &str = "does the service, or a proxy before it, cut off long answers?";

/// Maximum number of characters of an answer that a message quotes.
const QUOTED: usize = 120;

/// A recorded answer of the judge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Judgement {
    question: String,
    answer: String,
    judge: String,
}

impl Entry for Judgement {
    const FORM: &'static str = "{\"question\": …, \"answer\": …, \"judge\": …}";
    const WHAT: &'static str = "judgement";

    fn key(&self) -> &str {
        &self.question
    }

    fn author(&self) -> Option<&str> {
        Some(&self.judge)
    }
}

/// Scores completions by the verdicts of a judge.
pub struct JudgeReward {
    config: JudgeConfig,
    client: Client,
    /// Answers by question; only in memory if no file is configured.
    kept: Kept,
}

enum Kept {
    File(Ledger<Judgement>),
    Memory(HashMap<String, String>),
}

/// A question and how its verdict applies to a completion.
struct Question {
    text: String,
    /// Whether the completion is the second of the pair.
    is_second: bool,
}

impl JudgeReward {
    /// Creates the judge of `config`; an `interrupt` ends the wait for its answers.
    ///
    /// # Errors
    /// If the key is not set, or the record cannot be read or belongs to another judge.
    pub fn new(config: &JudgeConfig, interrupt: &Interrupt) -> Result<Self> {
        let endpoint = Endpoint {
            url: format!("{}/chat/completions", config.url.trim_end_matches('/')),
            key_variable: config.key_variable.clone(),
            key_place: KeyPlace::Bearer,
            requests_per_second: config.requests_per_second,
            connections: config.connections,
            retries: config.retries,
            timeout_s: config.timeout_s,
        };
        let client = Client::new(endpoint, interrupt)?;
        let kept = match &config.record {
            Some(path) => Kept::File(Ledger::open(path, &author(config))?),
            None => Kept::Memory(HashMap::new()),
        };
        Ok(Self { config: config.clone(), client, kept })
    }

    /// Returns the questions about each rollout, in order.
    fn questions(&self, rollouts: &Rollouts) -> Vec<Result<Vec<Question>, RewardError>> {
        let all = &rollouts.rollouts;
        let of = |rollout: usize| -> Result<Vec<Question>, RewardError> {
            let prompt = &rollouts.prompts[all[rollout].prompt];
            let own = all[rollout].completion.as_str();
            let single = |text: String| vec![Question { text, is_second: false }];
            let both = |other: &str| -> Result<Vec<Question>, RewardError> {
                let pair = |a, b| self.filled(prompt, &[("completion_a", a), ("completion_b", b)]);
                Ok(vec![
                    Question { text: pair(own, other)?, is_second: false },
                    Question { text: pair(other, own)?, is_second: true },
                ])
            };
            match &self.config.verdict {
                Verdict::Scale(Scale { low, high }) => {
                    let (low, high) = (low.to_string(), high.to_string());
                    let values = [("completion", own), ("low", low.as_str()), ("high", high.as_str())];
                    Ok(single(self.filled(prompt, &values)?))
                }
                Verdict::Pairwise(Pairwise::Column(column)) => both(&column_text(prompt, column)?),
                Verdict::Pairwise(Pairwise::Group(others)) => {
                    let group: Vec<usize> = (0..all.len()).filter(|&i| all[i].prompt == all[rollout].prompt).collect();
                    let at = group.iter().position(|&i| i == rollout).expect("it is of its own group");
                    let next = (1..group.len()).take(*others).map(|k| group[(at + k) % group.len()]);
                    let pairs: Result<Vec<Vec<Question>>, RewardError> =
                        next.map(|other| both(&all[other].completion)).collect();
                    Ok(pairs?.into_iter().flatten().collect())
                }
            }
        };
        (0..all.len()).map(of).collect()
    }

    /// Fills the template in one pass, so that text in a completion is never read as a placeholder.
    fn filled(&self, prompt: &Prompt, values: &[(&str, &str)]) -> Result<String, RewardError> {
        let mut text = String::new();
        let mut rest = self.config.template();
        while let Some(open) = rest.find('{') {
            text.push_str(&rest[..open]);
            let after = &rest[open + 1..];
            let name = after.find('}').map(|close| &after[..close]);
            let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
            match name.filter(is_name) {
                Some(name) => {
                    match values.iter().find(|(known, _)| *known == name) {
                        Some((_, value)) => text.push_str(value),
                        None if name == "prompt" => text.push_str(&prompt.text),
                        None => text.push_str(&column_text(prompt, name)?),
                    }
                    rest = &after[name.len() + 1..];
                }
                None => {
                    text.push('{');
                    rest = after;
                }
            }
        }
        text.push_str(rest);
        Ok(text)
    }

    /// Returns the available answers to `questions`, by question, and requests the missing ones.
    ///
    /// `on_progress` receives how many of the missing questions are answered, and their total; if it fails, no more are sent.
    fn answers(
        &mut self,
        questions: &[&str],
        on_progress: &dyn Fn(usize, usize) -> Result<(), RewardError>,
    ) -> HashMap<String, Result<String, ServiceError>> {
        let mut found = HashMap::new();
        let missing: Vec<String> = match &self.kept {
            Kept::File(ledger) => match ledger.missing(questions) {
                Ok(missing) => missing.into_iter().map(str::to_owned).collect(),
                Err(error) => {
                    let error = ServiceError::from(&error);
                    return questions.iter().map(|text| ((*text).to_owned(), Err(error.clone()))).collect();
                }
            },
            Kept::Memory(known) => {
                let mut missing: Vec<String> = Vec::new();
                let mut seen = std::collections::HashSet::new();
                for text in questions.iter().filter(|text| !known.contains_key(**text) && seen.insert(**text)) {
                    missing.push((*text).to_owned());
                }
                missing
            }
        };
        let mut failure: Option<ServiceError> = None;
        for (chunk, questions) in missing.chunks(AT_ONCE).enumerate() {
            if on_progress(chunk * AT_ONCE, missing.len()).is_err() {
                failure = Some(ServiceError::interrupted());
            }
            if let Some(error) = &failure {
                found.extend(questions.iter().map(|text| (text.clone(), Err(error.clone()))));
                continue;
            }
            let answers = self.client.each(questions, |text| self.request(text));
            let mut entries = Vec::new();
            for (question, answer) in questions.iter().zip(answers) {
                match answer {
                    Ok(answer) => {
                        let judge = author(&self.config);
                        entries.push(Judgement { question: question.clone(), answer, judge });
                    }
                    Err(error) => {
                        failure = Some(error.clone());
                        found.insert(question.clone(), Err(error));
                    }
                }
            }
            match &mut self.kept {
                Kept::File(ledger) => {
                    if let Err(error) = ledger.add(entries) {
                        let path = ledger.path().display();
                        failure = Some(ServiceError::new(format!("judgements cannot be recorded in {path}: {error}")));
                    }
                }
                Kept::Memory(known) => known.extend(entries.into_iter().map(|entry| (entry.question, entry.answer))),
            }
        }
        for text in questions {
            let known = match &self.kept {
                Kept::File(ledger) => ledger.get(text).map(|entry| entry.answer),
                Kept::Memory(known) => known.get(*text).cloned(),
            };
            if let Some(answer) = known {
                found.entry((*text).to_owned()).or_insert(Ok(answer));
            }
        }
        found
    }

    /// Sends one question, and sends it again if the answer has no verdict and the judge is not deterministic.
    fn request(&self, question: &str) -> Result<String, ServiceError> {
        let JudgeConfig { model, max_tokens, temperature, .. } = &self.config;
        let body = json!({
            "model": model,
            "messages": [{ "role": "user", "content": question }],
            "max_tokens": max_tokens,
            "temperature": temperature,
        });
        self.client.request(&body, &|status, answer| match status {
            200..=299 => self.reply(answer),
            status => Reply::Never(refusal(status, answer)),
        })
    }

    /// Reads a chat completion. One without a usable verdict is requested again.
    fn reply(&self, answer: &Value) -> Reply<String> {
        let message = &answer["choices"][0]["message"];
        match (text_of(&message["content"]), answer) {
            (Some(text), _) => match self.value(&text, false) {
                Ok(_) => Reply::Answer(text),
                Err(problem) => Reply::Unusable { message: format!("it answered {problem}"), hint: NO_VERDICT },
            },
            (None, _) if message.is_object() => {
                let message = format!("it answered without a text: `{}`", excerpt(&answer.to_string(), QUOTED));
                Reply::Unusable { message, hint: NO_TEXT }
            }
            (None, Value::String(body)) if body.trim_start().starts_with('{') => {
                let message = format!("it answered with broken JSON: `{}`", excerpt(body.trim(), QUOTED));
                Reply::Unusable { message, hint: CUT }
            }
            (None, _) => Reply::Never(format!("it answered with no chat completion: {answer}")),
        }
    }

    /// Returns the value of an answer, from 0 to 1: its last verdict outside of the judge's thoughts.
    ///
    /// # Errors
    /// A description of an answer without a verdict, or with an unusable one.
    fn value(&self, answer: &str, is_second: bool) -> Result<f32, String> {
        let (_, said) = think::first_thought(answer);
        let inside = said.rfind("]]").and_then(|end| {
            let start = said[..end].rfind("[[")? + 2;
            Some(said[start..end].trim())
        });
        let Some(inside) = inside else {
            return Err(format!("without a verdict in double brackets: `{}`", excerpt(answer.trim(), QUOTED)));
        };
        let value = match &self.config.verdict {
            Verdict::Scale(Scale { low, high }) => {
                let number = inside.parse::<f64>().ok().filter(|number| (*low..=*high).contains(number));
                number.map(|number| ((number - low) / (high - low)) as f32)
            }
            Verdict::Pairwise(_) => match (inside, is_second) {
                ("A", false) | ("B", true) => Some(1.0),
                ("B", false) | ("A", true) => Some(0.0),
                ("C", _) => Some(0.5),
                _ => None,
            },
        };
        value.ok_or_else(|| {
            let needed = match &self.config.verdict {
                Verdict::Scale(Scale { low, high }) => format!("a number from {low} to {high}"),
                Verdict::Pairwise(_) => "`A`, `B` or `C`".to_owned(),
            };
            format!("with the verdict `[[{}]]`, but {needed} is needed", excerpt(inside, QUOTED))
        })
    }
}

/// Returns the text of a message's `content`: a text, or a list of parts. `None` if it has none.
fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            (!texts.is_empty()).then(|| texts.concat())
        }
        _ => None,
    }
}

/// Identifies the judge in each recorded judgement.
fn author(JudgeConfig { model, url, temperature, .. }: &JudgeConfig) -> String {
    format!("{model} of {url}, temperature {temperature}")
}

impl Reward for JudgeReward {
    fn name(&self) -> String {
        "judge".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        self.score_with_progress(rollouts, &Unwatched)
    }

    fn score_with_progress(&mut self, rollouts: &Rollouts, progress: &dyn Progress) -> Scores {
        let questions_of_rollouts = self.questions(rollouts);
        let texts: Vec<&str> =
            questions_of_rollouts.iter().flatten().flatten().map(|question| question.text.as_str()).collect();
        let on_progress = |done: usize, all: usize| report(progress, rollouts.len() * done / all, rollouts.len());
        let answers = self.answers(&texts, &on_progress);
        let value = |Question { text, is_second }: &Question| -> Result<f32, RewardError> {
            let answer = answers.get(text.as_str()).cloned();
            let answer = answer.unwrap_or_else(|| Err(ServiceError::new("not requested")))?;
            // Only a recorded answer can be unusable here.
            self.value(&answer, *is_second).map_err(|problem| {
                let hint = "remove its line from the file of judgements, so that the judge is asked again";
                RewardError::new(format!("the recorded judge answered {problem}")).with_hint(hint)
            })
        };
        let score = |(questions, rollout): (&Result<Vec<Question>, RewardError>, &Rollout)| {
            let questions = questions.as_ref().map_err(Clone::clone)?;
            let values = questions.iter().map(value).collect::<Result<Vec<f32>, _>>()?;
            // A completion alone in its group has no opponent.
            Ok(mean(&values).map_or_else(Score::unscored, |mean| Score::sequence(mean, rollout.completion_ids.len())))
        };
        questions_of_rollouts.iter().zip(&rollouts.rollouts).map(score).collect()
    }
}

fn mean(values: &[f32]) -> Option<f32> {
    (!values.is_empty()).then(|| values.iter().sum::<f32>() / values.len() as f32)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::test_rollouts::{completions, rollouts, totals};
    use super::*;
    use crate::test_support::{RequestLog, serve};

    fn config(url: &str, more: &str) -> JudgeConfig {
        let yaml = format!("url: '{url}'\nmodel: m\nrequests_per_second: 1000\n{more}");
        serde_saphyr::from_str(&yaml).expect("a configuration")
    }

    fn judge(config: &JudgeConfig) -> JudgeReward {
        JudgeReward::new(config, &Interrupt::default()).expect("a judge")
    }

    fn reply(text: &str) -> (u16, &'static str, String) {
        (200, "", json!({ "choices": [{ "message": { "content": text } }] }).to_string())
    }

    fn question(body: &Value) -> &str {
        body["messages"][0]["content"].as_str().expect("a question")
    }

    /// Prefers the longer of two completions, and gives one point per letter.
    fn by_length() -> (String, RequestLog) {
        serve("/v1", |line, body| {
            assert!(line.starts_with("POST /v1/chat/completions "), "{line}");
            let part = |from: &str, to: &str| {
                let text = question(body);
                let start = text.find(from).expect("a part") + from.len();
                let end = text[start..].find(to).map_or(text.len(), |length| start + length);
                text[start..end].trim().len()
            };
            match question(body).contains("[Answer A]") {
                false => reply(&format!("It is fine. [[{}]]", part("[Answer]", "Explain"))),
                true => {
                    let (a, b) = (part("[Answer A]", "[Answer B]"), part("[Answer B]", "Explain"));
                    reply(if a > b {
                        "[[A]]"
                    } else if a < b {
                        "[[B]]"
                    } else {
                        "[[C]]"
                    })
                }
            }
        })
    }

    #[test]
    fn numbers_on_a_scale_are_rewards_from_0_to_1() {
        let (url, seen) = by_length();
        let mut reward = judge(&config(&url, "key_variable: PATH"));
        assert_eq!(totals(&mut reward, &completions(["a", "a b c d e ", "a"])), [0.0, 8.0 / 9.0, 0.0]);
        let seen = seen.lock().expect("no panic");
        assert_eq!(seen.len(), 2, "no question is asked twice");
        let first = &seen[0].1;
        for part in ["Bearer ", "\"model\":\"m\"", "\"temperature\":0.0", "from 1 (worst) to 10 (best)"] {
            assert!(first.contains(part), "{part} in {first}");
        }
    }

    #[test]
    fn pairs_are_judged_in_both_orders() {
        let (url, seen) = by_length();
        let made = rollouts([
            ("p", json!({ "best": "four" }), "longer"),
            ("p", json!({ "best": "four" }), "four"),
            ("p", json!({ "best": "four" }), "one"),
        ]);
        let mut reward = judge(&config(&url, "verdict: { pairwise: { column: best } }"));
        assert_eq!(totals(&mut reward, &made), [1.0, 0.5, 0.0]);
        assert_eq!(seen.lock().expect("no panic").len(), 5, "equal texts have one question for both orders");

        // A judge that always answers A prefers a position; both orders cancel this.
        let (url, _) = serve("/v1", |_, _| reply("[[A]]"));
        let mut reward = judge(&config(&url, "verdict: { pairwise: { column: best } }"));
        assert_eq!(totals(&mut reward, &made), [0.5, 0.5, 0.5]);
    }

    #[test]
    fn a_group_is_compared_with_itself() {
        let (url, _) = by_length();
        let mut made = completions(["aaaa", "aaa", "aa"]);
        made.rollouts.iter_mut().for_each(|rollout| rollout.prompt = 0);
        let mut reward = judge(&config(&url, "verdict: { pairwise: { group: 2 } }"));
        assert_eq!(totals(&mut reward, &made), [1.0, 0.5, 0.0]);
        let mut reward = judge(&config(&url, "verdict: { pairwise: { group: 1 } }"));
        assert_eq!(reward.score(&completions(["alone"])), [Ok(Score::unscored())]);
    }

    #[test]
    fn answers_are_recorded_and_not_asked_for_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("judgements.jsonl");
        let (url, seen) = by_length();
        let config = JudgeConfig { record: Some(path.clone()), ..config(&url, "") };
        let first = totals(&mut judge(&config), &completions(["a b", "a b c"]));
        assert_eq!(totals(&mut judge(&config), &completions(["a b c", "a b"])), [first[1], first[0]]);
        assert_eq!(seen.lock().expect("no panic").len(), 2);
        let other = JudgeConfig { model: "n".into(), ..config };
        let error = JudgeReward::new(&other, &Interrupt::default()).err().expect("refused").to_string();
        assert!(error.contains("the judgement is by \"m of http://"), "{error}");
    }

    #[test]
    fn an_answer_without_a_verdict_is_asked_for_again() {
        let tries = AtomicUsize::new(0);
        let (url, _) = serve("/v1", move |_, _| match tries.fetch_add(1, Ordering::SeqCst) {
            0 => reply("I cannot say. [[eleven]]"),
            _ => reply("First [[2]], no: [[ 5.5 ]]"),
        });
        assert_eq!(totals(&mut judge(&config(&url, "")), &completions(["a"])), [0.5]);

        let (url, _) = serve("/v1", |_, _| reply("[[11]]"));
        let error = judge(&config(&url, "retries: 0")).score(&completions(["a"])).remove(0).expect_err("no verdict");
        assert!(error.message.contains("it answered with the verdict `[[11]]`, but a number from 1 to 10 is needed"));
        let hint = error.hint.expect("a hint");
        assert!(hint.starts_with(NO_VERDICT) && !hint.contains("requests_per_second"), "{hint}");

        let (url, _) = serve("/v1", |_, _| (404, "", json!({ "error": { "message": "no such model" } }).to_string()));
        let error = judge(&config(&url, "")).score(&completions(["a"])).remove(0).expect_err("refused");
        assert!(error.message.ends_with("it answered 404: no such model"), "{}", error.message);
    }

    #[test]
    fn answers_without_a_usable_verdict_say_what_is_wrong() {
        let completion = |content: Value| {
            json!({ "choices": [{ "message": { "content": content }, "finish_reason": "length" }] }).to_string()
        };
        let failure = |body: String| {
            let (url, _) = serve("/v1", move |_, _| (200, "", body.clone()));
            let error =
                judge(&config(&url, "retries: 0")).score(&completions(["a"])).remove(0).expect_err("no verdict");
            (error.message, error.hint.expect("a hint"))
        };
        for (body, problem, hint) in [
            (completion(Value::Null), "it answered without a text", NO_TEXT),
            (completion(json!([])), "it answered without a text", NO_TEXT),
            ("{\"choices\":[{\"mess".into(), "it answered with broken JSON: `{\"choices\":[{\"mess`", CUT),
            (
                completion(json!("<think>maybe [[2]]")),
                "without a verdict in double brackets: `<think>maybe",
                NO_VERDICT,
            ),
            (completion(json!("<think>[[2]]</think> No.")), "without a verdict in double brackets", NO_VERDICT),
            (completion(json!("[[2]]</think> No.")), "without a verdict in double brackets", NO_VERDICT),
            (completion(json!("[[8/10]]")), "the verdict `[[8/10]]`, but a number from 1 to 10 is", NO_VERDICT),
        ] {
            let (message, found) = failure(body);
            // It was asked as often as `retries` allows.
            assert!(message.contains(problem) && message.ends_with(", 1 times in a row"), "{problem}: {message}");
            assert!(found.starts_with(hint), "{problem}: {found}");
        }
        for body in ["{\"detail\": \"Not Found\"}", "<html>"] {
            let (message, hint) = failure(body.into());
            assert!(
                message.contains("it answered with no chat completion: ") && hint.contains("`url`"),
                "{message}: {hint}"
            );
        }
        let value = |answer: Value| {
            let body = completion(answer);
            let (url, _) = serve("/v1", move |_, _| (200, "", body.clone()));
            totals(&mut judge(&config(&url, "")), &completions(["a"]))
        };
        for answer in [
            "<think>maybe [[2]]</think> [[10]]",
            "maybe [[2]]\n</think>\n[[10]]",
            "[[10]] although it writes <think> and </think>",
        ] {
            assert_eq!(value(json!(answer)), [1.0], "{answer}");
        }
        assert_eq!(value(json!([{ "type": "thinking" }, { "type": "text", "text": "So [[1]]" }])), [0.0]);
    }

    #[test]
    fn names_in_completions_are_texts() {
        let (url, seen) = serve("/v1", |_, _| reply("[[1]]"));
        let template = "template: 'As {\"a b\": 1}: {prompt}|{answer}|{completion}'";
        let made = rollouts([("what is {answer}?", json!({ "answer": 7 }), "{prompt} {low}")]);
        totals(&mut judge(&config(&url, template)), &made);
        let request = seen.lock().expect("no panic")[0].1.clone();
        assert!(request.contains("1}: what is {answer}?|7|{prompt} {low}"), "{request}");
        let made = rollouts([("p", json!({}), "c")]);
        let error = judge(&config(&url, template)).score(&made).remove(0).expect_err("no column");
        assert!(error.message.contains("`answer`"), "{}", error.message);
    }
}
