//! Sums of the gradients of several passes, one per parameter.

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::tensor::{Gradients, Tensor};
use gradus_kernels::{add_gradient, flat_gradient, host_values, sum_of_squares};

use crate::model::{NamedVisitor, visit_named};
use crate::ranks::Summand;

/// Gradients summed over the micro-batches of one optimizer step, by parameter name.
#[derive(Debug, Clone)]
pub struct GradientSum {
    /// Flat and without autodiff.
    sums: BTreeMap<String, Tensor<1>>,
    /// Factor of clipping. The optimizer step applies it, to save a pass over the gradients.
    scale: f32,
}

impl Default for GradientSum {
    fn default() -> Self {
        Self { sums: BTreeMap::new(), scale: 1.0 }
    }
}

impl GradientSum {
    /// Adds the gradients of one backward pass for the parameters of `module`.
    pub fn add<M: Module>(&mut self, module: &M, gradients: &mut Gradients) {
        visit_named(module, &mut Collector { sums: &mut self.sums, gradients });
    }

    /// Returns the Euclidean norm over all gradients before clipping, accumulated in f64, as in `torch.nn.utils.clip_grad_norm_`.
    pub fn norm(&self) -> f64 {
        sum_of_squares(self.sums.values()).sqrt()
    }

    /// Returns the first parameter, in order of names, whose gradient contains a NaN or an infinity.
    pub fn first_not_finite(&self) -> Option<&str> {
        let is_broken = |gradient: &Tensor<1>| host_values(gradient.clone()).iter().any(|x| !x.is_finite());
        self.sums.iter().find(|(_, gradient)| is_broken(gradient)).map(|(name, _)| name.as_str())
    }

    /// Scales all gradients down so that their norm is at most `max_norm`; 0 turns clipping off.
    ///
    /// Multiplies by `min(1, max_norm / (norm + 1e-6))`, PyTorch's form. Returns the norm before clipping.
    pub fn clip(&mut self, max_norm: f64) -> f64 {
        self.clip_by_joint_norm(max_norm, 0.0)
    }

    /// Clips as [`clip`](Self::clip) does, but by the joint norm of these gradients and of other gradients whose norm is `others`. Returns
    /// the norm of these gradients alone.
    pub fn clip_by_joint_norm(&mut self, max_norm: f64, others: f64) -> f64 {
        let norm = self.norm();
        let factor = (max_norm / (norm.hypot(others) + 1e-6)) as f32;
        self.scale = if max_norm > 0.0 && factor < 1.0 { factor } else { 1.0 };
        norm
    }

    /// Returns the gradient of one parameter, clipped, on the host.
    pub fn get(&self, name: &str) -> Option<Vec<f32>> {
        let gradient = host_values(self.sums.get(name)?.clone());
        Some(gradient.iter().map(|x| x * self.scale).collect())
    }

    /// Returns the sum for one parameter, not clipped, on its device. It is flat and not tracked by autodiff.
    pub fn sum(&self, name: &str) -> Option<&Tensor<1>> {
        self.sums.get(name)
    }

    /// Removes and returns the sum for one parameter, not clipped.
    pub(super) fn take(&mut self, name: &str) -> Option<Tensor<1>> {
        self.sums.remove(name)
    }

    /// Factor of clipping, which the optimizer step applies.
    pub(super) fn scale(&self) -> f32 {
        self.scale
    }

    /// Returns true if no backward pass has been added.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }
}

impl FromIterator<(String, Tensor<1>)> for GradientSum {
    /// Takes the sums by parameter name, each flat and without autodiff.
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
    sums: &'a mut BTreeMap<String, Tensor<1>>,
    gradients: &'a mut Gradients,
}

impl NamedVisitor for Collector<'_> {
    fn visit<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        let Some(gradient) = param.val().grad_remove(self.gradients) else { return };
        let gradient = flat_gradient(gradient);
        // Removed from the map, so that the addition can reuse the sum's memory.
        let sum = match self.sums.remove(&name) {
            Some(sum) => add_gradient(sum, gradient),
            None => gradient,
        };
        self.sums.insert(name, sum);
    }
}
