//! Converts values of Arrow arrays to the same JSON that the Parquet reader returns. Both readers share the checks here.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::temporal_conversions::{
    date32_to_datetime, date64_to_datetime, timestamp_ms_to_datetime, timestamp_s_to_datetime, timestamp_us_to_datetime,
};
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Field, Fields, TimeUnit};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Number, Value};

use super::json;
use super::raw::{not_finite, too_large};
use super::row_location::RowLocation;
use crate::Error;
use crate::error::excerpt;

/// Why a column has no representation in rows, and a hint.
pub(super) type NoValue = (String, &'static str);

/// Arrow's type of texts that are JSON. `datasets` calls it `Json`.
const JSON: &str = "arrow.json";

/// Checks that no two columns, or fields of a struct, have the same name.
pub(super) fn check_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), NoValue> {
    let mut known = HashSet::new();
    match names.into_iter().find(|name| !known.insert(*name)) {
        Some(name) => {
            let what = format!("two columns are named `{}`", excerpt(name, 60));
            Err((what, "rename one of them: a row holds one value of a name"))
        }
        None => Ok(()),
    }
}

/// Checks that rows can represent all columns: names are unique and types are supported.
pub(super) fn check_fields(fields: &Fields, column: Option<&str>) -> Result<(), NoValue> {
    check_names(fields.iter().map(|field| field.name().as_str()))?;
    fields.iter().try_for_each(|field| check_field(field, column.unwrap_or(field.name())))
}

fn check_field(field: &Field, column: &str) -> Result<(), NoValue> {
    check_type(field.data_type(), column)
}

fn check_type(kind: &DataType, column: &str) -> Result<(), NoValue> {
    use DataType::*;
    match kind {
        Null | Boolean | Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 | Float16 | Float32
        | Float64 | Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView | FixedSizeBinary(_) | Date32
        | Date64 | Time32(_) | Time64(_) | Timestamp(..) => Ok(()),
        Decimal32(_, scale) | Decimal64(_, scale) | Decimal128(_, scale) | Decimal256(_, scale) if *scale >= 0 => {
            Ok(())
        }
        List(field) | LargeList(field) | FixedSizeList(field, _) => check_field(field, column),
        Struct(fields) => check_fields(fields, Some(column)),
        Map(entries, _) => match entries.data_type() {
            Struct(fields) if fields.len() == 2 => fields.iter().try_for_each(|field| check_field(field, column)),
            _ => Err(unsupported(kind, column)),
        },
        Dictionary(_, values) => check_type(values, column),
        _ => Err(unsupported(kind, column)),
    }
}

/// Returns the error for a column of a type that has no JSON equivalent.
pub(super) fn unsupported(kind: &impl std::fmt::Display, column: &str) -> NoValue {
    let kind = excerpt(&kind.to_string(), 200);
    let what = format!("column `{}` has the type {kind}, which rows cannot store", excerpt(column, 60));
    (what, "turn it into text, numbers, lists or structs, or leave the column out")
}

/// Why a value has no representation in a row.
pub(super) enum Problem {
    TooLarge,
    NotFinite,
    /// Description of the value, to follow the name of the column.
    Is(String),
}

impl Problem {
    /// Returns the error for the row at `location`, in which a value of `column` has this problem.
    pub fn error(self, location: &RowLocation, column: &str) -> Error {
        match self {
            Self::TooLarge => too_large(&location.file, location.line),
            Self::NotFinite => not_finite(location, column),
            Self::Is(what) => location.error(format!("column `{column}` {what}")),
        }
    }
}

/// Parses the text of a value whose type is JSON.
pub(super) fn parsed(text: &str) -> Result<Value, Problem> {
    json::parse(text.as_bytes())
        .map_err(|fault| Problem::Is(format!("holds a JSON text that is refused: {}", fault.message)))
}

/// Adds an entry to a map. Keys that are not text become their JSON.
pub(super) fn insert(map: &mut Map<String, Value>, key: Value, value: Value) -> Result<(), Problem> {
    let key = match key {
        Value::String(key) => key,
        other => other.to_string(),
    };
    if map.contains_key(&key) {
        let key = excerpt(&key, 60);
        return Err(Problem::Is(format!("holds a map with the key `{key}` twice")));
    }
    map.insert(key, value);
    Ok(())
}

fn take(room: &mut usize, bytes: usize) -> Result<(), Problem> {
    *room = room.checked_sub(bytes).ok_or(Problem::TooLarge)?;
    Ok(())
}

fn primitive<T: ArrowPrimitiveType>(array: &dyn Array, at: usize) -> T::Native {
    array.as_primitive::<T>().value(at)
}

/// Converts the value at `at` of the array of `field`, as the Parquet reader does. `room` is the number of bytes that the row may still
/// take.
pub(super) fn value(field: &Field, array: &dyn Array, at: usize, room: &mut usize) -> Result<Value, Problem> {
    // The shortest JSON value and a comma.
    take(room, 2)?;
    if array.is_null(at) {
        return Ok(Value::Null);
    }
    let text = |text: &str, room: &mut usize| {
        take(room, text.len())?;
        if field.extension_type_name() == Some(JSON) { parsed(text) } else { Ok(Value::String(text.to_owned())) }
    };
    let bytes = |bytes: &[u8], room: &mut usize| {
        take(room, bytes.len().div_ceil(3).saturating_mul(4)).map(|()| Value::String(BASE64_STANDARD.encode(bytes)))
    };
    let float = |number: f64| Number::from_f64(number).map(Value::Number).ok_or(Problem::NotFinite);
    let list = |item: &Field, values: &ArrayRef, start: usize, end: usize, room: &mut usize| {
        (start..end).map(|at| value(item, values, at, room)).collect::<Result<_, _>>().map(Value::Array)
    };
    match array.data_type() {
        DataType::Null => Ok(Value::Null),
        DataType::Boolean => Ok(Value::Bool(array.as_boolean().value(at))),
        DataType::Int8 => Ok(primitive::<Int8Type>(array, at).into()),
        DataType::Int16 => Ok(primitive::<Int16Type>(array, at).into()),
        DataType::Int32 => Ok(primitive::<Int32Type>(array, at).into()),
        DataType::Int64 => Ok(primitive::<Int64Type>(array, at).into()),
        DataType::UInt8 => Ok(primitive::<UInt8Type>(array, at).into()),
        DataType::UInt16 => Ok(primitive::<UInt16Type>(array, at).into()),
        DataType::UInt32 => Ok(primitive::<UInt32Type>(array, at).into()),
        DataType::UInt64 => Ok(primitive::<UInt64Type>(array, at).into()),
        DataType::Float16 => float(primitive::<Float16Type>(array, at).to_f64()),
        DataType::Float32 => float(primitive::<Float32Type>(array, at).into()),
        DataType::Float64 => float(primitive::<Float64Type>(array, at)),
        DataType::Utf8 => text(array.as_string::<i32>().value(at), room),
        DataType::LargeUtf8 => text(array.as_string::<i64>().value(at), room),
        DataType::Utf8View => text(array.as_string_view().value(at), room),
        DataType::Binary => bytes(array.as_binary::<i32>().value(at), room),
        DataType::LargeBinary => bytes(array.as_binary::<i64>().value(at), room),
        DataType::BinaryView => bytes(array.as_binary_view().value(at), room),
        DataType::FixedSizeBinary(_) => bytes(array.as_fixed_size_binary().value(at), room),
        DataType::Decimal32(_, scale) => Ok(decimal(primitive::<Decimal32Type>(array, at).to_string(), *scale)),
        DataType::Decimal64(_, scale) => Ok(decimal(primitive::<Decimal64Type>(array, at).to_string(), *scale)),
        DataType::Decimal128(_, scale) => Ok(decimal(primitive::<Decimal128Type>(array, at).to_string(), *scale)),
        DataType::Decimal256(_, scale) => Ok(decimal(primitive::<Decimal256Type>(array, at).to_string(), *scale)),
        DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) | DataType::Timestamp(..) => {
            temporal(array, at)
        }
        DataType::List(item) => {
            let lists = array.as_list::<i32>();
            let offsets = lists.value_offsets();
            list(item, lists.values(), offsets[at] as usize, offsets[at + 1] as usize, room)
        }
        DataType::LargeList(item) => {
            let lists = array.as_list::<i64>();
            let offsets = lists.value_offsets();
            list(item, lists.values(), offsets[at] as usize, offsets[at + 1] as usize, room)
        }
        DataType::FixedSizeList(item, length) => {
            let lists = array.as_fixed_size_list();
            let start = lists.value_offset_at(at);
            list(item, lists.values(), start, start + *length as usize, room)
        }
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns().iter();
            let entry = |(field, column): (&Arc<Field>, &ArrayRef)| {
                take(room, field.name().len())?;
                Ok((field.name().clone(), value(field, column, at, room)?))
            };
            fields.iter().zip(columns).map(entry).collect::<Result<_, _>>().map(Value::Object)
        }
        DataType::Map(..) => {
            let maps = array.as_map();
            let (key_field, value_field) = maps.entries_fields();
            let mut map = Map::new();
            for at in maps.value_offsets()[at] as usize..maps.value_offsets()[at + 1] as usize {
                let key = value(key_field, maps.keys(), at, room)?;
                insert(&mut map, key, value(value_field, maps.values(), at, room)?)?;
            }
            Ok(Value::Object(map))
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let key = value(field, dictionary.keys(), at, room)?.as_u64().and_then(|key| usize::try_from(key).ok());
            value(field, dictionary.values(), key.expect("the keys of a dictionary are checked when it is read"), room)
        }
        other => Err(Problem::Is(format!("has the type {other}, which rows cannot store"))),
    }
}

/// End of the text of a point in time. A column without a time zone holds no point in time, so its text lacks this end.
pub(super) const UTC: &str = " +00:00";

/// Converts a date, a time of day or a point in time. Nanoseconds become a number, as in Parquet.
fn temporal(array: &dyn Array, at: usize) -> Result<Value, Problem> {
    const DATE: &str = "%Y-%m-%d";
    const MILLISECONDS: &str = "%Y-%m-%d %H:%M:%S%.3f";
    const MICROSECONDS: &str = "%Y-%m-%d %H:%M:%S%.6f";
    let zone = if let DataType::Timestamp(_, Some(_)) = array.data_type() { UTC } else { "" };
    let (number, time, format) = match array.data_type() {
        DataType::Date32 => {
            let days = primitive::<Date32Type>(array, at);
            (i64::from(days), date32_to_datetime(days), DATE)
        }
        DataType::Date64 => {
            let milliseconds = primitive::<Date64Type>(array, at);
            (milliseconds, date64_to_datetime(milliseconds), DATE)
        }
        DataType::Timestamp(TimeUnit::Second, _) => {
            let seconds = primitive::<TimestampSecondType>(array, at);
            (seconds, timestamp_s_to_datetime(seconds), MILLISECONDS)
        }
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            let milliseconds = primitive::<TimestampMillisecondType>(array, at);
            (milliseconds, timestamp_ms_to_datetime(milliseconds), MILLISECONDS)
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            let microseconds = primitive::<TimestampMicrosecondType>(array, at);
            (microseconds, timestamp_us_to_datetime(microseconds), MICROSECONDS)
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            return Ok(primitive::<TimestampNanosecondType>(array, at).into());
        }
        DataType::Time32(TimeUnit::Second) => {
            return time_of_day(i64::from(primitive::<Time32SecondType>(array, at)) * 1000, 3);
        }
        DataType::Time32(_) => return time_of_day(primitive::<Time32MillisecondType>(array, at).into(), 3),
        DataType::Time64(TimeUnit::Microsecond) => {
            return time_of_day(primitive::<Time64MicrosecondType>(array, at), 6);
        }
        _ => return Ok(primitive::<Time64NanosecondType>(array, at).into()),
    };
    match time {
        Some(time) => Ok(Value::String(format!("{}{zone}", time.format(format)))),
        None => Err(Problem::Is(format!("holds the time {number}, which is outside the calendar"))),
    }
}

/// Formats `HH:MM:SS` with as many decimals as the unit has.
fn time_of_day(units: i64, digits: usize) -> Result<Value, Problem> {
    let units = u64::try_from(units).map_err(|_| Problem::Is(format!("holds the time of day {units}, below zero")))?;
    let second = 10u64.pow(digits as u32);
    let (seconds, rest) = (units / second, units % second);
    let text = format!("{:02}:{:02}:{:02}.{rest:0digits$}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    Ok(Value::String(text))
}

/// Inserts a decimal point before the last `scale` digits.
fn decimal(digits: String, scale: i8) -> Value {
    let scale = usize::try_from(scale).unwrap_or(0);
    let (sign, digits) = digits.strip_prefix('-').map_or(("", &*digits), |digits| ("-", digits));
    // At least one digit precedes the point.
    let digits = format!("{digits:0>width$}", width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    Value::String(format!("{sign}{whole}.{fraction}"))
}
