//! A tensor whose gradient is told as soon as the backward pass has all of it.
//!
//! A backward pass visits operations by their depth, the deepest first. The depth of an operation is one more than that of its deepest input, and
//! a parameter has none. So an operation on a parameter alone would be among the last that are visited. A [`Place`] gives it the depth that it
//! has by its place in the network.

use std::fmt::{Debug, Formatter};
use std::sync::Mutex;

use burn::tensor::{Device, Tensor};

use crate::fused::{Dense, Op, apply, is_cpu};
use crate::gradient::flat_gradient;

/// Whether [`watched`] tells of gradients on `device`.
pub fn can_watch(device: &Device) -> bool {
    is_cpu(device)
}

/// A depth in the graph of a forward pass.
#[derive(Debug)]
pub struct Place(Tensor<1>);

impl Place {
    /// How much deeper the next place is. The operations between one parameter and the next are fewer, so no place is less deep than what lies
    /// before it in the network. Where they are more, gradients are told later, and no number changes.
    const DEPTH: usize = 6;

    /// The place of the first parameter.
    pub fn first(device: &Device) -> Self {
        Self(Tensor::zeros([1], &device.clone().inner().autodiff()))
    }

    /// The place of the parameter after that of this place.
    #[must_use]
    pub fn next(&self) -> Self {
        Self((0..Self::DEPTH).fold(self.0.clone(), |x, _| apply(Deeper, vec![x.into_dispatch()])))
    }
}

#[derive(Debug)]
struct Deeper;

impl Op for Deeper {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        (inputs[0].clone(), Vec::new())
    }

    fn backward(&self, _: &[Dense], _: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        unreachable!("places are not tracked")
    }
}

/// `x` itself. In the backward pass `ready` receives the sum of the gradients of all that read the result, flat and without autodiff;
/// `x` gets no gradient. `place` decides when: after the operations that are deeper, and before those that are not as deep.
///
/// # Panics
/// When something goes back through the result twice, and where [`can_watch`] is false.
pub fn watched<const R: usize>(
    x: Tensor<R>,
    place: &Place,
    ready: impl FnOnce(Tensor<1>) + Send + 'static,
) -> Tensor<R> {
    assert!(can_watch(&x.device()), "no kernel watches on this device");
    let watch = Watch::<R>(Mutex::new(Some(Box::new(ready))));
    apply(watch, vec![x.into_dispatch(), place.0.clone().into_dispatch()])
}

/// Receives a gradient.
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
            // The first is read twice.
            let y = x.clone().matmul(first.clone()).tanh().matmul(second).tanh().matmul(first);
            (y.clone() * y).sum()
        };
        let mut gradients = loss(first.clone(), second.clone()).backward();
        let expected = [&first, &second].map(|w| host(w.grad_remove(&mut gradients).expect("a gradient")));
        let (sender, found) = channel();
        let place = Place::first(&x.device());
        let places = [place.next(), place];
        let [later, earlier] = &places;
        let watch = |w: &Tensor<2>, place: &Place, number: usize| {
            let sender = sender.clone();
            watched(w.clone(), place, move |gradient| sender.send((number, host(gradient))).expect("it is received"))
        };
        let gradients = loss(watch(&first, earlier, 0), watch(&second, later, 1)).backward();
        assert!(first.grad(&gradients).is_none(), "it was handed over");
        let [of_first, of_second] = expected;
        assert_eq!(found.try_iter().collect::<Vec<_>>(), [(1, of_second), (0, of_first)]);
    }
}
