//! Reports a tensor's gradient as soon as the backward pass has computed all of it.
//!
//! A backward pass visits operations by depth, the deepest first. The depth of an operation is one more than that of its deepest input, and
//! a parameter has depth 0. So an operation on a parameter alone would be among the last to be visited. A [`GraphDepth`] gives it a depth
//! that corresponds to its position in the network.

use std::fmt::{Debug, Formatter};
use std::sync::Mutex;

use burn::tensor::{Device, Tensor};

use crate::fused::{Dense, Op, apply, is_cpu};
use crate::gradient::flat_gradient;

/// Whether [`watched`] reports gradients on `device`.
pub fn can_watch(device: &Device) -> bool {
    is_cpu(device)
}

/// A depth in the graph of a forward pass.
#[derive(Debug)]
pub struct GraphDepth(Tensor<1>);

impl GraphDepth {
    /// Increase of depth from one parameter to the next. Between one parameter and the next there are fewer operations, so the depth of a
    /// parameter is at least that of all operations before it in the network. If there are more, gradients are reported later, but no
    /// number changes.
    const INCREASE: usize = 6;

    /// Depth of the first parameter.
    pub fn first(device: &Device) -> Self {
        Self(Tensor::zeros([1], &device.clone().inner().autodiff()))
    }

    /// Depth of the parameter after this one.
    #[must_use]
    pub fn next(&self) -> Self {
        Self((0..Self::INCREASE).fold(self.0.clone(), |x, _| apply(Deeper, vec![x.into_dispatch()])))
    }
}

#[derive(Debug)]
struct Deeper;

impl Op for Deeper {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        (inputs[0].clone(), Vec::new())
    }

    fn backward(&self, _: &[Dense], _: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        unreachable!("depths are not tracked")
    }
}

/// Returns `x` itself. In the backward pass, `ready` receives the sum of the gradients of all readers of the result, flat and without
/// autodiff. `x` gets no gradient. `depth` determines the time: after the deeper operations, and before the less deep ones.
///
/// `x` may have any shape. The result has the same shape.
///
/// # Panics
/// If two backward passes go through the result, or if [`can_watch`] is false.
pub fn watched<const R: usize>(
    x: Tensor<R>,
    depth: &GraphDepth,
    ready: impl FnOnce(Tensor<1>) + Send + 'static,
) -> Tensor<R> {
    assert!(can_watch(&x.device()), "no kernel watches on this device");
    let watch = Watch::<R>(Mutex::new(Some(Box::new(ready))));
    apply(watch, vec![x.into_dispatch(), depth.0.clone().into_dispatch()])
}

/// Callback that receives a gradient.
type Ready = Box<dyn FnOnce(Tensor<1>) + Send>;

struct Watch<const R: usize>(Mutex<Option<Ready>>);

impl<const R: usize> Debug for Watch<R> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl<const R: usize> Op for Watch<R> {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        (inputs[0].clone(), Vec::new())
    }

    fn backward(&self, _: &[Dense], grad: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        let ready = self.0.lock().expect("one backward pass").take().expect("one backward pass");
        ready(flat_gradient(grad.tensor::<R>()));
        vec![None, None]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::fused::testing::{host, leaf};

    #[test]
    fn gradients_are_whole_and_come_from_the_end_of_the_network() {
        let (x, first, second) = (leaf([3, 4], 1), leaf([4, 4], 2), leaf([4, 4], 3));
        let loss = |first: Tensor<2>, second: Tensor<2>| {
            // The first weight is read twice.
            let y = x.clone().matmul(first.clone()).tanh().matmul(second).tanh().matmul(first);
            (y.clone() * y).sum()
        };
        let mut gradients = loss(first.clone(), second.clone()).backward();
        let expected = [&first, &second].map(|w| host(w.grad_remove(&mut gradients).expect("a gradient")));
        let (sender, found) = channel();
        let depth = GraphDepth::first(&x.device());
        let depths = [depth.next(), depth];
        let [later, earlier] = &depths;
        let watch = |w: &Tensor<2>, depth: &GraphDepth, number: usize| {
            let sender = sender.clone();
            watched(w.clone(), depth, move |gradient| sender.send((number, host(gradient))).expect("it is received"))
        };
        let gradients = loss(watch(&first, earlier, 0), watch(&second, later, 1)).backward();
        assert!(first.grad(&gradients).is_none(), "it was handed over");
        let [of_first, of_second] = expected;
        assert_eq!(found.try_iter().collect::<Vec<_>>(), [(1, of_second), (0, of_first)]);
    }
}
