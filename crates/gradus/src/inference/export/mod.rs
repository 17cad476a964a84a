//! Export of a model to llama.cpp's file format GGUF, with its tokenizer, chat template and stop ids.
//!
//! An adapter is merged into its base first.

mod architecture;
mod blocks;
mod gguf;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::path::PathBuf;

pub use blocks::GgufWeights;
use serde::Serialize;

use super::open;
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::files::output::Outputs;
use crate::model::adapter::Adaptable;
use crate::model::{CausalLm, ModelDir};
use crate::pretrained::{Pretrained, TextFiles};
use crate::text::Tokenizer;
use architecture::Architecture;
use gguf::Value;

/// Settings of an export.
#[derive(Debug, Clone, PartialEq)]
pub struct ExportOptions {
    /// The model: a directory or a hub name, or an adapter's directory, which names its base.
    pub model: String,
    /// Adapter on the model.
    pub adapter: Option<String>,
    /// Format of the weights.
    pub weights: GgufWeights,
    /// Path of the file to write.
    pub output: PathBuf,
    /// Whether an existing file may be replaced.
    pub overwrite: bool,
    /// Files that replace the tokenizer and the chat template.
    pub text: TextFiles,
}

/// Result of an export.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Exported {
    /// Path of the file.
    pub output: PathBuf,
    /// llama.cpp's name of the model family.
    pub architecture: &'static str,
    /// Format of the weights.
    pub weights: GgufWeights,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of weight tensors that stay in f32 because their rows are not whole blocks.
    pub kept_in_f32: usize,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Writes a language model as a GGUF file.
///
/// # Errors
/// If it is not a language model, if its family or tokenizer cannot be written, or if [`Outputs::file`] rejects the output.
pub fn export(options: &ExportOptions) -> Result<Exported> {
    let dir = open(&options.model, options.adapter.as_deref())?;
    let is_read = |path: &PathBuf| path.is_file() && path.extension().is_none_or(|extension| extension != "gguf");
    let read =
        |at: &PathBuf| std::fs::read_dir(at).into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_read);
    let read = std::iter::once(&dir.path).chain(dir.adapter.as_ref().map(|adapter| &adapter.path)).flat_map(read);
    let output = Outputs::new(options.overwrite).reading_all(read).file(&options.output)?;
    // All checks run before weights are read.
    Architecture::of(&dir, true)?;
    let (mut metadata, mut notes) = (Vec::new(), Vec::new());
    let mut add = |key: &str, value: Value| metadata.push((key.to_owned(), value));
    let tokenizer = tokenizer(&dir, options, &mut notes)?;
    let model = CausalLm::load(&dir, &DeviceChoice::cpu().device())?.merged();
    let architecture = Architecture::of(&dir, model.lm_head.is_none())?;
    add("general.architecture", Value::Text(architecture.name.into()));
    add("general.type", Value::Text("model".into()));
    let name = dir.path.file_name().map(|name| name.to_string_lossy().into_owned());
    add("general.name", Value::Text(name.unwrap_or_else(|| architecture.name.into())));
    add("general.file_type", Value::U32(options.weights.file_type()));
    add("general.quantization_version", Value::U32(2));
    metadata.extend(architecture.metadata.clone());
    metadata.extend(tokenizer);
    notes.extend(architecture.notes.clone());
    let tensors = architecture.tensors(&model);
    let kept_in_f32 =
        tensors.iter().filter(|tensor| tensor.dims.len() > 1 && options.weights.of(&tensor.dims) != options.weights);
    let kept_in_f32 = kept_in_f32.count();
    output.write(|file| gguf::write(&metadata, &tensors, options.weights, file))?;
    let bytes = std::fs::metadata(&options.output).map_err(|error| Error::io(&options.output, error))?.len();
    Ok(Exported {
        output: options.output.clone(),
        architecture: architecture.name,
        weights: options.weights,
        tensors: tensors.len(),
        kept_in_f32,
        bytes,
        notes,
    })
}

/// Returns the keys of the tokenizer, or a key that there is none.
fn tokenizer(dir: &ModelDir, options: &ExportOptions, notes: &mut Vec<String>) -> Result<Vec<(String, Value)>> {
    if options.text.tokenizer.is_some() || Tokenizer::is_in(dir.tokenizer_dir()) {
        let size = dir.config.get("vocab_size").and_then(serde_json::Value::as_u64).unwrap_or(0) as usize;
        return vocabulary::metadata(&Pretrained::of(dir.clone(), &options.text)?, size, notes);
    }
    notes.push("there is no tokenizer next to the model: the file reads and writes only ids".into());
    Ok(vec![("tokenizer.ggml.model".into(), Value::Text("no_vocab".into()))])
}
