//! The mechanism that integrates hand-written kernels into Burn. An [`Op`] defines the forward and backward pass over
//! CPU tensors, and with [`Op::on_gpu`] over GPU tensors, if there is a kernel. [`apply`] records it in the autodiff
//! graph. [`supports`] reports whether an operation has a kernel on a device; if not, its reference runs.
//!
//! Everything without gradient (segment boundaries, target ids, epsilons) is a field of the op on the host; inputs are
//! float tensors. An op has one output. Several results are stacked as rows of one tensor.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt::Debug;
use std::sync::{Arc, LazyLock};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    ExtensionType, Flex, backend_extension,
};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::simd::simd;

/// A differentiable operation over CPU tensors.
pub(crate) trait Op: Debug + Send + Sync + 'static {
    /// Returns the output and the tensors that the backward pass needs.
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>);

    /// Returns the gradient of each input for which `needed` is true, given the gradient of the output.
    fn backward(&self, saved: &[Dense], grad: &Dense, needed: &[bool]) -> Vec<Option<Dense>>;

    /// Returns the same two passes for a GPU, if this operation has a kernel there.
    #[cfg(feature = "gpu")]
    fn on_gpu(&self) -> Option<&dyn crate::gpu::GpuOp> {
        None
    }
}

/// A contiguous f32 CPU tensor.
#[derive(Debug, Clone)]
pub(crate) struct Dense(FlexTensor);

impl Dense {
    /// Builds a tensor from values in row-major order.
    pub(crate) fn new(values: Vec<f32>, shape: &[usize]) -> Self {
        debug_assert_eq!(values.len(), shape.iter().product::<usize>());
        Self(FlexTensor::from_data(TensorData::new(values, shape.to_vec())))
    }

    pub(crate) fn from_flex(tensor: FlexTensor) -> Self {
        if tensor.is_contiguous() { Self(tensor) } else { Self(tensor.to_contiguous()) }
    }

    /// Moves the values into memory of their own, or copies them if others share it.
    pub(crate) fn into_own(self) -> Self {
        Self(FlexTensor::from_data(self.0.into_data()))
    }

    /// Returns the values as a tensor without autodiff.
    pub(crate) fn tensor<const R: usize>(&self) -> Tensor<R> {
        let kind = DispatchTensorKind::Flex(BackendTensor::Float(self.0.clone()));
        Tensor::from_dispatch(DispatchTensor { kind, autodiff: DispatchAutodiffContext::Disabled })
    }

    /// The values in row-major order.
    pub(crate) fn values(&self) -> &[f32] {
        let layout = self.0.layout();
        let start = layout.start_offset();
        &self.0.storage::<f32>()[start..start + layout.num_elements()]
    }

    /// Mutable values. They are copied first if shared.
    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        let layout = self.0.layout();
        let (start, len) = (layout.start_offset(), layout.num_elements());
        &mut self.0.storage_mut::<f32>()[start..start + len]
    }

    /// Sum of each column of a matrix: the gradient of a bias.
    pub(crate) fn column_sums(&self) -> Self {
        /// Rows summed by one task. The sums of the blocks are added in order.
        const ROWS: usize = 64;
        let columns = self.dims()[1];
        let of_block = |rows: &[f32]| {
            let mut sums = vec![0.0f32; columns];
            add_rows(&mut sums, rows);
            sums
        };
        let blocks: Vec<Vec<f32>> = self.values().par_chunks((ROWS * columns).max(1)).map(of_block).collect();
        let mut sums = vec![0.0f32; columns];
        blocks.iter().for_each(|block| add_rows(&mut sums, block));
        Self::new(sums, &[columns])
    }

    /// Dimensions of the tensor.
    pub(crate) fn dims(&self) -> Vec<usize> {
        self.0.layout().shape().to_vec()
    }
}

simd! {
    /// Adds each row to `sums`, which has the length of a row.
    fn add_rows(sums: &mut [f32], rows: &[f32]) {
        for row in rows.chunks_exact(sums.len().max(1)) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }
}

/// A shared operation.
#[derive(Debug, Clone)]
pub struct OpHandle(Passes);

#[derive(Debug, Clone)]
enum Passes {
    /// An operation that the CPU computes, and possibly a GPU.
    Op(Arc<dyn Op>),
    /// An operation for GPUs only. Its saved tensors stay on the device.
    #[cfg(feature = "gpu")]
    Gpu(Arc<dyn crate::gpu::GpuOp>),
}

impl OpHandle {
    /// The passes on the CPU.
    fn on_cpu(&self) -> &dyn Op {
        match &self.0 {
            Passes::Op(op) => &**op,
            #[cfg(feature = "gpu")]
            Passes::Gpu(op) => unreachable!("{op:?} is for tensors of a GPU"),
        }
    }

    /// The passes on a GPU.
    #[cfg(feature = "gpu")]
    fn on_gpu(&self) -> &dyn crate::gpu::GpuOp {
        match &self.0 {
            Passes::Op(op) => op.on_gpu().expect("`supports` was asked before the operation was applied"),
            Passes::Gpu(op) => &**op,
        }
    }
}

/// Number of inputs that operations with more than four have; empty tensors fill the rest.
pub(crate) const MANY: usize = 32;

/// The inputs of a fused operation: one to four tensors, or [`MANY`].
#[derive(ExtensionType)]
pub enum Inputs<B: Backend> {
    /// One.
    One(FloatTensor<B>),
    /// Two.
    Two(FloatTensor<B>, FloatTensor<B>),
    /// Three.
    Three(FloatTensor<B>, FloatTensor<B>, FloatTensor<B>),
    /// Four.
    Four(FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, FloatTensor<B>),
    /// A whole block and its parameters.
    Many(
        #[extension_type] Eight<B>,
        #[extension_type] Eight<B>,
        #[extension_type] Eight<B>,
        #[extension_type] Eight<B>,
    ),
}

/// Eight tensors.
#[derive(ExtensionType)]
pub struct Eight<B: Backend>(
    FloatTensor<B>,
    FloatTensor<B>,
    FloatTensor<B>,
    FloatTensor<B>,
    FloatTensor<B>,
    FloatTensor<B>,
    FloatTensor<B>,
    FloatTensor<B>,
);

impl<B: Backend> Eight<B> {
    fn into_array(self) -> [FloatTensor<B>; 8] {
        let Self(a, b, c, d, e, f, g, h) = self;
        [a, b, c, d, e, f, g, h]
    }
}

impl Eight<Dispatch> {
    fn new(mut next: impl FnMut() -> DispatchTensor) -> Self {
        Self(next(), next(), next(), next(), next(), next(), next(), next())
    }
}

impl<B: Backend> Inputs<B> {
    fn into_vec(self) -> Vec<FloatTensor<B>> {
        match self {
            Self::One(a) => vec![a],
            Self::Two(a, b) => vec![a, b],
            Self::Three(a, b, c) => vec![a, b, c],
            Self::Four(a, b, c, d) => vec![a, b, c, d],
            Self::Many(a, b, c, d) => [a, b, c, d].into_iter().flat_map(Eight::into_array).collect(),
        }
    }
}

impl Inputs<Dispatch> {
    fn new(inputs: Vec<DispatchTensor>) -> Self {
        let count = inputs.len();
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().expect("as many as were counted");
        match count {
            1 => Self::One(next()),
            2 => Self::Two(next(), next()),
            3 => Self::Three(next(), next(), next()),
            4 => Self::Four(next(), next(), next(), next()),
            MANY => {
                let mut eight = || Eight::new(&mut next);
                Self::Many(eight(), eight(), eight(), eight())
            }
            _ => unreachable!("a fused operation has one to four inputs, or {MANY}"),
        }
    }
}

/// Interface of a backend that runs fused operations. [`apply`] is the only caller.
#[backend_extension(Cube: cfg(feature = "gpu"), Flex, Autodiff)]
pub trait FusedBackend: Backend {
    /// Runs `op` on `inputs` and records it if gradients are tracked.
    fn fused(#[extension_type] inputs: Inputs<Self>, op: OpHandle) -> FloatTensor<Self>;
}

impl FusedBackend for Flex {
    fn fused(inputs: Inputs<Self>, op: OpHandle) -> FlexTensor {
        Self::forward(&op, inputs.into_vec()).0
    }
}

/// The two passes on a backend that has fused kernels.
trait HostBackend: Backend {
    fn forward(op: &OpHandle, inputs: Vec<FloatTensor<Self>>) -> (FloatTensor<Self>, Vec<FloatTensor<Self>>);

    /// Takes `before`, if the operation adds it to the gradient of the first input.
    fn backward(
        op: &OpHandle,
        saved: Vec<FloatTensor<Self>>,
        grad: FloatTensor<Self>,
        needed: &[bool],
        before: &mut Option<FloatTensor<Self>>,
    ) -> Vec<Option<FloatTensor<Self>>>;

    /// Whether kernels of this backend take `before`.
    const ADDS: bool;
}

impl HostBackend for Flex {
    fn forward(op: &OpHandle, inputs: Vec<FlexTensor>) -> (FlexTensor, Vec<FlexTensor>) {
        let inputs: Vec<Dense> = inputs.into_iter().map(Dense::from_flex).collect();
        let (output, saved) = op.on_cpu().forward(&inputs);
        (output.0, saved.into_iter().map(|tensor| tensor.0).collect())
    }

    const ADDS: bool = false;

    fn backward(
        op: &OpHandle,
        saved: Vec<FlexTensor>,
        grad: FlexTensor,
        needed: &[bool],
        _: &mut Option<FlexTensor>,
    ) -> Vec<Option<FlexTensor>> {
        let saved: Vec<Dense> = saved.into_iter().map(Dense).collect();
        let gradients = op.on_cpu().backward(&saved, &Dense::from_flex(grad), needed);
        gradients.into_iter().map(|gradient| gradient.map(|dense| dense.0)).collect()
    }
}

#[cfg(feature = "gpu")]
mod on_gpu {
    use burn_cubecl::CubeBackend;
    use burn_cubecl::kernel::into_contiguous;
    use burn_cubecl::tensor::CubeTensor;

    use super::{FusedBackend, HostBackend, Inputs, OpHandle};
    use crate::gpu::{Before, InputGradients};

    impl FusedBackend for CubeBackend {
        fn fused(inputs: Inputs<Self>, op: OpHandle) -> CubeTensor {
            Self::forward(&op, inputs.into_vec()).0
        }
    }

    impl HostBackend for CubeBackend {
        fn forward(op: &OpHandle, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
            op.on_gpu().forward(inputs.into_iter().map(into_contiguous).collect())
        }

        const ADDS: bool = true;

        fn backward(
            op: &OpHandle,
            saved: Vec<CubeTensor>,
            grad: CubeTensor,
            needed: &[bool],
            before: Before,
        ) -> InputGradients {
            *before = before.take().map(into_contiguous);
            op.on_gpu().backward(&saved, into_contiguous(grad), needed, before)
        }
    }
}

impl<B: HostBackend + FusedBackend, C: CheckpointStrategy> FusedBackend for Autodiff<B, C> {
    fn fused(inputs: Inputs<Self>, op: OpHandle) -> FloatTensor<Self> {
        match inputs {
            Inputs::One(a) => tracked::<B, C, 1>(op, [a]),
            Inputs::Two(a, b) => tracked::<B, C, 2>(op, [a, b]),
            Inputs::Three(a, b, c) => tracked::<B, C, 3>(op, [a, b, c]),
            Inputs::Four(a, b, c, d) => tracked::<B, C, 4>(op, [a, b, c, d]),
            many @ Inputs::Many(..) => tracked::<B, C, MANY>(op, many.into_vec()),
        }
    }
}

/// Graph node of a recorded operation.
#[derive(Debug)]
struct Recorded;

/// State that the node keeps for the backward pass.
#[derive(Debug, Clone)]
struct Saved<P> {
    op: OpHandle,
    tensors: Vec<P>,
}

impl<B: HostBackend, const N: usize> Backward<B, N> for Recorded {
    type State = Saved<FloatTensor<B>>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let needed = ops.parents.each_ref().map(Option::is_some);
        let grad = grads.consume::<B>(&ops.node);
        registered(|known| known.remove(&ops.node.id.value));
        let first = ops.parents.first().and_then(Option::as_ref);
        let has_gradient = first.filter(|parent| registered(|known| known.contains(&parent.id.value)));
        let mut before = has_gradient.map(|parent| grads.consume::<B>(parent));
        let gradients = B::backward(&ops.state.op, ops.state.tensors, grad, &needed, &mut before);
        if let (Some(parent), Some(before)) = (first, before) {
            grads.register::<B>(parent.id, before);
        }
        for (parent, gradient) in ops.parents.iter().zip(gradients) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<B>(parent.id, gradient);
                // The gradient of a leaf stays where it is, so it cannot be taken out to be added.
                if B::ADDS && parent.requirement == ops.node.requirement {
                    registered(|known| known.insert(parent.id.value));
                }
            }
        }
    }
}

/// Gives access to the numbers of the nodes whose gradients operations of this crate have registered, and which have not been consumed by
/// an operation of this crate. Burn does not tell whether a node has a gradient.
///
/// A number that is missing only costs time: the gradients are added afterwards. So the set is emptied when it has become large from nodes
/// that other operations consumed.
fn registered<R>(read: impl FnOnce(&mut HashSet<u64>) -> R) -> R {
    const MOST: usize = 1 << 16;
    thread_local! {
        static KNOWN: RefCell<HashSet<u64>> = RefCell::default();
    }
    KNOWN.with_borrow_mut(|known| {
        if known.len() > MOST {
            known.clear();
        }
        read(known)
    })
}

fn tracked<B: HostBackend, C: CheckpointStrategy, const N: usize>(
    op: OpHandle,
    inputs: impl IntoIterator<Item = FloatTensor<Autodiff<B, C>>>,
) -> FloatTensor<Autodiff<B, C>> {
    let mut primitives = Vec::with_capacity(N);
    let mut nodes = Vec::with_capacity(N);
    for input in inputs {
        let (primitive, node) = input.into_parts();
        primitives.push(primitive);
        nodes.push(node);
    }
    let nodes: [_; N] = nodes.try_into().expect("N inputs");
    match Backward::<B, N>::prepare::<C>(Recorded, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => {
            let (output, tensors) = B::forward(&op, primitives);
            prep.finish(Saved { op, tensors }, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(B::forward(&op, primitives).0),
    }
}

/// Whether the environment variable `GRADUS_KERNELS` is `choice`. The variable is read once.
#[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
fn is_chosen(choice: &str) -> bool {
    static CHOICE: LazyLock<Option<OsString>> = LazyLock::new(|| std::env::var_os("GRADUS_KERNELS"));
    CHOICE.as_ref().is_some_and(|it| it == choice)
}

/// Whether no device has kernels.
fn is_off() -> bool {
    is_chosen("off")
}

/// Whether attention on GPUs of compute capability 9.0 multiplies with `wgmma`. The other kernels do not differ.
#[cfg(feature = "cuda")]
pub(crate) fn uses_warpgroups() -> bool {
    is_chosen("wgmma")
}

/// Whether `device` is the CPU with its kernels, which read and write tensors in place.
pub(crate) fn is_cpu(device: &Device) -> bool {
    !is_off() && (*device == Device::flex() || device.clone().inner() == Device::flex())
}

/// Whether the products of a row have the same bits whatever other rows are multiplied with it.
///
/// The kernels of the CPU add the terms of each number in one order. On other devices, the order may depend on the number
/// of rows.
pub fn rows_are_independent(device: &Device) -> bool {
    is_cpu(device)
}

/// Returns the GPU behind `device`, unless kernels are off.
#[cfg(feature = "gpu")]
pub(crate) fn gpu(device: &Device) -> Option<burn_cubecl::CubeDevice> {
    match device.clone().inner().as_dispatch() {
        burn::backend::DispatchDevice::Cube(device) if !is_off() => Some(device.clone()),
        _ => None,
    }
}

/// Whether `device` runs operations of this crate: the CPU or a GPU, unless kernels are off.
pub(crate) fn has_kernels(device: &Device) -> bool {
    #[cfg(feature = "gpu")]
    if gpu(device).is_some() {
        return true;
    }
    is_cpu(device)
}

/// Whether `op` has a kernel on `device` for tensors of `dtype`. Elsewhere its reference runs.
pub(crate) fn supports(op: &impl Op, device: &Device, dtype: DType) -> bool {
    if is_cpu(device) {
        return dtype == DType::F32;
    }
    #[cfg(feature = "gpu")]
    if let (Some(op), Some(device)) = (op.on_gpu(), gpu(device)) {
        return op.supports(&device, dtype);
    }
    // Without GPU kernels, the result does not depend on the operation.
    let _ = op;
    false
}

/// Applies `op` to dispatch tensors on a device for which [`supports`] is true.
pub(crate) fn apply<const R: usize>(op: impl Op, inputs: Vec<DispatchTensor>) -> Tensor<R> {
    run(Passes::Op(Arc::new(op)), inputs)
}

/// Applies an operation that only GPUs have.
#[cfg(feature = "gpu")]
pub(crate) fn apply_on_gpu<const R: usize>(op: impl crate::gpu::GpuOp, inputs: Vec<DispatchTensor>) -> Tensor<R> {
    run(Passes::Gpu(Arc::new(op)), inputs)
}

fn run<const R: usize>(passes: Passes, inputs: Vec<DispatchTensor>) -> Tensor<R> {
    Tensor::from_dispatch(<Dispatch as FusedBackend>::fused(Inputs::new(inputs), OpHandle(passes)))
}

#[cfg(test)]
#[path = "testing.rs"]
pub(crate) mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_has_kernels_for_f32_alone() {
        for device in [Device::flex(), Device::flex().autodiff()] {
            for (dtype, expected) in [(DType::F32, true), (DType::BF16, false), (DType::F64, false)] {
                assert_eq!(supports(&crate::relu::Relu, &device, dtype), expected, "{dtype:?}");
            }
        }
    }
}
