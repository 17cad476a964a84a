//! Data sets on the Hugging Face hub, through its cache.

use std::path::{Path, PathBuf};

use hf_hub::api::sync::{ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};

use super::source::{Source, choose, is_data_file};
use crate::{Error, Result};

/// Downloads the files of one split, or finds them in the cache when there is no network.
pub(super) fn fetch(name: &str, split: Option<&str>) -> Result<Source> {
    let offline = std::env::var("HF_HUB_OFFLINE").is_ok_and(|v| !matches!(v.as_str(), "" | "0" | "false" | "False"));
    if offline {
        return cached(name, split)?
            .ok_or_else(|| unreachable(name, "`HF_HUB_OFFLINE` is set and it is not in the cache"));
    }
    match download(name, split) {
        Ok(source) => source,
        Err(error) => match cached(name, split)? {
            Some(source) => Ok(source),
            None => Err(unreachable(name, &explain(&error))),
        },
    }
}

fn download(name: &str, split: Option<&str>) -> Result<Result<Source>, ApiError> {
    let api = ApiBuilder::from_env().with_progress(false).build()?.dataset(name.to_owned());
    let files: Vec<String> = api
        .info()?
        .siblings
        .into_iter()
        .map(|file| file.rfilename)
        .filter(|file| is_data_file(Path::new(file)))
        .collect();
    let mut source = match choose(Path::new(name), &files, split) {
        Ok(source) => source,
        Err(e) => return Ok(Err(e)),
    };
    for file in &mut source.files {
        *file = api.get(&file.to_string_lossy())?;
    }
    Ok(Ok(source))
}

/// The snapshot the cache holds of the data set's main branch.
fn cached(name: &str, split: Option<&str>) -> Result<Option<Source>> {
    let folder = Cache::from_env().path().join(Repo::new(name.to_owned(), RepoType::Dataset).folder_name());
    let Ok(commit) = std::fs::read_to_string(folder.join("refs").join("main")) else {
        return Ok(None);
    };
    let snapshot = folder.join("snapshots").join(commit.trim());
    let mut files = Vec::new();
    list(&snapshot, PathBuf::new(), &mut files);
    if files.is_empty() {
        return Ok(None);
    }
    let source = choose(Path::new(name), &files, split)?;
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

fn explain(error: &ApiError) -> String {
    let text = error.to_string();
    if text.contains("404") || text.contains("401") {
        return "the hub has no such public data set (private ones need a login)".into();
    }
    format!("the hub could not be reached: {text}")
}

fn unreachable(name: &str, message: &str) -> Error {
    Error::Network {
        what: format!("data set `{name}`"),
        message: message.to_owned(),
        hint: Some(format!(
            "`{name}` is no file or directory here, so it was taken for a hub name; without a network, give a path"
        )),
    }
}
