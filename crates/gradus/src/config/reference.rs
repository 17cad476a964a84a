//! The reference of keys, from the documentation next to the fields: for `gradus config explain` and `docs/config.md`.

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::MethodConfig;
use super::foreign::{Spelling, translate};
use super::node::{Node, Value};
use super::schema::{Field, LARGEST_COUNT, Schema, Shape, Word};
use crate::error::{Error, Result};
use crate::method::Preset;
use crate::suggest::nearest;

/// One key with what a person needs to know about it.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct KeyReference {
    /// The dotted key, such as `method.ppo.clip_range`.
    pub key: String,
    /// What it takes.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its default; none for required keys and for those that are absent unless given.
    pub default: Option<Json>,
    /// Whether it must be given.
    pub required: bool,
    /// What it means.
    pub doc: String,
}

/// The keys at and under `key`; all of them without.
///
/// # Errors
/// [`Error::Input`] when there is no such key; a misspelt one is named.
pub fn explain(schema: &Schema, key: Option<&str>) -> Result<Vec<KeyReference>> {
    let mut all = Vec::new();
    collect(schema, schema.root(), "", 0, &mut all);
    let Some(key) = key else { return Ok(all) };
    let is_under = |found: &KeyReference| found.key == key || found.key.starts_with(&format!("{key}."));
    let found: Vec<_> = all.iter().filter(|found| is_under(found)).cloned().collect();
    if !found.is_empty() {
        return Ok(found);
    }
    // A bare name, such as `clip_range`, is found wherever it stands.
    let is_named =
        |found: &&KeyReference| found.key.rsplit('.').next() == Some(key) && !found.key.starts_with("preset.");
    let named: Vec<_> = all.iter().filter(is_named).cloned().collect();
    if !named.is_empty() {
        return Ok(named);
    }
    let error = Error::input(format!("there is no key `{key}`"));
    if let Some(hint) = translate(key, None, Spelling::Key) {
        return Err(error.with_hint(hint));
    }
    let names = all.iter().flat_map(|found| [found.key.as_str(), found.key.rsplit('.').next().unwrap_or_default()]);
    Err(match nearest(key, names) {
        Some(name) => error.with_hint(format!("did you mean `{name}`?")),
        None => error.with_hint("`gradus config explain` lists all keys"),
    })
}

/// `reward.mix` holds rewards again; one level is enough to read.
const DEPTH_MAX: usize = 5;

fn collect(schema: &Schema, shape: &Shape, path: &str, depth: usize, all: &mut Vec<KeyReference>) {
    if depth == DEPTH_MAX {
        return;
    }
    for field in schema.fields(shape) {
        let key = if path.is_empty() { field.name.clone() } else { format!("{path}.{}", field.name) };
        let resolved = schema.resolve(&field.shape);
        let nested = matches!(resolved, Shape::Map(_) | Shape::Choice(_));
        all.push(KeyReference {
            kind: kind(schema, field),
            default: field.default.clone().filter(|default| !nested && !default.is_null()),
            required: field.required,
            doc: field.doc.clone(),
            key: key.clone(),
        });
        collect(schema, resolved, &key, depth + 1, all);
        if let Shape::Keyed(item) = resolved {
            collect(schema, item, &format!("{key}.NAME"), depth + 1, all);
        }
        if key == "preset" {
            presets(schema, all);
        }
    }
}

/// What each preset sets of each method.
fn presets(schema: &Schema, all: &mut Vec<KeyReference>) {
    for preset in Preset::ALL {
        for method in MethodConfig::all() {
            let Some(tree) = super::preset::tree(preset, &method) else { continue };
            let mut paths = Vec::new();
            tree.paths("", &mut paths);
            for path in paths {
                let (node, _) = tree.at(&path).expect("a path of its own");
                let Some(field) = schema.field(&path).filter(|_| !matches!(node.value, Value::Map(_))) else {
                    continue;
                };
                let of = path.strip_prefix("train.").map(|_| format!("For `{}`. ", method.name()));
                let (value, usual) = (written(node), field.default.clone().filter(|usual| !usual.is_null()));
                let same = usual.as_ref().is_some_and(|usual| same(usual, &value));
                let usual = usual.map_or("nothing".to_owned(), |usual| format!("`{usual}`"));
                all.push(KeyReference {
                    key: format!("preset.{}.{path}", preset.name()),
                    kind: kind(schema, field),
                    default: Some(value),
                    required: false,
                    doc: of.unwrap_or_default()
                        + &if same { "As without it.".to_owned() } else { format!("Instead of {usual}.") },
                });
            }
        }
    }
}

/// Whether two values are the same, 1 and 1.0 too.
fn same(a: &Json, b: &Json) -> bool {
    a == b || (a.is_number() && a.as_f64() == b.as_f64())
}

/// A value as it is written.
fn written(node: &Node) -> Json {
    match &node.value {
        Value::Scalar { text, quoted: false } => {
            serde_json::from_str(text).unwrap_or_else(|_| Json::from(text.as_str()))
        }
        Value::Scalar { text, quoted: true } => Json::from(text.as_str()),
        Value::List(items) => items.iter().map(written).collect(),
        Value::Map(_) => Json::Null,
    }
}

fn kind(schema: &Schema, field: &Field) -> String {
    shape_name(schema, schema.resolve(&field.shape))
}

fn shape_name(schema: &Schema, shape: &Shape) -> String {
    let names = |names: Vec<&str>| names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match schema.resolve(shape) {
        Shape::Text => "text".into(),
        Shape::Bool => "`true` or `false`".into(),
        Shape::Integer { minimum: Some(0), maximum } if *maximum < LARGEST_COUNT => {
            format!("whole number from 0 to {maximum}")
        }
        Shape::Integer { minimum: Some(0), .. } => "whole number from 0".into(),
        Shape::Integer { .. } => "whole number".into(),
        Shape::Number => "number".into(),
        Shape::Word(words) => names(words.iter().map(|Word { name, .. }| name.as_str()).collect()),
        Shape::Choice(sides) if sides.is_empty() => "the name of a plug-in".into(),
        Shape::Choice(sides) => format!("one of {}", names(sides.iter().map(|side| side.name.as_str()).collect())),
        Shape::Map(_) => "mapping".into(),
        Shape::Keyed(item) => format!("mapping from names to {}", plural(&shape_name(schema, item))),
        Shape::List { item, length: None } => format!("list of {}", plural(&shape_name(schema, item))),
        Shape::List { item, length: Some(n) } => format!("list of {n} {}", plural(&shape_name(schema, item))),
        Shape::OneOrMore(item) => format!("{}, or a list of them", shape_name(schema, item)),
        Shape::OrMap(list, _) => format!("{}, or a mapping", shape_name(schema, list)),
        Shape::Named(_) => unreachable!("names are resolved"),
    }
}

fn plural(name: &str) -> String {
    for noun in ["whole number", "list"] {
        if let Some(rest) = name.strip_prefix(noun) {
            return format!("{noun}s{rest}");
        }
    }
    format!("{name}s")
}

/// `docs/config.md`.
pub fn markdown(schema: &Schema) -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         Every key of a configuration file, generated from the types (`gradus config explain` shows the same).\n\
         Every key is a flag too: its name with hyphens, nested keys joined (`kl.target` of PPO is `--kl-target`), \
         keys of `train` and of the method without a prefix.\n\
         Flags lie over the file that `--config` names.\n",
    );
    let all = explain(schema, None).unwrap_or_default();
    let section = |key: &str| match key.split('.').collect::<Vec<_>>().as_slice() {
        ["method", method, ..] => format!("method.{method}"),
        ["preset", name, ..] => format!("preset.{name}"),
        ["train" | "reward", _, ..] => key.split('.').next().unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    let mut current = None;
    for key in &all {
        let section = section(&key.key);
        if current.as_ref() != Some(&section) {
            let title = if section.is_empty() { "Top level".to_owned() } else { format!("`{section}`") };
            // The top level comes back between sections; one table of it is enough.
            if current.is_none() || !section.is_empty() {
                let _ = write!(text, "\n## {title}\n");
                if let Some(doc) = all.iter().find(|found| found.key == section).map(|found| &found.doc) {
                    let _ = write!(text, "\n{doc}\n");
                }
                if let Some(method) = section.strip_prefix("method.").and_then(MethodConfig::named) {
                    let keys = method.method().defaults().keys().map(|(key, value)| format!("`{key}` {value}"));
                    let _ = writeln!(text, "Defaults with it: {}.", keys.join(", "));
                }
                text += "\n| key | type | default | meaning |\n|---|---|---|---|\n";
            }
        }
        let is_heading =
            key.key == section || (section.is_empty() && current.is_some() && current != Some(String::new()));
        if !is_heading {
            let default = match &key.default {
                _ if key.required => "required".to_owned(),
                Some(default) => format!("`{default}`"),
                None => String::new(),
            };
            let name = key.key.strip_prefix(&format!("{section}.")).unwrap_or(&key.key);
            let cell = |text: &str| text.replace('|', "\\|");
            let _ = writeln!(text, "| `{name}` | {} | {} | {} |", cell(&key.kind), cell(&default), cell(&key.doc));
        }
        current = Some(section);
    }
    text
}
