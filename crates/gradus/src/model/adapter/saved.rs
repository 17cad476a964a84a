//! Adapters on disk: `adapter_config.json` and `adapter_model.safetensors`, under peft's names.

use std::path::Path;

use burn::tensor::Device;

use super::{CONFIG_FILE, PEFT_PREFIX, PeftConfig, TENSORS_FILE};
use crate::error::{Error, Result};
use crate::model::build::{Builder, Init};
use crate::model::checkpoint::Checkpoint;
use crate::model::directory::ModelDir;
use crate::model::parameters::{SharedTensor, shared_tensors};
use crate::model::save::write_safetensors;
use crate::model::scalar_head::ScalarHead;
use crate::model::trunk::{Family, Trunk};

/// The tensors of an adapter, asked for one by one.
pub(crate) struct AdapterTensors {
    file: Checkpoint,
}

impl AdapterTensors {
    /// Opens the tensors in `directory`.
    ///
    /// # Errors
    /// When there are none, or the file is damaged.
    pub(crate) fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(TENSORS_FILE);
        if !path.exists() {
            let error = Error::model(directory, format!("no `{TENSORS_FILE}`"));
            return Err(match directory.join("adapter_model.bin").exists() {
                true => error.with_hint(
                    "`adapter_model.bin` is a pickle and is never opened; save the adapter again with a newer peft",
                ),
                false => error.with_hint("an adapter holds `adapter_config.json` and `adapter_model.safetensors`"),
            });
        }
        Ok(Self { file: Checkpoint::of_files(directory, vec![path], "")? })
    }

    /// The tensor `name` of this shape; what is wrong with it is reported by [`finish`](Self::finish).
    pub(super) fn take(&mut self, name: &str, shape: &[usize]) -> Option<Vec<f32>> {
        self.file.fitting(name, shape, Init::Constant(0.0))
    }

    /// The head that was trained with the adapter, where there is one.
    pub(crate) fn score(&mut self, width: usize, device: &Device) -> Option<ScalarHead> {
        let mut b = Builder::new(&mut self.file, device);
        let b = b.enter(format!("{PEFT_PREFIX}score"));
        let is_there = b.holds("weight") || b.holds("dense.weight");
        is_there.then(|| ScalarHead::build(b, width, Init::Constant(0.0)))
    }

    /// Everything that was missing, misshapen or left over, as one error.
    ///
    /// # Errors
    /// When there is any.
    pub(crate) fn finish(self) -> Result<()> {
        self.file.finish_against(CONFIG_FILE)
    }
}

/// Writes the adapter on `trunk` into the existing directory `to`, with the tokenizer of `source`; `score` is the head that
/// was trained with it.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn save(
    trunk: &Trunk,
    score: Option<&ScalarHead>,
    config: &PeftConfig,
    source: &ModelDir,
    to: &Path,
) -> Result<()> {
    let prefix = Family::of(source)?.base_prefix();
    let mut tensors = Vec::new();
    // Layers are only lent for changing; a copy shares all weights.
    for (name, linear) in trunk.clone().linears_mut() {
        let Some(lora) = &linear.lora else { continue };
        let name = format!("{PEFT_PREFIX}{prefix}{name}");
        tensors.push(SharedTensor::new(format!("{name}.lora_A.weight"), lora.lora_a.val()));
        tensors.push(SharedTensor::new(format!("{name}.lora_B.weight"), lora.lora_b.val()));
        if let Some(magnitude) = &lora.magnitude {
            tensors.push(SharedTensor::new(format!("{name}.lora_magnitude_vector"), magnitude.val()));
        }
    }
    for mut tensor in score.map(shared_tensors).unwrap_or_default() {
        tensor.name = format!("{PEFT_PREFIX}score.{}", tensor.name);
        tensors.push(tensor);
    }
    write_safetensors(&tensors.iter().collect::<Vec<_>>(), &to.join(TENSORS_FILE))?;
    let path = to.join(CONFIG_FILE);
    std::fs::write(&path, config.to_text()).map_err(|source| Error::io(path, source))?;
    source.copy_tokenizer(to)
}
