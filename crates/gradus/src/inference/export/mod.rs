//! A model in the file format of llama.cpp: GGUF, with its tokenizer, its chat template and what ends a completion.
//!
//! An adapter is folded into its base first.

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

/// What to export.
#[derive(Debug, Clone, PartialEq)]
pub struct ExportOptions {
    /// The model: a directory or a hub name; or an adapter's directory, which names its base itself.
    pub model: String,
    /// An adapter on it.
    pub adapter: Option<String>,
    /// How the weights are held.
    pub weights: GgufWeights,
    /// The file to write.
    pub output: PathBuf,
    /// Whether it may replace a file that is there.
    pub overwrite: bool,
    /// What replaces its tokenizer and chat template.
    pub text: TextFiles,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Exported {
    /// The file.
    pub output: PathBuf,
    /// What llama.cpp calls the family.
    pub architecture: &'static str,
    /// How the weights are held.
    pub weights: GgufWeights,
    /// Tensors in it.
    pub tensors: usize,
    /// Tensors of weights that stay in f32 because their rows are no whole blocks.
    pub kept_in_f32: usize,
    /// Its size.
    pub bytes: u64,
    /// What its reader should know.
    pub notes: Vec<String>,
}

/// Writes a language model as a GGUF file.
///
/// # Errors
/// When the model is of another kind, its family or tokenizer cannot be written, or [`Outputs::file`] refuses the output.
pub fn export(options: &ExportOptions) -> Result<Exported> {
    let dir = open(&options.model, options.adapter.as_deref())?;
    let is_read = |path: &PathBuf| path.is_file() && path.extension().is_none_or(|extension| extension != "gguf");
    let read =
        |at: &PathBuf| std::fs::read_dir(at).into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_read);
    let read = std::iter::once(&dir.path).chain(dir.adapter.as_ref().map(|adapter| &adapter.path)).flat_map(read);
    let output = Outputs::new(options.overwrite).reading_all(read).file(&options.output)?;
    // Everything is refused before weights are read.
    Architecture::of(&dir, true)?;
    let (mut facts, mut notes) = (Vec::new(), Vec::new());
    let mut add = |key: &str, value: Value| facts.push((key.to_owned(), value));
    let tokenizer = tokenizer(&dir, options, &mut notes)?;
    let model = CausalLm::load(&dir, &DeviceChoice::cpu().device())?.merged();
    let architecture = Architecture::of(&dir, model.lm_head.is_none())?;
    add("general.architecture", Value::Text(architecture.name.into()));
    add("general.type", Value::Text("model".into()));
    let name = dir.path.file_name().map(|name| name.to_string_lossy().into_owned());
    add("general.name", Value::Text(name.unwrap_or_else(|| architecture.name.into())));
    add("general.file_type", Value::U32(options.weights.file_type()));
    add("general.quantization_version", Value::U32(2));
    facts.extend(architecture.facts.clone());
    facts.extend(tokenizer);
    notes.extend(architecture.notes.clone());
    let tensors = architecture.tensors(&model);
    let kept_in_f32 =
        tensors.iter().filter(|tensor| tensor.dims.len() > 1 && options.weights.of(&tensor.dims) != options.weights);
    let kept_in_f32 = kept_in_f32.count();
    output.write(|file| gguf::write(&facts, &tensors, options.weights, file))?;
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

/// The keys of the tokenizer; of a model without one, that there is none.
fn tokenizer(dir: &ModelDir, options: &ExportOptions, notes: &mut Vec<String>) -> Result<Vec<(String, Value)>> {
    if options.text.tokenizer.is_some() || Tokenizer::is_in(dir.tokenizer_dir()) {
        let size = dir.config.get("vocab_size").and_then(serde_json::Value::as_u64).unwrap_or(0) as usize;
        return vocabulary::facts(&Pretrained::of(dir.clone(), &options.text)?, size);
    }
    notes.push("there is no tokenizer beside the model: the file reads and writes ids alone".into());
    Ok(vec![("tokenizer.ggml.model".into(), Value::Text("no_vocab".into()))])
}
