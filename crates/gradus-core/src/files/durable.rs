//! Waits until data is on the disk.
//!
//! Development builds do not wait unless the environment variable `GRADUS_DURABLE` is set. Only a loss of power or a disk
//! that fails could show the difference, and the wait takes more than half of the time of the tests.

use std::fs::File;
use std::io;
use std::sync::LazyLock;

/// Whether files are flushed to the disk.
#[expect(clippy::disallowed_methods, reason = "ARCHITECTURE.md lists this variable")]
static IS_DURABLE: LazyLock<bool> =
    LazyLock::new(|| !cfg!(debug_assertions) || std::env::var_os("GRADUS_DURABLE").is_some());

/// Returns the value of SQLite's pragma `synchronous` for files that must survive a loss of power.
pub fn sqlite_synchronous() -> &'static str {
    if *IS_DURABLE { "FULL" } else { "OFF" }
}

/// Flushes a file, or the entries of a directory, to the disk.
///
/// # Errors
/// An error of the operating system.
#[expect(clippy::disallowed_methods, reason = "the only place")]
pub fn sync(file: &File) -> io::Result<()> {
    if *IS_DURABLE { file.sync_all() } else { Ok(()) }
}
