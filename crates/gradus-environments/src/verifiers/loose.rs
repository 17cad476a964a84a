//! Reads MessagePack as JSON. Bytes become null, because they hold arrays that gradus does not read. Numeric keys become strings.

use std::cell::Cell;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Maximum nesting depth of a message.
const DEPTH_MAX: usize = 128;

/// Maximum number of values in a message. A value takes as little as one byte in a message, but dozens of bytes in memory.
pub const VALUES_MAX: usize = 1 << 20;

/// Reads a message.
///
/// # Errors
/// Returns a description of the problem.
pub fn read(bytes: &[u8]) -> Result<Value, String> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    reader.set_max_depth(DEPTH_MAX);
    let room = Cell::new(VALUES_MAX);
    Loose(&room).deserialize(&mut reader).map_err(|error| error.to_string())
}

/// Writes a message.
pub fn write(value: &Value) -> Vec<u8> {
    // JSON has no type that MessagePack lacks.
    rmp_serde::to_vec_named(value).unwrap_or_default()
}

/// Reads a value if the budget of values allows it.
#[derive(Clone, Copy)]
struct Loose<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Loose<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let room = self.0.get().checked_sub(1);
        self.0.set(room.ok_or_else(|| D::Error::custom(format!("it has more than {VALUES_MAX} values")))?);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Loose<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        // An extension type, such as a time.
        IgnoredAny::deserialize(deserializer).map(|_| Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, value)) = entries.next_entry_seed(self, self)? {
            let key = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
            map.insert(key, value);
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let value = json!({ "a": [1, -2, 2.5, null, true, "é"], "b": { "c": {} }, "": 12_345_678_901_i64 });
        assert_eq!(read(&write(&value)).expect("a message"), value);
    }

    #[test]
    fn a_message_has_so_many_values_and_no_more() {
        let list = |count: u32| [&[0xdd][..], &count.to_be_bytes(), &vec![0xc0; count as usize]].concat();
        let most = VALUES_MAX as u32 - 1;
        assert!(read(&list(most)).is_ok());
        assert!(read(&list(most + 1)).expect_err("too many").contains("more than 1048576 values"));
    }

    #[test]
    fn what_json_lacks_becomes_null_or_a_text() {
        // {1: bytes, "x": NaN, "y": an extension}
        let bytes =
            [&[0x83, 0x01, 0xc4, 2, 9, 9, 0xa1, b'x', 0xcb][..], &f64::NAN.to_be_bytes(), &[0xa1, b'y', 0xd4, 5, 7]]
                .concat();
        assert_eq!(read(&bytes).expect("a message"), json!({ "1": null, "x": null, "y": null }));
        for broken in [&[0x81, 0x01][..], &[0xc1], &[], &[0xdf, 0xff, 0xff, 0xff, 0xff], &[0x91; 5000]] {
            assert!(read(broken).is_err(), "{:?}", &broken[..broken.len().min(5)]);
        }
    }
}
