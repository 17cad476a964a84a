//! Rotary position embedding, in the half-split form of `transformers`.
//!
//! For head dimension 2m and angle `θₜᵢ`: `yᵢ = xᵢ cos θ − xᵢ₊ₘ sin θ`, `yᵢ₊ₘ = xᵢ₊ₘ cos θ + xᵢ sin θ`. Both are scaled
//! by the attention factor that some variants (yarn) include in the tables. The backward pass is the transposed
//! rotation. Su et al. 2021, <https://arxiv.org/abs/2104.09864>. If the tables have fewer angles than a head has pairs,
//! only the beginning of each head is rotated.

use burn::tensor::Tensor;

use crate::fused::{Dense, Op, apply, supports};
use crate::linear::Operands;
use crate::parts::{one_in_parts, part_of};
use crate::table::Table;

/// Rotates every head of `x_nd` (`[N, H · head_dim]`) by its token's angles.
///
/// `cos` and `sin` are `[N, m]`, row-major, with one angle per rotated pair of numbers, at most head_dim / 2. `x_nd`
/// carries gradient.
///
/// # Panics
/// If the tables do not fit the tokens.
pub fn rope(x_nd: Tensor<2>, cos: &Table<f32>, sin: &Table<f32>, head_dim: usize) -> Tensor<2> {
    rope_between(x_nd, cos, sin, head_dim, Operands::default())
}

/// Like [`rope`], between the products that `operands` describes.
///
/// # Panics
/// As [`rope`].
pub fn rope_between(
    x_nd: Tensor<2>,
    cos: &Table<f32>,
    sin: &Table<f32>,
    head_dim: usize,
    operands: Operands,
) -> Tensor<2> {
    let [n, d] = x_nd.dims();
    assert_eq!(d % head_dim, 0, "whole heads");
    let half = cos.len() / n.max(1);
    assert!(cos.len() == sin.len() && cos.len() == n * half && 2 * half <= head_dim, "as many angles for each token");
    let rope = Rope { cos: cos.clone(), sin: sin.clone(), head_dim, operands };
    if supports(&rope, &x_nd.device(), x_nd.dtype()) {
        apply(rope, vec![x_nd.into_dispatch()])
    } else {
        reference(x_nd, cos, sin, head_dim)
    }
}

/// The definition, in plain tensors.
pub fn reference(x_nd: Tensor<2>, cos: &[f32], sin: &[f32], head_dim: usize) -> Tensor<2> {
    let ([n, d], device) = (x_nd.dims(), x_nd.device());
    let half = cos.len() / n.max(1);
    let table =
        |values: &[f32]| Tensor::<3>::from_data(burn::tensor::TensorData::new(values.to_vec(), [n, 1, half]), &device);
    let (cos, sin) = (table(cos), table(sin));
    let x = x_nd.reshape([n, d / head_dim, head_dim]);
    let (a, b) = (x.clone().narrow(2, 0, half), x.clone().narrow(2, half, half));
    let first = a.clone() * cos.clone() - b.clone() * sin.clone();
    let second = b * cos + a * sin;
    let mut parts = vec![first, second];
    if 2 * half < head_dim {
        parts.push(x.narrow(2, 2 * half, head_dim - 2 * half));
    }
    Tensor::cat(parts, 2).reshape([n, d])
}

#[derive(Debug)]
pub(crate) struct Rope {
    pub(crate) cos: Table<f32>,
    pub(crate) sin: Table<f32>,
    pub(crate) head_dim: usize,
    /// For GPUs.
    #[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "only GPUs have operands of another type"))]
    pub(crate) operands: Operands,
}

impl Rope {
    fn rotate(&self, x: &Dense, direction: f32) -> Dense {
        let (n, d) = (x.dims()[0], x.dims()[1]);
        let half = self.cos.len() / n.max(1);
        let y = one_in_parts(n * d, d, |t, y| {
            let x = part_of(x.values(), t, d);
            let (cos, sin) = (&self.cos[t * half..(t + 1) * half], &self.sin[t * half..(t + 1) * half]);
            for (y, x) in y.chunks_exact_mut(self.head_dim).zip(x.chunks_exact(self.head_dim)) {
                for i in 0..half {
                    let s = sin[i] * direction;
                    y[i] = x[i] * cos[i] - x[i + half] * s;
                    y[i + half] = x[i + half] * cos[i] + x[i] * s;
                }
                y[2 * half..].copy_from_slice(&x[2 * half..]);
            }
        });
        Dense::new(y, &[n, d])
    }
}

impl Op for Rope {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        (self.rotate(&inputs[0], 1.0), Vec::new())
    }

    fn backward(&self, _: &[Dense], grad: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        vec![Some(self.rotate(grad, -1.0))]
    }

    #[cfg(feature = "gpu")]
    fn on_gpu(&self) -> Option<&dyn crate::gpu::GpuOp> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{check, given, host, leaf, values};

    #[test]
    fn agrees_with_the_reference() {
        // The last two cases rotate a part of each head.
        for (n, heads, head_dim, turned) in [(1, 1, 2, 2), (5, 3, 8, 8), (33, 2, 10, 10), (7, 2, 10, 6), (3, 2, 4, 2)] {
            let angles = values(n * turned / 2, 4);
            let cos: Table<f32> = angles.iter().map(|a| (3.0 * a).cos() * 1.1).collect();
            let sin: Table<f32> = angles.iter().map(|a| (3.0 * a).sin() * 1.1).collect();
            check(
                "rope",
                &[leaf([n, heads * head_dim], 1)],
                |x| rope(x[0].clone(), &cos, &sin, head_dim),
                |x| reference(x[0].clone(), &cos, &sin, head_dim),
                1e-5,
            );
        }
    }

    #[test]
    fn a_quarter_turn_of_extremes() {
        // cos = 0 and sin = 1: (a, b) becomes (−b, a), whatever the magnitudes.
        let y = rope(given([1, 2], &[1e38, -1e-40]), &vec![0.0].into(), &vec![1.0].into(), 2);
        assert_eq!(host(y.inner()), [1e-40, 1e38]);
    }
}
