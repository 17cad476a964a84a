//! Export of annotations as training rows and as complete records.

use std::collections::{BTreeMap, BTreeSet};

use gradus::Result;
use gradus::data::feedback::{ANSWERS, Feedback, PAIRS, SegmentForm, coverage_preferences, segment_row};
use gradus::text::RuleSplitter;
use serde_json::{Map, Value, json};

use super::answer::Answer;
use super::foreign::{argilla, label_studio};
use super::labels::{Asks, LabelSet};
use super::rank::{Rank, pair_name, pairs};
use super::task::Task;
use crate::store::Store;
use crate::store::projects::{Annotation, AnnotationState, Project};

/// Form of the exported rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// FineGrainedRLHF's feedback files: spans, missing information, correction, preferences. One row per annotation.
    Feedback,
    /// `prompt`, `chosen`, `rejected`, and `margin` if the annotation has strengths. One row per preferred answer. TRL reads this form
    /// directly. Messages stay messages.
    Preference,
    /// Segments with relevance labels, for FineGrainedRLHF's first reward model.
    R1,
    /// Segments with factuality labels, for the second reward model.
    R2,
    /// Answers compared by the information that they cover, for the third reward model.
    R3,
    /// `prompt` alone, each once: prompts for training and comparing policies.
    Prompt,
    /// Label Studio's tasks with annotations, in the form of its JSON export.
    LabelStudio,
    /// Argilla's records with responses, in the form of `Dataset.records.to_dict`.
    Argilla,
    /// All annotations with their authors and times.
    Raw,
}

impl Form {
    /// All forms.
    pub const ALL: [Self; 9] = [
        Self::Feedback,
        Self::Preference,
        Self::R1,
        Self::R2,
        Self::R3,
        Self::Prompt,
        Self::LabelStudio,
        Self::Argilla,
        Self::Raw,
    ];

    /// Returns the name of the form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Feedback => "feedback",
            Self::Preference => "preference",
            Self::R1 => "r1",
            Self::R2 => "r2",
            Self::R3 => "r3",
            Self::Prompt => "prompt",
            Self::LabelStudio => "label-studio",
            Self::Argilla => "argilla",
            Self::Raw => "raw",
        }
    }

    /// Describes the rows.
    pub fn about(self) -> &'static str {
        match self {
            Self::Feedback => "all answers to a task, in the form of FineGrainedRLHF",
            Self::Preference => "a prompt with a chosen and a rejected answer, for DPO and reward models",
            Self::R1 => "sentence parts with relevance labels, for FineGrainedRLHF’s first reward model",
            Self::R2 => "sentences with factuality labels, for FineGrainedRLHF’s second reward model",
            Self::R3 => "answers compared by the information that they cover, for FineGrainedRLHF’s third reward model",
            Self::Prompt => "the prompts alone, each once",
            Self::LabelStudio => "tasks with annotations, for Label Studio",
            Self::Argilla => "records with responses, for Argilla",
            Self::Raw => "every annotation with its author, its time and its state",
        }
    }

    /// Returns the form with this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.name() == name)
    }
}

/// Returns the rows of a project, from submitted annotations. [`Form::Raw`] also includes skipped and unfinished ones. If a reviewer has
/// decided a task, only the decision counts.
///
/// # Errors
/// The database cannot be read.
pub fn rows(store: &Store, project: &Project, form: Form) -> Result<Vec<Map<String, Value>>> {
    let tasks = store.projects().tasks(project.id)?;
    let verdicts = store.projects().verdicts(project.id)?;
    let annotations = store.projects().annotations(project.id)?;
    if form == Form::Raw {
        let rows = annotations.iter().map(|annotation| raw(annotation, &tasks[annotation.task - 1], false));
        return Ok(rows
            .chain(verdicts.values().map(|annotation| raw(annotation, &tasks[annotation.task - 1], true)))
            .collect());
    }
    let decided = |number: usize| verdicts.get(&number).filter(|annotation| annotation.state == AnnotationState::Done);
    if form == Form::Prompt {
        let mut seen = BTreeSet::new();
        let prompts = tasks.iter().filter(|task| !task.attention).map(Task::prompt);
        let prompts = prompts.filter(|prompt| seen.insert(prompt.to_string()));
        return Ok(prompts.map(|prompt| object(json!({ "prompt": prompt }))).collect());
    }
    // The annotations that count, by task and in the order of names.
    let mut counted: BTreeMap<usize, Vec<&Annotation>> = BTreeMap::new();
    for annotation in annotations
        .iter()
        .filter(|annotation| annotation.state == AnnotationState::Done && !tasks[annotation.task - 1].attention)
    {
        let of = counted.entry(annotation.task).or_default();
        match decided(annotation.task) {
            Some(verdict) if of.is_empty() => of.push(verdict),
            Some(_) => {}
            None => of.push(annotation),
        }
    }
    let labels = &project.labels;
    let mut rows = Vec::new();
    for (number, all) in counted {
        let task = &tasks[number - 1];
        match form {
            Form::LabelStudio => rows.push(label_studio::task(project, number, task, &all)),
            Form::Argilla => rows.push(argilla::record(project, number, task, &all)),
            _ => {}
        }
        for annotation in all {
            match form {
                Form::Feedback => rows.push(feedback(&annotation.answer, labels, task)),
                Form::Preference => rows.extend(preferences(&annotation.answer, labels, task)),
                Form::R1 | Form::R2 | Form::R3 => {
                    rows.extend(segments(form, rows.len(), &annotation.answer, labels, task))
                }
                Form::Prompt | Form::LabelStudio | Form::Argilla | Form::Raw => {}
            }
        }
    }
    Ok(rows)
}

/// Builds a row for a reward model of FineGrainedRLHF, as `gradus data convert` does. `None` if the annotation contributes nothing or is of
/// another kind.
fn segments(form: Form, id: usize, answer: &Answer, labels: &LabelSet, task: &Task) -> Option<Map<String, Value>> {
    let known = as_feedback(&feedback(answer, labels, task), task)?;
    match form {
        Form::R1 => segment_row(&known, id, &SegmentForm::R1, &RuleSplitter),
        Form::R2 => segment_row(&known, id, &SegmentForm::R2, &RuleSplitter),
        _ if task.answers.len() < ANSWERS => None,
        _ => {
            let preferences = coverage_preferences(&known, &RuleSplitter)?;
            Some(Feedback { preferences: Some(preferences), ..known }.to_columns())
        }
    }
}

/// Converts an annotation to the library's type. Answers that the task lacks are blank and not compared.
fn as_feedback(row: &Map<String, Value>, task: &Task) -> Option<Feedback> {
    let mut row = row.clone();
    let found = row.get("preference").and_then(Value::as_array).cloned().unwrap_or_default();
    let of = |pair: &(usize, usize)| {
        let at = pairs(task.answers.len()).iter().position(|known| known == pair)?;
        found.get(at).cloned()
    };
    let preferences: Vec<Value> = PAIRS.iter().map(|pair| of(pair).unwrap_or(json!(0))).collect();
    row.insert("preference".into(), Value::Array(preferences));
    for at in task.answers.len()..ANSWERS {
        row.insert(format!("prediction {}", at + 1), json!(""));
    }
    Feedback::from_columns(row).ok()
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        other => Map::from_iter([("value".to_owned(), other)]),
    }
}

fn raw(annotation: &Annotation, task: &Task, is_verdict: bool) -> Map<String, Value> {
    object(json!({
        "verdict": is_verdict, "expected": task.expected, "attention": task.attention, "task": annotation.task, "person": annotation.person, "state": annotation.state, "reason": annotation.reason, "seconds": annotation.seconds,
        "question": task.question, "answers": task.answers, "models": task.models, "answer": annotation.answer, "shown": annotation.shown,
    }))
}

fn preferences(answer: &Answer, labels: &LabelSet, task: &Task) -> Vec<Map<String, Value>> {
    let row = |(one, other): (usize, usize)| {
        let (chosen, rejected) = match answer.ranks.get(&pair_name((one, other)))? {
            Rank::First => (one, other),
            Rank::Second => (other, one),
            Rank::Tie | Rank::Bad => return None,
        };
        let strength = answer.strengths.get(&pair_name((one, other)));
        let strength = strength.and_then(|name| labels.strengths.iter().find(|known| known.name == *name));
        let mut row = object(json!({
            "prompt": task.prompt(), "chosen": task.answer(chosen), "rejected": task.answer(rejected),
        }));
        if let Some(strength) = strength {
            row.insert("margin".into(), json!(strength.margin));
        }
        if let (Some(chosen), Some(rejected)) = (task.models.get(chosen), task.models.get(rejected)) {
            row.extend([("chosen_model".to_owned(), json!(chosen)), ("rejected_model".to_owned(), json!(rejected))]);
        }
        Some(row)
    };
    pairs(task.answers.len()).into_iter().filter_map(row).collect()
}

pub(super) fn feedback(answer: &Answer, labels: &LabelSet, task: &Task) -> Map<String, Value> {
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
    use super::super::shown::Shown;
    use super::super::task::{Original, Passage};
    use super::*;

    #[test]
    fn what_was_said_has_the_form_of_the_feedback_files() {
        let task = Task {
            question: "Q?".into(),
            passages: vec![Passage { title: "T".into(), sentences: vec!["One.".into()] }],
            reference: "G".into(),
            answers: vec!["a b a".into(), "c".into()],
            models: vec!["x".into(), "y".into()],
            expected: None,
            attention: false,
            original: None,
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
        assert!(
            answer.problems(&labels, &task, &Shown::as_given(2)).is_empty(),
            "{:?}",
            answer.problems(&labels, &task, &Shown::as_given(2))
        );
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
        // No question may have the name of one of these columns.
        for column in expected.as_object().expect("a row").keys() {
            let set = format!("name: x\nquestions: [{{ name: {column}, question: A, from: 1, to: 5 }}]");
            assert!(LabelSet::read(&set, "x.yml").is_err(), "{column}");
        }
        let rows = preferences(&answer, &labels, &task);
        let expected = json!({
            "prompt": "Q?", "chosen": "c", "rejected": "a b a", "chosen_model": "y", "rejected_model": "x",
        });
        assert_eq!(rows.into_iter().map(Value::Object).collect::<Value>(), json!([expected]));
        // The strength of a preference becomes the margin for reward models.
        let labels = LabelSet::open("comparison-strength").expect("a label set");
        let answer = Answer { strengths: [("1v2".to_owned(), "much".to_owned())].into(), ..answer };
        assert_eq!(preferences(&answer, &labels, &task)[0]["margin"], json!(1.0));
        // It has the digits of the label set.
        let set = "name: x\ncomparison: true\nstrengths: [{ name: much, label: Much, margin: 0.33 }]";
        let labels = LabelSet::read(set, "x.yml").expect("a label set");
        assert_eq!(preferences(&answer, &labels, &task)[0]["margin"], json!(0.33));
        // Messages of the data file stay messages.
        let prompt = json!([{ "role": "user", "content": "Q?" }]);
        let task = Task { original: Some(Original { prompt: prompt.clone(), answers: Vec::new() }), ..task };
        let row = &preferences(&answer, &labels, &task)[0];
        assert_eq!((&row["prompt"], &row["chosen"]), (&prompt, &json!([{ "role": "assistant", "content": "c" }])));
    }
}
