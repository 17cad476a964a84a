//! Resolution of `--model` to a directory: a path, a run, or a name on the Hugging Face hub, downloaded through its cache.

use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiError};

use crate::error::{Error, Result};
use crate::hub::{OnHub, OnProgress};
use crate::run::RunDir;

/// Returns the directory of the model `name`: the path itself, the [model](model_of) of a run, or the hub's snapshot, downloaded if
/// necessary.
///
/// Pickled weights are downloaded only if the model has no safetensors.
///
/// # Errors
/// [`Error::Model`] when a path does not exist, or is a run without a model. [`Error::Network`] when the hub cannot be reached or has no
/// such model.
pub fn resolve(name: &str, on_progress: OnProgress<'_>) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.exists() {
        return model_of(path);
    }
    if path.ends_with("best") && path.parent().is_some_and(|run| run.join("metrics.jsonl").is_file()) {
        return Err(Error::model(path, "the run has no `best/`: no evaluation beat its start, or none was made")
            .with_hint("its last weights are in `model/`, earlier ones in `checkpoints/`"));
    }
    if !is_hub_name(name) {
        return Err(Error::model(path, "no such model directory")
            .with_hint("a model directory holds `config.json` and `model.safetensors`"));
    }
    let on_hub = OnHub { name, is_model: true };
    on_hub.fetched_or_cached(|api| fetch(api, on_hub, on_progress), || Ok(cached(on_hub)))
}

/// Returns the model of a path. For a run, that is its final model, else its best, else its newest checkpoint.
///
/// # Errors
/// When the path is a run without a model so far.
pub fn model_of(path: &Path) -> Result<PathBuf> {
    let is_model = |path: &Path| path.join("config.json").is_file() || path.join("adapter_config.json").is_file();
    if !path.is_dir() || is_model(path) {
        return Ok(path.to_owned());
    }
    let Ok(run) = RunDir::open(path) else { return Ok(path.to_owned()) };
    let newest = run.checkpoint_steps()?.last().map(|&step| run.checkpoint(step));
    let found = [Some(run.model()), Some(run.best()), newest].into_iter().flatten().find(|path| is_model(path));
    found.ok_or_else(|| {
        Error::model(path, "a run without a model: it has neither `model/` nor `best/` nor a checkpoint")
            .with_hint("resume it until its first checkpoint")
    })
}

/// Whether `name` is `owner/name` or `name`, without characters that only paths have.
fn is_hub_name(name: &str) -> bool {
    let is_legal = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    name.split('/').count() <= 2 && name.split('/').all(is_legal)
}

fn fetch(api: &Api, on_hub: OnHub<'_>, on_progress: OnProgress<'_>) -> Result<PathBuf, ApiError> {
    let files = on_hub.files(api)?;
    // One complete set of weights is enough: safetensors if there are any, shards if there is an index.
    let has = |name: &str| files.iter().any(|file| file == name);
    let is_sharded = has("model.safetensors.index.json");
    let is_torch_alone = !is_sharded && !has("model.safetensors") && !has("adapter_model.safetensors");
    let is_torch_sharded = has("pytorch_model.bin.index.json");
    let is_selected = |file: &str| match file.rsplit_once('.').map(|(_, extension)| extension) {
        _ if file.contains('/') && !file.starts_with("additional_chat_templates/") => false,
        Some("safetensors") => {
            file == "model.safetensors"
                || file == "adapter_model.safetensors"
                || (is_sharded && file.starts_with("model-"))
        }
        Some("bin") if is_torch_alone => {
            file == "pytorch_model.bin" || (is_torch_sharded && file.starts_with("pytorch_model-"))
        }
        Some("json" | "txt" | "model" | "jinja") => true,
        // The model card, which names the license.
        Some("md") => file == "README.md",
        _ => false,
    };
    let mut directory = None;
    for file in files.iter().filter(|file| is_selected(file)) {
        let path = on_hub.get(api, file, on_progress)?;
        if matches!(file.as_str(), "config.json" | "adapter_config.json") {
            directory = path.parent().map(Path::to_path_buf);
        }
    }
    directory.ok_or_else(|| ApiError::InvalidHeader("config.json"))
}

/// Returns the snapshot in the cache, if it holds a configuration.
fn cached(on_hub: OnHub<'_>) -> Option<PathBuf> {
    let snapshot = on_hub.snapshot()?;
    let holds = |file: &str| snapshot.join(file).exists();
    (holds("config.json") || holds("adapter_config.json")).then_some(snapshot)
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
