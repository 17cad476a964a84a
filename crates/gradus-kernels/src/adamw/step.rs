//! The hyperparameters of a step, the form in which kernels take them, and the step itself.

use crate::simd::simd;

/// Hyperparameters of one AdamW step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWStep {
    /// η, the learning rate.
    pub learning_rate: f64,
    /// (β₁, β₂), the decay rates of the moments.
    pub betas: (f64, f64),
    /// ε, added to the root.
    pub epsilon: f64,
    /// λ, decoupled weight decay.
    pub weight_decay: f64,
    /// t, counted from 1.
    pub step: u64,
    /// Factor that the gradient is multiplied by first. It clips gradients without a pass of its own.
    pub gradient_scale: f64,
}

/// Hyperparameters of a step in single precision.
#[derive(Clone, Copy)]
pub(crate) struct Rates {
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) rest1: f32,
    pub(crate) rest2: f32,
    pub(crate) step_size: f32,
    pub(crate) root_correction: f32,
    pub(crate) keep: f32,
    pub(crate) epsilon: f32,
    pub(crate) scale: f32,
}

impl Rates {
    pub(crate) fn new(step: &AdamWStep) -> Self {
        let correction = |beta: f64| 1.0 - beta.powi(step.step as i32);
        Self {
            beta1: step.betas.0 as f32,
            beta2: step.betas.1 as f32,
            rest1: (1.0 - step.betas.0) as f32,
            rest2: (1.0 - step.betas.1) as f32,
            step_size: (step.learning_rate / correction(step.betas.0)) as f32,
            root_correction: (1.0 / correction(step.betas.1).sqrt()) as f32,
            keep: (1.0 - step.weight_decay * step.learning_rate) as f32,
            epsilon: step.epsilon as f32,
            scale: step.gradient_scale as f32,
        }
    }
}

simd! {
    /// Updates a parameter and its moments.
    pub(super) fn update(parameter: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32], r: Rates) {
        for (((p, g), m), v) in parameter.iter_mut().zip(gradient).zip(first).zip(second) {
            let g = g * r.scale;
            *m = r.beta1 * *m + r.rest1 * g;
            *v = r.beta2 * *v + r.rest2 * g * g;
            *p = *p * r.keep - r.step_size * *m / (v.sqrt() * r.root_correction + r.epsilon);
        }
    }
}
