//! What several tests share.

use std::path::{Path, PathBuf};

/// A file of the material folder beside the workspace, or `None` with a visible line where it is absent.
///
/// # Panics
/// When it is absent and `GRADUS_REQUIRE` asks for `material`.
pub fn material(file: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/material").join(file);
    if path.exists() {
        return Some(path);
    }
    let required = std::env::var("GRADUS_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == "material"), "material not found: {file}");
    eprintln!("skipped: material not found: {file}");
    None
}
