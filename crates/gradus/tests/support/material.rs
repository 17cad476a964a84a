//! Real data sets, tokenizers and models, where they are at hand.

use std::path::{Path, PathBuf};

use super::skip::skipped;

/// A file of the material folder beside the workspace; `None`, and a visible line, where it is absent.
///
/// # Panics
/// When it is absent and `GRADUS_REQUIRE` asks for `material`.
pub fn material(file: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/material").join(file);
    if !path.exists() {
        skipped("material", &format!("{file} is not there"));
        return None;
    }
    Some(path)
}
