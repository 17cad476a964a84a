//! Finds the splits of a data set in the names of its files.

use std::path::{Path, PathBuf};

use super::reader::{extension, has_unread_compression};
use super::saved;
use crate::{Error, Result};

/// Files that a name resolves to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    /// Files, in reading order.
    pub files: Vec<PathBuf>,
    /// Split, if file names contain one.
    pub split: Option<String>,
    /// Other splits that exist but are not read.
    pub other_splits: Vec<String>,
}

/// Selects the data files of a split. `files` are relative paths in reading order.
pub(super) fn choose(root: &Path, files: &[String], split: Option<&str>) -> Result<Source> {
    let splits: Vec<Option<String>> = files.iter().map(|f| split_of(f)).collect();
    let mut known: Vec<String> = splits.iter().flatten().cloned().collect();
    known.sort();
    known.dedup();
    let (chosen, other_splits) = choose_split(root, known, split)?;
    let kept: Vec<PathBuf> = files
        .iter()
        .zip(&splits)
        .filter(|(_, s)| chosen.is_none() || **s == chosen)
        .map(|(f, _)| PathBuf::from(f))
        .collect();
    match kept.is_empty() {
        true => Err(no_data_file(root)),
        false => Ok(Source { files: kept, split: chosen, other_splits }),
    }
}

pub(super) fn no_data_file(directory: &Path) -> Error {
    Error::data(directory, None, "no data file in it")
        .with_hint("data files are named .jsonl (also .jsonlines, .jl or .ndjson), .json, .csv, .tsv, .parquet (also .pq or .parq), .arrow or .txt, with or without .gz")
}

/// Returns the split to read, and the other ones.
pub(super) fn choose_split(
    root: &Path,
    mut known: Vec<String>,
    split: Option<&str>,
) -> Result<(Option<String>, Vec<String>)> {
    let list = known.iter().map(|s| format!("`{s}`")).collect::<Vec<_>>().join(", ");
    let is_known = |name: &str| known.iter().any(|s| s == name);
    let chosen = match split {
        Some(split) => {
            let resolved = if is_known(split) { split } else { canonical(split).unwrap_or(split) };
            if !is_known(resolved) {
                let found = if known.is_empty() { "no splits".into() } else { list };
                return Err(Error::data(root, None, format!("no split `{split}` (found {found})")));
            }
            Some(resolved.to_owned())
        }
        None if known.len() <= 1 => known.first().cloned(),
        None if is_known("train") => Some("train".into()),
        None => {
            let message = format!("several splits and no `train`: {list}");
            return Err(Error::data(root, None, message).with_hint(format!(
                "name one: `{}:{}`",
                root.display(),
                known[0]
            )));
        }
    };
    known.retain(|s| Some(s) != chosen.as_ref());
    Ok((chosen, known))
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
