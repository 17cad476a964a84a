//! Files of a task: their location, and readers for the formats of public data sets.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{Sample, Split};
use crate::data::{self, BadRows, RowErrors, RowLocation};
use crate::error::{Error, Result};
use crate::process::Interrupt;

/// Where the rows of a task are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// On the hub. Data sets with several configurations have a folder for each.
    Hub {
        /// Name of the data set.
        name: String,
        /// Folder of the configuration.
        folder: Option<String>,
    },
    /// In files to be downloaded by hand. The text names them and their source.
    Files(&'static str),
    /// Nowhere: the task generates its rows.
    Generated,
}

impl Origin {
    /// Returns a data set on the hub without folders.
    pub fn hub(name: &str) -> Self {
        Self::Hub { name: name.to_owned(), folder: None }
    }

    /// Returns a folder of a data set on the hub.
    pub fn folder(name: &str, folder: &str) -> Self {
        Self::Hub { name: name.to_owned(), folder: Some(folder.to_owned()) }
    }
}

/// Input of a task: the files that the user named, or the published ones.
#[derive(Debug)]
pub struct Files<'a> {
    name: Option<&'a str>,
    split: Split,
    max_samples: Option<usize>,
    interrupt: &'a Interrupt,
    bad_rows: BadRows,
    left_out: RefCell<RowErrors>,
}

impl<'a> Files<'a> {
    /// Creates the input from `name`: a file, a directory or a hub name; `None` uses the task's home. At most `max_samples` samples of
    /// `split` are needed. An `interrupt` ends the wait for a program.
    pub fn new(name: Option<&'a str>, split: Split, max_samples: Option<usize>, interrupt: &'a Interrupt) -> Self {
        Self { name, split, max_samples, interrupt, bad_rows: BadRows::Fail, left_out: RefCell::default() }
    }

    /// Sets the treatment of bad rows. Without it, a bad row is an error.
    #[must_use]
    pub fn with_bad_rows(self, bad_rows: BadRows) -> Self {
        Self { bad_rows, left_out: RefCell::new(RowErrors::new(bad_rows)), ..self }
    }

    /// Returns the bad rows that were left out.
    pub fn into_left_out(self) -> RowErrors {
        self.left_out.into_inner()
    }

    /// Returns the name that the user gave.
    pub fn name(&self) -> Option<&'a str> {
        self.name
    }

    /// Returns the flag that is set when the user wants to stop.
    pub fn interrupt(&self) -> &'a Interrupt {
        self.interrupt
    }

    /// Returns the requested split.
    pub fn split(&self) -> Split {
        self.split
    }

    /// Returns the maximum number of samples, or `None` for all.
    pub fn max_samples(&self) -> Option<usize> {
        self.max_samples
    }

    /// Returns the user's name as a path, if it exists.
    pub fn path(&self) -> Option<&'a Path> {
        self.name.map(Path::new).filter(|path| path.exists())
    }

    /// Reads rows from the files of `split` and turns each into samples with `make`, until there are enough. `split` may differ
    /// from the requested one, if a task makes its own splits.
    ///
    /// # Errors
    /// Files that are missing or cannot be read, and at most ten rows that `make` rejects.
    pub fn rows(
        &self,
        origin: Origin,
        split: Split,
        max_samples: Option<usize>,
        make: impl Fn(Map<String, Value>) -> Result<Vec<Sample>, String>,
    ) -> Result<Vec<(RowLocation, Sample)>> {
        let (name, folder) = self.named(&origin)?;
        let source = data::resolve_split(&name, folder.as_deref(), split.name(), &mut |_, _, _| {})?;
        let (mut samples, mut bad, mut read) = (Vec::new(), self.bad(), 0usize);
        'files: for file in &source.files {
            for raw in data::open(file)? {
                if max_samples.is_some_and(|max_samples| samples.len() >= max_samples) {
                    break 'files;
                }
                read += 1;
                let made = match raw {
                    Ok(raw) => make(raw.columns)
                        .map_err(|message| raw.location.error(message))
                        .map(|made| (raw.location, made)),
                    Err(error @ Error::Data { line: Some(_), .. }) => Err(error),
                    Err(fatal) => return Err(fatal),
                };
                match made {
                    Ok((location, made)) => samples.extend(made.into_iter().map(|sample| (location.clone(), sample))),
                    Err(error) => bad.push(error),
                }
            }
        }
        self.finish(samples, bad, read)
    }

    /// Returns the samples, after handling the bad ones among the `read` rows.
    pub(super) fn finish(
        &self,
        samples: Vec<(RowLocation, Sample)>,
        bad: RowErrors,
        read: usize,
    ) -> Result<Vec<(RowLocation, Sample)>> {
        let left_out = bad.settle(read, samples.len())?;
        self.left_out.borrow_mut().append(left_out);
        Ok(samples)
    }

    /// Returns an empty list of bad rows.
    pub(super) fn bad(&self) -> RowErrors {
        RowErrors::new(self.bad_rows)
    }

    /// Finds text files of the split below the user's path by their names without `.gz`, in name order. Empty if the user's name is
    /// not a path.
    ///
    /// # Errors
    /// If a directory cannot be read.
    pub fn text(&self, accepts_name: &dyn Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
        self.path().map_or_else(|| Ok(Vec::new()), |path| data::text_files(path, self.split.name(), accepts_name))
    }

    /// Reads several sets of files line by line in parallel. The files of a set are concatenated.
    ///
    /// # Errors
    /// If a file cannot be read, or one set has fewer lines than the others.
    pub fn side_by_side(&self, sets: &[Vec<PathBuf>]) -> Result<Vec<(RowLocation, Vec<String>)>> {
        let mut columns = Vec::new();
        for files in sets {
            let mut lines = Vec::new();
            for file in files {
                for line in data::lines(file)? {
                    if self.max_samples.is_some_and(|max_samples| lines.len() >= max_samples) {
                        break;
                    }
                    lines.push(line?);
                }
            }
            columns.push(lines);
        }
        let Some(first) = columns.first() else { return Ok(Vec::new()) };
        let (count, shown) = (first.len(), |at: usize| sets[at].first().cloned().unwrap_or_default());
        if let Some(other) = columns.iter().position(|lines| lines.len() != count) {
            let (found, first) = (columns[other].len(), shown(0));
            let message = format!(
                "{found} lines, but `{}` next to it has {count}: the files must match line by line",
                first.display()
            );
            return Err(Error::data(shown(other), None, message));
        }
        let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
        let row = |_| {
            let row: Vec<(RowLocation, String)> = columns.iter_mut().filter_map(Iterator::next).collect();
            (row[0].0.clone(), row.into_iter().map(|(_, text)| text).collect())
        };
        Ok((0..count).map(row).collect())
    }

    /// Returns the name of the data set and its folder.
    ///
    /// # Errors
    /// If the user named no data set, and none is on the hub.
    fn named(&self, origin: &Origin) -> Result<(String, Option<String>)> {
        match (self.name, origin) {
            (Some(name), Origin::Hub { folder, .. }) => Ok((name.to_owned(), folder.clone())),
            (Some(name), _) => Ok((name.to_owned(), None)),
            (None, Origin::Hub { name, folder }) => Ok((name.clone(), folder.clone())),
            (None, origin) => Err(missing(origin)),
        }
    }
}

/// Returns the error for a task whose files are not on the hub, if the user named none.
pub(super) fn missing(origin: &Origin) -> Error {
    let which = if let Origin::Files(which) = origin { which } else { "a directory" };
    Error::input("the task's files are not on a hub, and no path was given").with_hint(format!("`data.from`: {which}"))
}

/// Takes a text column out of a row.
pub(super) fn text(columns: &mut Map<String, Value>, names: &[&str]) -> Result<String, String> {
    let found = names.iter().find(|name| columns.contains_key(**name));
    match found.and_then(|name| columns.shift_remove(*name)) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(format!("column `{}` is {other}, expected a text", found.unwrap_or(&names[0]))),
        None => {
            let found: Vec<String> = columns.keys().map(|name| format!("`{name}`")).collect();
            Err(format!("missing column `{}` (found {})", names[0], found.join(", ")))
        }
    }
}

/// Takes a column with a list of texts out of a row.
pub(super) fn texts(columns: &mut Map<String, Value>, name: &str) -> Result<Vec<String>, String> {
    match columns.shift_remove(name) {
        Some(value) => texts_of(name, value),
        None => Err(format!("missing column `{name}`")),
    }
}

/// Converts the value of a column to a list of texts.
pub(super) fn texts_of(name: &str, value: Value) -> Result<Vec<String>, String> {
    let text = |value: Value| match value {
        Value::String(text) => Ok(text),
        other => Err(format!("column `{name}` holds {other}, expected texts")),
    };
    match value {
        Value::Array(items) => items.into_iter().map(text).collect(),
        other => Err(format!("column `{name}` is {other}, expected a list of texts")),
    }
}
