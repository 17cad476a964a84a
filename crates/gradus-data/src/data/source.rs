//! Resolves the value of `--data`: a file, a directory of shards, or a data set on the hub.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::reader::extension;
use super::splits::{Source, canonical, choose, choose_split, is_data_file, is_text_file, no_data_file, split_of};
use super::{hub_rows, saved};
use crate::hub::OnProgress;
use crate::{Error, Result};

/// Finds the files of `name`: a path or a hub name, either of them with an optional `:split`. Downloads report to `on_progress`.
///
/// A directory resolves to its data files in name order, or to its text files if it has no data files. A directory that
/// `save_to_disk` of `datasets` wrote resolves to the files that it lists, in that order. If file or folder names contain a split
/// (`train`, `test`, `validation`), only one split is read: the requested one, else `train`, else the only one.
///
/// # Errors
/// If the path or data set, a data file in it, or the split does not exist.
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
            return hub_rows::fetch(before, None, Some(split), on_progress);
        }
    }
    if looks_like_hub_name(name) {
        return hub_rows::fetch(name, None, None, on_progress);
    }
    if let Some(whole) = without_slice(name) {
        return Err(Error::data(path, None, "names a slice of a split, but only whole splits can be read")
            .with_hint(format!("use `{whole}`, and limit its rows with `max_rows`")));
    }
    Err(Error::data(path, None, "no such file or directory"))
}

/// Returns the whole split of a name with a slice, as `datasets` writes it: `NAME:train` for `NAME:train[:10%]`.
fn without_slice(name: &str) -> Option<&str> {
    let (whole, _) = name.strip_suffix(']')?.rsplit_once('[')?;
    let (_, split) = whole.rsplit_once(':')?;
    (!split.is_empty() && !split.contains(['/', '\\'])).then_some(whole)
}

/// Finds the data files of `split` in a directory or a data set on the hub. If there is a `folder`, only files below it count. A
/// path of a file resolves to that file. Downloads report to `on_progress`.
///
/// # Errors
/// As for [`resolve`].
pub fn resolve_split(name: &str, folder: Option<&str>, split: &str, on_progress: OnProgress<'_>) -> Result<Source> {
    let path = Path::new(name);
    if path.exists() {
        let inner = folder.map(|folder| path.join(folder)).filter(|inner| inner.is_dir());
        return local(inner.as_deref().unwrap_or(path), Some(split));
    }
    if looks_like_hub_name(name) {
        return hub_rows::fetch(name, folder, Some(split), on_progress);
    }
    Err(Error::data(path, None, "no such file or directory"))
}

/// Finds the files of `split` below a directory whose names (without `.gz`) satisfy `accepts_name`, in name order. A path of a file
/// resolves to that file. This is for data sets of plain text; nothing is downloaded.
///
/// # Errors
/// If the directory cannot be read.
pub fn text_files(path: &Path, split: &str, accepts_name: &dyn Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let is_selected = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        accepts_name(name.strip_suffix(".gz").unwrap_or(name))
    };
    if !path.is_dir() {
        return Ok(if is_selected(path) { vec![path.to_owned()] } else { Vec::new() });
    }
    let mut files = Vec::new();
    collect(path, &mut Vec::new(), &is_selected, &mut files)?;
    files.retain(|file| {
        let inside = file.strip_prefix(path).unwrap_or(file);
        split_of(&inside.to_string_lossy()).as_deref() == Some(canonical(split).unwrap_or(split))
    });
    files.sort();
    Ok(files)
}

/// Returns whether a name has the form `owner/name` or `name`, without anything that only paths have.
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
    // This includes pipes and devices, such as `/dev/stdin`.
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

/// Returns the data files of a directory in reading order, or its text files if it has no data files.
fn data_files(path: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    collect(path, &mut Vec::new(), &is_data_file, &mut files)?;
    if files.is_empty() {
        collect(path, &mut Vec::new(), &is_text_file, &mut files)?;
    }
    files.sort();
    in_order_of_lists(files)
}

/// Orders sorted files for reading: the files of a directory with a list are replaced by that list, in its order.
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
            // The first file of the directory adds the whole list.
            Some(listed) => ordered.append(listed),
            None => ordered.push(file),
        }
    }
    Ok(ordered)
}

fn is_arrow(path: &Path) -> bool {
    extension(path).as_deref() == Some("arrow")
}

/// Adds the matching files below `directory`. `above` holds its parents: a link to one of them is a cycle and is not followed.
fn collect(
    directory: &Path,
    above: &mut Vec<PathBuf>,
    is_selected: &dyn Fn(&Path) -> bool,
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
            collect(&path, above, is_selected, files)?;
        } else if is_selected(&path) {
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
