//! Finds the splits of a data set: in the header of its `README.md`, or in the names of its files.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use super::dataset_card::Config;
use super::reader::{extension, has_unread_compression};
use super::saved;
use crate::{Error, Result};

/// Files that a name resolves to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    /// Files, in reading order.
    pub files: Vec<PathBuf>,
    /// Split, if there are any.
    pub split: Option<String>,
    /// Other splits that could have been named. Empty if the name has a split.
    pub other_splits: Vec<String>,
}

/// Selects files of a data set. `files` are the relative paths of its data files and text files in reading order. `parts` is what the
/// user wrote after the name of the data set: a config or a split, or a config and a split.
pub(super) fn choose(root: &Path, configs: &[Config], files: &[String], parts: &[&str]) -> Result<Source> {
    let (config, split) = choose_config(root, configs, files, parts)?;
    let named = config.filter(|config| !config.is_default).map(|config| format!("{}:{}", root.display(), config.name));
    let root = named.as_ref().map_or(root, Path::new);
    // Only the config that is read must have a folder inside.
    if let Some(Err(message)) = config.map(|config| &config.folder) {
        return Err(Error::data(root, None, message.as_str()));
    }
    let (chosen, other_splits) = choose_split(root, known_splits(config, files), split)?;
    let declared = config.and_then(|config| Some((config, config.splits.as_ref()?)));
    let kept: Vec<&str> = match declared {
        Some((config, splits)) => {
            let files: Vec<&str> = files.iter().map(String::as_str).collect();
            let split = splits.iter().find(|split| Some(&split.name) == chosen.as_ref());
            let found = split.map_or_else(|| Ok(Vec::new()), |split| config.matches(split, &files));
            data_or_text(found.map_err(|message| Error::data(root, None, message))?)
        }
        None => {
            let files = by_name(config, files).into_iter();
            files.filter(|(_, split)| chosen.is_none() || *split == chosen).map(|(file, _)| file).collect()
        }
    };
    match kept.is_empty() {
        true => Err(no_data_file(root)),
        false => Ok(Source { files: kept.into_iter().map(PathBuf::from).collect(), split: chosen, other_splits }),
    }
}

/// Returns the config to read, if the data set has any, and the split that `parts` names, if any.
pub(super) fn choose_config<'c, 'p>(
    root: &Path,
    configs: &'c [Config],
    files: &[String],
    parts: &[&'p str],
) -> Result<(Option<&'c Config>, Option<&'p str>)> {
    let find = |name: &str| configs.iter().find(|config| config.name == name);
    let list = || configs.iter().map(|config| format!("`{}`", config.name)).collect::<Vec<_>>().join(", ");
    let unknown = |name: &str| {
        let found = if configs.is_empty() { "no configs".into() } else { list() };
        Error::data(root, None, format!("no config `{name}` (found {found})"))
    };
    let default = configs.iter().find(|config| config.is_default);
    let has_default = configs.is_empty() || default.is_some();
    let is_split = |part: &str| has_default && known_splits(default, files).iter().any(|split| split == part);
    match *parts {
        [config, split] => find(config).map(|config| (Some(config), Some(split))).ok_or_else(|| unknown(config)),
        [part] => match find(part) {
            // A name that is both means the split, as it would without configs.
            Some(config) if !is_split(part) => Ok((Some(config), None)),
            None if !has_default => Err(unknown(part)),
            _ => Ok((default, Some(part))),
        },
        _ if has_default => Ok((default, None)),
        _ => Err(Error::data(root, None, format!("several configs and no default: {}", list())).with_hint(format!(
            "name one: `{}:{}`",
            root.display(),
            configs[0].name
        ))),
    }
}

/// Returns the splits of a config, or of a data set without configs.
fn known_splits(config: Option<&Config>, files: &[String]) -> Vec<String> {
    if let Some(declared) = config.and_then(|config| config.splits.as_ref()) {
        return declared.iter().map(|split| split.name.clone()).collect();
    }
    let mut known: Vec<String> = by_name(config, files).into_iter().filter_map(|(_, split)| split).collect();
    known.sort();
    known.dedup();
    known
}

/// Returns the files in the folder of a config, or of a data set without configs, with the splits in their names. There are none outside of the
/// data set.
fn by_name<'f>(config: Option<&Config>, files: &'f [String]) -> Vec<(&'f str, Option<String>)> {
    let Ok(folder) = config.map_or(Ok(""), |config| config.folder.as_deref()) else { return Vec::new() };
    let inside = files.iter().map(String::as_str).filter(|file| Path::new(file).starts_with(folder));
    let files: Vec<&str> = data_or_text(inside.collect());
    let names: Vec<&str> = files.iter().map(|file| file[folder.len()..].trim_start_matches('/')).collect();
    let mut splits: Vec<Option<String>> = names.iter().map(|name| split_of_shard(name)).collect();
    if splits.iter().all(Option::is_none) {
        splits = names.iter().map(|name| split_of(name)).collect();
    }
    files.into_iter().zip(splits).collect()
}

/// Keeps the data files, or the text files if there are no data files.
pub(super) fn data_or_text<P: AsRef<Path>>(files: Vec<P>) -> Vec<P> {
    let has_data = files.iter().any(|file| is_data_file(file.as_ref()));
    files.into_iter().filter(|file| is_data_file(file.as_ref()) == has_data).collect()
}

pub(super) fn no_data_file(directory: &Path) -> Error {
    Error::data(directory, None, "no data file in it")
        .with_hint("data files are named .jsonl (also .jsonlines, .jl or .ndjson), .json, .csv, .tsv, .parquet (also .pq or .parq), .arrow, .feather or .txt, with or without .gz")
}

/// Returns the split to read, and the other ones if none is named.
pub(super) fn choose_split(
    root: &Path,
    mut known: Vec<String>,
    split: Option<&str>,
) -> Result<(Option<String>, Vec<String>)> {
    let list = known.iter().map(|s| format!("`{s}`")).collect::<Vec<_>>().join(", ");
    let find = |name: &str| {
        let is_same = |known: &&String| canonical(name).is_some_and(|name| canonical(known) == Some(name));
        known.iter().find(|known| *known == name).or_else(|| known.iter().find(is_same))
    };
    let chosen = match split {
        Some(split) => {
            let Some(found) = find(split) else {
                let found = if known.is_empty() { "no splits".into() } else { list };
                return Err(Error::data(root, None, format!("no split `{split}` (found {found})")));
            };
            Some(found.clone())
        }
        None if known.len() <= 1 => known.first().cloned(),
        None if find("train").is_some() => find("train").cloned(),
        None => {
            let message = format!("several splits and no `train`: {list}");
            return Err(Error::data(root, None, message).with_hint(format!(
                "name one: `{}:{}`",
                root.display(),
                known[0]
            )));
        }
    };
    // Who names a split knows that there are others.
    known.retain(|s| split.is_none() && Some(s) != chosen.as_ref());
    Ok((chosen, known))
}

/// Returns the split of a shard that `push_to_hub` of `datasets` wrote, whatever its name.
fn split_of_shard(path: &str) -> Option<String> {
    static SHARD: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^data/(\w+(?:\.\w+)*)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*$").expect("a valid pattern")
    });
    Some(SHARD.captures(path)?[1].to_owned())
}

/// Returns the split in a path: the innermost part that is the name of a split.
pub(super) fn split_of(path: &str) -> Option<String> {
    let parts = path.rsplit(|c: char| !c.is_ascii_alphanumeric());
    parts.filter_map(canonical).next().map(str::to_owned)
}

pub(super) fn canonical(word: &str) -> Option<&'static str> {
    match word.to_ascii_lowercase().as_str() {
        "train" | "training" => Some("train"),
        "test" | "testing" => Some("test"),
        "validation" | "valid" | "val" | "dev" | "eval" => Some("validation"),
        _ => None,
    }
}

/// Returns whether a file name marks a data file. Files that describe a data set are excluded. A data file with a compression that gradus
/// does not read is one too: reading it reports that, and no rows are left out without a message.
pub(super) fn is_data_file(path: &Path) -> bool {
    const DESCRIPTIONS: [&str; 5] =
        ["dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json"];
    const NAMES: [&str; 12] =
        ["jsonl", "jsonlines", "jl", "ndjson", "json", "csv", "tsv", "parquet", "parq", "pq", "arrow", "feather"];
    let described = path.file_name().and_then(|n| n.to_str()).is_some_and(|n| DESCRIPTIONS.contains(&n));
    let is_named = |path: &Path| extension(path).is_some_and(|extension| NAMES.contains(&&*extension));
    let is_data = is_named(path) || has_unread_compression(path) && is_named(&path.with_extension(""));
    is_data && !described && !saved::is_cache(path)
}

/// Returns whether a file name marks a text file. Next to data files, a text file is a description of them.
pub(super) fn is_text_file(path: &Path) -> bool {
    extension(path).as_deref() == Some("txt")
}
