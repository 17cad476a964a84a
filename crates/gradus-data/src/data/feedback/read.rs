//! Reads feedback rows from their columns and checks every rule of the annotation.

use std::ops::Range;

use serde_json::{Map, Value};

use super::{ANSWERS, ErrorKind, ErrorSpan, Feedback, Missing, MissingKind, PAIRS, Preference, Sentences};
use crate::data::message::kind_name;

type Parsed<T> = Result<T, String>;

/// Returns whether rows with these columns have this format.
pub(in crate::data) fn fits(columns: &Map<String, Value>) -> bool {
    ["question", "passages", "prediction 1", "feedback"].iter().all(|name| columns.contains_key(*name))
}

/// Takes the columns of a row. Other columns remain.
pub(in crate::data) fn read(columns: &mut Map<String, Value>) -> Parsed<Feedback> {
    let mut take = |name: &str| columns.shift_remove(name).ok_or_else(|| format!("missing column `{name}`"));
    let question = text("question", &take("question")?)?;
    let passages = each("passages", &take("passages")?, passage)?;
    let gold = text("gold", &take("gold")?)?;
    let mut answers: [String; ANSWERS] = Default::default();
    for (i, answer) in answers.iter_mut().enumerate() {
        let name = format!("prediction {}", i + 1);
        *answer = text(&name, &take(&name)?)?;
    }
    let feedback = take("feedback")?;
    let within = |name: &str| key("feedback", &feedback, name);
    let first = &answers[0];
    // Start of each character, and the end of the last one.
    let bytes: Vec<usize> = first.char_indices().map(|(at, _)| at).chain([first.len()]).collect();
    let errors = each("feedback.errors", within("errors")?, |path, value| error_span(path, value, first, &bytes))?;
    check_disjoint(&errors, first)?;
    let missing =
        each("feedback.missing-info", within("missing-info")?, |path, value| missing(path, value, &passages))?;
    let corrected = text("feedback.corrected-prediction", within("corrected-prediction")?)?;
    // Error spans and comparisons may come from different annotators, so comparisons may still be missing.
    let given = columns.shift_remove("preference").filter(|given| !given.is_null());
    let given = given.map(|given| each("preference", &given, preference)).transpose()?;
    let all = |given: Vec<_>| {
        let wrong = |given: Vec<_>| format!("`preference` has {} entries, expected {}", given.len(), PAIRS.len());
        given.try_into().map_err(wrong)
    };
    let preferences = given.map(all).transpose()?;
    Ok(Feedback { question, passages, gold, answers, errors, missing, corrected, preferences })
}

fn passage(path: &str, value: &Value) -> Parsed<Sentences> {
    let mut texts = each(path, value, text)?;
    if texts.is_empty() {
        return Err(format!("`{path}` is empty, expected a title and sentences"));
    }
    let sentences = texts.split_off(1);
    Ok(Sentences { title: texts.remove(0), sentences })
}

fn error_span(path: &str, value: &Value, answer: &str, bytes: &[usize]) -> Parsed<ErrorSpan> {
    let kind = kind(path, value, &ErrorKind::NAMES)?;
    // Only the feedback form contains the comment.
    let explanation = match key(path, value, "explanation")? {
        Value::Null => String::new(),
        given => text(&format!("{path}.explanation"), given)?,
    };
    let place = |name: &str| number(&format!("{path}.{name}"), key(path, value, name)?);
    let (start, end) = (place("start")?, place("end")?);
    let characters = bytes.len() - 1;
    if start >= end || end > characters {
        return Err(format!(
            "`{path}`: the span [{start}, {end}] is not within the {characters} characters of `prediction 1`"
        ));
    }
    let bytes = bytes[start]..bytes[end];
    let (before, inside, after) = (&answer[..bytes.start], &answer[bytes.clone()], &answer[bytes.end..]);
    if inside.trim().len() != inside.len() {
        return Err(format!(
            "`{path}`: the span [{start}, {end}] begins or ends with white space: `{}`",
            shown(inside)
        ));
    }
    let is_word = |c: Option<char>| c.is_some_and(|c| !c.is_whitespace());
    if is_word(before.chars().next_back()) || is_word(after.chars().next()) {
        return Err(format!("`{path}`: the span [{start}, {end}] cuts a word: `{}`", shown(inside)));
    }
    Ok(ErrorSpan { kind, explanation, bytes })
}

/// Rejects overlapping spans.
fn check_disjoint(errors: &[ErrorSpan], answer: &str) -> Parsed<()> {
    let mut order: Vec<usize> = (0..errors.len()).collect();
    order.sort_by_key(|&i| errors[i].bytes.start);
    let overlap = order.windows(2).find(|pair| errors[pair[0]].bytes.end > errors[pair[1]].bytes.start);
    let Some(&[first, second]) = overlap else { return Ok(()) };
    let common: Range<usize> = errors[second].bytes.start..errors[first].bytes.end.min(errors[second].bytes.end);
    Err(format!("`feedback.errors[{first}]` and `feedback.errors[{second}]` overlap in `{}`", shown(&answer[common])))
}

fn missing(path: &str, value: &Value, passages: &[Sentences]) -> Parsed<Missing> {
    let kind = kind(path, value, &MissingKind::NAMES)?;
    let passage = number(&format!("{path}.passage_id"), key(path, value, "passage_id")?)?;
    let Some(of) = passage.checked_sub(1).and_then(|i| passages.get(i)) else {
        return Err(format!("`{path}.passage_id` is {passage}, but passages are 1 to {}", passages.len()));
    };
    let list = format!("{path}.sentence_id");
    let sentences = each(&list, key(path, value, "sentence_id")?, number)?;
    let most = of.sentences.len();
    match sentences.iter().find(|&&sentence| sentence > most) {
        Some(wrong) => {
            Err(format!("`{list}` has {wrong}, but sentences of passage {passage} are 0 (its title) to {most}"))
        }
        None if sentences.is_empty() => Err(format!("`{list}` is empty, expected one sentence or more")),
        None => Ok(Missing { kind, passage, sentences }),
    }
}

fn preference(path: &str, value: &Value) -> Parsed<Preference> {
    match value.as_u64() {
        Some(0) => Ok(Preference::Equal),
        Some(1) => Ok(Preference::First),
        Some(2) => Ok(Preference::Second),
        _ => Err(format!("`{path}` is {value}, expected 1 (the first is better), 2 (the second) or 0 (neither)")),
    }
}

fn kind<K: Copy>(path: &str, value: &Value, names: &[(K, &'static str)]) -> Parsed<K> {
    let path = format!("{path}.error type");
    let name = text(&path, key(path.trim_end_matches(".error type"), value, "error type")?)?;
    let known = || names.iter().map(|(_, name)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let found = names.iter().find(|(_, known)| *known == name);
    found.map(|(kind, _)| *kind).ok_or_else(|| format!("`{path}` is `{}`, expected one of {}", shown(&name), known()))
}

fn text(path: &str, value: &Value) -> Parsed<String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("`{path}` is {}, expected a string", kind_name(value)))
}

fn number(path: &str, value: &Value) -> Parsed<usize> {
    let found = value.as_u64().and_then(|number| usize::try_from(number).ok());
    found.ok_or_else(|| format!("`{path}` is {}, expected a whole number from 0", shown(&value.to_string())))
}

fn key<'v>(path: &str, value: &'v Value, name: &str) -> Parsed<&'v Value> {
    match value {
        Value::Object(map) => map.get(name).ok_or_else(|| format!("`{path}` has no `{name}`")),
        other => Err(format!("`{path}` is {}, expected an object", kind_name(other))),
    }
}

fn each<T>(path: &str, value: &Value, mut read: impl FnMut(&str, &Value) -> Parsed<T>) -> Parsed<Vec<T>> {
    match value {
        Value::Array(list) => list.iter().enumerate().map(|(i, value)| read(&format!("{path}[{i}]"), value)).collect(),
        other => Err(format!("`{path}` is {}, expected a list", kind_name(other))),
    }
}

fn shown(text: &str) -> String {
    crate::error::excerpt(text, 60)
}
