//! Reads Parquet files row by row.

use std::io::BufRead;

use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use serde_json::Value;

use super::raw::{Origin, RawRow, not_finite, read_all};
use super::row_location::RowLocation;
use crate::{Error, Result, border, files};

pub(super) struct ParquetRows {
    origin: Origin,
    rows: RowIter<'static>,
    row: usize,
    done: bool,
}

impl ParquetRows {
    /// Opens a file. Reading Parquet starts at its end, so a gzipped file is first decompressed into memory.
    pub fn open(origin: Origin, mut input: Box<dyn BufRead>) -> Result<Self> {
        let rows = if origin.gzip {
            let bytes = read_all(&origin, &mut *input)?;
            border::catch_panic(|| rows(bytes::Bytes::from(bytes)))
        } else {
            let file = files::open(&origin.file).map_err(|e| Error::io(&*origin.file, e))?;
            border::catch_panic(|| rows(file))
        };
        let rows = rows.map_err(|panicked| invalid(&origin, &panicked))?.map_err(|e| broken(&origin, &e))?;
        Ok(Self { rows, origin, row: 0, done: false })
    }
}

fn rows<R: ChunkReader + 'static>(source: R) -> Result<RowIter<'static>, ParquetError> {
    Ok(RowIter::from_file_into(Box::new(SerializedFileReader::new(source)?)))
}

fn broken(origin: &Origin, error: &ParquetError) -> Error {
    let text = error.to_string();
    // The crate supports the codec, but is compiled without it.
    if let Some(codec) =
        text.strip_prefix("Parquet error: ").unwrap_or(&text).strip_prefix("Disabled feature at compile time: ")
    {
        return Error::data(&*origin.file, None, format!("its columns are compressed with {codec}, which gradus does not read"))
            .with_hint("write it with snappy, gzip or zstd, such as `pyarrow.parquet.write_table(table, FILE, compression=\"zstd\")`");
    }
    let what = text.split_once(": ").map_or(text.as_str(), |(_, what)| what);
    invalid(origin, what)
}

fn invalid(origin: &Origin, what: &str) -> Error {
    Error::data(&*origin.file, None, format!("not a valid Parquet file: {what}"))
        .with_hint("the file may be cut off; copy or download it again")
}

/// Returns the first column with a NaN or an infinity, which would become null.
fn infinite(row: &Row) -> Option<String> {
    fn holds(field: &Field) -> bool {
        match field {
            Field::Float16(value) => !value.is_finite(),
            Field::Float(value) => !value.is_finite(),
            Field::Double(value) => !value.is_finite(),
            Field::Group(row) => row.get_column_iter().any(|(_, field)| holds(field)),
            Field::ListInternal(list) => list.elements().iter().any(holds),
            Field::MapInternal(map) => map.entries().iter().any(|(key, value)| holds(key) || holds(value)),
            _ => false,
        }
    }
    row.get_column_iter().find(|(_, field)| holds(field)).map(|(name, _)| name.clone())
}

impl Iterator for ParquetRows {
    type Item = Result<RawRow>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let rows = &mut self.rows;
        let error = match border::catch_panic(|| Some(rows.next()?.map(|row| (infinite(&row), row.to_json_value())))) {
            Ok(None) => return None,
            Ok(Some(Ok((infinite, row)))) => {
                self.row += 1;
                let location = RowLocation::new(&self.origin.file, self.row);
                if let Some(column) = infinite {
                    return Some(Err(not_finite(&location, &column)));
                }
                return Some(match row {
                    Value::Object(columns) => Ok(RawRow { location, columns }),
                    _ => Err(location.error("a row without columns")),
                });
            }
            Ok(Some(Err(e))) => broken(&self.origin, &e),
            Err(panicked) => invalid(&self.origin, &panicked),
        };
        self.done = true;
        Some(Err(error))
    }
}
