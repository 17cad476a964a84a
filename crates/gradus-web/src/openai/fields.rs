//! Fields of a request. Each is taken once, and errors name the field. Fields that nothing takes are refused.

use std::ops::RangeInclusive;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use gradus::suggest::nearest;
use serde_json::{Map, Value};

use super::refused::{Refused, found};

/// Fields of OpenAI's API, and of vLLM's, that do not change the samples. They have no effect.
const WITHOUT_EFFECT: [&str; 16] = [
    "metadata",
    "moderation",
    "parallel_tool_calls",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    // vLLM
    "cache_salt",
    "output_kind",
    "priority",
    "request_id",
    "spaces_between_special_tokens",
];

/// Names of settings in other programs, such as `transformers`, with the names here.
const OTHER_NAMES: [(&str, &str); 10] = [
    ("max_new_tokens", "max_tokens"),
    ("max_completion_tokens", "max_tokens"),
    ("max_length", "max_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("min_length", "min_tokens"),
    ("num_return_sequences", "n"),
    ("stop_sequences", "stop"),
    ("stop_strings", "stop"),
    ("eos_token_id", "stop_token_ids"),
    ("do_sample", "temperature"),
];

/// Body of a program's request. If it cannot be read, the response has OpenAI's form.
#[derive(Debug)]
pub struct Body(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let body = Bytes::from_request(request, state).await;
        body.map(Self).map_err(|refused| Refused::status(refused.status(), refused.body_text()))
    }
}

/// Fields of a request that were not taken yet.
#[derive(Debug)]
pub struct Fields {
    fields: Map<String, Value>,
    /// Names of the fields that were asked for.
    known: Vec<String>,
    /// Prefix of field names in messages, such as `sampling_params.`. Empty for fields of the request itself.
    before: String,
}

impl Fields {
    /// Parses the fields of a body.
    ///
    /// # Errors
    /// The body is not a JSON object.
    pub fn read(body: &[u8]) -> Result<Self, Refused> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self { fields, known: Vec::new(), before: String::new() }),
            Ok(other) => Err(Refused::request(format!("the body is {}, but an object is needed", found(&other)))),
            Err(_) if body.is_empty() => Err(Refused::request("the body is empty, but a JSON object is needed")),
            Err(error) => Err(Refused::request(format!("the body is not valid JSON: {error}"))),
        }
    }

    /// Returns the name of a field, prefixed by the names of its enclosing objects.
    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.before)
    }

    /// Takes a field of any type. `null` counts as missing.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.known.push(name.to_owned());
        self.given(name)
    }

    fn given(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    /// Rejects fields that were not taken, apart from those without an effect. Call it after all fields were taken.
    ///
    /// # Errors
    /// There is such a field. The message suggests a known one with a similar name or meaning.
    pub fn finish(&self) -> Result<(), Refused> {
        let is_unknown = |name: &str, value: &Value| !value.is_null() && !WITHOUT_EFFECT.contains(&name);
        let Some((name, _)) = self.fields.iter().find(|(name, value)| is_unknown(name, value)) else { return Ok(()) };
        let known = || self.known.iter().map(String::as_str);
        let meant = OTHER_NAMES.iter().find(|(other, _)| other == name).map(|(_, meant)| *meant);
        let meant = meant.filter(|meant| known().any(|known| known == *meant)).or_else(|| nearest(name, known()));
        Err(Refused::unknown(&self.path(name), meant.map(|meant| self.path(meant)).as_deref()))
    }

    /// Takes a field and parses it. `None` if it is missing. `expected` completes "but … is needed".
    ///
    /// # Errors
    /// `read` returns `None`.
    pub fn read_as<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, Refused> {
        let Some(value) = self.take(name) else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| Refused::wrong(&self.path(name), &value, expected))
    }

    /// Takes a required field. `expected` describes its value.
    ///
    /// # Errors
    /// The field is missing, or `read` returns `None`.
    pub fn needed<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Refused> {
        self.read_as(name, expected, read)?.ok_or_else(|| Refused::missing(&self.path(name), expected))
    }

    /// Takes a number within `range`.
    ///
    /// # Errors
    /// The field has another value.
    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, Refused> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.read_as(name, &expected, |value| value.as_f64().filter(|number| range.contains(number)))
    }

    /// Takes a whole number within `range`.
    ///
    /// # Errors
    /// The field has another value.
    pub fn count(&mut self, name: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, Refused> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        let count = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|count| range.contains(count));
        self.read_as(name, &expected, count)
    }

    /// Takes `true` or `false`. A missing field is false.
    ///
    /// # Errors
    /// The field has another value.
    pub fn flag(&mut self, name: &str) -> Result<bool, Refused> {
        Ok(self.read_as(name, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    /// Takes a text.
    ///
    /// # Errors
    /// The field has another value.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, Refused> {
        self.read_as(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// Takes an object. A missing field is empty.
    ///
    /// # Errors
    /// The field has another value.
    pub fn object(&mut self, name: &str) -> Result<Map<String, Value>, Refused> {
        Ok(self.read_as(name, "an object", |value| value.as_object().cloned())?.unwrap_or_default())
    }

    /// Takes the fields of an object. Messages prefix their names with the object's name.
    ///
    /// # Errors
    /// The field has another value.
    pub fn within(&mut self, name: &str) -> Result<Self, Refused> {
        Ok(Self { fields: self.object(name)?, known: Vec::new(), before: format!("{}.", self.path(name)) })
    }

    /// Rejects a field that requests an unsupported feature. `neutral` returns whether a value requests nothing.
    ///
    /// # Errors
    /// The field is present and not neutral.
    pub fn refuse(&mut self, name: &str, neutral: fn(&Value) -> bool) -> Result<(), Refused> {
        match self.given(name) {
            Some(value) if !neutral(&value) => Err(Refused::unsupported(&self.path(name))),
            _ => Ok(()),
        }
    }
}
