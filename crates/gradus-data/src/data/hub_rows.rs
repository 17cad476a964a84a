//! Data sets on the Hugging Face hub, through its cache.

use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiError};

use super::dataset_card::{CARD, configs};
use super::splits::{Source, choose, is_data_file, is_text_file};
use crate::Result;
use crate::hub::{OnHub, OnProgress};

/// Downloads the files that `parts` names (see [`choose`]), or finds them in the cache if there is no network. With `folder`, only files
/// below it count.
pub(super) fn fetch(name: &str, folder: Option<&str>, parts: &[&str], on_progress: OnProgress<'_>) -> Result<Source> {
    let on_hub = OnHub { name, is_model: false };
    let download = |api: &Api| download(api, on_hub, folder, parts, on_progress);
    on_hub.fetched_or_cached(download, || Ok(cached(on_hub, folder, parts)?.map(Ok)))?
}

/// Keeps only the files below `folder`, if there are any. Returns whether it did.
fn keep_folder(files: &mut Vec<String>, folder: Option<&str>) -> bool {
    let is_below = |file: &String| folder.is_some_and(|folder| Path::new(file).starts_with(folder));
    let has_folder = files.iter().any(is_below);
    if has_folder {
        files.retain(is_below);
    }
    has_folder
}

fn download(
    api: &Api,
    on_hub: OnHub<'_>,
    folder: Option<&str>,
    parts: &[&str],
    on_progress: OnProgress<'_>,
) -> Result<Result<Source>, ApiError> {
    let mut files = on_hub.files(api)?;
    let has_card = files.iter().any(|file| file == CARD);
    files.retain(|file| has_rows(Path::new(file)));
    files.sort();
    // A folder replaces the header of the card.
    let card = match !keep_folder(&mut files, folder) && has_card {
        true => Some(on_hub.get(api, CARD, on_progress)?),
        false => None,
    };
    let configs = card.map_or_else(|| Ok(Vec::new()), |card| configs(&card));
    let chosen = configs.and_then(|configs| choose(Path::new(on_hub.name), &configs, &files, parts));
    let mut source = match chosen {
        Ok(source) => source,
        Err(error) => return Ok(Err(error)),
    };
    for file in &mut source.files {
        *file = on_hub.get(api, &file.to_string_lossy(), on_progress)?;
    }
    Ok(Ok(source))
}

/// Returns the cached snapshot of the data set's main branch.
fn cached(on_hub: OnHub<'_>, folder: Option<&str>, parts: &[&str]) -> Result<Option<Source>> {
    let Some(snapshot) = on_hub.snapshot() else { return Ok(None) };
    let mut files = Vec::new();
    list(&snapshot, PathBuf::new(), &mut files);
    if files.is_empty() {
        return Ok(None);
    }
    files.sort();
    let configs = match keep_folder(&mut files, folder) {
        true => Vec::new(),
        false => configs(&snapshot.join(CARD))?,
    };
    let source = choose(Path::new(on_hub.name), &configs, &files, parts)?;
    Ok(Some(Source { files: source.files.iter().map(|f| snapshot.join(f)).collect(), ..source }))
}

fn list(root: &Path, inside: PathBuf, files: &mut Vec<String>) {
    for entry in std::fs::read_dir(root.join(&inside)).into_iter().flatten().flatten() {
        let path = inside.join(entry.file_name());
        if root.join(&path).is_dir() {
            list(root, path, files);
        } else if has_rows(&path) {
            files.push(path.to_string_lossy().into_owned());
        }
    }
}

fn has_rows(path: &Path) -> bool {
    is_data_file(path) || is_text_file(path)
}
