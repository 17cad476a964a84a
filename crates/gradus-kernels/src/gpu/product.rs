//! Matrix products. CubeCL multiplies. This module chooses the strategy by the type of the operands, so the same product gives the same
//! bits on the same device, and f32 is not shortened to TF32.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::launch::launch_ref;
use cubek::matmul::multi_level::Strategy as Staged;
use cubek::matmul::routine::BlueprintStrategy;
use cubek::matmul::strategy::Strategy;
use cubek::std::InputBinding;

#[cfg(feature = "cuda")]
use super::dims;
use super::finish::Finish;
pub(crate) use super::held::{held, narrower};
use super::{Before, GpuOp, InputGradients, as_dtype, elements, empty_f32, zeros};
use crate::product::Precision;

/// Strategies for operands of `dtype`, the best first. A strategy that does not support a shape returns an error before it computes.
fn strategies(dtype: DType) -> Vec<Strategy> {
    let unit = [Staged::SimpleUnit(BlueprintStrategy::default()), Staged::Naive];
    let cores = [Staged::SimpleCyclicCmma(BlueprintStrategy::default())];
    let cores = cores.into_iter().filter(|_| dtype == DType::BF16);
    cores.chain(unit).map(Strategy::MultiLevel).collect()
}

/// Rows up to which the kernel of this crate is preferred to cuBLASLt.
#[cfg(feature = "cuda")]
const FEW_ROWS: usize = 128;

/// Multiplies operands of one type on an NVIDIA GPU. For few rows, the kernel of this crate is tried first, because it is queued faster
/// than cuBLASLt. `None` without a kernel.
#[cfg(feature = "cuda")]
fn on_cuda(a: &CubeTensor, b: &CubeTensor, transposed: [bool; 2], finish: &Finish) -> Option<CubeTensor> {
    use super::cuda::{cublas, product};
    let rows = a.shape()[a.shape().len() - if transposed[0] { 1 } else { 2 }];
    // Without a factor and a sum, the kernel writes the final type.
    let dtype = if finish.factor == 1.0 { finish.dtype(&a.device) } else { DType::F32 };
    let product = || (a.dtype == DType::BF16).then(|| product::multiply(a, b, transposed, dtype)).flatten();
    let own = || product().map(|product| finish.of(product));
    let lt = || cublas::multiply(a, b, transposed, finish);
    if rows <= FEW_ROWS { own().or_else(lt) } else { lt().or_else(own) }
}

#[cfg(not(feature = "cuda"))]
fn on_cuda(_: &CubeTensor, _: &CubeTensor, _: [bool; 2], _: &Finish) -> Option<CubeTensor> {
    None
}

/// Converts `x` to an operand of products in `precision`.
pub(crate) fn operand(x: &CubeTensor, precision: Precision) -> CubeTensor {
    as_dtype(x, held(&x.device, precision))
}

/// Computes `op(a) · op(b)` in f32, where `op` transposes the last two dimensions of the operands marked in `transposed`. Operands are held
/// in `precision`, if the device supports it, and sums are in f32.
///
/// # Panics
/// If the shapes do not fit.
pub(crate) fn multiply(a: &CubeTensor, b: &CubeTensor, transposed: [bool; 2], precision: Precision) -> CubeTensor {
    multiply_and(a, b, transposed, precision, Finish::PLAIN)
}

/// Like [`multiply`], with what becomes of the product.
///
/// # Panics
/// If the shapes do not fit.
pub(crate) fn multiply_and(
    a: &CubeTensor,
    b: &CubeTensor,
    transposed: [bool; 2],
    precision: Precision,
    finish: Finish,
) -> CubeTensor {
    let dtype = held(&a.device, precision);
    let (a, b) = (as_dtype(a, dtype), as_dtype(b, dtype));
    let is_empty = elements(&a) == 0 || elements(&b) == 0;
    let product = if is_empty { None } else { on_cuda(&a, &b, transposed, &finish) };
    product.unwrap_or_else(|| finish.of(by_cubecl(a, b, transposed)))
}

/// As [`multiply`], for several right operands, with results written in `result`.
pub(crate) fn multiply_each<const N: usize>(
    a: &CubeTensor,
    each: [&CubeTensor; N],
    transposed: [bool; 2],
    precision: Precision,
    result: Precision,
) -> [CubeTensor; N] {
    let dtype = held(&a.device, precision);
    let (a, each) = (as_dtype(a, dtype), each.map(|b| as_dtype(b, dtype)));
    #[cfg(feature = "cuda")]
    if dims(&a)[0] > FEW_ROWS
        && let Some(products) = super::cuda::cublas::multiply_each(&a, each.each_ref(), transposed, result)
    {
        return products;
    }
    each.map(|b| multiply_and(&a, &b, transposed, precision, Finish::written_in(result)))
}

/// Multiplies operands of one type with a kernel of CubeCL.
fn by_cubecl(a: CubeTensor, b: CubeTensor, transposed: [bool; 2]) -> CubeTensor {
    let dtype = a.dtype;
    let operand = |x: CubeTensor, is_transposed: bool| if is_transposed { CubeBackend::float_transpose(x) } else { x };
    let (a, b) = (operand(a, transposed[0]), operand(b, transposed[1]));
    let mut shape = a.shape().to_vec();
    let rank = shape.len();
    shape[rank - 1] = b.shape()[rank - 1];
    if elements(&a) == 0 || elements(&b) == 0 {
        return zeros(&a, &shape, DType::F32);
    }
    let out = empty_f32(&a, &shape);
    let [held, summed] = [dtype, DType::F32].map(dtype_to_storage_type);
    for strategy in strategies(dtype) {
        let [a, b] = [&a, &b].map(|x| InputBinding::new(x.clone().binding(), held));
        let mut types = MatmulElems::from_globals(&MatmulGlobalElems { lhs: held, rhs: held, out: summed });
        if launch_ref(&strategy, &out.client, a, b, out.clone().binding(), &mut types).is_ok() {
            return out;
        }
    }
    unreachable!("the last of the ways to multiply takes every shape")
}

/// A conversion to the type of a product's operands.
#[derive(Debug)]
pub(crate) struct Operand(pub(crate) Precision);

impl GpuOp for Operand {
    fn supports(&self, device: &CubeDevice, dtype: DType) -> bool {
        dtype == DType::F32 && held(device, self.0) != DType::F32
    }

    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        (operand(&inputs[0], self.0), Vec::new())
    }

    fn backward(&self, _: &[CubeTensor], grad: CubeTensor, _: &[bool], _: Before) -> InputGradients {
        vec![Some(grad)]
    }
}

/// Product of two matrices, or of two batches of equal size.
#[derive(Debug)]
pub(crate) struct Matmul;

impl GpuOp for Matmul {
    fn supports(&self, _: &CubeDevice, dtype: DType) -> bool {
        dtype == DType::F32
    }

    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        (multiply(&inputs[0], &inputs[1], [false, false], Precision::F32), inputs)
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool], _: Before) -> InputGradients {
        let grad_a = needed[0].then(|| multiply(&grad, &saved[1], [false, true], Precision::F32));
        let grad_b = needed[1].then(|| multiply(&saved[0], &grad, [true, false], Precision::F32));
        vec![grad_a, grad_b]
    }
}

/// Adds a row to every row of `y`, if given.
pub(crate) fn plus_bias(y: CubeTensor, bias: Option<CubeTensor>) -> CubeTensor {
    let Some(bias) = bias else { return y };
    let n = elements(&bias);
    let CubeTensor { client, device, handle, dtype, .. } = bias;
    CubeBackend::float_add(y, CubeTensor::new_contiguous(client, device, vec![1, n].into(), handle, dtype))
}
