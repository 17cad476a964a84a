//! Gradients between the backward pass and the optimizer: their sum over micro-batches and their norm, computed in
//! place.
//!
//! `g = Σₖ gₖ` over the micro-batches in order, and `Σᵢ gᵢ²`, always summed in the same order.

use burn::tensor::{Tensor, s};
use rayon::prelude::*;

use crate::fused::is_cpu;
use crate::host::{dense, host_values};

/// Elements per parallel task.
const CHUNK: usize = 64 * 1024;

/// Returns `gradient`, of any shape, as a flat tensor. Neither is tracked by autodiff. CPU tensors get memory of their own, so that they
/// keep no larger tensor alive.
pub fn flat_gradient<const R: usize>(gradient: Tensor<R>) -> Tensor<1> {
    let n = gradient.shape().num_elements();
    match dense(gradient.reshape([n])) {
        Ok(dense) => dense.into_own().tensor(),
        Err(flat) => flat,
    }
}

/// Returns `sum + gradient`, in the memory of `sum` if this is its only handle. Both are flat and have the same length. Neither is
/// tracked by autodiff.
pub fn add_gradient(sum: Tensor<1>, gradient: Tensor<1>) -> Tensor<1> {
    if !is_cpu(&sum.device()) {
        return sum + gradient;
    }
    let [mut sum, gradient] = [sum, gradient].map(|tensor| dense(tensor).expect("fused kernels run on the CPU"));
    add(sum.values_mut(), gradient.values());
    sum.tensor()
}

fn add(sum: &mut [f32], gradient: &[f32]) {
    sum.par_chunks_mut(CHUNK).zip(gradient.par_chunks(CHUNK)).for_each(|(sum, gradient)| {
        sum.iter_mut().zip(gradient).for_each(|(sum, x)| *sum += x);
    });
}

/// Sum of the squares of all elements of `tensors`, which are flat and not tracked by autodiff. Their lengths may differ. On the CPU it is
/// computed in f64. Other devices sum some thousand elements at a time in f32; these partial sums are read together and added in f64.
pub fn sum_of_squares<'a>(tensors: impl IntoIterator<Item = &'a Tensor<1>>) -> f64 {
    let (here, elsewhere): (Vec<_>, Vec<_>) = tensors.into_iter().partition(|tensor| is_cpu(&tensor.device()));
    let here = here.into_iter().map(|tensor| of_slice(&host_values(tensor.clone()))).sum::<f64>();
    #[cfg(feature = "gpu")]
    let (on_gpus, elsewhere): (Vec<_>, Vec<_>) =
        elsewhere.into_iter().partition(|tensor| crate::fused::gpu(&tensor.device()).is_some());
    #[cfg(feature = "gpu")]
    let here = here + of_blocks(crate::gpu::sums::squares_of(on_gpus.into_iter().cloned().collect()));
    here + of_blocks(elsewhere.into_iter().flat_map(blocks).collect())
}

/// Sums squares in f64 over eight lanes, chunk by chunk: vectorized, and always in the same order.
fn of_slice(values: &[f32]) -> f64 {
    let of_chunk = |values: &[f32]| {
        let mut lanes = [0.0f64; 8];
        let (blocks, tail) = values.as_chunks::<8>();
        for block in blocks {
            for (lane, &x) in lanes.iter_mut().zip(block) {
                *lane += f64::from(x) * f64::from(x);
            }
        }
        lanes.iter().sum::<f64>() + tail.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>()
    };
    let chunks: Vec<f64> = values.par_chunks(CHUNK).map(of_chunk).collect();
    chunks.iter().sum()
}

/// Elements whose squares a device sums in f32.
const BLOCK: usize = 1024;

/// Sums of the squares of each whole block, and of the rest.
fn blocks(tensor: &Tensor<1>) -> Vec<Tensor<1>> {
    let [n] = tensor.dims();
    let whole = n / BLOCK * BLOCK;
    let of = |part: Tensor<1>, rows: usize, width: usize| {
        let part = part.reshape([rows, width]);
        (part.clone() * part).sum_dim(1).reshape([rows])
    };
    let whole_blocks = (whole > 0).then(|| of(tensor.clone().slice(s![..whole]), whole / BLOCK, BLOCK));
    let rest = (whole < n).then(|| of(tensor.clone().slice(s![whole..]), 1, n - whole));
    whole_blocks.into_iter().chain(rest).collect()
}

fn of_blocks(sums: Vec<Tensor<1>>) -> f64 {
    if sums.is_empty() {
        return 0.0;
    }
    host_values(Tensor::cat(sums, 0)).iter().map(|&sum| f64::from(sum)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{host, values};
    use burn::tensor::{Device, TensorData};

    fn tensor(values: Vec<f32>) -> Tensor<1> {
        let n = values.len();
        Tensor::from_data(TensorData::new(values, [n]), &Device::flex())
    }

    #[test]
    fn sums_go_into_the_memory_of_the_first() {
        let n = CHUNK + 17;
        let sum = tensor(values(n, 1));
        let (at, expected) = (host_values(sum.clone()).as_ptr(), values(n, 2));
        let sum = add_gradient(sum, tensor(expected.clone()));
        assert_eq!(host_values(sum.clone()).as_ptr(), at);
        let expected: Vec<f32> = values(n, 1).iter().zip(&expected).map(|(a, b)| a + b).collect();
        assert_eq!(host(sum), expected);
    }

    #[test]
    fn a_gradient_that_is_part_of_something_larger_lets_go_of_it() {
        let whole = Tensor::<2>::from_data(TensorData::new(values(20, 1), [4, 5]), &Device::flex());
        let flat = flat_gradient(whole.clone().narrow(0, 1, 2));
        assert_eq!(host(flat.clone()), host(whole.clone())[5..15]);
        assert!(!host_values(whole).as_ptr_range().contains(&host_values(flat).as_ptr()));
    }

    #[test]
    fn squares_are_added_up_alike_everywhere() {
        // No element, less than a block, whole blocks, and blocks with a rest; 3² + 4² = 25.
        assert_eq!(sum_of_squares([&tensor(vec![3.0]), &tensor(vec![-4.0])]), 25.0);
        for n in [0, 1, 5, BLOCK, 3 * BLOCK + 1, CHUNK + 9] {
            let own = tensor(values(n, 3));
            let exact: f64 = values(n, 3).iter().map(|&x| f64::from(x).powi(2)).sum();
            for found in [sum_of_squares([&own]), of_blocks(blocks(&own))] {
                assert!((found - exact).abs() <= 1e-6 * exact, "{n}: {found} instead of {exact}");
            }
        }
    }
}
