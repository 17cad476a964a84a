//! The one mechanism that ties a hand-written kernel into Burn: an [`Op`] says how to run forward and backward over
//! CPU tensors, [`apply`] records it in the autodiff graph.
//!
//! Everything without gradient (segment boundaries, target ids, epsilons) is a field of the op on the host; inputs
//! are float tensors. An op has one output: several results are stacked as rows of one tensor.

use std::fmt::Debug;
use std::sync::{Arc, LazyLock, Mutex};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    ExtensionType, Flex, backend_extension,
};
use burn::tensor::{Device, Tensor, TensorData};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::simd::simd;

/// A differentiable operation over CPU tensors.
pub(crate) trait Op: Debug + Send + Sync + 'static {
    /// The output, and what the backward pass needs.
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>);

    /// The gradient of each input for which `needed` is true, given the gradient of the output.
    fn backward(&self, saved: &[Dense], grad: &Dense, needed: &[bool]) -> Vec<Option<Dense>>;
}

/// A contiguous f32 CPU tensor.
#[derive(Debug, Clone)]
pub(crate) struct Dense(FlexTensor);

impl Dense {
    /// From values in row-major order.
    pub(crate) fn new(values: Vec<f32>, shape: &[usize]) -> Self {
        debug_assert_eq!(values.len(), shape.iter().product::<usize>());
        Self(FlexTensor::from_data(TensorData::new(values, shape.to_vec())))
    }

    pub(crate) fn from_flex(tensor: FlexTensor) -> Self {
        if tensor.is_contiguous() { Self(tensor) } else { Self(tensor.to_contiguous()) }
    }

    /// The same values in memory that nothing else is part of; moved there unless others hold it.
    pub(crate) fn into_own(self) -> Self {
        Self(FlexTensor::from_data(self.0.into_data()))
    }

    /// The same values as a tensor without autodiff.
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

    /// The values, mutable; copied first when shared.
    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        let layout = self.0.layout();
        let (start, len) = (layout.start_offset(), layout.num_elements());
        &mut self.0.storage_mut::<f32>()[start..start + len]
    }

    /// The sum of each column of a matrix: the gradient of a bias.
    pub(crate) fn column_sums(&self) -> Self {
        /// Rows summed by one task; the blocks' sums are added in order.
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

    /// The dimensions.
    pub(crate) fn dims(&self) -> Vec<usize> {
        self.0.layout().shape().to_vec()
    }
}

simd! {
    /// Adds rows as long as `sums` to it, one after the other.
    fn add_rows(sums: &mut [f32], rows: &[f32]) {
        for row in rows.chunks_exact(sums.len().max(1)) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }
}

/// A shared [`Op`].
#[derive(Debug, Clone)]
pub struct OpHandle(Arc<dyn Op>);

/// How many inputs an operation has that has more than four; empty tensors fill the rest.
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

/// What a backend must do to run fused operations; [`apply`] is the only caller.
#[backend_extension(Flex, Autodiff)]
pub trait FusedBackend: Backend {
    /// Runs `op` on `inputs`, recording it where gradients are tracked.
    fn fused(#[extension_type] inputs: Inputs<Self>, op: OpHandle) -> FloatTensor<Self>;

    /// Runs one AdamW step in place where the buffers are not shared; see [`crate::adamw`].
    fn fused_adamw(
        parameter: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        first_moment: FloatTensor<Self>,
        second_moment: FloatTensor<Self>,
        step: crate::AdamWStep,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl FusedBackend for Flex {
    fn fused(inputs: Inputs<Self>, op: OpHandle) -> FlexTensor {
        Self::forward(&op, inputs.into_vec()).0
    }

    fn fused_adamw(
        parameter: FlexTensor,
        gradient: FlexTensor,
        first_moment: FlexTensor,
        second_moment: FlexTensor,
        step: crate::AdamWStep,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let [mut parameter, mut first, mut second] = [parameter, first_moment, second_moment].map(Dense::from_flex);
        let gradient = Dense::from_flex(gradient);
        crate::adamw::update(parameter.values_mut(), gradient.values(), first.values_mut(), second.values_mut(), &step);
        (parameter.0, first.0, second.0)
    }
}

/// The two passes on a backend that has fused kernels.
trait HostBackend: Backend {
    fn forward(op: &OpHandle, inputs: Vec<FloatTensor<Self>>) -> (FloatTensor<Self>, Vec<FloatTensor<Self>>);

    fn backward(
        op: &OpHandle,
        saved: Vec<FloatTensor<Self>>,
        grad: FloatTensor<Self>,
        needed: &[bool],
    ) -> Vec<Option<FloatTensor<Self>>>;
}

impl HostBackend for Flex {
    fn forward(op: &OpHandle, inputs: Vec<FlexTensor>) -> (FlexTensor, Vec<FlexTensor>) {
        let inputs: Vec<Dense> = inputs.into_iter().map(Dense::from_flex).collect();
        let (output, saved) = op.0.forward(&inputs);
        (output.0, saved.into_iter().map(|tensor| tensor.0).collect())
    }

    fn backward(op: &OpHandle, saved: Vec<FlexTensor>, grad: FlexTensor, needed: &[bool]) -> Vec<Option<FlexTensor>> {
        let saved: Vec<Dense> = saved.into_iter().map(Dense).collect();
        let gradients = op.0.backward(&saved, &Dense::from_flex(grad), needed);
        gradients.into_iter().map(|gradient| gradient.map(|dense| dense.0)).collect()
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

    fn fused_adamw(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: crate::AdamWStep,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("the optimiser works on tensors without autodiff")
    }
}

/// The node of one recorded operation.
#[derive(Debug)]
struct Recorded;

/// What it keeps for the backward pass.
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
        let gradients = B::backward(&ops.state.op, ops.state.tensors, grad, &needed);
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<B>(parent.id, gradient);
            }
        }
    }
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

/// Whether tensors on `device` run fused kernels; elsewhere the references run, and everywhere where the environment
/// variable `GRADUS_KERNELS` is `off`. It is read once.
pub fn is_fused(device: &Device) -> bool {
    static IS_OFF: LazyLock<bool> = LazyLock::new(|| std::env::var_os("GRADUS_KERNELS").is_some_and(|it| it == "off"));
    !*IS_OFF && (*device == Device::flex() || device.clone().inner() == Device::flex())
}

/// Applies `op` to inputs already turned into dispatch tensors.
pub(crate) fn apply<const R: usize>(op: impl Op, inputs: Vec<DispatchTensor>) -> Tensor<R> {
    Tensor::from_dispatch(<Dispatch as FusedBackend>::fused(Inputs::new(inputs), OpHandle(Arc::new(op))))
}

/// Gives `read` the values of a tensor: where they lie, without a copy, if the device has fused kernels.
pub(crate) fn read<const R: usize, T: Send + 'static>(
    tensor: Tensor<R>,
    read: impl FnOnce(&Dense) -> T + Send + 'static,
) -> T {
    if !is_fused(&tensor.device()) {
        let dims = tensor.dims();
        return read(&Dense::new(tensor.into_data().try_into_vec().expect("f32"), &dims));
    }
    let result = Arc::new(Mutex::new(None));
    let into = Arc::clone(&result);
    let reader: Reader = Box::new(move |dense| *into.lock().expect("one reader") = Some(read(dense)));
    let _empty: Tensor<1> = apply(Read(Mutex::new(Some(reader))), vec![tensor.inner().into_dispatch()]);
    let mut result = result.lock().expect("one reader");
    result.take().expect("the forward pass has run")
}

type Reader = Box<dyn FnOnce(&Dense) + Send>;

/// An operation that only looks at its input.
struct Read(Mutex<Option<Reader>>);

impl Debug for Read {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Read")
    }
}

impl Op for Read {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let reader = self.0.lock().expect("one reader").take().expect("read once");
        reader(&inputs[0]);
        (Dense::new(Vec::new(), &[0]), Vec::new())
    }

    fn backward(&self, _: &[Dense], _: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        vec![None]
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use burn::tensor::{Device, Tensor};

    /// Values in (−1, 1) that look random and are the same everywhere.
    pub(crate) fn values(n: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 40) as f32 / (1u64 << 24) as f32) * 2.0 - 1.0
            })
            .collect()
    }

    /// A tracked leaf on the CPU.
    pub(crate) fn leaf<const R: usize>(shape: [usize; R], seed: u64) -> Tensor<R> {
        let data = burn::tensor::TensorData::new(values(shape.iter().product(), seed), shape);
        Tensor::from_data(data, &Device::flex().autodiff()).require_grad()
    }

    /// A tracked leaf of the values given.
    pub(crate) fn given<const R: usize>(shape: [usize; R], values: &[f32]) -> Tensor<R> {
        let data = burn::tensor::TensorData::new(values.to_vec(), shape);
        Tensor::from_data(data, &Device::flex().autodiff()).require_grad()
    }

    /// Row-major values.
    pub(crate) fn host<const R: usize>(tensor: Tensor<R>) -> Vec<f32> {
        tensor.into_data().try_to_vec().expect("f32")
    }

    /// Asserts that two slices agree within `tolerance` of the larger magnitude (at least 1).
    pub(crate) fn assert_close(name: &str, found: &[f32], expected: &[f32], tolerance: f32) {
        assert_eq!(found.len(), expected.len(), "{name}: length");
        for (i, (f, e)) in found.iter().zip(expected).enumerate() {
            let scale = e.abs().max(1.0);
            assert!((f - e).abs() <= tolerance * scale, "{name}[{i}]: {f} instead of {e}");
        }
    }

    /// Compares value and gradients of `fused` with those of `reference` on the same inputs.
    pub(crate) fn check<const R: usize>(
        name: &str,
        inputs: &[Tensor<2>],
        fused: impl Fn(&[Tensor<2>]) -> Tensor<R>,
        reference: impl Fn(&[Tensor<2>]) -> Tensor<R>,
        tolerance: f32,
    ) {
        let (a, b) = (fused(inputs), reference(inputs));
        assert_eq!(a.dims(), b.dims(), "{name}: shape");
        assert_close(name, &host(a.clone().inner()), &host(b.clone().inner()), tolerance);
        // A weighted sum gives every output element its own gradient.
        let weights = Tensor::<R>::from_data(
            burn::tensor::TensorData::new(values(a.dims().iter().product(), 99), a.dims()),
            &a.device(),
        );
        let (ga, gb) = ((a * weights.clone()).sum().backward(), (b * weights).sum().backward());
        for (i, input) in inputs.iter().enumerate() {
            let (found, expected) = (input.grad(&ga).expect("gradient"), input.grad(&gb).expect("gradient"));
            assert_close(&format!("{name}: gradient {i}"), &host(found), &host(expected), tolerance);
        }
    }
}
