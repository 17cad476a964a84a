//! Values of tensors on the host. CPU tensors are borrowed in place; tensors on other devices are copied.

use std::ops::Deref;

use burn::backend::{BackendTensor, DispatchTensor, DispatchTensorKind};
use burn::tensor::Tensor;

use crate::fused::Dense;

/// The values of a tensor on the host, in row-major order.
#[derive(Debug, Clone)]
pub struct HostValues(Dense);

impl From<Vec<f32>> for HostValues {
    fn from(values: Vec<f32>) -> Self {
        let size = values.len();
        Self(Dense::new(values, &[size]))
    }
}

impl Deref for HostValues {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.0.values()
    }
}

/// Returns the values of `tensor`, which may have any shape, without autodiff. Nothing is copied on the CPU.
pub fn host_values<const R: usize>(tensor: Tensor<R>) -> HostValues {
    HostValues(read(tensor))
}

/// Returns `tensor` without autodiff on the CPU. Nothing is copied if it lies there.
pub(crate) fn read<const R: usize>(tensor: Tensor<R>) -> Dense {
    dense(tensor.inner()).unwrap_or_else(|tensor| {
        let dims = tensor.dims();
        let data = tensor.into_data_as::<f32>();
        Dense::new(data.try_into_vec().expect("the data was just converted to f32"), &dims)
    })
}

/// Returns a CPU tensor with access to its values, or the tensor unchanged if another device holds it.
#[expect(clippy::result_large_err, reason = "a tensor that lies elsewhere is handed back as it came")]
pub(crate) fn dense<const R: usize>(tensor: Tensor<R>) -> Result<Dense, Tensor<R>> {
    let DispatchTensor { kind, autodiff } = tensor.into_dispatch();
    match kind {
        DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => Ok(Dense::from_flex(tensor)),
        kind => Err(Tensor::from_dispatch(DispatchTensor { kind, autodiff })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    #[test]
    fn a_cpu_tensor_is_read_where_it_lies_and_in_row_major_order() {
        let data = TensorData::new(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]);
        let tensor = Tensor::<2>::from_data(data, &Device::flex());
        let (first, again) = (host_values(tensor.clone()), host_values(tensor.clone()));
        assert_eq!(*first, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(first.as_ptr(), again.as_ptr());
        assert_eq!(*host_values(tensor.clone().transpose()), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!(*host_values(tensor.narrow(1, 1, 2)), [2.0, 3.0, 5.0, 6.0]);
    }
}
