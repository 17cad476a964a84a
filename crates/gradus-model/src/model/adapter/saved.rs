//! Adapters on disk: `adapter_config.json` and `adapter_model.safetensors`, under peft's names.

use std::path::Path;

use burn::tensor::Device;

use super::peft::{CONFIG_FILE, HEAD, PeftConfig};
use crate::error::{Error, Result};
use crate::model::build::{Builder, Init, Source};
use crate::model::checkpoint::Checkpoint;
use crate::model::directory::ModelDir;
use crate::model::layers::Layers;
use crate::model::parameters::{SharedTensor, write_safetensors};
use crate::model::scalar_head::ScalarHead;

/// File of an adapter's tensors.
pub(crate) const TENSORS_FILE: &str = "adapter_model.safetensors";

/// Name prefix that peft gives to a model's modules.
pub(super) const PEFT_PREFIX: &str = "base_model.model.";

/// Tensors of an adapter, read one at a time.
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

    /// Reads the tensor `name` of this shape. [`finish`](Self::finish) reports problems with it.
    pub(super) fn take(&mut self, name: &str, shape: &[usize]) -> Option<Vec<f32>> {
        self.file.fitting(name, shape, Init::Constant(0.0))
    }

    /// Reads the head that peft saves with the adapter of a head, of `outputs` and `inputs`, if there is one.
    pub(crate) fn base_head(&mut self, (outputs, inputs): (usize, usize)) -> Option<Vec<f32>> {
        let name = format!("{PEFT_PREFIX}{HEAD}.base_layer.weight");
        if self.file.has(&name) { self.take(&name, &[outputs, inputs]) } else { None }
    }

    /// Whether the file has the tensor `name` of the model's head.
    pub(crate) fn holds_head(&self, name: &str) -> bool {
        self.file.has(&format!("{PEFT_PREFIX}{name}"))
    }

    /// Returns a layer with a low-rank part for which `is_sought` is true.
    pub(crate) fn adapted_layer(&self, is_sought: impl Fn(&str) -> bool) -> Option<&str> {
        let mut layers =
            self.file.names().filter_map(|name| name.strip_prefix(PEFT_PREFIX)?.strip_suffix(".lora_A.weight"));
        layers.find(|layer| is_sought(layer))
    }

    /// Number of outputs of the last layer of the head, for a classifier on an encoder.
    pub(crate) fn outputs(&self) -> Option<usize> {
        let names = ["classifier.weight", "classifier.out_proj.weight", "score.weight"];
        let found = names.iter().map(|name| format!("{PEFT_PREFIX}{name}")).find(|name| self.file.has(name))?;
        self.file.shape(&found).first().copied()
    }

    /// Returns a source of the head's tensors: those of the adapter take precedence over those of `base`.
    pub(crate) fn over<'a>(&'a mut self, base: &'a mut Checkpoint) -> HeadTensors<'a> {
        HeadTensors { adapter: self, base }
    }

    /// Reads the head that was trained with the adapter, if there is one.
    pub(crate) fn score(&mut self, width: usize, device: &Device) -> Option<ScalarHead> {
        let mut b = Builder::new(&mut self.file, device);
        let b = b.enter(format!("{PEFT_PREFIX}score"));
        let is_there = b.holds("weight") || b.holds("dense.weight");
        is_there.then(|| ScalarHead::build(b, width, Init::Constant(0.0)))
    }

    /// Reports all missing, misshapen and unexpected tensors as one error.
    ///
    /// # Errors
    /// When there are any.
    pub(crate) fn finish(self) -> Result<()> {
        self.file.finish_against(CONFIG_FILE)
    }
}

/// Source of the head of a model with an adapter.
pub(crate) struct HeadTensors<'a> {
    adapter: &'a mut AdapterTensors,
    base: &'a mut Checkpoint,
}

impl Source for HeadTensors<'_> {
    fn values(&mut self, name: &str, shape: &[usize], init: Init) -> Option<Vec<f32>> {
        // If neither has the tensor, the adapter reports it as missing.
        if self.adapter.holds_head(name) || !self.base.holds(name) {
            return self.adapter.file.values(&format!("{PEFT_PREFIX}{name}"), shape, init);
        }
        self.base.values(name, shape, init)
    }

    fn holds(&self, name: &str) -> bool {
        self.adapter.holds_head(name) || self.base.holds(name)
    }
}

/// Writes the adapter on `below` into the existing directory `to`, with the tokenizer of `source`. `heads` are the heads that were trained
/// with it, under their names in the model.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn save<B: Layers + Clone>(
    below: &B,
    heads: Vec<SharedTensor>,
    config: &PeftConfig,
    source: &ModelDir,
    to: &Path,
) -> Result<()> {
    let prefix = source.base_prefix()?;
    let mut tensors = Vec::new();
    // Layers are only accessible through a mutable reference; the clone shares all weights.
    for (name, linear) in below.clone().linears_mut() {
        let Some(lora) = &linear.lora else { continue };
        let name = format!("{PEFT_PREFIX}{prefix}{name}");
        tensors.push(SharedTensor::new(format!("{name}.lora_A.weight"), lora.lora_a.val()));
        tensors.push(SharedTensor::new(format!("{name}.lora_B.weight"), lora.lora_b.val()));
        if let Some(magnitude) = &lora.magnitude {
            tensors.push(SharedTensor::new(format!("{name}.lora_magnitude_vector"), magnitude.val()));
        }
    }
    for mut tensor in heads {
        tensor.name = format!("{PEFT_PREFIX}{}", tensor.name);
        tensors.push(tensor);
    }
    write_safetensors(&tensors.iter().collect::<Vec<_>>(), &to.join(TENSORS_FILE))?;
    let path = to.join(CONFIG_FILE);
    std::fs::write(&path, config.to_text()).map_err(|source| Error::io(path, source))?;
    source.copy_tokenizer(to)
}
