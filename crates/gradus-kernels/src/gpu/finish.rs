//! What becomes of a matrix product. Kernels that multiply do it while they write the product.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};

use super::as_dtype;
use super::held::held;
use super::sums::accumulate;
use crate::product::Precision;

/// What becomes of a product: it is multiplied by `factor` and written to `destination`.
pub(crate) struct Finish {
    pub(super) factor: f32,
    pub(super) destination: Destination,
}

/// Where a product is written, and the sum that it is added to. Sums are in f32.
pub(super) enum Destination {
    /// To a new tensor, in this precision.
    New(Precision),
    /// To a new tensor, added to this sum.
    Plus(CubeTensor),
    /// Over this sum, added to it.
    Onto(CubeTensor),
}

impl Finish {
    /// The product itself.
    pub(super) const PLAIN: Self = Self { factor: 1.0, destination: Destination::New(Precision::F32) };

    /// The product, written in `result`.
    pub(super) fn written_in(result: Precision) -> Self {
        Self { factor: 1.0, destination: Destination::New(result) }
    }

    /// `sum` plus the product, written over `sum`, even if other handles share its memory.
    pub(super) fn onto(sum: CubeTensor) -> Self {
        Self { factor: 1.0, destination: Destination::Onto(sum) }
    }

    /// `sum`, if there is one, plus the product. It is written over `sum` if nothing else shares its memory.
    pub(super) fn plus(sum: Option<CubeTensor>) -> Self {
        match sum {
            None => Self::PLAIN,
            Some(sum) if sum.can_mut() => Self::onto(sum),
            Some(sum) => Self { factor: 1.0, destination: Destination::Plus(sum) },
        }
    }

    /// Multiplies the product by `factor`, but not the sum.
    pub(super) fn times(self, factor: f32) -> Self {
        Self { factor: self.factor * factor, ..self }
    }

    /// Type of the result on `device`.
    pub(super) fn dtype(&self, device: &CubeDevice) -> DType {
        match self.destination {
            Destination::New(result) => held(device, result),
            Destination::Plus(_) | Destination::Onto(_) => DType::F32,
        }
    }

    /// Finishes a product whose kernel does not do it.
    pub(super) fn of(&self, product: CubeTensor) -> CubeTensor {
        let scaled = |product: CubeTensor| match self.factor {
            1.0 => product,
            factor => CubeBackend::float_mul_scalar(product, factor.into()),
        };
        match &self.destination {
            Destination::New(_) => {
                let dtype = self.dtype(&product.device);
                as_dtype(&scaled(product), dtype)
            }
            Destination::Plus(sum) => CubeBackend::float_add(sum.clone(), scaled(product)),
            Destination::Onto(sum) => {
                accumulate(sum, &product, self.factor);
                sum.clone()
            }
        }
    }
}
