//! Models: one family a file, Hugging Face directories in and out.

mod packed;

pub use packed::{Packed, Targets};
