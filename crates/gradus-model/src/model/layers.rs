//! Layers that all families share, with field names that match the safetensors keys.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use gradus_kernels::{
    Activated, FrozenWeight, Layout, Operands, Precision, Table, WeightFormat, linear_written_in, packs_weights,
};
use rayon::prelude::*;

use super::build::{Builder, Init};
use super::directory::ModelDir;
use super::dropout::DropoutStream;
use super::lora::Lora;
use crate::error::Result;

/// A linear layer.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[out, in]`, or `[in, out]` in GPT-2.
    pub weight: Param<Tensor<2>>,
    /// `[out]`.
    pub bias: Option<Param<Tensor<1>>>,
    /// Trained part of an adapter.
    pub(super) lora: Option<Lora>,
    #[module(skip)]
    layout: Layout,
    #[module(skip)]
    precision: Precision,
    /// Packed weight; `weight` is then empty.
    #[module(skip)]
    frozen: Option<FrozenWeight>,
}

impl Linear {
    /// Builds a layer stored as `[out, in]`.
    pub(crate) fn build(mut b: Builder<'_>, input: usize, output: usize, bias: bool, deviation: f32) -> Self {
        let frozen = b.quantized("weight", input, output);
        let layer = Self {
            weight: weight(&mut b, frozen.is_some(), [output, input], deviation),
            bias: bias.then(|| b.param("bias", [output], Init::Constant(0.0))),
            lora: None,
            layout: Layout::OutIn,
            precision: Precision::F32,
            frozen,
        };
        layer.packed(b.pack())
    }

    /// Builds a layer with a bias, stored as `[in, out]`: GPT-2's Conv1D.
    pub(crate) fn build_conv1d(mut b: Builder<'_>, input: usize, output: usize, deviation: f32) -> Self {
        let frozen = b.quantized("weight", input, output);
        let layer = Self {
            weight: weight(&mut b, frozen.is_some(), [input, output], deviation),
            bias: Some(b.param("bias", [output], Init::Constant(0.0))),
            lora: None,
            layout: Layout::InOut,
            precision: Precision::F32,
            frozen,
        };
        layer.packed(b.pack())
    }

    /// Packs the weight in `format`, if given.
    fn packed(mut self, format: Option<WeightFormat>) -> Self {
        format.into_iter().for_each(|format| self.freeze_weight(format));
        self
    }

    /// Computes `x_nd` times the weight, plus the bias, plus the adapter's part, whose input is `x_nd` with the dropout of `masks`.
    ///
    /// `x_nd` is `[N, in]`, the result `[N, out]`. `x_nd` and all weights that are trained carry gradient.
    pub fn forward(&self, x_nd: Tensor<2>, masks: Option<DropoutStream>) -> Tensor<2> {
        let bias = self.bias.as_ref().map(Param::val);
        let Some(lora) = &self.lora else { return self.base(x_nd, bias, Precision::F32) };
        let Some(dropped) = lora.dropped(&x_nd, masks) else {
            let fused = self.frozen.as_ref().and_then(|weight| lora.fused(&x_nd, &bias, weight, self.precision));
            return fused.unwrap_or_else(|| {
                lora.forward(x_nd, bias, None, self.precision, |x, b| self.base(x, b, Precision::F32))
            });
        };
        lora.forward(x_nd, bias, Some(dropped), self.precision, |x, b| self.base(x, b, Precision::F32))
    }

    /// Adds the result of [`forward`](Self::forward) to `sum_nd`, `[N, out]`, which carries gradient.
    pub(crate) fn forward_onto(&self, sum_nd: Tensor<2>, x_nd: Tensor<2>, masks: Option<DropoutStream>) -> Tensor<2> {
        let drops = |lora: &Lora| masks.is_some() && lora.drops_out();
        match (&self.lora, &self.frozen) {
            _ if self.bias.is_some() => sum_nd + self.forward(x_nd, masks),
            (None, Some(weight)) => weight.apply_onto(sum_nd, x_nd),
            (None, None) => gradus_kernels::linear_onto(sum_nd, x_nd, self.weight.val(), self.layout, self.precision),
            (Some(lora), Some(weight)) if lora.magnitude.is_none() && !drops(lora) => {
                let (factors, scale) = lora.parts();
                weight.apply_adapted_onto(sum_nd, x_nd, factors, scale, self.precision)
            }
            _ => sum_nd + self.forward(x_nd, masks),
        }
    }

    /// Like [`forward`](Self::forward), for several layers with the same input. Packed layers are computed together.
    pub(crate) fn forward_each<const N: usize>(
        layers: [&Self; N],
        x_nd: Tensor<2>,
        masks: Option<DropoutStream>,
    ) -> [Tensor<2>; N] {
        Self::forward_each_for(Precision::F32, layers, x_nd, masks)
    }

    /// Like [`forward_each`](Self::forward_each), for results that `reader` can take in bf16. They are in bf16 if
    /// [`can_be_narrow`](Self::can_be_narrow) is true for all layers.
    pub(crate) fn forward_each_for<const N: usize>(
        reader: Precision,
        layers: [&Self; N],
        x_nd: Tensor<2>,
        masks: Option<DropoutStream>,
    ) -> [Tensor<2>; N] {
        let can_be_narrow = |layer: &Self| Self::can_be_narrow(layer.bias.is_some(), layer.lora.is_some());
        let is_narrow = layers.iter().all(|layer| layer.precision == reader && can_be_narrow(layer));
        let result = if is_narrow { reader } else { Precision::F32 };
        let x_nd = gradus_kernels::operand(x_nd, Self::read_by(&layers, masks));
        let packed = layers.map(|layer| layer.frozen.as_ref().filter(|_| layer.lora.is_none()));
        if packed.iter().any(Option::is_none) {
            return layers.map(|layer| match is_narrow {
                true => layer.base(x_nd.clone(), None, result),
                false => layer.forward(x_nd.clone(), masks),
            });
        }
        let packed = packed.map(|weight| weight.expect("none is missing"));
        let bias = |i: usize| layers[i].bias.as_ref().map(Param::val);
        FrozenWeight::apply_each(std::array::from_fn(|i| (packed[i], bias(i))), x_nd, result)
    }

    /// Whether a GPU can write the result of a layer in bf16. If a bias or an adapter is added to it, it is in f32.
    pub(crate) fn can_be_narrow(has_bias: bool, has_adapter: bool) -> bool {
        !has_bias && !has_adapter
    }

    /// Like [`forward`](Self::forward), for the result of an activation, `[N, in]`. Its inputs carry gradient.
    ///
    /// `makers` are the layers whose results are the inputs of the activation, read by nothing else. Pass none if there is something between.
    pub(crate) fn forward_activated(
        &self,
        activated: Activated,
        makers: &[&Self],
        masks: Option<DropoutStream>,
    ) -> Tensor<2> {
        let input = Self::made_by(makers);
        if self.lora.is_some() || self.frozen.is_some() {
            let operands = Operands { result: Self::read_by(&[self], masks), input };
            return self.forward(activated.tensor_between(operands), masks);
        }
        let bias = self.bias.as_ref().map(Param::val);
        activated.linear(self.weight.val(), bias, self.layout, self.precision, input)
    }

    /// Adds the result of [`forward_activated`](Self::forward_activated) to `sum_nd`, `[N, out]`, which carries gradient.
    pub(crate) fn forward_activated_onto(
        &self,
        sum_nd: Tensor<2>,
        activated: Activated,
        makers: &[&Self],
        masks: Option<DropoutStream>,
    ) -> Tensor<2> {
        let input = Self::made_by(makers);
        if self.lora.is_some() || self.frozen.is_some() {
            let operands = Operands { result: Self::read_by(&[self], masks), input };
            return self.forward_onto(sum_nd, activated.tensor_between(operands), masks);
        }
        match &self.bias {
            Some(_) => sum_nd + self.forward_activated(activated, makers, masks),
            None => activated.linear_onto(sum_nd, self.weight.val(), self.layout, self.precision, input),
        }
    }

    /// Precision in which all `layers` take their input: the result of what comes before them, as in [`Operands::result`].
    pub(crate) fn read_by(layers: &[&Self], masks: Option<DropoutStream>) -> Precision {
        // Dropout of an adapter's input is computed from numbers in f32.
        let drops = |layer: &Self| masks.is_some() && layer.lora.as_ref().is_some_and(Lora::drops_out);
        Self::common(layers).filter(|_| !layers.iter().any(|layer| drops(layer))).unwrap_or_default()
    }

    /// Precision in which all `layers` take the gradient of their result, as in [`Operands::input`].
    pub(crate) fn made_by(layers: &[&Self]) -> Precision {
        // The gradients of a bias and of DoRA's lengths are sums in f32.
        let sums =
            |layer: &Self| layer.bias.is_some() || layer.lora.as_ref().is_some_and(|lora| lora.magnitude.is_some());
        Self::common(layers).filter(|_| !layers.iter().any(|layer| sums(layer))).unwrap_or_default()
    }

    /// Precision of all `layers`, if it is the same.
    fn common(layers: &[&Self]) -> Option<Precision> {
        let precision = layers.first()?.precision;
        layers.iter().all(|layer| layer.precision == precision).then_some(precision)
    }

    /// Computes `x_nd` times the weight, plus `bias`, and writes it in `result`.
    fn base(&self, x_nd: Tensor<2>, bias: Option<Tensor<1>>, result: Precision) -> Tensor<2> {
        match &self.frozen {
            Some(weight) => weight.apply_written_in(result, x_nd, bias),
            None => linear_written_in(result, x_nd, self.weight.val(), bias, self.layout, self.precision),
        }
    }

    /// Sets the precision of the operands of this layer's products; the weight stays in f32.
    pub(crate) fn set_precision(&mut self, precision: Precision) {
        self.precision = precision;
        self.frozen = self.frozen.take().map(|weight| weight.with_precision(precision));
    }

    /// Returns the packed weight, if the layer is packed.
    pub(super) fn packed_weight(&self) -> Option<&FrozenWeight> {
        self.frozen.as_ref()
    }

    /// Bytes that the weight takes in memory.
    pub(super) fn weight_bytes(&self) -> usize {
        self.frozen.as_ref().map_or(4 * self.weight.dims().iter().product::<usize>(), FrozenWeight::bytes)
    }

    /// Packs the weight in `format` and frees the original. The weight can then have no gradient.
    pub(crate) fn freeze_weight(&mut self, format: WeightFormat) {
        if self.frozen.is_none() {
            let weight = FrozenWeight::new(self.weight.val(), self.layout, format);
            self.frozen = Some(weight.with_precision(self.precision));
            self.weight = empty(&self.weight.val().device());
        }
        if let Some(mut lora) = self.lora.take() {
            if !lora.lora_a.val().is_autodiff() {
                lora.cache_norms(|x, bias| self.base(x, bias, Precision::F32));
            }
            self.lora = Some(lora);
        }
    }

    /// Numbers of inputs and outputs.
    pub(crate) fn widths(&self) -> [usize; 2] {
        let [rows, columns] = self.weight.dims();
        match (&self.frozen, self.layout) {
            (Some(weight), _) => weight.dims(),
            (None, Layout::OutIn) => [columns, rows],
            (None, Layout::InOut) => [rows, columns],
        }
    }

    /// Returns the weight as used in products, `[in, out]`, without gradient.
    pub(crate) fn weight_io(&self) -> Tensor<2> {
        let plain = |tensor: Tensor<2>| if tensor.is_autodiff() { tensor.inner() } else { tensor };
        match (&self.frozen, self.layout) {
            (Some(weight), _) => weight.dense().to_device(&self.weight.val().device().inner()),
            (None, Layout::OutIn) => plain(self.weight.val()).transpose(),
            (None, Layout::InOut) => plain(self.weight.val()),
        }
    }

    /// Merges the adapter, if there is one, into the weight. The weight is dense afterwards, even if it was packed or quantized.
    pub(crate) fn merge(&mut self) {
        let lora = self.lora.take().map(|mut lora| {
            lora.cache_norms(|x, bias| self.base(x, bias, Precision::F32));
            lora
        });
        if lora.is_none() && self.frozen.is_none() {
            return;
        }
        let weight_io = self.weight_io();
        let merged_io = lora.map_or(weight_io.clone(), |lora| lora.merged(weight_io));
        self.frozen = None;
        self.weight = Param::from_tensor(match self.layout {
            Layout::OutIn => merged_io.transpose(),
            Layout::InOut => merged_io,
        });
    }
}

/// Builds the weight of a layer; empty if the layer has it packed.
fn weight(b: &mut Builder<'_>, is_packed: bool, shape: [usize; 2], deviation: f32) -> Param<Tensor<2>> {
    if is_packed { empty(b.device()) } else { b.weight(shape, Init::Normal(deviation)) }
}

/// Placeholder for a weight that is packed elsewhere.
pub(crate) fn empty(device: &Device) -> Param<Tensor<2>> {
    Param::from_tensor(Tensor::zeros([0, 0], device))
}

/// A module that contains linear layers.
pub trait Linears {
    /// Adds all linear layers to `found`. A name is `path` and the fields that lead to the layer, joined by dots, as in
    /// [`visit_named`](super::visit_named).
    fn collect<'a>(&'a mut self, path: &str, found: &mut Vec<(String, &'a mut Linear)>);

    /// Adds all linear layers to `found`, as the field `name` of the module at `path`.
    fn collect_field<'a>(&'a mut self, path: &str, name: &str, found: &mut Vec<(String, &'a mut Linear)>) {
        let name = name.trim_end_matches('_');
        self.collect(&if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }, found);
    }

    /// Returns all linear layers with their names in this module, such as `h.0.attn.c_attn`.
    fn linears_mut(&mut self) -> Vec<(String, &mut Linear)> {
        let mut found = Vec::new();
        self.collect("", &mut found);
        found
    }
}

impl Linears for Linear {
    fn collect<'a>(&'a mut self, path: &str, found: &mut Vec<(String, &'a mut Linear)>) {
        found.push((path.to_owned(), self));
    }
}

impl<M: Linears> Linears for Option<M> {
    fn collect<'a>(&'a mut self, path: &str, found: &mut Vec<(String, &'a mut Linear)>) {
        self.iter_mut().for_each(|module| module.collect(path, found));
    }
}

impl<M: Linears> Linears for Vec<M> {
    fn collect<'a>(&'a mut self, path: &str, found: &mut Vec<(String, &'a mut Linear)>) {
        self.iter_mut().enumerate().for_each(|(i, module)| module.collect_field(path, &i.to_string(), found));
    }
}

/// Implements [`Linears`]: for a struct by its fields that contain linear layers, for an enum by its variants.
macro_rules! linears {
    () => {};
    (enum $module:ident: $($variant:ident),+; $($rest:tt)*) => {
        impl Linears for $module {
            fn collect<'a>(&'a mut self, path: &str, found: &mut Vec<(String, &'a mut Linear)>) {
                match self {
                    $(Self::$variant(module) => module.collect(path, found),)+
                }
            }
        }
        linears! { $($rest)* }
    };
    ($module:ident: $($($field:tt).+),+; $($rest:tt)*) => {
        impl Linears for $module {
            fn collect<'a>(&'a mut self, path: &str, found: &mut Vec<(String, &'a mut Linear)>) {
                $(self.$($field).+.collect_field(path, stringify!($($field).+), found);)+
            }
        }
        linears! { $($rest)* }
    };
}
pub(super) use linears;

/// An embedding table.
#[derive(Module, Debug)]
pub struct Embedding {
    /// `[rows, D]`.
    pub weight: Param<Tensor<2>>,
}

impl Embedding {
    pub(crate) fn build(mut b: Builder<'_>, rows: usize, width: usize, deviation: f32) -> Self {
        Self { weight: b.param("weight", [rows, width], Init::Normal(deviation)) }
    }

    /// Builds the embeddings that encoder and decoder share, which have one of several names on disk.
    pub(crate) fn build_shared(b: &mut Builder<'_>, rows: usize, width: usize, deviation: f32) -> Self {
        const NAMES: [&str; 3] = ["shared", "encoder.embed_tokens", "decoder.embed_tokens"];
        let held = NAMES.into_iter().find(|name| b.holds(&format!("{name}.weight"))).unwrap_or(NAMES[0]);
        for other in NAMES {
            b.same(&format!("{held}.weight"), &format!("{other}.weight"));
        }
        Self::build(b.enter(held), rows, width, deviation)
    }

    /// Looks up the rows `ids_n`, `[N, D]`.
    pub fn forward(&self, ids_n: &[u32]) -> Tensor<2> {
        gradus_kernels::embedding(self.weight.val(), ids_n)
    }
}

/// Layer norm.
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// γ, `[D]`.
    pub weight: Param<Tensor<1>>,
    /// β, `[D]`; `None` means 0.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    epsilon: f64,
}

impl LayerNorm {
    pub(crate) fn build(b: Builder<'_>, width: usize, epsilon: f64) -> Self {
        Self::build_with(b, width, epsilon, true)
    }

    /// Builds a layer norm with or without β.
    pub(crate) fn build_with(mut b: Builder<'_>, width: usize, epsilon: f64, bias: bool) -> Self {
        Self {
            weight: b.param("weight", [width], Init::Constant(1.0)),
            bias: bias.then(|| b.param("bias", [width], Init::Constant(0.0))),
            epsilon,
        }
    }

    /// Normalizes each row of `x_nd`, `[N, D]` to `[N, D]`. `x_nd`, γ and β carry gradient.
    pub fn forward(&self, x_nd: Tensor<2>) -> Tensor<2> {
        self.forward_between(x_nd, Operands::default())
    }

    /// Like [`forward`](Self::forward), for a result that only `reader` reads.
    pub(crate) fn forward_for(&self, reader: &Linear, x_nd: Tensor<2>, masks: Option<DropoutStream>) -> Tensor<2> {
        let result = Linear::read_by(&[reader], masks);
        self.forward_between(x_nd, Operands { result, ..Operands::default() })
    }

    fn forward_between(&self, x_nd: Tensor<2>, operands: Operands) -> Tensor<2> {
        let weight = self.weight.val();
        let bias = self.bias.as_ref().map_or_else(|| Tensor::zeros(weight.dims(), &weight.device()), Param::val);
        gradus_kernels::layer_norm_between(x_nd, weight, bias, self.epsilon, operands)
    }
}

/// RMS norm.
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// γ minus the offset, `[D]`.
    pub weight: Param<Tensor<1>>,
    #[module(skip)]
    epsilon: f64,
    /// 1 if the weight on disk is γ − 1 (Gemma), else 0.
    #[module(skip)]
    offset: f32,
}

impl RmsNorm {
    pub(crate) fn build(mut b: Builder<'_>, width: usize, epsilon: f64, offset: f32) -> Self {
        Self { weight: b.param("weight", [width], Init::Constant(1.0 - offset)), epsilon, offset }
    }

    /// Normalizes each row of `x_nd`, `[N, D]` to `[N, D]`. `x_nd` and γ carry gradient.
    pub fn forward(&self, x_nd: Tensor<2>) -> Tensor<2> {
        self.forward_between(x_nd, Operands::default())
    }

    fn forward_between(&self, x_nd: Tensor<2>, operands: Operands) -> Tensor<2> {
        gradus_kernels::rms_norm_between(x_nd, self.gamma(), self.epsilon, operands)
    }

    /// γ, `[D]`.
    fn gamma(&self) -> Tensor<1> {
        let weight = self.weight.val();
        if self.offset == 0.0 { weight } else { weight + self.offset }
    }

    /// Like [`forward`](Self::forward), for a result that only `readers` read.
    pub(crate) fn forward_for(&self, readers: &[&Linear], x_nd: Tensor<2>, masks: Option<DropoutStream>) -> Tensor<2> {
        let result = Linear::read_by(readers, masks);
        self.forward_between(x_nd, Operands { result, ..Operands::default() })
    }

    /// Normalizes each part of a row of `x_nd` that is as wide as γ: heads, or the whole row. Input and result are `[N, width]`, with a width
    /// that γ's width divides. `x_nd` and γ carry gradient.
    ///
    /// `x_nd` is the result of `maker`, and nothing else reads it.
    pub(crate) fn forward_parts(&self, x_nd: Tensor<2>, maker: &Linear) -> Tensor<2> {
        let operands = Operands { input: Linear::made_by(&[maker]), ..Operands::default() };
        let ([n, d], [width]) = (x_nd.dims(), self.weight.dims());
        if width == d {
            return self.forward_between(x_nd, operands);
        }
        self.forward_between(x_nd.reshape([n * d / width, width]), operands).reshape([n, d])
    }

    /// Like [`forward_parts`](Self::forward_parts) for heads, which are then rotated by the angles of their tokens. `result` is the
    /// precision in which attention reads them.
    pub(crate) fn forward_heads(
        &self,
        x_nd: Tensor<2>,
        maker: &Linear,
        angles: [&Table<f32>; 2],
        result: Precision,
    ) -> Tensor<2> {
        let operands = Operands { result, input: Linear::made_by(&[maker]) };
        gradus_kernels::rms_norm_and_rope(x_nd, self.gamma(), self.epsilon, angles, operands)
    }
}

/// A head without bias.
#[derive(Module, Debug)]
pub struct Head {
    /// `[outputs, D]`.
    pub weight: Param<Tensor<2>>,
}

/// Selects the rows `indices` of `x_nd`: `[N, D]` to `[number of indices, D]`. `x_nd` carries gradient.
pub fn select_rows(x_nd: Tensor<2>, indices: &[usize]) -> Tensor<2> {
    let indices: Vec<u32> =
        indices.iter().map(|&i| u32::try_from(i).expect("a batch of fewer than 2³² tokens")).collect();
    gradus_kernels::embedding(x_nd, &indices)
}

/// Layers below a head, with the settings for training: a [`Trunk`](super::Trunk) or an [`Encoder`](super::Encoder).
pub trait Layers: Linears {
    /// Returns the device of the weights.
    fn device(&self) -> Device;

    /// Sets the precision of the operands of products; weights stay in f32.
    fn set_precision(&mut self, precision: Precision) {
        self.set_attention_precision(precision);
        self.linears_mut().into_iter().for_each(|(_, linear)| linear.set_precision(precision));
    }

    /// Packs the weights of all linear layers in `format`. A device without packed products packs them only if `format` changes their
    /// values.
    fn freeze_weights(&mut self, format: WeightFormat) {
        if packs_weights(&self.device()) || format != WeightFormat::F32 {
            let is_on_host = packs_weights(&self.device());
            let linears = self.linears_mut();
            match is_on_host {
                true => linears.into_par_iter().for_each(|(_, linear)| linear.freeze_weight(format)),
                // Work from several threads would go to several queues of the device.
                false => linears.into_iter().for_each(|(_, linear)| linear.freeze_weight(format)),
            }
        }
    }

    /// Sets the precision of the operands of attention's products, on devices with kernels for it.
    fn set_attention_precision(&mut self, precision: Precision);

    /// Sets whether the backward pass computes blocks again instead of storing their results. The gradients are identical to the bit, and
    /// only the activations of one block are in memory at a time. It costs one more forward pass.
    fn set_recompute(&mut self, recompute: bool);

    /// Sets whether the configured dropout applies in passes that have masks.
    fn set_dropout(&mut self, dropout: bool);

    /// Rejects training all weights of a quantized model; `dir` is the source of the model.
    ///
    /// # Errors
    /// When a linear layer is quantized.
    fn check_trainable(&self, dir: &ModelDir) -> Result<()>;
}

/// Implements [`Layers`] with the type's own methods of the same names, and its `running_mut`.
macro_rules! impl_layers {
    ($below:ty) => {
        impl $crate::model::Layers for $below {
            fn device(&self) -> Device {
                self.device()
            }
            fn set_attention_precision(&mut self, precision: gradus_kernels::Precision) {
                self.running_mut().compute = precision;
            }
            fn set_recompute(&mut self, recompute: bool) {
                self.running_mut().recompute = recompute;
            }
            fn set_dropout(&mut self, dropout: bool) {
                self.running_mut().dropout = dropout;
            }
            fn check_trainable(&self, dir: &ModelDir) -> Result<()> {
                self.check_trainable(dir)
            }
        }
    };
}
pub(super) use impl_layers;
