//! Converts rows to Parquet. Types are inferred from the values; lists and objects are nested as other tools write them.

use std::sync::Arc;

use parquet::basic::{Compression, ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};
use serde_json::{Map, Value};

use super::reader::Format;
use super::shape::{Fault, Shape, shapes};

impl From<ParquetError> for Fault {
    fn from(error: ParquetError) -> Self {
        Self::of_library(&error)
    }
}

fn schema(shape: &Shape, name: &str) -> Result<TypePtr, ParquetError> {
    let optional = |physical| Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
    let text = || {
        optional(Physical::BYTE_ARRAY)
            .with_logical_type(Some(LogicalType::String))
            .with_converted_type(ConvertedType::UTF8)
    };
    let schema = match shape {
        Shape::Bool => optional(Physical::BOOLEAN).build()?,
        Shape::Int { .. } => optional(Physical::INT64).build()?,
        Shape::Float => optional(Physical::DOUBLE).build()?,
        Shape::Text | Shape::Nothing => text().build()?,
        Shape::List(item) => {
            let list = Type::group_type_builder("list")
                .with_repetition(Repetition::REPEATED)
                .with_fields(vec![schema(item, "element")?])
                .build()?;
            Type::group_type_builder(name)
                .with_repetition(Repetition::OPTIONAL)
                .with_logical_type(Some(LogicalType::List))
                .with_converted_type(ConvertedType::LIST)
                .with_fields(vec![Arc::new(list)])
                .build()?
        }
        Shape::Struct(fields) => {
            let fields = fields.iter().map(|(name, shape)| schema(shape, name)).collect::<Result<_, ParquetError>>()?;
            Type::group_type_builder(name).with_repetition(Repetition::OPTIONAL).with_fields(fields).build()?
        }
    };
    Ok(Arc::new(schema))
}

/// Values of one leaf column with their definition and repetition levels.
#[derive(Default)]
struct Leaf {
    values: Vec<Value>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

/// Splits a value into the leaves below it.
///
/// Definition levels count the optional and repeated ancestors that are present. Repetition levels state which list continues.
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

/// Returns the number of leaves of a type.
fn count(shape: &Shape) -> usize {
    match shape {
        Shape::List(item) => count(item),
        Shape::Struct(fields) => fields.iter().map(|(_, shape)| count(shape)).sum(),
        _ => 1,
    }
}

/// Number of rows in a row group.
const GROUP: usize = 10_000;

/// Encodes rows as a Parquet file.
///
/// # Errors
/// If no Parquet column can hold the values of a column unchanged.
pub(super) fn write_parquet(rows: &[Map<String, Value>]) -> Result<Vec<u8>, Fault> {
    let shapes = shapes(rows, Format::Parquet)?;
    let fields = shapes.iter().map(|(name, shape)| schema(shape, name)).collect::<Result<_, ParquetError>>()?;
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
