//! Between tensors and slices: what is computed on the device, and what is arithmetic on the host.

use burn::tensor::{Device, Tensor, TensorData};

/// The values of a tensor on the host, without gradient.
pub(crate) fn read(tensor: &Tensor<1>) -> Vec<f32> {
    tensor.clone().inner().into_data_as::<f32>().try_into_vec().expect("the data was just converted to f32")
}

/// Host values as a tensor without gradient.
pub(crate) fn constant(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), device)
}
