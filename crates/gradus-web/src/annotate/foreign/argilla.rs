//! Argilla's records: `fields`, `metadata`, and for each question its `responses` with a value and a user
//! (<https://docs.argilla.io/latest/how_to_guides/import_export/>).

use std::collections::BTreeMap;
use std::hash::Hasher;

use serde_json::{Map, Value, json};

use super::{Imported, missing, parts, put, read_missing, shown, span, span_properties, task as read_task};
use crate::annotate::answer::Answer;
use crate::annotate::labels::LabelSet;
use crate::annotate::shown::{END, stable_hash};
use crate::annotate::task::{Original, Task};
use crate::store::projects::{Annotation, Project};

/// Prefix of metadata keys that map a user's id to the name.
const PERSON: &str = "person-";
/// Properties of a task in the metadata. Annotators must not see them, but they see the fields.
const HIDDEN: [&str; 2] = ["expected", "attention"];

/// Derives a user id in Argilla's form from a name.
fn user(name: &str) -> String {
    let half = |salt: u8| {
        stable_hash(|hasher| {
            hasher.write_u8(salt);
            hasher.write(name.as_bytes());
            hasher.write_u8(END);
        })
    };
    let digits = format!("{:016x}{:016x}", half(0), half(1));
    // Version and variant mark it as a random UUID.
    format!("{}-{}-4{}-8{}-{}", &digits[..8], &digits[8..12], &digits[13..16], &digits[17..20], &digits[20..])
}

/// Converts the content of a task to fields. Chat fields are lists of messages with a role and a text, so other messages have no place.
fn fields(task: &Task) -> Map<String, Value> {
    let is_text = |message: &Value, key: &str| message.get(key).is_some_and(Value::is_string);
    let is_plain = |message: &Value| {
        message.as_object().is_some_and(|object| object.len() == 2)
            && is_text(message, "role")
            && is_text(message, "content")
    };
    let fits = |value: &Value| value.as_array().is_none_or(|messages| messages.iter().all(is_plain));
    let has_place = |original: &Original| fits(&original.prompt) && original.answers.iter().all(fits);
    shown(&Task { original: task.original.clone().filter(has_place), ..task.clone() })
}

/// Converts a task with its annotations.
pub fn record(project: &Project, number: usize, task: &Task, annotations: &[&Annotation]) -> Map<String, Value> {
    let mut responses: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut metadata = Map::new();
    if let Some(expected) = &task.expected {
        metadata.insert("expected".into(), json!(json!(expected).to_string()));
    }
    for annotation in annotations {
        let (user, answer) = (user(&annotation.person), &annotation.answer);
        metadata.insert(format!("{PERSON}{user}"), json!(annotation.person));
        let mut add = |name: &str, value: Value| {
            let response = json!({ "value": value, "user_id": user, "status": "submitted" });
            responses.entry(name.to_owned()).or_default().push(response);
        };
        if !project.labels.spans.is_empty() {
            let spans =
                answer.spans.iter().map(|span| json!({ "start": span.start, "end": span.end, "label": span.kind }));
            add("spans", spans.collect());
            let more: Vec<Option<String>> = answer.spans.iter().map(span_properties).collect();
            if more.iter().any(Option::is_some) {
                add("spans_more", json!(json!(more).to_string()));
            }
        }
        if let Some(text) = missing(answer) {
            add("missing", json!(text));
        }
        for (name, value) in parts(&project.labels, task, answer) {
            add(&name, value);
        }
    }
    let row = json!({
        "id": number.to_string(), "status": "completed", "fields": fields(task), "metadata": metadata, "suggestions": {},
        "responses": responses, "vectors": {},
    });
    row.as_object().cloned().unwrap_or_default()
}

/// Reads a record with its responses. Drafts and discarded responses are ignored.
///
/// # Errors
/// A description of the problem.
pub fn read(row: &Map<String, Value>, labels: &LabelSet) -> Result<Imported, String> {
    let mut fields = row.get("fields").and_then(Value::as_object).cloned().ok_or("the record has no `fields`")?;
    let metadata = row.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    fields.extend(HIDDEN.iter().filter_map(|name| Some(((*name).to_owned(), metadata.get(*name)?.clone()))));
    let task = read_task(&fields)?;
    let name = |user: &str| {
        let known = metadata.get(&format!("{PERSON}{user}")).and_then(Value::as_str);
        known.map_or_else(|| format!("argilla-{user}"), str::to_owned)
    };
    let mut by_person: BTreeMap<String, Answer> = BTreeMap::new();
    let mut more: Vec<(String, Vec<Option<String>>)> = Vec::new();
    let responses = row.get("responses").and_then(Value::as_object).ok_or("the record has no `responses`")?;
    for (question, all) in responses {
        for response in all.as_array().ok_or_else(|| format!("the responses to `{question}` are not a list"))? {
            if response.get("status").is_some_and(|status| !status.is_null() && status != "submitted") {
                continue;
            }
            let person = name(response["user_id"].as_str().unwrap_or("somebody"));
            let (value, answer) = (&response["value"], by_person.entry(person.clone()).or_default());
            match (question.as_str(), value) {
                ("spans_more", Value::String(text)) => {
                    let found =
                        serde_json::from_str(text).map_err(|error| format!("`spans_more` is not a list: {error}"))?;
                    more.push((person, found));
                }
                ("missing", Value::String(text)) => answer.missing = read_missing(text)?,
                (_, Value::Array(spans)) => {
                    for one in spans {
                        let place = |key: &str| {
                            one[key]
                                .as_u64()
                                .map(|place| place as usize)
                                .ok_or_else(|| format!("a span has no `{key}`"))
                        };
                        let label = one["label"].as_str().ok_or("a span has no `label`")?;
                        answer.spans.push(span(&task.answers[0], label, (place("start")?, place("end")?), None)?);
                    }
                }
                _ => put(answer, labels, &task, question, value)?,
            }
        }
    }
    for (person, more) in more {
        let answer = by_person.entry(person).or_default();
        for (known, span_properties) in answer.spans.iter_mut().zip(more) {
            *known = span(&task.answers[0], &known.kind, (known.start, known.end), span_properties.as_deref())?;
        }
    }
    Ok(Imported { task, annotations: by_person.into_iter().map(|(person, answer)| (person, answer, 0.0)).collect() })
}
