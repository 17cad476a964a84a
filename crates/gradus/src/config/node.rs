//! A configuration as a tree in which every key and value stores its location in the source.
//!
//! JSON is YAML, so one reader serves both. Anchors and aliases work; tags other than `!!str` are ignored.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value as Json;
use serde_saphyr::granit_parser::{Event, Marker, Parser, ScalarStyle, Span};

use super::write::MARK;
use crate::error::{Diagnostic, Location, excerpt};

/// A value and its location.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub value: Value,
    /// `None` for values that no source contains.
    pub location: Option<Location>,
}

/// A value before its type is determined.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// A word, a number or a text. Only unquoted ones may be read as `null`, a number or a boolean.
    Scalar { text: String, quoted: bool },
    /// `[a, b]`
    List(Vec<Node>),
    /// `{key: value}`
    Map(Vec<Entry>),
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub key: String,
    /// Location of the key.
    pub location: Option<Location>,
    pub node: Node,
}

impl Node {
    /// Returns an empty mapping without a location.
    pub fn empty() -> Self {
        Self { value: Value::Map(Vec::new()), location: None }
    }

    /// Returns the value as JSON, with numbers and booleans if they are written as such.
    pub fn to_json(&self) -> Json {
        match &self.value {
            Value::Scalar { .. } if self.is_null() => Json::Null,
            Value::Scalar { text, quoted: false } if matches!(text.as_str(), "True" | "true") => Json::Bool(true),
            Value::Scalar { text, quoted: false } if matches!(text.as_str(), "False" | "false") => Json::Bool(false),
            Value::Scalar { text, quoted: false } => {
                // Seeds use all 64 bits.
                let whole = text.parse::<i64>().map(Json::from).or_else(|_| text.parse::<u64>().map(Json::from));
                let number = whole.or_else(|_| text.parse::<f64>().map(Json::from));
                number.unwrap_or_else(|_| text.as_str().into())
            }
            Value::Scalar { text, .. } => text.as_str().into(),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(entries) => {
                Json::Object(entries.iter().map(|entry| (entry.key.clone(), entry.node.to_json())).collect())
            }
        }
    }

    /// Returns the entry of a mapping.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// Removes an entry from a mapping and returns it.
    pub fn take(&mut self, key: &str) -> Option<Entry> {
        let Value::Map(entries) = &mut self.value else { return None };
        let index = entries.iter().position(|entry| entry.key == key)?;
        Some(entries.remove(index))
    }

    /// Returns the entry of a mapping, to change it.
    pub fn entry_mut(&mut self, key: &str) -> Option<&mut Entry> {
        match &mut self.value {
            Value::Map(entries) => entries.iter_mut().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// Removes the entry at a dotted path and returns it.
    pub fn take_at(&mut self, path: &str) -> Option<Entry> {
        match path.split_once('.') {
            Some((key, rest)) => self.entry_mut(key)?.node.take_at(rest),
            None => self.take(path),
        }
    }

    /// Returns the node at a dotted path such as `method.ppo.kl` or `reward.mix[1].weight`, and the location of its key.
    pub fn at(&self, path: &str) -> Option<(&Node, Option<&Location>)> {
        let (mut node, mut location) = (self, self.location.as_ref());
        for part in path.split(['.', '[']) {
            if let Some(index) = part.strip_suffix(']') {
                let Value::List(items) = &node.value else { return None };
                node = items.get(index.parse::<usize>().ok()?)?;
                location = node.location.as_ref();
            } else {
                let entry = node.entry(part)?;
                (node, location) = (&entry.node, entry.location.as_ref());
            }
        }
        Some((node, location))
    }

    /// Whether this is an unquoted `null`, `~` or empty.
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, quoted: false } if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// Collects the dotted paths of everything that was written, leaves and mappings.
    pub fn paths(&self, prefix: &str, paths: &mut Vec<String>) {
        if let Value::Map(entries) = &self.value {
            for entry in entries {
                let path = if prefix.is_empty() { entry.key.clone() } else { format!("{prefix}.{}", entry.key) };
                entry.node.paths(&path, paths);
                paths.push(path);
            }
        }
    }
}

/// Maximum number of values in a configuration. Values of aliases count wherever they are used.
const VALUES: usize = 100_000;

/// Maximum number of characters of a line in a message.
const LINE_SHOWN: usize = 400;

/// Maximum nesting of lists and mappings.
const LEVELS: usize = 100;

/// Reads the configuration `text`, the content of `path`: a mapping, or nothing at all.
pub(super) fn document(path: &Path, text: &str) -> Result<Node, Diagnostic> {
    let root = parse(path, text)?;
    if matches!(root.value, Value::Map(_)) || root.is_null() {
        return Ok(root);
    }
    let message = format!("the configuration is {}, but a mapping is needed", describe(&root));
    let is_data =
        path.extension().is_some_and(|end| ["csv", "tsv", "jsonl", "parquet", "arrow"].iter().any(|data| end == *data));
    let hint = Some(match is_data {
        true => format!("`{}` looks like data: `--data {}`", path.display(), path.display()),
        false => "write one key per line, such as `model: gpt2`".into(),
    });
    Err(Diagnostic { message, locations: root.location.into_iter().collect(), hint })
}

/// Reads `text`, the content of `path`.
pub(super) fn parse(path: &Path, text: &str) -> Result<Node, Diagnostic> {
    let mut reader = YamlReader {
        path,
        lines: text.lines().map(SourceLine::of).collect(),
        parser: Parser::new_from_str(text),
        anchors: HashMap::new(),
        values: 0,
        level: 0,
    };
    let root = reader.document()?;
    Ok(root.unwrap_or_else(|| Node { value: Value::Map(Vec::new()), location: None }))
}

struct YamlReader<'a> {
    path: &'a Path,
    lines: Vec<SourceLine<'a>>,
    parser: Parser<'a, serde_saphyr::granit_parser::StrInput<'a>>,
    /// Value of each anchor, and the number of values in it.
    anchors: HashMap<usize, (Node, usize)>,
    values: usize,
    level: usize,
}

/// A line that messages show in part.
#[derive(Default)]
struct SourceLine<'a> {
    text: &'a str,
    /// Number of characters without trailing blanks.
    width: usize,
    /// Byte offset of every [`LINE_SHOWN`]th character, so that a long line is not scanned from its start for each of its keys.
    starts: Vec<usize>,
}

impl<'a> SourceLine<'a> {
    fn of(text: &'a str) -> Self {
        let starts = text.char_indices().step_by(LINE_SHOWN).map(|(at, _)| at).collect();
        Self { text, width: text.trim_end().chars().count(), starts }
    }

    /// Returns at most [`LINE_SHOWN`] characters, starting at the `from`th.
    fn shown(&self, from: usize) -> String {
        let start = self.starts.get(from / LINE_SHOWN).copied().unwrap_or(self.text.len());
        self.text[start..].chars().skip(from % LINE_SHOWN).take(LINE_SHOWN).collect()
    }
}

impl<'a> YamlReader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Diagnostic> {
        loop {
            match self.parser.next_event() {
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok(event)) => return Ok(event),
                Some(Err(error)) => {
                    let location = self.location(*error.marker(), 1);
                    return Err(problem(format!("this is not YAML: {}", error.info()), location));
                }
                None => return Ok((Event::StreamEnd, Span::empty(Marker::new(0, 1, 0)))),
            }
        }
    }

    fn document(&mut self) -> Result<Option<Node>, Diagnostic> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(root),
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                _ if root.is_some() => {
                    let location = self.location(span.start, 1);
                    return Err(problem(
                        "a second document starts here, but a configuration is a single document".into(),
                        location,
                    ));
                }
                event => root = Some(self.node(event, span)?),
            }
        }
    }

    /// Counts values. With aliases, a few lines can expand to more values than fit into memory.
    fn count(&mut self, values: usize, span: &Span) -> Result<(), Diagnostic> {
        self.values += values;
        if self.values <= VALUES {
            return Ok(());
        }
        let message =
            format!("the configuration has more than {VALUES} values (including those of aliases), which is the limit");
        Err(problem(message, self.location(span.start, 1)))
    }

    fn node(&mut self, event: Event<'a>, span: Span) -> Result<Node, Diagnostic> {
        let before = self.values;
        self.count(1, &span)?;
        if self.level == LEVELS {
            let message = format!("the configuration has more than {LEVELS} levels, which is the limit");
            return Err(problem(message, self.location(span.start, 1)));
        }
        self.level += 1;
        let node = self.inner(event, span, before);
        self.level -= 1;
        node
    }

    /// Reads a value; `before` is the number of values before it.
    fn inner(&mut self, event: Event<'a>, span: Span, before: usize) -> Result<Node, Diagnostic> {
        let (anchor, node) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let location = self.scalar_location(&span);
                let string = tag.is_some_and(|tag| tag.suffix() == "str");
                let value = Value::Scalar { text: text.into_owned(), quoted: style != ScalarStyle::Plain || string };
                (anchor, Node { value, location: Some(location) })
            }
            Event::SequenceStart(_, anchor, _) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break,
                        (event, span) => items.push(self.node(event, span)?),
                    }
                }
                (anchor, Node { value: Value::List(items), location: Some(self.location(span.start, 1)) })
            }
            Event::MappingStart(_, anchor, _) => {
                let entries = self.entries()?;
                (anchor, Node { value: Value::Map(entries), location: Some(self.location(span.start, 1)) })
            }
            Event::Alias(anchor) => {
                let location = self.scalar_location(&span);
                return match self.anchors.get(&anchor).map(|(_, values)| *values) {
                    Some(values) => {
                        self.count(values - 1, &span)?;
                        let value = self.anchors[&anchor].0.value.clone();
                        Ok(Node { location: Some(location), value })
                    }
                    None => Err(problem("this alias refers to itself".into(), location)),
                };
            }
            _ => {
                let location = self.location(span.start, 1);
                return Err(problem("a value is needed here".into(), location));
            }
        };
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), self.values - before));
        }
        Ok(node)
    }

    fn entries(&mut self) -> Result<Vec<Entry>, Diagnostic> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut known: HashMap<String, usize> = HashMap::new();
        loop {
            let (event, span) = self.next()?;
            let location = self.scalar_location(&span);
            match event {
                Event::MappingEnd => return Ok(entries),
                Event::Scalar(key, ..) => {
                    let key = key.into_owned();
                    if let Some(first) = known.insert(key.clone(), entries.len()) {
                        let message = format!("the key `{key}` is given twice in one mapping");
                        let locations = entries[first].location.clone().into_iter().chain([location]).collect();
                        return Err(Diagnostic { message, locations, hint: None });
                    }
                    let (event, span) = self.next()?;
                    let node = self.node(event, span)?;
                    entries.push(Entry { key, location: Some(location), node });
                }
                _ => return Err(problem("a key must be a word".into(), location)),
            }
        }
    }

    /// Returns the location of a scalar, up to the end of its first line.
    fn scalar_location(&self, span: &Span) -> Location {
        let line = self.lines.get(span.start.line().saturating_sub(1));
        let rest = line.map_or(0, |line| line.width).saturating_sub(span.start.col());
        let width = if span.end.line() == span.start.line() { span.end.col() - span.start.col() } else { rest };
        self.location(span.start, width.min(rest).max(1))
    }

    fn location(&self, start: Marker, width: usize) -> Location {
        let empty = SourceLine::default();
        let line = self.lines.get(start.line().saturating_sub(1)).unwrap_or(&empty);
        // A long line is shown only around the location.
        let is_long = line.text.len() > LINE_SHOWN;
        let from = if is_long { start.col().saturating_sub(LINE_SHOWN / 2) } else { 0 };
        let excerpt = match is_long {
            false => line.text.to_owned(),
            // The mark at the end of the line records that the user set the key.
            true => line.shown(from) + if line.text.ends_with(MARK) { MARK } else { "" },
        };
        Location::File {
            path: self.path.to_owned(),
            line: start.line(),
            column: start.col() + 1,
            width: width.min(LINE_SHOWN),
            excerpt,
            from,
        }
    }
}

fn problem(message: String, location: Location) -> Diagnostic {
    Diagnostic { message, locations: vec![location], hint: None }
}

/// Describes a node in words.
pub(super) fn describe(node: &Node) -> String {
    match &node.value {
        Value::Map(_) => "a mapping".to_owned(),
        Value::List(_) => "a list".to_owned(),
        Value::Scalar { .. } if node.is_null() => "empty".to_owned(),
        Value::Scalar { text, quoted: false } if text.parse::<f64>().is_ok() || text == "true" || text == "false" => {
            format!("`{text}`")
        }
        Value::Scalar { text, .. } if !text.contains(char::is_whitespace) => format!("the word `{text}`"),
        Value::Scalar { text, .. } => format!("the text `{}`", excerpt(text.lines().next().unwrap_or_default(), 60)),
    }
}
