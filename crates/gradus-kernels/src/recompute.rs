//! Recomputation (activation checkpointing): only the input of a block of layers is kept, and the backward pass runs the block again.
//!
//! For `y = f(x, θ)` the forward pass keeps only x, which may be several tensors. Given `g = ∂L/∂y`, the backward pass computes `y` again,
//! now recorded, and differentiates `⟨g, y⟩`: `∂L/∂x = ∂⟨g, y⟩/∂x`, `∂L/∂θ = ∂⟨g, y⟩/∂θ`. The kernels give the same bits every time, so the
//! gradients equal those of a block whose activations were kept. The price is one more forward pass of the block: about a third more
//! arithmetic. Chen et al. 2016, <https://arxiv.org/abs/1604.06174>.

use std::fmt::{Debug, Formatter};

use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};
#[cfg(feature = "gpu")]
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};

use crate::fused::{Dense, MANY, Op, apply, has_kernels};
#[cfg(feature = "gpu")]
use crate::gpu::{Before, GpuOp, InputGradients, cube_of, tensor_of};
use crate::host::read;

/// Computes `run(module, x_nd)`, and computes it again in the backward pass instead of keeping the intermediate results.
///
/// `x_nd` is `[N, D]`, and the result has the shape that `run` returns. `x_nd` and the parameters of `module` carry gradient; no other
/// value that `run` reads may. `run` must give the same result every time. The gradients are identical to the bit if it uses each parameter
/// once. If nothing is recorded, and on devices without fused kernels, this is just `run`.
///
/// # Panics
/// If more than 31 parameters of the module take a gradient.
pub fn recompute<M, F>(module: &M, x_nd: Tensor<2>, run: F) -> Tensor<2>
where
    M: Module + Sync + 'static,
    F: Fn(&M, Tensor<2>) -> Tensor<2> + Send + Sync + 'static,
{
    recompute_of(module, [x_nd], move |module, [x_nd]| run(module, x_nd))
}

/// Like [`recompute`] with several inputs, whose shapes may differ. Each carries gradient if it is tracked. For example, a decoder's block
/// reads the encoder's output and a bias that all blocks share.
///
/// Pass an input that other blocks also read as a [`branch`]; then the gradients are identical to the bit.
///
/// # Panics
/// If more than 32 inputs and parameters of the module take a gradient.
pub fn recompute_of<M, F, const N: usize>(module: &M, inputs: [Tensor<2>; N], run: F) -> Tensor<2>
where
    M: Module + Sync + 'static,
    F: Fn(&M, [Tensor<2>; N]) -> Tensor<2> + Send + Sync + 'static,
{
    let tracked = inputs.iter().find(|input| input.is_autodiff()).map(Tensor::device);
    let Some(device) = tracked.filter(has_kernels) else {
        return run(module, inputs);
    };
    let track = |input: Tensor<2>| if input.is_autodiff() { input } else { input.autodiff() };
    let (mut inputs, mut trained) = (inputs.map(|input| track(input).into_dispatch()).to_vec(), Vec::new());
    module.visit(&mut Parameters { inputs: &mut inputs, trained: &mut trained });
    assert!(inputs.len() <= MANY, "a recomputed block has at most {MANY} inputs and trained parameters");
    inputs.resize_with(MANY, || Tensor::<1>::empty([0], &device).into_dispatch());
    apply(Recompute { module: module.valid(), trained, run }, inputs)
}

/// Returns the same tensor as an input of one block among several that read it. The gradients from that block are summed before they are
/// added to those of the others, whether or not the block is recomputed. Input and result are `[N, D]`.
pub fn branch(x_nd: Tensor<2>) -> Tensor<2> {
    match x_nd.is_autodiff() && has_kernels(&x_nd.device()) {
        true => apply(Branch, vec![x_nd.into_dispatch()]),
        false => x_nd,
    }
}

#[derive(Debug)]
struct Branch;

impl Op for Branch {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        (inputs[0].clone(), Vec::new())
    }

    fn backward(&self, _: &[Dense], grad: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        vec![Some(grad.clone())]
    }

    #[cfg(feature = "gpu")]
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}

#[cfg(feature = "gpu")]
impl GpuOp for Branch {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        (inputs[0].clone(), Vec::new())
    }

    fn backward(&self, _: &[CubeTensor], grad: CubeTensor, _: &[bool], _: Before) -> InputGradients {
        vec![Some(grad)]
    }
}

/// A contiguous tensor of a device, without autodiff.
trait Value: Clone {
    fn tensor<const R: usize>(&self) -> Tensor<R>;

    fn of<const R: usize>(tensor: Tensor<R>) -> Self;
}

impl Value for Dense {
    fn tensor<const R: usize>(&self) -> Tensor<R> {
        self.tensor()
    }

    fn of<const R: usize>(tensor: Tensor<R>) -> Self {
        read(tensor)
    }
}

#[cfg(feature = "gpu")]
impl Value for CubeTensor {
    fn tensor<const R: usize>(&self) -> Tensor<R> {
        tensor_of(self.clone())
    }

    fn of<const R: usize>(tensor: Tensor<R>) -> Self {
        into_contiguous(cube_of(tensor))
    }
}

struct Recompute<M, F, const N: usize> {
    /// The module without autodiff; it shares the weights.
    module: M,
    /// Which of its parameters take a gradient. These are the inputs after the first N.
    trained: Vec<bool>,
    run: F,
}

impl<M, F, const N: usize> Debug for Recompute<M, F, N> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recompute")
    }
}

impl<M, F, const N: usize> Recompute<M, F, N>
where
    M: Module + Sync + 'static,
    F: Fn(&M, [Tensor<2>; N]) -> Tensor<2> + Send + Sync + 'static,
{
    fn output<V: Value>(&self, inputs: &[V]) -> V {
        V::of((self.run)(&self.module, std::array::from_fn(|i| inputs[i].tensor())))
    }

    fn gradients<V: Value>(&self, saved: &[V], grad: &V, needed: &[bool]) -> Vec<Option<V>> {
        // These are leaves of a separate graph, so the graph of the running backward pass is untouched.
        let module = self.module.clone().train();
        let inputs: [Tensor<2>; N] =
            std::array::from_fn(|i| saved[i].tensor::<2>().autodiff().set_require_grad(needed[i]));
        // As in a graph that is not recomputed, no input is a leaf: kernels can add to its gradient, with the same bits.
        let y = (self.run)(&module, inputs.clone().map(branch));
        let mut gradients = (y * grad.tensor().autodiff()).sum().backward();
        let mut found: Vec<_> = inputs.iter().map(|input| input.grad_remove(&mut gradients).map(V::of)).collect();
        let trained = &mut self.trained.iter();
        module.visit(&mut ParameterVisitor { trained, found: &mut found, gradients: &mut gradients });
        found
    }
}

impl<M, F, const N: usize> Op for Recompute<M, F, N>
where
    M: Module + Sync + 'static,
    F: Fn(&M, [Tensor<2>; N]) -> Tensor<2> + Send + Sync + 'static,
{
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        (self.output(inputs), inputs[..N].to_vec())
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, needed: &[bool]) -> Vec<Option<Dense>> {
        self.gradients(saved, grad, needed)
    }

    #[cfg(feature = "gpu")]
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}

#[cfg(feature = "gpu")]
impl<M, F, const N: usize> GpuOp for Recompute<M, F, N>
where
    M: Module + Sync + 'static,
    F: Fn(&M, [Tensor<2>; N]) -> Tensor<2> + Send + Sync + 'static,
{
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        (self.output(&inputs), inputs[..N].to_vec())
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool], _: Before) -> InputGradients {
        self.gradients(saved, &grad, needed)
    }
}

/// Collects the parameters of a module that take a gradient, in the order of its fields.
struct Parameters<'a> {
    inputs: &'a mut Vec<DispatchTensor>,
    trained: &'a mut Vec<bool>,
}

impl ModuleVisitor for Parameters<'_> {
    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        // A watched parameter counts as trained: its value is no leaf, but its gradient is needed.
        let is_trained = param.clone().valid().train().is_require_grad();
        self.trained.push(is_trained);
        if is_trained {
            self.inputs.push(param.val().into_dispatch());
        }
    }
}

/// Collects the gradients of these parameters, in the same order.
struct ParameterVisitor<'a, V> {
    trained: &'a mut std::slice::Iter<'a, bool>,
    found: &'a mut Vec<Option<V>>,
    gradients: &'a mut Gradients,
}

impl<V: Value> ModuleVisitor for ParameterVisitor<'_, V> {
    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        if self.trained.next() != Some(&true) {
            return;
        }
        self.found.push(param.val().grad_remove(self.gradients).map(V::of));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::fused::testing::{host, leaf};
    use crate::{Gelu, Layout, Precision, gelu, layer_norm, linear};

    /// A norm, a linear layer that may be frozen, and a residual connection.
    #[derive(Module, Debug)]
    struct Block {
        norm: Param<Tensor<1>>,
        shift: Param<Tensor<1>>,
        weight: Param<Tensor<2>>,
        bias: Param<Tensor<1>>,
    }

    impl Block {
        fn new(seed: u64) -> Self {
            Self {
                norm: Param::from_tensor(leaf([6], seed)),
                shift: Param::from_tensor(leaf([6], seed + 1)),
                weight: Param::from_tensor(leaf([6, 6], seed + 2)),
                bias: Param::from_tensor(leaf([6], seed + 3)),
            }
        }

        fn forward(&self, x: Tensor<2>) -> Tensor<2> {
            let normed = layer_norm(x.clone(), self.norm.val(), self.shift.val(), 1e-5);
            let inner = linear(normed, self.weight.val(), Some(self.bias.val()), Layout::OutIn, Precision::F32);
            x + gelu(inner, Gelu::Tanh)
        }
    }

    /// Loss, and the gradients of the input and of all parameters, through three blocks, one of which is used twice.
    fn gradients(x: &Tensor<2>, blocks: &[Block], step: impl Fn(&Block, Tensor<2>) -> Tensor<2>) -> Vec<Vec<f32>> {
        let y = [0, 1, 0, 2].iter().fold(x.clone() * 2.0, |x, &i| step(&blocks[i], x));
        let loss = (y.clone() * y).sum();
        let mut gradients = loss.backward();
        let mut found = vec![host(loss.inner()), host(x.grad_remove(&mut gradients).expect("of the input"))];
        for block in blocks {
            let parameters =
                [&block.norm, &block.shift, &block.bias].map(Param::val).map(|p| p.grad_remove(&mut gradients));
            found.extend(parameters.into_iter().flatten().map(host));
            found.extend(block.weight.val().grad_remove(&mut gradients).map(host));
        }
        found
    }

    #[test]
    fn gives_the_bits_of_kept_activations_and_runs_the_block_twice() {
        let x = leaf([5, 6], 1);
        let mut blocks: Vec<Block> = [10, 20, 30].into_iter().map(Block::new).collect();
        // A parameter that takes no gradient.
        blocks[1].weight = blocks[1].weight.clone().set_require_grad(false);
        let kept = gradients(&x, &blocks, Block::forward);
        let runs = Arc::new(AtomicUsize::new(0));
        let recomputed = gradients(&x, &blocks, |block, x| {
            let runs = Arc::clone(&runs);
            recompute(block, x, move |block: &Block, x| {
                runs.fetch_add(1, Ordering::Relaxed);
                block.forward(x)
            })
        });
        assert_eq!(kept.len(), 2 + 12 - 1);
        assert_eq!(recomputed, kept);
        assert_eq!(runs.load(Ordering::Relaxed), 8, "four forward and four backward");
    }

    /// A block that reads the encoder's output twice, and a bias that all blocks share.
    fn decode(block: &Block, [x, encoded, bias]: [Tensor<2>; 3]) -> Tensor<2> {
        let scores = block.forward(x).matmul(encoded.clone().transpose()) + bias;
        scores.matmul(gelu(encoded, Gelu::Exact))
    }

    #[test]
    fn several_inputs_get_the_bits_of_kept_activations() {
        let blocks: Vec<Block> = [10, 20, 30].into_iter().map(Block::new).collect();
        let gradients = |is_tracked: bool, step: &dyn Fn(&Block, [Tensor<2>; 3]) -> Tensor<2>| {
            let (x, encoded, bias) = (leaf([5, 6], 1), leaf([4, 6], 2), leaf([5, 4], 3));
            let source = if is_tracked { encoded.clone() * 0.5 } else { (encoded.clone() * 0.5).inner() };
            let y = blocks.iter().fold(x.clone(), |x, block| {
                let source = if is_tracked { branch(source.clone()) } else { source.clone().autodiff() };
                step(block, [x, source, branch(bias.clone())])
            });
            let mut gradients = y.powi_scalar(2).sum().backward();
            let of_blocks: Vec<_> = blocks.iter().flat_map(|b| [b.norm.val(), b.bias.val()]).collect();
            let mut found: Vec<_> = [x, encoded, bias].map(|x| x.grad_remove(&mut gradients).map(host)).into();
            found.extend(of_blocks.into_iter().map(|x| x.grad_remove(&mut gradients).map(host)));
            found
        };
        for is_tracked in [true, false] {
            let kept = gradients(is_tracked, &decode);
            let recomputed = gradients(is_tracked, &|block, inputs| recompute_of(block, inputs, decode));
            assert!(kept.iter().enumerate().all(|(i, gradient)| gradient.is_some() == (i != 1 || is_tracked)));
            assert!(kept == recomputed, "the encoder's output is tracked: {is_tracked}");
        }
    }

    #[test]
    fn an_input_that_is_not_tracked_needs_no_preparation() {
        let (x, encoded, block) = (leaf([5, 6], 1), leaf([4, 6], 2).inner(), Block::new(3));
        let run = |block: &Block, [x, encoded]: [Tensor<2>; 2]| {
            // In the forward pass, nothing is tracked.
            let encoded = if x.is_autodiff() && !encoded.is_autodiff() { encoded.autodiff() } else { encoded };
            block.forward(x).matmul(encoded.transpose())
        };
        let gradient = |y: Tensor<2>| host(x.grad(&y.powi_scalar(2).sum().backward()).expect("gradient"));
        let kept = gradient(run(&block, [x.clone(), encoded.clone()]));
        assert_eq!(gradient(recompute_of(&block, [x.clone(), encoded], run)), kept);
    }

    #[test]
    fn without_autodiff_the_block_just_runs() {
        let (x, block) = (leaf([3, 6], 1).inner(), Block::new(2).valid());
        let y = recompute(&block, x.clone(), Block::forward);
        assert!(!y.is_autodiff());
        assert_eq!(host(y), host(block.forward(x)));
    }
}
