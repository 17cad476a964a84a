//! Methods of Python's texts and lists, and filters and tests of Jinja, that the engine lacks or defines otherwise.

use std::sync::LazyLock;

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value as Template, filters};
use regex::Regex;

use super::super::python;

/// Maximum width that a template may pad or indent to.
pub(super) const WIDEST: usize = 1000;

/// Adds the filters and tests to `environment`.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    for name in ["length", "count"] {
        environment.add_filter(name, length);
    }
    environment.add_filter("first", first);
    environment.add_filter("last", last);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("replace", replace);
    environment.add_filter("wordcount", wordcount);
    environment.add_filter("center", center);
    environment.add_filter("indent", indent);
    environment.add_test("callable", |value: Template| matches!(value.kind(), ValueKind::Undefined | ValueKind::Plain));
}

pub(super) fn too_wide(width: usize) -> Error {
    invalid(format!("a width of {width}, but at most {WIDEST} are padded to"))
}

/// Returns the text that Python prints for a value which the engine prints otherwise.
pub(super) fn repr(value: &Template) -> Result<Option<String>, Error> {
    Ok(Some(match value.kind() {
        ValueKind::Bool | ValueKind::None | ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
            python::repr(&as_json(value)?)
        }
        ValueKind::Iterable => python::repr(&as_json(&value.try_iter()?.collect())?),
        _ => return Ok(None),
    }))
}

/// Returns the text that Python prints for a value.
fn printed(value: &Template) -> Result<String, Error> {
    Ok(repr(value)?.unwrap_or_else(|| value.to_string()))
}

pub(super) fn as_json(value: &Template) -> Result<serde_json::Value, Error> {
    serde_json::to_value(value).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Calls a method of a text or list as in Python.
pub(super) fn call_method(
    state: &mut State,
    value: &Template,
    name: &str,
    arguments: &[Template],
) -> Result<Template, Error> {
    let result = match value.kind() {
        ValueKind::String => text_method(value.as_str().unwrap_or_default(), name, arguments)?,
        ValueKind::Seq if name == "index" => Some(place(value, arguments)?),
        _ => None,
    };
    match result {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments),
    }
}

/// Calls the method `name` of a text; `None` if it is not one of these.
fn text_method(text: &str, name: &str, arguments: &[Template]) -> Result<Option<Template>, Error> {
    Ok(Some(match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Template::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Template::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            let is_last = name == "rpartition";
            let separator = not_empty(separator)?;
            let found = if is_last { text.rsplit_once(separator) } else { text.split_once(separator) };
            texts(match found {
                Some((before, after)) => vec![before, separator, after],
                None if is_last => vec!["", "", text],
                None => vec![text, "", ""],
            })
        }
        "rsplit" => {
            let (separator, most, named): (Option<&str>, Option<i64>, Kwargs) = from_args(arguments)?;
            let named_separator: Option<String> = named.get("sep")?;
            let named_most: Option<i64> = named.get("maxsplit")?;
            named.assert_all_used()?;
            let most = most.or(named_most).and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            texts(rsplit(text, separator.or(named_separator.as_deref()), most)?)
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(arguments)?;
            search(text, name, what, start, end)?
        }
        "zfill" => {
            let (width,): (i64,) = from_args(arguments)?;
            let missing = bounded(width)?.saturating_sub(text.chars().count());
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            Template::from(format!("{sign}{}{digits}", "0".repeat(missing)))
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (i64, Option<&str>) = from_args(arguments)?;
            Template::from(justified(text, name, width, fill.unwrap_or(" "))?)
        }
        "swapcase" => {
            let () = from_args(arguments)?;
            let mut swapped = String::new();
            for c in text.chars() {
                if c.is_lowercase() {
                    swapped.extend(c.to_uppercase());
                } else {
                    swapped.extend(c.to_lowercase());
                }
            }
            Template::from(swapped)
        }
        _ => return Ok(None),
    }))
}

fn texts(list: Vec<&str>) -> Template {
    list.into_iter().map(Template::from).collect()
}

fn not_empty(separator: &str) -> Result<&str, Error> {
    if separator.is_empty() { Err(invalid("the separator is empty")) } else { Ok(separator) }
}

/// Splits `text` at most `most` times, from its end; at white space without a separator.
fn rsplit<'a>(text: &'a str, separator: Option<&str>, most: usize) -> Result<Vec<&'a str>, Error> {
    let mut parts: Vec<&str> = Vec::new();
    if let Some(separator) = separator {
        parts.extend(text.rsplitn(most.saturating_add(1), not_empty(separator)?));
    } else {
        let mut rest = text.trim_end();
        while !rest.is_empty() && parts.len() < most {
            let space = rest.char_indices().rev().find(|(_, c)| c.is_whitespace());
            let (before, word) = space.map_or(("", rest), |(at, c)| (&rest[..at], &rest[at + c.len_utf8()..]));
            parts.push(word);
            rest = before.trim_end();
        }
        if !rest.is_empty() {
            parts.push(rest);
        }
    }
    parts.reverse();
    Ok(parts)
}

/// Searches `what` between two places of a text, which count from its end if they are negative.
fn search(text: &str, name: &str, what: &str, start: Option<i64>, end: Option<i64>) -> Result<Template, Error> {
    let length = text.chars().count();
    let place = |place: i64| {
        let distance = usize::try_from(place.unsigned_abs()).unwrap_or(usize::MAX);
        if place < 0 { length.saturating_sub(distance) } else { distance }
    };
    let (start, end) = (start.map_or(0, place), end.map_or(length, place).min(length));
    let byte = |place: usize| text.char_indices().nth(place).map_or(text.len(), |(at, _)| at);
    let part = (start <= end).then(|| &text[byte(start)..byte(end)]);
    if name == "count" {
        return Ok(Template::from(part.map_or(0, |part| part.matches(what).count())));
    }
    let found = part.and_then(|part| {
        let at = if name.starts_with('r') { part.rfind(what) } else { part.find(what) }?;
        Some(start + part[..at].chars().count())
    });
    match found {
        Some(at) => Ok(Template::from(at)),
        None if name.ends_with("index") => Err(invalid(format!("`{name}` did not find the text"))),
        None => Ok(Template::from(-1)),
    }
}

/// Returns the place of a value in a list.
fn place(list: &Template, arguments: &[Template]) -> Result<Template, Error> {
    let (what, start, end): (&Template, Option<i64>, Option<i64>) = from_args(arguments)?;
    let items: Vec<Template> = list.try_iter()?.collect();
    let place = |place: i64| {
        let distance = usize::try_from(place.unsigned_abs()).unwrap_or(usize::MAX);
        if place < 0 { items.len().saturating_sub(distance) } else { distance }
    };
    let (start, end) = (start.map_or(0, place), end.map_or(items.len(), place));
    let found = items.iter().take(end).enumerate().skip(start).find(|(_, item)| *item == what);
    found.map(|(at, _)| Template::from(at)).ok_or_else(|| invalid("`index` did not find the value in the list"))
}

/// Checks a width to pad to.
fn bounded(width: i64) -> Result<usize, Error> {
    let width = usize::try_from(width).unwrap_or(0);
    if width > WIDEST { Err(too_wide(width)) } else { Ok(width) }
}

/// Pads `text` to `width` characters as the method `name` does.
fn justified(text: &str, name: &str, width: i64, fill: &str) -> Result<String, Error> {
    if fill.chars().count() != 1 {
        return Err(invalid(format!("`{name}` fills with one character, but got {}", fill.chars().count())));
    }
    let width = bounded(width)?;
    let missing = width.saturating_sub(text.chars().count());
    let left = match name {
        "ljust" => 0,
        "rjust" => missing,
        // Python's rule for the side that gets one more.
        _ => missing / 2 + (missing & width & 1),
    };
    Ok(format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left)))
}

/// A variable that is not defined is empty.
fn length(value: &Template) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

fn first(value: &Template) -> Result<Template, Error> {
    if value.is_undefined() { Ok(Template::UNDEFINED) } else { filters::first(value) }
}

fn last(value: Template) -> Result<Template, Error> {
    if value.is_undefined() { Ok(Template::UNDEFINED) } else { filters::last(value) }
}

/// What is no number becomes `default`.
fn int(
    state: &State,
    value: &Template,
    default: Option<Template>,
    base: Option<u32>,
    named: Kwargs,
) -> Result<Template, Error> {
    let named_default: Option<Template> = named.get("default")?;
    let default = default.or(named_default).unwrap_or_else(|| Template::from(0));
    let text = value.as_str().map(str::trim);
    if text.and_then(|text| text.parse::<f64>().ok()).is_some_and(|number| !number.is_finite()) {
        return Ok(default);
    }
    let value = text.map_or_else(|| value.clone(), Template::from);
    filters::int(state, &value, Some(default), base, named)
}

/// What is no number becomes `default`.
fn float(state: &State, value: &Template, default: Option<Template>, named: Kwargs) -> Result<Template, Error> {
    let named_default: Option<Template> = named.get("default")?;
    let default = default.or(named_default).unwrap_or_else(|| Template::from(0.0));
    let value = value.as_str().map_or_else(|| value.clone(), |text| Template::from(text.trim()));
    filters::float(state, &value, Some(default), named)
}

fn replace(
    text: &Template,
    old: &Template,
    new: &Template,
    count: Option<i64>,
    named: Kwargs,
) -> Result<String, Error> {
    let named_count: Option<i64> = named.get("count")?;
    named.assert_all_used()?;
    let (text, old, new) = (printed(text)?, printed(old)?, printed(new)?);
    let count = count.or(named_count).and_then(|count| usize::try_from(count).ok());
    Ok(text.replacen(&old, &new, count.unwrap_or(usize::MAX)))
}

fn wordcount(text: &Template) -> Result<usize, Error> {
    static WORD: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\w+").expect("a valid pattern"));
    Ok(WORD.find_iter(&printed(text)?).count())
}

fn center(text: &Template, width: Option<i64>, named: Kwargs) -> Result<String, Error> {
    let named_width: Option<i64> = named.get("width")?;
    named.assert_all_used()?;
    justified(&printed(text)?, "center", width.or(named_width).unwrap_or(80), " ")
}

/// Indents lines by a number of spaces or by a text.
fn indent(
    text: &Template,
    width: Option<Template>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> Result<String, Error> {
    let named_width: Option<Template> = named.get("width")?;
    let (named_first, named_blank): (Option<bool>, Option<bool>) = (named.get("first")?, named.get("blank")?);
    named.assert_all_used()?;
    let (first, blank) = (first.or(named_first) == Some(true), blank.or(named_blank) == Some(true));
    let width = width.or(named_width).unwrap_or_else(|| Template::from(4));
    let indentation = match (width.as_str(), width.as_i64()) {
        (Some(text), _) if text.chars().count() > WIDEST => return Err(too_wide(text.chars().count())),
        (Some(text), _) => text.to_owned(),
        (None, Some(width)) => " ".repeat(bounded(width)?),
        (None, None) => return Err(invalid("the width of `indent` must be a whole number or a text")),
    };
    // Like Jinja, it keeps a line end at the end of the text.
    let text = printed(text)? + "\n";
    let mut indented = String::new();
    for (i, line) in lines(&text).into_iter().enumerate() {
        if i > 0 {
            indented.push('\n');
        }
        let is_indented = if i == 0 { first } else { blank || !line.is_empty() };
        if is_indented {
            indented += &indentation;
        }
        indented += line;
    }
    Ok(indented)
}

/// Python's `splitlines`.
fn lines(text: &str) -> Vec<&str> {
    let ends_line = |c: char| {
        let others = ['\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];
        matches!(c, '\n' | '\r') || others.contains(&c)
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some((at, end)) = rest.char_indices().find(|(_, c)| ends_line(*c)) {
        lines.push(&rest[..at]);
        let width = if rest[at..].starts_with("\r\n") { 2 } else { end.len_utf8() };
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}
