//! Reading of files that users name. All other modules read files through this one.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use crate::error::{Error, Result};

/// Maximum size of a file in bytes: ten times the largest known one.
pub const MOST_BYTES: u64 = 1 << 30;

/// Opens a regular file. Pipes and devices are rejected because they may block or never end.
///
/// # Errors
/// The operating system reports an error, or the file is not a regular file.
pub fn open(path: &Path) -> Result<File> {
    let io = |source| Error::io(path, source);
    if !fs::metadata(path).map_err(io)?.is_file() {
        return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
    }
    File::open(path).map_err(io)
}

/// Reads a regular file of at most [`MOST_BYTES`].
///
/// # Errors
/// Same as [`open`], or the file is too large. In that case nothing is read, and the error reports the size.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let io = |source| Error::io(path, source);
    let file = open(path)?;
    let size = file.metadata().map_err(io)?.len();
    if size > MOST_BYTES {
        let message = format!("it has {size} bytes, but at most {MOST_BYTES} are read");
        return Err(io(io::Error::new(io::ErrorKind::InvalidData, message)));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    // The file may grow while it is read.
    file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}

/// Reads a UTF-8 file with [`read`].
///
/// # Errors
/// Same as [`read`], or the file is not UTF-8. In that case the error reports the position of the first invalid byte.
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
