//! AdamW or RMSprop with global-norm clipping, over gradients summed from micro-batches.
//!
//! Parameters are named by their path in the module (`policy.trunk.blocks.0.attn.qkv.weight`). Checkpoints address the moments by these
//! names. Gradients are f32 tensors on the device of their parameter. Moments are on the same device or on the host, in f32 or in eight
//! bits. Parameters are visited in one fixed order, so a step produces the same bits every time.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::across::extend;
use super::gradient_sum::GradientSum;
use super::shares::{Shares, parameters};
use crate::model::{NamedMapper, NamedVisitor, map_named, visit_named};
use crate::ranks::Ranks;
use gradus_kernels::{
    AdamWStep, AdamWUpdate, Codes, HostValues, Int8Moments, adamw, adamw_each, flat_gradient, host_values, long_lived,
    long_lived_from,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The constants of AdamW (Loshchilov and Hutter 2019, <https://arxiv.org/abs/1711.05101>).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWConfig {
    /// Decay rates of the first and second moment.
    pub betas: [f64; 2],
    /// Added to the root of the second moment after bias correction, as in PyTorch.
    pub epsilon: f64,
    /// Decoupled weight decay. Biases, norms and T5's table of relative position biases are never decayed.
    pub weight_decay: f64,
    /// Number format of both moments.
    pub moments: MomentFormat,
}

/// Number format of the moments of AdamW.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MomentFormat {
    /// Four bytes per number.
    #[default]
    F32,
    /// One byte per number, and four for each block of 256 (Dettmers et al. 2022, <https://arxiv.org/abs/2110.02861>). Parameters of fewer
    /// than 4096 numbers stay in f32.
    Int8,
}

impl MomentFormat {
    /// Returns true if the moments of a parameter of `n` numbers are stored in eight bits.
    fn is_int8(self, n: usize) -> bool {
        self == Self::Int8 && n >= Int8Moments::LEAST
    }
}

/// The constants of RMSprop (Tieleman and Hinton 2012), without momentum and not centered.
///
/// `v ← αv + (1 − α)g²`, `θ ← θ − η·g/(√v + ε)`, where `g` includes `λθ`. The form and the order of operations are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsPropConfig {
    /// α, the decay rate of the mean of the squared gradient.
    pub alpha: f64,
    /// ε, added to the root of that mean.
    pub epsilon: f64,
    /// λ, added to the gradient. Biases, norms and T5's table of relative position biases are never decayed.
    pub weight_decay: f64,
}

/// An optimizer and its constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OptimizerConfig {
    /// Adam with decoupled weight decay.
    AdamW(AdamWConfig),
    /// RMSprop.
    RmsProp(RmsPropConfig),
}

impl OptimizerConfig {
    /// Number of moments per parameter.
    pub fn moments(&self) -> u64 {
        match self {
            Self::AdamW(_) => 2,
            Self::RmsProp(_) => 1,
        }
    }

    /// Returns true if the moments of a parameter of `n` numbers are stored in eight bits.
    fn is_int8(&self, n: usize) -> bool {
        matches!(self, Self::AdamW(config) if config.moments.is_int8(n))
    }

    /// Returns true if the moments have the same number and format as those of `other`.
    pub fn remembers_as(&self, other: &Self) -> bool {
        let held = |config: &Self| (config.moments(), config.is_int8(usize::MAX));
        held(self) == held(other)
    }
}

impl Display for OptimizerConfig {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::AdamW(AdamWConfig { moments: MomentFormat::F32, .. }) => "AdamW with moments in f32",
            Self::AdamW(AdamWConfig { moments: MomentFormat::Int8, .. }) => "AdamW with moments in int8",
            Self::RmsProp(_) => "RMSprop",
        })
    }
}

impl From<AdamWConfig> for OptimizerConfig {
    fn from(config: AdamWConfig) -> Self {
        Self::AdamW(config)
    }
}

impl From<RmsPropConfig> for OptimizerConfig {
    fn from(config: RmsPropConfig) -> Self {
        Self::RmsProp(config)
    }
}

/// Moments of one parameter, flat, on its device and without autodiff.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "there is one for each parameter, and few are of the small kind alone")]
pub enum Moments {
    /// In f32.
    F32 {
        /// Decaying mean of the gradient; `None` for RMSprop.
        first: Option<Tensor<1>>,
        /// Decaying mean of the squared gradient.
        second: Tensor<1>,
    },
    /// Both moments of AdamW in eight bits.
    Int8(Int8Moments),
}

/// Moments of one parameter on the host.
#[derive(Debug, Clone)]
pub enum HostMoments {
    /// In f32, as [`Moments::F32`].
    F32 {
        /// Decaying mean of the gradient.
        first: Option<HostValues>,
        /// Decaying mean of the squared gradient.
        second: HostValues,
    },
    /// Both moments of AdamW in eight bits.
    Int8([Codes; 2]),
}

impl Moments {
    /// Initial moments for `n` numbers of a parameter that has `whole` numbers in total.
    fn zeros(config: OptimizerConfig, whole: usize, n: usize, device: &Device) -> Self {
        long_lived(device, || {
            if config.is_int8(whole) {
                return Self::Int8(Int8Moments::zeros(n, device));
            }
            let zeros = || Tensor::zeros([n], device);
            Self::F32 { first: (config.moments() == 2).then(zeros), second: zeros() }
        })
    }

    /// Number of elements of each moment, or `None` if their sizes differ.
    fn numbers(&self) -> Option<usize> {
        match self {
            Self::F32 { first, second } => {
                let [n] = second.dims();
                first.as_ref().is_none_or(|first| first.dims() == [n]).then_some(n)
            }
            Self::Int8(moments) => Some(moments.numbers()),
        }
    }

    fn is_int8(&self) -> bool {
        matches!(self, Self::Int8(_))
    }

    /// Returns the moments of the numbers in `range`, which must begin and end at the boundary of a block of codes or of the parameter.
    fn part(self, range: Range<usize>, device: &Device) -> Self {
        let cut = |whole: Tensor<1>| flat_gradient(whole.slice([range.clone()]));
        match self {
            Self::F32 { first, second } => Self::F32 { first: first.map(cut), second: cut(second) },
            Self::Int8(moments) => {
                let parts = moments.to_host().map(|moment| moment.part(range.clone()));
                Self::Int8(Int8Moments::new(parts, device).expect("both are cut alike"))
            }
        }
    }

    /// Copies the moments to the host.
    pub fn to_host(&self) -> HostMoments {
        match self {
            Self::F32 { first, second } => {
                HostMoments::F32 { first: first.clone().map(host_values), second: host_values(second.clone()) }
            }
            Self::Int8(moments) => HostMoments::Int8(moments.to_host()),
        }
    }
}

/// An optimizer in PyTorch's form, with the moments of every parameter.
#[derive(Debug, Clone)]
pub struct Optimizer {
    config: OptimizerConfig,
    steps: u64,
    moments: BTreeMap<String, Moments>,
    /// This rank's share of the moments; `None` means all.
    shares: Option<Arc<Shares>>,
    /// Device that stores the moments and updates the parameters; `None` means the device of the parameters.
    moments_device: Option<Device>,
}

impl Optimizer {
    /// Creates an optimizer that has not stepped yet.
    pub fn new(config: impl Into<OptimizerConfig>) -> Self {
        Self { config: config.into(), steps: 0, moments: BTreeMap::new(), shares: None, moments_device: None }
    }

    /// Number of steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Constants of the optimizer.
    pub fn config(&self) -> OptimizerConfig {
        self.config
    }

    /// Moments by parameter name, in order of names.
    pub fn moments(&self) -> &BTreeMap<String, Moments> {
        &self.moments
    }

    /// Creates an optimizer that continues from a checkpoint. The moments must be on the device of their parameters, or on the device given
    /// to [`with_moments_on`](Self::with_moments_on).
    pub fn restore(config: OptimizerConfig, steps: u64, moments: BTreeMap<String, Moments>) -> Self {
        Self { config, steps, moments, shares: None, moments_device: None }
    }

    /// Stores the moments on `moments_device` from now on and updates parameters there. Each step copies parameters and gradients to
    /// that device and the parameters back, so that no moments occupy the memory of a GPU.
    #[must_use]
    pub fn with_moments_on(self, moments_device: Option<Device>) -> Self {
        Self { moments_device, ..self }
    }

    /// Keeps only this rank's share of the moments from now on.
    #[must_use]
    pub fn sharded<M: Module>(mut self, ranks: Ranks, module: &M) -> Self {
        if ranks.is_alone() {
            return self;
        }
        let (shares, moments) = (Shares::new(ranks, module), std::mem::take(&mut self.moments));
        let part = |(name, moments): (String, Moments)| {
            let own = shares.own(&name);
            let device = self.moments_device.as_ref().or(shares.device.as_ref()).filter(|_| !own.is_empty())?;
            Some((name, moments.part(own, device)))
        };
        self.moments = moments.into_iter().filter_map(part).collect();
        Self { shares: Some(Arc::new(shares)), ..self }
    }

    /// Copies all moments to the host, by parameter name. If they are sharded, all ranks must call this, and only the first rank receives
    /// the moments.
    pub fn whole_moments(&self) -> BTreeMap<String, HostMoments> {
        let Some(shares) = &self.shares else {
            return self.moments.iter().map(|(name, moments)| (name.clone(), moments.to_host())).collect();
        };
        let own: BTreeMap<&String, HostMoments> =
            self.moments.iter().map(|(name, moments)| (name, moments.to_host())).collect();
        // A parameter that took no step has no moments. A rank without a share of it cannot tell.
        let holds: Vec<bool> = shares.ranges.keys().map(|name| own.contains_key(name)).collect();
        let holds = shares.ranks.all("which moments there are", &holds);
        let is_held = |i: usize| holds.iter().any(|of_rank| of_rank[i]);
        let held: Vec<&String> =
            shares.ranges.keys().enumerate().filter(|(i, _)| is_held(*i)).map(|(_, name)| name).collect();
        let names = |is_int8: bool| {
            let is_selected = move |name: &&String| self.config.is_int8(shares.ranges[*name].len()) == is_int8;
            held.iter().copied().filter(is_selected)
        };
        let values = |of: &dyn Fn(&HostMoments) -> Option<&HostValues>| {
            let own =
                |name: &String| (name.clone(), own.get(name).and_then(of).map_or_else(Vec::new, |part| part.to_vec()));
            shares.gather_numbers(&names(false).map(own).collect())
        };
        let mut firsts = match self.config.moments() {
            2 => values(&|moments| match moments {
                HostMoments::F32 { first, .. } => first.as_ref(),
                HostMoments::Int8(_) => None,
            }),
            _ => BTreeMap::new(),
        };
        let seconds = values(&|moments| match moments {
            HostMoments::F32 { second, .. } => Some(second),
            HostMoments::Int8(_) => None,
        });
        let [first_codes, second_codes] = [0, 1].map(|which| {
            let mut bytes = Vec::new();
            for name in names(true) {
                if let Some(HostMoments::Int8(moments)) = own.get(name) {
                    bytes.extend_from_slice(&moments[which].codes);
                    extend(&mut bytes, &moments[which].sizes);
                }
            }
            let size = |n: usize| n + 4 * n.div_ceil(Int8Moments::BLOCK);
            shares.gather(names(true), bytes, size, |name, parts| shares.joined(name, parts))
        });
        if !shares.ranks.is_first() {
            return BTreeMap::new();
        }
        let in_f32 = seconds.into_iter().map(|(name, second)| {
            let first = firsts.remove(&name).map(HostValues::from);
            (name, HostMoments::F32 { first, second: second.into() })
        });
        let pairs = first_codes.into_iter().zip(second_codes);
        let in_int8 = pairs.map(|((name, first), (_, second))| (name, HostMoments::Int8([first, second])));
        in_f32.chain(in_int8).collect()
    }

    /// Uses other constants for the following steps.
    ///
    /// # Panics
    /// If an optimizer of `config` keeps other moments.
    pub fn reconfigure(&mut self, config: OptimizerConfig) {
        assert!(config.remembers_as(&self.config), "an optimizer of {} becomes one of {config}", self.config);
        self.config = config;
    }

    /// Allocates the moments of every trained parameter of `module` that has none yet.
    ///
    /// Allocated before all other computations, they are contiguous. Allocated in the first step, they would occupy blocks that activations
    /// have just freed. The activations would then need new blocks: a tenth more memory for the rest of the run.
    pub fn reserve<M: Module>(&mut self, module: &M) {
        let (config, moments, shares, moments_device) =
            (self.config, &mut self.moments, self.shares.clone(), self.moments_device.clone());
        for (name, n, device) in parameters(module) {
            let own = shares.as_ref().map_or(n, |shares| shares.own(&name).len());
            if own > 0 {
                moments
                    .entry(name)
                    .or_insert_with(|| Moments::zeros(config, n, own, moments_device.as_ref().unwrap_or(&device)));
            }
        }
    }

    /// Returns the problem of moments read from a file, or `None` if they match the trained parameters of `module` in name, size and
    /// format.
    pub fn misfit<M: Module>(&self, module: &M) -> Option<String> {
        let trained: BTreeMap<String, usize> = parameters(module).into_iter().map(|(name, n, _)| (name, n)).collect();
        for (name, moments) in &self.moments {
            let Some(&expected) = trained.get(name) else {
                return Some(format!("it has moments of `{name}`, which is not a trained parameter of the model"));
            };
            let Some(found) = moments.numbers() else {
                return Some(format!("the two moments of `{name}` differ in size"));
            };
            if found != expected {
                return Some(format!("the moments of `{name}` are {found} numbers, but the parameter has {expected}"));
            }
            let format = |is_int8| if is_int8 { "int8" } else { "f32" };
            let (found, expected) = (moments.is_int8(), self.config.is_int8(expected));
            if found != expected {
                let (found, expected) = (format(found), format(expected));
                return Some(format!(
                    "the moments of `{name}` are stored in {found}, but this run stores them in {expected}"
                ));
            }
        }
        let missing = trained.keys().find(|name| self.steps > 0 && !self.moments.contains_key(*name));
        missing.map(|name| format!("it has no moments of `{name}`"))
    }

    /// Takes one step: moves every parameter of `module` that has a gradient. Consumes the gradients.
    pub fn step<M: Module>(&mut self, learning_rate: f64, module: M, gradients: GradientSum) -> M {
        self.steps += 1;
        let scale = gradients.scale();
        let Some(shares) = self.shares.clone() else {
            // All parameters leave the module, so that each can be updated in place, and return afterwards.
            let mut taker = ParameterExtractor { gradients, taken: Vec::new(), shapes: BTreeMap::new() };
            let module = map_named(module, &mut taker);
            let values = self.update(learning_rate, scale, taker.taken).into_iter().collect();
            return map_named(module, &mut ParameterRestorer { values, shapes: taker.shapes });
        };
        // Every rank updates its share and receives the others.
        let moved = BTreeMap::new();
        let mut sharer = ShareUpdater { learning_rate, optimizer: self, gradients: &gradients, shares: &shares, moved };
        visit_named(&module, &mut sharer);
        let values = shares.gather_numbers(&sharer.moved);
        let Some(device) = &shares.device else { return module };
        let tensor = |(name, values): (String, Vec<f32>)| {
            let n = values.len();
            (name, long_lived_from(values, [n], device))
        };
        let values = values.into_iter().map(tensor).collect();
        map_named(module, &mut ParameterRestorer { values, shapes: BTreeMap::new() })
    }

    /// Updates parameters, given flat and without autodiff.
    fn update(&mut self, learning_rate: f64, scale: f32, taken: Vec<ExtractedParameter>) -> Vec<(String, Tensor<1>)> {
        let (config, steps) = (self.config, self.steps);
        let adamw_step = |config: AdamWConfig, decays: bool| AdamWStep {
            learning_rate,
            betas: (config.betas[0], config.betas[1]),
            epsilon: config.epsilon,
            weight_decay: if decays { config.weight_decay } else { 0.0 },
            step: steps,
            gradient_scale: f64::from(scale),
        };
        // Parameters that a GPU updates together, in few launches. Elsewhere they are updated one by one, so that the host holds only one
        // at a time.
        let (mut names, mut together, mut moved) = (Vec::new(), Vec::new(), Vec::new());
        for ExtractedParameter { name, values, gradient, decays } in taken {
            let [n] = values.dims();
            assert_eq!(gradient.dims(), [n], "gradient of `{name}`");
            let whole = self.shares.as_ref().map_or(n, |shares| shares.ranges[&name].len());
            let (values, gradient, back) = match &self.moments_device {
                Some(moments_device) if *moments_device != values.device() => {
                    let back = values.device();
                    (copied(values, moments_device), copied(gradient, moments_device), Some(back))
                }
                _ => (values, gradient, None),
            };
            let moments = self.moments.remove(&name);
            let moments = moments.unwrap_or_else(|| Moments::zeros(config, whole, n, &values.device()));
            assert_eq!(moments.numbers(), Some(n), "moments of `{name}`");
            let (values, moments) = match (config, moments) {
                (OptimizerConfig::AdamW(config), Moments::F32 { first: Some(first), second }) => {
                    let step = adamw_step(config, decays);
                    if back.is_none() {
                        let (first_moment, second_moment) = (first, second);
                        together.push(AdamWUpdate { parameter: values, gradient, first_moment, second_moment, step });
                        names.push(name);
                        continue;
                    }
                    let (values, first, second) = adamw(values, gradient, first, second, step);
                    (values, Moments::F32 { first: Some(first), second })
                }
                (OptimizerConfig::AdamW(config), Moments::Int8(mut moments)) => {
                    (moments.step(values, gradient, adamw_step(config, decays)), Moments::Int8(moments))
                }
                (OptimizerConfig::RmsProp(config), Moments::F32 { second, .. }) => {
                    let decay = if decays { config.weight_decay } else { 0.0 };
                    let (values, second) = rmsprop(values, gradient * scale, second, (learning_rate, decay), config);
                    (values, Moments::F32 { first: None, second })
                }
                (OptimizerConfig::AdamW(_), Moments::F32 { first: None, .. })
                | (OptimizerConfig::RmsProp(_), Moments::Int8(_)) => {
                    unreachable!("what is made and restored of `{name}` is of the optimizer's kind")
                }
            };
            self.moments.insert(name.clone(), moments);
            moved.push((name, home_again(values, back)));
        }
        for (name, [values, first, second]) in names.into_iter().zip(adamw_each(together)) {
            self.moments.insert(name.clone(), Moments::F32 { first: Some(first), second });
            moved.push((name, values));
        }
        moved
    }
}

/// Copies a tensor to another device.
fn copied(tensor: Tensor<1>, device: &Device) -> Tensor<1> {
    Tensor::from_data(tensor.into_data(), device)
}

/// Copies the tensor back to `from`, or returns it unchanged if `from` is `None`.
fn home_again(tensor: Tensor<1>, from: Option<Device>) -> Tensor<1> {
    match from {
        Some(from) => long_lived(&from, || copied(tensor, &from)),
        None => tensor,
    }
}

/// A parameter during a step, flat and without autodiff.
struct ExtractedParameter {
    name: String,
    values: Tensor<1>,
    gradient: Tensor<1>,
    decays: bool,
}

/// Returns true if a parameter with this number of dimensions decays. Biases, norms and T5's table of relative position biases do not.
fn is_decayed(dimensions: usize, name: &str) -> bool {
    dimensions > 1 && !name.contains("bias")
}

/// Takes one RMSprop step. Returns the parameter and the mean of its squared gradient.
fn rmsprop(
    values: Tensor<1>,
    gradient: Tensor<1>,
    second: Tensor<1>,
    (learning_rate, decay): (f64, f64),
    config: RmsPropConfig,
) -> (Tensor<1>, Tensor<1>) {
    let gradient = if decay == 0.0 { gradient } else { gradient + values.clone() * decay };
    let second = second * config.alpha + gradient.clone().square() * (1.0 - config.alpha);
    let root = second.clone().sqrt() + config.epsilon;
    (values - gradient / root * learning_rate, second)
}

/// Takes every parameter that has a gradient out of its module and leaves an empty tensor.
struct ParameterExtractor {
    gradients: GradientSum,
    taken: Vec<ExtractedParameter>,
    shapes: BTreeMap<String, Vec<usize>>,
}

impl NamedMapper for ParameterExtractor {
    fn map<const D: usize>(&mut self, name: String, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(gradient) = self.gradients.take(&name) else { return param };
        param.map(|value| {
            let (shape, tracked) = (value.dims(), value.is_autodiff());
            let values = value.inner().reshape(gradient.dims());
            let empty = Tensor::empty([0; D], &values.device());
            self.shapes.insert(name.clone(), shape.to_vec());
            let decays = is_decayed(D, &name);
            self.taken.push(ExtractedParameter { name, values, gradient, decays });
            if tracked { empty.autodiff().require_grad() } else { empty }
        })
    }
}

/// Updates this rank's share of every parameter that has a gradient.
struct ShareUpdater<'a> {
    learning_rate: f64,
    optimizer: &'a mut Optimizer,
    gradients: &'a GradientSum,
    shares: &'a Shares,
    moved: BTreeMap<String, Vec<f32>>,
}

impl NamedVisitor for ShareUpdater<'_> {
    fn visit<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.sum(&name) else { return };
        let own = self.shares.own(&name);
        if own.is_empty() {
            self.moved.insert(name, Vec::new());
            return;
        }
        // Copied, because the kernels write in place.
        let part = |whole: Tensor<1>| flat_gradient(whole.slice([own.clone()]));
        let values = part(param.val().inner().reshape(gradient.dims()));
        let decays = is_decayed(D, &name);
        let taken = ExtractedParameter { name, values, gradient: part(gradient.clone()), decays };
        let moved = self.optimizer.update(self.learning_rate, self.gradients.scale(), vec![taken]);
        self.moved.extend(moved.into_iter().map(|(name, values)| (name, host_values(values).to_vec())));
    }
}

/// Puts flat values back into the parameters of a module.
struct ParameterRestorer {
    values: BTreeMap<String, Tensor<1>>,
    /// Shapes of the parameters that were taken out.
    shapes: BTreeMap<String, Vec<usize>>,
}

impl NamedMapper for ParameterRestorer {
    fn map<const D: usize>(&mut self, name: String, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(values) = self.values.remove(&name) else { return param };
        param.map(|value| {
            let shape = self.shapes.get(&name).and_then(|shape| shape.as_slice().try_into().ok());
            let (shape, tracked) = (shape.unwrap_or_else(|| value.dims()), value.is_autodiff());
            let filled = values.reshape(shape);
            if tracked { filled.autodiff().require_grad() } else { filled }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Module, Debug)]
    struct Line {
        weight: Param<Tensor<2>>,
        bias: Param<Tensor<1>>,
    }

    fn line() -> Line {
        let device = Device::flex().autodiff();
        Line {
            weight: Param::from_tensor(Tensor::from_floats([[1.0, -2.0]], &device)),
            bias: Param::from_tensor(Tensor::from_floats([0.5], &device)),
        }
    }

    /// Gradient of `scale · (3 w₀ + 4 w₁ + 12 b)`: `scale · (3, 4, 12)`, of norm `13 · scale`.
    fn gradient(line: &Line, scale: f32) -> GradientSum {
        let device = Device::flex().autodiff();
        let x = Tensor::<2>::from_floats([[3.0, 4.0]], &device);
        let loss = ((line.weight.val() * x).sum() + line.bias.val().sum() * 12.0) * scale;
        let mut sum = GradientSum::default();
        sum.add(line, &mut loss.backward());
        sum
    }

    fn values(line: &Line) -> Vec<f32> {
        let mut all = host_values(line.weight.val().inner()).to_vec();
        all.extend(&*host_values(line.bias.val().inner()));
        all
    }

    /// `Trainer.get_decay_parameter_names` of transformers 5.23 leaves out the same parameters.
    #[test]
    fn biases_and_norms_do_not_decay() {
        let block = "trunk.encoder.block.0.layer.0";
        for (dimensions, name, decays) in [
            (2, "SelfAttention.q.weight", true),
            (2, "SelfAttention.relative_attention_bias.weight", false),
            (1, "layer_norm.weight", false),
        ] {
            assert_eq!(is_decayed(dimensions, &format!("{block}.{name}")), decays, "{name}");
        }
        assert!(!is_decayed(1, "trunk.h.0.attn.c_attn.bias") && is_decayed(2, "trunk.shared.weight"));
    }

    const CONFIG: AdamWConfig =
        AdamWConfig { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.1, moments: MomentFormat::F32 };

    #[test]
    fn two_steps_by_hand() {
        // Step 1: m̂ = g and √v̂ = |g|, so every parameter moves by η = 0.01 against its sign; the weight decays first.
        // w₀ = 1·(1 − 0.001) − 0.01 = 0.989; w₁ = −2·0.999 − 0.01 = −2.008; b = 0.5 − 0.01 = 0.49 (never decayed).
        // Step 2 with g' = −g: m = 0.9·0.1 g − 0.1 g = −0.01 g, m̂ = −0.01 g / 0.19, v̂ = g², so each moves by +0.01·0.0526316.
        // w₀ = 0.989·0.999 + 0.000526316 = 0.988537316; w₁ = −2.008·0.999 + 0.000526316; b = 0.490526316.
        let mut optimizer = Optimizer::new(CONFIG);
        let line = line();
        let sum = gradient(&line, 1.0);
        let line = optimizer.step(0.01, line, sum);
        close(&values(&line), &[0.989, -2.008, 0.49]);
        let sum = gradient(&line, -1.0);
        let line = optimizer.step(0.01, line, sum);
        close(&values(&line), &[0.988_537_3, -2.005_465_7, 0.490_526_3]);
        assert_eq!(optimizer.steps(), 2);
        assert_eq!(optimizer.moments().keys().collect::<Vec<_>>(), ["bias", "weight"]);
    }

    #[test]
    fn micro_batches_add_up_and_clipping_scales_to_the_norm() {
        let line = line();
        let mut sum = gradient(&line, 0.5);
        let device = Device::flex().autodiff();
        let rest =
            (line.weight.val() * Tensor::<2>::from_floats([[1.5, 2.0]], &device)).sum() + line.bias.val().sum() * 6.0;
        sum.add(&line, &mut rest.backward());
        assert_eq!(sum.get("weight"), Some(vec![3.0, 4.0]));
        assert!((sum.norm() - 13.0).abs() < 1e-12);
        assert!((sum.clip(0.0) - 13.0).abs() < 1e-12, "0 turns clipping off");
        assert_eq!(sum.get("bias"), Some(vec![12.0]));
        assert!((sum.clip(6.5) - 13.0).abs() < 1e-12, "the norm before clipping is returned");
        close(&sum.get("weight").unwrap(), &[1.5, 2.0]);
        close(&sum.get("bias").unwrap(), &[6.0]);
        assert_eq!(sum.first_not_finite(), None);
    }

    #[test]
    fn a_parameter_without_gradient_stays() {
        let line = line();
        let mut sum = GradientSum::default();
        sum.add(&line, &mut line.bias.val().sum().backward());
        let stepped = Optimizer::new(CONFIG).step(0.1, line, sum);
        close(&values(&stepped), &[1.0, -2.0, 0.4]);
    }

    fn close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 2e-6, "{found} against {expected}");
        }
    }
}
