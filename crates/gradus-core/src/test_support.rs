//! Helpers shared by tests.

#[path = "../../gradus/tests/support/skip.rs"]
mod skip;

pub(crate) use skip::skipped;
