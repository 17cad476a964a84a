//! Data sets on the Hugging Face hub, through its cache.

use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiError};

use super::splits::{Source, choose, is_data_file};
use crate::Result;
use crate::hub::{OnHub, OnProgress};

/// Downloads the files of one split, or finds them in the cache if there is no network. With `folder`, only files below it count.
pub(super) fn fetch(
    name: &str,
    folder: Option<&str>,
    split: Option<&str>,
    on_progress: OnProgress<'_>,
) -> Result<Source> {
    let on_hub = OnHub { name, is_model: false };
    let download = |api: &Api| download(api, on_hub, folder, split, on_progress);
    on_hub.fetched_or_cached(download, || Ok(cached(on_hub, folder, split)?.map(Ok)))?
}

/// Keeps only the files below `folder`, if there are any.
fn keep_folder(files: &mut Vec<String>, folder: Option<&str>) {
    let is_below = |file: &String| folder.is_some_and(|folder| Path::new(file).starts_with(folder));
    if files.iter().any(is_below) {
        files.retain(is_below);
    }
}

fn download(
    api: &Api,
    on_hub: OnHub<'_>,
    folder: Option<&str>,
    split: Option<&str>,
    on_progress: OnProgress<'_>,
) -> Result<Result<Source>, ApiError> {
    let mut files = on_hub.files(api)?;
    files.retain(|file| is_data_file(Path::new(file)));
    files.sort();
    keep_folder(&mut files, folder);
    let mut source = match choose(Path::new(on_hub.name), &files, split) {
        Ok(source) => source,
        Err(error) => return Ok(Err(error)),
    };
    for file in &mut source.files {
        *file = on_hub.get(api, &file.to_string_lossy(), on_progress)?;
    }
    Ok(Ok(source))
}

/// Returns the cached snapshot of the data set's main branch.
fn cached(on_hub: OnHub<'_>, folder: Option<&str>, split: Option<&str>) -> Result<Option<Source>> {
    let Some(snapshot) = on_hub.snapshot() else { return Ok(None) };
    let mut files = Vec::new();
    list(&snapshot, PathBuf::new(), &mut files);
    if files.is_empty() {
        return Ok(None);
    }
    files.sort();
    keep_folder(&mut files, folder);
    let source = choose(Path::new(on_hub.name), &files, split)?;
    Ok(Some(Source { files: source.files.iter().map(|f| snapshot.join(f)).collect(), ..source }))
}

fn list(root: &Path, inside: PathBuf, files: &mut Vec<String>) {
    for entry in std::fs::read_dir(root.join(&inside)).into_iter().flatten().flatten() {
        let path = inside.join(entry.file_name());
        if root.join(&path).is_dir() {
            list(root, path, files);
        } else if is_data_file(&path) {
            files.push(path.to_string_lossy().into_owned());
        }
    }
}
