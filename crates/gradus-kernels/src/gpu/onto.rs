//! Linear layers whose results are added to another tensor by the kernel that multiplies, such as those at the end of a block.

use burn::backend::DispatchTensor;
use burn::tensor::{DType, Tensor};
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use super::finish::Finish;
use super::{Before, GpuOp, InputGradients};
use crate::fused::apply_on_gpu;

/// A linear layer whose kernel can add its result to a tensor.
pub(crate) trait Adds: GpuOp {
    /// Like [`forward`](GpuOp::forward) without a bias, with what becomes of the result.
    fn forward_and(&self, inputs: Vec<CubeTensor>, finish: Finish) -> (CubeTensor, Vec<CubeTensor>);
}

/// A linear layer without bias, whose result is added to the last input.
#[derive(Debug)]
struct Onto<L>(L);

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

/// Adds the linear layer `op` of `inputs` to `sum_nd` on a GPU, in the pass that writes the product. `Err` with `sum_nd` on other devices.
#[expect(clippy::result_large_err, reason = "the tensor is handed back as it came")]
pub(crate) fn onto(op: impl Adds, inputs: &[&DispatchTensor], sum_nd: Tensor<2>) -> Result<Tensor<2>, Tensor<2>> {
    let is_there = |gpu: CubeDevice| sum_nd.dtype() == DType::F32 && op.supports(&gpu, DType::F32);
    if !crate::fused::gpu(&sum_nd.device()).is_some_and(is_there) {
        return Err(sum_nd);
    }
    let inputs = inputs.iter().map(|&input| input.clone());
    Ok(apply_on_gpu(Onto(op), inputs.chain([sum_nd.into_dispatch()]).collect()))
}
