//! Values of a program as JSON. JSON has no NaN and no infinity: `serde_json` writes `null`, which is the value of an unset key. So these
//! numbers are refused first.

use serde::Serialize;
use serde::ser::{
    Error as _, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use serde_json::Value as Json;

/// Converts the value of the key `name` to JSON.
///
/// # Errors
/// A message if the value has no JSON form, or if a number in it is not finite.
pub(crate) fn to_json(name: &str, value: &(impl Serialize + ?Sized)) -> Result<Json, String> {
    let json = serde_json::to_value(value).map_err(|error| format!("the value of `{name}`: {error}"))?;
    value.serialize(Finite { path: name.to_owned() }).map_err(|error| error.to_string())?;
    Ok(json)
}

/// A serializer that writes nothing and fails at a number that is not finite.
#[derive(Clone)]
struct Finite {
    /// Path of the value, for the message.
    path: String,
}

impl Finite {
    fn at(&self, key: &str) -> Self {
        Self { path: format!("{}.{key}", self.path) }
    }
}

/// Methods for values that hold no number that JSON lacks.
macro_rules! accepted {
    ($($method:ident($($of:ty),*);)+) => {
        $(fn $method(self, $(_: $of),*) -> Result<(), Self::Error> {
            Ok(())
        })+
    };
}

impl Serializer for Finite {
    type Ok = ();
    type Error = serde_json::Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = FiniteMap;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    accepted! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_i128(i128);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_u128(u128);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    fn serialize_f32(self, value: f32) -> Result<(), Self::Error> {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), Self::Error> {
        match value.is_finite() {
            true => Ok(()),
            false => Err(Self::Error::custom(format!("`{}` is {value}, but a finite number is needed", self.path))),
        }
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Self::Error> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Self::Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Self::Error> {
        value.serialize(self.at(variant))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, Self::Error> {
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, Self::Error> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Self::Error> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self, Self::Error> {
        Ok(self.at(variant))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<FiniteMap, Self::Error> {
        Ok(FiniteMap { map: self, key: String::new() })
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Self::Error> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self, Self::Error> {
        Ok(self.at(variant))
    }
}

/// Lists of all kinds, whose items have the path of the list.
macro_rules! lists {
    ($($list:ident::$item:ident;)+) => {
        $(impl $list for Finite {
            type Ok = ();
            type Error = serde_json::Error;

            fn $item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Self::Error> {
                value.serialize(self.clone())
            }

            fn end(self) -> Result<(), Self::Error> {
                Ok(())
            }
        })+
    };
}

lists! {
    SerializeSeq::serialize_element;
    SerializeTuple::serialize_element;
    SerializeTupleStruct::serialize_field;
    SerializeTupleVariant::serialize_field;
}

/// Structs of both kinds.
macro_rules! structs {
    ($($kind:ident;)+) => {
        $(impl $kind for Finite {
            type Ok = ();
            type Error = serde_json::Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Result<(), Self::Error> {
                value.serialize(self.at(key))
            }

            fn end(self) -> Result<(), Self::Error> {
                Ok(())
            }
        })+
    };
}

structs! {
    SerializeStruct;
    SerializeStructVariant;
}

/// A map, with the key of the value that follows.
struct FiniteMap {
    map: Finite,
    key: String,
}

impl SerializeMap for FiniteMap {
    type Ok = ();
    type Error = serde_json::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Self::Error> {
        self.key = match serde_json::to_value(key)? {
            Json::String(text) => text,
            other => other.to_string(),
        };
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Self::Error> {
        value.serialize(self.map.at(&self.key))
    }

    fn end(self) -> Result<(), Self::Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[derive(Serialize)]
    enum Choice {
        Number(f64),
        Fields { list: Vec<Option<f32>> },
        None,
    }

    #[test]
    fn a_number_that_json_lacks_is_refused_by_its_path() {
        let message = |found: Result<Json, String>| found.expect_err("refused");
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let expected = |path: &str| format!("`{path}` is {value}, but a finite number is needed");
            assert_eq!(message(to_json("beta", &value)), expected("beta"));
            assert_eq!(message(to_json("beta", &Choice::Number(value))), expected("beta.Number"));
            let choice = Choice::Fields { list: vec![None, Some(1.0), Some(value as f32)] };
            assert_eq!(message(to_json("beta", &choice)), expected("beta.Fields.list"));
            assert_eq!(message(to_json("kl", &BTreeMap::from([("weight", (1, value))]))), expected("kl.weight"));
        }
    }

    #[test]
    fn every_other_value_is_that_of_json() {
        let choice = Choice::Fields { list: vec![None, Some(0.5)] };
        assert_eq!(to_json("beta", &choice), Ok(json!({ "Fields": { "list": [null, 0.5] } })));
        assert_eq!(to_json("beta", &Choice::None), Ok(json!("None")));
        let nested = json!({ "a": [1, -2, 0.5, "text", null, true], "b": {} });
        assert_eq!(to_json("beta", &nested), Ok(nested.clone()));
    }
}
