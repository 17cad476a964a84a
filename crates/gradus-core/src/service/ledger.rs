//! Answers stored in a file, one JSON object per line, so that no question is asked twice.
//!
//! Several ledgers can share a file, even in different processes: each reads the additions of the others before it sends a request. An
//! incomplete line from a writer that died is removed. If a key occurs twice, the later line counts.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result, excerpt};
use crate::files;

/// Maximum number of characters of a line that a message quotes.
const QUOTED: usize = 60;

/// A line of the file.
pub trait Entry: Serialize + DeserializeOwned + Clone {
    /// Form of a line, for messages.
    const FORM: &'static str;
    /// Name of an answer in messages: `score`.
    const WHAT: &'static str;

    /// Exact text of the question.
    fn key(&self) -> &str;

    /// Author of the answer, if the line names one.
    fn author(&self) -> Option<&str>;

    /// Checks the values of a line that has the right form.
    ///
    /// # Errors
    /// The problem.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A file of answers.
pub struct Ledger<E> {
    path: PathBuf,
    is_written: bool,
    /// Author of the answers in the file.
    author: Option<String>,
    known: Mutex<LedgerState<E>>,
}

struct LedgerState<E> {
    entries: HashMap<String, E>,
    /// Offset up to which the file has been read.
    end: u64,
    /// File for new lines; `None` if the ledger is read-only.
    file: Option<File>,
}

impl<E: Entry> Ledger<E> {
    /// Opens a file for reading only.
    ///
    /// # Errors
    /// If it cannot be read, or a line is invalid.
    pub fn read(path: &Path) -> Result<Self> {
        let mut author = None;
        let mut known = LedgerState { entries: HashMap::new(), end: 0, file: None };
        known.read_on(path, &mut author)?;
        Ok(Self { path: path.to_owned(), is_written: false, author, known: Mutex::new(known) })
    }

    /// Opens a file for the answers of `author`; it need not exist.
    ///
    /// # Errors
    /// If it cannot be read or written, or a line is invalid or has another author.
    pub fn open(path: &Path, author: &str) -> Result<Self> {
        let mut known = LedgerState { entries: HashMap::new(), end: 0, file: None };
        if path.exists() {
            let tail = known.read_on(path, &mut Some(author.to_owned()))?;
            mend(path, tail, known.end).map_err(|source| Error::io(path, source))?;
        }
        let file = OpenOptions::new().append(true).create(true).open(path);
        known.file = Some(file.map_err(|source| Error::io(path, source))?);
        Ok(Self { path: path.to_owned(), is_written: true, author: Some(author.to_owned()), known: Mutex::new(known) })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Author of the answers in the file, if it names one.
    pub fn author(&self) -> Option<&str> {
        self.author.as_deref()
    }

    fn known(&self) -> MutexGuard<'_, LedgerState<E>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of keys with an answer.
    pub fn len(&self) -> usize {
        self.known().entries.len()
    }

    /// Returns true if there are no answers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Answer for a key.
    pub fn get(&self, key: &str) -> Option<E> {
        self.known().entries.get(key).cloned()
    }

    /// Returns the keys without an answer, once each. It first reads what other writers have added.
    ///
    /// # Errors
    /// If their additions cannot be read.
    pub fn missing<'k>(&self, keys: &[&'k str]) -> Result<Vec<&'k str>> {
        let mut known = self.known();
        if self.is_written && keys.iter().any(|key| !known.entries.contains_key(*key)) {
            known.read_on(&self.path, &mut self.author.clone())?;
        }
        let mut seen = HashSet::new();
        Ok(keys.iter().copied().filter(|key| !known.entries.contains_key(*key) && seen.insert(*key)).collect())
    }

    /// Adds answers.
    ///
    /// # Errors
    /// If they cannot be written. This ledger still returns them.
    pub fn add(&self, entries: Vec<E>) -> std::io::Result<()> {
        let mut lines = Vec::new();
        for entry in &entries {
            serde_json::to_writer(&mut lines, entry).expect("texts and numbers");
            lines.push(b'\n');
        }
        let mut known = self.known();
        for entry in entries {
            known.entries.insert(entry.key().to_owned(), entry);
        }
        // A single write of complete lines, so that other processes can append to the same file.
        known.file.as_mut().map_or(Ok(()), |file| file.write_all(&lines))
    }
}

/// End of a file.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Tail {
    /// The file is empty or ends with a complete line.
    Clean,
    /// The last line lacks only its line end.
    Unended,
    /// The last line is incomplete.
    Torn,
}

impl<E: Entry> LedgerState<E> {
    /// Reads the lines after `end`.
    fn read_on(&mut self, path: &Path, author: &mut Option<String>) -> Result<Tail> {
        let read = || -> std::io::Result<_> {
            let mut file = files::open(path)?;
            file.seek(SeekFrom::Start(self.end))?;
            Ok(BufReader::new(file))
        };
        let mut lines = read().map_err(|source| Error::io(path, source))?;
        // Lines are counted only if the file is read from its beginning, as when it is opened.
        let (mut bytes, mut number, begins) = (Vec::new(), 0, self.end == 0);
        loop {
            bytes.clear();
            number += 1;
            lines.read_until(b'\n', &mut bytes).map_err(|source| Error::io(path, source))?;
            let tail = match bytes.last() {
                None => return Ok(Tail::Clean),
                Some(b'\n') => Tail::Clean,
                Some(_) => Tail::Unended,
            };
            if !bytes.trim_ascii().is_empty() {
                match parse::<E>(&bytes, author) {
                    Ok(entry) => drop(self.entries.insert(entry.key().to_owned(), entry)),
                    Err(_) if tail == Tail::Unended => return Ok(Tail::Torn),
                    Err((message, hint)) => {
                        let error = Error::data(path, begins.then_some(number), message);
                        return Err(hint.into_iter().fold(error, Error::with_hint));
                    }
                }
            }
            if tail == Tail::Unended {
                return Ok(tail);
            }
            self.end += bytes.len() as u64;
        }
    }
}

/// Parses an entry and checks its author, if one is known.
fn parse<E: Entry>(bytes: &[u8], author: &mut Option<String>) -> Result<E, (String, Option<String>)> {
    let entry: E = serde_json::from_slice(bytes).map_err(|error| {
        let quoted = excerpt(&String::from_utf8_lossy(bytes), QUOTED);
        (format!("expected `{}` (found `{quoted}`: {error})", E::FORM), None)
    })?;
    entry.check().map_err(|message| (message, None))?;
    match (entry.author(), &author) {
        (Some(found), Some(expected)) if found != expected => {
            let what = E::WHAT;
            // Names may contain backticks.
            let message = format!("the {what} is by \"{found}\", but \"{expected}\" is expected");
            return Err((
                message,
                Some(format!("{what}s by different authors cannot be compared: use a separate file for each")),
            ));
        }
        (Some(found), None) => *author = Some(found.to_owned()),
        _ => {}
    }
    Ok(entry)
}

/// Repairs the end of the file, so that lines can be appended. Complete lines end at `end`.
fn mend(path: &Path, tail: Tail, end: u64) -> std::io::Result<()> {
    match tail {
        Tail::Clean => Ok(()),
        Tail::Unended => OpenOptions::new().append(true).open(path)?.write_all(b"\n"),
        Tail::Torn => OpenOptions::new().write(true).open(path)?.set_len(end),
    }
}
