//! From a name to recognized rows.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::documents::DOCUMENT_END;
use super::message::names;
use super::options::LoadOptions;
use super::raw::RawRow;
use super::reader::{Format, open};
use super::recognize::{read_row, recognize};
use super::report::RowErrors;
use super::row::{Row, RowData, RowKind};
use super::source::resolve;
use super::splits::Source;
use crate::{Error, Result};

/// `name=column` as (name in the file, name here) for [`LoadOptions::rename`].
///
/// # Errors
/// When it has another form.
pub fn parse_rename(pair: &str) -> Result<(String, String), String> {
    match pair.split_once('=') {
        Some((name, column)) if !name.is_empty() && !column.is_empty() => Ok((column.into(), name.into())),
        _ => Err("expected NAME=COLUMN, such as `prompt=question`".into()),
    }
}

/// Refuses names of columns, as (name in the file, name here), that the first row does not have.
///
/// # Errors
/// The first such name.
pub fn check_renames(first: &RawRow, renames: &[(String, String)]) -> Result<()> {
    let missing = renames.iter().find(|(from, _)| !first.columns.contains_key(from));
    missing.map_or(Ok(()), |(from, to)| {
        let message = format!("`{to}={from}`: there is no column `{from}` (found {})", names(&first.columns));
        Err(first.place.error(message))
    })
}

/// Gives columns their other names.
pub fn rename(columns: &mut Map<String, Value>, renames: &[(String, String)]) {
    for (from, to) in renames {
        if let Some(value) = columns.shift_remove(from) {
            columns.insert(to.clone(), value);
        }
    }
}

/// The first row of a data set that can be read; none where another reading will find that it is bad. Nothing else is read.
///
/// # Errors
/// As [`load`]: a name of a column that it does not have, or columns of no form that is needed.
pub fn first_row(name: &str, options: &LoadOptions) -> Result<Option<Row>> {
    let source = resolve(name, &mut |_, _, _| {})?;
    for file in &source.files {
        let Some(mut raw) = open(file)?.find_map(Result::ok) else { continue };
        check_renames(&raw, &options.rename)?;
        rename(&mut raw.columns, &options.rename);
        let kind = recognize(&raw.columns, options);
        let kind = kind.map_err(|(message, hint)| raw.place.error(message).with_hint(hint))?;
        let read = read_row(kind, raw.columns, options).ok();
        return Ok(read.map(|(data, columns)| Row { place: raw.place, index: 0, data, columns }));
    }
    Ok(None)
}

/// The rows of a data set.
#[derive(Debug)]
pub struct Dataset {
    /// The name it was asked for by.
    pub name: String,
    /// The files read.
    pub source: Source,
    /// The format of the first file, and whether it is gzipped; none for rows of a task, which reads files of several forms.
    pub format: Option<(Format, bool)>,
    /// What the rows are.
    pub kind: RowKind,
    /// The good rows; [`Row::index`] counts them.
    pub rows: Vec<Row>,
    /// The bad rows, where they were to be skipped.
    pub bad: RowErrors,
    /// What is surprising about how the files were read, one sentence each.
    pub remarks: Vec<String>,
}

/// A text of more lines than this is one row that was perhaps meant as many.
const LINES_OF_A_ROW: usize = 100;

/// What to say of a text file that is one long document.
fn one_document(rows: &[Row]) -> Option<String> {
    let [Row { data: RowData::Text(text), place, .. }] = rows else { return None };
    let lines = text.lines().count();
    (lines > LINES_OF_A_ROW).then(|| {
        format!(
            "`{}` is one document of {lines} lines, so it is one row; separate documents by lines with `{DOCUMENT_END}`, or \
             give a row a line as .jsonl",
            place.file.display()
        )
    })
}

/// Reads a data set: a file, a directory or a hub name.
///
/// # Errors
/// When it cannot be read, holds no rows, or has bad rows.
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
                        .map_err(|(message, hint)| raw.place.error(message).with_hint(hint))?;
                    found = Some((kind, format));
                    kind
                }
            };
            match read_row(kind, raw.columns, options) {
                Ok((data, columns)) => rows.push(Row { place: raw.place, index: rows.len(), data, columns }),
                Err(message) => bad.push(raw.place.error(message)),
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
