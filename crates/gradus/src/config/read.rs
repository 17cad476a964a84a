//! Converts the tree to JSON of the right shape and collects every problem: unknown keys, wrong types, missing keys,
//! several choices at once. serde alone would stop at the first problem and could not report its location.

use std::borrow::Cow;

use serde_json::{Map, Number, Value as Json};

use super::foreign::{Spelling, translate};
use super::method::MethodConfig;
use super::node::{Entry, Node, Value, describe};
use super::schema::{Field, Schema, Shape, Word};
use crate::error::{Diagnostic, Location};
use crate::method::{Problem, Problems};
use crate::metric::hint_on_absent;
use crate::plugin;
use crate::suggest::nearest;

/// End of messages about values of a wrong type.
pub(super) const NEEDED: &str = " is needed";

/// Result of reading a tree.
pub(super) struct Reading {
    /// The value, complete except for the paths in `broken`.
    pub value: Json,
    /// Every problem, in the order of the file.
    pub problems: Vec<Diagnostic>,
    /// Dotted paths of values that could not be read and were left out.
    pub broken: Vec<String>,
    /// Whole numbers below the smallest one of their key. The value contains them, because a rule may give the reason.
    pub low: Vec<Problem>,
}

/// Reads `root` according to `schema`.
pub(super) fn read(schema: &Schema, root: &Node) -> Reading {
    let mut reader =
        ConfigReader { schema, root, problems: Vec::new(), broken: Vec::new(), low: Vec::new(), unknown: 0 };
    let value = reader.value(schema.root(), false, root, "").unwrap_or(Json::Null);
    if let Some(more) = reader.unknown.checked_sub(UNKNOWN_SHOWN).filter(|more| *more > 0) {
        reader.problem(format!("{more} more keys are unknown"), Vec::new(), None);
    }
    Reading { value, problems: reader.problems, broken: reader.broken, low: reader.low }
}

struct ConfigReader<'a> {
    schema: &'a Schema,
    root: &'a Node,
    problems: Vec<Diagnostic>,
    broken: Vec<String>,
    low: Vec<Problem>,
    /// Number of unknown keys so far.
    unknown: usize,
}

/// Number of unknown keys that are reported one by one. More of them suggest another kind of file.
const UNKNOWN_SHOWN: usize = 50;

impl ConfigReader<'_> {
    fn problem(&mut self, message: String, locations: Vec<Option<Location>>, hint: Option<String>) {
        let locations = locations.into_iter().flatten().collect();
        self.problems.push(Diagnostic { message, locations, hint });
    }

    /// Reads a value. Returns `None` if that fails, and records the problem.
    fn value(&mut self, shape: &Shape, nullable: bool, node: &Node, path: &str) -> Option<Json> {
        if nullable && node.is_null() {
            return Some(Json::Null);
        }
        let schema = self.schema;
        if let Some((words, sides)) = schema.variants(shape) {
            return self.variant(words, sides, node, path);
        }
        let read = match (schema.resolve(shape), &node.value) {
            (Shape::Map(fields), Value::Map(entries)) => return Some(self.map(fields, entries, node, path)),
            // `ppo:` without a value means PPO with its defaults.
            (Shape::Map(fields), _) if node.is_null() => return Some(self.map(fields, &[], node, path)),
            (Shape::Keyed(item), Value::Map(entries)) => return Some(self.keyed(item, entries, path)),
            (Shape::Keyed(_), _) if node.is_null() => return Some(Json::Object(Map::new())),
            (Shape::Choice(sides), Value::Map(entries)) => return self.choice(sides, entries, node, path),
            // A name alone selects that variant with its defaults. Other code looks the method up in the unread tree,
            // so it is excluded.
            (Shape::Choice(sides), Value::Scalar { text, .. })
                if path != "method"
                    && sides.iter().any(|side| side.name == *text && self.schema.all_optional(&side.shape)) =>
            {
                return self.choice(sides, &[bare(text, node)], node, path);
            }
            (Shape::List { item, length }, Value::List(items)) => {
                return self.list(item, *length, items, node, path);
            }
            (Shape::OneOrMore(item), Value::List(items)) => return self.list(item, None, items, node, path),
            (Shape::OneOrMore(item), _) => return self.value(item, false, node, path),
            (Shape::OrMap(_, map), Value::Map(_)) => return self.value(map, false, node, path),
            (Shape::OrMap(first, map), value) => {
                // A variant's name alone selects it with its defaults.
                if let (Shape::Choice(sides), Value::Scalar { text, .. }) = (schema.resolve(map), value)
                    && sides.iter().any(|side| side.name == *text)
                {
                    return self.choice(sides, &[bare(text, node)], node, path);
                }
                // If all words are names of variants, the variants are listed: some of them need keys and are no words.
                if let (Shape::Word(words), Shape::Choice(sides)) = (schema.resolve(first), schema.resolve(map))
                    && words.iter().all(|word| sides.iter().any(|side| side.name == word.name))
                {
                    self.wrong(map, node, path);
                    return None;
                }
                return match (schema.resolve(first), value) {
                    (Shape::List { .. }, Value::Scalar { .. }) => {
                        self.wrong(schema.resolve(shape), node, path);
                        None
                    }
                    (first, _) => self.value(first, false, node, path),
                };
            }
            (shape, Value::Scalar { text, quoted }) => scalar(shape, text, *quoted, node.is_null()),
            _ => None,
        };
        match (schema.resolve(shape), &read) {
            (_, None) => self.wrong(shape, node, path),
            (Shape::Integer { minimum: Some(least), .. }, Some(number)) => self.at_least(number, *least, path),
            _ => {}
        }
        read
    }

    /// Reads a variant of an enum: a word, or a choice with its keys.
    fn variant(&mut self, words: &[Word], sides: &[Field], node: &Node, path: &str) -> Option<Json> {
        let is_word = |name: &str| words.iter().any(|word| word.name == name);
        match &node.value {
            Value::Map(entries) => match entries.as_slice() {
                [entry] if is_word(&entry.key) => self.word_with_keys(entry, path),
                _ => self.choice(sides, entries, node, path),
            },
            Value::Scalar { text, .. } if is_word(text) => Some(Json::String(text.clone())),
            // A name alone selects that variant with its defaults.
            Value::Scalar { text, .. } if sides.iter().any(|side| side.name == *text) => {
                self.choice(sides, &[bare(text, node)], node, path)
            }
            _ => {
                let with_keys = sides.iter().map(|side| Word { name: side.name.clone(), doc: side.doc.clone() });
                self.wrong(&Shape::Word(words.iter().cloned().chain(with_keys).collect()), node, path);
                None
            }
        }
    }

    /// Reads a word that is written as the key of a mapping. It has no keys of its own.
    fn word_with_keys(&mut self, entry: &Entry, path: &str) -> Option<Json> {
        let name = &entry.key;
        if entry.node.is_null() || matches!(&entry.node.value, Value::Map(keys) if keys.is_empty()) {
            return Some(Json::String(name.clone()));
        }
        let key = path.rsplit('.').next().unwrap_or(path);
        let message = format!("`{path}.{name}` is {}, but `{name}` has no settings", describe(&entry.node));
        let location = entry.location.clone().or_else(|| entry.node.location.clone());
        self.problem(message, vec![location], Some(format!("write `{key}: {name}`")));
        None
    }

    /// Records a whole number below `least`.
    fn at_least(&mut self, number: &Json, least: i64, path: &str) {
        let Some(number) = number.as_i64() else { return };
        let root = self.root;
        let location = |key: &str| root.at(key).and_then(|(node, key)| key.or(node.location.as_ref())).cloned();
        let mut problems = Problems::new(&location);
        problems.at_least(path, number, least);
        self.low.extend(problems.into_problems());
    }

    fn map(&mut self, fields: &[Field], entries: &[Entry], node: &Node, path: &str) -> Json {
        let mut object = Map::new();
        for entry in entries {
            let inner = join(path, &entry.key);
            match fields.iter().find(|field| field.name == entry.key) {
                None => self.unknown(fields, entry, path),
                Some(field) => match self.value(&field.shape, field.nullable, &entry.node, &inner) {
                    // An optional key with the value `null` counts as absent.
                    Some(Json::Null) => {}
                    Some(value) => drop(object.insert(entry.key.clone(), value)),
                    None => self.broken.push(inner),
                },
            }
        }
        for field in fields.iter().filter(|field| field.required) {
            if entries.iter().any(|entry| entry.key == field.name) {
                continue;
            }
            let inner = join(path, &field.name);
            let location = self.root.at(path).and_then(|(_, key)| key.cloned()).or_else(|| node.location.clone());
            let hint = if path.is_empty() {
                let flag = field.name.replace('_', "-");
                match self.schema.resolve(&field.shape) {
                    Shape::Choice(sides) => format!("add `{}: {{ {}: {{}} }}`", field.name, names(sides)[0]),
                    _ if location.is_some() => format!("add `{}: …` to the file or pass `--{flag}`", field.name),
                    _ => format!("pass `--{flag}`"),
                }
            } else {
                format!("add `{}: …`: {}", field.name, first_sentence(&field.doc))
            };
            self.problem(format!("`{inner}` is missing"), vec![location.filter(|_| !path.is_empty())], Some(hint));
            self.broken.push(inner);
        }
        Json::Object(object)
    }

    fn keyed(&mut self, item: &Shape, entries: &[Entry], path: &str) -> Json {
        let mut object = Map::new();
        for entry in entries {
            let inner = join(path, &entry.key);
            match self.value(item, false, &entry.node, &inner) {
                Some(value) => drop(object.insert(entry.key.clone(), value)),
                None => self.broken.push(inner),
            }
        }
        Json::Object(object)
    }

    fn choice(&mut self, sides: &[Field], entries: &[Entry], node: &Node, path: &str) -> Option<Json> {
        let known = |entry: &&Entry| sides.iter().any(|side| side.name == entry.key);
        match entries {
            _ if sides.is_empty() => {
                let named = entries.iter().map(|entry| format!("`{}`", entry.key)).collect::<Vec<_>>().join(", ");
                let message = format!("`{path}` names {named}, but this program has no such plug-ins");
                let location =
                    entries.first().and_then(|entry| entry.location.clone()).or_else(|| node.location.clone());
                self.problem(message, vec![location], Some(plugin::HINT.into()));
                None
            }
            [entry] => match sides.iter().find(|side| side.name == entry.key) {
                Some(side) => {
                    let inner = join(path, &entry.key);
                    let value = self.value(&side.shape, false, &entry.node, &inner)?;
                    Some(Json::Object(Map::from_iter([(entry.key.clone(), value)])))
                }
                None => {
                    self.unknown(sides, entry, path);
                    None
                }
            },
            [] => {
                let message = format!("`{path}` is empty, but {} is needed", one_of(&names(sides)));
                self.problem(message, vec![node.location.clone()], None);
                None
            }
            several => {
                for entry in several.iter().filter(|entry| !known(entry)) {
                    self.unknown(sides, entry, path);
                }
                let chosen: Vec<_> = several.iter().filter(known).collect();
                if chosen.len() > 1 {
                    let words: Vec<_> = chosen.iter().map(|entry| format!("`{}`", entry.key)).collect();
                    let message = format!("`{path}` has {}, but takes exactly one", words.join(" and "));
                    let locations = chosen.iter().map(|entry| entry.location.clone()).collect();
                    let mix = names(sides).contains(&"mix");
                    let hint =
                        mix.then(|| "combine several rewards in a `mix: [{ weight: 1, reward: … }, …]`".to_owned());
                    self.problem(message, locations, hint);
                }
                None
            }
        }
    }

    fn list(&mut self, item: &Shape, length: Option<usize>, items: &[Node], node: &Node, path: &str) -> Option<Json> {
        if let Some(length) = length.filter(|length| *length != items.len()) {
            let message = format!("`{path}` has {} entries, but {length} are needed", items.len());
            self.problem(message, vec![node.location.clone()], None);
            return None;
        }
        let values: Vec<_> =
            items.iter().enumerate().map(|(i, node)| self.value(item, false, node, &format!("{path}[{i}]"))).collect();
        values.into_iter().collect::<Option<Vec<_>>>().map(Json::Array)
    }

    fn unknown(&mut self, fields: &[Field], entry: &Entry, path: &str) {
        self.unknown += 1;
        if self.unknown > UNKNOWN_SHOWN {
            return;
        }
        let within = if path.is_empty() { String::new() } else { format!(" in `{path}`") };
        let command = match entry.key.as_str() {
            "sweep" if path.is_empty() => Some("sweep"),
            "methods" if path.is_empty() => Some("compare"),
            _ => None,
        };
        let hint = command
            .map(|command| format!("a file with `{}` is for `gradus {command} FILE`", entry.key))
            .or_else(|| self.parent(&entry.key).map(|parent| format!("`{}` belongs under `{parent}`", entry.key)))
            .or_else(|| translate(&entry.key, self.method(), Spelling::Key))
            .or_else(|| hint_on_absent(&entry.key).map(str::to_owned))
            .or_else(|| nearest(&entry.key, names(fields)).map(|name| format!("did you mean `{name}`?")));
        self.problem(format!("unknown key `{}`{within}", entry.key), vec![entry.location.clone()], hint);
    }

    /// Returns the section that a misplaced key belongs to: the method of this file, or `train`.
    fn parent(&self, key: &str) -> Option<String> {
        let parents = self.method().map(|method| format!("method.{method}")).into_iter().chain(["train".to_owned()]);
        parents.into_iter().find(|parent| self.schema.field(&format!("{parent}.{key}")).is_some())
    }

    /// Returns the method of this file.
    fn method(&self) -> Option<&str> {
        match self.root.at("method").map(|(node, _)| &node.value) {
            Some(Value::Map(entries)) => entries.first().map(|entry| entry.key.as_str()),
            _ => None,
        }
    }

    fn wrong(&mut self, shape: &Shape, node: &Node, path: &str) {
        let shape = self.schema.resolve(shape);
        let found = describe(node);
        let mut hint = None;
        let needed: Cow<str> = match (shape, &node.value) {
            (Shape::Word(words), Value::Scalar { text, .. }) => {
                let names: Vec<_> = words.iter().map(|word| word.name.as_str()).collect();
                let is_method = MethodConfig::named(text).is_some();
                let method = is_method.then(|| format!("`{text}` is a separate method: `gradus {text}`"));
                let near = || nearest(text, names.iter().copied()).map(|name| format!("did you mean `{name}`?"));
                hint = method.or_else(near);
                one_of(&names).into()
            }
            (Shape::Choice(sides), Value::Scalar { text, .. }) => {
                let key = path.rsplit('.').next().unwrap_or(path);
                let side = sides.iter().find(|side| side.name == *text);
                // A name alone is enough, except for the method.
                let is_word = |side: &Field| path != "method" && self.schema.all_optional(&side.shape);
                let near = nearest(text, names(sides));
                let near = near.and_then(|name| sides.iter().find(|side| side.name == name));
                let takes_words = side.is_none() && sides.iter().any(is_word);
                hint = Some(match side {
                    Some(side) if self.schema.all_optional(&side.shape) => {
                        format!("write `{key}: {{ {text}: {{}} }}` for its defaults")
                    }
                    Some(_) => format!("write `{key}: {{ {text}: … }}`"),
                    None if near.is_some_and(is_word) => {
                        format!("did you mean `{}`?", near.map_or("", |side| side.name.as_str()))
                    }
                    None if near.is_some() => {
                        format!("did you mean `{key}: {{ {}: … }}`?", near.map_or("", |side| side.name.as_str()))
                    }
                    None if sides.is_empty() => plugin::HINT.into(),
                    None => {
                        format!("write `{key}: {{ {}: … }}`; the keys are {}", names(sides)[0], list(&names(sides)))
                    }
                });
                let needed = if takes_words { "a known name or a mapping" } else { "a mapping" };
                needed.into()
            }
            (Shape::Map(_) | Shape::Keyed(_), _) => "a mapping".into(),
            (Shape::Choice(sides), _) => format!("a mapping with {} is needed", one_of(&names(sides))).into(),
            (Shape::List { item, .. }, Value::Scalar { text, .. }) if !text.is_empty() => {
                hint = Some(match only_needed_key(self.schema.resolve(item)) {
                    Some(key) => format!("write `[{{ {key}: {text} }}]`"),
                    None => format!("write `[{text}]`"),
                });
                "a list".into()
            }
            (Shape::List { .. }, _) => "a list".into(),
            (Shape::OneOrMore(_), _) => unreachable!("one of it is read as what it is"),
            (Shape::OrMap(..), _) => "a list `[program, arguments…]`".into(),
            (Shape::Integer { minimum: Some(least), maximum }, Value::Scalar { text, .. })
                if text.parse::<f64>().is_ok_and(|number| number >= *maximum as f64) =>
            {
                format!("a whole number from {least} to {maximum}").into()
            }
            (Shape::Integer { minimum: Some(least), .. }, _) => format!("a whole number of at least {least}").into(),
            (Shape::Integer { minimum: None, maximum }, _) => format!("a whole number of at most {maximum}").into(),
            (Shape::Number, _) => "a number".into(),
            (Shape::Bool, Value::Scalar { text, .. }) => {
                hint = match text.to_lowercase().as_str() {
                    "yes" | "on" | "y" | "1" => Some("write `true`".into()),
                    "no" | "off" | "n" | "0" => Some("write `false`".into()),
                    _ => None,
                };
                "`true` or `false`".into()
            }
            (Shape::Bool, _) => "`true` or `false`".into(),
            (Shape::Text, _) => "a text".into(),
            (Shape::Word(words), _) => one_of(&words.iter().map(|word| word.name.as_str()).collect::<Vec<_>>()).into(),
            (Shape::Named(_), _) => unreachable!("names are resolved"),
        };
        if let (Shape::Choice(_) | Shape::Word(_), Value::Scalar { text, .. }) = (shape, &node.value)
            && let Some(absent) = hint_on_absent(text)
        {
            hint = Some(absent.to_owned());
        }
        let name = if path.is_empty() { "the configuration".to_owned() } else { format!("`{path}`") };
        let needed = needed.strip_suffix(NEEDED).unwrap_or(&needed);
        // An empty value cannot be underlined, but its key can.
        let key = self.root.at(path).and_then(|(_, key)| key.cloned()).filter(|_| node.is_null());
        let location = key.or_else(|| node.location.clone());
        self.problem(format!("{name} is {found}, but {needed}{NEEDED}"), vec![location], hint);
    }
}

/// Returns the variant that `node` names, without keys.
fn bare(name: &str, node: &Node) -> Entry {
    let inner = Node { location: node.location.clone(), ..Node::empty() };
    Entry { key: name.to_owned(), location: node.location.clone(), node: inner }
}

/// Converts a scalar to the type of the shape.
fn scalar(shape: &Shape, text: &str, quoted: bool, null: bool) -> Option<Json> {
    let number_like = !quoted && text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'));
    match shape {
        Shape::Text => (!null).then(|| Json::String(text.to_owned())),
        Shape::Bool if !quoted => match text {
            "true" | "True" | "TRUE" => Some(Json::Bool(true)),
            "false" | "False" | "FALSE" => Some(Json::Bool(false)),
            _ => None,
        },
        Shape::Number if number_like => Number::from_f64(text.parse().ok()?).map(Json::Number),
        Shape::Integer { minimum, maximum } if number_like => {
            let number = match text.parse::<i128>() {
                Ok(number) => number,
                // `1e5` is a whole number too.
                Err(_) => text.parse::<f64>().ok().filter(|x| x.fract() == 0.0 && x.abs() < 1e15)? as i128,
            };
            // A larger minimum is declared for the key: `ConfigReader::at_least`.
            minimum.is_none_or(|least| number >= i128::from(least.min(0))).then_some(())?;
            Number::from_i128(number).filter(|_| number <= i128::from(*maximum)).map(Json::Number)
        }
        Shape::Word(words) => {
            words.iter().find(|Word { name, .. }| name == text).map(|word| Json::String(word.name.clone()))
        }
        _ => None,
    }
}

/// Returns the only key that a mapping of this shape needs.
fn only_needed_key(shape: &Shape) -> Option<&str> {
    let Shape::Map(fields) = shape else { return None };
    let mut needed = fields.iter().filter(|field| field.required);
    needed.next().filter(|_| needed.next().is_none()).map(|field| field.name.as_str())
}

fn names(fields: &[Field]) -> Vec<&str> {
    fields.iter().map(|field| field.name.as_str()).collect()
}

fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn one_of(names: &[&str]) -> String {
    format!("one of {}", list(names))
}

fn first_sentence(doc: &str) -> &str {
    doc.split_once(". ").map_or(doc, |(first, _)| first).trim_end_matches('.')
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
