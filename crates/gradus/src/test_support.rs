//! Helpers shared by tests, in this crate and in its `tests/`.

#[path = "../tests/support/material.rs"]
mod material;
#[path = "../tests/support/skip.rs"]
mod skip;

pub(crate) use material::material;
pub(crate) use skip::skipped;
