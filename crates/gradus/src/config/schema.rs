//! The shape of [`RunConfig`], read from the JSON schema that `schemars` generates from the types.
//!
//! Flags, the reference page, `gradus config explain` and the check for unknown keys all come from here, so none of
//! them can disagree with the types.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::RunConfig;
use crate::plugin;

/// The shape of the whole configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    pub(super) root: Shape,
    pub(super) definitions: BTreeMap<String, Shape>,
}

/// Expected shape of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// Any text.
    Text,
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Integer {
        /// Smallest value: declared next to the key (`range(min = …)`), else that of its type; `None` for types with negative values.
        minimum: Option<i64>,
        /// Largest useful value: declared next to the key (`range(max = …)`), else 10⁹, so that counts can be added and
        /// multiplied. A seed uses all 64 bits.
        maximum: u64,
    },
    /// Any finite number.
    Number,
    /// One of a list of words.
    Word(Vec<Word>),
    /// A mapping with exactly one of these keys.
    Choice(Vec<Field>),
    /// A mapping with some of these keys and no others.
    Map(Vec<Field>),
    /// A mapping with arbitrary names as keys.
    Keyed(Box<Shape>),
    /// A list.
    List {
        /// Shape of the items.
        item: Box<Shape>,
        /// Number of items, if it is fixed.
        length: Option<usize>,
    },
    /// A value, or a list of such values.
    OneOrMore(Box<Shape>),
    /// A value, or a mapping: either one with the value as one of its keys, or a choice with the value as the name of a variant. The variants
    /// of an enum without data are words.
    OrMap(Box<Shape>, Box<Shape>),
    /// A shape by name; see [`Schema::resolve`].
    Named(String),
}

/// One word of a [`Shape::Word`].
#[derive(Debug, Clone, PartialEq)]
pub struct Word {
    /// The word, as a configuration writes it.
    pub name: String,
    /// What the word means.
    pub doc: String,
}

/// A key of a mapping, or a variant of a choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Name of the key or variant, as a configuration writes it.
    pub name: String,
    /// What it does, as flags and references show it.
    pub doc: String,
    /// Whether it is required.
    pub required: bool,
    /// Whether it may be `null`, which is the same as leaving it out.
    pub nullable: bool,
    /// Value if the key is left out.
    pub default: Option<Value>,
    /// Expected shape of the value.
    pub shape: Shape,
}

impl Schema {
    /// Returns the shape of [`RunConfig`].
    pub fn run_config() -> Self {
        const KNOWN: &str = "a form of schema that this module knows: a test reads all of it";
        let schema = schemars::schema_for!(RunConfig).to_value();
        let definitions = definitions(&schema).into_iter().map(|(name, value)| (name, shape(&value).expect(KNOWN).0));
        Self { root: shape(&schema).expect(KNOWN).0, definitions: definitions.collect() }
    }

    /// Returns a schema with only this key at the top level.
    pub(super) fn only(mut self, key: &str) -> Self {
        if let Shape::Map(fields) = &mut self.root {
            fields.retain(|field| field.name == key);
        }
        self
    }

    /// Returns the shape of the top level.
    pub fn root(&self) -> &Shape {
        &self.root
    }

    /// Returns the shape that a name refers to; other shapes are returned unchanged.
    pub fn resolve<'a>(&'a self, shape: &'a Shape) -> &'a Shape {
        match shape {
            Shape::Named(name) => self.resolve(&self.definitions[name]),
            other => other,
        }
    }

    /// Returns the keys of a mapping or a choice; empty for other shapes.
    pub fn fields<'a>(&'a self, shape: &'a Shape) -> &'a [Field] {
        match self.resolve(shape) {
            Shape::Map(fields) | Shape::Choice(fields) => fields,
            Shape::OrMap(_, map) => self.fields(map),
            _ => &[],
        }
    }

    /// Returns the variants of an enum that has words as well as variants with keys. Returns `None` for other shapes.
    pub(super) fn variants<'a>(&'a self, shape: &'a Shape) -> Option<(&'a [Word], &'a [Field])> {
        let Shape::OrMap(first, map) = self.resolve(shape) else { return None };
        let (Shape::Word(words), Shape::Choice(sides)) = (self.resolve(first), self.resolve(map)) else { return None };
        // Words that name variants with keys stand for their defaults.
        let has_keys = |word: &Word| sides.iter().any(|side| side.name == word.name);
        (!words.iter().any(has_keys)).then_some((words, sides))
    }

    /// Returns whether a shape is a mapping without required keys.
    pub(super) fn all_optional(&self, shape: &Shape) -> bool {
        matches!(self.resolve(shape), Shape::Map(fields) if fields.iter().all(|field| !field.required))
    }

    /// Returns the field at a dotted path such as `method.ppo.kl.target`.
    pub fn field(&self, path: &str) -> Option<&Field> {
        let mut fields = self.fields(&self.root);
        let mut found = None;
        for part in path.split('.') {
            let field = fields.iter().find(|field| field.name == part)?;
            fields = self.fields(&field.shape);
            found = Some(field);
        }
        found
    }
}

/// Returns the shape of a plug-in's options, and the shapes that they refer to, with `prefix` in front of their names.
pub(super) fn options(schema: &Value, prefix: &str) -> Result<(Shape, BTreeMap<String, Shape>), String> {
    let schema = renamed(schema, prefix);
    let parts = definitions(&schema).into_iter().map(|(name, value)| Ok((format!("{prefix}{name}"), shape(&value)?.0)));
    let parts = parts.collect::<Result<_, String>>()?;
    match shape(&schema)? {
        (map @ Shape::Map(_), false) => Ok((map, parts)),
        _ => Err("they are no mapping".into()),
    }
}

/// Returns the schema with `prefix` in front of every referenced name.
fn renamed(schema: &Value, prefix: &str) -> Value {
    match schema {
        Value::Object(keys) => keys
            .iter()
            .map(|(key, value)| {
                (
                    key.clone(),
                    match value.as_str() {
                        Some(path) if key == "$ref" => {
                            path.replacen(DEFINITIONS, &format!("{DEFINITIONS}{prefix}"), 1).into()
                        }
                        _ => renamed(value, prefix),
                    },
                )
            })
            .collect(),
        Value::Array(items) => items.iter().map(|item| renamed(item, prefix)).collect(),
        other => other.clone(),
    }
}

/// Prefix of references to definitions.
const DEFINITIONS: &str = "#/$defs/";

fn definitions(schema: &Value) -> Map<String, Value> {
    schema.get("$defs").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Returns the shape of a schema, and whether `null` is one of its values.
///
/// # Errors
/// If the form of the schema is not supported.
fn shape(schema: &Value) -> Result<(Shape, bool), String> {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        return Ok((Shape::Named(name.strip_prefix(DEFINITIONS).unwrap_or(name).to_owned()), false));
    }
    if schema.get(plugin::SCHEMA_KEY).is_some_and(Value::is_string) {
        // The program provides the variants: see `Schema::with`.
        return Ok((Shape::Choice(Vec::new()), false));
    }
    if let Some(options) = schema.get("anyOf").and_then(Value::as_array) {
        let nullable = options.iter().any(is_null);
        let shapes = options.iter().filter(|option| !is_null(option)).map(|option| Ok(shape(option)?.0));
        let mut shapes = shapes.collect::<Result<Vec<_>, String>>()?.into_iter();
        let first = shapes.next().ok_or("a choice of nothing")?;
        return Ok(match shapes.next() {
            None => (first, nullable),
            Some(Shape::List { item, .. }) if *item == first => (Shape::OneOrMore(item), nullable),
            Some(second) => (Shape::OrMap(Box::new(first), Box::new(second)), nullable),
        });
    }
    if let Some(options) = schema.get("oneOf").and_then(Value::as_array) {
        return Ok((choice(options)?, false));
    }
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        let word = |name: &str| Word { name: name.to_owned(), doc: String::new() };
        let nullable = words.contains(&Value::Null);
        return Ok((Shape::Word(words.iter().filter_map(Value::as_str).map(word).collect()), nullable));
    }
    let (kind, nullable) = match schema.get("type") {
        Some(Value::String(kind)) => (kind.as_str(), false),
        Some(Value::Array(kinds)) => {
            let kind = kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null");
            (kind.ok_or("nothing beside null")?, kinds.iter().any(|kind| kind == "null"))
        }
        _ => return Err(format!("the schema has a form without a type: {schema}")),
    };
    let shape = match kind {
        "string" => Shape::Text,
        "boolean" => Shape::Bool,
        "number" => Shape::Number,
        "integer" => {
            let declared = schema.get("maximum").and_then(Value::as_u64);
            let is_seed = schema.get("format").is_some_and(|format| format == "uint64");
            let maximum = declared.unwrap_or(if is_seed { u64::MAX } else { LARGEST_COUNT });
            Shape::Integer { minimum: schema.get("minimum").and_then(Value::as_i64), maximum }
        }
        "object" => match schema.get("additionalProperties").filter(|item| item.is_object()) {
            Some(item) => Shape::Keyed(Box::new(shape(item)?.0)),
            None => Shape::Map(fields(schema)?),
        },
        "array" => Shape::List {
            item: Box::new(shape(&schema["items"])?.0),
            length: schema.get("maxItems").and_then(Value::as_u64).map(|length| length as usize),
        },
        other => return Err(format!("the schema has the unknown type `{other}`")),
    };
    Ok((shape, nullable))
}

/// Largest count of a key that declares no maximum.
pub(super) const LARGEST_COUNT: u64 = 1_000_000_000;

fn is_null(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "null")
}

/// Reads an enum: words for variants without data, and a choice of keys for the others.
fn choice(options: &[Value]) -> Result<Shape, String> {
    let (words, sides): (Vec<_>, Vec<_>) = options.iter().partition(|option| option.get("const").is_some());
    let word = |option: &Value| Word { name: text(option, "const"), doc: text(option, "description") };
    let words: Vec<Word> = words.into_iter().map(word).collect();
    let mut choice = Vec::new();
    for option in sides {
        for mut field in fields(option)? {
            field.doc = text(option, "description");
            field.required = false;
            choice.push(field);
        }
    }
    Ok(match (words.is_empty(), choice.is_empty()) {
        (false, true) => Shape::Word(words),
        (false, false) => Shape::OrMap(Box::new(Shape::Word(words)), Box::new(Shape::Choice(choice))),
        (true, _) => Shape::Choice(choice),
    })
}

fn fields(schema: &Value) -> Result<Vec<Field>, String> {
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required = schema.get("required").and_then(Value::as_array);
    properties
        .iter()
        .map(|(name, property)| {
            let (shape, nullable) = shape(property)?;
            Ok(Field {
                name: name.clone(),
                doc: text(property, "description"),
                required: required.is_some_and(|names| names.iter().any(|required| required == name)),
                nullable,
                default: property.get("default").cloned(),
                shape,
            })
        })
        .collect()
}

pub(super) fn text(schema: &Value, key: &str) -> String {
    schema.get(key).and_then(Value::as_str).unwrap_or_default().replace('\n', " ")
}
