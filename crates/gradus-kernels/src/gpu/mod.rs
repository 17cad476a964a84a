//! Kernels for GPUs, written once in CubeCL: CUDA compiles them as C++, wgpu as WGSL for Vulkan, Metal and DirectX 12.
//!
//! Tensors are f32 or, where the device has it, bf16; sums, exponentials and everything kept for the backward pass are in
//! f32. Every sum has a fixed order, so the same input gives the same bits on the same device. These kernels use shared memory
//! and barriers but no planes and no tensor cores; those of [`cuda`], in CUDA C++, do. `docs/gpu.md` says what each moves and
//! computes.

pub(crate) mod activation;
pub(crate) mod adamw;
pub(crate) mod attention;
pub(crate) mod cache;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod embedding;
mod frozen;
mod linear;
pub(crate) mod logprobs;
pub(crate) mod memory;
pub(crate) mod norm;
#[cfg(feature = "cuda")]
pub(crate) mod offline;
pub(crate) mod product;
pub(crate) mod quantized;
pub(crate) mod rope;
pub(crate) mod sums;
mod tables;

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{
    Backend, BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, TensorMetadata,
};
use burn::tensor::{DType, Shape, Tensor};
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::table::{OnDevices, Table};

/// Every kernel, with the sizes and in the types that it is compiled for.
///
/// # Panics
/// When one cannot be written in CUDA C++.
#[cfg(feature = "cuda")]
pub fn cuda_sources() -> Vec<offline::Source> {
    let kernels = offline::Offline::new();
    let modules = [
        activation::offline,
        adamw::offline,
        attention::offline,
        cache::offline,
        cuda::attention::offline,
        cuda::product::offline,
        embedding::offline,
        logprobs::offline,
        norm::offline,
        quantized::offline,
        rope::offline,
        sums::offline,
    ];
    modules.into_iter().flat_map(|sources| sources(&kernels)).collect()
}

/// The passes of an operation over contiguous tensors of a GPU.
pub(crate) trait GpuOp: Debug + Send + Sync + 'static {
    /// Whether there is a kernel for tensors of `dtype` on `device`.
    fn supports(&self, device: &CubeDevice, dtype: DType) -> bool {
        computes(device, dtype)
    }

    /// The output, and what the backward pass needs.
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>);

    /// The gradient of each input for which `needed` is true, given the gradient of the output.
    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool]) -> Vec<Option<CubeTensor>>;
}

/// Whether kernels over tensors of `dtype` run on `device`: f32 everywhere, bf16 where the device computes with it.
pub(crate) fn computes(device: &CubeDevice, dtype: DType) -> bool {
    match dtype {
        DType::F32 => true,
        DType::BF16 => CubeBackend::supports_dtype(device, dtype),
        _ => false,
    }
}

/// Units of a cube where nothing else decides.
pub(crate) const UNITS: u32 = 256;

/// How many cubes a grid has at most in one direction: the least that Vulkan allows.
const MOST_CUBES: u32 = 65_535;

/// A grid of at least `cubes` cubes. Kernels compare `CUBE_POS` with what there is to do.
pub(crate) fn grid(cubes: usize) -> CubeCount {
    let cubes = u32::try_from(cubes).expect("a kernel has fewer than 2³² cubes");
    let rows = cubes.div_ceil(MOST_CUBES);
    CubeCount::Static(cubes.div_ceil(rows.max(1)), rows, 1)
}

/// A grid with one unit for each of `elements`.
pub(crate) fn grid_of_units(elements: usize) -> CubeCount {
    grid(elements.div_ceil(UNITS as usize))
}

/// How the elements of a tensor are held.
pub(crate) fn element(tensor: &CubeTensor) -> ElemType {
    dtype_to_storage_type(tensor.dtype)
}

/// How many elements a tensor has.
pub(crate) fn elements(tensor: &CubeTensor) -> usize {
    tensor.shape().num_elements()
}

/// Rows and columns of a matrix.
pub(crate) fn dims(tensor: &CubeTensor) -> [usize; 2] {
    tensor.shape().dims()
}

/// A tensor without values beside `like`.
pub(crate) fn empty(like: &CubeTensor, shape: &[usize], dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), Shape::from(shape.to_vec()), dtype)
}

/// A tensor of f32 without values beside `like`.
pub(crate) fn empty_f32(like: &CubeTensor, shape: &[usize]) -> CubeTensor {
    empty(like, shape, DType::F32)
}

/// Zeros beside `like`. Rows follow each other without gaps, as kernels here want them: Burn's own tensors have gaps on CUDA where
/// the length of a row is odd.
pub(crate) fn zeros(like: &CubeTensor, shape: &[usize], dtype: DType) -> CubeTensor {
    into_contiguous(CubeBackend::float_zeros(Shape::from(shape.to_vec()), &like.device, dtype.into()))
}

/// `x` as numbers of `dtype`, without gaps between rows.
pub(crate) fn as_dtype(x: &CubeTensor, dtype: DType) -> CubeTensor {
    into_contiguous(cast(x.clone(), dtype))
}

/// A tensor of the shape and type of `like` without values.
pub(crate) fn empty_like(like: &CubeTensor) -> CubeTensor {
    empty(like, &like.shape().to_vec(), like.dtype)
}

/// A tensor as an argument.
pub(crate) fn arg(tensor: &CubeTensor) -> BufferArg {
    tensor.clone().into_buffer_arg()
}

/// A tensor that is not tracked by autodiff, as kernels take it.
pub(crate) fn cube_of<const R: usize>(tensor: Tensor<R>) -> CubeTensor {
    match tensor.into_dispatch().kind {
        DispatchTensorKind::Cube(BackendTensor::Float(tensor)) => tensor,
        _ => unreachable!("a tensor of floats that is not tracked, on a GPU"),
    }
}

/// A tensor without autodiff of what a kernel gave.
pub(crate) fn tensor_of<const R: usize>(tensor: CubeTensor) -> Tensor<R> {
    let kind = DispatchTensorKind::Cube(BackendTensor::Float(tensor));
    Tensor::from_dispatch(DispatchTensor { kind, autodiff: DispatchAutodiffContext::Disabled })
}

/// Rows `from..to` of a contiguous matrix where they lie.
pub(crate) fn rows(matrix: &CubeTensor, from: usize, to: usize) -> CubeTensor {
    let [n, width] = dims(matrix);
    if (from, to) == (0, n) {
        return matrix.clone();
    }
    let bytes = width * matrix.dtype.size();
    let handle = matrix.handle.clone().offset_start((from * bytes) as u64).offset_end(((n - to) * bytes) as u64);
    let (client, device) = (matrix.client.clone(), matrix.device.clone());
    CubeTensor::new_contiguous(client, device, Shape::from(vec![to - from, width]), handle, matrix.dtype)
}

/// Words on a device.
#[derive(Debug, Clone)]
pub(crate) struct Words {
    handle: Handle,
    length: usize,
}

impl Words {
    /// Copies `words` to where `client` computes; at least one, as empty buffers cannot be bound.
    pub(crate) fn new(client: &Client, words: &[u32]) -> Self {
        let words = if words.is_empty() { &[0] } else { words };
        Self { handle: client.create_from_slice(u32::as_bytes(words)), length: words.len() }
    }

    /// The words as an argument.
    pub(crate) fn arg(&self) -> BufferArg {
        // SAFETY: the buffer was made of as many words.
        unsafe { BufferArg::from_raw_parts(self.handle.clone(), self.length) }
    }
}

/// How many tensors one launch takes that binds `each` buffers for every one, at most `most`: what the device binds, less a table and the
/// scalars.
pub(crate) fn batch(client: &Client, each: usize, most: usize) -> usize {
    let bound = client.properties().hardware.max_bindings as usize;
    (bound.saturating_sub(3) / each).clamp(1, most)
}

/// What was made of tables of segments for each device: the tensors of a model are the same ones at every step.
static SEGMENTS: LazyLock<Mutex<HashMap<Vec<u32>, OnDevices>>> = LazyLock::new(Mutex::default);

/// For tensors of so many cubes each, with a mark: the cubes of all, and the table of each one's first cube and mark, which ends with the
/// number of all cubes. It is copied to a device once.
pub(crate) fn segments(
    tensors: impl Iterator<Item = (usize, u32)>,
    client: &Client,
    device: &CubeDevice,
) -> (usize, Arc<Words>) {
    let (mut cubes, mut table) = (0, Vec::new());
    for (of_tensor, mark) in tensors {
        table.extend([cubes as u32, mark]);
        cubes += of_tensor;
    }
    table.push(cubes as u32);
    let mut known = SEGMENTS.lock().unwrap_or_else(PoisonError::into_inner);
    let copies = known.entry(table.clone()).or_default();
    (cubes, copies.get(device, || Words::new(client, &table)))
}

/// A table of numbers on a device.
struct Copied(Handle);

/// The copy of `table` on the device of `like`, as an argument.
pub(crate) fn table_arg(table: &Table<f32>, like: &CubeTensor) -> BufferArg {
    let values: &[f32] = if table.is_empty() { &[0.0] } else { table };
    let copy = table.copies.get(&like.device, || Copied(like.client.create_from_slice(f32::as_bytes(values))));
    // SAFETY: the buffer was made of as many numbers.
    unsafe { BufferArg::from_raw_parts(copy.0.clone(), values.len()) }
}

/// The sum of what the units of a cube hold, in a fixed order; every unit gets it. `scratch` has one place a unit, and the
/// number of units is a power of two.
#[cube]
pub(crate) fn cube_sum(value: f32, scratch: &mut Shared<[f32]>) -> f32 {
    let unit = UNIT_POS as usize;
    // Others may still read what the sum before left.
    sync_cube();
    scratch[unit] = value;
    sync_cube();
    let mut width = CUBE_DIM as usize / 2;
    while width > 0 {
        if unit < width {
            let other = scratch[unit + width];
            scratch[unit] += other;
        }
        sync_cube();
        width /= 2;
    }
    scratch[0]
}

/// The largest of what the units of a cube hold.
#[cube]
pub(crate) fn cube_max(value: f32, scratch: &mut Shared<[f32]>) -> f32 {
    let unit = UNIT_POS as usize;
    sync_cube();
    scratch[unit] = value;
    sync_cube();
    let mut width = CUBE_DIM as usize / 2;
    while width > 0 {
        if unit < width {
            let other = scratch[unit + width];
            scratch[unit] = max(scratch[unit], other);
        }
        sync_cube();
        width /= 2;
    }
    scratch[0]
}
