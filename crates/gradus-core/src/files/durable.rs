//! Waits until data is on the disk.
//!
//! Development builds do not wait. Only a loss of power could show the difference, and the wait takes more than half of
//! the time of the tests.

use std::fs::File;
use std::io;

/// Whether files are flushed to the disk.
const IS_DURABLE: bool = !cfg!(debug_assertions);

/// Value of SQLite's pragma `synchronous` for files that must survive a loss of power.
pub const SQLITE_SYNCHRONOUS: &str = if IS_DURABLE { "FULL" } else { "OFF" };

/// Flushes a file, or the entries of a directory, to the disk.
///
/// # Errors
/// An error of the operating system.
#[expect(clippy::disallowed_methods, reason = "the only place")]
pub fn sync(file: &File) -> io::Result<()> {
    if IS_DURABLE { file.sync_all() } else { Ok(()) }
}
