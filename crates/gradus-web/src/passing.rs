//! Files that are there for a while.

use std::path::PathBuf;

/// A file that is removed when nobody needs it any more.
pub struct Passing(pub PathBuf);

impl Drop for Passing {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
