//! Submissions of FineGrainedRLHF's two pages (its `interface_html`): a task, which is JSON within JSON, and a `response`.
//!
//! The annotation page marks spans and missing information and corrects the first answer. The comparison page ranks pairs of answers. All
//! rows of a task become one task, whichever page they come from. Offsets count UTF-16 units, as in JavaScript.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Imported, span};
use crate::annotate::answer::{Answer, Marked, Missing};
use crate::annotate::rank::{Rank, pair_name, pairs};
use crate::annotate::task::{Passage, Task};

/// Names of columns; those of Mechanical Turk's files come last.
const TASK: [&str; 3] = ["prompt", "question", "Input.prompt"];
const RESPONSE: [&str; 2] = ["response", "Answer.response"];
const PERSON: [&str; 4] = ["annotator", "worker", "worker_id", "WorkerId"];
const SECONDS: [&str; 2] = ["seconds", "WorkTimeInSeconds"];
const FEEDBACK: [&str; 2] = ["feedback", "Answer.feedback"];
/// Author of annotations without a name.
const SOMEBODY: &str = "somebody";
/// Number of answers on the comparison page.
const ANSWERS: usize = 4;

/// Reads a row of the pages' output.
///
/// # Errors
/// A description of the problem.
pub fn read(row: &Map<String, Value>) -> Result<Imported, String> {
    let column = |names: &[&str]| names.iter().find_map(|name| row.get(*name)).filter(|value| !value.is_null());
    let given = column(&TASK).ok_or("the row has no `prompt` or `question`, the JSON that the page showed")?;
    let mut shown = object("the task", given)?;
    // The page's hidden element has an id in addition to the task.
    if let (Some(inner), false) = (shown.get("question"), shown.contains_key("predicted answer")) {
        shown = object("`question`", inner)?;
    }
    let task = task(&shown)?;
    let response = column(&RESPONSE).ok_or("the row has no `response`")?;
    let mut answer = response_of(&object("`response`", response)?, &task)?;
    if let (true, Some(Value::String(text))) = (answer.feedback.is_empty(), column(&FEEDBACK)) {
        answer.feedback.clone_from(text);
    }
    let person = match column(&PERSON) {
        Some(Value::String(name)) if !name.trim().is_empty() => name.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => SOMEBODY.into(),
    };
    let seconds = column(&SECONDS).and_then(|value| value.as_f64().or_else(|| value.as_str()?.trim().parse().ok()));
    let seconds = seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0).unwrap_or(0.0);
    Ok(Imported { task, annotations: vec![(person, answer, seconds)] })
}

/// Merges annotations of the same task. A person may have marked on one page and compared on the other.
///
/// # Errors
/// A person submitted the same page twice.
pub fn join(known: &mut Imported, more: Imported) -> Result<(), String> {
    for (person, answer, seconds) in more.annotations {
        let Some((_, before, before_seconds)) = known.annotations.iter_mut().find(|(name, ..)| *name == person) else {
            known.annotations.push((person, answer, seconds));
            continue;
        };
        if before.ranks.is_empty() == answer.ranks.is_empty() {
            let page = if answer.ranks.is_empty() { "annotation" } else { "comparison" };
            return Err(format!("`{person}` has submitted the {page} page of this task before"));
        }
        let (marked, compared) = match before.ranks.is_empty() {
            true => (before.clone(), answer),
            false => (answer, before.clone()),
        };
        let feedback: Vec<&str> =
            [&*marked.feedback, &*compared.feedback].into_iter().filter(|text| !text.is_empty()).collect();
        let feedback = feedback.join("\n");
        *before = Answer { ranks: compared.ranks, feedback, ..marked };
        *before_seconds += seconds;
    }
    Ok(())
}

/// Returns an object, which may be encoded as text.
fn object(name: &str, value: &Value) -> Result<Map<String, Value>, String> {
    let parsed = match value {
        Value::String(text) => {
            serde_json::from_str(text).map_err(|error| format!("{name} is not valid JSON: {error}"))?
        }
        other => other.clone(),
    };
    match parsed {
        Value::Object(object) => Ok(object),
        _ => Err(format!("{name} is not an object")),
    }
}

fn task(shown: &Map<String, Value>) -> Result<Task, String> {
    let text = |name: &str| shown.get(name).and_then(Value::as_str).map(str::to_owned);
    let first = text("predicted answer").ok_or("the task has no `predicted answer`")?;
    // The page's data has a fifth answer, which it does not show.
    let others = (2..=ANSWERS).map_while(|i| text(&format!("predicted answer {i}")));
    let answers: Vec<String> = std::iter::once(first).chain(others).collect();
    let passage = |(i, passage): (usize, &Value)| {
        let title = passage["wikipage"].as_str();
        let content = passage["content"].as_array();
        let sentences = content.and_then(|all| all.iter().map(|text| text.as_str().map(str::to_owned)).collect());
        let both = title.map(str::to_owned).zip(sentences);
        both.map(|(title, sentences)| Passage { title, sentences })
            .ok_or_else(|| format!("passage {} has no `wikipage` or no list of sentences as `content`", i + 1))
    };
    let passages = shown.get("passages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    Ok(Task {
        question: text("question").ok_or("the task has no `question`")?,
        passages: passages.iter().enumerate().map(passage).collect::<Result<_, _>>()?,
        reference: text("gold answer").unwrap_or_default(),
        answers,
        models: Vec::new(),
        expected: None,
        attention: false,
        original: None,
    })
}

fn response_of(response: &Map<String, Value>, task: &Task) -> Result<Answer, String> {
    let annotations = response.get("annotations").and_then(Value::as_array);
    let [annotation] = annotations.map_or(&[][..], Vec::as_slice) else {
        return Err(format!("`annotations` has {} entries, expected one", annotations.map_or(0, Vec::len)));
    };
    let feedback = response.get("feedback").and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Some(ranks) = annotation.get("ranks") {
        return Ok(Answer { ranks: ranks_of(ranks, task)?, feedback, ..Answer::default() });
    }
    let Some(errors) = annotation.get("error") else {
        return Err("the annotation has neither `error` nor `ranks`".into());
    };
    let mut answer = Answer { feedback, ..Answer::default() };
    for (name, side) in errors.as_object().ok_or("`error` is not an object")? {
        let is_missing = name.starts_with("missing-info");
        if !is_missing && !name.starts_with("situation") {
            return Err(format!("`error` has `{name}`, expected `situation-0` and `missing-info-0`"));
        }
        let spans = side.get("spans").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for found in spans {
            let found = object("a span", found)?;
            let kind = found.get("error type").and_then(Value::as_str).ok_or("a span has no `error type`")?;
            let explanation = found.get("explanation").and_then(Value::as_str).unwrap_or_default();
            if is_missing {
                let (passage, sentences) = place(kind, explanation)?;
                answer.missing.push(Missing { kind: kind.to_owned(), passage, sentences });
            } else {
                answer.spans.push(marked(&task.answers[0], kind, explanation, &found)?);
            }
        }
    }
    answer.no_error = answer.spans.is_empty() && answer.missing.is_empty();
    let correction = annotation.get("corrected prediction").map(|given| match given {
        Value::Array(all) => all.first().cloned().unwrap_or_default(),
        one => one.clone(),
    });
    if let Some(Value::String(text)) = correction {
        // The page allows a blank correction only if no passage helps.
        answer.no_passage_helps = text.trim().is_empty();
        answer.correction = Some(text);
    }
    Ok(answer)
}

fn ranks_of(ranks: &Value, task: &Task) -> Result<BTreeMap<String, Rank>, String> {
    let list = ranks.as_array().and_then(|outer| match outer.as_slice() {
        [Value::Array(inner)] => Some(inner),
        _ => None,
    });
    let list = list.ok_or("`ranks` is not a list within a list")?;
    let pairs = pairs(task.answers.len());
    if list.len() != pairs.len() {
        let answers = task.answers.len();
        return Err(format!("`ranks` has {} numbers, but {answers} answers make {} pairs", list.len(), pairs.len()));
    }
    let rank = |value: &Value| match value.as_i64().or_else(|| value.as_str()?.parse().ok()) {
        Some(0) => Ok(Rank::Tie),
        Some(1) => Ok(Rank::First),
        Some(2) => Ok(Rank::Second),
        _ => Err(format!("`ranks` has {value}, expected 1 (the first is better), 2 (the second) or 0 (neither)")),
    };
    pairs.into_iter().map(pair_name).zip(list).map(|(name, value)| Ok((name, rank(value)?))).collect()
}

/// Reads a span of `text`, whose offsets count UTF-16 units.
fn marked(text: &str, kind: &str, explanation: &str, found: &Map<String, Value>) -> Result<Marked, String> {
    let at = |name: &str| {
        let units = found.get(name).and_then(Value::as_u64).ok_or_else(|| format!("a span has no `{name}`"))?;
        let mut before = 0;
        let characters = text.chars().take_while(|c| {
            let is_before = before < units;
            before += c.len_utf16() as u64;
            is_before
        });
        let characters = characters.count();
        if before < units {
            return Err(format!("a span has `{name}` {units}, but the answer ends at {before}"));
        }
        Ok(characters)
    };
    let place_of = span(text, kind, (at("start")?, at("end")?), None)?;
    // The explanation is the repeated text, or the contradicting passage.
    if explanation.trim_start().starts_with('{')
        && let Ok((passage, sentences)) = place(kind, explanation)
    {
        return Ok(Marked { passage, sentences, ..place_of });
    }
    Ok(Marked { repeats: explanation.to_owned(), ..place_of })
}

/// Reads a passage and its sentences from an explanation.
fn place(kind: &str, explanation: &str) -> Result<(usize, Vec<usize>), String> {
    let found = object(&format!("the explanation of {kind}"), &Value::String(explanation.to_owned()))?;
    let number = |value: &Value| {
        let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
        number.map(|number| number as usize).ok_or_else(|| format!("{kind}: {value} is not a number from 0"))
    };
    let key = |name: &str| found.get(name).ok_or_else(|| format!("{kind} has no `{name}`"));
    let sentences = match key("sentence_id")? {
        Value::Array(all) => all.iter().map(number).collect::<Result<_, _>>()?,
        one => vec![number(one)?],
    };
    Ok((number(key("passage_id")?)?, sentences))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::annotate::labels::LabelSet;
    use crate::annotate::shown::Shown;

    fn shown() -> Value {
        let passages = json!([{ "wikipage": "Tea", "content": ["Tea\n\nIt is hot.", "It is wet."] }]);
        let task = json!({
            "question": "What is tea?", "passages": passages, "predicted answer": "\u{1F375} Tea is cold. Tea is cold.",
            "predicted answer 2": "b", "predicted answer 3": "c", "predicted answer 4": "d", "predicted answer 5": "d",
            "gold answer": "A hot drink.",
        });
        json!(json!({ "id": "q1", "question": task.to_string() }).to_string())
    }

    fn row(person: &str, response: &Value) -> Map<String, Value> {
        let row = json!({ "prompt": shown(), "response": response.to_string(), "WorkerId": person });
        row.as_object().expect("an object").clone()
    }

    fn spans() -> Value {
        let span = |kind: &str, explanation: &str, start: usize, end: usize| {
            json!(json!({ "error type": kind, "explanation": explanation, "start": start, "end": end }).to_string())
        };
        let place = |sentences: Value| json!({ "passage_id": 1, "sentence_id": sentences }).to_string();
        json!({ "annotations": [{
            "error": {
                "situation-0": {
                    "spans": [
                        // The first character has two UTF-16 units.
                        span("Wrong-Grounding", &place(json!([1])), 3, 15),
                        span("Redundant", "Tea is cold.", 16, 28),
                    ],
                    "text": "\u{1F375} Tea is cold. Tea is cold.",
                },
                "missing-info-0": { "spans": [span("Missing-Answer", &place(json!([1, 2])), 0, 0)] },
            },
            "corrected prediction": ["Tea is hot."],
        }], "feedback": "easy" })
    }

    #[test]
    fn the_annotation_page_is_read() {
        let Imported { task, annotations } = read(&row("ada", &spans())).expect("read");
        assert_eq!((task.question.as_str(), task.answers.len()), ("What is tea?", 4));
        assert_eq!((task.reference.as_str(), task.passages[0].sentences.len()), ("A hot drink.", 2));
        let (person, answer, _) = &annotations[0];
        assert_eq!((person.as_str(), answer.feedback.as_str(), answer.no_error), ("ada", "easy", false));
        let expected = [
            Marked {
                kind: "Wrong-Grounding".into(),
                start: 2,
                end: 14,
                passage: 1,
                sentences: vec![1],
                ..Marked::default()
            },
            Marked {
                kind: "Redundant".into(),
                start: 15,
                end: 27,
                repeats: "Tea is cold.".into(),
                ..Marked::default()
            },
        ];
        assert_eq!(answer.spans, expected);
        assert_eq!(answer.missing, [Missing { kind: "Missing-Answer".into(), passage: 1, sentences: vec![1, 2] }]);
        assert_eq!(answer.correction.as_deref(), Some("Tea is hot."));
        let labels = LabelSet::open("fine-grained").expect("a label set");
        assert_eq!(answer.problems(&labels, &task, &Shown::as_given(task.answers.len())), [""; 0]);

        let nothing = json!({ "annotations": [{ "error": { "situation-0": {}, "missing-info-0": {} },
            "corrected prediction": [task.answers[0]] }] });
        let Imported { annotations, .. } = read(&row("ada", &nothing)).expect("read");
        assert!(
            annotations[0].1.no_error
                && annotations[0].1.problems(&labels, &task, &Shown::as_given(task.answers.len())).is_empty()
        );
    }

    #[test]
    fn the_comparison_page_is_read_and_joins_the_other() {
        let ranks = |numbers: [u8; 6]| json!({ "annotations": [{ "ranks": [numbers] }] });
        let compared = read(&row("ada", &ranks([1, 1, 1, 0, 2, 2]))).expect("read");
        let labels = LabelSet::open("comparison").expect("a label set");
        assert_eq!(compared.annotations[0].1.problems(&labels, &compared.task, &Shown::as_given(4)), [""; 0]);
        let contradicts = read(&row("ada", &ranks([1, 2, 0, 1, 0, 0]))).expect("read");
        let problems = contradicts.annotations[0].1.problems(&labels, &contradicts.task, &Shown::as_given(4));
        assert!(
            problems.iter().any(|problem| problem == "These choices contradict each other: A and B, A and C, B and C."),
            "{problems:?}"
        );

        let mut both = read(&row("ada", &spans())).expect("read");
        assert_eq!(both.task, compared.task);
        join(&mut both, compared.clone()).expect("joined");
        join(&mut both, read(&row("bob", &spans())).expect("read")).expect("another person");
        assert_eq!(both.annotations.len(), 2);
        let answer = &both.annotations[0].1;
        assert_eq!((answer.spans.len(), answer.ranks.len(), answer.feedback.as_str()), (2, 6, "easy"));
        assert_eq!(answer.ranks["2v4"], Rank::Second);
        let twice = join(&mut compared.clone(), compared).expect_err("twice");
        assert_eq!(twice, "`ada` has submitted the comparison page of this task before");
    }

    #[test]
    fn what_is_no_payload_is_told() {
        let error_of = |response: Value| read(&row("ada", &response)).expect_err("refused");
        let with = |annotation: Value| json!({ "annotations": [annotation] });
        for (response, expected) in [
            (json!({}), "`annotations` has 0 entries, expected one"),
            (with(json!({})), "the annotation has neither `error` nor `ranks`"),
            (with(json!({ "ranks": [[1, 2]] })), "`ranks` has 2 numbers, but 4 answers make 6 pairs"),
            (with(json!({ "ranks": [1, 2] })), "`ranks` is not a list within a list"),
            (with(json!({ "ranks": [[1, 2, 3, 0, 0, 0]] })), "`ranks` has 3, expected 1"),
            (with(json!({ "error": { "other": {} } })), "`error` has `other`"),
            (with(json!({ "error": { "situation-0": { "spans": ["{"] } } })), "a span is not valid JSON"),
            (
                with(
                    json!({ "error": { "situation-0": { "spans": [{ "error type": "Irrelevant", "start": 0, "end": 99 }] } } }),
                ),
                "a span has `end` 99, but the answer ends at 28",
            ),
        ] {
            let found = error_of(response);
            assert!(found.contains(expected), "{found}");
        }
        let mut bare = row("ada", &spans());
        bare.shift_remove("prompt");
        assert!(read(&bare).expect_err("refused").contains("the row has no `prompt` or `question`"));
    }
}
