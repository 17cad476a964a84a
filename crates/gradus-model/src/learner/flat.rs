//! A learner's parameters and gradient as one vector each, for steps without an optimizer: conjugate gradients, line searches.
//!
//! Parameters follow each other in the order of their names. The vectors leave out weights that are not trained, such as frozen weights and
//! the base model under an adapter.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::Learner;
use crate::model::{NamedMapper, NamedVisitor, map_named, visit_named};

/// Range of one parameter in the vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterRange {
    /// Path in the module.
    pub name: String,
    /// Range of its numbers.
    pub range: Range<usize>,
    /// Shape, outer to inner.
    pub shape: Vec<usize>,
}

impl<M: Module> Learner<M> {
    /// Returns the range of each trained parameter, in order.
    pub fn layout(&self) -> Vec<ParameterRange> {
        let mut found = ParameterCollector::default();
        visit_named(self.module(), &mut found);
        let mut end = 0;
        let range = |(name, (shape, _)): (String, (Vec<usize>, _))| {
            let start = end;
            end += shape.iter().product::<usize>();
            ParameterRange { name, range: start..end, shape }
        };
        found.parameters.into_iter().map(range).collect()
    }

    /// Returns all trained parameters, end to end in the order of their names, `[P]`. It carries no gradient.
    pub fn parameters(&self) -> Tensor<1> {
        let mut found = ParameterCollector::default();
        visit_named(self.module(), &mut found);
        Tensor::cat(found.parameters.into_values().map(|(_, values)| values).collect(), 0)
    }

    /// Returns the accumulated gradient, not clipped, `[P]`, in the order of [`parameters`](Self::parameters). Parameters that no loss reached have gradient 0. The gradient stays
    /// accumulated.
    pub fn gradient(&self) -> Tensor<1> {
        let device = self.parameters().device();
        let of = |parameter: ParameterRange| match self.gradients.sum(&parameter.name) {
            Some(sum) => sum.clone(),
            None => Tensor::zeros([parameter.range.len()], &device),
        };
        Tensor::cat(self.layout().into_iter().map(of).collect(), 0)
    }

    /// Replaces all trained parameters with `flat`, `[P]`, bit for bit. No gradient flows to `flat`. The optimizer keeps its state.
    ///
    /// # Panics
    /// If `flat` does not have one number per parameter.
    pub fn set_parameters(&mut self, flat: &Tensor<1>) {
        let layout = self.layout();
        assert_eq!(flat.dims(), [layout.last().map_or(0, |parameter| parameter.range.end)], "one number per parameter");
        let ranges = layout.into_iter().map(|parameter| (parameter.name, parameter.range)).collect();
        self.change(|_, module| map_named(module, &mut Setter { ranges, flat }));
    }
}

impl<M: Module> Learner<M> {
    /// Returns the module without autodiff and with `flat`, `[P]`, in place of all trained parameters. Other weights are shared.
    ///
    /// # Panics
    /// If `flat` does not have one number per parameter.
    pub fn frozen_with(&self, flat: &Tensor<1>) -> M {
        let layout = self.layout();
        assert_eq!(flat.dims(), [layout.last().map_or(0, |parameter| parameter.range.end)], "one number per parameter");
        let ranges = layout.into_iter().map(|parameter| (parameter.name, parameter.range)).collect();
        map_named(self.frozen(), &mut Setter { ranges, flat })
    }
}

/// Shapes and values of trained parameters, by name.
#[derive(Default)]
struct ParameterCollector {
    parameters: BTreeMap<String, (Vec<usize>, Tensor<1>)>,
}

impl NamedVisitor for ParameterCollector {
    fn visit<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>) {
        if param.is_require_grad() {
            let values = param.val().inner();
            let shape = values.dims().to_vec();
            let n = shape.iter().product::<usize>();
            self.parameters.insert(name, (shape, values.reshape([n])));
        }
    }
}

struct Setter<'a> {
    ranges: BTreeMap<String, Range<usize>>,
    flat: &'a Tensor<1>,
}

impl NamedMapper for Setter<'_> {
    fn map<const D: usize>(&mut self, name: String, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(range) = self.ranges.remove(&name) else { return param };
        param.map(|value| {
            let (shape, tracked, n) = (value.dims(), value.is_autodiff(), range.len());
            let whole = 0..n;
            // Copied, because a view would keep the whole vector in memory.
            let own = Tensor::<1>::zeros([n], &value.device().inner());
            let set = own.slice_assign([whole], self.flat.clone().inner().slice([range])).reshape(shape);
            if tracked { set.autodiff().require_grad() } else { set }
        })
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::host::read;
    use crate::learner::optimizer::{AdamWConfig, MomentFormat, Optimizer};

    #[derive(Module, Debug)]
    struct Curve {
        slope: Param<Tensor<2>>,
        frozen: Param<Tensor<1>>,
        bias: Param<Tensor<1>>,
    }

    fn learner() -> Learner<Curve> {
        let device = Device::flex().autodiff();
        let module = Curve {
            slope: Param::from_tensor(Tensor::from_floats([[1.0, -2.0], [-0.0, 1e-40]], &device)),
            frozen: Param::from_tensor(Tensor::from_floats([7.0], &device)).set_require_grad(false),
            bias: Param::from_tensor(Tensor::from_floats([0.5], &device)),
        };
        Learner::new(
            module,
            Optimizer::new(AdamWConfig {
                betas: [0.9, 0.999],
                epsilon: 1e-8,
                weight_decay: 0.0,
                moments: MomentFormat::F32,
            }),
        )
    }

    /// `(w₀₀ + 2·w₀₁ − 1)² + frozen`: at (1, −2) the inner value is −4, so the gradient is −8 and −16 there.
    fn loss(learner: &Learner<Curve>) -> Tensor<1> {
        let Curve { slope, frozen, .. } = learner.module();
        let x = Tensor::<2>::from_floats([[1.0, 2.0], [0.0, 0.0]], &slope.val().device());
        ((slope.val() * x).sum() - 1.0).square() + frozen.val().sum()
    }

    fn bits(values: &Tensor<1>) -> Vec<u32> {
        read(values).iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn parameters_lie_in_the_order_of_their_names() {
        let learner = learner();
        let parameter =
            |name: &str, range, shape: &[usize]| ParameterRange { name: name.into(), range, shape: shape.to_vec() };
        assert_eq!(learner.layout(), [parameter("bias", 0..1, &[1]), parameter("slope", 1..5, &[2, 2])]);
        assert_eq!(read(&learner.parameters()), [0.5, 1.0, -2.0, 0.0, 1e-40]);
    }

    #[test]
    fn setting_what_was_read_changes_no_bit() {
        let mut learner = learner();
        let (before, version) = (learner.parameters(), learner.version());
        learner.set_parameters(&(before.clone() + 1.0));
        assert_eq!(read(&learner.parameters())[1..3], [2.0, -1.0]);
        learner.set_parameters(&before);
        assert_eq!(bits(&learner.parameters()), bits(&before), "−0 and a subnormal number included");
        assert_eq!(read(&learner.module().frozen.val()), [7.0]);
        assert_eq!(learner.version(), version + 2);
        assert!(learner.module().slope.val().is_require_grad() && !learner.module().frozen.is_require_grad());
    }

    #[test]
    fn a_copy_with_other_parameters_leaves_the_learner_alone() {
        let learner = learner();
        let (before, version) = (learner.parameters(), learner.version());
        let copy = learner.frozen_with(&(before.clone() * 2.0));
        assert_eq!(read(&copy.slope.val().reshape([4]))[..3], [2.0, -4.0, 0.0]);
        assert_eq!((read(&copy.frozen.val()), read(&copy.bias.val())), (vec![7.0], vec![1.0]));
        assert!(!copy.slope.val().is_autodiff());
        assert_eq!((bits(&learner.parameters()), learner.version()), (bits(&before), version));
    }

    #[test]
    fn against_the_gradient_the_loss_falls() {
        let mut learner = learner();
        let first = loss(&learner);
        learner.accumulate(&first);
        assert_eq!(read(&learner.gradient()), [0.0, -8.0, -16.0, 0.0, 0.0], "no loss came back to the bias");
        // (1 + 0.08) + 2·(−2 + 0.16) − 1 = −3.6
        learner.set_parameters(&(learner.parameters() - learner.gradient() * 0.01));
        let second = read(&loss(&learner))[0];
        assert!(read(&first)[0] == 23.0 && (second - 19.96).abs() < 1e-5, "{second}");
        learner.accumulate(&loss(&learner));
        let twice = read(&learner.gradient());
        assert!((twice[1] + 8.0 + 7.2).abs() < 1e-5, "gradients add up: {twice:?}");
        learner.discard();
        assert_eq!(read(&learner.gradient()), [0.0; 5]);
    }

    #[test]
    #[should_panic(expected = "one number per parameter")]
    fn a_vector_of_another_length_is_refused() {
        let mut learner = learner();
        learner.set_parameters(&(learner.parameters().narrow(0, 0, 4)));
    }
}
