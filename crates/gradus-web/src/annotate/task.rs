//! Content of annotation tasks: a question, passages, a reference, answers.

use std::collections::BTreeMap;

use gradus::data::{self, Content, ImplicitPrompt, RawRow};
use gradus::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::labels::LabelSet;
use super::rank::Rank;

/// Maximum number of tasks per project, and of answers per task.
const TASKS: usize = 1_000_000;
pub const ANSWERS: usize = 8;

/// A task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Question or prompt.
    pub question: String,
    /// Passages with a title and sentences.
    #[serde(default)]
    pub passages: Vec<Passage>,
    /// Good answer written by a person.
    #[serde(default)]
    pub reference: String,
    /// Answers. The first one is marked and corrected.
    pub answers: Vec<String>,
    /// Models of the answers, if known.
    #[serde(default)]
    pub models: Vec<String>,
    /// Expected parts of a task that measures people, who do not see them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
    /// Whether the task only checks attention. It is never exported as a training row.
    #[serde(default)]
    pub attention: bool,
    /// Prompt and answers in the form of the data file, if they are more than the texts that people see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<Original>,
}

/// Prompt and answers of a task as they are in the data file: messages, or text with the space around it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Original {
    /// Prompt.
    pub prompt: Value,
    /// Answers in the form of the prompt. Empty if models answer.
    pub answers: Vec<Value>,
}

impl Original {
    /// Joins a prompt with its answers. `None` if an answer cannot have the form of the prompt, or if people see everything: the `question`
    /// and the `shown` answers.
    pub(super) fn of(prompt: Value, answers: &[Value], (question, shown): (&str, &[String])) -> Option<Self> {
        let answers: Option<Vec<Value>> = answers.iter().map(|answer| in_form_of(&prompt, answer)).collect();
        let original = Self { answers: answers?, prompt };
        (!original.is_shown(question, shown)).then_some(original)
    }

    /// Returns whether people see everything.
    fn is_shown(&self, question: &str, answers: &[String]) -> bool {
        let mut answers = self.answers.iter().zip(answers);
        self.prompt.as_str() == Some(question) && answers.all(|(answer, text)| answer.as_str() == Some(text.as_str()))
    }
}

/// Returns an answer in the form of its prompt: text after text, messages after messages. `None` for messages after text.
fn in_form_of(prompt: &Value, answer: &Value) -> Option<Value> {
    match (prompt, answer) {
        (Value::Array(_), Value::String(text)) => Some(json!([{ "role": "assistant", "content": text }])),
        (Value::String(_), Value::Array(_)) => None,
        _ => Some(answer.clone()),
    }
}

/// Expected parts of an annotation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Expected {
    /// Preferences of pairs, by `1v2` and so on.
    pub ranks: BTreeMap<String, Rank>,
    /// Values on scales.
    pub questions: BTreeMap<String, u8>,
    /// Whether nothing is wrong.
    pub no_error: Option<bool>,
}

impl Task {
    /// Returns whether everyone gets the task, independent of the number of annotators. Such tasks measure each person.
    pub fn is_for_everyone(&self) -> bool {
        self.expected.is_some()
    }

    /// Returns why the expected parts do not fit the label set, if so.
    pub fn expected_problem(&self, labels: &LabelSet) -> Option<String> {
        self.expected.as_ref()?.as_answer().broken(labels, self).into_iter().next()
    }

    /// Returns the prompt for training rows, in the form of the data file.
    pub fn prompt(&self) -> Value {
        self.original.as_ref().map_or_else(|| json!(self.question), |original| original.prompt.clone())
    }

    /// Returns an answer for training rows, in the form of the prompt.
    ///
    /// # Panics
    /// If there is no answer `at`.
    pub fn answer(&self, at: usize) -> Value {
        let shown = json!(self.answers[at]);
        let Some(Original { prompt, answers }) = &self.original else { return shown };
        answers.get(at).cloned().or_else(|| in_form_of(prompt, &shown)).unwrap_or(shown)
    }
}

/// A passage. Its title is sentence 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passage {
    /// Title of the passage.
    pub title: String,
    /// Sentences of the passage.
    pub sentences: Vec<String>,
}

/// Reads the tasks of a data file in order.
///
/// Questions are `question` or `prompt`. Answers are `prediction 1` and so on, `completions`, `answers`, `completion`, or `chosen` and
/// `rejected`, which may contain the question that they share (HH). The files of RL4LMs' studies are read unchanged: `prompt`,
/// `machine_completion`, `algorithm`, and `concept`, `choice_A`, `choice_B`, `choice_A_id`, `choice_B_id`. References are `gold` or
/// `reference`. Passages are lists of sentences that begin with a title. `expected` contains known parts, and `attention` marks tasks that
/// only check attention. Without `has_answers`, the answers of the file are ignored, and rows need none.
///
/// # Errors
/// The file cannot be read, or a row has no question or no answer.
pub fn tasks(file: &str, most: Option<usize>, has_answers: bool) -> Result<Vec<Task>> {
    let source = data::resolve(file, &mut |_, _, _| {})?;
    let mut tasks = Vec::new();
    'files: for path in &source.files {
        for row in data::open(path)? {
            if tasks.len() >= most.unwrap_or(TASKS) {
                break 'files;
            }
            let RawRow { location, columns } = row?;
            tasks.push(task(&columns, has_answers).map_err(|message| location.error(message))?);
        }
    }
    if tasks.is_empty() { Err(Error::input(format!("`{file}` has no rows"))) } else { Ok(tasks) }
}

/// Returns a text, or the messages of a conversation as text.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(messages) => {
            let line_of = |message: &Value| {
                let role = message.get("role")?.as_str()?;
                let content = message.get("content").and_then(Value::as_str);
                let calls: Vec<String> = calls(message);
                let parts: Vec<&str> = content.into_iter().chain(calls.iter().map(String::as_str)).collect();
                let content = (!parts.is_empty()).then(|| parts.join("\n"))?;
                Some(if messages.len() == 1 { content } else { format!("{role}: {content}") })
            };
            let lines: Option<Vec<String>> = messages.iter().map(line_of).collect();
            lines.filter(|lines| !lines.is_empty()).map(|lines| lines.join("\n\n"))
        }
        _ => None,
    }
}

/// Returns the tool calls in a message as lines of text.
fn calls(message: &Value) -> Vec<String> {
    let line = |call: &Value| {
        let function = call.get("function").unwrap_or(call);
        let arguments = match function.get("arguments") {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        Some(format!("Call of {}: {arguments}", function.get("name")?.as_str()?))
    };
    let calls = message.get("tool_calls").and_then(Value::as_array);
    calls.into_iter().flatten().filter_map(line).collect()
}

/// Returns the question that both answers of a pair begin with, and the answers without it. `None` for a row that is not a pair.
fn shared_question(columns: &Map<String, Value>) -> Result<Option<(Value, [Value; 2])>, String> {
    let content = |name: &str| match columns.get(name) {
        Some(Value::String(text)) => Some(Content::Text(text.clone())),
        Some(messages @ Value::Array(_)) => serde_json::from_value(messages.clone()).ok().map(Content::Messages),
        _ => None,
    };
    let (Some(chosen), Some(rejected)) = (content("chosen"), content("rejected")) else { return Ok(None) };
    let (question, chosen, rejected) = data::split_shared_prompt(&chosen, &rejected, ImplicitPrompt::default())?;
    let value_of = |content: Content| match content {
        Content::Text(text) => Some(Value::String(text)),
        Content::Messages(messages) => serde_json::to_value(messages).ok().filter(|messages| text(messages).is_some()),
    };
    Ok(value_of(question)
        .zip(value_of(chosen).zip(value_of(rejected)))
        .map(|(question, (one, other))| (question, [one, other])))
}

/// Returns the answers of a row. `pair` are those that share a question.
fn answers_of(columns: &Map<String, Value>, pair: Option<&[Value; 2]>) -> Vec<Value> {
    let known = |name: &str| columns.get(name).filter(|answer| text(answer).is_some()).cloned();
    let mut answers: Vec<Value> = (1..=ANSWERS).map_while(|i| known(&format!("prediction {i}"))).collect();
    for name in ["completions", "answers"] {
        if let Some(Value::Array(list)) = columns.get(name).filter(|_| answers.is_empty()) {
            answers = list.iter().filter(|answer| text(answer).is_some()).cloned().collect();
        }
    }
    if let Some(pair) = pair.filter(|_| answers.is_empty()) {
        answers = pair.to_vec();
    }
    if answers.is_empty() {
        let names = ["completion", "machine_completion", "chosen", "rejected", "choice_A", "choice_B"];
        answers = names.into_iter().filter_map(known).collect();
    }
    answers
}

fn task(columns: &Map<String, Value>, has_answers: bool) -> Result<Task, String> {
    let first = |names: &[&str]| names.iter().find_map(|name| columns.get(*name).and_then(text));
    let mut questions = ["question", "prompt", "concept"].into_iter().filter_map(|name| columns.get(name));
    let own = questions.find(|question| text(question).is_some());
    let shared = if own.is_none() { shared_question(columns)? } else { None };
    let Some(prompt) = own.or(shared.as_ref().map(|(question, _)| question)).cloned() else {
        let message = "the row has neither `question` nor `prompt`, nor `chosen` and `rejected` that begin with one";
        return Err(message.into());
    };
    // The parts of a transcript are shown without the space around them.
    let shown = |value: &Value| text(value).map(|text| if shared.is_some() { text.trim().to_owned() } else { text });
    let question = shown(&prompt).unwrap_or_default();
    let given = if has_answers { answers_of(columns, shared.as_ref().map(|(_, pair)| pair)) } else { Vec::new() };
    let answers: Vec<String> = if has_answers { given.iter().filter_map(shown).collect() } else { vec![String::new()] };
    if answers.is_empty() || answers.len() > ANSWERS {
        return Err(format!("the row has {} answers, but 1 to {ANSWERS} are needed", answers.len()));
    }
    let models: Vec<String> = match columns.get("models") {
        Some(Value::Array(models)) => models.iter().filter_map(|model| model.as_str().map(str::to_owned)).collect(),
        _ => ["model", "algorithm", "chosen_model", "rejected_model", "choice_A_id", "choice_B_id"]
            .iter()
            .filter_map(|name| columns.get(*name).and_then(text))
            .collect(),
    };
    let passages = match columns.get("passages") {
        Some(Value::Array(list)) => {
            list.iter().map(passage).collect::<Option<_>>().ok_or("a passage is not a list of sentences")?
        }
        _ => Vec::new(),
    };
    let models = if models.len() == answers.len() { models } else { Vec::new() };
    let (expected, attention) = expected_of(columns)?;
    let reference = first(&["gold", "reference"]).unwrap_or_default();
    let original = Original::of(prompt, &given, (&question, &answers));
    Ok(Task { question, passages, reference, answers, models, expected, attention, original })
}

/// Returns the expected parts of a task, and whether it only checks attention. Both may be encoded as text, which is blank in cells of a
/// table without a value.
pub(super) fn expected_of(columns: &Map<String, Value>) -> Result<(Option<Expected>, bool), String> {
    let is_given = |value: &&Value| !value.is_null() && value.as_str().is_none_or(|text| !text.trim().is_empty());
    let given = |name: &str| columns.get(name).filter(is_given);
    let expected: Option<serde_json::Result<Expected>> = given("expected").map(|expected| match expected {
        Value::String(text) => serde_json::from_str(text),
        other => serde_json::from_value(other.clone()),
    });
    let expected = expected
        .transpose()
        .map_err(|error| format!("`expected` is not an annotation with `ranks`, `questions` or `no_error`: {error}"))?;
    let attention = match given("attention") {
        None => Some(false),
        Some(Value::String(text)) => text.parse().ok(),
        Some(other) => other.as_bool(),
    };
    let attention = attention.ok_or("`attention` is neither true nor false")?;
    if attention && expected.is_none() {
        return Err("`attention` is set, but `expected` has no correct answer".into());
    }
    Ok((expected, attention))
}

/// Reads a list whose first sentence is the title.
fn passage(value: &Value) -> Option<Passage> {
    let sentences: Option<Vec<String>> = value.as_array()?.iter().map(|s| s.as_str().map(str::to_owned)).collect();
    let mut sentences = sentences?.into_iter();
    Some(Passage { title: sentences.next()?, sentences: sentences.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(row: &Value) -> Result<Task, String> {
        task(row.as_object().expect("an object"), true)
    }

    /// Returns the prompt and the answers of a training row.
    fn trained(task: &Task) -> (Value, Vec<Value>) {
        (task.prompt(), (0..task.answers.len()).map(|at| task.answer(at)).collect())
    }

    #[test]
    fn training_rows_keep_the_form_of_the_data() {
        let turn = |role: &str, content: &str| json!({ "role": role, "content": content });
        let said = |content: &str| json!([turn("assistant", content)]);
        let prompt = json!([turn("system", "Be kind."), turn("user", "Tea?")]);
        let conversation = json!({ "prompt": prompt, "chosen": said("Yes."), "rejected": said("No.") });
        let found = of(&conversation).expect("a task");
        assert_eq!((found.question.as_str(), found.answers[0].as_str()), ("system: Be kind.\n\nuser: Tea?", "Yes."));
        assert_eq!(trained(&found), (prompt.clone(), vec![said("Yes."), said("No.")]));
        // The database keeps it.
        let kept: Task = serde_json::from_value(json!(found)).expect("a task");
        assert_eq!(kept, found);
        // Texts after messages become messages. So do the answers of models.
        let texts = of(&json!({ "prompt": prompt, "completions": ["Yes.", "No."] })).expect("a task");
        assert_eq!(trained(&texts), (prompt.clone(), vec![said("Yes."), said("No.")]));
        let mut asked = task(conversation.as_object().expect("an object"), false).expect("a task");
        asked.answers = vec!["Perhaps.".into()];
        assert_eq!(trained(&asked), (prompt, vec![said("Perhaps.")]));
        // A transcript keeps its space.
        let hh = |answer: &str| format!("\n\nHuman: Tea?\n\nAssistant:{answer}");
        let found = of(&json!({ "chosen": hh(" Yes."), "rejected": hh(" No.") })).expect("a task");
        assert_eq!(trained(&found), (json!(hh("")), vec![json!(" Yes."), json!(" No.")]));
        // What is shown in full is kept once. Messages cannot follow a text.
        for answer in [json!(" a"), said("a")] {
            let found = of(&json!({ "prompt": " P", "completion": answer })).expect("a task");
            assert_eq!(found.original, None);
            assert_eq!(trained(&found), (json!(" P"), vec![json!(found.answers[0])]));
        }
    }

    #[test]
    fn rows_of_several_kinds_are_tasks() {
        let feedback = json!({
            "question": "Q?", "passages": [["Title", "One.", "Two."]], "gold": "G",
            "prediction 1": "a", "prediction 2": "b", "prediction 3": "c", "prediction 4": "d",
        });
        let found = of(&feedback).expect("a task");
        assert_eq!((found.answers.len(), found.reference.as_str()), (4, "G"));
        assert_eq!(found.passages[0].sentences, ["One.", "Two."]);
        let pair = json!({ "prompt": [{ "role": "user", "content": "Hi" }], "chosen": "a", "rejected": "b" });
        let found = of(&pair).expect("a task");
        assert_eq!((found.question.as_str(), found.answers), ("Hi", vec!["a".to_owned(), "b".into()]));
        let sampled = json!({ "prompt": "P", "completions": ["a", "b"], "models": ["x", "y"] });
        assert_eq!(of(&sampled).expect("a task").models, ["x", "y"]);
        assert_eq!(of(&json!({ "prompt": "P", "completion": "a" })).expect("a task").answers, ["a"]);
        let hh = |answer: &str| format!("\n\nHuman: Tea?\n\nAssistant:{answer}");
        let found = of(&json!({ "chosen": hh(" Yes."), "rejected": hh(" No.") })).expect("a task");
        assert_eq!(
            (found.question.as_str(), found.answers),
            ("Human: Tea?\n\nAssistant:", vec!["Yes.".to_owned(), "No.".into()])
        );
        let turn = |role: &str, content: &str| json!({ "role": role, "content": content });
        let conversation = |answer: &str| json!([turn("user", "Tea?"), turn("assistant", answer)]);
        let found = of(&json!({ "chosen": conversation("Yes."), "rejected": conversation("No.") })).expect("a task");
        assert_eq!((found.question.as_str(), found.answers), ("Tea?", vec!["Yes.".to_owned(), "No.".into()]));
        let study = json!({ "prompt": "P", "machine_completion": "a", "algorithm": "ppo" });
        let found = of(&study).expect("a task");
        assert_eq!((found.answers, found.models), (vec!["a".to_owned()], vec!["ppo".to_owned()]));
        let pairwise =
            json!({ "concept": "tea cup", "choice_A": "a", "choice_B": "b", "choice_A_id": "x", "choice_B_id": "y" });
        let found = of(&pairwise).expect("a task");
        assert_eq!((found.question.as_str(), found.answers.len(), found.models.len()), ("tea cup", 2, 2));
        for wrong in [
            json!({ "text": "a" }),
            json!({ "chosen": "a", "rejected": 3 }),
            json!({ "prompt": "P" }),
            json!({ "prompt": "P", "completion": "a", "passages": [3] }),
            json!({ "prompt": "P", "completion": "a", "expected": "yes" }),
            json!({ "prompt": "P", "completion": "a", "expected": { "no_error": true }, "attention": "often" }),
            json!({ "prompt": "P", "completion": "a", "attention": "true" }),
        ] {
            assert!(of(&wrong).is_err(), "{wrong}");
        }
        // The cells of a table are texts.
        let cells =
            json!({ "prompt": "P", "completion": "a", "expected": r#"{"no_error": true}"#, "attention": "true" });
        let found = of(&cells).expect("a task");
        assert_eq!(found.expected, Some(Expected { no_error: Some(true), ..Expected::default() }));
        assert!(found.attention);
        let blank = json!({ "prompt": "P", "completion": "a", "expected": "", "attention": "" });
        assert_eq!(of(&blank).expect("a task").expected, None);
    }
}
