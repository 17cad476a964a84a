//! Configuration of a program: `[program, args…]`, or a mapping with `program` and more keys.

use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor, value};

/// Default time limit of a program, in seconds.
pub const TIMEOUT_S: f64 = 60.0;

/// [`TIMEOUT_S`], for `#[serde(default = …)]`.
pub fn default_timeout_s() -> f64 {
    TIMEOUT_S
}

/// Reads `[program, args…]`, with defaults for all other keys, or the mapping that `M` reads.
///
/// # Errors
/// If the value is neither.
// Written by hand, because an untagged enum would answer every mistake with "did not match any variant".
pub fn read_program<'de, M, D>(deserializer: D) -> Result<M, D::Error>
where
    M: Deserialize<'de> + From<Vec<String>>,
    D: Deserializer<'de>,
{
    struct ListOrMapping<M>(PhantomData<M>);

    impl<'de, M: Deserialize<'de> + From<Vec<String>>> Visitor<'de> for ListOrMapping<M> {
        type Value = M;

        fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
            f.write_str("a list `[program, args…]` or a mapping with `program`")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<M, A::Error> {
            Vec::deserialize(value::SeqAccessDeserializer::new(list)).map(M::from)
        }

        fn visit_map<A: MapAccess<'de>>(self, mapping: A) -> Result<M, A::Error> {
            M::deserialize(value::MapAccessDeserializer::new(mapping))
        }
    }

    deserializer.deserialize_any(ListOrMapping(PhantomData))
}

/// Returns the schema of the values that [`read_program`] accepts.
pub fn schema_of_program<M: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mapping = generator.subschema_for::<M>();
    json_schema!({ "anyOf": [{ "type": "array", "items": { "type": "string" } }, mapping] })
}
