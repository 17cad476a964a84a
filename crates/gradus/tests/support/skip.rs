//! Reports of tests that could not run on this machine.

use std::io::Write;

/// Reports that a test, or a part of one, is skipped because `missing` (`material`, `root`, …) is not available. Writes
/// one line directly to stderr, which the test harness does not capture, so that it is visible and can be counted.
///
/// # Panics
/// If `GRADUS_REQUIRE`, a comma-separated list, contains `missing`: a machine that is known to have it must not skip
/// the test.
pub fn skipped(missing: &str, what: &str) {
    let required = std::env::var("GRADUS_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == missing), "GRADUS_REQUIRE asks for `{missing}`, but: {what}");
    // One call per line, so that lines of parallel tests do not mix.
    let _ = std::io::stderr().write_all(format!("skipped: {missing}: {what}\n").as_bytes());
}
