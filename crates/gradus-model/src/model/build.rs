//! Building a model from named tensors: the same constructor reads a checkpoint or initializes weights.

use burn::module::{Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use gradus_kernels::{FrozenWeight, Quantized, WeightFormat, long_lived, packs_weights};
use rand::Rng;

use crate::rng::Stream;

/// Initialization of a new tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Init {
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// This value everywhere.
    Constant(f32),
}

/// Source of tensors.
pub(crate) trait Source {
    /// Returns the values of the tensor `name`, row-major; `shape` and `init` are the model's expectation. `None` from a source without
    /// values ([`Shapes`]).
    ///
    /// The source collects problems and reports them after the whole model has requested its tensors.
    fn values(&mut self, name: &str, shape: &[usize], init: Init) -> Option<Vec<f32>>;

    /// Whether the source has this tensor, for optional ones.
    fn holds(&self, name: &str) -> bool;

    /// Declares that `other`, if the source has it, is a copy of the tensor `name`.
    fn same(&mut self, _name: &str, _other: &str) {}

    /// Returns the weight `name` of a linear layer, `[out, in]`, if the source has it quantized.
    fn quantized(&mut self, _name: &str, _shape: [usize; 2]) -> Option<Quantized> {
        None
    }
}

/// Source of newly initialized weights.
pub(crate) struct Fresh<'a>(pub &'a mut Stream);

impl Source for Fresh<'_> {
    fn values(&mut self, _: &str, shape: &[usize], init: Init) -> Option<Vec<f32>> {
        let size = shape.iter().product();
        Some(match init {
            Init::Constant(value) => vec![value; size],
            Init::Normal(deviation) => normal(self.0, size, deviation),
        })
    }

    fn holds(&self, _: &str) -> bool {
        false
    }
}

/// Records names and shapes of the tensors that a model requests. It allocates nothing, so a model of any size can be built from it to
/// measure its memory.
#[derive(Debug, Default)]
pub(crate) struct Shapes(pub Vec<(String, Vec<usize>)>);

impl Source for Shapes {
    fn values(&mut self, name: &str, shape: &[usize], _: Init) -> Option<Vec<f32>> {
        self.0.push((name.to_owned(), shape.to_vec()));
        None
    }

    fn holds(&self, _: &str) -> bool {
        false
    }
}

/// Draws `size` values from a normal distribution, by the Box–Muller transform.
pub(crate) fn normal(stream: &mut Stream, size: usize, deviation: f32) -> Vec<f32> {
    let mut values = Vec::with_capacity(size + 1);
    while values.len() < size {
        let radius = (-2.0 * (1.0 - stream.random::<f64>()).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * stream.random::<f64>()).sin_cos();
        values.push((radius * cos) as f32 * deviation);
        values.push((radius * sin) as f32 * deviation);
    }
    values.truncate(size);
    values
}

/// A level in the tree of tensor names, with the source of the tensors.
pub(crate) struct Builder<'a> {
    source: &'a mut dyn Source,
    prefix: String,
    device: &'a Device,
    pack: Option<WeightFormat>,
}

impl<'a> Builder<'a> {
    /// Builds from `source` on `device`. A GPU first frees the memory of earlier models, which it keeps until then.
    pub(crate) fn new(source: &'a mut dyn Source, device: &'a Device) -> Self {
        device.memory_cleanup();
        Self { source, prefix: String::new(), device, pack: None }
    }

    /// Packs linear layers in `format` as soon as they are built, so that the whole model is never held in f32. Packing in f32 applies only
    /// on devices with packed products.
    pub(crate) fn packing(self, format: Option<WeightFormat>) -> Self {
        let pack = format.filter(|format| packs_weights(self.device) || *format != WeightFormat::F32);
        Self { pack, ..self }
    }

    /// Format in which linear layers are packed; `None` for no packing.
    pub(crate) fn pack(&self) -> Option<WeightFormat> {
        self.pack
    }

    /// Returns the builder one level down, which adds the prefix `name.`; an empty name keeps the level.
    pub(crate) fn enter(&mut self, name: impl std::fmt::Display) -> Builder<'_> {
        let level = format!("{name}.");
        let prefix = format!("{}{}", self.prefix, if level == "." { "" } else { &level });
        Builder { prefix, source: self.source, device: self.device, pack: self.pack }
    }

    /// Builds the parameter `name` at this level.
    pub(crate) fn param<const R: usize>(&mut self, name: &str, shape: [usize; R], init: Init) -> Param<Tensor<R>> {
        self.param_to(true, name, shape, init)
    }

    /// As [`param`](Self::param), for the weight of a linear layer, which is replaced at once if the builder packs weights.
    pub(crate) fn weight(&mut self, shape: [usize; 2], init: Init) -> Param<Tensor<2>> {
        self.param_to(self.pack.is_none(), "weight", shape, init)
    }

    fn param_to<const R: usize>(
        &mut self,
        is_kept: bool,
        name: &str,
        shape: [usize; R],
        init: Init,
    ) -> Param<Tensor<R>> {
        match self.source.values(&format!("{}{name}", self.prefix), &shape, init) {
            Some(values) => {
                let tensor = || Tensor::from_data(TensorData::new(values, shape), self.device);
                Param::from_tensor(if is_kept { long_lived(self.device, tensor) } else { tensor() })
            }
            None => {
                let zeros = move |device: &Device, _| Tensor::zeros(shape, device);
                Param::uninitialized(ParamId::new(), zeros, self.device.clone(), true, shape.into())
            }
        }
    }

    /// Returns the weight `name` of a linear layer at this level, if the source has it quantized.
    pub(crate) fn quantized(&mut self, name: &str, input: usize, output: usize) -> Option<FrozenWeight> {
        let weight = self.source.quantized(&format!("{}{name}", self.prefix), [output, input])?;
        Some(FrozenWeight::from_quantized(weight))
    }

    /// Declares that `other`, if the source has it, is a copy of the tensor `name`; both are at this level.
    pub(crate) fn same(&mut self, name: &str, other: &str) {
        self.source.same(&format!("{}{name}", self.prefix), &format!("{}{other}", self.prefix));
    }

    /// Device of the parameters.
    pub(crate) fn device(&self) -> &Device {
        self.device
    }

    /// Whether the source has `name` at this level.
    pub(crate) fn holds(&self, name: &str) -> bool {
        self.source.holds(&format!("{}{name}", self.prefix))
    }
}
