//! Conversion between tensors on the device and values on the host.

use std::cell::Cell;

use burn::tensor::{Device, Tensor, TensorData, Transaction};

thread_local! {
    static WAITS: Cell<usize> = const { Cell::new(0) };
}

/// Returns how often this thread has waited for values of a device, for tests.
#[doc(hidden)]
pub fn waits() -> usize {
    WAITS.get()
}

/// Copies the values of a tensor to the host, in order, without gradient. The tensor is flat and may have any length.
pub fn read(tensor: &Tensor<1>) -> Vec<f32> {
    WAITS.set(WAITS.get() + 1);
    tensor.clone().inner().into_data_as::<f32>().try_into_vec().expect("the data was just converted to f32")
}

/// Copies the values of several flat tensors of any lengths to the host, without gradient, and waits only once for all of them.
pub fn read_all(tensors: &[&Tensor<1>]) -> Vec<Vec<f32>> {
    WAITS.set(WAITS.get() + 1);
    let transaction =
        tensors.iter().fold(Transaction::default(), |reads, &tensor| reads.register(tensor.clone().inner()));
    let values = |data: TensorData| data.convert::<f32>().try_into_vec().expect("the data was just converted to f32");
    transaction.execute().into_iter().map(values).collect()
}

/// Creates a flat tensor without gradient from host values, one element per value.
pub fn constant(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), device)
}
