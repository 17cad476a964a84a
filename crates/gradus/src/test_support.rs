//! Helpers shared by tests, in this crate and in its `tests/`.

#[path = "../tests/support/material.rs"]
mod material;
#[path = "../tests/support/scorer.rs"]
mod scorer;
#[path = "../tests/support/service.rs"]
mod service;
#[path = "../tests/support/skip.rs"]
mod skip;

pub(crate) use material::material;
pub(crate) use scorer::ByRule;
pub(crate) use service::{RequestLog, serve};
