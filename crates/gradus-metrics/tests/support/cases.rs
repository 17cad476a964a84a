//! Test cases of a fixture written by `tools/parity`: a metric, its options, and the values of the reference tool.

use gradus_metrics::{Measure, Row};
use serde_json::Value;

/// Returns the items of a list.
///
/// # Panics
/// If the value is not a list.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

/// Returns a text.
///
/// # Panics
/// If the value is not a text.
pub fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

/// Compares every case of a fixture with the result of `measured` for a metric and its options. Returns the number of compared values.
///
/// # Panics
/// If values differ by more than `tolerance`.
pub fn check(
    tolerance: f64,
    file: &str,
    fixture: &Value,
    rows: &[Row],
    measured: impl Fn(&str, &[Row]) -> Vec<(String, Measure)>,
) -> usize {
    let mut compared = 0;
    let mut wrong = Vec::new();
    for case in list(&fixture["cases"]) {
        let options = list(&case["options"]).iter().map(|option| format!(" {}", text(option))).collect::<String>();
        let words = format!("{}{options}", text(&case["metric"]));
        let found = measured(&words, rows);
        for (key, expected) in case["values"].as_object().expect("values by key") {
            let measure =
                &found.iter().find(|(name, _)| name == key).unwrap_or_else(|| panic!("{words}: no `{key}`")).1;
            let close = |found: f64, expected: f64| (found - expected).abs() <= tolerance * expected.abs().max(1.0);
            let mut compare = |what: String, found: f64, expected: &Value| {
                let agrees = match expected.as_f64() {
                    Some(expected) => close(found, expected),
                    // If the script divides by zero (empty prediction), gradus still returns a value: docs/metrics.md.
                    None if key == "bleu" => found.is_finite(),
                    // `null`: the tool has nothing to measure.
                    None => found.is_nan(),
                };
                compared += 1;
                if !agrees {
                    wrong.push(format!("{file}: {words}: {key} of {what}: {found} instead of {expected}"));
                }
            };
            if let Some(expected) = expected.get("value") {
                compare("all rows".into(), measure.value(), expected);
            }
            let of_rows = measure.row_values().unwrap_or_default();
            for (i, expected) in expected["rows"].as_array().into_iter().flatten().enumerate() {
                compare(format!("row {i}"), of_rows[i], expected);
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared} differ:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
    compared
}
