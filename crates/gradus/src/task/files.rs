//! The files of a task: where they are, and the forms that public data sets have.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{Sample, Split};
use crate::data::{self, BadRows, Place, RowErrors};
use crate::error::{Error, Result};
use crate::process::Interrupt;

/// Where the rows of a task are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Home {
    /// On the hub, in the folder of a configuration where the data set has several.
    Hub {
        /// The data set.
        name: String,
        /// The folder.
        folder: Option<String>,
    },
    /// In files to be fetched by hand; the text says which, and from where.
    Files(&'static str),
    /// Nowhere: the task makes them up.
    Nowhere,
}

impl Home {
    /// A data set on the hub without folders.
    pub fn hub(name: &str) -> Self {
        Self::Hub { name: name.to_owned(), folder: None }
    }

    /// A folder of a data set on the hub.
    pub fn folder(name: &str, folder: &str) -> Self {
        Self::Hub { name: name.to_owned(), folder: Some(folder.to_owned()) }
    }
}

/// What a task reads: the files that somebody named, or those of its home.
#[derive(Debug)]
pub struct Files<'a> {
    name: Option<&'a str>,
    split: Split,
    most: Option<usize>,
    interrupt: &'a Interrupt,
    bad_rows: BadRows,
    left_out: RefCell<RowErrors>,
}

impl<'a> Files<'a> {
    /// The files of `name` (a file, a directory or a hub name; without one the task's home), of which at most `most` samples of
    /// `split` are wanted. An `interrupt` ends the wait for a program.
    pub fn new(name: Option<&'a str>, split: Split, most: Option<usize>, interrupt: &'a Interrupt) -> Self {
        Self { name, split, most, interrupt, bad_rows: BadRows::Fail, left_out: RefCell::default() }
    }

    /// The same with what happens to bad rows; otherwise they end the reading.
    #[must_use]
    pub fn with_bad_rows(self, bad_rows: BadRows) -> Self {
        Self { bad_rows, left_out: RefCell::new(RowErrors::new(bad_rows)), ..self }
    }

    /// The bad rows that were left out.
    pub fn into_left_out(self) -> RowErrors {
        self.left_out.into_inner()
    }

    /// What somebody named.
    pub fn name(&self) -> Option<&'a str> {
        self.name
    }

    /// What is raised when the user wants to stop.
    pub fn interrupt(&self) -> &'a Interrupt {
        self.interrupt
    }

    /// The split that is asked for.
    pub fn split(&self) -> Split {
        self.split
    }

    /// How many samples are wanted; none: all.
    pub fn most(&self) -> Option<usize> {
        self.most
    }

    /// The path that somebody named.
    pub fn path(&self) -> Option<&'a Path> {
        self.name.map(Path::new).filter(|path| path.exists())
    }

    /// Rows of columns, from the files of `split` (which may be another than the one asked for, where a task cuts its own):
    /// `make` turns each into samples. Reads until there are enough.
    ///
    /// # Errors
    /// Files that are missing or cannot be read, and the rows of which `make` says what is wrong, ten at most.
    pub fn rows(
        &self,
        home: Home,
        split: Split,
        most: Option<usize>,
        make: impl Fn(Map<String, Value>) -> Result<Vec<Sample>, String>,
    ) -> Result<Vec<(Place, Sample)>> {
        let (name, folder) = self.named(&home)?;
        let source = data::resolve_split(&name, folder.as_deref(), split.name(), &mut |_, _, _| {})?;
        let (mut samples, mut bad, mut read) = (Vec::new(), self.bad(), 0usize);
        'files: for file in &source.files {
            for raw in data::open(file)? {
                if most.is_some_and(|most| samples.len() >= most) {
                    break 'files;
                }
                read += 1;
                let made = match raw {
                    Ok(raw) => {
                        make(raw.columns).map_err(|message| raw.place.error(message)).map(|made| (raw.place, made))
                    }
                    Err(error @ Error::Data { line: Some(_), .. }) => Err(error),
                    Err(fatal) => return Err(fatal),
                };
                match made {
                    Ok((place, made)) => samples.extend(made.into_iter().map(|sample| (place.clone(), sample))),
                    Err(error) => bad.push(error),
                }
            }
        }
        self.settle(samples, bad, read)
    }

    /// The samples of `read` rows, once it is known what becomes of the bad ones among them.
    pub(super) fn settle(
        &self,
        samples: Vec<(Place, Sample)>,
        bad: RowErrors,
        read: usize,
    ) -> Result<Vec<(Place, Sample)>> {
        let left_out = bad.settle(read, samples.len())?;
        self.left_out.borrow_mut().append(left_out);
        Ok(samples)
    }

    /// None yet of the bad rows of a file.
    pub(super) fn bad(&self) -> RowErrors {
        RowErrors::new(self.bad_rows)
    }

    /// Text files of the split below the path that somebody named, by their names without `.gz`, in the order of the names; none
    /// where the name is no path.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub fn text(&self, is_wanted: &dyn Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
        self.path().map_or_else(|| Ok(Vec::new()), |path| data::text_files(path, self.split.name(), is_wanted))
    }

    /// The lines of several files, side by side: of each set one file after the other.
    ///
    /// # Errors
    /// A file that cannot be read, and sets of which one ends before the others.
    pub fn side_by_side(&self, sets: &[Vec<PathBuf>]) -> Result<Vec<(Place, Vec<String>)>> {
        let mut columns = Vec::new();
        for files in sets {
            let mut lines = Vec::new();
            for file in files {
                for line in data::lines(file)? {
                    if self.most.is_some_and(|most| lines.len() >= most) {
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
            let message =
                format!("{found} lines, but `{}` beside it has {count}: lines belong together", first.display());
            return Err(Error::data(shown(other), None, message));
        }
        let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
        let row = |_| {
            let row: Vec<(Place, String)> = columns.iter_mut().filter_map(Iterator::next).collect();
            (row[0].0.clone(), row.into_iter().map(|(_, text)| text).collect())
        };
        Ok((0..count).map(row).collect())
    }

    /// The name of the data set, and the folder in it.
    ///
    /// # Errors
    /// Where nobody named one, and there is none on the hub.
    fn named(&self, home: &Home) -> Result<(String, Option<String>)> {
        match (self.name, home) {
            (Some(name), Home::Hub { folder, .. }) => Ok((name.to_owned(), folder.clone())),
            (Some(name), _) => Ok((name.to_owned(), None)),
            (None, Home::Hub { name, folder }) => Ok((name.clone(), folder.clone())),
            (None, home) => Err(missing(home)),
        }
    }
}

/// What is said where nobody named files that are on no hub.
pub(super) fn missing(home: &Home) -> Error {
    let which = if let Home::Files(which) = home { which } else { "a directory" };
    Error::input("the task's files are on no hub, and no path was given").with_hint(format!("`data.from`: {which}"))
}

/// A text column, taken out of a row.
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

/// A column that is a list of texts, taken out of a row.
pub(super) fn texts(columns: &mut Map<String, Value>, name: &str) -> Result<Vec<String>, String> {
    match columns.shift_remove(name) {
        Some(value) => texts_of(name, value),
        None => Err(format!("missing column `{name}`")),
    }
}

/// The texts of a column's value, a list.
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
