//! Colors for the values of text ranges.

/// Returns the CSS classes of a value, given the largest absolute value `most`. Empty for 0.
pub fn value_class(value: f64, most: f64) -> &'static str {
    if value == 0.0 || !value.is_finite() {
        return "";
    }
    let size = ((value.abs() / most) * 3.0).ceil();
    match (value > 0.0, size > 1.0, size > 2.0) {
        (true, false, _) => "worth better-1",
        (true, true, false) => "worth better-2",
        (true, true, true) => "worth better-3",
        (false, false, _) => "worth worse-1",
        (false, true, false) => "worth worse-2",
        (false, true, true) => "worth worse-3",
    }
}
