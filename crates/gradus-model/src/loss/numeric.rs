//! Numerical forms that are easy to get wrong.

use burn::tensor::{Tensor, activation};

/// `log σ(x) = −log(1 + e^(−x))`: finite, with finite gradient `σ(−x)`, for every finite `x`.
///
/// `x` may have any length and carries gradient. The result has one value per element.
pub fn log_sigmoid(x: Tensor<1>) -> Tensor<1> {
    activation::log_sigmoid(x)
}

/// `log(1 − e^x)` for `x ≤ 0`, the log-probability of the complement; −∞ at 0.
///
/// Computed as `log(−expm1 x)` above −ln 2, with `−expm1 x = −2·sinh(x/2)·e^(x/2)`, and as `log1p(−e^x)` below (Mächler
/// 2012, "Accurately computing log(1 − exp(−|a|))"). Each branch receives only arguments of its own range, so neither
/// can put a NaN into the other's gradient.
///
/// `x` may have any length and carries gradient. The result has one value per element.
pub fn log1mexp(x: Tensor<1>) -> Tensor<1> {
    const EDGE: f64 = -std::f64::consts::LN_2;
    let is_near = x.clone().greater_scalar(EDGE);
    let near = x.clone().mask_fill(is_near.clone().bool_not(), EDGE) * 0.5;
    let far = x.mask_fill(is_near.clone(), EDGE);
    let near = (-near.clone().sinh() * 2.0).log() + near;
    (-far.exp()).log1p().mask_where(is_near, near)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, VALUE_TOLERANCE, close, gradient, leaf, values};

    #[test]
    fn log_sigmoid_from_minus_100_to_100() {
        let x = leaf(&[-100.0, -20.0, -1.0, 0.0, 1.0, 20.0, 100.0]);
        let y = log_sigmoid(x.clone());
        let expected = [
            -100.0,
            -20.000_000_002_061_153,
            -1.313_261_687_518_222_8,
            -std::f64::consts::LN_2,
            -0.313_261_687_518_222_8,
            -2.061_153_6e-9,
            -3.7e-44,
        ];
        close(&values(&y), &expected, VALUE_TOLERANCE);
        // Small values keep their relative precision too.
        assert!((f64::from(values(&y)[5]) / -2.061_153_6e-9 - 1.0).abs() < 1e-6, "{:?}", values(&y));
        let sigmoid = |x: f64| 1.0 / (1.0 + x.exp());
        let slopes: Vec<f64> = [-100.0f64, -20.0, -1.0, 0.0, 1.0, 20.0, 100.0].map(sigmoid).to_vec();
        close(&gradient(&y, &x), &slopes, GRADIENT_TOLERANCE);
    }

    #[test]
    fn log1mexp_from_tiny_to_huge() {
        let points = [-1e-7f32, -1e-3, -0.5, -0.69, -0.7, -1.0, -20.0, -100.0];
        let x = leaf(&points);
        let y = log1mexp(x.clone());
        let expected: Vec<f64> = points.iter().map(|&x| (-f64::from(x).exp_m1()).ln()).collect();
        close(&values(&y), &expected, VALUE_TOLERANCE);
        // d/dx log(1 − e^x) = −e^x/(1 − e^x) = 1/expm1(−x)·(−1)
        let slopes: Vec<f64> = points.iter().map(|&x| -1.0 / (-f64::from(x)).exp_m1()).collect();
        close(&gradient(&y, &x), &slopes, GRADIENT_TOLERANCE);
    }
}
