//! Kernels for GPUs, written once in CubeCL: CUDA compiles them as C++, wgpu as WGSL for Vulkan, Metal and DirectX 12.
//!
//! Tensors are f32 or, if the device supports it, bf16. Sums, exponentials and everything kept for the backward pass are in f32. Every sum
//! has a fixed order, so the same input gives the same bits on the same device. These kernels use shared memory and barriers but no planes
//! and no tensor cores; those in [`cuda`], written in CUDA C++, do. `docs/gpu.md` lists the memory traffic and the arithmetic of each.

pub(crate) mod activation;
pub(crate) mod adamw;
pub(crate) mod attention;
pub(crate) mod cache;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod draw;
mod dropout;
pub(crate) mod embedding;
mod finish;
mod frozen;
mod held;
mod linear;
pub(crate) mod logprobs;
mod low_rank;
pub(crate) mod memory;
pub(crate) mod norm;
#[cfg(feature = "cuda")]
pub(crate) mod offline;
pub(crate) mod onto;
pub(crate) mod product;
pub(crate) mod quantized;
pub(crate) mod rope;
pub(crate) mod sums;
mod tables;

use std::collections::{HashMap, VecDeque};
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

/// Returns the source of every kernel, for the sizes and types that it is compiled for.
///
/// # Panics
/// If a kernel cannot be written in CUDA C++.
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
        draw::offline,
        dropout::offline,
        embedding::offline,
        logprobs::offline,
        norm::offline,
        quantized::offline,
        rope::offline,
        sums::offline,
    ];
    modules.into_iter().flat_map(|sources| sources(&kernels)).collect()
}

/// Forward and backward pass of an operation over contiguous GPU tensors.
pub(crate) trait GpuOp: Debug + Send + Sync + 'static {
    /// Whether there is a kernel for tensors of `dtype` on `device`.
    fn supports(&self, device: &CubeDevice, dtype: DType) -> bool {
        computes(device, dtype)
    }

    /// Returns the output and the tensors that the backward pass needs.
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>);

    /// Returns the gradient of each input for which `needed` is true, given the gradient of the output.
    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool], before: Before) -> InputGradients;
}

/// Gradients of the inputs of an operation, where they are needed.
pub(crate) type InputGradients = Vec<Option<CubeTensor>>;

/// Gradient of the first input from other operations that read this input, if there is one. A kernel that adds it while it writes its own
/// saves a pass over three tensors. Its operation then takes `before`; otherwise, `before` is added afterwards.
pub(crate) type Before<'a> = &'a mut Option<CubeTensor>;

/// Whether kernels over tensors of `dtype` run on `device`: f32 everywhere, bf16 if the device computes in it.
pub(crate) fn computes(device: &CubeDevice, dtype: DType) -> bool {
    match dtype {
        DType::F32 => true,
        DType::BF16 => CubeBackend::supports_dtype(device, dtype),
        _ => false,
    }
}

/// Default number of units per cube.
pub(crate) const UNITS: u32 = 256;

/// Largest number of cubes of a grid in one direction: the minimum that Vulkan guarantees.
const MOST_CUBES: u32 = 65_535;

/// Returns a grid of at least `cubes` cubes. Kernels must compare `CUBE_POS` with the amount of work.
pub(crate) fn grid(cubes: usize) -> CubeCount {
    let cubes = u32::try_from(cubes).expect("a kernel has fewer than 2³² cubes");
    let rows = cubes.div_ceil(MOST_CUBES);
    CubeCount::Static(cubes.div_ceil(rows.max(1)), rows, 1)
}

/// Returns a grid with one unit per element.
pub(crate) fn grid_of_units(elements: usize) -> CubeCount {
    grid(elements.div_ceil(UNITS as usize))
}

/// Elements per unit of kernels in which a unit computes several. Their loads come before any store, so they overlap.
pub(crate) const EACH: usize = 4;

/// Returns a grid with one unit per [`EACH`] elements. [`nth_element`] gives the elements of a unit.
pub(crate) fn grid_of_groups(elements: usize) -> CubeCount {
    grid(elements.div_ceil(UNITS as usize * EACH))
}

/// Index of the `j`-th of the [`EACH`] elements of a unit. The units of a cube read neighboring elements at the same time.
#[cube]
pub(crate) fn nth_element(j: usize) -> usize {
    CUBE_POS * comptime!(UNITS as usize * EACH) + j * comptime!(UNITS as usize) + UNIT_POS as usize
}

/// Element type of a tensor.
pub(crate) fn element(tensor: &CubeTensor) -> ElemType {
    dtype_to_storage_type(tensor.dtype)
}

/// Number of elements of a tensor.
pub(crate) fn elements(tensor: &CubeTensor) -> usize {
    tensor.shape().num_elements()
}

/// Rows and columns of a matrix.
pub(crate) fn dims(tensor: &CubeTensor) -> [usize; 2] {
    tensor.shape().dims()
}

/// Allocates a tensor on the device of `like` without initializing it.
pub(crate) fn empty(like: &CubeTensor, shape: &[usize], dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), Shape::from(shape.to_vec()), dtype)
}

/// Allocates an f32 tensor on the device of `like` without initializing it.
pub(crate) fn empty_f32(like: &CubeTensor, shape: &[usize]) -> CubeTensor {
    empty(like, shape, DType::F32)
}

/// Returns zeros on the device of `like`, without gaps between rows, as these kernels need them. Burn's own tensors have gaps on CUDA if
/// the length of a row is odd.
pub(crate) fn zeros(like: &CubeTensor, shape: &[usize], dtype: DType) -> CubeTensor {
    into_contiguous(CubeBackend::float_zeros(Shape::from(shape.to_vec()), &like.device, dtype.into()))
}

/// Returns `x` converted to `dtype`, without gaps between rows.
pub(crate) fn as_dtype(x: &CubeTensor, dtype: DType) -> CubeTensor {
    into_contiguous(cast(x.clone(), dtype))
}

/// Allocates a tensor of the shape and type of `like` without initializing it.
pub(crate) fn empty_like(like: &CubeTensor) -> CubeTensor {
    empty(like, &like.shape().to_vec(), like.dtype)
}

/// Passes a tensor as a kernel argument.
pub(crate) fn arg(tensor: &CubeTensor) -> BufferArg {
    tensor.clone().into_buffer_arg()
}

/// Converts a tensor without autodiff to the type that kernels take.
pub(crate) fn cube_of<const R: usize>(tensor: Tensor<R>) -> CubeTensor {
    match tensor.into_dispatch().kind {
        DispatchTensorKind::Cube(BackendTensor::Float(tensor)) => tensor,
        _ => unreachable!("a tensor of floats that is not tracked, on a GPU"),
    }
}

/// Converts the result of a kernel to a tensor without autodiff.
pub(crate) fn tensor_of<const R: usize>(tensor: CubeTensor) -> Tensor<R> {
    let kind = DispatchTensorKind::Cube(BackendTensor::Float(tensor));
    Tensor::from_dispatch(DispatchTensor { kind, autodiff: DispatchAutodiffContext::Disabled })
}

/// View of the rows `from..to` of a contiguous matrix.
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

/// 32-bit words on a device.
#[derive(Debug, Clone)]
pub(crate) struct Words {
    handle: Handle,
    length: usize,
}

impl Words {
    /// Copies `words` to the device of `client`, at least one, because empty buffers cannot be bound.
    pub(crate) fn new(client: &Client, words: &[u32]) -> Self {
        let words = if words.is_empty() { &[0] } else { words };
        Self { handle: client.create_from_slice(u32::as_bytes(words)), length: words.len() }
    }

    /// Returns a copy of `words` on the device of `like`. The last few tables are kept, because the
    /// layers of a pass need the same ones.
    pub(crate) fn shared(like: &CubeTensor, words: &[u32]) -> Self {
        /// Tables that are kept.
        const RECENT: usize = 16;
        type Known = (CubeDevice, Vec<u32>, Words);
        static KNOWN: Mutex<VecDeque<Known>> = Mutex::new(VecDeque::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let is_this = |(device, content, _): &Known| *device == like.device && content == words;
        if let Some((.., copy)) = known.iter().rev().find(|known| is_this(known)) {
            return copy.clone();
        }
        let copy = Self::new(&like.client, words);
        if known.len() == RECENT {
            known.pop_front();
        }
        known.push_back((like.device.clone(), words.to_vec(), copy.clone()));
        copy
    }

    /// The words as a kernel argument.
    pub(crate) fn arg(&self) -> BufferArg {
        // SAFETY: the buffer was created with this number of words.
        unsafe { BufferArg::from_raw_parts(self.handle.clone(), self.length) }
    }
}

/// Number of tensors per launch if each needs `each` buffers, at most `most`. The device limits the bound buffers; one table and the
/// scalars take three of them.
pub(crate) fn batch(client: &Client, each: usize, most: usize) -> usize {
    let bound = client.properties().hardware.max_bindings as usize;
    (bound.saturating_sub(3) / each).clamp(1, most)
}

/// Copies of segment tables on each device. A model has the same tensors at every step.
static SEGMENTS: LazyLock<Mutex<HashMap<Vec<u32>, OnDevices>>> = LazyLock::new(Mutex::default);

/// For tensors with these numbers of cubes and marks, returns the total number of cubes and a table. The table holds each tensor's first
/// cube and mark and ends with the total. It is copied to a device once.
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

/// Returns the copy of `table` on the device of `like` as a kernel argument.
pub(crate) fn table_arg(table: &Table<f32>, like: &CubeTensor) -> BufferArg {
    let values: &[f32] = if table.is_empty() { &[0.0] } else { table };
    let copy = table.copies.get(&like.device, || Copied(like.client.create_from_slice(f32::as_bytes(values))));
    // SAFETY: the buffer was created with this number of values.
    unsafe { BufferArg::from_raw_parts(copy.0.clone(), values.len()) }
}

/// Sums `value` over each group of `lanes` neighboring units, in a fixed order; every unit gets the sum of its group. `scratch` has one
/// element per unit, and `lanes` is a power of two.
#[cube]
pub(crate) fn sum_of_lanes(value: f32, scratch: &mut Shared<[f32]>, #[comptime] lanes: usize) -> f32 {
    let unit = UNIT_POS as usize;
    let lane = unit % lanes;
    // Other units may still be reading the result of the previous sum.
    sync_cube();
    scratch[unit] = value;
    sync_cube();
    let mut width = comptime!(lanes / 2).runtime();
    while width > 0 {
        if lane < width {
            let other = scratch[unit + width];
            scratch[unit] += other;
        }
        sync_cube();
        width /= 2;
    }
    scratch[unit - lane]
}

/// Sums the values of all [`UNITS`] units of a cube in a fixed order; every unit gets the sum. `scratch` has one element per unit.
#[cube]
pub(crate) fn cube_sum(value: f32, scratch: &mut Shared<[f32]>) -> f32 {
    sum_of_lanes(value, scratch, comptime!(UNITS as usize))
}

/// Returns the largest value among the units of a cube.
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
