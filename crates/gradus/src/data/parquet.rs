//! Parquet files, row by row.

use std::fs::File;
use std::io::BufRead;

use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use serde_json::Value;

use super::place::Place;
use super::reader::{Origin, RawRow, read_all};
use crate::{Error, Result};

pub(super) struct ParquetRows {
    origin: Origin,
    rows: RowIter<'static>,
    row: usize,
    done: bool,
}

impl ParquetRows {
    /// Parquet is read from its end, so a compressed file is decompressed into memory first.
    pub fn open(origin: Origin, mut input: Box<dyn BufRead>) -> Result<Self> {
        let reader = if origin.gzip {
            let bytes = read_all(&origin, &mut *input)?;
            reader(bytes::Bytes::from(bytes))
        } else {
            let file = File::open(&origin.file).map_err(|e| Error::io(&*origin.file, e))?;
            reader(file)
        };
        let reader = reader.map_err(|e| broken(&origin, &e))?;
        Ok(Self { rows: RowIter::from_file_into(reader), origin, row: 0, done: false })
    }
}

fn reader<R: ChunkReader + 'static>(source: R) -> Result<Box<dyn FileReader>, ParquetError> {
    Ok(Box::new(SerializedFileReader::new(source)?))
}

fn broken(origin: &Origin, error: &ParquetError) -> Error {
    let text = error.to_string();
    let what = text.split_once(": ").map_or(text.as_str(), |(_, what)| what);
    Error::data(&*origin.file, None, format!("not a valid Parquet file: {what}"))
        .with_hint("the file may be cut off; copy or download it again")
}

impl Iterator for ParquetRows {
    type Item = Result<RawRow>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        match self.rows.next()? {
            Ok(row) => {
                self.row += 1;
                let place = Place::new(&self.origin.file, self.row);
                Some(match row.to_json_value() {
                    Value::Object(columns) => Ok(RawRow { place, columns }),
                    _ => Err(place.error("a row without columns")),
                })
            }
            Err(e) => {
                self.done = true;
                Some(Err(broken(&self.origin, &e)))
            }
        }
    }
}
