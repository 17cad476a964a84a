//! The critic's loss: the squared difference between values and returns.

use burn::tensor::Tensor;

/// `½·(V − R)²`, one value per token.
///
/// Both are `[M]`; `values_m` carries gradient, `returns_m` does not.
///
/// # Panics
/// When the lengths differ.
pub fn plain(values_m: Tensor<1>, returns_m: Tensor<1>) -> Tensor<1> {
    let [m] = values_m.dims();
    assert_eq!(returns_m.dims(), [m], "returns_m");
    (values_m - returns_m).square() * 0.5
}

/// `½·max((V − R)², (V_clip − R)²)` with `V_clip = V_old + clip(V − V_old, ±ε)`, one value per token.
///
/// As in OpenAI's baselines (`ppo2`), Ziegler et al. 2019 and TRL 1.12. The first paper with this form is Engstrom et al. 2020, section 3,
/// <https://arxiv.org/abs/2005.12729>.
///
/// All tensors are `[M]`; only `values_m` carries gradient.
///
/// # Panics
/// When the lengths differ.
pub fn clipped(values_m: Tensor<1>, old_values_m: Tensor<1>, returns_m: Tensor<1>, clip_range: f64) -> Tensor<1> {
    let [m] = values_m.dims();
    assert_eq!(returns_m.dims(), [m], "returns_m");

    let clipped_m = near(values_m.clone(), old_values_m, clip_range);
    (values_m - returns_m.clone()).square().max_pair((clipped_m - returns_m).square()) * 0.5
}

/// `V_old + clip(V − V_old, ±ε)`. The [`plain`] error of these values is the clipped value loss of Stable-Baselines3 and RL4LMs.
///
/// Both are `[M]`; `values_m` carries gradient, except where it is clipped.
///
/// # Panics
/// When the lengths differ.
pub fn near(values_m: Tensor<1>, old_values_m: Tensor<1>, clip_range: f64) -> Tensor<1> {
    let [m] = values_m.dims();
    assert_eq!(old_values_m.dims(), [m], "old_values_m");
    let moved_m = (values_m - old_values_m.clone()).clamp(-clip_range, clip_range);
    old_values_m + moved_m
}

/// Share of tokens whose clipped error is larger than the plain one (`val/clipfrac_avg` in TRL); 0 without tokens.
///
/// # Panics
/// When the lengths differ, or `clip_range` is negative or NaN.
pub fn clip_fraction(values_m: &[f32], old_values_m: &[f32], returns_m: &[f32], clip_range: f64) -> f64 {
    assert_eq!(old_values_m.len(), values_m.len(), "old_values_m");
    assert_eq!(returns_m.len(), values_m.len(), "returns_m");
    let is_clipped = |((&value, &old), &target): ((&f32, &f32), &f32)| {
        let (value, old, target) = (f64::from(value), f64::from(old), f64::from(target));
        let clipped = old + (value - old).clamp(-clip_range, clip_range);
        (clipped - target).powi(2) > (value - target).powi(2)
    };
    let clipped = values_m.iter().zip(old_values_m).zip(returns_m).filter(|token| is_clipped(*token)).count();
    if values_m.is_empty() { 0.0 } else { clipped as f64 / values_m.len() as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{self, GRADIENT_TOLERANCE, VALUE_TOLERANCE, close, gradient, leaf};

    #[test]
    fn four_tokens_by_hand() {
        // V 0.1, 0.5, 0.5, −0.5; V_old 0; R 1, 1, 0, 1; ε = 0.2: V_clip 0.1, 0.2, 0.2, −0.2.
        // ½·0.81; clipped ½·0.64; plain ½·0.25; plain ½·2.25.
        let values_m = leaf(&[0.1, 0.5, 0.5, -0.5]);
        let (old_m, returns_m) = ([0.0; 4], [1.0, 1.0, 0.0, 1.0]);
        let loss_m = clipped(values_m.clone(), check::plain(&old_m), check::plain(&returns_m), 0.2);
        close(&check::values(&loss_m), &[0.405, 0.32, 0.125, 1.125], VALUE_TOLERANCE);
        close(&gradient(&loss_m, &values_m), &[-0.9, 0.0, 0.5, -1.5], GRADIENT_TOLERANCE);
        assert_eq!(clip_fraction(&[0.1, 0.5, 0.5, -0.5], &old_m, &returns_m, 0.2), 0.25);
        assert_eq!(clip_fraction(&[], &[], &[], 0.2), 0.0);

        // Clipped error alone: V_clip − R is −0.9, −0.8, 0.2, −1.2. Clipped tokens have no gradient.
        let loss_m = plain(near(values_m.clone(), check::plain(&old_m), 0.2), check::plain(&returns_m));
        close(&check::values(&loss_m), &[0.405, 0.32, 0.02, 0.72], VALUE_TOLERANCE);
        close(&gradient(&loss_m, &values_m), &[-0.9, 0.0, 0.0, 0.0], GRADIENT_TOLERANCE);

        let loss_m = plain(values_m.clone(), check::plain(&returns_m));
        close(&check::values(&loss_m), &[0.405, 0.125, 0.125, 1.125], VALUE_TOLERANCE);
        close(&gradient(&loss_m, &values_m), &[-0.9, -0.5, 0.5, -1.5], GRADIENT_TOLERANCE);
    }
}
