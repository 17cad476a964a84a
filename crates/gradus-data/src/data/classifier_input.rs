//! Input of a classifier from one row: one text, a pair of texts, words or ids.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::message::missing;
use super::row::Row;
use crate::text::{Cut, Joined, Pattern, Tokenizer};
use crate::{Error, Result};

/// Rule for building the input of a classifier from the columns of a row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextForm {
    /// Text of the row. `None` uses the first of these that is present: `input_ids`, `tokens` (words), `text` (a text or words), or
    /// `prompt` and `completion` joined.
    pub text: Option<Pattern>,
    /// Second text that is read together with the first, such as the hypothesis for a premise.
    pub pair: Option<Pattern>,
    /// Limit for long inputs. `None` does not cut them.
    pub cut: Option<Cut>,
}

/// Side on which long text is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Cuts the beginning.
    Left,
    /// Cuts the end.
    #[default]
    Right,
}

impl std::str::FromStr for Side {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "left" => Ok(Self::Left),
            "right" => Ok(Self::Right),
            _ => Err(format!("`{name}` is neither `left` nor `right`")),
        }
    }
}

impl Side {
    /// Returns the cut at this side that leaves `limit` tokens.
    pub fn to(self, limit: usize) -> Cut {
        match self {
            Self::Left => Cut::Left(limit),
            Self::Right => Cut::Right(limit),
        }
    }
}

impl TextForm {
    /// Parses the patterns.
    ///
    /// # Errors
    /// The first invalid pattern: its key, and what is wrong with it.
    pub fn parse(text: Option<&str>, pair: Option<&str>, cut: Option<Cut>) -> Result<Self, (&'static str, String)> {
        let pattern = |key: &'static str, text: Option<&str>| {
            text.map(Pattern::parse).transpose().map_err(|message| (key, message))
        };
        Ok(Self { text: pattern("text", text)?, pair: pattern("pair", pair)?, cut })
    }
}

/// Input of a classifier for one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassifierInput {
    /// Token ids.
    pub ids: Vec<u32>,
    /// For each token, which of the two texts it belongs to.
    pub types: Vec<u32>,
    /// For rows of words or ids: the position of the first token of each. `None` if it was cut off or has no token.
    pub unit_tokens: Option<Vec<Option<usize>>>,
}

impl From<Joined> for ClassifierInput {
    fn from(Joined { ids, types }: Joined) -> Self {
        Self { ids, types, unit_tokens: None }
    }
}

/// Builds the input of a classifier from `row`.
///
/// # Errors
/// If a column is missing or has the wrong type, or a text cannot be tokenized. The error names the row's location.
pub fn classifier_input(row: &Row, form: &TextForm, tokenizer: &Tokenizer) -> Result<ClassifierInput> {
    let has = |name: &str| row.columns.contains_key(name);
    let at = |message: String| row.location.error(message);
    let fill = |pattern: &Pattern| pattern.fill(|name| column_text(&row.columns, name)).map_err(at);
    let encode = |first: &str, second: Option<&str>| {
        let joined = tokenizer.encode_joined(first, second, form.cut);
        joined.map(ClassifierInput::from).map_err(|error| at(error.to_string()))
    };
    let of_words = |column: &str| {
        let words = words(&row.columns, column).map_err(at)?;
        let (joined, unit_tokens) =
            tokenizer.encode_words(&words, form.cut).map_err(|error: Error| at(error.to_string()))?;
        Ok(ClassifierInput { unit_tokens: Some(unit_tokens), ..joined.into() })
    };
    let second = form.pair.as_ref().map(fill).transpose()?;
    match &form.text {
        Some(pattern) => encode(&fill(pattern)?, second.as_deref()),
        None if has("input_ids") => ids(&row.columns, form.cut).map_err(at),
        None if has("tokens") => of_words("tokens"),
        None if row.columns.get("text").is_some_and(Value::is_array) => of_words("text"),
        None if has("text") => encode(&column_text(&row.columns, "text").map_err(at)?, second.as_deref()),
        None if has("prompt") => {
            let part = |name| column_text(&row.columns, name).map_err(at);
            encode(&format!("{}{}", part("prompt")?, part("completion")?), second.as_deref())
        }
        None => Err(at(missing("text", &row.columns)).with_hint(
            "rows have `text`, `prompt` and `completion`, `tokens` or `input_ids`; a pattern may name other columns",
        )),
    }
}

/// Returns the text of a column. Numbers and booleans are formatted as in JSON. `reference` may also be the first entry of
/// `references`.
///
/// # Errors
/// If the column is missing or has another type.
pub fn column_text(columns: &Map<String, Value>, name: &str) -> Result<String, String> {
    let first = || columns.get("references").filter(|_| name == "reference").and_then(|list| list.get(0));
    match columns.get(name).or_else(first) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(value @ (Value::Number(_) | Value::Bool(_))) => Ok(value.to_string()),
        Some(Value::Null) => Err(format!("the column `{name}` is null, but a text is needed")),
        Some(Value::Array(_)) => Err(format!("the column `{name}` is a list, but a text is needed")),
        Some(Value::Object(_)) => Err(format!("the column `{name}` is an object, but a text is needed")),
        None => Err(missing(name, columns)),
    }
}

/// Reads `input_ids` and, if present, `token_type_ids`; drops the padding marked by `attention_mask` and applies `cut`.
fn ids(columns: &Map<String, Value>, cut: Option<Cut>) -> Result<ClassifierInput, String> {
    let list = |name: &str| {
        let wrong = || format!("`{name}` is not a list of whole numbers from 0");
        let values = columns.get(name)?.as_array().ok_or_else(wrong);
        Some(values.and_then(|values| {
            let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
            values.iter().map(id).collect::<Option<Vec<u32>>>().ok_or_else(wrong)
        }))
    };
    let ids = list("input_ids").expect("the column is there")?;
    let types = list("token_type_ids").transpose()?.unwrap_or_default();
    let n = ids.len();
    let end = match list("attention_mask").transpose()? {
        None => n,
        Some(mask) if mask.len() != n => {
            return Err(format!("`attention_mask` has {} numbers for {n} ids", mask.len()));
        }
        Some(mask) => {
            let end = mask.iter().rposition(|&attended| attended != 0).map_or(0, |last| last + 1);
            if let Some(at) = mask[..end].iter().position(|&attended| attended == 0) {
                return Err(format!("`attention_mask` is 0 at position {at}, but padding is allowed only at the end"));
            }
            end
        }
    };
    let kept = match cut {
        Some(Cut::Left(limit)) => end.saturating_sub(limit)..end,
        Some(Cut::Right(limit)) => 0..end.min(limit),
        None => 0..end,
    };
    if !types.is_empty() && types.len() != n {
        return Err(format!("`token_type_ids` has {} numbers for {n} ids", types.len()));
    }
    let unit_tokens = (0..n).map(|unit| kept.contains(&unit).then(|| unit - kept.start)).collect();
    let types = if types.is_empty() { types } else { types[kept.clone()].to_vec() };
    Ok(ClassifierInput { ids: ids[kept].to_vec(), types, unit_tokens: Some(unit_tokens) })
}

/// Reads a list of words.
fn words(columns: &Map<String, Value>, name: &str) -> Result<Vec<String>, String> {
    let words = columns.get(name).and_then(Value::as_array);
    let words =
        words.map(|words| words.iter().map(|word| word.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>());
    words.flatten().ok_or_else(|| format!("`{name}` is not a list of words"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn padding_is_not_read() {
        let read = |row: Value, cut| match row {
            Value::Object(columns) => ids(&columns, cut),
            _ => unreachable!("an object"),
        };
        let padded = json!({
            "input_ids": [5, 6, 7, 0, 0], "token_type_ids": [0, 0, 1, 0, 0], "attention_mask": [1, 1, 1, 0, 0]
        });
        let found = read(padded.clone(), None).expect("read");
        assert_eq!((found.ids, found.types), (vec![5, 6, 7], vec![0, 0, 1]));
        assert_eq!(found.unit_tokens, Some(vec![Some(0), Some(1), Some(2), None, None]), "one unit an id, for labels");
        let found = read(padded, Some(Cut::Left(2))).expect("read");
        assert_eq!((found.ids, found.types), (vec![6, 7], vec![0, 1]));
        let before = json!({"input_ids": [0, 5], "attention_mask": [0, 1]});
        let message = "`attention_mask` is 0 at position 0, but padding is allowed only at the end";
        assert_eq!(read(before, None), Err(message.into()));
        let short = json!({"input_ids": [0, 5], "attention_mask": [1]});
        assert_eq!(read(short, None), Err("`attention_mask` has 1 numbers for 2 ids".into()));
    }

    #[test]
    fn columns_are_texts_or_say_what_they_are() {
        let Value::Object(columns) = json!({
            "a": "x", "b": 2, "c": true, "d": null, "e": [1], "f": {}, "references": ["first", "second"]
        }) else {
            unreachable!("an object")
        };
        let text = |name: &str| column_text(&columns, name);
        assert_eq!(
            [text("a"), text("b"), text("c"), text("reference")],
            ["x", "2", "true", "first"].map(|text| Ok(text.into()))
        );
        assert_eq!(text("d"), Err("the column `d` is null, but a text is needed".into()));
        assert_eq!(text("e"), Err("the column `e` is a list, but a text is needed".into()));
        assert_eq!(text("f"), Err("the column `f` is an object, but a text is needed".into()));
        assert_eq!(text("g"), Err("missing column `g` (found `a`, `b`, `c`, `d`, `e`, `f`, `references`)".into()));
    }
}
