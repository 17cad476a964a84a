//! Temporary files.

use std::path::PathBuf;

/// A file that is removed when this value is dropped.
pub struct Passing(pub PathBuf);

impl Drop for Passing {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
