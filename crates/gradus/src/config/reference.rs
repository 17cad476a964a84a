//! The reference of keys, from the documentation of the fields, for `gradus config explain` and `docs/config.md`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value as Json;

use super::MethodConfig;
use super::flags::{FlagKind, FlagSpec, Scope, flags};
use super::foreign::{Spelling, translate};
use super::node::{Node, Value};
use super::schema::{Field, LARGEST_COUNT, Schema, Shape, Word};
use crate::error::{Error, Result};
use crate::method::Preset;
use crate::suggest::nearest;

/// Reference entry of one key.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct KeyReference {
    /// The dotted key, such as `method.ppo.clip_range`.
    pub key: String,
    /// Type of the value.
    #[serde(rename = "type")]
    pub kind: String,
    /// Default; `None` for required keys and for keys without a default.
    pub default: Option<Json>,
    /// Whether the key is required.
    pub required: bool,
    /// Description.
    pub doc: String,
}

/// Returns the keys at and below `key`, or all keys if it is `None`.
///
/// # Errors
/// [`Error::Input`] if there is no such key, with a suggestion for a misspelled one.
pub fn explain(schema: &Schema, key: Option<&str>) -> Result<Vec<KeyReference>> {
    let mut all = Vec::new();
    collect(schema, schema.root(), "", 0, &mut all);
    let Some(key) = key else { return Ok(all) };
    let is_under = |found: &KeyReference| found.key == key || found.key.starts_with(&format!("{key}."));
    let found: Vec<_> = all.iter().filter(|found| is_under(found)).cloned().collect();
    if !found.is_empty() {
        return Ok(found);
    }
    // A bare name, such as `clip_range`, finds the key in all sections.
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

/// Maximum depth of listed keys. `reward.mix` contains rewards again, and one level of these is enough.
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

/// Note on a preset's value that equals the default.
const UNCHANGED: &str = "Same as without the preset.";

/// Adds the values that each preset sets for each method.
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
                let usual = usual.map_or("no value".to_owned(), |usual| format!("`{usual}`"));
                all.push(KeyReference {
                    key: format!("preset.{}.{path}", preset.name()),
                    kind: kind(schema, field),
                    default: Some(value),
                    required: false,
                    doc: of.unwrap_or_default()
                        + &if same { UNCHANGED.to_owned() } else { format!("Instead of {usual}.") },
                });
            }
        }
    }
}

/// Whether two values are equal; 1 equals 1.0.
fn same(a: &Json, b: &Json) -> bool {
    a == b || (a.is_number() && a.as_f64() == b.as_f64())
}

/// Returns a value as it is written.
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
        Shape::Integer { minimum: Some(least), maximum } if *maximum < LARGEST_COUNT => {
            format!("whole number from {least} to {maximum}")
        }
        Shape::Integer { minimum: Some(least), .. } => format!("whole number from {least}"),
        Shape::Integer { .. } => "whole number".into(),
        Shape::Number => "number".into(),
        Shape::Word(words) => names(words.iter().map(|Word { name, .. }| name.as_str()).collect()),
        Shape::Choice(sides) if sides.is_empty() => NAME_OF_PLUGIN.into(),
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

/// Type of a choice without built-in variants, to which programs add their own.
const NAME_OF_PLUGIN: &str = "the name of a plug-in";

fn plural(name: &str) -> String {
    if name.starts_with("one of ") {
        return format!("mappings, each {name}");
    }
    if let Some(rest) = name.strip_suffix("a mapping") {
        return format!("{rest}mappings");
    }
    if name == NAME_OF_PLUGIN {
        return "names of plug-ins".to_owned();
    }
    for noun in ["whole number", "list"] {
        if let Some(rest) = name.strip_prefix(noun) {
            return format!("{noun}s{rest}");
        }
    }
    format!("{name}s")
}

/// Returns the text of `docs/config.md`, with every key once. Keys that several methods share are in one table, and a
/// section that repeats another one refers to it.
pub fn markdown(schema: &Schema) -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         This page lists every key of a configuration file. It is generated from the types. `gradus config explain KEY` shows the \
         same for one key.\n\n\
         Most keys are also flags. Write the name with hyphens, and join nested keys: `kl.target` of PPO is `--kl-target`. Keys of \
         `train` and of the method have no prefix. A flag takes precedence over the file that `--config` names.\n",
    );
    let all: Vec<KeyReference> = explain(schema, None).unwrap_or_default();
    text += &exceptions(schema);
    let top: Vec<&KeyReference> = all.iter().filter(|key| !key.key.contains('.')).collect();
    text += "\n## Top level\n";
    table(&mut text, top.iter().map(|key| (key.key.as_str(), *key)));
    let mut written: Vec<(&str, Vec<NamedKey<'_>>)> = Vec::new();
    for key in top.iter().map(|key| key.key.as_str()).filter(|key| !["method", "preset"].contains(key)) {
        let rows = below(&all, key);
        if rows.is_empty() {
            continue;
        }
        let _ = write!(text, "\n## `{key}`\n\n{}\n", doc_of(&all, key));
        match written.iter().find(|(_, known)| same_rows(known, &rows)) {
            Some((known, _)) => {
                let _ = writeln!(text, "\nIts keys are those of [`{known}`](#{known}).");
            }
            None => {
                table(&mut text, rows.iter().map(|(name, key)| (*name, *key)));
                written.push((key, rows));
            }
        }
    }
    methods(&mut text, &all);
    text + &preset_tables(&all)
}

/// Lists the flags that do not follow from the name of one key, and the keys without a flag. It reads the table that makes the flags.
fn exceptions(schema: &Schema) -> String {
    let of_method = |method: MethodConfig| flags(schema, Scope::Method(method.name()));
    let specs: Vec<FlagSpec> = MethodConfig::all().into_iter().flat_map(of_method).collect();
    let own = specs.iter().filter(|spec| spec.name != name_of_flag(&spec.key));
    let own: BTreeSet<String> = own.map(|spec| format!("`{}` is `--{}`", spec.key, spec.name)).collect();
    let yaml = specs.iter().filter(|spec| matches!(spec.kind, FlagKind::Yaml | FlagKind::WordOrYaml(_)));
    let yaml: BTreeSet<String> = yaml.map(|spec| format!("`--{}`", spec.name)).collect();
    let has_flag = |key: &str| specs.iter().any(|spec| spec.key.split('.').next() == Some(key));
    let without = schema.fields(schema.root()).iter().filter(|field| !has_flag(&field.name));
    let without: BTreeSet<String> = without.map(|field| format!("`{}`", field.name)).collect();
    let list = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(", ");
    format!(
        "\nThere are exceptions:\n\n\
         - These flags have other names: {}.\n\
         - These flags take the whole value in YAML, such as `--environment '{{ guess: {{ high: 20 }} }}'`. The keys below them have no \
         flags of their own: {}.\n\
         - These keys have no flag: {}.\n",
        list(own),
        list(yaml),
        list(without),
    )
}

/// Returns the usual name of a key's flag.
fn name_of_flag(key: &str) -> String {
    let name = match key.split_once('.') {
        Some(("train", name)) => name,
        Some(("method", name)) => name.split_once('.').map_or(name, |(_, name)| name),
        _ => key,
    };
    name.replace(['.', '_'], "-")
}

/// A key and its name within a section.
type NamedKey<'a> = (&'a str, &'a KeyReference);

fn below<'a>(all: &'a [KeyReference], section: &str) -> Vec<NamedKey<'a>> {
    let name = |key: &'a KeyReference| key.key.strip_prefix(section).and_then(|name| name.strip_prefix('.'));
    all.iter().filter_map(|key| name(key).map(|name| (name, key))).collect()
}

fn doc_of<'a>(all: &'a [KeyReference], section: &str) -> &'a str {
    all.iter().find(|key| key.key == section).map_or("", |key| &key.doc)
}

/// Whether two keys differ only in their section.
fn is_alike((name, a): &NamedKey<'_>, (other, b): &NamedKey<'_>) -> bool {
    name == other && (&a.kind, &a.default, a.required, &a.doc) == (&b.kind, &b.default, b.required, &b.doc)
}

fn same_rows(a: &[NamedKey<'_>], b: &[NamedKey<'_>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_alike(a, b))
}

/// Escapes a text for a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn default_of(key: &KeyReference) -> String {
    match &key.default {
        _ if key.required => "required".to_owned(),
        Some(default) => cell(&format!("`{default}`")),
        None => String::new(),
    }
}

fn table<'a>(text: &mut String, rows: impl Iterator<Item = NamedKey<'a>>) {
    *text += "\n| key | type | default | meaning |\n|---|---|---|---|\n";
    for (name, key) in rows {
        let _ = writeln!(text, "| `{name}` | {} | {} | {} |", cell(&key.kind), default_of(key), cell(&key.doc));
    }
}

/// Adds the keys of all methods: first those that several methods share, then each method's own.
fn methods(text: &mut String, all: &[KeyReference]) {
    let every = MethodConfig::all();
    let named: Vec<&str> = every.iter().map(MethodConfig::name).collect();
    let rows: Vec<(&str, Vec<NamedKey<'_>>)> =
        named.iter().map(|&name| (name, below(all, &format!("method.{name}")))).collect();
    let owners = |row: &NamedKey<'_>| -> Vec<&str> {
        rows.iter().filter(|(_, rows)| rows.iter().any(|other| is_alike(row, other))).map(|(name, _)| *name).collect()
    };
    *text += "\n## Keys of several methods\n\nThese keys are set under each of the named methods: `clip_range` of PPO \
              is `method.ppo.clip_range`.\n\n| key | methods | type | default | meaning |\n|---|---|---|---|---|\n";
    for (i, (_, own)) in rows.iter().enumerate() {
        for row in own {
            let of = owners(row);
            if of.len() < 2 || of.first() != Some(&named[i]) {
                continue;
            }
            let (name, key) = row;
            let of = of.iter().map(|of| format!("`{of}`")).collect::<Vec<_>>().join(" ");
            let (kind, doc) = (cell(&key.kind), cell(&key.doc));
            let _ = writeln!(text, "| `{name}` | {of} | {kind} | {} | {doc} |", default_of(key));
        }
    }
    for (method, (name, rows)) in every.iter().zip(&rows) {
        let section = format!("method.{name}");
        let _ = write!(text, "\n## `{section}`\n\n{}\n", doc_of(all, &section));
        let defaults = method.method().defaults().keys().map(|(key, value)| format!("`{key}` {value}"));
        let _ = writeln!(text, "\nDefaults with this method: {}.", defaults.join(", "));
        let own: Vec<NamedKey<'_>> = rows.iter().filter(|row| owners(row).len() < 2).copied().collect();
        let shared: Vec<String> =
            rows.iter().filter(|row| owners(row).len() > 1).map(|(name, _)| format!("`{name}`")).collect();
        if !shared.is_empty() {
            let list = if shared.len() > 8 { shared.len().to_string() } else { shared.join(", ") };
            let _ = writeln!(text, "\nIt also has {list} of the [keys of several methods](#keys-of-several-methods).");
        }
        if !own.is_empty() {
            table(text, own.into_iter());
        }
    }
    let plugin = below(all, "method.plugin");
    if !named.contains(&"plugin") && all.iter().any(|key| key.key == "method.plugin") {
        let _ = write!(text, "\n## `method.plugin`\n\n{}\n", doc_of(all, "method.plugin"));
        if !plugin.is_empty() {
            table(text, plugin.into_iter());
        }
    }
}

/// Returns a table of changes per preset. Keys that it sets to their defaults are left out.
fn preset_tables(all: &[KeyReference]) -> String {
    let mut text = String::new();
    for preset in Preset::ALL {
        let section = format!("preset.{}", preset.name());
        let rows = below(all, &section).into_iter().filter(|(_, key)| !key.doc.ends_with(UNCHANGED));
        let _ = writeln!(
            text,
            "\n## `{section}`\n\n`preset: {}` sets these keys. Keys that you write take precedence.",
            preset.name()
        );
        text += "\n| key | value | note |\n|---|---|---|\n";
        for (name, key) in rows {
            let _ = writeln!(text, "| `{name}` | {} | {} |", default_of(key), cell(&key.doc));
        }
    }
    text
}
