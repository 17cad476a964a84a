//! The low-rank part of an adapted layer: `y = s · (x Aᵀ) Bᵀ`, with A `[r, in]` and B `[out, r]`.
//!
//! With `h = x Aᵀ` and `u = s · g B`: `∂x = u A`, `∂A = uᵀ x`, `∂B = s · gᵀ h`. Nothing as large as the weight it adds to
//! is ever made. Hu et al. 2021, <https://arxiv.org/abs/2106.09685>.

use burn::tensor::Tensor;

use crate::fused::{Dense, Op, apply, is_fused};
use crate::product::{Mat, Precision, Product};

/// `x_nd`, `[N, in]`, through `a_rd` (`[r, in]`) and `b_or` (`[out, r]`), times `scale`: `[N, out]`.
///
/// All three carry gradient. The operands of the products are held in `precision`; the reference, which other devices
/// run, is in f32.
pub fn low_rank(x_nd: Tensor<2>, a_rd: Tensor<2>, b_or: Tensor<2>, scale: f32, precision: Precision) -> Tensor<2> {
    if !is_fused(&x_nd.device()) {
        return reference(x_nd, a_rd, b_or, scale);
    }
    apply(LowRank { scale, precision }, [x_nd, a_rd, b_or].map(Tensor::into_dispatch).to_vec())
}

/// The definition, in plain tensors.
pub fn reference(x_nd: Tensor<2>, a_rd: Tensor<2>, b_or: Tensor<2>, scale: f32) -> Tensor<2> {
    x_nd.matmul(a_rd.transpose()).matmul(b_or.transpose()) * scale
}

#[derive(Debug)]
struct LowRank {
    scale: f32,
    precision: Precision,
}

/// A matrix with its dimensions.
fn mat(tensor: &Dense) -> Mat<'_> {
    let dims = tensor.dims();
    Mat::dense(tensor.values(), dims[0], dims[1])
}

impl Op for LowRank {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let (x, a, b) = (&inputs[0], &inputs[1], &inputs[2]);
        let (n, rank, out) = (x.dims()[0], a.dims()[0], b.dims()[0]);
        let product = Product::new(self.precision);
        let h = Dense::new(product.fresh(None, mat(x), mat(a).t()), &[n, rank]);
        let y = product.scaled(self.scale).fresh(None, mat(&h), mat(b).t());
        (Dense::new(y, &[n, out]), vec![x.clone(), a.clone(), b.clone(), h])
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, needed: &[bool]) -> Vec<Option<Dense>> {
        let (x, a, b, h) = (&saved[0], &saved[1], &saved[2], &saved[3]);
        let product = Product::new(self.precision);
        let u = Dense::new(product.scaled(self.scale).fresh(None, mat(grad), mat(b)), &h.dims());
        vec![
            needed[0].then(|| Dense::new(product.fresh(None, mat(&u), mat(a)), &x.dims())),
            needed[1].then(|| Dense::new(product.fresh(None, mat(&u).t(), mat(x)), &a.dims())),
            needed[2].then(|| Dense::new(product.scaled(self.scale).fresh(None, mat(grad).t(), mat(h)), &b.dims())),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{check, leaf};

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
