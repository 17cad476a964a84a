//! Combines a file and flags into a [`RunConfig`] that stores the location of each key.

use std::io::Read;
use std::path::Path;

use super::argument::Argument;
use super::config_with_locations::ConfigWithLocations;
use super::flags::{Flag, of_method, overlay, tree, unreached};
use super::node::{Entry, Node, Value, document};
use super::read::read;
use super::rules;
use super::schema::Schema;
use super::{MethodConfig, Registry, RunConfig, moved, preset, write};
use crate::error::{Diagnostic, Error, Result};
use crate::files;
use crate::machine::Machine;
use crate::shell;

/// The user's request: a file, flags, or both.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// The configuration file.
    pub file: Option<&'a Path>,
    /// Method, if the command names one.
    pub method: Option<&'a str>,
    /// Flags, which override the file.
    pub flags: &'a [Flag],
    /// Keys that a program passes. They override the file and the flags.
    pub arguments: &'a [Argument],
    /// Plug-ins of the program.
    pub registry: Option<&'a Registry>,
}

impl RunConfig {
    /// Reads a file and applies flags to it.
    ///
    /// # Errors
    /// [`Error::Config`] with every problem: spelling, types, and keys that cannot be combined.
    pub fn load(request: &Request<'_>) -> Result<ConfigWithLocations> {
        let Some(path) = request.file else { return resolve(Node::empty(), None, request) };
        Self::of_file(path, &text(path)?, request)
    }

    /// Reads `text`, the content of the configuration file `path`, and applies the flags of `request` to it.
    pub(super) fn of_file(path: &Path, text: &str, request: &Request<'_>) -> Result<ConfigWithLocations> {
        let (base, notes) = file_tree(path, text)?;
        let marked = if resolved(text) { vec![path.to_owned()] } else { Vec::new() };
        Ok(ConfigWithLocations { marked, notes, ..resolve(base, None, request)? })
    }

    /// Reads the text of a configuration file.
    ///
    /// # Errors
    /// As [`RunConfig::load`].
    pub fn parse(text: &str) -> Result<ConfigWithLocations> {
        Self::read(text, &Request::default())
    }

    /// Reads the text of a configuration file and applies the flags of `request` to it.
    ///
    /// # Errors
    /// As [`RunConfig::load`].
    pub fn read(text: &str, request: &Request<'_>) -> Result<ConfigWithLocations> {
        let (base, notes) = file_tree("config.yml".as_ref(), text)?;
        Ok(ConfigWithLocations { notes, ..resolve(base, None, request)? })
    }
}

/// Reads `text`, the content of the configuration file `path`, as a tree in which keys that have moved are at their new
/// places. Also returns the notes on the file.
pub(super) fn file_tree(path: &Path, text: &str) -> Result<(Node, Vec<Diagnostic>)> {
    let mut root = document(path, text).map_err(|problem| Error::Config(vec![problem]))?;
    let note = moved::apply(path, &mut root, resolved(text)).map_err(Error::Config)?;
    Ok((root, note.into_iter().collect()))
}

/// Whether this is the text of a resolved `config.yml`.
pub(super) fn resolved(text: &str) -> bool {
    text.starts_with(write::HEADER)
}

pub(super) fn text(path: &Path) -> Result<String> {
    // These are pipes that the shell has already opened. They end, so they can be read whole.
    let is_handed_over = ["/dev/stdin", "/dev/fd/", "/proc/self/fd/"].iter().any(|start| path.starts_with(start));
    let read = match is_handed_over {
        true => std::fs::File::open(path).and_then(|file| {
            let mut text = String::new();
            file.take(files::SETTINGS_BYTES).read_to_string(&mut text).map(|_| text)
        }),
        false => files::read_text(path, files::SETTINGS_BYTES),
    };
    read.map_err(|error| {
        let message = match error.kind() {
            std::io::ErrorKind::NotFound => format!("there is no configuration file `{}`", path.display()),
            std::io::ErrorKind::IsADirectory => {
                format!("`{}` is a directory, but a configuration file is needed", path.display())
            }
            _ => format!("configuration file `{}` cannot be read: {error}", path.display()),
        };
        let hint = path.join("config.yml").is_file().then(|| {
            let word = shell::path(path);
            format!("`gradus runs resume {word}` resumes the run; its settings are in `{}/config.yml`", path.display())
        });
        Error::Config(vec![Diagnostic { message, locations: Vec::new(), hint }])
    })
}

/// Overlays `file` (another file's tree) and the flags of `request` on `base`, and reads the result.
pub(super) fn resolve(base: Node, file: Option<Node>, request: &Request<'_>) -> Result<ConfigWithLocations> {
    let schema = request.registry.map_or_else(Schema::run_config, Schema::with);
    let mut problems = Vec::new();
    // If the file names the method, flags of several methods may be given. Those of its method count.
    let written = || [file.as_ref(), Some(&base)].into_iter().flatten().find_map(method_of);
    let method = request.method.map(str::to_owned).or_else(written);
    let belongs = |flag: &&Flag| of_method(flag).is_none_or(|of| Some(of) == method.as_deref());
    let flags: Vec<Flag> = request.flags.iter().filter(belongs).cloned().collect();
    if let Some(method) = &method {
        problems.extend(unreached(request.flags, &[method]));
    }
    let mut over = match tree(&flags) {
        Ok(over) => over,
        // Without these flags, keys would be reported as missing that were given.
        Err(found) => return Err(Error::Config(problems.into_iter().chain(found).collect())),
    };
    request.arguments.iter().for_each(|argument| argument.lay(&mut over));
    if let Some(method) = request.method {
        problems.extend([Some(&base), file.as_ref()].into_iter().flatten().find_map(|node| other_method(node, method)));
        choose(&mut over, method);
    }
    let base = match file {
        Some(file) => overlay(&schema, schema.root(), base, file),
        None => base,
    };
    let root = overlay(&schema, schema.root(), base, over);
    let root = preset::under(&schema, root).map_err(|problem| Error::Config(vec![problem]))?;
    let reading = read(&schema, &root);
    problems.extend(reading.problems);
    let (value, broken, mut low) = (reading.value, reading.broken, reading.low);
    if problems.is_empty() && low.is_empty() {
        let mut config = serde_json::from_value(value).map_err(|error| {
            Error::Config(vec![Diagnostic { message: error.to_string(), locations: Vec::new(), hint: None }])
        })?;
        request.registry.map_or(Ok(()), |registry| registry.bind(&mut config))?;
        return Ok(ConfigWithLocations { config, root, marked: Vec::new(), notes: Vec::new() });
    }
    // The rest may have its own problems. Keys that could not be read take their defaults, and problems with these are
    // not reported.
    let mut also = Vec::new();
    if let Ok(mut config) = serde_json::from_value(patched(value, request.method)) {
        // Plug-ins that do not match are already among the problems.
        let _ = request.registry.map(|registry| registry.bind(&mut config));
        let written = ConfigWithLocations { config, root, marked: Vec::new(), notes: Vec::new() };
        also = rules::check(&written, &Machine::detect());
        let is_broken = |key: &String| broken.iter().any(|path| key.starts_with(path.as_str()));
        also.retain(|found| !found.keys.iter().any(is_broken));
    }
    // A rule about the same key also gives the reason.
    low.retain(|found| !also.iter().any(|rule| found.keys.iter().any(|key| rule.keys.contains(key))));
    problems.extend(low.into_iter().chain(also).map(|found| found.diagnostic));
    Err(Error::Config(problems))
}

/// Adds placeholders for required keys, so that everything else can be checked.
fn patched(mut value: serde_json::Value, method: Option<&str>) -> serde_json::Value {
    if let Some(object) = value.as_object_mut() {
        for key in ["model", "data"] {
            object.entry(key).or_insert_with(|| "-".into());
        }
        if let Some(method) = method {
            object.entry("method").or_insert_with(|| serde_json::json!({ method: {} }));
        }
    }
    value
}

/// Returns the method that a file names.
pub(super) fn method_of(root: &Node) -> Option<String> {
    match &root.entry("method")?.node.value {
        Value::Map(sides) => sides.first().map(|side| side.key.clone()),
        _ => None,
    }
}

/// Reports a file for another method, as in `gradus ppo --config FILE`.
fn other_method(base: &Node, method: &str) -> Option<Diagnostic> {
    let entry = base.entry("method")?;
    let Value::Map(sides) = &entry.node.value else { return None };
    let other = sides.iter().find(|side| side.key != method && MethodConfig::named(&side.key).is_some())?;
    Some(Diagnostic {
        message: format!("the file configures `{}`, but the command is `gradus {method}`", other.key),
        locations: other.location.clone().into_iter().collect(),
        hint: Some(format!("run `gradus {}` or `gradus train FILE`", other.key)),
    })
}

/// Ensures that `method.<method>` exists.
fn choose(root: &mut Node, method: &str) {
    fn entry<'a>(node: &'a mut Node, key: &str) -> Option<&'a mut Node> {
        let Value::Map(entries) = &mut node.value else { return None };
        let index = entries.iter().position(|entry| entry.key == key).unwrap_or_else(|| {
            entries.push(Entry { key: key.to_owned(), location: None, node: Node::empty() });
            entries.len() - 1
        });
        Some(&mut entries[index].node)
    }
    entry(root, "method").and_then(|node| entry(node, method));
}
