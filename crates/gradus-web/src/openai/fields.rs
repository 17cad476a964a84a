//! The fields of a request, each taken once, with what is wrong with it said by its name.

use std::ops::RangeInclusive;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use serde_json::{Map, Value};

use super::refused::{Refused, found};

/// The body of a request of a program. One that cannot be had is refused in OpenAI's form.
#[derive(Debug)]
pub struct Body(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let body = Bytes::from_request(request, state).await;
        body.map(Self).map_err(|refused| Refused::status(refused.status(), refused.body_text()))
    }
}

/// The fields of a request that were not taken yet.
#[derive(Debug)]
pub struct Fields {
    fields: Map<String, Value>,
    /// What stands before their names in messages: `sampling_params.`; nothing for those of the request itself.
    before: String,
}

impl Fields {
    /// The fields of a body.
    ///
    /// # Errors
    /// When it is no JSON object.
    pub fn read(body: &[u8]) -> Result<Self, Refused> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self { fields, before: String::new() }),
            Ok(other) => Err(Refused::request(format!("the body is {}, but an object is needed", found(&other)))),
            Err(_) if body.is_empty() => Err(Refused::request("the body is empty, but a JSON object is needed")),
            Err(error) => Err(Refused::request(format!("the body is not valid JSON: {error}"))),
        }
    }

    /// The name of a field with the names of the objects that it is in.
    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.before)
    }

    /// A field of any kind; null is none.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    /// What is read of a field; none where it is not there. `wanted` completes "but … is needed".
    ///
    /// # Errors
    /// When `read` makes nothing of it.
    pub fn read_as<T>(
        &mut self,
        name: &str,
        wanted: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, Refused> {
        let Some(value) = self.take(name) else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| Refused::wrong(&self.path(name), &value, wanted))
    }

    /// A field that must be there; `wanted` says what it holds.
    ///
    /// # Errors
    /// When it is not there, or `read` makes nothing of it.
    pub fn needed<T>(
        &mut self,
        name: &str,
        wanted: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Refused> {
        self.read_as(name, wanted, read)?.ok_or_else(|| Refused::missing(&self.path(name), wanted))
    }

    /// A number within `range`.
    ///
    /// # Errors
    /// When it is something else.
    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, Refused> {
        let wanted = format!("a number from {} to {}", range.start(), range.end());
        self.read_as(name, &wanted, |value| value.as_f64().filter(|number| range.contains(number)))
    }

    /// A whole number within `range`.
    ///
    /// # Errors
    /// When it is something else.
    pub fn count(&mut self, name: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, Refused> {
        let wanted = format!("a whole number from {} to {}", range.start(), range.end());
        let count = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|count| range.contains(count));
        self.read_as(name, &wanted, count)
    }

    /// `true` or `false`; false where it is not there.
    ///
    /// # Errors
    /// When it is something else.
    pub fn flag(&mut self, name: &str) -> Result<bool, Refused> {
        Ok(self.read_as(name, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    /// A text.
    ///
    /// # Errors
    /// When it is something else.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, Refused> {
        self.read_as(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// An object; empty where it is not there.
    ///
    /// # Errors
    /// When it is something else.
    pub fn object(&mut self, name: &str) -> Result<Map<String, Value>, Refused> {
        Ok(self.read_as(name, "an object", |value| value.as_object().cloned())?.unwrap_or_default())
    }

    /// The fields of an object, which are named after it.
    ///
    /// # Errors
    /// When it is something else.
    pub fn within(&mut self, name: &str) -> Result<Self, Refused> {
        Ok(Self { fields: self.object(name)?, before: format!("{}.", self.path(name)) })
    }

    /// Refuses a field that asks for something that is not done here; `neutral` says which values ask for nothing.
    ///
    /// # Errors
    /// When it is there and not neutral.
    pub fn refuse(&mut self, name: &str, neutral: fn(&Value) -> bool) -> Result<(), Refused> {
        match self.take(name) {
            Some(value) if !neutral(&value) => Err(Refused::unsupported(&self.path(name))),
            _ => Ok(()),
        }
    }
}
