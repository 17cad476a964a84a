//! Annotations in the formats of other tools, in both directions.
//!
//! Each part of an annotation has a name that both tools preserve: `spans`, `missing`, `correction`, `no_error`, `feedback`, `1v2` and
//! `1v2-strength` for a pair, and the names of the questions. Properties of a span that a tool cannot represent (the repeated text, the
//! contradicting passage) are stored as JSON in an additional field. If people see less than the data file has, such as the text of messages,
//! `prompt` and `completion1` and so on have the whole. An exported project therefore imports unchanged.

pub mod argilla;
pub mod label_studio;
pub mod original;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use gradus::{Error, Result};
use serde_json::{Map, Value, json};

use super::answer::{Answer, Marked, Missing};
use super::labels::LabelSet;
use super::rank::{Rank, pair_name, pairs};
use super::task::{Original, Passage, Task, expected_of, text as text_of};
use super::words::whole_words;

/// Tool that wrote a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// Label Studio's JSON export.
    LabelStudio,
    /// Argilla's records.
    Argilla,
    /// Output of FineGrainedRLHF's own pages.
    FineGrained,
}

impl Tool {
    /// All tools.
    pub const ALL: [Self; 3] = [Self::LabelStudio, Self::Argilla, Self::FineGrained];

    /// Returns the name of the tool.
    pub fn name(self) -> &'static str {
        match self {
            Self::LabelStudio => "label-studio",
            Self::Argilla => "argilla",
            Self::FineGrained => "fine-grained",
        }
    }

    /// Returns the tool with this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }
}

/// A task with its annotations.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The task.
    pub task: Task,
    /// Author, annotation and seconds spent.
    pub annotations: Vec<(String, Answer, f64)>,
}

/// Reads the tasks of another tool's file. Each must fit the label set.
///
/// # Errors
/// The file cannot be read, or a row is malformed or does not fit.
pub fn read(tool: Tool, file: &str, labels: &LabelSet) -> Result<Vec<Imported>> {
    let source = gradus::data::resolve(file, &mut |_, _, _| {})?;
    let mut found: Vec<Imported> = Vec::new();
    // Index of each task from FineGrainedRLHF's pages, whose files have one row per page and person.
    let mut places: HashMap<String, usize> = HashMap::new();
    for path in &source.files {
        for row in gradus::data::open(path)? {
            let row = row?;
            let item = match tool {
                Tool::LabelStudio => label_studio::read(&row.columns, labels),
                Tool::Argilla => argilla::read(&row.columns, labels),
                Tool::FineGrained => original::read(&row.columns),
            };
            let item = item.map_err(|message| row.location.error(message))?;
            if let Some(problem) = item.task.expected_problem(labels) {
                return Err(row.location.error(format!("`expected`: {problem}")));
            }
            for (name, answer, _) in &item.annotations {
                if let Some(problem) = answer.broken(labels, &item.task).first() {
                    return Err(row
                        .location
                        .error(format!("{name}'s annotation does not match the label set: {problem}")));
                }
            }
            if tool == Tool::FineGrained {
                let key = serde_json::to_string(&item.task).expect("plain data");
                match places.entry(key) {
                    Entry::Occupied(place) => {
                        original::join(&mut found[*place.get()], item)
                            .map_err(|message| row.location.error(message))?;
                        continue;
                    }
                    Entry::Vacant(place) => _ = place.insert(found.len()),
                }
            }
            found.push(item);
        }
    }
    if found.is_empty() { Err(Error::input(format!("`{file}` has no tasks"))) } else { Ok(found) }
}

/// Converts the content of a task to fields with names that both tools accept.
fn shown(task: &Task) -> Map<String, Value> {
    let mut data = Map::from_iter([("question".to_owned(), json!(task.question))]);
    if !task.reference.is_empty() {
        data.insert("reference".into(), json!(task.reference));
    }
    if !task.passages.is_empty() {
        let lines = task.passages.iter().map(|passage| {
            let sentences: Vec<&str> =
                std::iter::once(&passage.title).chain(&passage.sentences).map(String::as_str).collect();
            Value::from(sentences).to_string()
        });
        data.insert("passages".into(), json!(lines.collect::<Vec<_>>().join("\n")));
    }
    for (i, answer) in task.answers.iter().enumerate() {
        data.insert(format!("answer{}", i + 1), json!(answer));
    }
    for (i, model) in task.models.iter().enumerate() {
        data.insert(format!("model{}", i + 1), json!(model));
    }
    if let Some(Original { prompt, answers }) = &task.original {
        data.insert("prompt".into(), prompt.clone());
        data.extend(answers.iter().enumerate().map(|(i, answer)| (format!("completion{}", i + 1), answer.clone())));
    }
    data
}

/// Returns the prompt and the answers of fields in the form of the data file, if people saw their texts.
fn original_of(data: &Map<String, Value>, question: &str, answers: &[String]) -> Option<Original> {
    let is_of = |value: &Value, shown: &str| text_of(value).is_some_and(|text| text.trim() == shown.trim());
    let prompt = data.get("prompt").filter(|prompt| is_of(prompt, question))?;
    let whole: Option<Vec<Value>> = (1..)
        .zip(answers)
        .map(|(i, shown)| data.get(&format!("completion{i}")).filter(|answer| is_of(answer, shown)).cloned())
        .collect();
    Original::of(prompt.clone(), &whole.unwrap_or_default(), (question, answers))
}

/// Converts fields back to a task.
fn task(data: &Map<String, Value>) -> Result<Task, String> {
    let text = |name: &str| data.get(name).and_then(Value::as_str).map(str::to_owned);
    let numbered = |name: &str| (1..).map_while(|i| text(&format!("{name}{i}"))).collect::<Vec<String>>();
    let mut answers = numbered("answer");
    if answers.is_empty() {
        answers = ["answer", "response", "completion", "text"].iter().find_map(|name| text(name)).into_iter().collect();
    }
    if answers.is_empty() {
        return Err("it has no answer: `answer1` and so on, `answer`, `response`, `completion` or `text`".into());
    }
    let passage = |line: &str| {
        let sentences: Vec<String> = serde_json::from_str(line).ok()?;
        let mut sentences = sentences.into_iter();
        Some(Passage { title: sentences.next()?, sentences: sentences.collect() })
    };
    let lines = text("passages").unwrap_or_default();
    let passages: Option<Vec<Passage>> = lines.lines().map(passage).collect();
    let models = numbered("model");
    let known = |name: &&str| data.get(*name).and_then(text_of);
    let question = ["question", "prompt", "instruction"].iter().find_map(known).unwrap_or_default();
    let original = original_of(data, &question, &answers);
    let (expected, attention) = expected_of(data)?;
    Ok(Task {
        question,
        passages: passages
            .unwrap_or_else(|| vec![Passage { title: "Passages".into(), sentences: vec![lines.clone()] }]),
        reference: text("reference").unwrap_or_default(),
        models: if models.len() == answers.len() { models } else { Vec::new() },
        answers,
        expected,
        attention,
        original,
    })
}

/// Returns the properties of a span other than its place and type, as JSON. `None` if there are none.
fn span_properties(span: &Marked) -> Option<String> {
    let bare = Marked { kind: span.kind.clone(), start: span.start, end: span.end, ..Marked::default() };
    (*span != bare)
        .then(|| json!({ "repeats": span.repeats, "passage": span.passage, "sentences": span.sentences }).to_string())
}

/// Creates a span with its additional properties. Other tools may mark parts of words, so the range is extended to whole words.
fn span(text: &str, kind: &str, (start, end): (usize, usize), span_properties: Option<&str>) -> Result<Marked, String> {
    let characters = text.chars().count();
    if start >= end {
        return Err(format!("the span [{start}, {end}] is empty: its `start` must be below its `end`"));
    }
    if end > characters {
        return Err(format!("the span [{start}, {end}] is not within the {characters} characters of the answer"));
    }
    let (start, end) = whole_words(text, start, end).ok_or_else(|| format!("characters {start} to {end} are blank"))?;
    let place = Marked { kind: kind.to_owned(), start, end, ..Marked::default() };
    let Some(span_properties) = span_properties else { return Ok(place) };
    let known: Value = serde_json::from_str(span_properties)
        .map_err(|error| format!("the additional data of a span is not JSON: {error}"))?;
    let mut whole = serde_json::to_value(&place).expect("plain data");
    for (name, value) in known.as_object().into_iter().flatten() {
        whole[name] = value.clone();
    }
    serde_json::from_value(whole).map_err(|error| format!("the additional data of a span is not valid: {error}"))
}

/// Returns the names of all parts except spans and missing information, with their values as texts or numbers.
fn parts(labels: &LabelSet, task: &Task, answer: &Answer) -> Vec<(String, Value)> {
    let mut parts = Vec::new();
    if !(labels.spans.is_empty() && labels.missing.is_empty()) {
        parts.push(("no_error".to_owned(), json!(if answer.no_error { "yes" } else { "no" })));
    }
    if let Some(correction) = &answer.correction {
        parts.push(("correction".to_owned(), json!(correction)));
    }
    if answer.no_passage_helps {
        parts.push(("no_passage_helps".to_owned(), json!("yes")));
    }
    for pair in pairs(task.answers.len()) {
        let name = pair_name(pair);
        if let Some(rank) = answer.ranks.get(&name) {
            parts.push((name.clone(), json!(rank)));
        }
        if let Some(strength) = answer.strengths.get(&name) {
            parts.push((format!("{name}-strength"), json!(strength)));
        }
    }
    for (name, value) in &answer.questions {
        parts.push((name.clone(), json!(value)));
    }
    if !answer.feedback.is_empty() {
        parts.push(("feedback".to_owned(), json!(answer.feedback)));
    }
    parts
}

/// Sets a part of an annotation. A choice may be the name of a rank or a number on a scale.
fn put(answer: &mut Answer, labels: &LabelSet, task: &Task, name: &str, value: &Value) -> Result<(), String> {
    let text = value.as_str().map(str::to_owned).or_else(|| value.as_i64().map(|number| number.to_string()));
    let text = text.ok_or_else(|| format!("`{name}` is neither a text nor a number"))?;
    let is_pair = |name: &str| pairs(task.answers.len()).into_iter().any(|pair| pair_name(pair) == name);
    let pair_of_strength = name.strip_suffix("-strength").filter(|pair| is_pair(pair));
    match name {
        "no_error" => answer.no_error = text == "yes",
        "no_passage_helps" => answer.no_passage_helps = text == "yes",
        "correction" => answer.correction = Some(text),
        "feedback" => answer.feedback = text,
        _ if is_pair(name) => {
            let rank: Rank = serde_json::from_value(json!(text))
                .map_err(|_| format!("`{name}` is {text}, expected first, second, tie or bad"))?;
            answer.ranks.insert(name.to_owned(), rank);
        }
        _ if labels.questions.iter().any(|question| question.name == name) => {
            let number =
                text.parse().map_err(|_| format!("`{name}` is {text}, but a number of its scale is needed"))?;
            answer.questions.insert(name.to_owned(), number);
        }
        _ => match pair_of_strength {
            Some(pair) => drop(answer.strengths.insert(pair.to_owned(), text)),
            None => return Err(format!("the label set has no `{name}`")),
        },
    }
    Ok(())
}

/// Returns the missing information as JSON text, which both tools preserve.
fn missing(answer: &Answer) -> Option<String> {
    (!answer.missing.is_empty()).then(|| serde_json::to_string(&answer.missing).expect("plain data"))
}

fn read_missing(text: &str) -> Result<Vec<Missing>, String> {
    serde_json::from_str(text).map_err(|error| format!("`missing` is not a list of missing information: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::task::Expected;
    use super::*;
    use crate::annotate::export::{Form, rows};
    use crate::store::Store;
    use crate::store::projects::{AnnotationState, LEASE_MINUTES, Role, Save, Saved};

    /// A project in which two people have used every kind of part.
    fn project(folder: &std::path::Path, labels: &LabelSet, original: Option<Original>) -> Store {
        let store = Store::open(folder).expect("a file");
        let task = Task {
            question: "Q?\nWell?".into(),
            passages: vec![Passage { title: "T".into(), sentences: vec!["One \"1\".".into(), "Two.".into()] }],
            reference: "R".into(),
            answers: ["größer 世界 is größer", "b", "c", "d"].map(str::to_owned).to_vec(),
            models: ["w", "x", "y", "z"].map(str::to_owned).to_vec(),
            expected: Some(Expected { ranks: [("1v2".to_owned(), Rank::First)].into(), ..Expected::default() }),
            attention: false,
            original,
        };
        store.projects().begin("p", labels, 2, LEASE_MINUTES, &[task]).expect("kept");
        let project = store.projects().find("p").expect("read").expect("a project");
        let span = |kind: &str, start, end| Marked { kind: kind.into(), start, end, ..Marked::default() };
        let full = Answer {
            spans: vec![
                span("Irrelevant", 7, 9),
                Marked { passage: 1, sentences: vec![0, 2], ..span("Wrong-Grounding", 0, 6) },
                Marked { repeats: "größer".into(), ..span("Redundant", 13, 19) },
            ],
            missing: vec![Missing { kind: "Missing-Answer".into(), passage: 1, sentences: vec![1] }],
            correction: Some("größer".into()),
            ranks: [("1v2", Rank::First), ("1v3", Rank::Tie), ("2v4", Rank::Bad), ("3v4", Rank::Second)]
                .map(|(name, rank)| (name.to_owned(), rank))
                .into(),
            strengths: [("1v2".to_owned(), "much".to_owned())].into(),
            questions: [("tone".to_owned(), 5)].into(),
            feedback: "Fine, \"but\" long.\n世".into(),
            ..Answer::default()
        };
        let none = Answer { no_error: true, no_passage_helps: true, ..Answer::default() };
        for (name, answer) in [("ada", full), ("bob <b>", none)] {
            let token = store.projects().invite(name, Role::Annotator).expect("kept");
            let session = store.sessions().begin();
            let session = store.projects().sign_in(&session, name, &token).expect("kept").expect("signed in");
            let id = store.projects().who(&session).expect("read").expect("somebody").id;
            store.projects().next(&project, id).expect("read");
            let saved = store
                .projects()
                .save(project.id, 1, id, &Save::of(&answer, AnnotationState::Done, 2.5))
                .expect("saved");
            assert!(matches!(saved, Saved::Stored(_)));
        }
        store
    }

    fn labels() -> LabelSet {
        let mut labels = LabelSet::open("fine-grained").expect("a label set");
        let strengths = LabelSet::open("comparison-strength").expect("a label set").strengths;
        labels.comparison = true;
        labels.strengths = strengths;
        labels.questions = vec![crate::annotate::labels::Question {
            name: "tone".into(),
            question: "Good?".into(),
            from: 1,
            to: 7,
            low: String::new(),
            high: String::new(),
        }];
        labels
    }

    /// Exports a project to a tool's file and reads it again.
    fn exported_and_read(
        folder: &std::path::Path,
        labels: &LabelSet,
        original: Option<Original>,
    ) -> [(Tool, Map<String, Value>, Imported); 2] {
        let store = project(folder, labels, original);
        let project = store.projects().find("p").expect("read").expect("a project");
        [(Tool::LabelStudio, Form::LabelStudio), (Tool::Argilla, Form::Argilla)].map(|(tool, form)| {
            let mut rows = rows(&store, &project, form).expect("rows");
            assert_eq!(rows.len(), 1);
            let path = folder.join(format!("{}.json", form.name()));
            let file = gradus::files::output::OutputFile::new(&path).expect("nothing is there");
            gradus::data::write_rows(&file, &rows).expect("written");
            (tool, rows.remove(0), read(tool, &path.to_string_lossy(), labels).expect("read").remove(0))
        })
    }

    /// The content of the test project as messages. `key` is added to the last message of the question.
    fn messages(key: Option<&str>) -> Original {
        let mut asked = json!({ "role": "user", "content": "Q?\nWell?" });
        if let Some(key) = key {
            asked[key] = json!("x");
        }
        let said = |text: &str| json!([{ "role": "assistant", "content": text }]);
        Original { prompt: json!([asked]), answers: ["größer 世界 is größer", "b", "c", "d"].map(said).to_vec() }
    }

    #[test]
    fn what_is_exported_comes_back_as_it_was() {
        let labels = labels();
        for original in [None, Some(messages(None))] {
            let folder = tempfile::tempdir().expect("a folder");
            let found = exported_and_read(folder.path(), &labels, original);
            let store = Store::open(folder.path()).expect("a file");
            let project = store.projects().find("p").expect("read").expect("a project");
            let annotations = store.projects().annotations(project.id).expect("read");
            let tasks = store.projects().tasks(project.id).expect("read");
            for (tool, _, found) in found {
                assert_eq!(found.task, tasks[0], "{}", tool.name());
                let names: Vec<&str> = found.annotations.iter().map(|(name, ..)| name.as_str()).collect();
                assert_eq!(names, ["ada", "bob <b>"], "{}", tool.name());
                for (back, before) in found.annotations.iter().zip(&annotations) {
                    assert_eq!(back.1, before.answer, "{}", tool.name());
                }
            }
        }
    }

    #[test]
    fn conversations_have_the_place_that_each_tool_gives_them() {
        let labels = labels();
        let exported = |original: Original| {
            let folder = tempfile::tempdir().expect("a folder");
            exported_and_read(folder.path(), &labels, Some(original))
        };
        let fields = |tool: Tool, row: &Map<String, Value>| match tool {
            Tool::Argilla => row["fields"].clone(),
            _ => row["data"].clone(),
        };
        let plain = messages(None);
        for (tool, row, _) in exported(plain.clone()) {
            let fields = fields(tool, &row);
            assert_eq!(
                (&fields["prompt"], &fields["completion2"]),
                (&plain.prompt, &plain.answers[1]),
                "{}",
                tool.name()
            );
            assert_eq!(fields["question"], "Q?\nWell?", "{}", tool.name());
        }
        // A message of Argilla has a role and a text. Label Studio stores any JSON.
        let named = messages(Some("name"));
        for (tool, row, found) in exported(named.clone()) {
            let has_place = tool == Tool::LabelStudio;
            assert_eq!(fields(tool, &row).get("prompt").is_some(), has_place, "{}", tool.name());
            assert_eq!(found.task.original, has_place.then(|| named.clone()), "{}", tool.name());
        }
        // Messages of other projects are the question.
        let data = json!({ "prompt": plain.prompt, "answer1": "Yes." });
        let found = task(data.as_object().expect("an object")).expect("a task");
        assert_eq!((found.question.as_str(), found.prompt()), ("Q?\nWell?", plain.prompt));
        assert_eq!(found.answer(0), json!([{ "role": "assistant", "content": "Yes." }]));
    }

    /// Files written by the packages of Argilla and Label Studio: `tools/parity/annotation_tools.py`.
    #[test]
    fn what_the_tools_write_is_read() {
        let fixture: Value =
            serde_json::from_str(include_str!("../../../tests/fixtures/annotation-tools.json")).expect("a fixture");
        let folder = tempfile::tempdir().expect("a folder");
        let labels = labels();
        let imported = |tool: Tool, name: &str| {
            let path = folder.path().join(format!("{name}.json"));
            std::fs::write(&path, json!([fixture[name]]).to_string()).expect("written");
            read(tool, &path.to_string_lossy(), &labels).expect("read").remove(0)
        };
        let full = Answer {
            spans: vec![Marked { kind: "Irrelevant".into(), start: 7, end: 9, ..Marked::default() }],
            correction: Some("größer".into()),
            ranks: [("1v2".to_owned(), Rank::Second)].into(),
            questions: [("tone".to_owned(), 5)].into(),
            ..Answer::default()
        };
        let tied = Answer { no_error: true, ranks: [("1v2".to_owned(), Rank::Tie)].into(), ..Answer::default() };
        let found = imported(Tool::LabelStudio, "label_studio");
        assert_eq!((found.task.question.as_str(), found.task.answers.len()), ("Q?", 2));
        assert_eq!(found.annotations, [("label-studio-3".to_owned(), full.clone(), 2.5)]);
        let found = imported(Tool::Argilla, "argilla");
        assert_eq!((found.task.question.as_str(), found.task.answers.len()), ("Q?", 2));
        let person = |number: u8| format!("argilla-00000000-0000-4000-8000-00000000000{number}");
        // `to_dict` does not record which responses are drafts.
        let draft = Answer { questions: [("tone".to_owned(), 1)].into(), ..Answer::default() };
        assert_eq!(found.annotations, [(person(1), full, 0.0), (person(2), tied, 0.0), (person(9), draft, 0.0)]);
    }

    #[test]
    fn attention_checks_of_other_tools_stay_checks() {
        let folder = tempfile::tempdir().expect("a folder");
        let expected = Expected { no_error: Some(true), ..Expected::default() };
        let label_studio =
            json!({ "data": { "text": "a b", "expected": expected, "attention": true }, "annotations": [] });
        let argilla = json!({
            "fields": { "text": "a b" }, "metadata": { "expected": json!(expected).to_string(), "attention": "true" }, "responses": {},
        });
        for (tool, row) in [(Tool::LabelStudio, label_studio), (Tool::Argilla, argilla)] {
            let path = folder.path().join("x.json");
            std::fs::write(&path, json!([row]).to_string()).expect("written");
            let found = read(tool, &path.to_string_lossy(), &labels()).expect("read").remove(0).task;
            assert_eq!((found.expected, found.attention), (Some(expected.clone()), true), "{}", tool.name());
        }
    }

    /// Label Studio's spans of an answer, whose first two characters have two UTF-16 units each.
    #[test]
    fn spans_have_the_text_that_the_tool_marked() {
        let labels = labels();
        let text = "\u{1F44D}\u{1F44D} Good start.\nWrong fact here. End.";
        let imported = |tool: Tool, value: Value| {
            let label_studio =
                json!({ "completed_by": 3, "result": [{ "type": "labels", "from_name": "spans", "value": value }] });
            let argilla = json!({ "value": [value], "user_id": "a" });
            let row = match tool {
                Tool::Argilla => json!({ "fields": { "text": text }, "responses": { "spans": [argilla] } }),
                _ => json!({ "data": { "text": text }, "annotations": [label_studio] }),
            };
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("x.json");
            std::fs::write(&path, json!([row]).to_string()).expect("written");
            let found = read(tool, &path.to_string_lossy(), &labels).map_err(|error| error.to_string())?.remove(0);
            let span = &found.annotations[0].1.spans[0];
            Ok::<_, String>((span.start, span.end))
        };
        let marked = |start: usize, end: usize, text: Option<&str>| {
            let mut value = json!({ "start": start, "end": end, "labels": ["Irrelevant"] });
            if let Some(text) = text {
                value["text"] = json!(text);
            }
            imported(Tool::LabelStudio, value)
        };
        assert_eq!(marked(15, 31, Some("Wrong fact here.")), Ok((15, 31)));
        // Label Studio writes a line break as two characters.
        assert_eq!(marked(8, 20, Some("start.\\nWrong ")), Ok((8, 20)));
        assert_eq!(marked(16, 30, None), Ok((15, 31)), "whole words");
        let shifted = marked(17, 33, Some("Wrong fact here.")).expect_err("UTF-16 units");
        assert!(shifted.contains("x.json") && shifted.contains("`Wrong fact here.`"), "{shifted}");
        assert!(shifted.contains("`ong fact here. E`") && shifted.contains("code points"), "{shifted}");
        let argilla = |start: usize, end: usize| {
            imported(Tool::Argilla, json!({ "start": start, "end": end, "label": "Irrelevant" }))
        };
        assert_eq!(argilla(15, 31), Ok((15, 31)));
        for found in [marked(0, 500, None), argilla(0, 500)] {
            let found = found.expect_err("out of range");
            assert!(found.contains("the span [0, 500] is not within the 36 characters of the answer"), "{found}");
        }
        for found in [marked(9, 4, None), marked(4, 4, None), argilla(9, 4)] {
            let found = found.expect_err("reversed or empty");
            assert!(found.contains("must be below its `end`"), "{found}");
        }
    }

    #[test]
    fn what_does_not_fit_is_said_with_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let labels = labels();
        for (row, word) in [
            (json!({ "data": { "question": "Q" }, "annotations": [] }), "has no answer"),
            (json!({ "data": { "text": "a b" } }), "`annotations`"),
            (
                json!({ "data": { "text": "a b" }, "annotations": [{ "completed_by": 3, "result": [
                    { "type": "labels", "value": { "start": 0, "end": 1, "labels": ["Odd"] } }] }] }),
                "There is no type Odd",
            ),
            (
                json!({ "data": { "text": "a b" }, "annotations": [{ "completed_by": 3, "result": [
                    { "type": "brush", "from_name": "x", "value": {} }] }] }),
                "brush",
            ),
            (
                json!({ "data": { "text": "a b", "expected": { "ranks": { "1v2": "first" } } }, "annotations": [] }),
                "`expected`: A pair does not belong to this task.",
            ),
        ] {
            let path = folder.path().join("x.json");
            std::fs::write(&path, json!([row]).to_string()).expect("written");
            let message = read(Tool::LabelStudio, &path.to_string_lossy(), &labels).expect_err("wrong").to_string();
            assert!(message.contains(word) && message.contains("x.json"), "{message}");
        }
    }
}
