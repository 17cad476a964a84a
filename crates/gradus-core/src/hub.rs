//! Shared code for models and data sets on the Hugging Face hub: the cache, downloads with progress, and errors.

use std::path::PathBuf;

use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};

use crate::error::Error;

/// Callback of a download: the file, bytes so far, bytes in total.
pub type OnProgress<'a> = &'a mut dyn FnMut(&str, usize, usize);

/// A repository on the hub: its name, and whether it holds a model.
#[derive(Debug, Clone, Copy)]
pub struct OnHub<'n> {
    /// Name, such as `Qwen/Qwen3-0.6B`.
    pub name: &'n str,
    /// Whether it is a model; if not, it is a data set.
    pub is_model: bool,
}

impl OnHub<'_> {
    fn repo(self) -> Repo {
        let kind = if self.is_model { RepoType::Model } else { RepoType::Dataset };
        Repo::new(self.name.to_owned(), kind)
    }

    /// Returns the copy that `fetch` downloads from the hub, or else the one in the cache.
    ///
    /// # Errors
    /// [`Error::Network`] if neither is available.
    #[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
    pub fn fetched_or_cached<T>(
        self,
        fetch: impl FnOnce(&Api) -> Result<T, ApiError>,
        cached: impl FnOnce() -> crate::Result<Option<T>>,
    ) -> crate::Result<T> {
        let is_set = |value: String| !matches!(value.as_str(), "" | "0" | "false" | "False");
        if std::env::var("HF_HUB_OFFLINE").is_ok_and(is_set) {
            return cached()?.ok_or_else(|| self.unreachable("`HF_HUB_OFFLINE` is set and it is not in the cache"));
        }
        match ApiBuilder::from_env().with_progress(false).build().and_then(|api| fetch(&api)) {
            Ok(found) => Ok(found),
            Err(error) => cached()?.ok_or_else(|| self.unreachable(&self.explain(&error))),
        }
    }

    /// Returns the names of its files.
    ///
    /// # Errors
    /// If the hub cannot be reached or has no such repository.
    pub fn files(self, api: &Api) -> Result<Vec<String>, ApiError> {
        Ok(api.repo(self.repo()).info()?.siblings.into_iter().map(|file| file.rfilename).collect())
    }

    /// Returns the path of one of its files; downloads it unless it is in the cache.
    ///
    /// # Errors
    /// If the download fails.
    pub fn get(self, api: &Api, file: &str, on_progress: OnProgress<'_>) -> Result<PathBuf, ApiError> {
        match Cache::from_env().repo(self.repo()).get(file) {
            Some(path) => Ok(path),
            None => {
                let watcher = Watcher { file: file.to_owned(), done: 0, total: 0, on_progress };
                api.repo(self.repo()).download_with_progress(file, watcher)
            }
        }
    }

    /// Returns the cached snapshot of its main branch.
    pub fn snapshot(self) -> Option<PathBuf> {
        let folder = Cache::from_env().path().join(self.repo().folder_name());
        let commit = std::fs::read_to_string(folder.join("refs").join("main")).ok()?;
        Some(folder.join("snapshots").join(commit.trim()))
    }

    fn kind(self) -> &'static str {
        if self.is_model { "model" } else { "data set" }
    }

    fn explain(self, error: &ApiError) -> String {
        let text = error.to_string();
        match error {
            ApiError::InvalidHeader("config.json") => "the hub's copy has no `config.json`".into(),
            _ if text.contains("404") || text.contains("401") => {
                format!("the hub has no such public {} (private ones need a login)", self.kind())
            }
            _ if ["lookup", "dns", "resolve"].iter().any(|word| text.to_lowercase().contains(word)) => {
                "the hub cannot be reached: there is no network".into()
            }
            _ => format!("the hub could not be reached: {text}"),
        }
    }

    fn unreachable(self, message: &str) -> Error {
        let Self { name, is_model } = self;
        let (here, instead) = if is_model { ("directory", "directory") } else { ("file or directory", "path") };
        let run = std::path::Path::new("runs").join(name);
        let hint = match is_model && run.is_dir() {
            true => format!("there is a run `{}`; did you mean it?", run.display()),
            false => {
                format!(
                    "`{name}` is not a local {here}, so it was read as a hub name; without a network, pass a {instead}"
                )
            }
        };
        let parent = std::path::Path::new(name).parent().filter(|parent| !parent.as_os_str().is_empty());
        let message = match parent.filter(|parent| parent.is_dir()) {
            Some(parent) => format!("there is no `{name}` in `{}`, and {message}", parent.display()),
            None => message.to_owned(),
        };
        Error::Network { what: format!("{} `{name}`", self.kind()), message, hint: Some(hint) }
    }
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
