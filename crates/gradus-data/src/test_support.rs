//! Helpers shared by tests.

#[path = "../../gradus/tests/support/scorer.rs"]
mod scorer;
#[path = "../../gradus/tests/support/service.rs"]
mod service;

pub(crate) use scorer::ByRule;
pub(crate) use service::serve;
