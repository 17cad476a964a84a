//! Low-rank adapters: a few trained numbers beside frozen weights, read and written in peft's format.
//!
//! [`LoraConfig`] is what a run asks for, [`PeftConfig`] what `adapter_config.json` says. Both end in the same place: some
//! linear layers of a trunk get a low-rank part ([`attach_fresh`], [`attach_saved`]), and everything else stands still.

mod lora_config;
mod peft;
mod saved;
mod targets;

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use gradus_kernels::packs_weights;
use rand::Rng;
use rayon::prelude::*;

pub use lora_config::{LoraConfig, LoraParts};
pub use peft::{PeftConfig, TaskType};
pub(crate) use saved::{AdapterTensors, save};

use super::directory::ModelDir;
use super::encoder::{Encoder, EncoderFamily};
use super::layers::Linear;
use super::lora::{Lora, LoraValues};
use super::trunk::{Family, Trunk};
use super::{Precision, WeightFormat};
use crate::error::{Error, Result};
use crate::rng::Stream;

/// `adapter_config.json`: what makes a directory an adapter's.
pub(crate) const CONFIG_FILE: &str = "adapter_config.json";
/// The adapter's tensors.
pub(crate) const TENSORS_FILE: &str = "adapter_model.safetensors";
/// What peft puts before the names of the model's modules.
const PEFT_PREFIX: &str = "base_model.model.";

/// Gives the layers that `config` names fresh low-rank parts, which change nothing yet: A uniform in ±1/√in, B zero (peft's
/// defaults), with DoRA the lengths of the rows as they are.
///
/// # Errors
/// When no layer has one of the names.
fn attach_fresh(
    layers: &mut (impl Layers + ?Sized),
    head: Option<HeadPlace<'_>>,
    prefix: &str,
    config: &PeftConfig,
    stream: &mut Stream,
) -> Result<()> {
    if config.dropout > 0.0 && head.is_some() && config.matcher()?.matches_head(HEAD) {
        return Err(Error::input(format!(
            "an adapter of `{HEAD}` has no dropout, but `dropout` is {}",
            config.dropout
        ))
        .with_hint("set `dropout` to 0, or leave the head out of `targets`"));
    }
    attach(layers, head, prefix, config, &mut |_, widths, rank, squares| {
        let [input, output] = widths;
        let bound = (input as f32).powf(-0.5);
        let a = (0..rank * input).map(|_| stream.random_range(-bound..bound)).collect();
        let magnitude = config.use_dora.then(|| squares.iter().map(|square| square.sqrt()).collect());
        Some((a, vec![0.0; output * rank], magnitude))
    })
}

/// Gives the layers that `config` names the low-rank parts in `tensors`; `prefix` stands before the names of the layers.
///
/// # Errors
/// When no layer has one of the names; what is wrong with `tensors` they report themselves.
pub(crate) fn attach_saved(
    layers: &mut impl Layers,
    head: Option<HeadPlace<'_>>,
    prefix: &str,
    config: &PeftConfig,
    tensors: &mut AdapterTensors,
) -> Result<()> {
    attach(layers, head, prefix, config, &mut |name, [input, output], rank, _| {
        let a = tensors.take(&format!("{PEFT_PREFIX}{name}.lora_A.weight"), &[rank, input]);
        let b = tensors.take(&format!("{PEFT_PREFIX}{name}.lora_B.weight"), &[output, rank]);
        let magnitude = match config.use_dora {
            true => Some(tensors.take(&format!("{PEFT_PREFIX}{name}.lora_magnitude_vector"), &[output])?),
            false => None,
        };
        Some((a?, b?, magnitude))
    })
}

/// A, B, and with DoRA m.
type Parts = (Vec<f32>, Vec<f32>, Option<Vec<f32>>);

/// Makes the parts of a layer from its name, inputs and outputs, r, and with DoRA the squared lengths of its rows; or
/// nothing, where the reason is known elsewhere.
type MakeParts<'a> = dyn FnMut(&str, [usize; 2], usize, &[f32]) -> Option<Parts> + 'a;

/// The head of a language model, as an adapter finds it: where it is the embedding table, it is no linear layer of its own.
#[derive(Debug)]
pub struct HeadPlace<'m> {
    /// Inputs and outputs.
    pub(super) widths: [usize; 2],
    /// Whether something is added to its logits.
    pub(super) has_bias: bool,
    /// Its low-rank part.
    pub(super) lora: &'m mut Option<Lora>,
}

/// What peft calls the head of a language model.
pub(super) const HEAD: &str = "lm_head";

fn attach(
    layers: &mut (impl Layers + ?Sized),
    head: Option<HeadPlace<'_>>,
    prefix: &str,
    config: &PeftConfig,
    make: &mut MakeParts<'_>,
) -> Result<()> {
    let device = layers.device();
    let matcher = config.matcher()?;
    let (mut names, mut attached) = (Vec::new(), 0);
    for (name, linear) in layers.linears_mut() {
        let name = format!("{prefix}{name}");
        if !matcher.matches(&name) {
            names.push(name);
            continue;
        }
        if linear.lora.is_some() {
            return Err(
                Error::input(format!("`{name}` has an adapter already")).with_hint("merge it with `gradus merge`")
            );
        }
        let (rank, scale) = matcher.rank_and_scale(&name);
        let squares = if config.use_dora { squares(linear) } else { Vec::new() };
        attached += 1;
        let Some((a, b, magnitude)) = make(&name, linear.widths(), rank, &squares) else { continue };
        let values = LoraValues { rank, scale, a, b, magnitude };
        linear.lora = Some(Lora::new(values, linear.widths(), squares.into(), &device));
    }
    if let Some(HeadPlace { widths, has_bias, lora }) = head.filter(|_| matcher.matches_head(HEAD)) {
        if config.use_dora || has_bias || lora.is_some() {
            let why = match (config.use_dora, has_bias) {
                (true, _) => "DoRA on the head is not supported",
                (_, true) => "the head adds a bias to the logits",
                _ => "it has an adapter already",
            };
            return Err(Error::input(format!("`{HEAD}` cannot have this adapter: {why}"))
                .with_hint("leave the head out of the adapter's layers"));
        }
        let (rank, scale) = matcher.rank_and_scale(HEAD);
        attached += 1;
        if let Some((a, b, _)) = make(HEAD, widths, rank, &[]) {
            let values = LoraValues { rank, scale, a, b, magnitude: None };
            *lora = Some(Lora::new(values, widths, [].into(), &device));
        }
    }
    if attached > 0 {
        return Ok(());
    }
    let mut last: Vec<&str> = names.iter().filter_map(|name| name.rsplit('.').next()).collect();
    last.sort_unstable();
    last.dedup();
    Err(Error::input(format!("no linear layer of the model is called {}", config.target_modules))
        .with_hint(format!("its linear layers end in {}; `all-linear` takes them all", last.join(", "))))
}

/// The squared length of each row of a layer's weight (of each output).
fn squares(linear: &Linear) -> Vec<f32> {
    let weight_io = linear.weight_io();
    let squares = (weight_io.clone() * weight_io).sum_dim(0);
    squares.into_data().try_to_vec().expect("f32")
}

/// What stands before the names of everything below the head of the model in `dir`.
pub(crate) fn base_prefix(dir: &ModelDir) -> Result<&'static str> {
    match EncoderFamily::named(dir.model_type()) {
        Some(family) => Ok(family.base_prefix()),
        None => Ok(Family::of(dir)?.base_prefix()),
    }
}

/// The adapter of a model, shared by its copies.
pub type Attached = Option<Arc<PeftConfig>>;

/// What lies below a head and can be set up for training: a [`Trunk`], or an [`Encoder`].
pub trait Layers {
    /// All linear layers with their names.
    fn linears_mut(&mut self) -> Vec<(String, &mut Linear)>;

    /// The device of the weights.
    fn device(&self) -> Device;

    /// Holds the operands of all linear layers' products in `precision`; weights stay in f32.
    fn set_precision(&mut self, precision: Precision) {
        self.linears_mut().into_iter().for_each(|(_, linear)| linear.set_precision(precision));
    }

    /// Packs the weights of all linear layers in `format`. A device without packed products keeps them as they are, unless
    /// that would change their values.
    fn freeze_weights(&mut self, format: WeightFormat) {
        if packs_weights(&self.device()) || format != WeightFormat::F32 {
            self.linears_mut().into_par_iter().for_each(|(_, linear)| linear.freeze_weight(format));
        }
    }

    /// Has the backward pass run the blocks again instead of keeping what they computed.
    fn set_recompute(&mut self, recompute: bool);

    /// Whether numbers are dropped as the configuration says, in passes that have masks.
    fn set_dropout(&mut self, dropout: bool);

    /// Refuses to train all weights of a quantised model; `dir` is where it was read from.
    ///
    /// # Errors
    /// When a linear layer is quantised.
    fn check_trainable(&self, dir: &ModelDir) -> Result<()>;
}

macro_rules! layers {
    ($below:ty) => {
        impl Layers for $below {
            fn linears_mut(&mut self) -> Vec<(String, &mut Linear)> {
                self.linears_mut()
            }
            fn device(&self) -> Device {
                self.device()
            }
            fn set_recompute(&mut self, recompute: bool) {
                self.set_recompute(recompute);
            }
            fn set_dropout(&mut self, dropout: bool) {
                self.set_dropout(dropout);
            }
            fn check_trainable(&self, dir: &ModelDir) -> Result<()> {
                self.check_trainable(dir)
            }
        }
    };
}

layers!(Trunk);
layers!(Encoder);

/// A model that may carry an adapter below its head.
pub trait Adaptable: Module {
    /// What lies below the head.
    type Below: Layers + ?Sized;

    /// It, and what the low-rank parts in it are.
    fn adapted(&self) -> (&Self::Below, &Attached);

    /// The same, to change both.
    fn adapted_mut(&mut self) -> (&mut Self::Below, &mut Attached);

    /// [`adapted_mut`](Self::adapted_mut), and the head of a language model.
    fn adapted_parts(&mut self) -> (&mut Self::Below, Option<HeadPlace<'_>>, &mut Attached) {
        let (below, attached) = self.adapted_mut();
        (below, None, attached)
    }

    /// Lets go of the low-rank part of the head, which becomes a part of its weight where it is merged.
    fn let_go_of_head(&mut self, _is_merged: bool) {}

    /// Lets gradients reach the heads that are trained with the adapter.
    fn train_heads(&mut self) {}

    /// `config` for an adapter on this model: with the parts of its head that are trained and saved too.
    fn fitted(&self, config: PeftConfig) -> PeftConfig {
        config
    }

    /// What the adapter is, where there is one.
    fn adapter(&self) -> Option<&PeftConfig> {
        self.adapted().1.as_deref()
    }

    /// The same model with a fresh adapter, which changes nothing yet.
    ///
    /// # Errors
    /// When no layer has one of its names.
    fn with_fresh_adapter(mut self, dir: &ModelDir, config: PeftConfig, stream: &mut Stream) -> Result<Self> {
        let config = self.fitted(config);
        let (trunk, head, attached) = self.adapted_parts();
        attach_fresh(trunk, head, base_prefix(dir)?, &config, stream)?;
        *attached = Some(Arc::new(config));
        Ok(self)
    }

    /// In passes with masks, drops what the adapter sees with `probability`.
    fn set_adapter_dropout(&mut self, probability: f32) {
        for (layer, (_, linear)) in self.adapted_mut().0.linears_mut().into_iter().enumerate() {
            if let Some(lora) = &mut linear.lora {
                lora.set_dropout(probability, layer);
            }
        }
    }

    /// The same model with its adapter (and a scalar head) set up for training: everything else stands still, the linear
    /// layers packed as `weights` says. An LM head stays as it is: packed, a tied one would be held twice.
    #[must_use]
    fn train_adapter(mut self, weights: WeightFormat) -> Self {
        self.adapted_mut().0.freeze_weights(weights);
        let mut model = self.no_grad();
        let linears = model.adapted_mut().0.linears_mut();
        linears.into_iter().filter_map(|(_, linear)| linear.lora.as_mut()).for_each(Lora::require_grad);
        model.train_heads();
        model
    }

    /// The same model with its adapter off, without gradients: it shares all weights.
    #[must_use]
    fn without_adapter(&self) -> Self {
        let mut model = self.valid();
        model.let_go_of_head(false);
        model.let_go(|linear| linear.lora = None)
    }

    /// The weights of this model with the adapter of `other`, a model with the same weights; without gradients.
    #[must_use]
    fn wearing(&self, other: &Self) -> Self {
        let (mut model, mut other) = (self.without_adapter(), other.valid());
        let (from, from_head, from_attached) = other.adapted_parts();
        let (to, to_head, attached) = model.adapted_parts();
        for ((_, to), (_, from)) in to.linears_mut().into_iter().zip(from.linears_mut()) {
            to.lora = from.lora.take();
        }
        if let (Some(to), Some(from)) = (to_head, from_head) {
            *to.lora = from.lora.take();
        }
        attached.clone_from(from_attached);
        model
    }

    /// The same model with its adapter folded into the weights, `W + s·BA`, without gradients.
    #[must_use]
    fn merged(&self) -> Self {
        let mut model = self.valid();
        model.let_go_of_head(true);
        model.let_go(Linear::merge)
    }

    /// The model without an adapter, after `each` linear layer has let go of its part.
    #[doc(hidden)]
    fn let_go(mut self, each: fn(&mut Linear)) -> Self {
        let (trunk, attached) = self.adapted_mut();
        trunk.linears_mut().into_iter().for_each(|(_, linear)| each(linear));
        *attached = None;
        self
    }
}
