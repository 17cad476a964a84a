//! Loads a data set by its name and recognizes its rows.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::documents::DOCUMENT_END;
use super::message::names;
use super::options::LoadOptions;
use super::raw::RawRow;
use super::reader::{Format, open};
use super::recognize::{other_form, read_row, recognize};
use super::report::RowErrors;
use super::row::{Row, RowData, RowKind};
use super::source::resolve;
use super::splits::Source;
use crate::{Error, Result};

/// Parses `name=column` into (name in the file, name here) for [`LoadOptions::rename`].
///
/// # Errors
/// If the text has another form.
pub fn parse_rename(pair: &str) -> Result<(String, String), String> {
    match pair.split_once('=') {
        Some((name, column)) if !name.is_empty() && !column.is_empty() => Ok((column.into(), name.into())),
        _ => Err("expected NAME=COLUMN, such as `prompt=question`".into()),
    }
}

/// Checks that the first row has all columns to rename, given as (name in the file, name here).
///
/// # Errors
/// The first column that is missing.
pub fn check_renames(first: &RawRow, renames: &[(String, String)]) -> Result<()> {
    let missing = renames.iter().find(|(from, _)| !first.columns.contains_key(from));
    missing.map_or(Ok(()), |(from, to)| {
        let message = format!("`{to}={from}`: there is no column `{from}` (found {})", names(&first.columns));
        Err(first.location.error(message))
    })
}

/// Renames columns.
pub fn rename(columns: &mut Map<String, Value>, renames: &[(String, String)]) {
    for (from, to) in renames {
        if let Some(value) = columns.shift_remove(from) {
            columns.insert(to.clone(), value);
        }
    }
}

/// Returns the first readable row of a data set, without reading more. Returns `None` if loading will report that it is bad.
///
/// # Errors
/// As for [`load`]: a column to rename is missing, or the columns do not fit `options.need`.
pub fn first_row(name: &str, options: &LoadOptions) -> Result<Option<Row>> {
    let source = resolve(name, &mut |_, _, _| {})?;
    for file in &source.files {
        let Some(mut raw) = open(file)?.find_map(Result::ok) else { continue };
        check_renames(&raw, &options.rename)?;
        rename(&mut raw.columns, &options.rename);
        let kind = recognize(&raw.columns, options);
        let kind = kind.map_err(|(message, hint)| raw.location.error(message).with_hint(hint))?;
        let read = read_row(kind, raw.columns, options).ok();
        return Ok(read.map(|(data, columns)| Row { location: raw.location, index: 0, data, columns }));
    }
    Ok(None)
}

/// A loaded data set.
#[derive(Debug)]
pub struct Dataset {
    /// Name by which it was requested.
    pub name: String,
    /// Files that were read.
    pub source: Source,
    /// Format of the first file, and whether it is gzipped. `None` for rows of a task, which may read files of several formats.
    pub format: Option<(Format, bool)>,
    /// Kind of the rows.
    pub kind: RowKind,
    /// Good rows, numbered by [`Row::index`].
    pub rows: Vec<Row>,
    /// Bad rows, if they were skipped.
    pub bad: RowErrors,
    /// Surprising facts about how the files were read, one sentence each.
    pub remarks: Vec<String>,
}

/// A text with more lines than this is one row, but was perhaps meant as many.
const LINES_OF_A_ROW: usize = 100;

/// Returns a remark if a text file is one long document.
fn one_document(rows: &[Row]) -> Option<String> {
    let [Row { data: RowData::Text(text), location, .. }] = rows else { return None };
    let lines = text.lines().count();
    (lines > LINES_OF_A_ROW).then(|| {
        format!(
            "`{}` is one document of {lines} lines, so it is one row; separate documents by lines with \
             `{DOCUMENT_END}`, or write one row per line as .jsonl",
            location.file.display()
        )
    })
}

/// Loads a data set: a file, a directory or a hub name.
///
/// # Errors
/// If it cannot be read, holds no rows, or has bad rows.
pub fn load(name: &str, options: &LoadOptions) -> Result<Dataset> {
    let source = resolve(name, &mut |_, _, _| {})?;
    let mut found: Option<(RowKind, (Format, bool))> = None;
    let (mut rows, mut bad, mut read) = (Vec::new(), RowErrors::new(options.bad_rows), 0usize);
    let mut remarks = Vec::new();
    'files: for file in &source.files {
        let reader = open(file)?;
        let format = (reader.format, reader.gzip);
        let first: usize = rows.len();
        for raw in reader {
            if options.max_rows.is_some_and(|most| read >= most) {
                break 'files;
            }
            read += 1;
            let mut raw = match raw {
                Ok(raw) => raw,
                Err(error @ Error::Data { line: Some(_), .. }) => {
                    bad.push(error);
                    continue;
                }
                Err(fatal) => return Err(fatal),
            };
            if found.is_none() {
                check_renames(&raw, &options.rename)?;
            }
            rename(&mut raw.columns, &options.rename);
            let kind = match found {
                Some((kind, _)) => kind,
                None => {
                    let kind = recognize(&raw.columns, options)
                        .map_err(|(message, hint)| raw.location.error(message).with_hint(hint))?;
                    remarks.extend(other_form(&raw.columns, options));
                    found = Some((kind, format));
                    kind
                }
            };
            match read_row(kind, raw.columns, options) {
                Ok((data, columns)) => rows.push(Row { location: raw.location, index: rows.len(), data, columns }),
                Err(message) => bad.push(raw.location.error(message)),
            }
        }
        if format.0 == Format::Text {
            remarks.extend(one_document(&rows[first..]));
        }
    }
    let bad = bad.settle(read, rows.len())?;
    let Some((kind, format)) = found else {
        let file = source.files.first().cloned().unwrap_or_else(|| PathBuf::from(name));
        return Err(Error::data(file, None, "no rows: the data set is empty"));
    };
    Ok(Dataset { name: name.to_owned(), source, format: Some(format), kind, rows, bad, remarks })
}
