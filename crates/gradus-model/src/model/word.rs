//! Number formats in configurations and reports: `#[serde(with = …)]` for their names in the kernels.

use std::borrow::Cow;

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serializer, de::Error};

use gradus_kernels::{Precision, WeightFormat};

use super::directory::SavedWeights;

/// A type whose values are named by words.
pub trait Word: Copy + 'static {
    /// All values.
    const ALL: &[Self];
    /// Returns the word of the value.
    fn name(self) -> &'static str;
}

impl Word for Precision {
    const ALL: &[Self] = Self::ALL;
    fn name(self) -> &'static str {
        self.name()
    }
}

impl Word for WeightFormat {
    const ALL: &[Self] = Self::ALL;
    fn name(self) -> &'static str {
        self.name()
    }
}

impl Word for SavedWeights {
    const ALL: &[Self] = Self::ALL;
    fn name(self) -> &'static str {
        self.name()
    }
}

fn parse<T: Word, E: Error>(text: &str) -> Result<T, E> {
    let found = T::ALL.iter().copied().find(|value| value.name() == text);
    found.ok_or_else(|| E::custom(format!("`{text}` is none of {}", names::<T>().join(", "))))
}

fn names<T: Word>() -> Vec<&'static str> {
    T::ALL.iter().map(|value| value.name()).collect()
}

/// Writes the word.
///
/// # Errors
/// The serializer's.
pub fn serialize<T: Word, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(value.name())
}

/// Reads the word.
///
/// # Errors
/// If no value has it; the message lists the words.
pub fn deserialize<'de, T: Word, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    parse(&Cow::<str>::deserialize(deserializer)?)
}

/// Returns the schema: one of the words.
pub fn schema<T: Word>(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": names::<T>() })
}

/// Like the parent module, for optional values.
pub mod optional {
    use serde_json::{Value, json};

    use super::*;

    /// Writes the word, or null.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<T: Word, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.serialize_some(value.name()),
            None => serializer.serialize_none(),
        }
    }

    /// Reads the word, or null.
    ///
    /// # Errors
    /// If no value has the word; the message lists the words.
    pub fn deserialize<'de, T: Word, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
        Option::<Cow<'_, str>>::deserialize(deserializer)?.map(|text| parse(&text)).transpose()
    }

    /// Returns the schema: one of the words, or null.
    pub fn schema<T: Word>(_: &mut SchemaGenerator) -> Schema {
        let words = names::<T>().into_iter().map(Value::from).chain([Value::Null]);
        json_schema!({ "type": ["string", "null"], "enum": json!(words.collect::<Vec<_>>()) })
    }
}
