//! Metadata that `datasets` writes next to saved rows: which files of a directory are rows, and which directories are splits.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Error, Result, files};

/// File in the directory of a saved data set that lists its files.
const STATE: &str = "state.json";
/// File in the directory of several saved data sets that lists one directory per split.
const SPLITS: &str = "dataset_dict.json";

/// Returns whether a file is a cached result of `datasets` or an index file with an order of rows. Neither holds rows of the
/// data set.
pub(super) fn is_cache(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.ends_with(".arrow") && (name.starts_with("cache-") || name.starts_with("indices"))
}

/// Returns the splits of a directory that `DatasetDict.save_to_disk` wrote, or `None` for other directories.
///
/// # Errors
/// If the list of splits cannot be read.
pub(super) fn splits(directory: &Path) -> Result<Option<Vec<String>>> {
    let path = directory.join(SPLITS);
    let Some(found) = read(&path)? else { return Ok(None) };
    let names = found.get("splits").and_then(Value::as_array);
    let names = names.and_then(|names| names.iter().map(|name| name.as_str().filter(|name| is_name(name))).collect());
    let names: Option<Vec<&str>> = names;
    let names = names.ok_or_else(|| invalid(&path, "expected a list of directories under `splits`"))?;
    Ok(Some(names.into_iter().map(str::to_owned).collect()))
}

/// Returns the files of a directory that `Dataset.save_to_disk` wrote, in the order of the rows, or `None` for other directories.
///
/// # Errors
/// If the list of files cannot be read, or a listed file is missing.
pub(super) fn files(directory: &Path) -> Result<Option<Vec<PathBuf>>> {
    let path = directory.join(STATE);
    let Some(state) = read(&path)? else { return Ok(None) };
    // Other programs use this file name, too.
    let Some(listed) = state.get("_data_files") else { return Ok(None) };
    let name = |file: &Value| file.get("filename")?.as_str().filter(|name| is_name(name)).map(str::to_owned);
    let names: Option<Vec<String>> = listed.as_array().and_then(|files| files.iter().map(name).collect());
    let names =
        names.ok_or_else(|| invalid(&path, "expected a list of files with a `filename` under `_data_files`"))?;
    let files: Vec<PathBuf> = names.iter().map(|name| directory.join(name)).collect();
    match files.iter().find(|file| !file.is_file()) {
        Some(missing) => {
            Err(Error::data(missing, None, format!("the file is missing, but `{STATE}` next to it lists it"))
                .with_hint("the directory is not complete; copy it again"))
        }
        None => Ok(Some(files)),
    }
}

/// Returns whether a name stays within its directory.
fn is_name(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|only| only == name)
}

fn read(path: &Path) -> Result<Option<Value>> {
    if !path.is_file() {
        return Ok(None);
    }
    let bytes = files::read(path, files::SETTINGS_BYTES).map_err(|e| Error::io(path, e))?;
    serde_json::from_slice(&bytes).map(Some).map_err(|e| invalid(path, &format!("not valid JSON: {e}")))
}

fn invalid(path: &Path, what: &str) -> Error {
    Error::data(path, None, what).with_hint("`save_to_disk` of `datasets` writes this file; save the data set again")
}
