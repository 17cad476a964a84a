//! Finds numbers that JSON cannot represent, in values before they are written as JSON.

use std::fmt::Display;

use serde::ser::{
    Error as _, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// Returns the first non-finite number in `value`, with its key. `None` if all numbers are finite.
pub fn not_finite(value: &impl Serialize) -> Option<(String, f64)> {
    let mut walk = Walk { path: Vec::new(), found: None };
    // A value that cannot be traversed cannot be written either. The error appears there.
    let _ = value.serialize(&mut walk);
    walk.found
}

struct Walk {
    path: Vec<String>,
    found: Option<(String, f64)>,
}

/// Error that stops the traversal.
type Stop = std::fmt::Error;

impl Walk {
    fn number(&mut self, value: f64) -> Result<(), Stop> {
        if value.is_finite() {
            return Ok(());
        }
        self.found = Some((self.path.join("."), value));
        Err(Stop::custom("found"))
    }

    fn within<T: Serialize + ?Sized>(&mut self, key: String, value: &T) -> Result<(), Stop> {
        self.path.push(key);
        value.serialize(&mut *self)?;
        self.path.pop();
        Ok(())
    }
}

/// Elements of a list; their index is the key.
struct Elements<'a> {
    walk: &'a mut Walk,
    next: usize,
}

impl Elements<'_> {
    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Stop> {
        let key = self.next.to_string();
        self.next += 1;
        self.walk.within(key, value)
    }
}

/// Implements serialization of types without non-finite numbers.
macro_rules! fine {
    ($($method:ident($type:ty)),*) => {
        $(fn $method(self, _: $type) -> Result<(), Stop> {
            Ok(())
        })*
    };
}

impl<'a> Serializer for &'a mut Walk {
    type Ok = ();
    type Error = Stop;
    type SerializeSeq = Elements<'a>;
    type SerializeTuple = Elements<'a>;
    type SerializeTupleStruct = Elements<'a>;
    type SerializeTupleVariant = Elements<'a>;
    type SerializeMap = Entries<'a>;
    type SerializeStruct = Entries<'a>;
    type SerializeStructVariant = Entries<'a>;

    fine!(
        serialize_bool(bool),
        serialize_i8(i8),
        serialize_i16(i16),
        serialize_i32(i32),
        serialize_i64(i64),
        serialize_u8(u8),
        serialize_u16(u16),
        serialize_u32(u32),
        serialize_u64(u64),
        serialize_char(char),
        serialize_str(&str),
        serialize_bytes(&[u8]),
        serialize_unit_struct(&'static str)
    );

    fn serialize_f32(self, value: f32) -> Result<(), Stop> {
        self.number(f64::from(value))
    }
    fn serialize_f64(self, value: f64) -> Result<(), Stop> {
        self.number(value)
    }
    fn serialize_none(self) -> Result<(), Stop> {
        Ok(())
    }
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Stop> {
        value.serialize(self)
    }
    fn serialize_unit(self) -> Result<(), Stop> {
        Ok(())
    }
    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<(), Stop> {
        Ok(())
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Stop> {
        value.serialize(self)
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        value: &T,
    ) -> Result<(), Stop> {
        self.within(name.to_owned(), value)
    }
    fn serialize_seq(self, _: Option<usize>) -> Result<Elements<'a>, Stop> {
        Ok(Elements { walk: self, next: 0 })
    }
    fn serialize_tuple(self, _: usize) -> Result<Elements<'a>, Stop> {
        self.serialize_seq(None)
    }
    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Elements<'a>, Stop> {
        self.serialize_seq(None)
    }
    fn serialize_tuple_variant(self, _: &'static str, _: u32, _: &'static str, _: usize) -> Result<Elements<'a>, Stop> {
        self.serialize_seq(None)
    }
    fn serialize_map(self, _: Option<usize>) -> Result<Entries<'a>, Stop> {
        Ok(Entries { walk: self, key: String::new() })
    }
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Entries<'a>, Stop> {
        self.serialize_map(None)
    }
    fn serialize_struct_variant(self, _: &'static str, _: u32, _: &'static str, _: usize) -> Result<Entries<'a>, Stop> {
        self.serialize_map(None)
    }
    fn collect_str<T: Display + ?Sized>(self, _: &T) -> Result<(), Stop> {
        Ok(())
    }
}

/// Entries of a map, with their keys.
struct Entries<'a> {
    walk: &'a mut Walk,
    key: String,
}

macro_rules! elements {
    ($($kind:ident::$method:ident),*) => {
        $(impl $kind for Elements<'_> {
            type Ok = ();
            type Error = Stop;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Stop> {
                self.element(value)
            }
            fn end(self) -> Result<(), Stop> {
                Ok(())
            }
        })*
    };
}

elements!(
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field
);

macro_rules! entries {
    ($($kind:ident),*) => {
        $(impl $kind for Entries<'_> {
            type Ok = ();
            type Error = Stop;
            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Stop> {
                self.walk.within(key.to_owned(), value)
            }
            fn end(self) -> Result<(), Stop> {
                Ok(())
            }
        })*
    };
}

entries!(SerializeStruct, SerializeStructVariant);

impl SerializeMap for Entries<'_> {
    type Ok = ();
    type Error = Stop;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Stop> {
        self.key = serde_json::to_value(key)
            .map_or_else(|_| "?".into(), |key| key.as_str().map_or(key.to_string(), str::to_owned));
        Ok(())
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Stop> {
        let key = std::mem::take(&mut self.key);
        self.walk.within(key, value)
    }
    fn end(self) -> Result<(), Stop> {
        Ok(())
    }
}

/// Returns the current time in Unix seconds.
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub use gradus::runs::short_model;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[derive(serde::Serialize)]
    struct Row {
        name: &'static str,
        scores: Vec<Option<f32>>,
        of: BTreeMap<&'static str, (u8, f64)>,
    }

    #[test]
    fn the_first_number_that_is_not_finite_is_found_with_its_key() {
        let row =
            |score, last| Row { name: "a", scores: vec![Some(1.0), None, Some(score)], of: [("x", (1, last))].into() };
        assert_eq!(not_finite(&row(2.0, 3.0)), None);
        assert_eq!(not_finite(&row(f32::INFINITY, 3.0)), Some(("scores.2".into(), f64::INFINITY)));
        assert_eq!(not_finite(&[row(2.0, f64::NEG_INFINITY)]), Some(("0.of.x.1".into(), f64::NEG_INFINITY)));
        assert_eq!(not_finite(&json!({ "a": [1, null, "text", true, 0.5] })), None);
    }
}
