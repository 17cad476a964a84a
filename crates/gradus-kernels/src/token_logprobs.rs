//! The LM head and what training needs of its logits, without ever holding them whole.
//!
//! With `z = h Wᵀ / τ` and `L = logsumexp(z)`: `logprob = z_y − L`, `entropy = L − Σ pᵥ zᵥ`, and the mean of z over the
//! vocabulary (for label smoothing). Given their gradients `a`, `e`, `l` (of L) and `m`:
//! `∂zᵥ = a([v = y] − pᵥ) − e·pᵥ(log pᵥ + H) + l·pᵥ + m/V`, then `∂h = ∂z W / τ`, `∂W = ∂zᵀ h / τ`.
//! Logits are made in chunks of rows, forward and again backward; every sum over the vocabulary is in f32 over
//! values shifted by the row's maximum.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Int, Tensor, TensorData, activation};
use rayon::prelude::*;

use crate::fused::{Dense, Op, apply, is_fused};
use crate::gemm::{Mat, Threads, multiply};
use crate::simd::{exp, max, simd};

/// What the LM head says of each target, all `[M]`, all carrying gradient but the last.
#[derive(Debug, Clone)]
pub struct TokenLogprobs {
    /// Log-probability of the target, in nats.
    pub logprobs_m: Tensor<1>,
    /// Entropy of the distribution, in nats.
    pub entropies_m: Tensor<1>,
    /// logsumexp of the logits over τ.
    pub log_partitions_m: Tensor<1>,
    /// Mean over the vocabulary of the logits over τ.
    pub mean_logits_m: Tensor<1>,
    /// 1 where the target is the most likely token (ties: the first), else 0. No gradient.
    pub correct_m: Tensor<1>,
}

/// Rows of the stacked result.
const ROWS: usize = 5;

/// Logits held at a time: 16 Mi values, 64 MiB.
const CHUNK_VALUES: usize = 16 << 20;

/// Logprobs of `targets_m` under the LM head `weight_vd` at `temperature`, given hidden states `hidden_md`.
///
/// `hidden_md` and `weight_vd` carry gradient.
///
/// # Panics
/// When the shapes do not fit or a target is outside the vocabulary.
pub fn token_logprobs(
    hidden_md: Tensor<2>,
    weight_vd: Tensor<2>,
    targets_m: &[u32],
    temperature: f32,
) -> TokenLogprobs {
    let ([m, d], [v, width]) = (hidden_md.dims(), weight_vd.dims());
    assert_eq!((m, d), (targets_m.len(), width), "one target per hidden state, one width");
    assert!(targets_m.iter().all(|&id| (id as usize) < v), "a target lies outside the vocabulary of {v}");
    if !is_fused(&hidden_md.device()) {
        return reference(hidden_md, weight_vd, targets_m, temperature);
    }
    let op = HeadLogprobs { targets: targets_m.into(), temperature };
    let stacked: Tensor<2> = apply(op, vec![hidden_md.into_dispatch(), weight_vd.into_dispatch()]);
    let row = |i: usize| stacked.clone().narrow(0, i, 1).reshape([m]);
    TokenLogprobs {
        logprobs_m: row(0),
        entropies_m: row(1),
        log_partitions_m: row(2),
        mean_logits_m: row(3),
        correct_m: row(4).detach(),
    }
}

/// The definition, in plain tensors, with whole logits.
fn reference(hidden_md: Tensor<2>, weight_vd: Tensor<2>, targets_m: &[u32], temperature: f32) -> TokenLogprobs {
    let (m, device) = (targets_m.len(), hidden_md.device());
    let ids: Vec<i32> = targets_m.iter().map(|&id| id as i32).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [m, 1]), &device);
    let logits = hidden_md.matmul(weight_vd.transpose()) / temperature;
    let logprobs = activation::log_softmax(logits.clone(), 1);
    let at_target = logits.clone().gather(1, ids.clone());
    let target_logprobs = logprobs.clone().gather(1, ids.clone());
    TokenLogprobs {
        logprobs_m: target_logprobs.clone().reshape([m]),
        entropies_m: -(logprobs.clone().exp() * logprobs).sum_dim(1).reshape([m]),
        log_partitions_m: (at_target - target_logprobs).reshape([m]),
        mean_logits_m: logits.clone().mean_dim(1).reshape([m]),
        correct_m: logits.argmax(1).equal(ids).float().reshape([m]).detach(),
    }
}

#[derive(Debug)]
struct HeadLogprobs {
    targets: Arc<[u32]>,
    temperature: f32,
}

simd! {
    /// The five numbers of one row of logits over τ.
    fn row_numbers(row: &[f32], target: usize) -> [f32; ROWS] {
        let max = max(row);
        let is_correct = row[target] == max && !row[..target].contains(&max);
        let (mut sum, mut weighted, mut total) = (0.0f32, 0.0f32, 0.0f32);
        // Partial sums of a few hundred keep f32 exact enough for vocabularies of hundreds of thousands.
        for block in row.chunks(256) {
            let [s, w, t] = partial_sums(block, max);
            sum += s;
            weighted += w;
            total += t;
        }
        let log_sum = sum.ln();
        [
            row[target] - max - log_sum,
            log_sum - weighted / sum,
            max + log_sum,
            max + total / row.len() as f32,
            if is_correct { 1.0 } else { 0.0 },
        ]
    }

    /// Turns one row of logits into their gradient, but for the target's own term.
    fn row_gradient(row: &mut [f32], coefficients: [f32; 4], entropy: f32, log_partition: f32) {
        let [a, e, l, even] = coefficients;
        for z in row.iter_mut() {
            let logprob = *z - log_partition;
            *z = exp(logprob) * (l - a - e * (logprob + entropy)) + even;
        }
    }
}

/// Σ eˢ, Σ eˢ·s and Σ s with `s = z − max`.
#[inline(always)]
fn partial_sums(block: &[f32], max: f32) -> [f32; 3] {
    const LANES: usize = 16;
    let mut lanes = [[0.0f32; LANES]; 3];
    let mut add = |i: usize, z: f32| {
        let shifted = z - max;
        let e = exp(shifted);
        lanes[0][i] += e;
        lanes[1][i] += e * shifted;
        lanes[2][i] += shifted;
    };
    let (blocks, tail) = block.as_chunks::<LANES>();
    for block in blocks {
        block.iter().enumerate().for_each(|(i, &z)| add(i, z));
    }
    tail.iter().enumerate().for_each(|(i, &z)| add(i, z));
    lanes.map(|lanes| lanes.iter().sum())
}

impl HeadLogprobs {
    fn chunk_rows(vocabulary: usize) -> usize {
        (CHUNK_VALUES / vocabulary).clamp(1, 4096)
    }

    /// Logits over τ of the hidden states `rows`, into `logits`.
    fn logits(&self, hidden: &[f32], weight: Mat<'_>, d: usize, rows: Range<usize>, v: usize, logits: &mut [f32]) {
        let rows = Mat::dense(&hidden[rows.start * d..rows.end * d], rows.len(), d);
        multiply(logits, v, 0.0, 1.0 / self.temperature, rows, weight.t(), Threads::All);
    }
}

impl Op for HeadLogprobs {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let (hidden, weight) = (&inputs[0], &inputs[1]);
        let (m, d, v) = (hidden.dims()[0], hidden.dims()[1], weight.dims()[0]);
        let weight_view = Mat::dense(weight.values(), v, d);
        let step = Self::chunk_rows(v).min(m.max(1));
        let mut logits = vec![0.0f32; step * v];
        let mut stacked = vec![0.0f32; ROWS * m];
        for from in (0..m).step_by(step) {
            let to = (from + step).min(m);
            let chunk = &mut logits[..(to - from) * v];
            self.logits(hidden.values(), weight_view, d, from..to, v, chunk);
            let numbers: Vec<[f32; ROWS]> = chunk
                .par_chunks_exact(v)
                .zip(&self.targets[from..to])
                .map(|(row, &target)| row_numbers(row, target as usize))
                .collect();
            for (i, numbers) in numbers.iter().enumerate() {
                for (r, &number) in numbers.iter().enumerate() {
                    stacked[r * m + from + i] = number;
                }
            }
        }
        let output = Dense::new(stacked, &[ROWS, m]);
        (output.clone(), vec![hidden.clone(), weight.clone(), output])
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, needed: &[bool]) -> Vec<Option<Dense>> {
        let (hidden, weight) = (&saved[0], &saved[1]);
        let (m, d, v) = (hidden.dims()[0], hidden.dims()[1], weight.dims()[0]);
        let weight_view = Mat::dense(weight.values(), v, d);
        let (numbers, grad) = (saved[2].values(), grad.values());
        let step = Self::chunk_rows(v).min(m.max(1));
        let mut logits = vec![0.0f32; step * v];
        let mut grad_hidden = vec![0.0f32; if needed[0] { m * d } else { 0 }];
        let mut grad_weight = vec![0.0f32; if needed[1] { v * d } else { 0 }];
        let scale = 1.0 / self.temperature;
        for from in (0..m).step_by(step) {
            let to = (from + step).min(m);
            let chunk = &mut logits[..(to - from) * v];
            self.logits(hidden.values(), weight_view, d, from..to, v, chunk);
            chunk.par_chunks_exact_mut(v).enumerate().for_each(|(i, row)| {
                let i = from + i;
                let [a, e, l, mean] = [0, 1, 2, 3].map(|r| grad[r * m + i]);
                let (entropy, log_partition) = (numbers[m + i], numbers[2 * m + i]);
                row_gradient(row, [a, e, l, mean / v as f32], entropy, log_partition);
                row[self.targets[i] as usize] += a;
            });
            let chunk = Mat::dense(chunk, to - from, v);
            if needed[0] {
                multiply(&mut grad_hidden[from * d..to * d], d, 0.0, scale, chunk, weight_view, Threads::All);
            }
            if needed[1] {
                let rows = Mat::dense(&hidden.values()[from * d..to * d], to - from, d);
                multiply(&mut grad_weight, d, 1.0, scale, chunk.t(), rows, Threads::All);
            }
        }
        vec![needed[0].then(|| Dense::new(grad_hidden, &[m, d])), needed[1].then(|| Dense::new(grad_weight, &[v, d]))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{check, leaf};

    fn stack(numbers: TokenLogprobs) -> Tensor<2> {
        let rows = [numbers.logprobs_m, numbers.entropies_m, numbers.log_partitions_m, numbers.mean_logits_m];
        Tensor::stack(rows.to_vec(), 0)
    }

    #[test]
    fn agrees_with_the_reference() {
        for (m, d, v) in [(1, 3, 2), (7, 16, 301), (33, 8, 1000)] {
            let targets: Vec<u32> = (0..m).map(|i| (i * 37 % v) as u32).collect();
            for temperature in [1.0, 0.7] {
                check(
                    "token logprobs",
                    &[leaf([m, d], 1), leaf([v, d], 2)],
                    |x| stack(token_logprobs(x[0].clone(), x[1].clone(), &targets, temperature)),
                    |x| stack(reference(x[0].clone(), x[1].clone(), &targets, temperature)),
                    2e-5,
                );
            }
        }
    }

    #[test]
    fn extreme_logits_stay_finite_and_ties_go_to_the_first() {
        let numbers = row_numbers(&[1e4, 1e4, -1e4], 1);
        assert!(
            (numbers[0] + std::f32::consts::LN_2).abs() < 1e-6 && (numbers[1] - std::f32::consts::LN_2).abs() < 1e-6
        );
        assert_eq!(numbers[4], 0.0);
        assert_eq!(row_numbers(&[0.0, 5.0, 1.0], 1)[4], 1.0);
    }
}
