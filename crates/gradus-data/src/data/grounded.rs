//! Questions with the passages that answer them: QA-Feedback's splits (Wu et al. 2023, <https://arxiv.org/abs/2306.01693>).
//!
//! A row has `question`, `passages` (each with `wikipage` and `content`), `answer` (a list of references) and `text`, the prompt.
//! The policy reads `text`. Reward models read the column `reward_prompt`: the same words without bars between the passages, as in
//! their training data.

use serde_json::{Map, Value};

use super::message::kind_name;

/// A passage that helps to answer a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage<'a> {
    /// Title of its page.
    pub title: &'a str,
    /// Text of the passage.
    pub content: &'a str,
}

/// Formats the prompt of a policy: `question: … context: wikipage: … text: … | wikipage: … text: …`.
pub fn policy_prompt(question: &str, passages: &[Passage<'_>]) -> String {
    let of_passage = |passage: &Passage<'_>| format!("wikipage: {} text: {}", passage.title, passage.content);
    let passages: Vec<String> = passages.iter().map(of_passage).collect();
    format!("question: {question} context: {}", passages.join(" | "))
}

/// Formats the prompt of reward models: the same words joined by single spaces, without bars between passages. `context:` is left
/// out if there are no passages.
pub fn reward_prompt(question: &str, passages: &[Passage<'_>]) -> String {
    let mut words = vec!["question:"];
    words.extend(question.split_whitespace());
    for (i, passage) in passages.iter().enumerate() {
        words.extend((i == 0).then_some("context:"));
        words.push("wikipage:");
        words.extend(passage.title.split_whitespace());
        words.push("text:");
        words.extend(passage.content.split_whitespace());
    }
    words.join(" ")
}

/// Prompt of a row of a QA split, and its first reference.
pub(super) struct Grounded {
    pub prompt: String,
    pub answer: String,
}

/// Reads a row. Adds the columns that rewards read: `references` (all answers) and `reward_prompt`.
pub(super) fn read(columns: &mut Map<String, Value>) -> Result<Grounded, String> {
    let question = string(columns, "question")?.to_owned();
    let passages = passages(columns)?;
    let answers = match columns.get("answer") {
        Some(Value::Array(list)) if !list.is_empty() => {
            let answer = |(i, value): (usize, &Value)| match value {
                Value::String(text) => Ok(text.clone()),
                other => Err(format!("`answer[{i}]` is {}, expected a string", kind_name(other))),
            };
            list.iter().enumerate().map(answer).collect::<Result<Vec<_>, _>>()?
        }
        Some(Value::Array(_)) => return Err("`answer` is empty, expected one reference or more".into()),
        Some(Value::String(text)) => vec![text.clone()],
        other => {
            return Err(format!("`answer` is {}, expected a list of strings", other.map_or("missing", kind_name)));
        }
    };
    let for_rewards = reward_prompt(&question, &passages);
    let made = policy_prompt(&question, &passages);
    let prompt = match columns.get("text") {
        None => made,
        Some(Value::String(text)) if *text == made => made,
        Some(Value::String(text)) => {
            let same = text.chars().zip(made.chars()).take_while(|(a, b)| a == b).count();
            let at = |whole: &str| whole.chars().skip(same).take(20).collect::<String>();
            return Err(format!(
                "`text` is not the prompt of its question and passages: at character {same} it has `{}` instead of `{}`",
                at(text),
                at(&made)
            ));
        }
        Some(other) => return Err(format!("`text` is {}, expected a string", kind_name(other))),
    };
    columns.shift_remove("text");
    columns.insert("reward_prompt".into(), for_rewards.into());
    columns.entry("references").or_insert_with(|| answers.clone().into());
    let answer = answers.into_iter().next().expect("there is one");
    Ok(Grounded { prompt, answer })
}

/// Returns whether rows with these columns have this format.
pub(super) fn fits(columns: &Map<String, Value>) -> bool {
    let of_objects = |list: &Value| list.as_array().is_some_and(|list| list.iter().all(Value::is_object));
    columns.contains_key("question")
        && columns.contains_key("answer")
        && columns.get("passages").is_some_and(of_objects)
}

fn string<'a>(columns: &'a Map<String, Value>, name: &str) -> Result<&'a str, String> {
    match columns.get(name) {
        Some(Value::String(text)) => Ok(text),
        other => Err(format!("`{name}` is {}, expected a string", other.map_or("missing", kind_name))),
    }
}

fn passages(columns: &Map<String, Value>) -> Result<Vec<Passage<'_>>, String> {
    let Some(Value::Array(list)) = columns.get("passages") else { return Err("`passages` is not a list".into()) };
    let text = |i: usize, name: &str| {
        let found = list[i].get(name).and_then(Value::as_str);
        found.ok_or_else(|| format!("`passages[{i}].{name}` is missing or not a string"))
    };
    (0..list.len()).map(|i| Ok(Passage { title: text(i, "wikipage")?, content: text(i, "content")? })).collect()
}
