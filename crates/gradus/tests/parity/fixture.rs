//! Helpers that read fixtures and compare values to them.

use std::path::PathBuf;

use burn::tensor::Tensor;
use serde_json::Value;

use crate::device::{device, slack};

/// Tolerance of losses, relative to their size or 1, whichever is larger: f32 has seven digits.
pub const VALUE: f64 = 1e-6;
/// Tolerance of gradients, relative to the largest of the case.
pub const GRADIENT: f64 = 1e-5;

pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity")
}

/// Reads a fixture by its path in `tests/fixtures/parity`. Fixtures are part of the repository: absence is a failure.
pub fn read(path: &str) -> Value {
    let path = folder().join(path);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the entries of a list.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("a list, found {value}"))
}

pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number, found {value}"))
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("text, found {value}"))
}

/// Returns all numbers in a value of any nesting, in order.
pub fn flat(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(values) => values.iter().flat_map(flat).collect(),
        value => vec![number(value)],
    }
}

/// As [`flat`], in single precision.
pub fn flat32(value: &Value) -> Vec<f32> {
    flat(value).into_iter().map(|v| v as f32).collect()
}

/// Returns the length of each entry of a list of lists.
pub fn lengths(rows: &Value) -> Vec<usize> {
    list(rows).iter().map(|row| list(row).len()).collect()
}

pub fn tensor(values: &[f32]) -> Tensor<1> {
    Tensor::from_floats(values, &device().autodiff())
}

pub fn leaf(values: &[f32]) -> Tensor<1> {
    tensor(values).require_grad()
}

pub fn values<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.to_data().try_to_vec::<f32>().expect("f32 values")
}

/// Returns the gradients of the scalar `loss`, one list per leaf; zeros for a leaf it does not depend on.
pub fn gradients<const N: usize>(loss: &Tensor<1>, leaves: [&Tensor<1>; N]) -> [Vec<f32>; N] {
    let gradients = loss.backward();
    leaves.map(|leaf| leaf.grad(&gradients).map_or_else(|| vec![0.0; leaf.dims()[0]], |gradient| values(&gradient)))
}

#[track_caller]
pub fn assert_value(case: &str, found: f64, expected: f64) {
    let bound = slack() * VALUE * expected.abs().max(1.0);
    assert!((found - expected).abs() <= bound, "{case}: {found} against {expected}");
}

/// Asserts that each value is within `tolerance`, relative to the largest expected one or `floor`, whichever is larger.
#[track_caller]
pub fn assert_all(case: &str, found: &[f32], expected: &[f64], tolerance: f64, floor: f64) {
    assert_eq!(found.len(), expected.len(), "{case}: how many values");
    let bound = slack() * tolerance * expected.iter().fold(floor, |largest, v| largest.max(v.abs()));
    for (i, (&found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(found) - expected).abs() <= bound, "{case}, value {i}: {found} against {expected}");
    }
}

/// Asserts that each value is within [`VALUE`], relative to itself or 1, whichever is larger.
#[track_caller]
pub fn assert_each(case: &str, found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{case}: how many values");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        assert_value(&format!("{case}, value {i}"), f64::from(found), expected);
    }
}

#[track_caller]
pub fn assert_gradient(case: &str, found: &[f32], expected: &[f64]) {
    assert_all(case, found, expected, GRADIENT, 0.0);
}
