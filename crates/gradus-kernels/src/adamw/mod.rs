//! One AdamW step over one parameter, in place and in one pass.
//!
//! `m ← β₁m + (1 − β₁)g`, `v ← β₂v + (1 − β₂)g²`,
//! `θ ← θ(1 − λη) − η · (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)`.
//! Loshchilov & Hutter 2019, <https://arxiv.org/abs/1711.05101>; the order of operations is PyTorch's.

mod int8;
mod step;

use burn::tensor::Tensor;
pub use int8::Int8Moments;
use rayon::prelude::*;
pub use step::AdamWStep;
pub(crate) use step::Rates;
use step::update;

use crate::fused::{Dense, is_cpu};
use crate::host::dense;

/// Elements per parallel task.
const CHUNK: usize = 64 * 1024;

/// A parameter with everything that one step needs. All tensors are flat and have the same length. None of the tensors is tracked by
/// autodiff.
#[derive(Debug)]
pub struct AdamWUpdate {
    /// The parameter.
    pub parameter: Tensor<1>,
    /// Its gradient.
    pub gradient: Tensor<1>,
    /// The decaying mean of its gradient.
    pub first_moment: Tensor<1>,
    /// The decaying mean of the square of its gradient.
    pub second_moment: Tensor<1>,
    /// The hyperparameters of the step.
    pub step: AdamWStep,
}

/// Updates parameters and their moments. Returns each parameter with both moments, in the same order. Their steps may differ only in the
/// weight decay. No tensor is tracked by autodiff. A GPU updates many parameters in one launch.
///
/// Buffers are reused if the caller holds the only handles.
pub fn adamw_each(updates: Vec<AdamWUpdate>) -> Vec<[Tensor<1>; 3]> {
    #[cfg(feature = "gpu")]
    if updates.first().is_some_and(|update| crate::fused::gpu(&update.parameter.device()).is_some())
        && updates.iter().all(|update| has_kernel(&update.parameter))
    {
        use crate::gpu::{adamw, cube_of, tensor_of};
        let moved = |update: AdamWUpdate| {
            let AdamWUpdate { parameter, gradient, first_moment, second_moment, step } = update;
            ([parameter, first_moment, second_moment].map(cube_of), cube_of(gradient), Rates::new(&step))
        };
        let moved = adamw::update_each(updates.into_iter().map(moved).collect());
        return moved.into_iter().map(|tensors| tensors.map(tensor_of)).collect();
    }
    let one = |update: AdamWUpdate| {
        let AdamWUpdate { parameter, gradient, first_moment, second_moment, step } = update;
        adamw(parameter, gradient, first_moment, second_moment, step).into()
    };
    updates.into_iter().map(one).collect()
}

/// Updates `parameter` and both moments, and returns them in this order. All tensors have the same shape, and none is
/// tracked by autodiff.
///
/// Buffers are reused if the caller holds the only handle.
pub fn adamw<const R: usize>(
    parameter: Tensor<R>,
    gradient: Tensor<R>,
    first_moment: Tensor<R>,
    second_moment: Tensor<R>,
    step: AdamWStep,
) -> (Tensor<R>, Tensor<R>, Tensor<R>) {
    if !has_kernel(&parameter) {
        return reference(parameter, gradient, first_moment, second_moment, step);
    }
    #[cfg(feature = "gpu")]
    if crate::fused::gpu(&parameter.device()).is_some() {
        use crate::gpu::{adamw, cube_of, tensor_of};
        let tensors = [parameter, first_moment, second_moment].map(cube_of);
        let moved = adamw::update_each(vec![(tensors, cube_of(gradient), Rates::new(&step))]);
        return moved.into_iter().next().expect("one was moved").map(tensor_of).into();
    }
    let here = |tensor| dense(tensor).expect("kernels run on the CPU");
    let mut tensors = [parameter, first_moment, second_moment].map(here);
    on_cpu(&mut tensors, &here(gradient), Rates::new(&step));
    tensors.map(|tensor| tensor.tensor()).into()
}

fn on_cpu([parameter, first, second]: &mut [Dense; 3], gradient: &Dense, rates: Rates) {
    parameter
        .values_mut()
        .par_chunks_mut(CHUNK)
        .zip(gradient.values().par_chunks(CHUNK))
        .zip(first.values_mut().par_chunks_mut(CHUNK).zip(second.values_mut().par_chunks_mut(CHUNK)))
        .for_each(|((parameter, gradient), (first, second))| update(parameter, gradient, first, second, rates));
}

/// Whether the device updates the parameter in one pass.
fn has_kernel<const R: usize>(parameter: &Tensor<R>) -> bool {
    let device = parameter.device();
    #[cfg(feature = "gpu")]
    if crate::fused::gpu(&device).is_some() {
        return parameter.dtype() == burn::tensor::DType::F32;
    }
    is_cpu(&device)
}

/// The definition, in plain tensors.
pub fn reference<const R: usize>(
    parameter: Tensor<R>,
    gradient: Tensor<R>,
    first_moment: Tensor<R>,
    second_moment: Tensor<R>,
    step: AdamWStep,
) -> (Tensor<R>, Tensor<R>, Tensor<R>) {
    let (beta1, beta2) = step.betas;
    let gradient = gradient * step.gradient_scale;
    let first = first_moment * beta1 + gradient.clone() * (1.0 - beta1);
    let second = second_moment * beta2 + gradient.powi_scalar(2) * (1.0 - beta2);
    let correction = |beta: f64| 1.0 - beta.powi(step.step as i32);
    let root = (second.clone() / correction(beta2)).sqrt() + step.epsilon;
    let update = first.clone() / correction(beta1) / root * step.learning_rate;
    (parameter * (1.0 - step.weight_decay * step.learning_rate) - update, first, second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{assert_close, host, values};
    use burn::tensor::{Device, TensorData};

    const STEP: AdamWStep = AdamWStep {
        learning_rate: 1e-2,
        betas: (0.9, 0.999),
        epsilon: 1e-8,
        weight_decay: 0.1,
        step: 1,
        gradient_scale: 0.5,
    };

    /// Compares five steps over `n` numbers with gradients up to `size`.
    fn check(n: usize, size: f32) {
        let tensor = |seed| Tensor::<1>::from_data(TensorData::new(values(n, seed), [n]), &Device::flex());
        let zeros = Tensor::<1>::zeros([n], &Device::flex());
        let mut fused = (tensor(1), zeros.clone(), zeros);
        let mut plain = fused.clone();
        for t in 1..=5 {
            let (step, gradient) = (AdamWStep { step: t, ..STEP }, tensor(t + 10) * size);
            fused = adamw(fused.0, gradient.clone(), fused.1, fused.2, step);
            plain = reference(plain.0, gradient, plain.1, plain.2, step);
        }
        for (name, a, b) in [("parameter", fused.0, plain.0), ("m", fused.1, plain.1), ("v", fused.2, plain.2)] {
            assert_close(&format!("{name} of {n}, gradients of {size}"), &host(a), &host(b), 1e-5);
        }
    }

    #[test]
    fn agrees_with_the_reference_over_several_steps() {
        // No number, one number, an odd size, and a size that ends within a task; then gradients whose squares f32 cannot hold.
        [0, 1, 101, CHUNK + 17].into_iter().for_each(|n| check(n, 1.0));
        [0.0, 1e-30, 1e15].into_iter().for_each(|size| check(33, size));
    }

    #[test]
    fn the_first_step_is_the_learning_rate_whatever_the_gradient() {
        // m̂ / √v̂ = ±1 if ε is small compared with the gradient.
        let tensor = |values: &[f32]| Tensor::<1>::from_data(TensorData::new(values.to_vec(), [3]), &Device::flex());
        let zeros = Tensor::<1>::zeros([3], &Device::flex());
        let step = AdamWStep { weight_decay: 0.0, ..STEP };
        let (parameter, ..) = adamw(tensor(&[1.0; 3]), tensor(&[1e18, -1e-3, 0.0]), zeros.clone(), zeros, step);
        assert_close("parameter", &host(parameter), &[0.99, 1.01, 1.0], 1e-6);
    }
}
