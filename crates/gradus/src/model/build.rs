//! Building a model from named tensors: the same constructor reads a checkpoint or draws fresh weights.

use burn::module::{Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use gradus_kernels::{FrozenWeight, Quantized, WeightFormat, packs_weights};
use rand::Rng;

use crate::rng::Stream;

/// How a fresh tensor is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Init {
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// All the same.
    Constant(f32),
}

/// Where tensors come from.
pub(crate) trait Source {
    /// The values of the tensor `name`, row-major; `shape` and `init` say what the model expects. `None` from a source that has no
    /// values ([`Shapes`]).
    ///
    /// Problems are collected by the source and reported once the whole model has asked for its tensors.
    fn values(&mut self, name: &str, shape: &[usize], init: Init) -> Option<Vec<f32>>;

    /// Whether the source holds this tensor: decides on optional ones.
    fn holds(&self, name: &str) -> bool;

    /// Says that `other`, where it is held, is the tensor `name` once more.
    fn same(&mut self, _name: &str, _other: &str) {}

    /// The weight `name` of a linear layer, `[out, in]`, where the source holds it quantized.
    fn quantized(&mut self, _name: &str, _shape: [usize; 2]) -> Option<Quantized> {
        None
    }
}

/// Fresh weights.
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

/// Names and shapes of the tensors that a model asks for. Nothing is allocated, so a model of any size can be built from it, only to
/// be asked what it would hold.
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

/// `size` draws from a normal distribution, by the Box–Muller transform.
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

/// A position in the tree of names, with the source behind it.
pub(crate) struct Builder<'a> {
    source: &'a mut dyn Source,
    prefix: String,
    device: &'a Device,
    pack: Option<WeightFormat>,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(source: &'a mut dyn Source, device: &'a Device) -> Self {
        Self { source, prefix: String::new(), device, pack: None }
    }

    /// Linear layers are packed in `format` as soon as they are built, so that a whole model in f32 is never held: in f32 only where the
    /// device has packed products.
    pub(crate) fn packing(self, format: Option<WeightFormat>) -> Self {
        let pack = format.filter(|format| packs_weights(self.device) || *format != WeightFormat::F32);
        Self { pack, ..self }
    }

    /// How linear layers are packed, if at all.
    pub(crate) fn pack(&self) -> Option<WeightFormat> {
        self.pack
    }

    /// The builder one level down: names get `name.` in front; of the empty name, the same level.
    pub(crate) fn enter(&mut self, name: impl std::fmt::Display) -> Builder<'_> {
        let level = format!("{name}.");
        let prefix = format!("{}{}", self.prefix, if level == "." { "" } else { &level });
        Builder { prefix, source: self.source, device: self.device, pack: self.pack }
    }

    /// The parameter `name` at this level.
    pub(crate) fn param<const R: usize>(&mut self, name: &str, shape: [usize; R], init: Init) -> Param<Tensor<R>> {
        match self.source.values(&format!("{}{name}", self.prefix), &shape, init) {
            Some(values) => Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), self.device)),
            None => {
                let zeros = move |device: &Device, _| Tensor::zeros(shape, device);
                Param::uninitialized(ParamId::new(), zeros, self.device.clone(), true, shape.into())
            }
        }
    }

    /// The weight `name` of a linear layer at this level, where the source holds it quantized.
    pub(crate) fn quantized(&mut self, name: &str, input: usize, output: usize) -> Option<FrozenWeight> {
        let weight = self.source.quantized(&format!("{}{name}", self.prefix), [output, input])?;
        Some(FrozenWeight::from_quantized(weight))
    }

    /// Says that `other`, where the source holds it, is the tensor `name` once more; both at this level.
    pub(crate) fn same(&mut self, name: &str, other: &str) {
        self.source.same(&format!("{}{name}", self.prefix), &format!("{}{other}", self.prefix));
    }

    /// The device that parameters lie on.
    pub(crate) fn device(&self) -> &Device {
        self.device
    }

    /// Whether the source holds `name` at this level.
    pub(crate) fn holds(&self, name: &str) -> bool {
        self.source.holds(&format!("{}{name}", self.prefix))
    }
}
