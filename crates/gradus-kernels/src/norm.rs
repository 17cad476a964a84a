//! Layer norm and RMS norm over the last dimension.
//!
//! Layer norm: `y = γ ∘ x̂ + β` with `x̂ = (x − μ)·r`, `r = (σ² + ε)^(−½)`, σ² biased.
//! With `h = γ ∘ g`: `∂x = r·(h − mean(h) − x̂ · mean(h ∘ x̂))`, `∂γ = Σ g ∘ x̂`, `∂β = Σ g`.
//! RMS norm: `y = γ ∘ x̂` with `x̂ = x·r`, `r = (mean(x²) + ε)^(−½)`; `∂x = r·(h − x̂ · mean(h ∘ x̂))`.

use burn::tensor::Tensor;

use crate::fused::{Dense, Op, apply, supports};
use crate::linear::Operands;
use crate::parts::{in_parts, one_in_parts, part_of};
use crate::simd::simd;

/// Rows per parallel task.
const ROWS: usize = 32;

/// Layer norm of each row of `x_nd`, `[N, D]` to `[N, D]`; `weight_d` is γ and `bias_d` is β, both `[D]`. All inputs carry gradient.
///
/// # Panics
/// If the widths differ.
pub fn layer_norm(x_nd: Tensor<2>, weight_d: Tensor<1>, bias_d: Tensor<1>, epsilon: f64) -> Tensor<2> {
    layer_norm_between(x_nd, weight_d, bias_d, epsilon, Operands::default())
}

/// Like [`layer_norm`], between the products that `operands` describes.
///
/// # Panics
/// If the widths differ.
pub fn layer_norm_between(
    x_nd: Tensor<2>,
    weight_d: Tensor<1>,
    bias_d: Tensor<1>,
    epsilon: f64,
    operands: Operands,
) -> Tensor<2> {
    let [_, d] = x_nd.dims();
    assert_eq!(weight_d.dims(), [d], "weight_d");
    assert_eq!(bias_d.dims(), [d], "bias_d");
    let norm = Norm { epsilon, centered: true, operands };
    if !supports(&norm, &x_nd.device(), x_nd.dtype()) {
        return layer_norm_reference(x_nd, weight_d, bias_d, epsilon);
    }
    let inputs = vec![x_nd.into_dispatch(), weight_d.into_dispatch(), bias_d.into_dispatch()];
    apply(norm, inputs)
}

/// RMS norm of each row of `x_nd`, `[N, D]` to `[N, D]`; `weight_d` is γ, `[D]`. Both inputs carry gradient.
///
/// # Panics
/// If the widths differ.
pub fn rms_norm(x_nd: Tensor<2>, weight_d: Tensor<1>, epsilon: f64) -> Tensor<2> {
    rms_norm_between(x_nd, weight_d, epsilon, Operands::default())
}

/// Like [`rms_norm`], between the products that `operands` describes.
///
/// # Panics
/// If the widths differ.
pub fn rms_norm_between(x_nd: Tensor<2>, weight_d: Tensor<1>, epsilon: f64, operands: Operands) -> Tensor<2> {
    let [_, d] = x_nd.dims();
    assert_eq!(weight_d.dims(), [d], "weight_d");
    let norm = Norm { epsilon, centered: false, operands };
    if !supports(&norm, &x_nd.device(), x_nd.dtype()) {
        return rms_norm_reference(x_nd, weight_d, epsilon);
    }
    apply(norm, vec![x_nd.into_dispatch(), weight_d.into_dispatch()])
}

/// The definition, in plain tensors.
pub fn layer_norm_reference(x_nd: Tensor<2>, weight_d: Tensor<1>, bias_d: Tensor<1>, epsilon: f64) -> Tensor<2> {
    let centered = x_nd.clone() - x_nd.mean_dim(1);
    let variance = centered.clone().powi_scalar(2).mean_dim(1);
    centered / (variance + epsilon).sqrt() * weight_d.unsqueeze() + bias_d.unsqueeze()
}

/// The definition, in plain tensors.
pub fn rms_norm_reference(x_nd: Tensor<2>, weight_d: Tensor<1>, epsilon: f64) -> Tensor<2> {
    let mean_square = x_nd.clone().powi_scalar(2).mean_dim(1);
    x_nd / (mean_square + epsilon).sqrt() * weight_d.unsqueeze()
}

/// Gradients of scale and shift, summed over a block of rows.
type Sums = (Vec<f32>, Vec<f32>);

#[derive(Debug)]
pub(crate) struct Norm {
    pub(crate) epsilon: f64,
    /// Whether the mean is subtracted first, as in layer norm.
    pub(crate) centered: bool,
    /// For GPUs.
    #[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "only GPUs have operands of another type"))]
    pub(crate) operands: Operands,
}

/// Lanes of the sums over a row.
const LANES: usize = 8;

/// Σ f(x) over a row, in f64 so that wide rows lose no precision.
#[inline(always)]
fn sum(row: &[f32], f: impl Fn(f64) -> f64) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let (blocks, tail) = row.as_chunks::<LANES>();
    for block in blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane += f(f64::from(x));
        }
    }
    lanes.iter().sum::<f64>() + tail.iter().map(|&x| f(f64::from(x))).sum::<f64>()
}

/// Mean (0 when not centered) and reciprocal deviation of a row.
#[inline(always)]
fn moments(row: &[f32], centered: bool, epsilon: f64) -> (f32, f32) {
    let n = row.len() as f64;
    let mean = if centered { sum(row, |x| x) / n } else { 0.0 };
    let square = sum(row, |x| (x - mean) * (x - mean)) / n;
    (mean as f32, (1.0 / (square + epsilon).sqrt()) as f32)
}

simd! {
    fn forward_rows(y: &mut [f32], x: &[f32], gamma: &[f32], beta: Option<&[f32]>, norm: &Norm) {
        let d = gamma.len();
        for (y, x) in y.chunks_exact_mut(d).zip(x.chunks_exact(d)) {
            let (mean, scale) = moments(x, norm.centered, norm.epsilon);
            match beta {
                Some(beta) => {
                    for (((y, x), gamma), beta) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
                        *y = (x - mean) * scale * gamma + beta;
                    }
                }
                None => y.iter_mut().zip(x).zip(gamma).for_each(|((y, x), gamma)| *y = (x - mean) * scale * gamma),
            }
        }
    }

    /// Computes ∂x of a block of rows and adds their part of ∂γ and ∂β to `sums`.
    fn backward_rows(grad_x: &mut [f32], x: &[f32], grad: &[f32], gamma: &[f32], norm: &Norm, sums: &mut Sums) {
        let d = gamma.len();
        let (grad_gamma, grad_beta) = (&mut sums.0[..d], &mut sums.1[..d]);
        for ((grad_x, x), g) in grad_x.chunks_exact_mut(d).zip(x.chunks_exact(d)).zip(grad.chunks_exact(d)) {
            let (mean, scale) = moments(x, norm.centered, norm.epsilon);
            // ∂x holds h = γ ∘ g until both means of h are computed.
            for i in 0..d {
                let hat = (x[i] - mean) * scale;
                grad_x[i] = gamma[i] * g[i];
                grad_gamma[i] += g[i] * hat;
                grad_beta[i] += g[i];
            }
            let mean_h = if norm.centered { sum(grad_x, |h| h) as f32 / d as f32 } else { 0.0 };
            let mean_hx = scale * dot_centered(grad_x, x, mean) / d as f32;
            for i in 0..d {
                let hat = (x[i] - mean) * scale;
                grad_x[i] = scale * (grad_x[i] - mean_h - hat * mean_hx);
            }
        }
    }
}

/// Σ h (x − mean).
#[inline(always)]
fn dot_centered(h: &[f32], x: &[f32], mean: f32) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [0.0f32; LANES];
    let ((h_blocks, h_tail), (x_blocks, x_tail)) = (h.as_chunks::<LANES>(), x.as_chunks::<LANES>());
    for (h, x) in h_blocks.iter().zip(x_blocks) {
        for i in 0..LANES {
            lanes[i] += h[i] * (x[i] - mean);
        }
    }
    lanes.iter().sum::<f32>() + h_tail.iter().zip(x_tail).map(|(h, x)| h * (x - mean)).sum::<f32>()
}

impl Op for Norm {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let (x, gamma) = (&inputs[0], inputs[1].values());
        let beta = inputs.get(2).map(Dense::values);
        let (n, d) = (x.dims()[0], x.dims()[1]);
        let y = one_in_parts(n * d, ROWS * d, |i, y| {
            forward_rows(y, part_of(x.values(), i, ROWS * d), gamma, beta, self);
        });
        (Dense::new(y, &[n, d]), vec![x.clone(), inputs[1].clone()])
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, needed: &[bool]) -> Vec<Option<Dense>> {
        let (x, gamma) = (&saved[0], saved[1].values());
        let (n, d) = (x.dims()[0], x.dims()[1]);
        // One partial sum of ∂γ and ∂β per block of rows, added in order, gives the same bits for any number of
        // threads.
        let ([grad_x], partial): (_, Vec<Sums>) = in_parts(n * d, ROWS * d, |i, [grad_x]| {
            let (x, grad) = (part_of(x.values(), i, ROWS * d), part_of(grad.values(), i, ROWS * d));
            let mut sums = (vec![0.0f32; d], vec![0.0f32; d]);
            backward_rows(grad_x, x, grad, gamma, self, &mut sums);
            sums
        });
        let total = |pick: fn(&Sums) -> &Vec<f32>| {
            let mut sums = vec![0.0f32; d];
            for block in &partial {
                sums.iter_mut().zip(pick(block)).for_each(|(sum, value)| *sum += value);
            }
            Dense::new(sums, &[d])
        };
        let mut gradients =
            vec![needed[0].then(|| Dense::new(grad_x, &[n, d])), needed[1].then(|| total(|block| &block.0))];
        if let Some(&needed) = needed.get(2) {
            gradients.push(needed.then(|| total(|block| &block.1)));
        }
        gradients
    }

    #[cfg(feature = "gpu")]
    fn on_gpu(&self) -> Option<&dyn crate::gpu::GpuOp> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{assert_close, check, given, host, leaf, values};

    #[test]
    fn agree_with_the_references() {
        for (n, d) in [(1, 2), (3, 8), (70, 33)] {
            let inputs = [leaf([n, d], 1), leaf([1, d], 2), leaf([1, d], 3)];
            check(
                "layer norm",
                &inputs,
                |x| layer_norm(x[0].clone(), x[1].clone().reshape([d]), x[2].clone().reshape([d]), 1e-5),
                |x| layer_norm_reference(x[0].clone(), x[1].clone().reshape([d]), x[2].clone().reshape([d]), 1e-5),
                2e-5,
            );
            check(
                "rms norm",
                &inputs[..2],
                |x| rms_norm(x[0].clone(), x[1].clone().reshape([d]), 1e-6),
                |x| rms_norm_reference(x[0].clone(), x[1].clone().reshape([d]), 1e-6),
                2e-5,
            );
        }
    }

    /// The values of `n` ones.
    fn ones(n: usize) -> Tensor<1> {
        given([n], &vec![1.0; n])
    }

    #[test]
    #[should_panic(expected = "weight_d")]
    fn a_layer_norm_has_the_width_of_its_rows() {
        let _ = layer_norm(leaf([2, 4], 1), ones(2), ones(2), 1e-5);
    }

    #[test]
    #[should_panic(expected = "bias_d")]
    fn a_bias_has_the_width_of_its_rows() {
        let _ = layer_norm(leaf([2, 4], 1), ones(4), ones(1), 1e-5);
    }

    #[test]
    #[should_panic(expected = "weight_d")]
    fn an_rms_norm_has_the_width_of_its_rows() {
        let _ = rms_norm(leaf([2, 4], 1), ones(8), 1e-5);
    }

    /// Value and gradient of both norms for one row.
    fn both(row: &[f32]) -> [(Vec<f32>, Vec<f32>); 2] {
        let d = row.len();
        [true, false].map(|centered| {
            let (x, gamma) = (given([1, d], row), given([d], &values(d, 5)));
            let y = match centered {
                true => layer_norm(x.clone(), gamma, given([d], &vec![0.0; d]), 1e-12),
                false => rms_norm(x.clone(), gamma, 1e-12),
            };
            // Every output has a different gradient.
            let gradients = (y.clone() * given([1, d], &values(d, 9))).backward();
            (host(y.inner()), host(x.grad(&gradients).expect("gradient")))
        })
    }

    #[test]
    fn a_factor_changes_no_value_and_divides_the_gradient() {
        let row = values(37, 1);
        let expected = both(&row);
        for factor in [1e15f32, 1e30] {
            let large: Vec<f32> = row.iter().map(|x| x * factor).collect();
            for ((value, gradient), (expected_value, expected_gradient)) in both(&large).iter().zip(&expected) {
                assert_close("value", value, expected_value, 1e-5);
                let gradient: Vec<f32> = gradient.iter().map(|g| g * factor).collect();
                assert_close("gradient", &gradient, expected_gradient, 1e-5);
            }
        }
    }

    #[test]
    fn rows_without_variance_stay_finite() {
        // Subtracting the mean of a constant row leaves 0. For values near zero, ε dominates.
        assert_eq!(both(&[1e30; 33])[0].0, [0.0; 33]);
        for tiny in [0.0, 1e-40] {
            for (value, gradient) in both(&[tiny; 33]) {
                assert!(value.iter().all(|y| y.abs() < 1e-33), "{value:?}");
                assert!(gradient.iter().all(|g| g.is_finite()), "{gradient:?}");
            }
        }
    }
}
