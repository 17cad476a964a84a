//! What people said, as rows that train and as rows that tell all.

use gradus::Result;
use serde_json::{Map, Value, json};

use super::answer::{Answer, Rank, pair_name, pairs};
use super::labels::{Asks, LabelSet};
use super::task::Task;
use crate::store::Store;
use crate::store::projects::{Annotation, Project, State};

/// A kind of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// FineGrainedRLHF's feedback files: spans, missing information, correction, preferences; of each annotation one row.
    Feedback,
    /// `prompt`, `chosen`, `rejected`: of each preferred answer one row.
    Preference,
    /// Everything that was said, by whom, in what time.
    Raw,
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Feedback, Self::Preference, Self::Raw];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Feedback => "feedback",
            Self::Preference => "preference",
            Self::Raw => "raw",
        }
    }

    /// The form of a word.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.name() == name)
    }
}

/// The rows of a project: of what was handed in, and with [`Form::Raw`] also of what was skipped or begun.
///
/// # Errors
/// When the file cannot be read.
pub fn rows(store: &Store, project: &Project, form: Form) -> Result<Vec<Map<String, Value>>> {
    let tasks = store.projects().tasks(project.id)?;
    let mut rows = Vec::new();
    for said in store.projects().annotations(project.id)? {
        let task = &tasks[said.task - 1];
        match form {
            Form::Raw => rows.push(raw(&said, task)),
            _ if said.state != State::Done => {}
            Form::Feedback => rows.push(feedback(&said.answer, &project.labels, task)),
            Form::Preference => rows.extend(preferences(&said.answer, task)),
        }
    }
    Ok(rows)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        other => Map::from_iter([("value".to_owned(), other)]),
    }
}

fn raw(said: &Annotation, task: &Task) -> Map<String, Value> {
    object(json!({
        "task": said.task, "person": said.person, "state": said.state, "reason": said.reason, "seconds": said.seconds,
        "question": task.question, "answers": task.answers, "models": task.models, "answer": said.answer,
    }))
}

fn preferences(answer: &Answer, task: &Task) -> Vec<Map<String, Value>> {
    let row = |(one, other): (usize, usize)| {
        let (chosen, rejected) = match answer.ranks.get(&pair_name((one, other)))? {
            Rank::First => (one, other),
            Rank::Second => (other, one),
            Rank::Tie => return None,
        };
        let mut row = object(json!({
            "prompt": task.question, "chosen": task.answers[chosen], "rejected": task.answers[rejected],
        }));
        if let (Some(chosen), Some(rejected)) = (task.models.get(chosen), task.models.get(rejected)) {
            row.extend([("chosen_model".to_owned(), json!(chosen)), ("rejected_model".to_owned(), json!(rejected))]);
        }
        Some(row)
    };
    pairs(task.answers.len()).into_iter().filter_map(row).collect()
}

fn feedback(answer: &Answer, labels: &LabelSet, task: &Task) -> Map<String, Value> {
    let asks = |name: &str| labels.spans.iter().find(|kind| kind.name == name).map_or(Asks::Nothing, |kind| kind.asks);
    let errors = answer.spans.iter().map(|span| {
        let explanation = match asks(&span.kind) {
            Asks::Nothing => String::new(),
            Asks::EarlierText => span.repeats.clone(),
            Asks::Sentences => json!({ "passage_id": span.passage, "sentence_id": span.sentences }).to_string(),
        };
        json!({ "error type": span.kind, "explanation": explanation, "start": span.start, "end": span.end })
    });
    let missing = answer.missing.iter().map(|missing| {
        json!({ "error type": missing.kind, "passage_id": missing.passage, "sentence_id": missing.sentences })
    });
    let passages = task.passages.iter().map(|passage| {
        std::iter::once(&passage.title)
            .chain(&passage.sentences)
            .map(String::as_str)
            .map(Value::from)
            .collect::<Value>()
    });
    let mut row = object(json!({
        "question": task.question, "passages": passages.collect::<Value>(), "gold": task.reference,
    }));
    for (i, text) in task.answers.iter().enumerate() {
        row.insert(format!("prediction {}", i + 1), json!(text));
    }
    if labels.is_about_one() {
        let correction = answer.correction.as_ref().unwrap_or(&task.answers[0]);
        let feedback = json!({
            "errors": errors.collect::<Value>(), "missing-info": missing.collect::<Value>(), "corrected-prediction": correction,
        });
        row.insert("feedback".into(), feedback);
    }
    if labels.comparison {
        let number = |pair| answer.ranks.get(&pair_name(pair)).map(|rank| rank.number());
        row.insert(
            "preference".into(),
            pairs(task.answers.len()).into_iter().map(|pair| json!(number(pair))).collect(),
        );
    }
    for (name, value) in &answer.questions {
        row.insert(name.clone(), json!(value));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::super::answer::{Marked, Missing};
    use super::super::task::Passage;
    use super::*;

    #[test]
    fn what_was_said_has_the_form_of_the_feedback_files() {
        let task = Task {
            question: "Q?".into(),
            passages: vec![Passage { title: "T".into(), sentences: vec!["One.".into()] }],
            reference: "G".into(),
            answers: vec!["a b a".into(), "c".into()],
            models: vec!["x".into(), "y".into()],
        };
        let marked = |kind: &str, start, end| Marked { kind: kind.into(), start, end, ..Marked::default() };
        let answer = Answer {
            spans: vec![
                Marked { repeats: "a".into(), ..marked("Redundant", 4, 5) },
                Marked { passage: 1, sentences: vec![0, 1], ..marked("Wrong-Grounding", 0, 1) },
            ],
            missing: vec![Missing { kind: "Missing-Answer".into(), passage: 1, sentences: vec![1] }],
            correction: Some("b".into()),
            ranks: [("1v2".to_owned(), Rank::Second)].into(),
            ..Answer::default()
        };
        let mut labels = LabelSet::open("fine-grained").expect("a label set");
        labels.comparison = true;
        assert!(answer.problems(&labels, &task).is_empty(), "{:?}", answer.problems(&labels, &task));
        let expected = json!({
            "question": "Q?", "passages": [["T", "One."]], "gold": "G", "prediction 1": "a b a", "prediction 2": "c",
            "feedback": {
                "errors": [
                    {"error type": "Redundant", "explanation": "a", "start": 4, "end": 5},
                    {"error type": "Wrong-Grounding", "explanation": "{\"passage_id\":1,\"sentence_id\":[0,1]}", "start": 0, "end": 1},
                ],
                "missing-info": [{"error type": "Missing-Answer", "passage_id": 1, "sentence_id": [1]}],
                "corrected-prediction": "b",
            },
            "preference": [2],
        });
        assert_eq!(Value::Object(feedback(&answer, &labels, &task)), expected);
        let rows = preferences(&answer, &task);
        let expected = json!({
            "prompt": "Q?", "chosen": "c", "rejected": "a b a", "chosen_model": "y", "rejected_model": "x",
        });
        assert_eq!(rows.into_iter().map(Value::Object).collect::<Value>(), json!([expected]));
    }
}
