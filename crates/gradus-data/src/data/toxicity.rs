//! RealToxicityPrompts (Gehman et al. 2020, <https://arxiv.org/abs/2009.11462>): beginnings of web pages and their continuations,
//! each with scores of a classifier. Some scores may be missing.

use serde_json::{Map, Value};

use super::message::kind_name;

/// The beginning of a web page and its continuation.
pub struct Scored {
    pub prompt: String,
    pub continuation: String,
}

/// Returns whether rows with these columns have this format.
pub(super) fn fits(columns: &Map<String, Value>) -> bool {
    ["prompt", "continuation"].iter().all(|name| columns.get(*name).is_some_and(|side| side.get("text").is_some()))
}

/// Takes both texts. Their scores become `prompt_scores` and `continuation_scores`, and the prompt's toxicity becomes `toxicity`.
///
/// # Errors
/// If a text or a score is missing or has another type; the message names the column.
pub fn read(columns: &mut Map<String, Value>) -> Result<Scored, String> {
    let mut side = |name: &str| {
        let Some(Value::Object(mut side)) = columns.shift_remove(name) else {
            return Err(format!("column `{name}` is not an object with `text` and scores"));
        };
        let text = match side.shift_remove("text") {
            Some(Value::String(text)) => text,
            other => {
                return Err(format!(
                    "`{name}.text` is {}, expected a string",
                    other.as_ref().map_or("missing", kind_name)
                ));
            }
        };
        for (score, value) in &side {
            let is_score = value.is_null() || value.as_f64().is_some_and(|score| (0.0..=1.0).contains(&score));
            if !is_score {
                return Err(format!("`{name}.{score}` is {value}, expected a number from 0 to 1, or null"));
            }
        }
        let toxicity = side.get("toxicity").cloned().unwrap_or(Value::Null);
        columns.insert(format!("{name}_scores"), Value::Object(side));
        Ok((text, toxicity))
    };
    let ((prompt, toxicity), (continuation, _)) = (side("prompt")?, side("continuation")?);
    columns.insert("toxicity".into(), toxicity);
    Ok(Scored { prompt, continuation })
}
