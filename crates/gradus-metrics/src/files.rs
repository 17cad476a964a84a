//! The one way in which the crate reads files that users name.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use crate::error::{Error, Result};

/// The most bytes that are read of one file: ten times what is known.
pub const MOST_BYTES: u64 = 1 << 30;

/// Opens a regular file. A pipe or a device is refused: it may block or have no end.
///
/// # Errors
/// The operating system's answer, or that it is no regular file.
pub fn open(path: &Path) -> Result<File> {
    let io = |source| Error::io(path, source);
    if !fs::metadata(path).map_err(io)?.is_file() {
        return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
    }
    File::open(path).map_err(io)
}

/// The bytes of a regular file of at most [`MOST_BYTES`].
///
/// # Errors
/// As [`open`]; or the size of a larger file, before it is read.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let io = |source| Error::io(path, source);
    let file = open(path)?;
    let size = file.metadata().map_err(io)?.len();
    if size > MOST_BYTES {
        let message = format!("it has {size} bytes, but at most {MOST_BYTES} are read");
        return Err(io(io::Error::new(io::ErrorKind::InvalidData, message)));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    // A file may grow meanwhile.
    file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}

/// [`read`] of UTF-8.
///
/// # Errors
/// As [`read`]; or the first byte that is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read(path)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::io(path, io::Error::new(io::ErrorKind::InvalidData, format!("byte {} is not UTF-8", at + 1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_texts_of_regular_files_are_read() {
        let refused = |path: &Path| read_text(path).expect_err("refused").to_string();
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert!(refused(folder.path()).ends_with("it is not a regular file"));
        let file = folder.path().join("text");
        fs::write(&file, b"ab\xff").expect("written");
        assert!(refused(&file).ends_with("byte 3 is not UTF-8"));
        assert!(matches!(read(&folder.path().join("absent")), Err(Error::Io { .. })));
    }
}
