//! Rows to Parquet: types found from the values, lists and objects nested as other tools write them.

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};
use serde_json::{Map, Value};

use super::write::column_names;
use crate::Error;

/// What all values of a column are.
#[derive(Debug, Clone, PartialEq)]
enum Shape {
    /// Only nulls so far.
    Nothing,
    Bool,
    /// Integers; whether each of them is exact as a float, too.
    Int {
        is_exact: bool,
    },
    Float,
    Text,
    List(Box<Shape>),
    Struct(Vec<(String, Shape)>),
}

/// Rows that Parquet does not hold as they are.
#[derive(Debug)]
pub(super) struct Fault {
    /// The row, from 1; none where the library failed.
    row: Option<usize>,
    message: String,
}

impl Fault {
    /// The error of writing the rows to `path`.
    pub fn error(self, path: &Path) -> Error {
        let error = Error::data(path, self.row, self.message);
        if self.row.is_some() { error.with_hint("write .jsonl or .json, which hold any rows") } else { error }
    }
}

impl From<ParquetError> for Fault {
    fn from(error: ParquetError) -> Self {
        Self { row: None, message: error.to_string() }
    }
}

/// Whole numbers up to here are exact as floats.
const EXACT: u64 = 1 << 53;

impl Shape {
    fn of(value: &Value) -> Result<Self, String> {
        Ok(match value {
            Value::Null => Self::Nothing,
            Value::Bool(_) => Self::Bool,
            Value::Number(n) => match n.as_i64() {
                Some(n) => Self::Int { is_exact: n.unsigned_abs() <= EXACT },
                None if n.is_u64() => return Err(format!("holds {n}, more than a 64-bit integer of Parquet holds")),
                None => Self::Float,
            },
            Value::String(_) => Self::Text,
            Value::Array(items) => {
                let join = |shape: Self, item| shape.join(Self::of(item)?);
                Self::List(Box::new(items.iter().try_fold(Self::Nothing, join)?))
            }
            Value::Object(map) => {
                let field = |(key, value): (&String, &Value)| Ok((key.clone(), Self::of(value)?));
                Self::Struct(map.iter().map(field).collect::<Result<_, String>>()?)
            }
        })
    }

    /// What holds the values of both.
    fn join(self, other: Self) -> Result<Self, String> {
        Ok(match (self, other) {
            (Self::Nothing, shape) | (shape, Self::Nothing) => shape,
            (Self::Int { is_exact: a }, Self::Int { is_exact: b }) => Self::Int { is_exact: a && b },
            (Self::Int { is_exact }, Self::Float) | (Self::Float, Self::Int { is_exact }) => match is_exact {
                true => Self::Float,
                false => {
                    return Err(
                        "holds fractions and integers above 2^53, which no column of Parquet holds exactly".into()
                    );
                }
            },
            (Self::List(a), Self::List(b)) => Self::List(Box::new(a.join(*b)?)),
            (Self::Struct(mut a), Self::Struct(b)) => {
                for (name, shape) in b {
                    match a.iter_mut().find(|(n, _)| *n == name) {
                        Some((_, known)) => *known = std::mem::replace(known, Self::Nothing).join(shape)?,
                        None => a.push((name, shape)),
                    }
                }
                Self::Struct(a)
            }
            (a, b) if a == b => a,
            (a, b) => {
                let (earlier, here) = (a.describe(), b.describe());
                return Err(format!("holds {here} here and {earlier} before, but a column of Parquet has one type"));
            }
        })
    }

    fn describe(&self) -> &'static str {
        match self {
            Self::Nothing => "null",
            Self::Bool => "true or false",
            Self::Int { .. } | Self::Float => "a number",
            Self::Text => "text",
            Self::List(_) => "a list",
            Self::Struct(_) => "an object",
        }
    }

    /// Lists of nothing and structs within get a type that can be written.
    fn settle(self) -> Result<Self, String> {
        Ok(match self {
            Self::Nothing => Self::Text,
            Self::List(item) => Self::List(Box::new(item.settle()?)),
            Self::Struct(fields) if fields.is_empty() => {
                return Err("holds objects without any key, which no column of Parquet holds".into());
            }
            Self::Struct(fields) => {
                let settle = |(name, shape): (String, Self)| Ok((name, shape.settle()?));
                Self::Struct(fields.into_iter().map(settle).collect::<Result<_, String>>()?)
            }
            other => other,
        })
    }

    fn schema(&self, name: &str) -> Result<TypePtr, ParquetError> {
        let optional = |physical| Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
        let text = || {
            optional(Physical::BYTE_ARRAY)
                .with_logical_type(Some(LogicalType::String))
                .with_converted_type(ConvertedType::UTF8)
        };
        let schema = match self {
            Self::Bool => optional(Physical::BOOLEAN).build()?,
            Self::Int { .. } => optional(Physical::INT64).build()?,
            Self::Float => optional(Physical::DOUBLE).build()?,
            Self::Text | Self::Nothing => text().build()?,
            Self::List(item) => {
                let list = Type::group_type_builder("list")
                    .with_repetition(Repetition::REPEATED)
                    .with_fields(vec![item.schema("element")?])
                    .build()?;
                Type::group_type_builder(name)
                    .with_repetition(Repetition::OPTIONAL)
                    .with_logical_type(Some(LogicalType::List))
                    .with_converted_type(ConvertedType::LIST)
                    .with_fields(vec![Arc::new(list)])
                    .build()?
            }
            Self::Struct(fields) => {
                let fields =
                    fields.iter().map(|(name, shape)| shape.schema(name)).collect::<Result<_, ParquetError>>()?;
                Type::group_type_builder(name).with_repetition(Repetition::OPTIONAL).with_fields(fields).build()?
            }
        };
        Ok(Arc::new(schema))
    }
}

/// The values of one leaf column with their definition and repetition levels.
#[derive(Default)]
struct Leaf {
    values: Vec<Value>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

/// Takes a value apart into the leaves below it.
///
/// Definition levels count the optional and repeated ancestors that are there; repetition levels say which list goes on.
fn shred(shape: &Shape, value: &Value, definition: i16, repetition: i16, depth: i16, leaves: &mut [Leaf]) {
    match (shape, value) {
        (_, Value::Null) => leaves.iter_mut().for_each(|leaf| {
            leaf.definition.push(definition);
            leaf.repetition.push(repetition);
        }),
        (Shape::List(_), Value::Array(items)) if items.is_empty() => leaves.iter_mut().for_each(|leaf| {
            leaf.definition.push(definition + 1);
            leaf.repetition.push(repetition);
        }),
        (Shape::List(item), Value::Array(items)) => {
            for (i, value) in items.iter().enumerate() {
                let repetition = if i == 0 { repetition } else { depth + 1 };
                shred(item, value, definition + 2, repetition, depth + 1, leaves);
            }
        }
        (Shape::Struct(fields), Value::Object(map)) => {
            let mut rest = leaves;
            for (name, shape) in fields {
                let (own, others) = rest.split_at_mut(count(shape));
                shred(shape, map.get(name).unwrap_or(&Value::Null), definition + 1, repetition, depth, own);
                rest = others;
            }
        }
        (_, value) => {
            let leaf = &mut leaves[0];
            leaf.definition.push(definition + 1);
            leaf.repetition.push(repetition);
            leaf.values.push(value.clone());
        }
    }
}

/// How many leaves a shape has.
fn count(shape: &Shape) -> usize {
    match shape {
        Shape::List(item) => count(item),
        Shape::Struct(fields) => fields.iter().map(|(_, shape)| count(shape)).sum(),
        _ => 1,
    }
}

/// Rows of one row group.
const GROUP: usize = 10_000;

/// The rows as the bytes of a Parquet file.
///
/// # Errors
/// When a column holds what no column of Parquet holds unchanged.
pub(super) fn write_parquet(rows: &[Map<String, Value>]) -> Result<Vec<u8>, Fault> {
    let shape = |name: String| -> Result<(String, Shape), Fault> {
        let fault = |row, message| Fault { row: Some(row), message: format!("column `{name}` {message}") };
        let mut shape = Shape::Nothing;
        for (i, value) in rows.iter().enumerate().filter_map(|(i, row)| Some((i, row.get(&name)?))) {
            shape = Shape::of(value).and_then(|found| shape.join(found)).map_err(|message| fault(i + 1, message))?;
        }
        let first = rows.iter().position(|row| row.contains_key(&name)).unwrap_or(0);
        let shape = shape.settle().map_err(|message| fault(first + 1, message))?;
        Ok((name, shape))
    };
    let shapes = column_names(rows).into_iter().map(shape).collect::<Result<Vec<_>, Fault>>()?;
    let fields = shapes.iter().map(|(name, shape)| shape.schema(name)).collect::<Result<_, ParquetError>>()?;
    let schema = Arc::new(Type::group_type_builder("schema").with_fields(fields).build()?);
    let properties = Arc::new(WriterProperties::builder().set_compression(Compression::SNAPPY).build());
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, properties)?;
    for rows in rows.chunks(GROUP) {
        let mut group = writer.next_row_group()?;
        for (name, shape) in &shapes {
            let mut leaves: Vec<Leaf> = (0..count(shape)).map(|_| Leaf::default()).collect();
            for row in rows {
                shred(shape, row.get(name).unwrap_or(&Value::Null), 0, 0, 0, &mut leaves);
            }
            for leaf in &leaves {
                let mut column = group.next_column()?.expect("the schema has this column");
                let (definition, repetition) = (Some(&leaf.definition[..]), Some(&leaf.repetition[..]));
                let values = leaf.values.iter();
                match column.untyped() {
                    parquet::column::writer::ColumnWriter::BoolColumnWriter(_) => {
                        let values: Vec<bool> = values.filter_map(Value::as_bool).collect();
                        column.typed::<BoolType>().write_batch(&values, definition, repetition)?;
                    }
                    parquet::column::writer::ColumnWriter::Int64ColumnWriter(_) => {
                        let values: Vec<i64> = values.filter_map(Value::as_i64).collect();
                        column.typed::<Int64Type>().write_batch(&values, definition, repetition)?;
                    }
                    parquet::column::writer::ColumnWriter::DoubleColumnWriter(_) => {
                        let values: Vec<f64> = values.filter_map(Value::as_f64).collect();
                        column.typed::<DoubleType>().write_batch(&values, definition, repetition)?;
                    }
                    _ => {
                        let values: Vec<ByteArray> = values.filter_map(Value::as_str).map(ByteArray::from).collect();
                        column.typed::<ByteArrayType>().write_batch(&values, definition, repetition)?;
                    }
                }
                column.close()?;
            }
        }
        group.close()?;
    }
    writer.close()?;
    Ok(bytes)
}
