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

use crate::frozen::FrozenWeight;
use crate::fused::{Dense, Op, apply, is_fused};
use crate::linear::{Layout, linear};
use crate::product::{Mat, PackedMatrix, Precision, Product};
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

/// The LM head: what hidden states are multiplied with to give logits.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "a few are alive at a time, and tensors are passed by value everywhere")]
pub enum LmHead {
    /// A weight `[V, D]`, which carries gradient; operands of products are held in the precision named.
    Dense(Tensor<2>, Precision),
    /// A packed weight without gradient.
    Frozen(FrozenWeight),
}

impl LmHead {
    /// V and D.
    pub fn dims(&self) -> [usize; 2] {
        match self {
            Self::Dense(weight_vd, _) => weight_vd.dims(),
            Self::Frozen(weight) => {
                let [d, v] = weight.dims();
                [v, d]
            }
        }
    }

    /// Logits of each row of `hidden_bd`, `[B, V]`: for sampling.
    pub fn logits(&self, hidden_bd: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Dense(weight_vd, precision) => linear(hidden_bd, weight_vd.clone(), None, Layout::OutIn, *precision),
            Self::Frozen(weight) => weight.apply(hidden_bd, None),
        }
    }
}

/// Rows of the stacked result.
const ROWS: usize = 5;

/// Logits held at a time: 16 Mi values, 64 MiB.
const CHUNK_VALUES: usize = 16 << 20;

/// Logprobs of `targets_m` under `head` at `temperature`, given hidden states `hidden_md`.
///
/// `hidden_md` and a dense head's weight carry gradient.
///
/// # Panics
/// When the shapes do not fit or a target is outside the vocabulary.
pub fn token_logprobs(hidden_md: Tensor<2>, head: &LmHead, targets_m: &[u32], temperature: f32) -> TokenLogprobs {
    let ([m, d], [v, width]) = (hidden_md.dims(), head.dims());
    assert_eq!((m, d), (targets_m.len(), width), "one target per hidden state, one width");
    assert!(targets_m.iter().all(|&id| (id as usize) < v), "a target lies outside the vocabulary of {v}");
    let op = |precision, frozen| HeadLogprobs { targets: targets_m.into(), temperature, precision, frozen };
    let stacked: Tensor<2> = match head {
        LmHead::Dense(weight_vd, _) if !is_fused(&hidden_md.device()) => {
            return reference(hidden_md, weight_vd.clone(), targets_m, temperature);
        }
        LmHead::Dense(weight_vd, precision) => {
            apply(op(*precision, None), vec![hidden_md.into_dispatch(), weight_vd.clone().into_dispatch()])
        }
        LmHead::Frozen(weight) => {
            apply(op(weight.matrix().precision(), Some(weight.clone())), vec![hidden_md.into_dispatch()])
        }
    };
    let row = |i: usize| stacked.clone().narrow(0, i, 1).squeeze_dim::<1>(0);
    TokenLogprobs {
        logprobs_m: row(0),
        entropies_m: row(1),
        log_partitions_m: row(2),
        mean_logits_m: row(3),
        correct_m: row(4).detach(),
    }
}

/// The definition, in plain tensors, with whole logits.
pub fn reference(hidden_md: Tensor<2>, weight_vd: Tensor<2>, targets_m: &[u32], temperature: f32) -> TokenLogprobs {
    let (m, device) = (targets_m.len(), hidden_md.device());
    let ids: Vec<i32> = targets_m.iter().map(|&id| id as i32).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [m, 1]), &device);
    let logits = hidden_md.matmul(weight_vd.transpose()) / temperature;
    let logprobs = activation::log_softmax(logits.clone(), 1);
    let at_target = logits.clone().gather(1, ids.clone());
    let target_logprobs = logprobs.clone().gather(1, ids.clone());
    TokenLogprobs {
        logprobs_m: target_logprobs.clone().squeeze_dim(1),
        entropies_m: -(logprobs.clone().exp() * logprobs).sum_dim(1).squeeze_dim(1),
        log_partitions_m: (at_target - target_logprobs).squeeze_dim(1),
        mean_logits_m: logits.clone().mean_dim(1).squeeze_dim(1),
        correct_m: logits.argmax(1).equal(ids).float().squeeze_dim(1).detach(),
    }
}

#[derive(Debug)]
struct HeadLogprobs {
    targets: Arc<[u32]>,
    temperature: f32,
    precision: Precision,
    /// The head, where it is not an input.
    frozen: Option<FrozenWeight>,
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

    fn product(&self) -> Product {
        Product::new(self.precision).scaled(1.0 / self.temperature)
    }

    /// V.
    fn vocabulary(&self, inputs: &[Dense]) -> usize {
        self.frozen.as_ref().map_or_else(|| inputs[1].dims()[0], |weight| weight.dims()[1])
    }

    /// The head, packed for all chunks of `m` rows, where that pays: in f32 it would take as much memory as the weight
    /// and save a tenth of the time.
    fn packed(&self, inputs: &[Dense], m: usize, turned: bool) -> Option<PackedMatrix> {
        let ([v, d], precision) = (inputs.get(1)?.dims().try_into().expect("a matrix"), self.precision);
        let pays = precision == Precision::Bf16 && m > Self::chunk_rows(v);
        let weight = Mat::dense(inputs[1].values(), v, d);
        pays.then(|| PackedMatrix::new(if turned { weight.t() } else { weight }, precision.into()))
    }

    /// Logits over τ of the hidden states `rows`, into `logits`; `packed` is the transposed head.
    fn logits(&self, inputs: &[Dense], packed: Option<&PackedMatrix>, rows: Range<usize>, logits: &mut [f32]) {
        let (d, v) = (inputs[0].dims()[1], self.vocabulary(inputs));
        let hidden = Mat::dense(&inputs[0].values()[rows.start * d..rows.end * d], rows.len(), d);
        match packed.or(self.frozen.as_ref().map(FrozenWeight::matrix)) {
            Some(weight) => weight.multiply(logits, v, false, 1.0 / self.temperature, hidden),
            None => self.product().store(logits, v, hidden, Mat::dense(inputs[1].values(), v, d).t()),
        }
    }
}

impl Op for HeadLogprobs {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let (m, v) = (inputs[0].dims()[0], self.vocabulary(inputs));
        let step = Self::chunk_rows(v).min(m.max(1));
        let mut logits = vec![0.0f32; step * v];
        let mut stacked = vec![0.0f32; ROWS * m];
        let head = self.packed(inputs, m, true);
        for from in (0..m).step_by(step) {
            let to = (from + step).min(m);
            let chunk = &mut logits[..(to - from) * v];
            self.logits(inputs, head.as_ref(), from..to, chunk);
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
        let mut saved = inputs.to_vec();
        saved.push(output.clone());
        (output, saved)
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, needed: &[bool]) -> Vec<Option<Dense>> {
        let (numbers, inputs) = saved.split_last().expect("the output is saved last");
        let (m, d, v) = (inputs[0].dims()[0], inputs[0].dims()[1], self.vocabulary(inputs));
        let (numbers, grad) = (numbers.values(), grad.values());
        let needed_weight = needed.get(1).copied().unwrap_or(false);
        let step = Self::chunk_rows(v).min(m.max(1));
        let mut logits = vec![0.0f32; step * v];
        let mut grad_hidden = vec![0.0f32; if needed[0] { m * d } else { 0 }];
        // The first chunk makes it; without one it is zero.
        let mut grad_weight = vec![0.0f32; if needed_weight && m == 0 { v * d } else { 0 }];
        let (head, turned_head) = (self.packed(inputs, m, true), self.packed(inputs, m, false));
        // Once for all chunks.
        let unpacked = self.frozen.as_ref().filter(|_| needed[0]).map(|weight| weight.matrix().unpacked());
        for from in (0..m).step_by(step) {
            let to = (from + step).min(m);
            let chunk = &mut logits[..(to - from) * v];
            self.logits(inputs, head.as_ref(), from..to, chunk);
            chunk.par_chunks_exact_mut(v).enumerate().for_each(|(i, row)| {
                let i = from + i;
                let [a, e, l, mean] = [0, 1, 2, 3].map(|r| grad[r * m + i]);
                let (entropy, log_partition) = (numbers[m + i], numbers[2 * m + i]);
                row_gradient(row, [a, e, l, mean / v as f32], entropy, log_partition);
                row[self.targets[i] as usize] += a;
            });
            let chunk = Mat::dense(chunk, to - from, v);
            if needed[0] {
                let target = &mut grad_hidden[from * d..to * d];
                match (&unpacked, &turned_head) {
                    (Some(weight_dv), _) => self.product().store(target, d, chunk, Mat::dense(weight_dv, d, v).t()),
                    (None, Some(weight)) => weight.multiply(target, d, false, 1.0 / self.temperature, chunk),
                    (None, None) => self.product().store(target, d, chunk, Mat::dense(inputs[1].values(), v, d)),
                }
            }
            if needed_weight {
                let rows = Mat::dense(&inputs[0].values()[from * d..to * d], to - from, d);
                match from {
                    0 => grad_weight = self.product().fresh(None, chunk.t(), rows),
                    _ => self.product().add(&mut grad_weight, d, chunk.t(), rows),
                }
            }
        }
        let mut gradients = vec![needed[0].then(|| Dense::new(grad_hidden, &[m, d]))];
        if inputs.len() == 2 {
            gradients.push(needed_weight.then(|| Dense::new(grad_weight, &[v, d])));
        }
        gradients
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
                    |x| {
                        let head = LmHead::Dense(x[1].clone(), Precision::F32);
                        stack(token_logprobs(x[0].clone(), &head, &targets, temperature))
                    },
                    |x| stack(reference(x[0].clone(), x[1].clone(), &targets, temperature)),
                    2e-5,
                );
            }
        }
    }

    #[test]
    fn a_frozen_head_agrees_with_a_dense_one() {
        let (m, d, v) = (9, 16, 301);
        let targets: Vec<u32> = (0..m).map(|i| (i * 37 % v) as u32).collect();
        let weight = leaf([v, d], 2).detach();
        for precision in [Precision::F32, Precision::Bf16] {
            let frozen = LmHead::Frozen(FrozenWeight::new(weight.clone(), Layout::OutIn, precision.into()));
            let dense = LmHead::Dense(weight.clone(), precision);
            check(
                "frozen head",
                &[leaf([m, d], 1)],
                |x| stack(token_logprobs(x[0].clone(), &frozen, &targets, 0.7)),
                |x| stack(token_logprobs(x[0].clone(), &dense, &targets, 0.7)),
                1e-6,
            );
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
