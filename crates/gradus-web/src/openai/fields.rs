//! The fields of a request, each taken once, with what is wrong with it said by its name.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::refused::Refused;

/// The fields of a request that were not taken yet.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// The fields of a body.
    ///
    /// # Errors
    /// When it is no JSON object.
    pub fn read(body: &[u8]) -> Result<Self, Refused> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(Refused::request("the body is JSON, but no object")),
            Err(error) => Err(Refused::request(format!("the body is not valid JSON: {error}"))),
        }
    }

    /// The fields of an object within a request.
    pub fn of(fields: Map<String, Value>) -> Self {
        Self(fields)
    }

    /// A field of any kind; null is none.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// A number within `range`.
    ///
    /// # Errors
    /// When it is something else.
    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, Refused> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let wanted = format!("a number from {} to {} is needed", range.start(), range.end());
                Err(Refused::field(name, format!("`{name}` is {value}, but {wanted}")))
            }
        }
    }

    /// A whole number within `range`.
    ///
    /// # Errors
    /// When it is something else.
    pub fn count(&mut self, name: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, Refused> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_u64().and_then(|count| usize::try_from(count).ok()).filter(|count| range.contains(count)) {
            Some(count) => Ok(Some(count)),
            None => {
                let wanted = format!("a whole number from {} to {} is needed", range.start(), range.end());
                Err(Refused::field(name, format!("`{name}` is {value}, but {wanted}")))
            }
        }
    }

    /// `true` or `false`; false where it is not there.
    ///
    /// # Errors
    /// When it is something else.
    pub fn flag(&mut self, name: &str) -> Result<bool, Refused> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(value) => Err(Refused::field(name, format!("`{name}` is {value}, but true or false is needed"))),
        }
    }

    /// A text.
    ///
    /// # Errors
    /// When it is something else.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, Refused> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(Refused::field(name, format!("`{name}` is {value}, but a string is needed"))),
        }
    }

    /// An object; empty where it is not there.
    ///
    /// # Errors
    /// When it is something else.
    pub fn object(&mut self, name: &str) -> Result<Map<String, Value>, Refused> {
        match self.take(name) {
            None => Ok(Map::new()),
            Some(Value::Object(object)) => Ok(object),
            Some(value) => Err(Refused::field(name, format!("`{name}` is {value}, but an object is needed"))),
        }
    }

    /// Refuses a field that asks for something that is not done here; `neutral` says which values ask for nothing.
    ///
    /// # Errors
    /// When it is there and not neutral.
    pub fn refuse(&mut self, name: &str, neutral: fn(&Value) -> bool) -> Result<(), Refused> {
        match self.take(name) {
            Some(value) if !neutral(&value) => {
                Err(Refused::field(name, format!("`{name}` is not supported by this server: leave it out")))
            }
            _ => Ok(()),
        }
    }
}
