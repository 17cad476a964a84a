//! Reads Parquet files row by row.

use std::io::BufRead;

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::errors::ParquetError;
use parquet::file::metadata::FileMetaData;
use parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::{Type, TypePtr};
use serde_json::{Map, Value};

use super::arrow::stored_schema;
use super::arrow_value::{NoValue, Problem, UTC, check_fields, check_names, insert, parsed, unsupported};
use super::raw::{Origin, RawRow, read_all};
use super::row_location::RowLocation;
use crate::{Error, Result, border, files};

pub(super) struct ParquetRows {
    origin: Origin,
    rows: RowIter<'static>,
    columns: Vec<Kind>,
    row: usize,
    done: bool,
}

impl ParquetRows {
    /// Opens a file. Reading Parquet starts at its end, so a gzipped file is first decompressed into memory.
    pub fn open(origin: Origin, mut input: Box<dyn BufRead>) -> Result<Self> {
        let reader = if origin.gzip {
            let bytes = read_all(&origin, &mut *input)?;
            border::catch_panic(|| reader(bytes::Bytes::from(bytes)))
        } else {
            let file = files::open(&origin.file).map_err(|e| Error::io(&*origin.file, e))?;
            border::catch_panic(|| reader(file))
        };
        let reader = reader.map_err(|panicked| invalid(&origin, &panicked))?.map_err(|e| broken(&origin, &e))?;
        let columns = border::catch_panic(|| columns(reader.metadata().file_metadata()))
            .map_err(|panicked| invalid(&origin, &panicked))?
            .map_err(|(what, hint)| Error::data(&*origin.file, None, what).with_hint(hint))?;
        Ok(Self { rows: RowIter::from_file_into(reader), origin, columns, row: 0, done: false })
    }
}

fn reader<R: ChunkReader + 'static>(source: R) -> Result<Box<dyn FileReader>, ParquetError> {
    Ok(Box::new(SerializedFileReader::new(source)?))
}

/// Key under which Arrow's libraries store the schema that the columns had in memory.
const ARROW_SCHEMA: &str = "ARROW:schema";

/// Checks that rows can represent all columns, and returns the kinds of their values.
fn columns(file: &FileMetaData) -> Result<Vec<Kind>, NoValue> {
    let stored = file.key_value_metadata().into_iter().flatten().find(|entry| entry.key == ARROW_SCHEMA);
    // Parquet has no type for some of Arrow's, such as durations, and stores other numbers in their place.
    if let Some(schema) = stored.and_then(|entry| entry.value.as_deref()).and_then(stored_schema) {
        check_fields(schema.fields(), None)?;
    }
    Kind::of_fields(file.schema().get_fields(), None)
}

/// What the conversion of a value needs to know about its type. Otherwise the value itself tells.
enum Kind {
    /// Text that is JSON.
    Json,
    /// A date with a time of day, without a time zone.
    LocalTime,
    Struct(Vec<Kind>),
    List(Box<Kind>),
    Map(Box<Kind>, Box<Kind>),
    Other,
}

impl Kind {
    fn of_fields(fields: &[TypePtr], column: Option<&str>) -> Result<Vec<Self>, NoValue> {
        check_names(fields.iter().map(|field| field.name()))?;
        fields.iter().map(|field| Self::of(field, column.unwrap_or(field.name()))).collect()
    }

    /// Returns the kind of the values that the library makes of the type `of`.
    fn of(of: &Type, column: &str) -> Result<Self, NoValue> {
        let info = of.get_basic_info();
        let converted = info.converted_type();
        let is_local =
            |logical: &LogicalType| matches!(logical, LogicalType::Timestamp(time) if !time.is_adjusted_to_u_t_c);
        let kind = if of.is_primitive() {
            match (of.get_physical_type(), converted) {
                (Physical::INT96, _) => {
                    let (what, _) = unsupported(&"INT96 (a timestamp of 96 bits)", column);
                    return Err((what, INT96_HINT));
                }
                (_, ConvertedType::JSON) => Self::Json,
                _ if info.logical_type_ref().is_some_and(is_local) => Self::LocalTime,
                _ => Self::Other,
            }
        } else {
            match (converted, of.get_fields()) {
                (ConvertedType::LIST, [item]) => return Ok(Self::List(Box::new(Self::of(element(item), column)?))),
                (ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE, [entry]) if entry.is_group() => {
                    return match entry.get_fields() {
                        [key] => Ok(Self::List(Box::new(Self::of(key, column)?))),
                        [key, value] => {
                            Ok(Self::Map(Box::new(Self::of(key, column)?), Box::new(Self::of(value, column)?)))
                        }
                        // The library refuses it.
                        _ => Ok(Self::Other),
                    };
                }
                (_, fields) => Self::Struct(Self::of_fields(fields, Some(column))?),
            }
        };
        Ok(if is_repeated(of) { Self::List(Box::new(kind)) } else { kind })
    }
}

const INT96_HINT: &str = "write timestamps in microseconds: `pyarrow.parquet.write_table(pyarrow.parquet.read_table(\"FILE\", \
                          coerce_int96_timestamp_unit=\"us\"), \"NEW\")`";

fn is_repeated(of: &Type) -> bool {
    let info = of.get_basic_info();
    info.has_repetition() && info.repetition() == Repetition::REPEATED
}

/// Returns the type of the elements of a list from its only field. That is a group around each element, or the element itself in old
/// files, by the rules of the library.
fn element(field: &Type) -> &Type {
    if field.is_primitive() {
        return field;
    }
    let is_list = field.get_basic_info().converted_type() == ConvertedType::LIST;
    let is_named_as_element = field.name() == "array" || field.name().ends_with("_tuple");
    match field.get_fields() {
        [only] if is_list || is_repeated(only) || !is_named_as_element => only,
        _ => field,
    }
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

/// Converts the columns of a row. The error names the column.
fn row_columns(row: &Row, kinds: &[Kind]) -> Result<Map<String, Value>, (String, Problem)> {
    let kinds = kinds.iter().chain(std::iter::repeat(&Kind::Other));
    let column = |((name, field), kind): ((&String, &Field), &Kind)| match value(field, kind) {
        Ok(value) => Ok((name.clone(), value)),
        Err(problem) => Err((name.clone(), problem)),
    };
    row.get_column_iter().zip(kinds).map(column).collect()
}

/// Converts a value, as the Arrow reader does.
fn value(field: &Field, kind: &Kind) -> Result<Value, Problem> {
    match field {
        Field::Float16(number) if !number.is_finite() => Err(Problem::NotFinite),
        Field::Float(number) if !number.is_finite() => Err(Problem::NotFinite),
        Field::Double(number) if !number.is_finite() => Err(Problem::NotFinite),
        Field::Str(text) if matches!(kind, Kind::Json) => parsed(text),
        // The library writes every time in UTC. In nanoseconds it is a number.
        Field::TimestampMillis(_) | Field::TimestampMicros(_) if matches!(kind, Kind::LocalTime) => {
            Ok(match field.to_json_value() {
                Value::String(text) => text.trim_end_matches(UTC).into(),
                other => other,
            })
        }
        Field::Group(row) => {
            let kinds: &[Kind] = if let Kind::Struct(kinds) = kind { kinds } else { &[] };
            row_columns(row, kinds).map(Value::Object).map_err(|(_, problem)| problem)
        }
        Field::ListInternal(list) => {
            let item: &Kind = if let Kind::List(item) = kind { item } else { &Kind::Other };
            list.elements().iter().map(|field| value(field, item)).collect::<Result<_, _>>().map(Value::Array)
        }
        Field::MapInternal(entries) => {
            let (keys, values) =
                if let Kind::Map(keys, values) = kind { (&**keys, &**values) } else { (&Kind::Other, &Kind::Other) };
            let mut map = Map::new();
            for (key, field) in entries.entries() {
                insert(&mut map, value(key, keys)?, value(field, values)?)?;
            }
            Ok(Value::Object(map))
        }
        other => Ok(other.to_json_value()),
    }
}

impl Iterator for ParquetRows {
    type Item = Result<RawRow>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let (rows, kinds) = (&mut self.rows, &self.columns);
        let error = match border::catch_panic(|| Some(rows.next()?.map(|row| row_columns(&row, kinds)))) {
            Ok(None) => return None,
            Ok(Some(Ok(columns))) => {
                self.row += 1;
                let location = RowLocation::new(&self.origin.file, self.row);
                return Some(match columns {
                    Ok(columns) => Ok(RawRow { location, columns }),
                    Err((column, problem)) => Err(problem.error(&location, &column)),
                });
            }
            Ok(Some(Err(e))) => broken(&self.origin, &e),
            Err(panicked) => invalid(&self.origin, &panicked),
        };
        self.done = true;
        Some(Err(error))
    }
}
