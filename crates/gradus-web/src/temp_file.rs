//! Temporary files.

use std::path::PathBuf;

/// A file that is removed when this value is dropped.
pub struct TempFile(pub PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
