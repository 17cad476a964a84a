//! How a test says that it could not run here.

use std::io::Write;

/// Says that a test, or a part of one, is left out because `missing` (`material`, `root`, …) is not to be had: one line on
/// the error stream itself, which the test harness does not capture, so that it is seen and can be counted.
///
/// # Panics
/// When `GRADUS_REQUIRE`, a list with commas, names `missing`: what a machine is known to have must not be skipped there.
pub fn skipped(missing: &str, what: &str) {
    let required = std::env::var("GRADUS_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == missing), "GRADUS_REQUIRE asks for `{missing}`, but: {what}");
    // One call a line, so that lines of tests that run side by side do not mix.
    let _ = std::io::stderr().write_all(format!("skipped: {missing}: {what}\n").as_bytes());
}
