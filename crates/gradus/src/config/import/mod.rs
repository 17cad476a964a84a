//! Converts configurations of other systems, with notes on everything that changes.

mod axolotl;
mod fine_grained;
mod llamafactory;
mod rl4lms;
mod trainer_arguments;
mod trl;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::node::{Entry, Node, Value, document};
use super::read::{NEEDED, Reading, read};
use super::schema::Schema;
use super::{load, write};
use crate::error::{Diagnostic, Error, Location, Result};

pub use trl::TrlCommand;

/// A system whose configurations can be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// RL4LMs (Ramamurthy et al. 2023).
    Rl4lms,
    /// FineGrainedRLHF (Wu et al. 2023).
    FineGrained,
    /// TRL's command line, by its subcommand.
    Trl(TrlCommand),
    /// LLaMA-Factory.
    LlamaFactory,
    /// axolotl.
    Axolotl,
}

impl std::str::FromStr for System {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "rl4lms" => Ok(Self::Rl4lms),
            "fine_grained" => Ok(Self::FineGrained),
            "llamafactory" => Ok(Self::LlamaFactory),
            "axolotl" => Ok(Self::Axolotl),
            _ => {
                let command = name.strip_prefix("trl-");
                let found = TrlCommand::ALL.into_iter().find(|one| Some(one.name()) == command);
                found.map(Self::Trl).ok_or_else(|| {
                    let trl = TrlCommand::ALL.map(|one| format!("`trl-{}`", one.name())).join(", ");
                    format!(
                        "gradus reads configurations of `rl4lms`, `fine_grained`, `llamafactory`, `axolotl`, and {trl}"
                    )
                })
            }
        }
    }
}

/// A configuration converted from another system.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The configuration, in YAML.
    pub yaml: String,
    /// Notes on keys that change, have no counterpart, or look like mistakes in the original, in the order of its lines.
    pub notes: Vec<Diagnostic>,
}

/// Converts the configuration file of another system.
///
/// # Errors
/// [`Error::Config`] if it cannot be read, or if a required key is missing.
pub fn import(system: System, path: &Path) -> Result<Imported> {
    let text = load::text(path)?;
    let mut root = document(path, &text).map_err(|problem| Error::Config(vec![problem]))?;
    rewrite_yaml_1_1(&mut root);
    let mut swept = Vec::new();
    if matches!(system, System::Rl4lms) {
        take_first_of_sweeps(&mut root, "", &mut swept);
    }
    let original = Original { root, seen: RefCell::default(), notes: RefCell::default(), wrong: RefCell::default() };
    for (path, values) in swept {
        let message = format!("`{path}` is swept over {values}: the first value is used");
        original.note_with_hint(&path, message, "list the values under `sweep.grid` of a file for `gradus sweep`");
    }
    let config = match system {
        System::Rl4lms => rl4lms::convert(&original),
        System::FineGrained => fine_grained::convert(&original),
        System::Trl(command) => trl::convert(&original, command),
        System::LlamaFactory => llamafactory::convert(&original),
        System::Axolotl => axolotl::convert(&original),
    };
    let mut wrong = original.wrong.take();
    let config = match config {
        Ok(config) if wrong.is_empty() => config,
        Ok(_) => return Err(Error::Config(wrong)),
        Err(problem) => {
            wrong.push(problem);
            return Err(Error::Config(wrong));
        }
    };
    original.note_unread();
    original.note_name(path);
    let mut notes = original.notes.into_inner();
    notes.sort_by_key(|note| note.locations.first().map(line));
    let yaml = write::plain(&config.0);
    notes.extend(refused(path, &yaml));
    Ok(Imported { yaml, notes })
}

/// Rewrites values without quotes as YAML 1.2 writes them. The other systems read their files with PyYAML, hence as YAML 1.1: `yes`, `on` and
/// `TRUE` are booleans, the digits of a number may have `_` between them, and `<<` merges mappings.
fn rewrite_yaml_1_1(node: &mut Node) {
    match &mut node.value {
        Value::Scalar { text, quoted: false } => {
            let number = text.replace('_', "");
            let is_number = text.trim_start_matches(['+', '-']).starts_with(|first: char| first.is_ascii_digit())
                && number.parse::<f64>().is_ok();
            match text.as_str() {
                "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "TRUE" => *text = "true".into(),
                "no" | "No" | "NO" | "off" | "Off" | "OFF" | "FALSE" => *text = "false".into(),
                _ if is_number => *text = number,
                _ => {}
            }
        }
        Value::Scalar { .. } => {}
        Value::List(items) => items.iter_mut().for_each(rewrite_yaml_1_1),
        Value::Map(entries) => {
            entries.iter_mut().for_each(|entry| rewrite_yaml_1_1(&mut entry.node));
            merge(entries);
        }
    }
}

/// Replaces `<<: *anchor` by the keys of that mapping, or of the mappings in a list. Keys that `entries` have win, then those of the first mapping.
fn merge(entries: &mut Vec<Entry>) {
    let Some(at) = entries.iter().position(|entry| entry.key == "<<") else { return };
    let merged: Vec<&Node> = match &entries[at].node.value {
        Value::List(items) => items.iter().collect(),
        _ => vec![&entries[at].node],
    };
    let keys = |node: &Node| match &node.value {
        Value::Map(entries) => Some(entries.clone()),
        _ => None,
    };
    let Some(merged) = merged.into_iter().map(keys).collect::<Option<Vec<_>>>() else { return };
    entries.remove(at);
    for entry in merged.into_iter().flatten() {
        if !entries.iter().any(|own| own.key == entry.key) {
            entries.push(entry);
        }
    }
}

/// Replaces each block `{expand: true, values: […]}` of RL4LMs' sweeps by its first value. Adds its path and its values to
/// `swept`.
fn take_first_of_sweeps(node: &mut Node, path: &str, swept: &mut Vec<(String, Json)>) {
    while let Some(values) = swept_values(node) {
        swept.push((path.to_owned(), Json::Array(values.iter().map(Node::to_json).collect())));
        node.value = values[0].value.clone();
    }
    if let Value::Map(entries) = &mut node.value {
        for entry in entries {
            let below = if path.is_empty() { entry.key.clone() } else { format!("{path}.{}", entry.key) };
            take_first_of_sweeps(&mut entry.node, &below, swept);
        }
    }
}

/// Returns the values of a block of a sweep; `None` for anything else.
fn swept_values(node: &Node) -> Option<Vec<Node>> {
    let Value::Map(entries) = &node.value else { return None };
    let at = |key: &str| entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node.value);
    let (Some(Value::Scalar { text, .. }), Some(Value::List(values))) = (at("expand"), at("values")) else {
        return None;
    };
    (text.eq_ignore_ascii_case("true") && !values.is_empty()).then(|| values.clone())
}

/// Returns problems for converted values that no run accepts.
fn refused(path: &Path, yaml: &str) -> Vec<Diagnostic> {
    let Ok(root) = document(path, yaml) else { return Vec::new() };
    let Reading { problems, low, .. } = read(&Schema::run_config(), &root);
    let wrong = problems.into_iter().filter(|problem| problem.message.ends_with(NEEDED));
    let low = low.into_iter().map(|problem| problem.diagnostic);
    wrong.chain(low).map(|problem| Diagnostic { locations: Vec::new(), ..problem }).collect()
}

fn line(location: &Location) -> usize {
    match location {
        Location::File { line, .. } => *line,
        _ => usize::MAX,
    }
}

/// The other system's file, with the paths that were read, the notes, and the values of a wrong type.
struct Original {
    root: Node,
    seen: RefCell<BTreeSet<String>>,
    notes: RefCell<Vec<Diagnostic>>,
    wrong: RefCell<Vec<Diagnostic>>,
}

impl Original {
    /// Returns the value at a dotted path, and marks the path as read.
    fn node(&self, path: &str) -> Option<&Node> {
        self.seen.borrow_mut().insert(path.to_owned());
        self.root.at(path).map(|(node, _)| node).filter(|node| !node.is_null())
    }

    /// Returns a value as JSON, and marks everything in it as read.
    fn json(&self, path: &str) -> Option<Json> {
        self.see_all(path);
        self.node(path).map(Node::to_json)
    }

    /// Returns a value as JSON without marking what is in it as read.
    fn glance(&self, path: &str) -> Option<Json> {
        self.node(path).map(Node::to_json)
    }

    /// Returns a value as JSON without marking anything as read.
    fn peek(&self, path: &str) -> Option<Json> {
        self.root.at(path).map(|(node, _)| node.to_json())
    }

    /// Returns the paths of the entries of the list at `path`, such as `datasets[0]`. Their keys are not marked as read. `None` if there is no list.
    fn entries(&self, path: &str) -> Option<Vec<String>> {
        match self.glance(path) {
            Some(Json::Array(items)) => Some((0..items.len()).map(|index| format!("{path}[{index}]")).collect()),
            _ => None,
        }
    }

    /// Returns a value as JSON, with numbers and booleans also where they are quoted.
    fn unquoted(&self, path: &str) -> Option<Json> {
        self.json(path).map(unquoted)
    }

    /// Whether the value at `path` is written as `null`. Marks the path as read.
    fn is_null(&self, path: &str) -> bool {
        self.seen.borrow_mut().insert(path.to_owned());
        self.root.at(path).is_some_and(|(node, _)| node.is_null())
    }

    /// Returns a text, a number or a boolean as written.
    fn text(&self, path: &str) -> Option<String> {
        match &self.node(path)?.value {
            Value::Scalar { text, .. } => Some(text.clone()),
            Value::List(_) => self.refuse(path, "a list", "one value"),
            Value::Map(_) => self.refuse(path, "a mapping", "one value"),
        }
    }

    fn number(&self, path: &str) -> Option<f64> {
        let text = self.text(path)?;
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.or_else(|| self.refuse(path, &format!("`{text}`"), "a number"))
    }

    /// Returns a whole number of at least 0.
    fn count(&self, path: &str) -> Option<usize> {
        let number = self.number(path)?;
        let is_whole = (0.0..1e15).contains(&number) && number.fract() == 0.0;
        if is_whole { Some(number as usize) } else { self.refuse(path, &format!("{number}"), "a whole number from 0") }
    }

    /// Returns a whole number of at least 1.
    fn some(&self, path: &str) -> Option<usize> {
        self.count(path).and_then(
            |count| {
                if count > 0 { Some(count) } else { self.refuse(path, "0", "a whole number from 1") }
            },
        )
    }

    /// Returns a boolean, as Python or YAML writes it.
    fn flag(&self, path: &str) -> Option<bool> {
        let text = self.text(path)?;
        match text.to_ascii_lowercase().as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => self.refuse(path, &format!("`{text}`"), "`true` or `false`"),
        }
    }

    /// Records, once, that the value at `path` cannot be converted.
    fn refuse<T>(&self, path: &str, found: &str, needed: &str) -> Option<T> {
        self.reject(path, format!("`{path}` is {found}, but {needed} is needed"));
        None
    }

    /// Records a problem at `path` once. The file is then not converted.
    fn reject(&self, path: &str, message: String) {
        let problem = Diagnostic { message, locations: self.location(path).into_iter().collect(), hint: None };
        let mut wrong = self.wrong.borrow_mut();
        if !wrong.contains(&problem) {
            wrong.push(problem);
        }
    }

    /// Returns the location of the key at `path` or, if it is not in the file, of the closest key above it.
    fn location(&self, path: &str) -> Option<Location> {
        let mut path = path;
        loop {
            if let Some((node, key)) = self.root.at(path) {
                return key.cloned().or_else(|| node.location.clone());
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }

    /// Marks everything below `path` as read.
    fn see_all(&self, path: &str) {
        let Some((node, _)) = self.root.at(path) else { return };
        let mut below = Vec::new();
        node.paths(path, &mut below);
        self.seen.borrow_mut().extend(below);
        self.seen.borrow_mut().insert(path.to_owned());
    }

    /// Returns every unquoted value with its path, including those in lists.
    fn plain_texts(&self) -> Vec<(String, String)> {
        fn gather(node: &Node, path: &str, found: &mut Vec<(String, String)>) {
            match &node.value {
                Value::Scalar { text, quoted: false } => found.push((path.to_owned(), text.clone())),
                Value::Scalar { .. } => {}
                Value::List(items) => {
                    items.iter().enumerate().for_each(|(i, item)| gather(item, &format!("{path}[{i}]"), found));
                }
                Value::Map(entries) => {
                    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
                    entries.iter().for_each(|entry| gather(&entry.node, &below(&entry.key), found));
                }
            }
        }
        let mut found = Vec::new();
        gather(&self.root, "", &mut found);
        found
    }

    /// Adds a note about the value at `path`.
    fn note(&self, path: &str, message: impl Into<String>) {
        self.add_note(path, message.into(), None);
    }

    fn note_with_hint(&self, path: &str, message: String, hint: &str) {
        self.add_note(path, message, Some(hint.into()));
    }

    fn add_note(&self, path: &str, message: String, hint: Option<String>) {
        let locations = self.location(path).into_iter().collect();
        self.notes.borrow_mut().push(Diagnostic { message, locations, hint });
    }

    fn missing(path: &str) -> Diagnostic {
        Diagnostic { message: format!("`{path}` is missing"), locations: Vec::new(), hint: None }
    }

    /// Notes a misspelled name of one of RL4LMs' own files.
    fn note_name(&self, path: &Path) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.contains("blendorbot") {
            let right = name.replace("blendorbot", "blenderbot");
            let message = format!("the file is called `{name}`, but its model is Blenderbot: read as `{right}`");
            self.notes.borrow_mut().push(Diagnostic { message, locations: Vec::new(), hint: None });
        }
    }

    /// Adds a note for every key that was not converted. Those of entries of lists have to be noted with [`Self::note_unread_in`].
    fn note_unread(&self) {
        self.note_unread_below(&self.root, "");
    }

    /// Adds a note for every key of the mapping at `path` that was not converted.
    fn note_unread_in(&self, path: &str) {
        if let Some((node, _)) = self.root.at(path) {
            self.note_unread_below(node, path);
        }
    }

    fn note_unread_below(&self, node: &Node, path: &str) {
        let mut paths = Vec::new();
        node.paths(path, &mut paths);
        let seen = self.seen.borrow().clone();
        for path in paths {
            let is_leaf = self.root.at(&path).is_some_and(|(node, _)| !matches!(node.value, Value::Map(_)));
            if is_leaf && !seen.contains(&path) {
                self.note(&path, format!("`{path}` has no equivalent: left out"));
            }
        }
    }
}

/// The configuration that the conversion builds.
#[derive(Default)]
struct YamlBuilder(Json);

impl YamlBuilder {
    /// Sets the value at a dotted path.
    fn set(&mut self, path: &str, value: impl Into<Json>) {
        let mut at = &mut self.0;
        for part in path.split('.') {
            if !at.is_object() {
                *at = Json::Object(Map::new());
            }
            at = at.as_object_mut().expect("it was made one").entry(part).or_insert(Json::Null);
        }
        *at = value.into();
    }

    /// Sets the value if there is one.
    fn set_some(&mut self, path: &str, value: Option<impl Into<Json>>) {
        if let Some(value) = value {
            self.set(path, value);
        }
    }

    /// Returns a key of the method's `sampling`, if it is set. Evaluations have the same value unless `train.evaluation` sets another one.
    fn sampling(&self, name: &str) -> Option<&Json> {
        let (_, keys) = self.0.get("method")?.as_object()?.iter().next()?;
        keys.get("sampling")?.get(name)
    }
}

/// Returns the name of the data set `name` with its split, as `data` reads it. The split `train` is the default.
fn with_split(name: &str, split: Option<&str>) -> String {
    match split {
        None | Some("train") => name.to_owned(),
        Some(split) => format!("{name}:{split}"),
    }
}

/// Builders of `datasets` that read local files.
const BUILDERS: [&str; 6] = ["arrow", "csv", "json", "pandas", "parquet", "text"];

/// Where a tool looks for the `data_files` of a data set whose `path` is a folder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FilesBelow {
    /// Below `path`, as `load_dataset` does.
    Path,
    /// Below the working directory.
    WorkingDirectory,
}

/// Returns the names of a data set as `data` reads them. The mapping at `entry`, such as `datasets[0]`, has the arguments of `load_dataset` of
/// `datasets`. There are several names if it has a list of files or configs. The names do not depend on the files of this machine.
fn data_names(from: &Original, entry: &str, below: FilesBelow) -> Vec<String> {
    let at = |key: &str| format!("{entry}.{key}");
    let (path, split) = (from.text(&at("path")), from.text(&at("split")));
    let split = split.as_deref().map(|split| whole_split(from, &at("split"), split));
    // A mapping has the files of each split.
    let is_mapping = matches!(from.peek(&at("data_files")), Some(Json::Object(_)));
    let files = if is_mapping { at(&format!("data_files.{}", split.unwrap_or("train"))) } else { at("data_files") };
    let (files, configs) = (words(from, &files), words(from, &at("name")));
    let is_builder = |path: &str| BUILDERS.contains(&path);
    // Names of the Hub are `owner/name`.
    let is_folder = |path: &str| path.starts_with(['.', '/']) || path.matches('/').count() > 1;
    if !files.is_empty() && path.as_deref().is_none_or(|path| is_builder(path) || is_folder(path)) {
        let folder = path.filter(|path| below == FilesBelow::Path && !is_builder(path));
        let split = split.filter(|_| !is_mapping);
        let named = |file: &String| match &folder {
            Some(folder) if !file.contains("://") => {
                let folder = Path::new(folder.strip_prefix("./").unwrap_or(folder));
                with_split(&folder.join(file).display().to_string(), split)
            }
            _ => with_split(file, split),
        };
        return files.iter().map(named).collect();
    }
    let Some(path) = path else { return Vec::new() };
    if is_builder(&path) {
        let split = split.unwrap_or("train");
        from.reject(
            &at("path"),
            format!("`{}` is `{path}`, but `data_files` names no file of the split `{split}`", at("path")),
        );
    }
    if !files.is_empty() {
        from.note_with_hint(
            &at("data_files"),
            format!("gradus reads all files of a split of `{path}`: left out"),
            "download the files, and name them as `data` and `mix`. If the path is a folder, write `./` before it",
        );
    }
    // The default config has this name in `datasets`, and no name here.
    let named = |config: &String| if config == "default" { path.clone() } else { format!("{path}:{config}") };
    let names: Vec<String> = if configs.is_empty() { vec![path.clone()] } else { configs.iter().map(named).collect() };
    names.iter().map(|name| with_split(name, split)).collect()
}

/// Returns the word at `path`, or those of a list.
fn words(from: &Original, path: &str) -> Vec<String> {
    let word = |value: Json| match value {
        Json::String(text) => Some(text),
        Json::Number(number) => Some(number.to_string()),
        _ => None,
    };
    match from.json(path) {
        None => Vec::new(),
        Some(Json::Array(items)) => items.into_iter().filter_map(word).collect(),
        Some(Json::Object(_)) => {
            from.note(path, format!("`{path}` is a mapping, and gradus reads a name or a list: left out"));
            Vec::new()
        }
        Some(value) => word(value).into_iter().collect(),
    }
}

/// Writes the first of `names` as `data` and the others as `mix`. Returns false if there is none.
fn set_data(to: &mut YamlBuilder, names: &[String]) -> bool {
    let Some((first, others)) = names.split_first() else { return false };
    to.set("data", first.as_str());
    if !others.is_empty() {
        to.set("mix", others.iter().map(|data| json!({ "data": data })).collect::<Vec<Json>>());
    }
    true
}

/// Returns the first split that `split` names, without its slice. Notes what `data` cannot name: `train[:10%]`, `train+test`.
fn whole_split<'a>(from: &Original, key: &str, split: &'a str) -> &'a str {
    let end = split.find(['[', '+']).unwrap_or(split.len());
    let whole = split[..end].trim_end();
    if end < split.len() {
        from.note_with_hint(
            key,
            format!("`{split}` is a part or a sum of splits, which has no equivalent: all rows of `{whole}` are used"),
            "limit the rows with `train.max_rows` or `mix[].rows`, or add a split as an entry of `mix`",
        );
    }
    whole
}

/// Sets a key of `train.evaluation` to the value at `kwargs`, the settings of generation for evaluations. In the original, they replace those of
/// rollouts. So if only rollouts set the key, evaluations need `off`, the default of transformers, which has no effect.
fn evaluation_rule(from: &Original, to: &mut YamlBuilder, kwargs: &str, (name, off): (&str, u8)) {
    let value = from.json(&format!("{kwargs}.{name}"));
    let value = value.or_else(|| to.sampling(name).map(|_| off.into()));
    to.set_some(&format!("train.evaluation.{name}"), value);
}

/// Returns a value in which texts that are numbers or booleans, also those in a list, are read as such.
fn unquoted(value: Json) -> Json {
    match value {
        Json::String(text) => match text.as_str() {
            "True" | "true" => Json::Bool(true),
            "False" | "false" => Json::Bool(false),
            _ => number(&text).unwrap_or(Json::String(text)),
        },
        Json::Array(items) => items.into_iter().map(unquoted).collect(),
        other => other,
    }
}

fn number(text: &str) -> Option<Json> {
    let whole = text.parse::<i64>().ok().map(Json::from);
    whole.or_else(|| text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Json::from))
}
