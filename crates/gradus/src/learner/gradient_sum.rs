//! The sum of the gradients of passes, parameter by parameter.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};
use gradus_kernels::{add_gradient, flat_gradient, host_values, sum_of_squares};

use crate::model::NamePath;
use crate::ranks::Summand;

/// Gradients summed over the micro-batches of one optimizer step, by parameter name.
#[derive(Debug, Clone)]
pub struct GradientSum {
    /// Each flat, without autodiff.
    sums: BTreeMap<String, Tensor<1>>,
    /// What clipping multiplies them with; the step does it on its way.
    scale: f32,
}

impl Default for GradientSum {
    fn default() -> Self {
        Self { sums: BTreeMap::new(), scale: 1.0 }
    }
}

impl GradientSum {
    /// Adds what one backward pass gave for the parameters of `module`.
    pub fn add<M: Module>(&mut self, module: &M, gradients: &mut Gradients) {
        module.visit(&mut Collector { path: NamePath::default(), sums: &mut self.sums, gradients });
    }

    /// Euclidean norm over all gradients before clipping, as in `torch.nn.utils.clip_grad_norm_`: accumulated in f64.
    pub fn norm(&self) -> f64 {
        sum_of_squares(self.sums.values()).sqrt()
    }

    /// The first parameter, in order of names, whose gradient holds a NaN or an infinity.
    pub fn first_not_finite(&self) -> Option<&str> {
        let is_broken = |gradient: &Tensor<1>| host_values(gradient.clone()).iter().any(|x| !x.is_finite());
        self.sums.iter().find(|(_, gradient)| is_broken(gradient)).map(|(name, _)| name.as_str())
    }

    /// Scales all gradients down so that their norm is at most `max_norm`; 0 turns clipping off.
    ///
    /// Multiplies by `min(1, max_norm / (norm + 1e-6))`, PyTorch's form. Returns the norm before clipping.
    pub fn clip(&mut self, max_norm: f64) -> f64 {
        self.clip_beside(max_norm, 0.0)
    }

    /// [`clip`](Self::clip), so that the norm of these and of other gradients, which is `others`, is together at most
    /// `max_norm`. Returns the norm of these.
    pub fn clip_beside(&mut self, max_norm: f64, others: f64) -> f64 {
        let norm = self.norm();
        let factor = (max_norm / (norm.hypot(others) + 1e-6)) as f32;
        self.scale = if max_norm > 0.0 && factor < 1.0 { factor } else { 1.0 };
        norm
    }

    /// The gradient of one parameter, clipped, on the host.
    pub fn get(&self, name: &str) -> Option<Vec<f32>> {
        let gradient = host_values(self.sums.get(name)?.clone());
        Some(gradient.iter().map(|x| x * self.scale).collect())
    }

    /// The sum for one parameter, not clipped, on its device.
    pub fn sum(&self, name: &str) -> Option<&Tensor<1>> {
        self.sums.get(name)
    }

    /// The sum for one parameter, which leaves, not clipped.
    pub(super) fn take(&mut self, name: &str) -> Option<Tensor<1>> {
        self.sums.remove(name)
    }

    /// The factor that clipping asks for; the step multiplies the sums with it.
    pub(super) fn scale(&self) -> f32 {
        self.scale
    }

    /// Whether no backward pass has been added.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }
}

impl FromIterator<(String, Tensor<1>)> for GradientSum {
    /// The sums of parameters by name, each flat and without autodiff.
    fn from_iter<I: IntoIterator<Item = (String, Tensor<1>)>>(sums: I) -> Self {
        Self { sums: sums.into_iter().collect(), ..Self::default() }
    }
}

/// The gradient of one parameter, flat and without autodiff.
#[derive(Debug, Clone)]
pub(super) struct Flat(pub Tensor<1>);

impl Summand for Flat {
    fn plus(self, other: Self) -> Self {
        Self(add_gradient(self.0, other.0))
    }
}

impl Summand for GradientSum {
    fn plus(mut self, other: Self) -> Self {
        for (name, gradient) in other.sums {
            let sum = match self.sums.remove(&name) {
                Some(sum) => add_gradient(sum, gradient),
                None => gradient,
            };
            self.sums.insert(name, sum);
        }
        self
    }
}

struct Collector<'a> {
    path: NamePath,
    sums: &'a mut BTreeMap<String, Tensor<1>>,
    gradients: &'a mut Gradients,
}

impl ModuleVisitor for Collector<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        let Some(gradient) = param.val().grad_remove(self.gradients) else { return };
        let (name, gradient) = (self.path.name(), flat_gradient(gradient));
        // Taken out for the moment: a sum that nobody else holds grows in place.
        let sum = match self.sums.remove(&name) {
            Some(sum) => add_gradient(sum, gradient),
            None => gradient,
        };
        self.sums.insert(name, sum);
    }
}
