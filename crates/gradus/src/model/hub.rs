//! From what `--model` says to a directory: a path, or a name on the Hugging Face hub, fetched through its cache.

use std::path::{Path, PathBuf};

use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};

use super::ModelDir;
use crate::error::{Error, Result};

/// What a download tells its watcher: the file, bytes so far, bytes in all.
pub type OnProgress<'a> = &'a mut dyn FnMut(&str, usize, usize);

/// The directory of the model `name`: itself when it is a path, else the hub's snapshot, downloaded where needed.
///
/// Pickled weights are never fetched.
///
/// # Errors
/// [`Error::Model`] when a path does not exist; [`Error::Network`] when the hub cannot be reached or has no such model.
pub fn resolve(name: &str, on_progress: OnProgress<'_>) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(path.into());
    }
    if !is_hub_name(name) {
        return Err(Error::model(path, "no such model directory")
            .with_hint("a model directory holds `config.json` and `model.safetensors`"));
    }
    let is_offline = std::env::var("HF_HUB_OFFLINE").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"));
    if is_offline {
        return cached(name).ok_or_else(|| unreachable(name, "`HF_HUB_OFFLINE` is set and it is not in the cache"));
    }
    match ApiBuilder::from_env().with_progress(false).build().and_then(|api| fetch(&api, name, on_progress)) {
        Ok(directory) => Ok(directory),
        Err(error) => cached(name).ok_or_else(|| unreachable(name, &explain(&error))),
    }
}

/// The directory of a model given by name or path.
///
/// # Errors
/// When there is none, or it is not a model's.
pub fn open_model(name: &str) -> Result<ModelDir> {
    ModelDir::open(&resolve(name, &mut |_, _, _| {})?)
}

/// `owner/name` or `name`, without anything that only paths have.
fn is_hub_name(name: &str) -> bool {
    let is_legal = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    name.split('/').count() <= 2 && name.split('/').all(is_legal)
}

fn fetch(api: &Api, name: &str, on_progress: OnProgress<'_>) -> Result<PathBuf, ApiError> {
    let repo = api.model(name.to_owned());
    let files: Vec<String> = repo.info()?.siblings.into_iter().map(|file| file.rfilename).collect();
    // One whole set of weights is enough: shards where there is an index, never a second copy in another format.
    let is_sharded = files.iter().any(|file| file == "model.safetensors.index.json");
    let is_wanted = |file: &str| match file.rsplit_once('.').map(|(_, extension)| extension) {
        _ if file.contains('/') && !file.starts_with("additional_chat_templates/") => false,
        Some("safetensors") => {
            file == "model.safetensors"
                || file == "adapter_model.safetensors"
                || (is_sharded && file.starts_with("model-"))
        }
        Some("json" | "txt" | "model" | "jinja") => true,
        _ => false,
    };
    let mut directory = None;
    for file in files.iter().filter(|file| is_wanted(file)) {
        let watcher = Watcher { file: file.clone(), done: 0, total: 0, on_progress };
        let path = match Cache::from_env().repo(Repo::model(name.to_owned())).get(file) {
            Some(path) => path,
            None => repo.download_with_progress(file, watcher)?,
        };
        if matches!(file.as_str(), "config.json" | "adapter_config.json") {
            directory = path.parent().map(Path::to_path_buf);
        }
    }
    directory.ok_or_else(|| ApiError::InvalidHeader("config.json"))
}

struct Watcher<'a> {
    file: String,
    done: usize,
    total: usize,
    on_progress: OnProgress<'a>,
}

impl Progress for Watcher<'_> {
    fn init(&mut self, size: usize, _: &str) {
        self.total = size;
        (self.on_progress)(&self.file, 0, size);
    }

    fn update(&mut self, size: usize) {
        self.done += size;
        (self.on_progress)(&self.file, self.done, self.total);
    }

    fn finish(&mut self) {
        (self.on_progress)(&self.file, self.total, self.total);
    }
}

/// The snapshot in the cache, when it holds a configuration.
fn cached(name: &str) -> Option<PathBuf> {
    let folder = Cache::from_env().path().join(Repo::new(name.to_owned(), RepoType::Model).folder_name());
    let commit = std::fs::read_to_string(folder.join("refs").join("main")).ok()?;
    let snapshot = folder.join("snapshots").join(commit.trim());
    let holds = |file: &str| snapshot.join(file).exists();
    (holds("config.json") || holds("adapter_config.json")).then_some(snapshot)
}

fn explain(error: &ApiError) -> String {
    let text = error.to_string();
    match error {
        ApiError::InvalidHeader("config.json") => "the hub's copy has no `config.json`".into(),
        _ if text.contains("404") || text.contains("401") => {
            "the hub has no such public model (private ones need a login)".into()
        }
        _ => format!("the hub could not be reached: {text}"),
    }
}

fn unreachable(name: &str, message: &str) -> Error {
    Error::Network {
        what: format!("model `{name}`"),
        message: message.into(),
        hint: Some(format!(
            "`{name}` is no directory here, so it was taken for a hub name; without a network, give a directory"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_names_are_told_from_paths() {
        for (name, is_hub) in
            [("Qwen/Qwen3-0.6B", true), ("gpt2", true), ("./gpt2", false), ("a/b/c", false), ("/x", false)]
        {
            assert_eq!(is_hub_name(name), is_hub, "{name}");
        }
        let error = resolve("no/such/dir", &mut |_, _, _| {}).expect_err("no such directory");
        assert_eq!(error.to_string(), "no/such/dir: no such model directory");
    }
}
