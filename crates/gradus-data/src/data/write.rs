//! Writes rows to a file. The file name selects JSON lines, a JSON array, CSV, Parquet or Arrow; `.gz` adds gzip.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Map, Value};

use super::documents::{self, DOCUMENT_END};
use super::message::kind_name;
use super::reader::{Format, extension};
use super::shape::{Fault, column_names};
use super::write_arrow::ArrowColumns;
use super::write_parquet::write_parquet;
use crate::files::output::{OutputFile, Staged, commit};
use crate::{Error, Result};

/// Writes rows to `file` atomically.
///
/// # Errors
/// If the name selects no format, the format cannot hold the rows, or the file cannot be written.
pub fn write_rows(file: &OutputFile, rows: &[Map<String, Value>]) -> Result<Format> {
    let (staged, format) = stage_rows(file, rows)?;
    commit([staged])?;
    Ok(format)
}

/// Writes rows to a temporary file next to `file`, for [`commit`].
///
/// # Errors
/// As for [`write_rows`].
pub fn stage_rows(file: &OutputFile, rows: &[Map<String, Value>]) -> Result<(Staged, Format)> {
    let path = file.path();
    let format = match extension(path).as_deref() {
        Some("jsonl" | "ndjson") => Format::JsonLines,
        Some("json") => Format::JsonArray,
        Some("csv") => Format::Csv,
        Some("tsv") => Format::Tsv,
        Some("parquet") => Format::Parquet,
        Some("arrow") => Format::Arrow,
        Some("txt") if rows.iter().all(|row| row.len() == 1 && row.contains_key("text")) => Format::Text,
        Some("txt") => {
            let message = format!("`{}` can hold only texts, but the rows have other columns", path.display());
            return Err(Error::input(message).with_hint("turn them into texts (`--to text`), or write .jsonl"));
        }
        _ => {
            let message = format!("the name `{}` has no ending of a known format", path.display());
            return Err(Error::input(message).with_hint(
                "end it in .jsonl, .json, .csv, .tsv, .parquet, .arrow or, for texts, .txt; add .gz to compress",
            ));
        }
    };
    let gzip = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gz"));
    // Rows that the format cannot hold are reported before anything is written.
    let columns = match format {
        Format::Parquet => Columns::Parquet(write_parquet(rows).map_err(|fault| fault.error(path))?),
        Format::Arrow => Columns::Arrow(ArrowColumns::of(rows).map_err(|fault| fault.error(path))?),
        Format::Text => {
            check_texts(rows).map_err(|fault| fault.error(path))?;
            Columns::None
        }
        _ => Columns::None,
    };
    let write = |out: &mut dyn Write| match &columns {
        Columns::Parquet(bytes) => out.write_all(bytes),
        Columns::Arrow(columns) => columns.write(out),
        Columns::None => write_as(format, rows, out),
    };
    let staged = file.stage(|file| {
        if !gzip {
            return write(file);
        }
        let mut encoder = GzEncoder::new(file, Compression::default());
        write(&mut encoder)?;
        encoder.finish().map(drop)
    })?;
    Ok((staged, format))
}

/// Columns that are prepared from all rows before the file is written.
enum Columns<'a> {
    Parquet(Vec<u8>),
    Arrow(ArrowColumns<'a>),
    None,
}

/// Checks that plain text holds all rows unchanged.
fn check_texts(rows: &[Map<String, Value>]) -> Result<(), Fault> {
    for (i, row) in rows.iter().enumerate() {
        let misfit = match &row["text"] {
            Value::String(text) => documents::misfit(text, i == 0),
            other => Some(format!("is {}, not a text", kind_name(other))),
        };
        if let Some(misfit) = misfit {
            return Err(Fault::of_row(i + 1, format!("column `text` {misfit}")));
        }
    }
    Ok(())
}

fn write_as(format: Format, rows: &[Map<String, Value>], out: &mut dyn Write) -> std::io::Result<()> {
    match format {
        Format::JsonLines => {
            for row in rows {
                serde_json::to_writer(&mut *out, row)?;
                out.write_all(b"\n")?;
            }
        }
        Format::JsonArray => {
            for (i, row) in rows.iter().enumerate() {
                out.write_all(if i == 0 { b"[\n" } else { b",\n" })?;
                serde_json::to_writer_pretty(&mut *out, row)?;
            }
            out.write_all(if rows.is_empty() { b"[]\n" } else { b"\n]\n" })?;
        }
        Format::Csv => write_delimited(rows, b',', &mut *out)?,
        Format::Tsv => write_delimited(rows, b'\t', &mut *out)?,
        Format::Parquet | Format::Arrow => unreachable!("made of all rows at once"),
        Format::Text => {
            for (i, row) in rows.iter().enumerate() {
                if i > 0 {
                    writeln!(out, "{DOCUMENT_END}")?;
                }
                writeln!(out, "{}", row["text"].as_str().unwrap_or_default())?;
            }
        }
    }
    out.flush()
}

/// Writes CSV or TSV. Lists and objects are written as JSON within their cell.
fn write_delimited(rows: &[Map<String, Value>], delimiter: u8, out: impl Write) -> std::io::Result<()> {
    let header = column_names(rows);
    let mut writer = csv::WriterBuilder::new().delimiter(delimiter).from_writer(out);
    writer.write_record(&header)?;
    for row in rows {
        let cells = header.iter().map(|name| match row.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        });
        writer.write_record(cells)?;
    }
    writer.flush()
}
