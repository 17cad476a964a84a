//! What becomes of a matrix product. Kernels that multiply do it while they write the product.

use burn::backend::ops::FloatTensorOps;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use super::sums::accumulate;

/// What becomes of a product: it is multiplied by `factor`, and added to `sum` if there is one.
///
/// A product is written over `sum`, so no other tensor may share its memory.
pub(crate) struct Finish {
    pub(crate) factor: f32,
    pub(crate) sum: Option<CubeTensor>,
}

impl Finish {
    /// The product itself.
    pub(super) const PLAIN: Self = Self { factor: 1.0, sum: None };

    /// The product times `factor`.
    pub(crate) fn times(factor: f32) -> Self {
        Self { factor, sum: None }
    }

    /// `sum` plus the product times `factor`.
    pub(crate) fn onto(sum: CubeTensor, factor: f32) -> Self {
        Self { factor, sum: Some(sum) }
    }

    /// Finishes a product whose kernel does not do it.
    pub(super) fn of(&self, product: CubeTensor) -> CubeTensor {
        match &self.sum {
            Some(sum) => {
                accumulate(sum, &product, self.factor);
                sum.clone()
            }
            None if self.factor == 1.0 => product,
            None => CubeBackend::float_mul_scalar(product, self.factor.into()),
        }
    }
}
