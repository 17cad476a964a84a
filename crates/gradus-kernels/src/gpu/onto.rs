//! Linear layers whose results are added to another tensor by the kernel that multiplies, such as those at the end of a block.

use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use super::finish::Finish;
use super::{Before, GpuOp, InputGradients};

/// A linear layer whose kernel can add its result to a tensor.
pub(crate) trait Adds: GpuOp {
    /// Like [`forward`](GpuOp::forward) without a bias, with what becomes of the result.
    fn forward_and(&self, inputs: Vec<CubeTensor>, finish: Finish) -> (CubeTensor, Vec<CubeTensor>);
}

/// A linear layer without bias, whose result is added to the last input.
#[derive(Debug)]
pub(crate) struct Onto<L>(pub(crate) L);

impl<L: Adds> GpuOp for Onto<L> {
    fn supports(&self, device: &CubeDevice, dtype: DType) -> bool {
        self.0.supports(device, dtype)
    }

    fn forward(&self, mut inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let sum = inputs.pop();
        self.0.forward_and(inputs, Finish::plus(sum))
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool], before: Before) -> InputGradients {
        let [needed @ .., of_sum] = needed else { unreachable!("the tensor to which the result is added") };
        let mut gradients = self.0.backward(saved, grad.clone(), needed, before);
        gradients.push(of_sum.then_some(grad));
        gradients
    }
}
