//! The header of a data set's `README.md`: which files belong to which config and split, as `datasets` reads it.

use std::path::Path;

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, Spanned};

use crate::{Error, Result, files};

/// File at the root of a data set whose header describes it.
pub(super) const CARD: &str = "README.md";

/// A part of a data set with files and splits of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    /// Name.
    pub name: String,
    /// Whether it is read if no config is named. At most one is.
    pub is_default: bool,
    /// Folder to which its files are relative; empty for the data set's own. If it is outside of the data set, the message about it.
    pub folder: Result<String, String>,
    /// Splits. Without them, the names of the files decide.
    pub splits: Option<Vec<DeclaredSplit>>,
}

/// A split with the patterns of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeclaredSplit {
    /// Name.
    pub name: String,
    /// Names of files or patterns, relative to the folder of the config.
    pub patterns: Vec<String>,
}

/// Problem of a path that leads out of the data set.
const OUTSIDE: &str = "only files of the data set can be read";

/// The keys of the header that matter here.
#[derive(Deserialize)]
struct Header {
    configs: Option<Vec<Spanned<Value>>>,
}

/// Returns the configs that a file `README.md` declares. There are none without the file, without a header, or without `configs`.
///
/// # Errors
/// If the header is not valid, or declares something that `datasets` does not read either.
pub(super) fn configs(card: &Path) -> Result<Vec<Config>> {
    if !card.is_file() {
        return Ok(Vec::new());
    }
    let bytes = files::read(card, files::SETTINGS_BYTES).map_err(|e| Error::io(card, e))?;
    let text = String::from_utf8_lossy(&bytes);
    let Some(header) = header(&text) else { return Ok(Vec::new()) };
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    let header: Option<Header> = serde_saphyr::from_str_with_options(header, options).map_err(|error| {
        let line = error.location().map(|location| location.line() as usize);
        Error::data(card, line, format!("the header cannot be read as YAML: {}", error.without_snippet()))
    })?;
    let mut configs: Vec<Config> = Vec::new();
    for declared in header.and_then(|header| header.configs).unwrap_or_default() {
        let add = |config: Config| match configs.iter().find(|other| other.name == config.name) {
            Some(other) => Err(format!("there is already a config `{}`", other.name)),
            None => Ok(config),
        };
        let line = Some(declared.referenced.line() as usize);
        let config = config(&declared.value).and_then(add).map_err(|message| Error::data(card, line, message))?;
        configs.push(config);
    }
    if let [only] = &mut configs[..] {
        only.is_default = true;
    }
    let defaults: Vec<String> =
        configs.iter().filter(|config| config.is_default).map(|config| format!("`{}`", config.name)).collect();
    match defaults.len() {
        0 | 1 => Ok(configs),
        _ => Err(Error::data(card, None, format!("several default configs: {}", defaults.join(", "))).with_hint(
            "a config is the default if its name is `default` or if it has `default: true`; keep one of them",
        )),
    }
}

/// Returns the text before the line `---` that ends the header. Its lines have the numbers of the file.
fn header(text: &str) -> Option<&str> {
    let (mut end, mut is_open) = (0, false);
    for line in text.split_inclusive('\n') {
        match (is_open, line.trim_end()) {
            (false, "") => {}
            (false, "---") => is_open = true,
            (false, _) => return None,
            (true, "---") => return Some(&text[..end]),
            (true, _) => {}
        }
        end += line.len();
    }
    None
}

fn config(declared: &Value) -> Result<Config, String> {
    let name = declared.get("config_name").and_then(text).ok_or("a config has no `config_name`")?;
    let folder = match declared.get("data_dir") {
        None | Some(Value::Null) => String::new(),
        Some(folder) => text(folder).ok_or_else(|| format!("`data_dir` of the config `{name}` is not a text"))?,
    };
    let splits = match declared.get("data_files") {
        None | Some(Value::Null) => None,
        Some(files) => Some(splits(files).ok_or_else(|| {
            format!(
                "`data_files` of the config `{name}` has another form than a file, a list of files, a mapping of splits to \
                 files, or a list of entries with `split` and `path`"
            )
        })?),
    };
    for (index, split) in splits.iter().flatten().enumerate() {
        if splits.iter().flatten().take(index).any(|other| other.name == split.name) {
            return Err(format!("`data_files` of the config `{name}` names the split `{}` twice", split.name));
        }
    }
    let is_default = name == "default" || declared.get("default") == Some(&Value::Bool(true));
    let folder = match parts(&folder) {
        Some(parts) => Ok(parts.join("/")),
        None => Err(described(&folder, &name, OUTSIDE)),
    };
    Ok(Config { name, is_default, folder, splits })
}

fn splits(data_files: &Value) -> Option<Vec<DeclaredSplit>> {
    let split = |name: &str, files: &Value| Some(DeclaredSplit { name: name.to_owned(), patterns: patterns(files)? });
    match data_files {
        Value::Object(splits) => splits.iter().map(|(name, files)| split(name, files)).collect(),
        Value::Array(entries) if entries.iter().any(Value::is_object) => {
            entries.iter().map(|entry| split(&text(entry.get("split")?)?, entry.get("path")?)).collect()
        }
        files => Some(vec![split("train", files)?]),
    }
}

fn patterns(files: &Value) -> Option<Vec<String>> {
    match files {
        Value::Array(files) => files.iter().map(text).collect(),
        file => Some(vec![text(file)?]),
    }
}

/// Returns a name. YAML reads one like `2024` as a number.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns the names in a path, without those that have no effect: each `..` removes the one before it. `None` if the path leads out of the folder
/// in which it starts.
fn parts(path: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts)
}

/// Returns the problem of a path that a config declares.
fn described(path: &str, config: &str, problem: &str) -> String {
    format!("`{path}` in `{CARD}`, config `{config}`: {problem}")
}

impl Config {
    /// Returns the files that the patterns of a split match, pattern by pattern. Like `datasets`, it repeats a file that two patterns
    /// match.
    ///
    /// # Errors
    /// If the folder is outside of the data set, a pattern cannot be read, or a file that is named without a wildcard does not exist.
    pub fn matches<'f>(&self, split: &DeclaredSplit, files: &[&'f str]) -> Result<Vec<&'f str>, String> {
        let folder = self.folder.as_deref().map_err(String::clone)?;
        let mut found = Vec::new();
        for pattern in &split.patterns {
            let described = |problem: &str| described(pattern, &self.name, problem);
            if pattern.contains("://") || pattern.starts_with('/') {
                return Err(described(OUTSIDE));
            }
            let regex = wildcards(&format!("{folder}/{pattern}")).map_err(|problem| described(&problem))?;
            let before = found.len();
            found.extend(files.iter().copied().filter(|file| regex.is_match(file)));
            if found.len() == before && !pattern.contains(['*', '?', '[']) {
                return Err(described("there is no such data file"));
            }
        }
        Ok(found)
    }
}

/// Translates a pattern for paths: `*`, `?` and `[…]` match within a name, and the name `**` matches any number of folders.
fn wildcards(pattern: &str) -> Result<Regex, String> {
    let parts = parts(pattern).ok_or(OUTSIDE)?;
    let mut translated = String::from("^");
    for (index, part) in parts.iter().enumerate() {
        let is_last = index + 1 == parts.len();
        match *part {
            "**" if is_last => translated.push_str(".*"),
            "**" => translated.push_str("(?:.+/)?"),
            part if part.contains("**") => return Err("`**` must be a whole name between slashes".into()),
            part => {
                name(part, &mut translated);
                translated.push_str(if is_last { "" } else { "/" });
            }
        }
    }
    translated.push('$');
    Regex::new(&translated).map_err(|_| "not a valid pattern".into())
}

/// Translates the pattern of one name.
fn name(pattern: &str, translated: &mut String) {
    let mut rest = pattern;
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        match (first, class(rest)) {
            ('*', _) => translated.push_str("[^/]*"),
            ('?', _) => translated.push_str("[^/]"),
            ('[', Some((class, after))) => {
                translated.push_str(&class);
                rest = after;
            }
            _ => translated.push_str(&regex::escape(&first.to_string())),
        }
    }
}

/// Translates what follows a `[`, and returns the text after the `]`. Without a `]`, the `[` stands for itself.
fn class(rest: &str) -> Option<(String, &str)> {
    let (start, members) = rest.strip_prefix('!').map_or(("[", rest), |members| ("[^/", members));
    // A `]` in the first place is a member.
    let (end, _) = members.char_indices().skip(1).find(|(_, character)| *character == ']')?;
    let after = &members[end + 1..];
    let members = &members[..end];
    let mut class = String::from(start);
    for (place, member) in members.char_indices() {
        match member {
            // At an end, it is a member and no range.
            '-' if place > 0 && place + 1 < end => class.push('-'),
            member => class.push_str(&regex::escape(&member.to_string())),
        }
    }
    class.push(']');
    Some((class, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 5] = ["a.jsonl", "b.jsonl", "x/c.jsonl", "x/y/d.jsonl", "x/[e].jsonl"];

    fn matched(pattern: &str) -> Vec<&'static str> {
        let regex = wildcards(pattern).expect("a pattern");
        FILES.into_iter().filter(|file| regex.is_match(file)).collect()
    }

    #[test]
    fn patterns_match_the_files_that_they_match_in_datasets() {
        assert_eq!(matched("a.jsonl"), ["a.jsonl"]);
        assert_eq!(matched("./a.jsonl"), ["a.jsonl"]);
        assert_eq!(matched("ajsonl"), [""; 0]);
        assert_eq!(matched("x/../a.jsonl"), ["a.jsonl"]);
        assert_eq!(matched("x/y/../../x/*.jsonl"), ["x/c.jsonl", "x/[e].jsonl"]);
        assert_eq!(matched("*"), ["a.jsonl", "b.jsonl"]);
        assert_eq!(matched("?.jsonl"), ["a.jsonl", "b.jsonl"]);
        assert_eq!(matched("[!a].jsonl"), ["b.jsonl"]);
        assert_eq!(matched("[a-b]*"), ["a.jsonl", "b.jsonl"]);
        assert_eq!(matched("[!-a].jsonl"), ["b.jsonl"]);
        assert_eq!(matched("x/*"), ["x/c.jsonl", "x/[e].jsonl"]);
        assert_eq!(matched("x/[[]e].jsonl"), ["x/[e].jsonl"]);
        assert_eq!(matched("*/*/*"), ["x/y/d.jsonl"]);
        assert_eq!(matched("x/**"), FILES[2..]);
        assert_eq!(matched("**/*.jsonl"), FILES);
        assert_eq!(matched("x/**/d.jsonl"), ["x/y/d.jsonl"]);
        assert_eq!(matched("x"), [""; 0]);
        assert_eq!(wildcards("**.jsonl").unwrap_err(), "`**` must be a whole name between slashes");
        assert_eq!(wildcards("x/../../x/*").unwrap_err(), OUTSIDE);
    }

    #[test]
    fn a_header_is_closed_and_begins_the_file() {
        assert_eq!(header("---\na: 1\n---\nbody\n"), Some("---\na: 1\n"));
        assert_eq!(header("\n---\r\na: 1\r\n---"), Some("\n---\r\na: 1\r\n"));
        assert_eq!(header("---\na: 1\n"), None);
        assert_eq!(header("# Title\n---\na: 1\n---\n"), None);
        assert_eq!(header(""), None);
    }

    #[test]
    fn data_files_have_every_form_that_datasets_reads() {
        let splits_of = |declared: Value| -> Vec<(String, Vec<String>)> {
            let config = config(&serde_json::json!({ "config_name": "c", "data_files": declared })).expect("a config");
            config.splits.expect("splits").into_iter().map(|split| (split.name, split.patterns)).collect()
        };
        let split = |name: &str, patterns: &[&str]| {
            (name.to_owned(), patterns.iter().map(|pattern| (*pattern).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(splits_of("a".into()), [split("train", &["a"])]);
        assert_eq!(splits_of(serde_json::json!(["a", "b"])), [split("train", &["a", "b"])]);
        let both = [split("train", &["a"]), split("test", &["b", "c"])];
        assert_eq!(splits_of(serde_json::json!({ "train": "a", "test": ["b", "c"] })), both);
        let entries = serde_json::json!([{ "split": "train", "path": "a" }, { "split": "test", "path": ["b", "c"] }]);
        assert_eq!(splits_of(entries), both);
    }
}
