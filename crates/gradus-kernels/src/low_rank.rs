//! The low-rank part of an adapted layer: `y = s · (x Aᵀ) Bᵀ`, with A `[r, in]` and B `[out, r]`.
//!
//! With `h = x Aᵀ` and `u = s · g B`: `∂x = u A`, `∂A = uᵀ x`, `∂B = s · gᵀ h`. No matrix as large as the adapted weight is ever created.
//! Hu et al. 2021, <https://arxiv.org/abs/2106.09685>.

use burn::tensor::Tensor;

use crate::frozen::FrozenWeight;
use crate::fused::{Dense, Op, apply, supports};
use crate::linear::{Layout, linear, onto};
use crate::product::{Mat, Precision, Product};

/// Applies `a_rd` (`[r, in]`) and then `b_or` (`[out, r]`) to `x_nd` (`[N, in]`) and multiplies by `scale`: `[N, out]`.
///
/// All three tensors carry gradient. The operands of the products are held in `precision`; on devices without kernels, in f32.
pub fn low_rank(x_nd: Tensor<2>, a_rd: Tensor<2>, b_or: Tensor<2>, scale: f32, precision: Precision) -> Tensor<2> {
    let op = LowRank { base: None, scale, precision };
    if !supports(&op, &x_nd.device(), x_nd.dtype()) {
        return composed(x_nd, a_rd, b_or, scale, precision);
    }
    apply(op, [x_nd, a_rd, b_or].map(Tensor::into_dispatch).to_vec())
}

impl FrozenWeight {
    /// Computes [`apply`](Self::apply) plus [`low_rank`] in one pass over the result and one over the gradient of `x_nd`.
    ///
    /// `x_nd`, `a_rd`, `b_or` and `bias` carry gradient.
    pub fn apply_adapted(
        &self,
        x_nd: Tensor<2>,
        bias: Option<Tensor<1>>,
        [a_rd, b_or]: [Tensor<2>; 2],
        scale: f32,
        precision: Precision,
    ) -> Tensor<2> {
        let op = LowRank { base: Some(self.clone()), scale, precision };
        if !supports(&op, &x_nd.device(), x_nd.dtype()) {
            return self.apply(x_nd.clone(), bias) + composed(x_nd, a_rd, b_or, scale, precision);
        }
        let mut inputs = [x_nd, a_rd, b_or].map(Tensor::into_dispatch).to_vec();
        inputs.extend(bias.map(Tensor::into_dispatch));
        apply(op, inputs)
    }
}

impl FrozenWeight {
    /// Adds the result of [`apply_adapted`](Self::apply_adapted), without a bias, to `sum_nd`, `[N, out]`, which carries gradient.
    pub fn apply_adapted_onto(
        &self,
        sum_nd: Tensor<2>,
        x_nd: Tensor<2>,
        [a_rd, b_or]: [Tensor<2>; 2],
        scale: f32,
        precision: Precision,
    ) -> Tensor<2> {
        let op = LowRank { base: Some(self.clone()), scale, precision };
        let inputs = [&x_nd, &a_rd, &b_or].map(|input| input.clone().into_dispatch());
        onto(op, inputs.into(), sum_nd, || self.apply_adapted(x_nd, None, [a_rd, b_or], scale, precision))
    }
}

/// Composes the same result from two linear layers, if there is no kernel for the whole.
fn composed(x_nd: Tensor<2>, a_rd: Tensor<2>, b_or: Tensor<2>, scale: f32, precision: Precision) -> Tensor<2> {
    let h_nr = linear(x_nd, a_rd, None, Layout::OutIn, precision);
    linear(h_nr, b_or, None, Layout::OutIn, precision) * scale
}

/// The definition, in plain tensors.
#[cfg(test)]
fn reference(x_nd: Tensor<2>, a_rd: Tensor<2>, b_or: Tensor<2>, scale: f32) -> Tensor<2> {
    x_nd.matmul(a_rd.transpose()).matmul(b_or.transpose()) * scale
}

#[derive(Debug)]
pub(crate) struct LowRank {
    /// Layer whose output the low-rank part is added to, if any.
    pub(crate) base: Option<FrozenWeight>,
    pub(crate) scale: f32,
    pub(crate) precision: Precision,
}

/// View of a tensor as a matrix.
pub(crate) fn mat(tensor: &Dense) -> Mat<'_> {
    let dims = tensor.dims();
    Mat::dense(tensor.values(), dims[0], dims[1])
}

impl Op for LowRank {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let (x, a, b) = (&inputs[0], &inputs[1], &inputs[2]);
        let (n, rank, out) = (x.dims()[0], a.dims()[0], b.dims()[0]);
        let product = Product::new(self.precision);
        let h = Dense::new(product.fresh(None, mat(x), mat(a).t()), &[n, rank]);
        let (scaled, part) = (product.scaled(self.scale), (mat(&h), mat(b).t()));
        let y = match &self.base {
            None => scaled.fresh(None, part.0, part.1),
            Some(base) => {
                let mut y = base.matrix().fresh(inputs.get(3).map(Dense::values), mat(x));
                scaled.add(&mut y, out, part.0, part.1);
                y
            }
        };
        (Dense::new(y, &[n, out]), vec![x.clone(), a.clone(), b.clone(), h])
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, needed: &[bool]) -> Vec<Option<Dense>> {
        let (x, a, b, h) = (&saved[0], &saved[1], &saved[2], &saved[3]);
        let product = Product::new(self.precision);
        let u = Dense::new(product.scaled(self.scale).fresh(None, mat(grad), mat(b)), &h.dims());
        let grad_x = || match &self.base {
            None => product.fresh(None, mat(&u), mat(a)),
            Some(base) => {
                let mut grad_x = base.matrix().fresh_transposed(mat(grad));
                product.add(&mut grad_x, x.dims()[1], mat(&u), mat(a));
                grad_x
            }
        };
        let mut gradients = vec![
            needed[0].then(|| Dense::new(grad_x(), &x.dims())),
            needed[1].then(|| Dense::new(product.fresh(None, mat(&u).t(), mat(x)), &a.dims())),
            needed[2].then(|| Dense::new(product.scaled(self.scale).fresh(None, mat(grad).t(), mat(h)), &b.dims())),
        ];
        gradients.extend(needed.get(3).map(|&needed| needed.then(|| grad.column_sums())));
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
    use crate::fused::testing::{check, leaf};
    use crate::{Layout, WeightFormat};

    #[test]
    fn on_a_frozen_weight_it_is_the_sum_of_both() {
        for (n, width, rank, out) in [(1, 1, 1, 1), (7, 5, 2, 3), (65, 33, 16, 70)] {
            let frozen = FrozenWeight::new(leaf::<2>([out, width], 5).inner(), Layout::OutIn, WeightFormat::F32);
            check(
                "low rank on a frozen weight",
                &[leaf([n, width], 1), leaf([rank, width], 2), leaf([out, rank], 3), leaf([1, out], 4)],
                |x| {
                    let bias = Some(x[3].clone().reshape([out]));
                    frozen.apply_adapted(x[0].clone(), bias, [x[1].clone(), x[2].clone()], 0.7, Precision::F32)
                },
                |x| {
                    let bias = Some(x[3].clone().reshape([out]));
                    frozen.apply(x[0].clone(), bias) + reference(x[0].clone(), x[1].clone(), x[2].clone(), 0.7)
                },
                1e-5,
            );
        }
    }

    #[test]
    fn agrees_with_the_reference() {
        for (n, width, rank, out) in [(1, 1, 1, 1), (7, 5, 2, 3), (65, 33, 16, 70)] {
            check(
                "low rank",
                &[leaf([n, width], 1), leaf([rank, width], 2), leaf([out, rank], 3)],
                |x| low_rank(x[0].clone(), x[1].clone(), x[2].clone(), 0.7, Precision::F32),
                |x| reference(x[0].clone(), x[1].clone(), x[2].clone(), 0.7),
                1e-5,
            );
        }
    }
}
