//! Label Studio's JSON: a list of tasks with `data` and `annotations`, whose `result` has one entry per region or control
//! (<https://labelstud.io/guide/export#Label-Studio-JSON-format-of-annotated-tasks>).

use gradus::error::excerpt;
use serde_json::{Map, Value, json};

use super::{Imported, missing, parts, put, read_missing, shown, span, span_properties, task as read_task};
use crate::annotate::answer::Answer;
use crate::annotate::labels::LabelSet;
use crate::annotate::rank::pair_name;
use crate::annotate::task::Task;
use crate::store::projects::{Annotation, Project};

/// Name of the text that spans and other parts refer to.
const TEXT: &str = "answer1";
/// Maximum number of characters of a text that a message quotes.
const QUOTED: usize = 60;

/// Converts a task with its annotations.
pub fn task(project: &Project, number: usize, task: &Task, annotations: &[&Annotation]) -> Map<String, Value> {
    let annotations: Vec<Value> = annotations
        .iter()
        .enumerate()
        .map(|(i, annotation)| annotation_json(project, number, i, task, annotation))
        .collect();
    let mut data = shown(task);
    if let Some(expected) = &task.expected {
        data.insert("expected".into(), json!(expected));
    }
    let row = json!({
        "id": number, "data": data, "annotations": annotations, "predictions": [], "meta": {},
        "total_annotations": annotations.len(), "cancelled_annotations": 0, "total_predictions": 0,
    });
    row.as_object().cloned().unwrap_or_default()
}

fn annotation_json(project: &Project, number: usize, i: usize, task: &Task, annotation: &Annotation) -> Value {
    let answer = &annotation.answer;
    let text: Vec<char> = task.answers[0].chars().collect();
    let mut result: Vec<Value> = Vec::new();
    let mut add = |mut region: Value, from: &str, kind: &str| {
        let at = json!({ "id": format!("r{}", result.len() + 1), "from_name": from, "to_name": TEXT, "type": kind });
        for (name, value) in at.as_object().into_iter().flatten() {
            region[name] = value.clone();
        }
        result.push(region);
    };
    for span in &answer.spans {
        let own: String = text.get(span.start..span.end).unwrap_or_default().iter().collect();
        let mut region =
            json!({ "value": { "start": span.start, "end": span.end, "text": own, "labels": [span.kind] } });
        if let Some(more) = span_properties(span) {
            region["meta"] = json!({ "text": [more] });
        }
        add(region, "spans", "labels");
    }
    if let Some(text) = missing(answer) {
        add(json!({ "value": { "text": [text] } }), "missing", "textarea");
    }
    for (name, value) in parts(&project.labels, task, answer) {
        let is_text = ["correction", "feedback"].contains(&name.as_str());
        match &value {
            Value::Number(number) => add(json!({ "value": { "rating": number } }), &name, "rating"),
            _ if is_text => add(json!({ "value": { "text": [value] } }), &name, "textarea"),
            _ => add(json!({ "value": { "choices": [value] } }), &name, "choices"),
        }
    }
    json!({
        "id": number * 1000 + i, "completed_by": { "id": i + 1, "email": annotation.person }, "result": result, "was_cancelled": false,
        "ground_truth": false, "lead_time": annotation.seconds,
    })
}

/// Returns the author of an annotation: an email, a name, or an id.
fn person(of: &Value) -> String {
    match of {
        Value::Object(person) => ["email", "username", "id"]
            .iter()
            .find_map(|name| person.get(*name))
            .map_or_else(|| "somebody".into(), person_of),
        other => person_of(other),
    }
}

fn person_of(value: &Value) -> String {
    match value {
        Value::String(name) => name.clone(),
        Value::Null => "somebody".into(),
        other => format!("label-studio-{other}"),
    }
}

/// Reads a task with its annotations. Canceled annotations are ignored.
///
/// # Errors
/// A description of the problem.
pub fn read(row: &Map<String, Value>, labels: &LabelSet) -> Result<Imported, String> {
    let data = row.get("data").and_then(Value::as_object).ok_or("the task has no `data`")?;
    let task = read_task(data)?;
    let rows = row.get("annotations").or_else(|| row.get("completions")).and_then(Value::as_array);
    let mut annotations = Vec::new();
    for annotation in rows.ok_or("the task has no `annotations`")? {
        if annotation["was_cancelled"] == true {
            continue;
        }
        let mut answer = Answer::default();
        for region in annotation["result"].as_array().ok_or("an annotation has no `result`")? {
            take(&mut answer, labels, &task, region)?;
        }
        let seconds = annotation["lead_time"].as_f64().filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
        annotations.push((person(&annotation["completed_by"]), answer, seconds.unwrap_or(0.0)));
    }
    Ok(Imported { task, annotations })
}

/// Checks that the `marked` text of a span is the text at its place. Otherwise, the tool counts other units, or has another answer. White
/// space may differ: Label Studio writes a line break as a backslash and an n.
fn check_text(answer: &str, (start, end): (usize, usize), marked: &str) -> Result<(), String> {
    let own: String = answer.chars().skip(start).take(end - start).collect();
    let without_space = |text: &str| text.replace("\\n", " ").split_whitespace().collect::<String>();
    if without_space(&own) == without_space(marked) {
        return Ok(());
    }
    let (own, marked) = (excerpt(&own, QUOTED), excerpt(marked, QUOTED));
    Err(format!(
        "the span [{start}, {end}] has the `text` `{marked}`, but the answer has `{own}` there; offsets count characters (Unicode code points)"
    ))
}

fn take(answer: &mut Answer, labels: &LabelSet, task: &Task, region: &Value) -> Result<(), String> {
    let (value, name) = (&region["value"], region["from_name"].as_str().unwrap_or_default());
    let first = |key: &str| match &value[key] {
        Value::Array(all) => all.first().cloned().unwrap_or_default(),
        one => one.clone(),
    };
    let place =
        |key: &str| value[key].as_u64().map(|place| place as usize).ok_or_else(|| format!("a span has no `{key}`"));
    match region["type"].as_str().unwrap_or_default() {
        kind @ ("labels" | "hypertextlabels") => {
            let label = match first(kind) {
                Value::String(label) => label,
                _ => return Err(format!("a span has no `{kind}`")),
            };
            let span_properties =
                region["meta"]["text"].as_array().and_then(|texts| texts.first()).and_then(Value::as_str);
            let range = (place("start")?, place("end")?);
            let span = span(&task.answers[0], &label, range, span_properties)?;
            if let Some(text) = value["text"].as_str() {
                check_text(&task.answers[0], range, text)?;
            }
            answer.spans.push(span);
        }
        "textarea" if name == "missing" => answer.missing = read_missing(first("text").as_str().unwrap_or_default())?,
        "textarea" => put(answer, labels, task, name, &first("text"))?,
        "choices" => put(answer, labels, task, name, &first("choices"))?,
        "rating" => put(answer, labels, task, name, &value["rating"])?,
        "number" => put(answer, labels, task, name, &value["number"])?,
        // Two answers next to each other. The left one is the first.
        "pairwise" => {
            let rank = if value["selected"] == "left" { "first" } else { "second" };
            put(answer, labels, task, &pair_name((0, 1)), &json!(rank))?;
        }
        other => return Err(format!("`{name}` is of type {other}, which has no place in an annotation")),
    }
    Ok(())
}
