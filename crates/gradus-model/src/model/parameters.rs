//! Visiting a model's parameters by name: for saving, counting and optimizing.

use std::borrow::Cow;
use std::path::Path;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, bf16, f16};
use safetensors::tensor::{Dtype, View};

use super::directory::SavedWeights;
use crate::error::Result;
use crate::files::{self, NamedTensor};

/// Receives the parameters of a module with their names: see [`visit_named`].
pub trait NamedVisitor {
    /// Visits a parameter.
    fn visit<const D: usize>(&mut self, name: String, parameter: &Param<Tensor<D>>);
}

/// Replaces the parameters of a module by name: see [`map_named`].
pub trait NamedMapper {
    /// Returns the parameter that takes the place of `parameter`.
    fn map<const D: usize>(&mut self, name: String, parameter: Param<Tensor<D>>) -> Param<Tensor<D>>;
}

/// Visits every parameter of `module`, in the order of its fields. A name is the path in the module, joined by dots. Enum variants are not
/// part of it, and neither is the trailing `_` of a field that would otherwise be a keyword (`self_`).
pub fn visit_named<M: Module, V: NamedVisitor>(module: &M, visitor: &mut V) {
    module.visit(&mut WithPath { path: Vec::new(), inner: visitor });
}

/// Maps every parameter of `module`. The names are those of [`visit_named`].
pub fn map_named<M: Module, V: NamedMapper>(module: M, mapper: &mut V) -> M {
    module.map(&mut WithPath { path: Vec::new(), inner: mapper })
}

/// Tracks the path of names while a module is visited.
struct WithPath<'a, V> {
    path: Vec<Option<String>>,
    inner: &'a mut V,
}

impl<V> WithPath<'_, V> {
    fn enter(&mut self, name: &str, container: &str) {
        self.path.push((!container.starts_with("Enum:")).then(|| name.trim_end_matches('_').into()));
    }

    fn name(&self) -> String {
        self.path.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(".")
    }
}

impl<V: NamedVisitor> ModuleVisitor for WithPath<'_, V> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.inner.visit(self.name(), param);
    }
}

impl<V: NamedMapper> ModuleMapper for WithPath<'_, V> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.inner.map(self.name(), param)
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
    /// Shares the storage of `tensor`, which may have any shape, without its graph.
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
    let mut tensors = Vec::new();
    visit_named(module, &mut tensors);
    tensors
}

impl NamedVisitor for Vec<SharedTensor> {
    fn visit<const D: usize>(&mut self, name: String, parameter: &Param<Tensor<D>>) {
        self.push(SharedTensor::new(name, parameter.val()));
    }
}

/// Returns every parameter of `module`, in the order of its fields, named by its path.
pub fn named_tensors<M: Module>(module: &M) -> Vec<NamedTensor<'static>> {
    let mut tensors = Vec::new();
    visit_named(module, &mut tensors);
    tensors
}

impl NamedVisitor for Vec<NamedTensor<'static>> {
    fn visit<const D: usize>(&mut self, name: String, parameter: &Param<Tensor<D>>) {
        let data = parameter.val().into_data();
        let shape = data.shape().to_vec();
        let values: Vec<f32> = data.try_to_vec().expect("f32 parameters");
        self.push(NamedTensor::new(name, shape, values));
    }
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
