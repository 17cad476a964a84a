//! Real data sets, tokenizers and models, if they are available.

use std::path::{Path, PathBuf};

use super::skip::skipped;

/// Returns a file of the material folder next to the workspace; prints a visible line and returns `None` if it is
/// absent.
///
/// # Panics
/// If it is absent and `GRADUS_REQUIRE` contains `material`.
pub fn material(file: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/material").join(file);
    if !path.exists() {
        skipped("material", &format!("{file} is not there"));
        return None;
    }
    Some(path)
}
