//! Low-rank adapters: a small trained part on frozen weights, read and written in peft's format.
//!
//! [`LoraConfig`] is a run's configuration, [`PeftConfig`] the content of `adapter_config.json`. Both give some linear layers of a trunk a
//! low-rank part (`attach_fresh`, `attach_saved`). All other weights are frozen.

mod lora_config;
mod peft;
mod saved;
mod targets;

use std::sync::Arc;

use burn::module::Module;
use rand::Rng;

pub use lora_config::{LoraConfig, LoraParts};
pub(crate) use peft::{CONFIG_FILE, HEAD};
pub use peft::{PeftConfig, TaskType};
use saved::PEFT_PREFIX;
pub(crate) use saved::{AdapterTensors, save};
use targets::Targets;

use super::WeightFormat;
use super::directory::ModelDir;
use super::layers::{Layers, Linear, Linears};
use super::lora::{Lora, LoraValues};
use crate::error::{Error, Result};
use crate::rng::Stream;

impl LoraConfig {
    /// Converts the configuration to peft's, for the model in `dir`, which peft's configuration names `base`.
    ///
    /// # Errors
    /// When the model's family is unknown, or the rank is 0.
    pub fn peft_config(&self, dir: &ModelDir, task_type: TaskType, base: String) -> Result<PeftConfig> {
        let (attention, fan_in_fan_out) = dir.attention_layers()?;
        let targets = match (&self.target_pattern, &self.targets[..]) {
            (Some(pattern), _) => Targets::Pattern(pattern.clone()),
            (None, []) => Targets::Names(attention.iter().map(|name| (*name).to_owned()).collect()),
            (None, [only]) if only == Targets::ALL => Targets::All,
            (None, names) => Targets::Names(names.to_vec()),
        };
        PeftConfig::new(self, targets, fan_in_fan_out, task_type, base)
    }
}

impl LoraParts {
    /// Returns the [`targets`](LoraConfig::targets) of these parts in the language model in `dir`.
    ///
    /// # Errors
    /// When the model's family is unknown, or no part is selected.
    pub fn targets(self, dir: &ModelDir) -> Result<Vec<String>> {
        let family = dir.family()?;
        let attention = if self.attention { family.attention_layers() } else { &[] };
        let fed = if self.feed_forward { family.feed_forward_layers() } else { &[] };
        let head: &[&str] = if self.head { &["lm_head"] } else { &[] };
        let all: Vec<String> = [attention, fed, head].concat().into_iter().map(str::to_owned).collect();
        match all.is_empty() {
            true => {
                Err(Error::input("the adapter is for no part of the model: attention, feed-forward layers or head"))
            }
            false => Ok(all),
        }
    }
}

/// Attaches initial low-rank parts, which have no effect yet, to the layers that `config` names. A is uniform in ±1/√in, B is zero (peft's
/// defaults). With DoRA, the norms of the rows are the current ones. Returns the names of these layers.
///
/// # Errors
/// When no layer matches.
fn attach_fresh(
    layers: &mut (impl Layers + ?Sized),
    head: Option<HeadPlace<'_>>,
    prefix: &str,
    config: &PeftConfig,
    stream: &mut Stream,
) -> Result<Vec<String>> {
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

/// Attaches the low-rank parts in `tensors` to the layers that `config` names; `prefix` is prepended to the layers' names.
///
/// # Errors
/// When no layer matches. Problems with `tensors` are reported by [`AdapterTensors::finish`].
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
    .map(drop)
}

/// A, B and, with DoRA, m.
type Parts = (Vec<f32>, Vec<f32>, Option<Vec<f32>>);

/// Creates the parts of a layer from its name, its numbers of inputs and outputs, r and, with DoRA, the squared norms of its rows. `None`
/// if the problem is reported elsewhere.
type MakeParts<'a> = dyn FnMut(&str, [usize; 2], usize, &[f32]) -> Option<Parts> + 'a;

/// Head of a language model with its adapter. A tied head is not a linear layer of its own.
#[derive(Debug)]
pub struct HeadPlace<'m> {
    /// Numbers of inputs and outputs.
    pub(super) widths: [usize; 2],
    /// Whether its logits have a bias.
    pub(super) has_bias: bool,
    /// Low-rank part of the head.
    pub(super) lora: &'m mut Option<Lora>,
}

/// Attaches parts to the layers that `config` names, and returns their names.
fn attach(
    layers: &mut (impl Layers + ?Sized),
    head: Option<HeadPlace<'_>>,
    prefix: &str,
    config: &PeftConfig,
    make: &mut MakeParts<'_>,
) -> Result<Vec<String>> {
    let device = layers.device();
    let matcher = config.matcher()?;
    let (mut others, mut attached) = (Vec::new(), Vec::new());
    for (name, linear) in layers.linears_mut() {
        let name = format!("{prefix}{name}");
        if !matcher.matches(&name) {
            others.push(name);
            continue;
        }
        if linear.lora.is_some() {
            return Err(
                Error::input(format!("`{name}` has an adapter already")).with_hint("merge it with `gradus merge`")
            );
        }
        let (rank, scale) = matcher.rank_and_scale(&name);
        let squares = if config.use_dora { squares(linear) } else { Vec::new() };
        let parts = make(&name, linear.widths(), rank, &squares);
        attached.push(name);
        let Some((a, b, magnitude)) = parts else { continue };
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
        attached.push(HEAD.to_owned());
        if let Some((a, b, _)) = make(HEAD, widths, rank, &[]) {
            let values = LoraValues { rank, scale, a, b, magnitude: None };
            *lora = Some(Lora::new(values, widths, [].into(), &device));
        }
    }
    if !attached.is_empty() {
        return Ok(attached);
    }
    let mut last: Vec<&str> = others.iter().filter_map(|name| name.rsplit('.').next()).collect();
    last.sort_unstable();
    last.dedup();
    Err(Error::input(format!("no linear layer of the model is called {}", config.target_modules))
        .with_hint(format!("its linear layers end in {}; `all-linear` takes them all", last.join(", "))))
}

/// Squared norm of each row of a layer's weight (of each output).
fn squares(linear: &Linear) -> Vec<f32> {
    let weight_io = linear.weight_io();
    let squares = (weight_io.clone() * weight_io).sum_dim(0);
    squares.into_data().try_to_vec().expect("f32")
}

/// Configuration of a model's adapter, shared by the model's copies.
pub type Attached = Option<Arc<PeftConfig>>;

/// A model that may have an adapter below its head.
pub trait Adaptable: Module {
    /// Layers below the head.
    type Below: Layers + ?Sized;

    /// Returns these layers and the configuration of their adapter.
    fn adapted(&self) -> (&Self::Below, &Attached);

    /// Returns both for changes.
    fn adapted_mut(&mut self) -> (&mut Self::Below, &mut Attached);

    /// Like [`adapted_mut`](Self::adapted_mut), with the head of a language model.
    fn adapted_parts(&mut self) -> (&mut Self::Below, Option<HeadPlace<'_>>, &mut Attached) {
        let (below, attached) = self.adapted_mut();
        (below, None, attached)
    }

    /// Removes the low-rank part of the head; merges it into the head's weight if `_is_merged`.
    fn remove_head_adapter(&mut self, _is_merged: bool) {}

    /// Enables gradients of the heads that are trained with the adapter.
    fn train_heads(&mut self) {}

    /// Adapts `config` to this model: adds the parts of its head that are trained and saved with the adapter.
    fn fitted(&self, config: PeftConfig) -> PeftConfig {
        config
    }

    /// Returns the configuration of the adapter, if there is one.
    fn adapter(&self) -> Option<&PeftConfig> {
        self.adapted().1.as_deref()
    }

    /// Attaches a new adapter, which has no effect yet.
    ///
    /// # Errors
    /// When no layer matches.
    fn with_fresh_adapter(mut self, dir: &ModelDir, config: PeftConfig, stream: &mut Stream) -> Result<Self> {
        let mut config = self.fitted(config);
        let (trunk, head, attached) = self.adapted_parts();
        let names = attach_fresh(trunk, head, dir.base_prefix()?, &config, stream)?;
        config.name_targets(names);
        *attached = Some(Arc::new(config));
        Ok(self)
    }

    /// Sets the dropout of the adapter's input in passes with masks.
    fn set_adapter_dropout(&mut self, probability: f32) {
        for (layer, (_, linear)) in self.adapted_mut().0.linears_mut().into_iter().enumerate() {
            if let Some(lora) = &mut linear.lora {
                lora.set_dropout(probability, layer);
            }
        }
    }

    /// Prepares the model for training its adapter (and a scalar head). Everything else is frozen, and the linear layers are packed in the
    /// format `weights`. An LM head is not packed, because a tied one would then be held twice.
    #[must_use]
    fn train_adapter(mut self, weights: WeightFormat) -> Self {
        self.adapted_mut().0.freeze_weights(weights);
        let mut model = self.no_grad();
        let linears = model.adapted_mut().0.linears_mut();
        linears.into_iter().filter_map(|(_, linear)| linear.lora.as_mut()).for_each(Lora::require_grad);
        model.train_heads();
        model
    }

    /// Returns the model without its adapter and without gradients. It shares all weights.
    #[must_use]
    fn without_adapter(&self) -> Self {
        let mut model = self.valid();
        model.remove_head_adapter(false);
        model.remove_adapter(|linear| linear.lora = None)
    }

    /// Returns this model with the adapter of `other`, a model with the same weights; without gradients.
    #[must_use]
    fn with_adapter_of(&self, other: &Self) -> Self {
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

    /// Returns the model with its adapter merged into the weights, `W + s·BA`, without gradients.
    #[must_use]
    fn merged(&self) -> Self {
        let mut model = self.valid();
        model.remove_head_adapter(true);
        model.remove_adapter(Linear::merge)
    }

    /// Removes the adapter; `each` removes the part of a linear layer.
    #[doc(hidden)]
    fn remove_adapter(mut self, each: fn(&mut Linear)) -> Self {
        let (trunk, attached) = self.adapted_mut();
        trunk.linears_mut().into_iter().for_each(|(_, linear)| each(linear));
        *attached = None;
        self
    }
}
