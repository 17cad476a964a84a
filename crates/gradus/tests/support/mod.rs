//! Helpers shared by several test programs.

#![allow(dead_code, unused_imports, reason = "no program needs all of it")]

mod material;
pub mod skip;

pub use material::material;
pub use skip::skipped;
