//! Reductions: from values per token to one number, and from tokens to sequences.
//!
//! The weights include the denominator: [`gradus_core::math::token_weights`] computes them on the host for a whole optimizer step.

use burn::backend::DispatchDevice;
use burn::tensor::{IndexingUpdateOp, Int, Tensor, TensorData};

/// Sums all numbers of `x`, `[1]`, in an order that does not depend on timing. `x` carries gradient.
///
/// Burn's `sum` adds atomically on GPUs that can do so, and on the processor it adds the parts of a long tensor in the order in which
/// threads finish. Two runs would then differ in the last bit.
pub fn sum<const R: usize>(x: Tensor<R>) -> Tensor<1> {
    let is_on_host = matches!(x.device().inner().as_dispatch(), DispatchDevice::Flex(_));
    let numbers = x.shape().num_elements();
    if numbers == 0 || is_on_host && numbers < SUMMED_BY_THREADS {
        return x.sum();
    }
    in_rows(x)
}

/// Number of elements from which Burn's `sum` on the processor uses several threads.
const SUMMED_BY_THREADS: usize = 4 * 1024 * 1024;

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

/// `Σ weight · value`, `[1]`: the loss of a micro-batch.
///
/// `weights_m` carries no gradient.
///
/// # Panics
/// When the lengths differ.
pub fn weighted_sum(values_m: Tensor<1>, weights_m: Tensor<1>) -> Tensor<1> {
    let [m] = values_m.dims();
    assert_eq!(weights_m.dims(), [m], "weights_m");
    sum(values_m * weights_m)
}

/// Sum of each sequence's values, `[B]`; 0 for a sequence without values. Differentiable.
///
/// `values_m` holds the values of sequence 0, then those of sequence 1, and so on; `counts_b` holds the number of values per sequence.
///
/// # Panics
/// When the counts do not sum to `M`.
pub fn segment_sum(values_m: Tensor<1>, counts_b: &[usize]) -> Tensor<1> {
    let [m] = values_m.dims();
    assert_eq!(counts_b.iter().sum::<usize>(), m, "counts_b sum to M");
    let device = values_m.device();
    let zeros_b = Tensor::zeros([counts_b.len()], &device);
    if m == 0 {
        return zeros_b;
    }
    let sequence = |(b, &count): (usize, &usize)| std::iter::repeat_n(b as i32, count);
    let sequences_m: Vec<i32> = counts_b.iter().enumerate().flat_map(sequence).collect();
    let sequences_m = Tensor::<1, Int>::from_data(TensorData::new(sequences_m, [m]), &device);
    zeros_b.select_assign(0, sequences_m, values_m, IndexingUpdateOp::Add)
}

/// Repeats the value of each sequence for each of its tokens, `[B]` to `[M]`. Differentiable.
///
/// # Panics
/// When the lengths differ.
pub fn spread(values_b: Tensor<1>, counts_b: &[usize]) -> Tensor<1> {
    let [b] = values_b.dims();
    assert_eq!(counts_b.len(), b, "one count per value");
    let device = values_b.device();
    let sequence = |(b, &count): (usize, &usize)| std::iter::repeat_n(b as i32, count);
    let sequences_m: Vec<i32> = counts_b.iter().enumerate().flat_map(sequence).collect();
    let m = sequences_m.len();
    if m == 0 {
        return Tensor::zeros([0], &device);
    }
    values_b.select(0, Tensor::<1, Int>::from_data(TensorData::new(sequences_m, [m]), &device))
}

/// Mean of each sequence's values, `[B]`; 0 for a sequence without values. Differentiable.
///
/// # Panics
/// When the counts do not sum to `M`.
pub fn segment_mean(values_m: Tensor<1>, counts_b: &[usize]) -> Tensor<1> {
    let device = values_m.device();
    let shares_b: Vec<f32> = counts_b.iter().map(|&count| 1.0 / count.max(1) as f32).collect();
    segment_sum(values_m, counts_b) * Tensor::<1>::from_floats(shares_b.as_slice(), &device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{gradient, leaf, plain, values};
    use gradus_core::math::{Reduction, token_weights, weights::per_token};
    use proptest::prelude::*;

    #[test]
    fn sums_and_means_of_three_none_and_one() {
        let x = leaf(&[1.0, 2.0, 6.0, 5.0]);
        assert_eq!(values(&segment_sum(x.clone(), &[3, 0, 1])), [9.0, 0.0, 5.0]);
        assert_eq!(values(&segment_mean(x.clone(), &[3, 0, 1])), [3.0, 0.0, 5.0]);
        let weighted = segment_mean(x.clone(), &[3, 0, 1]) * plain(&[3.0, 7.0, 2.0]);
        assert_eq!(gradient(&weighted, &x), [1.0, 1.0, 1.0, 2.0]);
    }

    #[test]
    fn values_of_sequences_stand_at_each_of_their_places() {
        let x = leaf(&[1.0, 7.0, 2.0]);
        let spread_m = spread(x.clone(), &[2, 0, 1]);
        assert_eq!(values(&spread_m), [1.0, 1.0, 2.0]);
        assert_eq!(gradient(&(spread_m * plain(&[3.0, 4.0, 5.0])), &x), [7.0, 0.0, 5.0]);
        assert_eq!(values(&spread(plain(&[1.0]), &[0])), [0.0f32; 0]);
    }

    #[test]
    fn nothing_counted_sums_to_zero() {
        assert_eq!(values(&segment_sum(plain(&[]), &[0, 0])), [0.0, 0.0]);
        assert_eq!(values(&weighted_sum(plain(&[]), plain(&[]))), [0.0]);
    }

    #[test]
    fn the_gradient_of_a_weighted_sum_is_the_weights() {
        let x = leaf(&[1.0, 2.0, 3.0]);
        let loss = weighted_sum(x.clone(), plain(&[0.5, 0.25, 0.0]));
        assert_eq!(values(&loss), [1.0]);
        assert_eq!(gradient(&loss, &x), [0.5, 0.25, 0.0]);
    }

    /// Burn's own sum of such a tensor has other bits, which depend on timing.
    #[test]
    fn a_long_sum_is_a_sum_of_rows() {
        let numbers: Vec<f32> = (0..2 * 4 * 1024 * 1024 + 5).map(|i| (i as f32 * 0.618_034).fract() - 0.3).collect();
        let (found, rows) = (values(&sum(plain(&numbers)))[0], values(&in_rows(plain(&numbers)))[0]);
        assert_eq!(found.to_bits(), rows.to_bits());
        let exact: f64 = numbers.iter().map(|&number| f64::from(number)).sum();
        assert!((f64::from(found) - exact).abs() < 1e-6 * exact, "{found} instead of {exact}");
    }

    #[test]
    fn every_number_counts_once() {
        for numbers in [1, WIDTH, WIDTH + 1, 3 * WIDTH, WIDTH * WIDTH / 512 + 77] {
            let of: Vec<f32> = (0..numbers).map(|i| (i % 7) as f32 - 2.0).collect();
            let expected: f32 = of.iter().sum();
            assert_eq!(values(&in_rows(plain(&of))), [expected], "{numbers}");
            assert_eq!(values(&sum(plain(&of))), [expected], "{numbers}");
        }
        assert_eq!(values(&sum(plain(&[]))), [0.0]);
    }

    proptest! {
        #[test]
        fn any_split_and_order_gives_the_same_step(
            sequences in prop::collection::vec(prop::collection::vec(-3.0f32..3.0, 0..6), 1..8), split in 0usize..8,
        ) {
            for reduction in [Reduction::TokenMean, Reduction::SequenceMean, Reduction::FixedLength(6)] {
                let loss_of = |rows: &[Vec<f32>], weights_b: &[f32]| {
                    let counts_b: Vec<usize> = rows.iter().map(Vec::len).collect();
                    values(&weighted_sum(plain(&rows.concat()), plain(&per_token(weights_b, &counts_b))))[0]
                };
                let counts_b: Vec<usize> = sequences.iter().map(Vec::len).collect();
                let weights_b = token_weights(&counts_b, reduction);
                let whole = loss_of(&sequences, &weights_b);
                let cut = split.min(sequences.len());
                let parts = loss_of(&sequences[..cut], &weights_b[..cut]) + loss_of(&sequences[cut..], &weights_b[cut..]);
                let (mut rows, mut weights) = (sequences.clone(), weights_b);
                rows.reverse();
                weights.reverse();
                let reversed = loss_of(&rows, &weights);
                prop_assert!((whole - parts).abs() < 5e-6 && (whole - reversed).abs() < 5e-6, "{} {} {}", whole, parts, reversed);
            }
        }
    }
}
