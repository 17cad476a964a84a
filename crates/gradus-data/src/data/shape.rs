//! Types of columns, for formats whose columns have one type.

use std::path::Path;

use serde_json::{Map, Value};

use super::reader::Format;
use crate::Error;

/// Type of all values in a column.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    /// Only nulls so far.
    Nothing,
    Bool,
    /// Integers. `is_exact`: all of them can also be represented exactly as floats.
    Int {
        is_exact: bool,
    },
    Float,
    Text,
    List(Box<Shape>),
    Struct(Vec<(String, Shape)>),
}

/// Why a format cannot hold the rows.
#[derive(Debug)]
pub(super) struct Fault {
    /// Row number, from 1, or `None` for a failure of the library.
    row: Option<usize>,
    message: String,
}

impl Fault {
    /// Creates a fault of a row, counted from 1.
    pub fn of_row(row: usize, message: String) -> Self {
        Self { row: Some(row), message }
    }

    /// Wraps a failure of the library that writes the format.
    pub fn of_library(error: &impl std::error::Error) -> Self {
        Self { row: None, message: error.to_string() }
    }

    /// Converts the fault to an error about writing to `path`.
    pub fn error(self, path: &Path) -> Error {
        let error = Error::data(path, self.row, self.message);
        if self.row.is_some() { error.with_hint("write .jsonl or .json, which hold any rows") } else { error }
    }
}

/// Why values do not fit into one column.
enum Misfit {
    Large(u64),
    Inexact,
    Mixed { here: &'static str, earlier: &'static str },
    NoKeys,
}

impl Misfit {
    fn describe(&self, format: Format) -> String {
        let format = format.describe();
        match self {
            Self::Large(number) => format!("holds {number}, more than a signed 64-bit integer holds"),
            Self::Inexact => {
                format!("holds fractions and integers above 2^53, which no column of {format} holds exactly")
            }
            Self::Mixed { here, earlier } => {
                format!("holds {here} here and {earlier} before, but a column of {format} has one type")
            }
            Self::NoKeys => format!("holds objects without any key, which no column of {format} holds"),
        }
    }
}

/// Largest integer up to which all integers are exact as floats.
const EXACT: u64 = 1 << 53;

impl Shape {
    fn of(value: &Value) -> Result<Self, Misfit> {
        Ok(match value {
            Value::Null => Self::Nothing,
            Value::Bool(_) => Self::Bool,
            Value::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(n), _) => Self::Int { is_exact: n.unsigned_abs() <= EXACT },
                (None, Some(n)) => return Err(Misfit::Large(n)),
                (None, None) => Self::Float,
            },
            Value::String(_) => Self::Text,
            Value::Array(items) => {
                let join = |shape: Self, item| shape.join(Self::of(item)?);
                Self::List(Box::new(items.iter().try_fold(Self::Nothing, join)?))
            }
            Value::Object(map) => {
                let field = |(key, value): (&String, &Value)| Ok((key.clone(), Self::of(value)?));
                Self::Struct(map.iter().map(field).collect::<Result<_, Misfit>>()?)
            }
        })
    }

    /// Returns the type that can hold the values of both.
    fn join(self, other: Self) -> Result<Self, Misfit> {
        Ok(match (self, other) {
            (Self::Nothing, shape) | (shape, Self::Nothing) => shape,
            (Self::Int { is_exact: a }, Self::Int { is_exact: b }) => Self::Int { is_exact: a && b },
            (Self::Int { is_exact }, Self::Float) | (Self::Float, Self::Int { is_exact }) => match is_exact {
                true => Self::Float,
                false => return Err(Misfit::Inexact),
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
            (a, b) => return Err(Misfit::Mixed { here: b.describe(), earlier: a.describe() }),
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

    /// Replaces unknown types with text and checks structs, so that the type can be written.
    fn settle(self, format: Format) -> Result<Self, Misfit> {
        Ok(match self {
            Self::Nothing => Self::Text,
            Self::List(item) => Self::List(Box::new(item.settle(format)?)),
            // Arrow allows structs without fields.
            Self::Struct(fields) if fields.is_empty() && format != Format::Arrow => return Err(Misfit::NoKeys),
            Self::Struct(fields) => {
                let settle = |(name, shape): (String, Self)| Ok((name, shape.settle(format)?));
                Self::Struct(fields.into_iter().map(settle).collect::<Result<_, Misfit>>()?)
            }
            other => other,
        })
    }
}

/// Returns the columns with their types, in the order of first appearance.
///
/// # Errors
/// If no column of `format` can hold the values of a column unchanged.
pub(super) fn shapes(rows: &[Map<String, Value>], format: Format) -> Result<Vec<(String, Shape)>, Fault> {
    let shape = |name: String| -> Result<(String, Shape), Fault> {
        let fault = |row, misfit: Misfit| Fault::of_row(row, format!("column `{name}` {}", misfit.describe(format)));
        let mut shape = Shape::Nothing;
        for (i, value) in rows.iter().enumerate().filter_map(|(i, row)| Some((i, row.get(&name)?))) {
            shape = Shape::of(value).and_then(|found| shape.join(found)).map_err(|misfit| fault(i + 1, misfit))?;
        }
        let first = rows.iter().position(|row| row.contains_key(&name)).unwrap_or(0);
        let shape = shape.settle(format).map_err(|misfit| fault(first + 1, misfit))?;
        Ok((name, shape))
    };
    column_names(rows).into_iter().map(shape).collect()
}

/// Returns all column names in the order of first appearance.
pub(super) fn column_names(rows: &[Map<String, Value>]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in rows.iter().flat_map(Map::keys) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}
