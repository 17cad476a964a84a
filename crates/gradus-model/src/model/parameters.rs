//! Visiting a model's parameters by name: for saving, counting and optimizing.

use std::borrow::Cow;
use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Tensor, bf16, f16};
use safetensors::tensor::{Dtype, View};

use super::directory::SavedWeights;
use crate::error::Result;
use crate::files::{self, NamedTensor};

/// Tracks the path of names while a module is visited. Enum variants are not part of a name, and neither is the trailing `_` of a field
/// that would otherwise be a keyword (`self_`).
#[derive(Debug, Default)]
pub struct NamePath {
    segments: Vec<Option<String>>,
}

impl NamePath {
    /// Enters a module; `container` is the visitor's argument.
    pub fn enter(&mut self, name: &str, container: &str) {
        self.segments.push((!container.starts_with("Enum:")).then(|| name.trim_end_matches('_').into()));
    }

    /// Leaves the module.
    pub fn exit(&mut self) {
        self.segments.pop();
    }

    /// Returns the segments joined by dots.
    pub fn name(&self) -> String {
        self.segments.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(".")
    }
}

/// A parameter whose values are not copied before they are needed.
#[derive(Debug, Clone)]
pub struct SharedTensor {
    /// Path in the module.
    pub name: String,
    shape: Vec<usize>,
    values: Values,
}

#[derive(Debug, Clone)]
enum Values {
    /// Floats of the model, and their format in the file.
    Shared(Box<Tensor<1>>, SavedWeights),
    /// Bytes as written to the file.
    Raw(Dtype, Vec<u8>),
}

impl SharedTensor {
    /// Shares the storage of `tensor`.
    pub fn new<const R: usize>(name: String, tensor: Tensor<R>) -> Self {
        let tensor = if tensor.is_autodiff() { tensor.inner() } else { tensor };
        let shape = tensor.dims().to_vec();
        let size = shape.iter().product::<usize>();
        Self { name, shape, values: Values::Shared(Box::new(tensor.reshape([size])), SavedWeights::F32) }
    }

    /// Sets the format in the file, by rounding. Raw tensors keep their own type.
    #[must_use]
    pub fn saved_as(mut self, weights: SavedWeights) -> Self {
        if let Values::Shared(_, format) = &mut self.values {
            *format = weights;
        }
        self
    }

    /// Returns the first number that is finite in the model but would not be in the file.
    pub fn out_of_range(&self) -> Option<f32> {
        // Limits from which rounding gives infinity: half a step above the largest number.
        let limit = match &self.values {
            Values::Shared(_, SavedWeights::F16) => 65_520.0,
            Values::Shared(_, SavedWeights::Bf16) => f32::from_bits(0x7f7f_8000),
            _ => return None,
        };
        self.values().into_iter().find(|value| value.is_finite() && value.abs() >= limit)
    }

    /// Shape of the tensor.
    pub fn dims(&self) -> &[usize] {
        &self.shape
    }

    /// Returns a copy of its values.
    ///
    /// # Panics
    /// When the tensor has another type.
    pub fn values(&self) -> Vec<f32> {
        match &self.values {
            Values::Shared(values, _) => values.as_ref().clone().into_data().try_into_vec().expect("f32 parameters"),
            Values::Raw(dtype, _) => panic!("`{}` is {dtype:?}", self.name),
        }
    }

    /// Creates a tensor of another type from little-endian bytes.
    pub fn raw(name: String, dtype: Dtype, shape: Vec<usize>, bytes: Vec<u8>) -> Self {
        Self { name, shape, values: Values::Raw(dtype, bytes) }
    }
}

impl View for &SharedTensor {
    fn dtype(&self) -> Dtype {
        match self.values {
            Values::Shared(_, SavedWeights::F32) => Dtype::F32,
            Values::Shared(_, SavedWeights::Bf16) => Dtype::BF16,
            Values::Shared(_, SavedWeights::F16) => Dtype::F16,
            Values::Raw(dtype, _) => dtype,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Copies only the tensor that is being written.
    fn data(&self) -> Cow<'_, [u8]> {
        match &self.values {
            Values::Shared(values, format) => {
                let values = values.as_ref().clone().into_data_as::<f32>();
                let data = match format {
                    SavedWeights::F32 => values,
                    SavedWeights::Bf16 => values.convert::<bf16>(),
                    SavedWeights::F16 => values.convert::<f16>(),
                };
                data.as_bytes().to_vec().into()
            }
            Values::Raw(_, bytes) => bytes.into(),
        }
    }

    fn data_len(&self) -> usize {
        match &self.values {
            Values::Shared(_, format) => {
                let bytes = if *format == SavedWeights::F32 { 4 } else { 2 };
                bytes * self.shape.iter().product::<usize>()
            }
            Values::Raw(_, bytes) => bytes.len(),
        }
    }
}

/// Returns every parameter of `module`, in the order of its fields, without copies.
pub fn shared_tensors<M: Module>(module: &M) -> Vec<SharedTensor> {
    let mut share = Share { path: NamePath::default(), tensors: Vec::new() };
    module.visit(&mut share);
    share.tensors
}

struct Share {
    path: NamePath,
    tensors: Vec<SharedTensor>,
}

impl ModuleVisitor for Share {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        self.tensors.push(SharedTensor::new(self.path.name(), param.val()));
    }
}

struct Collect {
    path: NamePath,
    tensors: Vec<NamedTensor<'static>>,
}

impl ModuleVisitor for Collect {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        let data = param.val().into_data();
        let shape = data.shape().to_vec();
        let values: Vec<f32> = data.try_to_vec().expect("f32 parameters");
        self.tensors.push(NamedTensor::new(self.path.name(), shape, values));
    }
}

/// Returns every parameter of `module`, in the order of its fields, named by its path.
pub fn named_tensors<M: Module>(module: &M) -> Vec<NamedTensor<'static>> {
    let mut collect = Collect { path: NamePath::default(), tensors: Vec::new() };
    module.visit(&mut collect);
    collect.tensors
}

/// Writes tensors as one safetensors file.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn write_safetensors(tensors: &[&SharedTensor], path: &Path) -> Result<()> {
    let views = tensors.iter().map(|tensor| (tensor.name.as_str(), *tensor));
    let metadata = Some([("format".to_string(), "pt".to_string())].into_iter().collect());
    files::write_safetensors(views, metadata, path)
}
