//! Memory of tensors that live for a whole run.

use burn::tensor::{Device, Tensor, TensorData};

/// Returns the result of `make`, which creates tensors on `device` that live for a whole run, such as weights and moments.
///
/// A GPU gives each of them memory of its own. It takes the memory of other tensors out of shared pages, and reads the list of all tensors
/// in these pages for every allocation. With weights and moments in the pages, most of the time for queuing a kernel was spent on this list.
pub fn long_lived<T: Send>(device: &Device, make: impl FnOnce() -> T + Send) -> T {
    device.memory_persistent_allocations(make, |make| make())
}

/// Creates such a tensor from `values` in row-major order.
///
/// # Panics
/// If the number of values does not fit the shape.
pub fn long_lived_from<const R: usize>(values: Vec<f32>, shape: [usize; R], device: &Device) -> Tensor<R> {
    long_lived(device, || Tensor::from_data(TensorData::new(values, shape), device))
}
