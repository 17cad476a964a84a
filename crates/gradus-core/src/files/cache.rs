//! Rows that a program passes, kept in files that are named after their content.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use serde::Serialize;

use crate::error::{Error, Result};

/// Returns the folder for rows: `rows` in `$GRADUS_CACHE`, or in `gradus` of the user's cache folder.
///
/// # Errors
/// If there is neither a cache folder nor a home directory.
#[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
pub fn rows_directory() -> Result<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_user = || named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    let folder = named("GRADUS_CACHE").or_else(|| Some(of_user()?.join("gradus")));
    folder.map(|folder| folder.join("rows")).ok_or_else(|| {
        Error::input("rows of a program need a cache folder, but neither `GRADUS_CACHE` nor `HOME` is set")
            .with_hint("set `GRADUS_CACHE` to a folder, or write the rows to a file and pass its path")
    })
}

/// Writes rows as JSON lines into `folder`, one by one, and returns the path of the file.
///
/// # Errors
/// If there are no rows, a row is not an object or cannot be written as JSON, or the file cannot be written.
pub fn keep_rows<R: Serialize>(folder: &Path, rows: impl IntoIterator<Item = R>) -> Result<PathBuf> {
    fs::create_dir_all(folder).map_err(|source| Error::io(folder, source))?;
    let made = tempfile::Builder::new().suffix(".jsonl").tempfile_in(folder);
    let file = made.map_err(|source| Error::io(folder, source))?;
    let failed = |source| Error::io(file.path(), source);
    let mut writer = BufWriter::new(file.as_file());
    let mut number = 0;
    for row in rows {
        number += 1;
        let line = serde_json::to_string(&row).map_err(|error| Error::input(format!("row {number}: {error}")))?;
        if !line.starts_with('{') {
            let message = format!("row {number} is `{line}`, but must be an object with its columns");
            return Err(Error::input(message).with_hint("such as a struct with `prompt` and `completion`"));
        }
        writeln!(writer, "{line}").map_err(failed)?;
    }
    if number == 0 {
        return Err(Error::input("there are no rows"));
    }
    writer.flush().map_err(failed)?;
    drop(writer);
    keep(file.path(), folder)
}

/// Moves a file into `folder`, under the SHA-256 of its content (the first 16 bytes) and its own extension. A file with
/// the same content is replaced.
///
/// # Errors
/// If the file cannot be read or moved.
pub fn keep(path: &Path, folder: &Path) -> Result<PathBuf> {
    let failed = |source: io::Error| Error::io(path, source);
    let mut file = File::open(path).map_err(failed)?;
    let (mut context, mut buffer) = (Context::new(&SHA256), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).map_err(failed)? {
            0 => break,
            read => context.update(&buffer[..read]),
        }
    }
    let name: String = context.finish().as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let kept = folder.join(name).with_extension(path.extension().unwrap_or_default());
    fs::rename(path, &kept).map_err(failed)?;
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_rows_are_one_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let kept = |rows: &[serde_json::Value]| keep_rows(folder.path(), rows);
        let first = kept(&[json!({ "text": "a" }), json!({ "text": "b" })]).expect("kept");
        assert_eq!(fs::read_to_string(&first).expect("read"), "{\"text\":\"a\"}\n{\"text\":\"b\"}\n");
        assert_eq!(kept(&[json!({ "text": "a" }), json!({ "text": "b" })]).expect("kept"), first);
        assert_ne!(kept(&[json!({ "text": "a" })]).expect("kept"), first);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2, "no temporary file is left");
        assert_eq!(kept(&[]).expect_err("no rows").to_string(), "there are no rows");
        let message = kept(&[json!({ "text": "a" }), json!([1])]).expect_err("a list").to_string();
        assert_eq!(message, "row 2 is `[1]`, but must be an object with its columns");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
    }
}
