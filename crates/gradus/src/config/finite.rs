//! Values of a program as JSON. JSON has no NaN and no infinity: `serde_json` writes `null`, which is the value of an unset key. So these
//! numbers are refused first.

use ciborium::Value;
use serde::Serialize;
use serde_json::Value as Json;

/// Converts the value of the key `name` to JSON.
///
/// # Errors
/// A message if the value has no JSON form, or if a number in it is not finite.
pub(crate) fn to_json(name: &str, value: &(impl Serialize + ?Sized)) -> Result<Json, String> {
    let no_form = |error: &dyn std::fmt::Display| format!("the value of `{name}`: {error}");
    let json = serde_json::to_value(value).map_err(|error| no_form(&error))?;
    // CBOR has all numbers of Rust.
    let every_number = Value::serialized(value).map_err(|error| no_form(&error))?;
    match not_finite(name, &every_number) {
        Some((path, number)) => Err(format!("`{path}` is {number}, but a finite number is needed")),
        None => Ok(json),
    }
}

/// Returns the first number that is not finite, and its path. Items of a list have the path of the list.
fn not_finite(path: &str, value: &Value) -> Option<(String, f64)> {
    match value {
        Value::Float(number) if !number.is_finite() => Some((path.to_owned(), *number)),
        Value::Array(items) => items.iter().find_map(|item| not_finite(path, item)),
        Value::Map(entries) => entries.iter().find_map(|(key, value)| match key.as_text() {
            Some(key) => not_finite(&format!("{path}.{key}"), value),
            None => not_finite(path, value),
        }),
        _ => None,
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
