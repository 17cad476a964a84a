//! `checksums.json`: length and CRC-32 of every file of a checkpoint, so that corruption is detected before training continues.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use flate2::Crc;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files;

/// Name of the checksum file.
pub const CHECKSUMS_FILE: &str = "checksums.json";

/// Checksums of the files below a directory at the time of writing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checksums {
    /// Algorithm of the checksums: always `crc32`.
    algorithm: Algorithm,
    /// By path below the directory, with `/` as the separator.
    files: BTreeMap<String, Sum>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Algorithm {
    Crc32,
}

/// Length of one file in bytes and its CRC-32 (as in gzip and PNG) in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sum {
    bytes: u64,
    crc32: String,
}

impl Checksums {
    /// Computes the checksums of every file below `directory`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn of(directory: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        collect(directory, "", &mut files)?;
        Ok(Self { algorithm: Algorithm::Crc32, files })
    }

    /// Reads the checksums in `directory`.
    ///
    /// # Errors
    /// [`Error::Model`] if they are missing or corrupt.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(CHECKSUMS_FILE);
        let text = files::read_run(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::model(&path, "missing"),
            _ => Error::io(&path, source),
        })?;
        serde_json::from_slice(&text).map_err(|error| Error::model(&path, format!("broken JSON: {error}")))
    }

    /// Writes the checksums into `directory`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, directory: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).expect("plain data with string keys") + "\n";
        let path = directory.join(CHECKSUMS_FILE);
        fs::write(&path, text).map_err(|source| Error::io(path, source))
    }

    /// Compares every file below `directory` with its checksum. Files that were added later are ignored.
    ///
    /// # Errors
    /// [`Error::Model`] with all files that are missing or differ.
    pub fn verify(&self, directory: &Path) -> Result<()> {
        joined(self.files.keys().map(|name| self.verify_file(directory, name)))
    }

    /// Compares only the lengths of the files, which is cheap. This detects a write or a copy that was cut off.
    ///
    /// # Errors
    /// [`Error::Model`] with all files that are missing or have another length.
    pub fn verify_lengths(&self, directory: &Path) -> Result<()> {
        joined(self.files.iter().map(|(name, expected)| {
            let path = directory.join(name);
            match fs::metadata(&path).map(|metadata| metadata.len()) {
                Ok(bytes) if bytes == expected.bytes => Ok(()),
                Ok(bytes) => Err(Error::model(path, format!("{bytes} bytes, but {} were written", expected.bytes))),
                Err(_) => Err(Error::model(path, "missing")),
            }
        }))
    }

    /// Compares one file with its checksum.
    ///
    /// # Errors
    /// [`Error::Model`] if the file is missing, differs or is not listed.
    pub fn verify_file(&self, directory: &Path, name: &str) -> Result<()> {
        let path = directory.join(name);
        let Some(expected) = self.files.get(name) else {
            return Err(Error::model(path, format!("not listed in `{CHECKSUMS_FILE}`")));
        };
        if !path.is_file() {
            return Err(Error::model(path, "missing"));
        }
        let found = sum(&path)?;
        if found.bytes != expected.bytes {
            return Err(Error::model(path, format!("{} bytes, but {} were written", found.bytes, expected.bytes)));
        }
        if found.crc32 != expected.crc32 {
            let message = format!("its content has changed (CRC-32 {}, written {})", found.crc32, expected.crc32);
            return Err(Error::model(path, message));
        }
        Ok(())
    }
}

/// Adds the other defects to the message of the first one.
fn joined(found: impl Iterator<Item = Result<()>>) -> Result<()> {
    let mut defects = found.filter_map(Result::err);
    match defects.next() {
        None => Ok(()),
        Some(Error::Model { path, message, hint }) => {
            let others: String = defects.map(|defect| format!("; {defect}")).collect();
            Err(Error::Model { path, message: message + &others, hint })
        }
        Some(other) => Err(other),
    }
}

fn collect(directory: &Path, prefix: &str, files: &mut BTreeMap<String, Sum>) -> Result<()> {
    for entry in fs::read_dir(directory).map_err(|source| Error::io(directory, source))? {
        let entry = entry.map_err(|source| Error::io(directory, source))?;
        let (path, name) = (entry.path(), format!("{prefix}{}", entry.file_name().to_string_lossy()));
        if path.is_dir() {
            collect(&path, &format!("{name}/"), files)?;
        } else {
            files.insert(name, sum(&path)?);
        }
    }
    Ok(())
}

fn sum(path: &Path) -> Result<Sum> {
    let io = |source| Error::io(path, source);
    let mut file = files::open(path).map_err(io)?;
    let (mut crc, mut bytes, mut buffer) = (Crc::new(), 0, vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).map_err(io)? {
            0 => return Ok(Sum { bytes, crc32: format!("{:08x}", crc.sum()) }),
            read => {
                crc.update(&buffer[..read]);
                bytes += read as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("critic")).unwrap();
        // The check value of CRC-32 is defined for these nine digits.
        fs::write(at("critic/digits"), "123456789").unwrap();
        fs::write(at("empty"), "").unwrap();
        Checksums::of(directory.path()).unwrap().write(directory.path()).unwrap();
        let text = fs::read_to_string(at(CHECKSUMS_FILE)).unwrap();
        assert!(text.contains("\"crc32\": \"cbf43926\""), "{text}");
        let check = || Checksums::read(directory.path()).and_then(|sums| sums.verify(directory.path()));
        check().unwrap();
        for file in ["critic/digits", CHECKSUMS_FILE] {
            let bytes = fs::read(at(file)).unwrap();
            for bit in 0..8 * bytes.len() {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                fs::write(at(file), flipped).unwrap();
                assert!(check().is_err(), "bit {bit} of {file}");
            }
            fs::write(at(file), bytes).unwrap();
        }
        fs::write(at("notes.txt"), "added later").unwrap();
        check().unwrap();
        fs::remove_file(at("empty")).unwrap();
        assert_eq!(check().unwrap_err().to_string(), format!("{}: missing", at("empty").display()));
        fs::write(at("critic/digits"), "123").unwrap();
        let both = format!(
            "{}: 3 bytes, but 9 were written; {}: missing",
            at("critic/digits").display(),
            at("empty").display()
        );
        assert_eq!(check().unwrap_err().to_string(), both);
        let lengths = Checksums::read(directory.path()).and_then(|sums| sums.verify_lengths(directory.path()));
        assert_eq!(lengths.unwrap_err().to_string(), both);
    }
}
