//! `tags.json`: tags and a note that the user gives to a run.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files::{self, atomic};

/// Name of the file.
const FILE: &str = "tags.json";
/// Maximum length of a tag, in characters. Longer texts belong in the note.
const TAG_LENGTH_MAX: usize = 40;

/// Tags and a note. Readers ignore unknown keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// Single words, in the order in which they were added.
    pub tags: Vec<String>,
    /// Free text.
    pub note: Option<String>,
}

impl Labels {
    /// Reads the labels of the run at `path`; empty if there is no file.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Data`] if the file is corrupt.
    pub fn read(path: &Path) -> Result<Self> {
        let path = path.join(FILE);
        match files::read_run_text(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|error| Error::data(path, Some(error.line()), format!("broken JSON: {error}"))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(Error::io(path, source)),
        }
    }

    /// Writes the labels atomically.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).expect("plain data with string keys") + "\n";
        atomic::write_bytes(&path.join(FILE), text.as_bytes())
    }

    /// Adds a tag, unless it is already present.
    ///
    /// # Errors
    /// [`Error::Input`] if `tag` is not a single short word.
    pub fn add(&mut self, tag: &str) -> Result<()> {
        let refuse = |why: &str| Err(Error::input(format!("`{tag}` is not a tag: {why}")));
        match tag {
            "" => return refuse("it is empty"),
            _ if tag.chars().any(|c| c.is_whitespace() || c.is_control() || c == ',') => {
                return refuse("a tag is one word without blanks and commas");
            }
            _ if tag.chars().count() > TAG_LENGTH_MAX => return refuse("it is longer than 40 characters"),
            _ => {}
        }
        if !self.tags.iter().any(|known| known == tag) {
            self.tags.push(tag.to_owned());
        }
        Ok(())
    }

    /// Removes a tag. Returns true if it was present.
    pub fn remove(&mut self, tag: &str) -> bool {
        let before = self.tags.len();
        self.tags.retain(|known| known != tag);
        self.tags.len() < before
    }
}
