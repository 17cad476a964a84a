//! Writes rows and record batches to Arrow streams.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, ListArray, RecordBatch, RecordBatchOptions, StringArray,
    StructArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema};
use serde_json::{Map, Value};

use super::reader::Format;
use super::shape::{Fault, Shape, shapes};
use crate::files::atomic;
use crate::{Error, Result};

/// Writes record batches as an Arrow stream to `path`, atomically; replaces an existing file. Batches are written unchanged. Only
/// one batch is in memory at a time.
///
/// Returns the number of rows written. `datasets.Dataset.from_file` can read the file, and so can every reader of rows in gradus.
///
/// # Errors
/// [`Error::Data`] if `batches` returns an error, a batch has other fields than `schema`, or the stream format does not support a
/// type; [`Error::Io`] if the file cannot be written.
pub fn write_stream(
    batches: impl IntoIterator<Item = Result<RecordBatch, ArrowError>>,
    schema: &Schema,
    path: &Path,
) -> Result<u64> {
    let mut rows = 0;
    let mut refused = None;
    let written = atomic::write_file(path, |file| {
        let filled = fill(batches, schema, file, &mut rows);
        filled.map_err(|error| match error {
            ArrowError::IoError(_, source) => source,
            other => {
                let message = other.to_string();
                refused = Some(other);
                std::io::Error::other(message)
            }
        })
    });
    match refused {
        Some(error) => Err(Error::data(path, None, format!("the batch after row {rows} cannot be written: {error}"))),
        None => written.map(|()| rows),
    }
}

fn fill(
    batches: impl IntoIterator<Item = Result<RecordBatch, ArrowError>>,
    schema: &Schema,
    file: &mut dyn Write,
    rows: &mut u64,
) -> Result<(), ArrowError> {
    let mut writer = StreamWriter::try_new(file, schema)?;
    for batch in batches {
        let batch = batch?;
        // The writer does not compare the fields, and a stream with differing fields would be unreadable.
        if batch.schema().fields() != schema.fields() {
            let (found, expected) = (names(batch.schema().fields()), names(schema.fields()));
            return Err(ArrowError::SchemaError(format!("it has the fields {found}, expected {expected}")));
        }
        writer.write(&batch)?;
        *rows += batch.num_rows() as u64;
    }
    writer.finish()
}

fn names(fields: &Fields) -> String {
    let all: Vec<String> = fields.iter().map(|field| format!("`{}`: {}", field.name(), field.data_type())).collect();
    crate::error::excerpt(&all.join(", "), 300)
}

/// Number of rows per batch, as in `datasets`.
const BATCH_ROWS: usize = 1000;
/// Bytes of text after which a batch ends: offsets within its texts have 31 bits.
const BATCH_BYTES: usize = 64 << 20;

/// Rows as Arrow columns.
pub(super) struct ArrowColumns<'a> {
    rows: &'a [Map<String, Value>],
    shapes: Vec<(String, Shape)>,
    schema: Arc<Schema>,
}

impl<'a> ArrowColumns<'a> {
    /// Determines the type of each column.
    ///
    /// # Errors
    /// If no Arrow column can hold the values of a column unchanged.
    pub fn of(rows: &'a [Map<String, Value>]) -> Result<Self, Fault> {
        let shapes = shapes(rows, Format::Arrow)?;
        let schema = Arc::new(Schema::new(fields(&shapes)));
        Ok(Self { rows, shapes, schema })
    }

    /// Writes the columns as a stream, batch by batch.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let batches = self.batches().map(|rows| self.batch(rows));
        fill(batches, &self.schema, out, &mut 0).map_err(|error| match error {
            ArrowError::IoError(_, source) => source,
            other => std::io::Error::other(other.to_string()),
        })
    }

    fn batches(&self) -> impl Iterator<Item = &'a [Map<String, Value>]> {
        let mut rest = self.rows;
        std::iter::from_fn(move || {
            let mut bytes = 0;
            let is_within = |row: &&Map<String, Value>| {
                let fits = bytes <= BATCH_BYTES;
                bytes += row.values().map(text_bytes).sum::<usize>();
                fits
            };
            let length = rest.iter().take(BATCH_ROWS).take_while(is_within).count();
            let (batch, others) = rest.split_at(length);
            rest = others;
            (!batch.is_empty()).then_some(batch)
        })
    }

    fn batch(&self, rows: &[Map<String, Value>]) -> Result<RecordBatch, ArrowError> {
        let column = |(name, shape): &(String, Shape)| {
            let values: Vec<Option<&Value>> = rows.iter().map(|row| row.get(name)).collect();
            array(shape, &values)
        };
        let columns = self.shapes.iter().map(column).collect::<Result<_, _>>()?;
        // The row count is explicit, because rows may have no columns.
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
    }
}

fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(map) => map.values().map(text_bytes).sum(),
        _ => 0,
    }
}

fn fields(shapes: &[(String, Shape)]) -> Fields {
    shapes.iter().map(|(name, shape)| Field::new(name, data_type(shape), true)).collect()
}

fn data_type(shape: &Shape) -> DataType {
    match shape {
        Shape::Bool => DataType::Boolean,
        Shape::Int { .. } => DataType::Int64,
        Shape::Float => DataType::Float64,
        Shape::Text | Shape::Nothing => DataType::Utf8,
        Shape::List(item) => DataType::List(item_field(item)),
        Shape::Struct(fields_of_it) => DataType::Struct(fields(fields_of_it)),
    }
}

fn item_field(item: &Shape) -> Arc<Field> {
    Arc::new(Field::new_list_field(data_type(item), true))
}

/// Converts values to an array. Missing values are null.
fn array(shape: &Shape, values: &[Option<&Value>]) -> Result<ArrayRef, ArrowError> {
    let present = || values.iter().map(|value| value.filter(|value| !value.is_null()));
    let nulls = || NullBuffer::from_iter(present().map(|value| value.is_some()));
    Ok(match shape {
        Shape::Bool => Arc::new(BooleanArray::from_iter(present().map(|value| value.and_then(Value::as_bool)))),
        Shape::Int { .. } => Arc::new(Int64Array::from_iter(present().map(|value| value.and_then(Value::as_i64)))),
        Shape::Float => Arc::new(Float64Array::from_iter(present().map(|value| value.and_then(Value::as_f64)))),
        Shape::Text | Shape::Nothing => {
            Arc::new(StringArray::from_iter(present().map(|value| value.and_then(Value::as_str))))
        }
        Shape::List(item) => {
            let lists = || present().map(|value| value.and_then(Value::as_array));
            let offsets = OffsetBuffer::from_lengths(lists().map(|list| list.map_or(0, Vec::len)));
            let items: Vec<Option<&Value>> = lists().flatten().flatten().map(Some).collect();
            Arc::new(ListArray::try_new(item_field(item), offsets, array(item, &items)?, Some(nulls()))?)
        }
        Shape::Struct(shapes) if shapes.is_empty() => {
            Arc::new(StructArray::new_empty_fields(values.len(), Some(nulls())))
        }
        Shape::Struct(shapes) => {
            let column = |(name, shape): &(String, Shape)| {
                let values: Vec<Option<&Value>> =
                    present().map(|value| value.and_then(|value| value.get(name))).collect();
                array(shape, &values)
            };
            let columns = shapes.iter().map(column).collect::<Result<Vec<ArrayRef>, _>>()?;
            Arc::new(StructArray::try_new(fields(shapes), columns, Some(nulls()))?)
        }
    })
}
