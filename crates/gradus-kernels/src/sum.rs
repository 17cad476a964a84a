//! Sums of whole tensors.

use burn::tensor::{Device, Tensor};

/// Sums all numbers of `x`, `[1]`, in an order that does not depend on timing. `x` carries gradient.
///
/// Burn's `sum` adds atomically on GPUs that can do so. Two runs would then print losses that differ in the last bit.
pub fn sum<const R: usize>(x: Tensor<R>) -> Tensor<1> {
    if x.device().inner() == Device::flex() {
        return x.sum();
    }
    in_rows(x)
}

/// Numbers that are summed as one row.
const WIDTH: usize = 4096;

fn in_rows<const R: usize>(x: Tensor<R>) -> Tensor<1> {
    let numbers = x.shape().num_elements();
    let flat = x.reshape([numbers]);
    if numbers <= WIDTH {
        return flat.reshape([1, numbers]).sum_dim(1).reshape([1]);
    }
    // Each row is one sum, so a long tensor keeps the whole device busy.
    let rows = numbers / WIDTH;
    let of_rows = flat.clone().narrow(0, 0, rows * WIDTH).reshape([rows, WIDTH]).sum_dim(1);
    match numbers % WIDTH {
        0 => in_rows(of_rows),
        rest => in_rows(of_rows) + in_rows(flat.narrow(0, rows * WIDTH, rest)),
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    #[test]
    fn every_number_counts_once() {
        let device = Device::flex();
        for numbers in [0, 1, WIDTH, WIDTH + 1, 3 * WIDTH, WIDTH * WIDTH / 512 + 77] {
            let values: Vec<f32> = (0..numbers).map(|i| (i % 7) as f32 - 2.0).collect();
            let expected: f32 = values.iter().sum();
            let x = Tensor::<1>::from_data(TensorData::new(values, [numbers]), &device);
            let parts = in_rows(x.clone()).into_data().try_to_vec::<f32>().expect("f32");
            assert_eq!(parts, [expected], "{numbers}");
            assert_eq!(sum(x).into_data().try_to_vec::<f32>().expect("f32"), [expected]);
        }
    }
}
