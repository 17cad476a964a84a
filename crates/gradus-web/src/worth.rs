//! Colors for what stretches of a text are worth.

/// The classes of a value, of which the largest beside it has the size `most`; none where it is worth nothing.
pub fn class(value: f64, most: f64) -> &'static str {
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
