//! The label of a classifier that a reward reads, and the number taken from it.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A label by name or index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LabelName(pub String);

impl<'de> Deserialize<'de> for LabelName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrNumber;

        impl Visitor<'_> for NameOrNumber {
            type Value = LabelName;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("the name of a label, or its number")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<LabelName, E> {
                Ok(LabelName(name.into()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<LabelName, E> {
                Ok(LabelName(number.to_string()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<LabelName, E> {
                Ok(LabelName(number.to_string()))
            }
        }

        deserializer.deserialize_any(NameOrNumber)
    }
}

impl JsonSchema for LabelName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LabelName".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<String>()
    }
}

/// Number that a label contributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClassifierValue {
    /// The label's logit.
    Logit,
    /// The label's probability.
    Probability,
    /// `ln p − ln(1 − p)`.
    LogOdds,
}
