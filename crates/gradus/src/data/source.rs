//! What `--data` names: a file, a directory of shards, or a data set on the hub.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::reader::extension;
use super::splits::{Source, canonical, choose, choose_split, is_data_file, is_text_file, no_data_file, split_of};
use super::{hub, saved};
use crate::hub::OnProgress;
use crate::{Error, Result};

/// Finds the files of `name`: a path, a hub name, or either with `:split` behind it. What is downloaded tells
/// `on_progress`.
///
/// A directory stands for its data files in name order, or for its text files where it has no other; one that `save_to_disk`
/// of `datasets` wrote stands for the files that it lists, in that order. Where file or folder names carry a split (`train`, `test`,
/// `validation`), only one split is read: the one asked for, else `train`, else the only one.
///
/// # Errors
/// When there is no such path or data set, no data file in it, or no such split.
pub fn resolve(name: &str, on_progress: OnProgress<'_>) -> Result<Source> {
    let path = Path::new(name);
    if path.exists() {
        return local(path, None);
    }
    if let Some((before, split)) = name.rsplit_once(':')
        && !split.contains(['/', '\\'])
    {
        if Path::new(before).exists() {
            return local(Path::new(before), Some(split));
        }
        if looks_like_hub_name(before) {
            return hub::fetch(before, None, Some(split), on_progress);
        }
    }
    if looks_like_hub_name(name) {
        return hub::fetch(name, None, None, on_progress);
    }
    Err(Error::data(path, None, "no such file or directory"))
}

/// The data files of `split` of a directory or a data set on the hub; of those below `folder` where it has one. A file
/// stands for itself. What is downloaded tells `on_progress`.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_split(name: &str, folder: Option<&str>, split: &str, on_progress: OnProgress<'_>) -> Result<Source> {
    let path = Path::new(name);
    if path.exists() {
        let inner = folder.map(|folder| path.join(folder)).filter(|inner| inner.is_dir());
        return local(inner.as_deref().unwrap_or(path), Some(split));
    }
    if looks_like_hub_name(name) {
        return hub::fetch(name, folder, Some(split), on_progress);
    }
    Err(Error::data(path, None, "no such file or directory"))
}

/// The files of `split` below a directory that `is_wanted` by their names (without `.gz`), in the order of their names; a
/// file stands for itself. For data sets that are plain text: nothing is downloaded.
///
/// # Errors
/// When the directory cannot be read.
pub fn text_files(path: &Path, split: &str, is_wanted: &dyn Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let wanted = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        is_wanted(name.strip_suffix(".gz").unwrap_or(name))
    };
    if !path.is_dir() {
        return Ok(if wanted(path) { vec![path.to_owned()] } else { Vec::new() });
    }
    let mut files = Vec::new();
    collect(path, &mut Vec::new(), &wanted, &mut files)?;
    files.retain(|file| {
        let inside = file.strip_prefix(path).unwrap_or(file);
        split_of(&inside.to_string_lossy()).as_deref() == Some(canonical(split).unwrap_or(split))
    });
    files.sort();
    Ok(files)
}

/// `owner/name` or `name`, without anything that only paths have.
fn looks_like_hub_name(name: &str) -> bool {
    let legal = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            && part.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    let parts: Vec<&str> = name.split('/').collect();
    parts.len() <= 2
        && parts.iter().all(|p| legal(p))
        && !is_data_file(Path::new(name))
        && !is_text_file(Path::new(name))
}

fn local(path: &Path, split: Option<&str>) -> Result<Source> {
    // Pipes and devices too: `/dev/stdin` is one.
    if !path.is_dir() {
        return Ok(Source { files: vec![path.to_path_buf()], ..Source::default() });
    }
    if let Some(splits) = saved::splits(path)? {
        let (chosen, other_splits) = choose_split(path, splits, split)?;
        let folder = chosen.as_ref().map_or_else(|| path.to_owned(), |split| path.join(split));
        let files = data_files(&folder)?;
        if files.is_empty() {
            return Err(no_data_file(&folder));
        }
        return Ok(Source { files, split: chosen, other_splits });
    }
    let files = data_files(path)?;
    let relative = files
        .iter()
        .map(|f| f.strip_prefix(path).unwrap_or(f).to_string_lossy().replace('\\', "/"))
        .collect::<Vec<_>>();
    choose(path, &relative, split)
        .map(|chosen| Source { files: chosen.files.iter().map(|f| path.join(f)).collect(), ..chosen })
}

/// The data files of a directory in the order in which they are read, or its text files.
fn data_files(path: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    collect(path, &mut Vec::new(), &is_data_file, &mut files)?;
    if files.is_empty() {
        collect(path, &mut Vec::new(), &is_text_file, &mut files)?;
    }
    files.sort();
    in_order_of_lists(files)
}

/// Sorted files in the order in which they are read: a directory that lists its files stands for these, in the order of the list.
fn in_order_of_lists(files: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    let mut lists = HashMap::new();
    for folder in files.iter().filter(|file| is_arrow(file)).filter_map(|file| file.parent()) {
        if !lists.contains_key(folder)
            && let Some(listed) = saved::files(folder)?
        {
            lists.insert(folder.to_owned(), listed);
        }
    }
    let mut ordered = Vec::with_capacity(files.len());
    for file in files {
        match file.parent().and_then(|folder| lists.get_mut(folder)) {
            // The first file brings the whole list.
            Some(listed) => ordered.append(listed),
            None => ordered.push(file),
        }
    }
    Ok(ordered)
}

fn is_arrow(path: &Path) -> bool {
    extension(path).as_deref() == Some("arrow")
}

/// Adds the wanted files below `directory`, which lies in the directories `above`. A link to one of these is a circle, and not
/// entered again.
fn collect(
    directory: &Path,
    above: &mut Vec<PathBuf>,
    is_wanted: &dyn Fn(&Path) -> bool,
    files: &mut Vec<PathBuf>,
) -> Result<()> {
    let own = directory.canonicalize().map_err(|e| Error::io(directory, e))?;
    if above.contains(&own) {
        return Ok(());
    }
    above.push(own);
    let entries = std::fs::read_dir(directory).map_err(|e| Error::io(directory, e))?;
    for entry in entries {
        let path = entry.map_err(|e| Error::io(directory, e))?.path();
        let hidden = path.file_name().and_then(|n| n.to_str()).is_none_or(|n| n.starts_with(['.', '_']));
        if hidden {
            continue;
        }
        if path.is_dir() {
            collect(&path, above, is_wanted, files)?;
        } else if is_wanted(&path) {
            files.push(path);
        }
    }
    above.pop();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(files: &[&str], split: Option<&str>) -> Result<(Vec<String>, Option<String>)> {
        let files: Vec<String> = files.iter().map(|f| (*f).to_owned()).collect();
        let source = choose(Path::new("d"), &files, split)?;
        Ok((source.files.iter().map(|f| f.to_string_lossy().into_owned()).collect(), source.split))
    }

    #[test]
    fn train_is_read_unless_another_split_is_named() {
        let files = ["data/test-0.parquet", "data/train-0.parquet", "data/train-1.parquet"];
        let (kept, split) = chosen(&files, None).unwrap();
        assert_eq!(kept, ["data/train-0.parquet", "data/train-1.parquet"]);
        assert_eq!(split.as_deref(), Some("train"));
        assert_eq!(chosen(&files, Some("test")).unwrap().0, ["data/test-0.parquet"]);
        let message = chosen(&files, Some("dev")).unwrap_err().to_string();
        assert_eq!(message, "d: no split `dev` (found `test`, `train`)");
    }

    #[test]
    fn shards_without_a_split_are_all_read() {
        assert_eq!(chosen(&["a.jsonl", "b.jsonl"], None).unwrap(), (vec!["a.jsonl".into(), "b.jsonl".into()], None));
        assert_eq!(chosen(&["harmless-base/test.jsonl.gz"], None).unwrap().1.as_deref(), Some("test"));
    }

    #[test]
    fn hub_names_are_told_from_paths() {
        for (name, hub) in
            [("Anthropic/hh-rlhf", true), ("gsm8k", true), ("rows.jsonl", false), ("./x", false), ("a/b/c", false)]
        {
            assert_eq!(looks_like_hub_name(name), hub, "{name}");
        }
    }
}
