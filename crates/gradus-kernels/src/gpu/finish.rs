//! What becomes of a matrix product. Kernels that multiply do it while they write the product.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};

use super::as_dtype;
use super::held::held;
use super::sums::accumulate;
use crate::product::Precision;

/// What becomes of a product: it is multiplied by `factor`, and `sum` is added if there is one. Sums are in f32.
pub(crate) struct Finish {
    pub(crate) factor: f32,
    pub(crate) sum: Option<CubeTensor>,
    /// Whether the result is written over `sum`.
    pub(crate) is_in_place: bool,
    /// Precision in which the result is written, if there is no sum.
    pub(crate) result: Precision,
}

impl Finish {
    /// The product itself.
    pub(super) const PLAIN: Self = Self { factor: 1.0, sum: None, is_in_place: false, result: Precision::F32 };

    /// The product, written in `result`.
    pub(crate) fn written_in(result: Precision) -> Self {
        Self { result, ..Self::PLAIN }
    }

    /// Type of the result on `device`.
    pub(super) fn dtype(&self, device: &CubeDevice) -> DType {
        if self.sum.is_some() { DType::F32 } else { held(device, self.result) }
    }

    /// The product times `factor`.
    pub(crate) fn times(factor: f32) -> Self {
        Self { factor, ..Self::PLAIN }
    }

    /// `sum` plus the product times `factor`, written over `sum`, even if other handles share its memory.
    pub(crate) fn onto(sum: CubeTensor, factor: f32) -> Self {
        Self { factor, sum: Some(sum), is_in_place: true, ..Self::PLAIN }
    }

    /// `sum`, if there is one, plus the product. It is written over `sum` if nothing else shares its memory.
    pub(crate) fn plus(sum: Option<CubeTensor>) -> Self {
        Self { is_in_place: sum.as_ref().is_some_and(CubeTensor::can_mut), sum, ..Self::PLAIN }
    }

    /// Finishes a product whose kernel does not do it.
    pub(super) fn of(&self, product: CubeTensor) -> CubeTensor {
        let scaled = |product: CubeTensor| match self.factor {
            1.0 => product,
            factor => CubeBackend::float_mul_scalar(product, factor.into()),
        };
        match &self.sum {
            Some(sum) if self.is_in_place => {
                accumulate(sum, &product, self.factor);
                sum.clone()
            }
            Some(sum) => CubeBackend::float_add(sum.clone(), scaled(product)),
            None => {
                let dtype = self.dtype(&product.device);
                as_dtype(&scaled(product), dtype)
            }
        }
    }
}
