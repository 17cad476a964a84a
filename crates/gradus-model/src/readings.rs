//! Values of a device that are read after a step has queued all of its work.

use burn::tensor::Tensor;
use gradus_core::stats::Stats;

use crate::host::read_all;

/// Values that are copied to the host later, all at once.
///
/// A step can so queue its backward pass on the device before it waits for the values of its forward pass.
pub struct Readings<S> {
    /// Without gradient, so that they keep no graph in memory.
    tensors: Vec<Tensor<1>>,
    uses: Vec<Use<S>>,
}

/// Takes the values of its tensors from the front of the list.
type Use<S> = Box<dyn FnOnce(&mut std::vec::IntoIter<Vec<f32>>, &mut S)>;

impl<S> Default for Readings<S> {
    fn default() -> Self {
        Self { tensors: Vec::new(), uses: Vec::new() }
    }
}

impl<S> Readings<S> {
    /// Passes the values of `tensors`, each flat and of any length, to `then` when all values are read. No gradient flows to them. The
    /// functions are called in the order of these calls.
    pub fn later<const N: usize>(
        &mut self,
        tensors: [&Tensor<1>; N],
        then: impl FnOnce([Vec<f32>; N], &mut S) + 'static,
    ) {
        self.tensors.extend(tensors.map(|tensor| tensor.clone().inner()));
        self.uses.push(Box::new(move |values, into| {
            then(std::array::from_fn(|_| values.next().expect("one list per tensor")), into);
        }));
    }

    /// Waits once for all values and for those of `others`, and calls the functions with `into`. Returns the values of `others`,
    /// which are flat and get no gradient.
    pub fn read(self, others: &[Tensor<1>], into: &mut S) -> Vec<Vec<f32>> {
        let tensors: Vec<&Tensor<1>> = others.iter().chain(&self.tensors).collect();
        let mut values = if tensors.is_empty() { Vec::new() } else { read_all(&tensors) }.into_iter();
        let of_others = values.by_ref().take(others.len()).collect();
        self.uses.into_iter().for_each(|then| then(&mut values, into));
        of_others
    }
}

impl Readings<Stats> {
    /// Adds the values of `tensor`, a flat one, as observations of `name`. No gradient flows to it.
    pub fn mean_of(&mut self, name: &'static str, tensor: &Tensor<1>) {
        self.later([tensor], move |[values], stats| stats.mean_of(name, &values));
    }
}
