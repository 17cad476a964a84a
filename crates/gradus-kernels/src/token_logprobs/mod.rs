//! The LM head and the quantities that training needs from its logits, without ever holding all logits.
//!
//! With `z = h Wᵀ / τ` and `L = logsumexp(z)`: `logprob = z_y − L`, `entropy = L − Σ pᵥ zᵥ`, and the mean of z over the vocabulary (for
//! label smoothing). Given their gradients `a`, `e`, `l` (of L) and `m`:
//! `∂zᵥ = a([v = y] − pᵥ) − e·pᵥ(log pᵥ + H) + l·pᵥ + m/V`, then `∂h = ∂z W / τ`, `∂W = ∂zᵀ h / τ`.
//! A head with a soft cap c has `z = c tanh(h Wᵀ / c) / τ`, and `∂z ∘ (1 − (zτ/c)²)` replaces `∂z`.
//! A row with several targets has one softmax: its `a`, `e`, `l` and `m` are sums over its targets, and each target adds its own `a` at `v = y`.
//! Logits are computed in chunks of the vocabulary for all rows at once. So each part of W is read once in the forward pass and once in the
//! backward pass, which starts with the last chunks, still in memory. Sums over the vocabulary are in f32, over values shifted by their
//! block's maximum. Blocks have a fixed size, so a row's results do not depend on the number of rows.

mod chunk;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::{Int, Tensor, TensorData, activation};
use chunk::BLOCK;
pub(crate) use chunk::{Chunk, ROWS};
use rayon::prelude::*;

use crate::embedding::embedding;
use crate::frozen::FrozenWeight;
use crate::fused::{Dense, Op, apply, is_cpu};
use crate::linear::{Layout, linear};
use crate::low_rank::{low_rank, mat};
use crate::matmul::matmul;
use crate::parts::zeros;
use crate::product::{Columns, Mat, Precision, Product};
use crate::simd::{exp, max, simd};
use crate::softcap::{self, cap_in_place, slope, softcap};

/// Results of the LM head for each target, all `[M]`. All but the last carry gradient.
#[derive(Debug, Clone)]
pub struct TokenLogprobs {
    /// Log-probability of the target, in nats.
    pub logprobs_m: Tensor<1>,
    /// Entropy of the distribution, in nats.
    pub entropies_m: Tensor<1>,
    /// logsumexp of the logits divided by τ.
    pub log_partitions_m: Tensor<1>,
    /// Mean over the vocabulary of the logits divided by τ.
    pub mean_logits_m: Tensor<1>,
    /// 1 if the target is the most likely token (the first of ties), otherwise 0. No gradient.
    pub correct_m: Tensor<1>,
}

/// The LM head: the weight that turns hidden states into logits, an optional low-rank part of an adapter, and an optional soft cap.
#[derive(Debug, Clone)]
pub struct LmHead {
    weight: HeadWeight,
    low_rank: Option<HeadLowRank>,
    cap: Option<f32>,
}

/// Low-rank part of a head: `s · B (A h)` is added to the logits before the cap.
#[derive(Debug, Clone)]
struct HeadLowRank {
    /// A, `[r, D]`.
    a_rd: Tensor<2>,
    /// B, `[V, r]`.
    b_vr: Tensor<2>,
    scale: f32,
    precision: Precision,
}

#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "a few are alive at a time, and tensors are passed by value everywhere")]
enum HeadWeight {
    Dense(Tensor<2>, Precision),
    Frozen(FrozenWeight),
}

impl LmHead {
    /// A head with a weight `[V, D]`, which carries gradient. Operands of products are held in `precision`.
    pub fn dense(weight_vd: Tensor<2>, precision: Precision) -> Self {
        Self { weight: HeadWeight::Dense(weight_vd, precision), low_rank: None, cap: None }
    }

    /// Precision of the operands of its products.
    #[cfg(feature = "gpu")]
    fn precision(&self) -> Precision {
        match &self.weight {
            HeadWeight::Dense(_, precision) => *precision,
            HeadWeight::Frozen(weight) => weight.precision(),
        }
    }

    /// A head with a packed weight without gradient.
    pub fn frozen(weight: FrozenWeight) -> Self {
        Self { weight: HeadWeight::Frozen(weight), low_rank: None, cap: None }
    }

    /// Adds a low-rank part to the head: A `[r, D]` and B `[V, r]`, which carry gradient, times `scale`. The operands of their products are
    /// held in `precision`.
    pub fn adapted(self, [a_rd, b_vr]: [Tensor<2>; 2], scale: f32, precision: Precision) -> Self {
        Self { low_rank: Some(HeadLowRank { a_rd, b_vr, scale, precision }), ..self }
    }

    /// Caps the logits softly ([`softcap`]), if a cap is given.
    pub fn capped(self, cap: Option<f32>) -> Self {
        Self { cap, ..self }
    }

    /// Sizes V and D.
    pub fn dims(&self) -> [usize; 2] {
        match &self.weight {
            HeadWeight::Dense(weight_vd, _) => weight_vd.dims(),
            HeadWeight::Frozen(weight) => {
                let [d, v] = weight.dims();
                [v, d]
            }
        }
    }

    /// Logits of each row of `hidden_bd`, `[B, D]` to `[B, V]`, for sampling.
    pub fn logits(&self, hidden_bd: Tensor<2>) -> Tensor<2> {
        let added = self
            .low_rank
            .as_ref()
            .map(|part| low_rank(hidden_bd.clone(), part.a_rd.clone(), part.b_vr.clone(), part.scale, part.precision));
        let logits_bv = match &self.weight {
            HeadWeight::Dense(weight_vd, precision) => {
                linear(hidden_bd, weight_vd.clone(), None, Layout::OutIn, *precision)
            }
            HeadWeight::Frozen(weight) => weight.apply(hidden_bd, None),
        };
        let logits_bv = match added {
            None => logits_bv,
            Some(added) => logits_bv + added,
        };
        match self.cap {
            None => logits_bv,
            Some(cap) => softcap(logits_bv, cap),
        }
    }
}

/// Largest number of logits in memory at a time, for `m` rows of `v` logits. `recorded` is the precision of the products if the pass is
/// recorded for a backward pass.
pub fn logits_held(m: usize, v: usize, recorded: Option<Precision>) -> usize {
    let chunks = Chunk::all(m, v);
    let kept = chunks.iter().rev().take(recorded.map_or(0, kept)).map(Chunk::values).sum();
    largest(&chunks).max(kept)
}

/// Largest number of rows or vocabulary tokens in a chunk of `m` rows of `v` logits, whichever is larger.
pub fn longest_side_of_chunk(m: usize, v: usize) -> usize {
    Chunk::all(m, v).iter().map(|chunk| chunk.rows.len().max(chunk.tokens.len())).max().unwrap_or(0)
}

/// Number of chunks that the forward pass keeps for the backward pass, which computes the others again. With GPT-2 in f32, one chunk is a
/// fortieth of the step. In bf16 it is less, and memory matters more.
const fn kept(precision: Precision) -> usize {
    match precision {
        Precision::F32 => 3,
        Precision::Bf16 => 1,
    }
}

/// Computes log-probabilities of `targets_m` under `head` at `temperature`, from the hidden states `hidden_md`.
///
/// `hidden_md` is `[M, D]`, and there are M targets. All results are `[M]`. `hidden_md`, a dense head's weight and a head's low-rank part
/// carry gradient.
///
/// # Panics
/// If the shapes do not fit or a target is outside the vocabulary.
pub fn token_logprobs(hidden_md: Tensor<2>, head: &LmHead, targets_m: &[u32], temperature: f32) -> TokenLogprobs {
    let begins: Vec<usize> = (0..=targets_m.len()).collect();
    row_logprobs(hidden_md, head, &begins, targets_m, temperature)
}

/// [`token_logprobs`] of rows with any number of targets: `targets_m[begins[i]..begins[i + 1]]` are those of row `i` of `hidden_nd`, at least
/// one. The softmax of a row is computed once on the CPU, and once per target on other devices.
///
/// # Panics
/// As [`token_logprobs`].
pub fn row_logprobs(
    hidden_nd: Tensor<2>,
    head: &LmHead,
    begins: &[usize],
    targets_m: &[u32],
    temperature: f32,
) -> TokenLogprobs {
    let (m, [n, d], [v, width]) = (targets_m.len(), hidden_nd.dims(), head.dims());
    assert_eq!((n + 1, d), (begins.len(), width), "targets for each hidden state, one width");
    let is_partition = begins[0] == 0 && begins[n] == m && begins.windows(2).all(|pair| pair[0] < pair[1]);
    assert!(is_partition, "each hidden state has its own targets, at least one");
    assert!(targets_m.iter().all(|&id| (id as usize) < v), "a target lies outside the vocabulary of {v}");
    let op = |precision, frozen| HeadLogprobs {
        begins: begins.into(),
        targets: targets_m.into(),
        temperature,
        cap: head.cap,
        precision,
        frozen,
        low_rank: head.low_rank.as_ref().map(|part| (Product::new(part.precision), part.scale)),
        kept: if hidden_nd.is_autodiff() { kept(precision) } else { 0 },
        last_chunks: Mutex::default(),
    };
    let device = hidden_nd.device();
    if !is_cpu(&device) {
        let hidden_md = match n == m {
            true => hidden_nd,
            false => {
                let rows = begins.windows(2).enumerate();
                let rows: Vec<u32> = rows.flat_map(|(i, pair)| vec![i as u32; pair[1] - pair[0]]).collect();
                embedding(hidden_nd, &rows)
            }
        };
        let weight_vd = match &head.weight {
            HeadWeight::Dense(weight_vd, _) => weight_vd.clone(),
            HeadWeight::Frozen(weight) => weight.dense_on(&device).transpose(),
        };
        let weight_vd = match &head.low_rank {
            None => weight_vd,
            Some(part) => weight_vd + matmul(part.b_vr.clone(), part.a_rd.clone()) * part.scale,
        };
        #[cfg(feature = "gpu")]
        if let Some(gpu) = crate::fused::gpu(&device) {
            use crate::gpu::GpuOp;
            let op = crate::gpu::logprobs::Logprobs::new(targets_m, temperature, head.cap, head.precision());
            if m > 0 && op.supports(&gpu, hidden_md.dtype()) && weight_vd.dtype() == hidden_md.dtype() {
                let inputs = [hidden_md, weight_vd].map(Tensor::into_dispatch).into();
                return TokenLogprobs::of_stacked(crate::fused::apply_on_gpu(op, inputs));
            }
        }
        return reference(hidden_md, weight_vd, head.cap, targets_m, temperature);
    }
    let (of_head, dense) = match &head.weight {
        HeadWeight::Dense(weight_vd, precision) => (op(*precision, None), Some(weight_vd.clone())),
        HeadWeight::Frozen(weight) => (op(weight.precision(), Some(weight.clone())), None),
    };
    let parts = head.low_rank.iter().flat_map(|part| [part.a_rd.clone(), part.b_vr.clone()]);
    let inputs = [hidden_nd].into_iter().chain(dense).chain(parts);
    TokenLogprobs::of_stacked(apply(of_head, inputs.map(Tensor::into_dispatch).collect()))
}

impl TokenLogprobs {
    /// Splits the stacked rows of results.
    fn of_stacked(stacked: Tensor<2>) -> Self {
        let row = |i: usize| stacked.clone().narrow(0, i, 1).squeeze_dim::<1>(0);
        Self {
            logprobs_m: row(0),
            entropies_m: row(1),
            log_partitions_m: row(2),
            mean_logits_m: row(3),
            correct_m: row(4).detach(),
        }
    }
}

/// The definition, in plain tensors, with whole logits.
pub fn reference(
    hidden_md: Tensor<2>,
    weight_vd: Tensor<2>,
    cap: Option<f32>,
    targets_m: &[u32],
    temperature: f32,
) -> TokenLogprobs {
    let (m, device) = (targets_m.len(), hidden_md.device());
    let ids: Vec<i32> = targets_m.iter().map(|&id| id as i32).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [m, 1]), &device);
    let logits = matmul(hidden_md, weight_vd.transpose());
    let logits = cap.map_or_else(|| logits.clone(), |cap| softcap::reference(logits.clone(), cap)) / temperature;
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
    /// Index of the first target of each row, and the number of targets.
    begins: Arc<[usize]>,
    targets: Arc<[u32]>,
    temperature: f32,
    cap: Option<f32>,
    precision: Precision,
    /// The head, if it is not an input.
    frozen: Option<FrozenWeight>,
    /// Product and scale of the low-rank part, if any. A and B are then the last two inputs.
    low_rank: Option<(Product, f32)>,
    /// Number of logit chunks that the forward pass keeps: the last ones.
    kept: usize,
    /// These chunks, in order. The backward pass takes them and reuses their memory.
    last_chunks: Mutex<Vec<Vec<f32>>>,
}

/// Sums over a block of one row's logits divided by τ: `m = max z`, `Σ eˢ`, `Σ eˢ·s` and `Σ s` with `s = z − m`.
#[derive(Debug, Clone, Copy, Default)]
struct BlockSums {
    max: f32,
    sum: f32,
    weighted: f32,
    total: f32,
}

/// A target of a row: its logit divided by τ, and whether it is the first of the largest logits of its block.
#[derive(Debug, Clone, Copy, Default)]
struct Target {
    logit: f32,
    is_first: bool,
}

simd! {
    fn block_sums(block: &[f32]) -> BlockSums {
        let max = max(block);
        let (mut sum, mut weighted, mut total) = (0.0f32, 0.0f32, 0.0f32);
        // Partial sums of a few hundred values keep f32 accurate enough for vocabularies of hundreds of thousands.
        for part in block.chunks(256) {
            let [s, w, t] = partial_sums(part, max);
            sum += s;
            weighted += w;
            total += t;
        }
        BlockSums { max, sum, weighted, total }
    }

    /// Turns the logits of one row into their gradient, without the target's own term.
    fn row_gradient(row: &mut [f32], coefficients: [f32; 4], entropy: f32, log_partition: f32) {
        let [a, e, l, even] = coefficients;
        for z in row.iter_mut() {
            let logprob = *z - log_partition;
            *z = exp(logprob) * (l - a - e * (logprob + entropy)) + even;
        }
    }

    /// Like `row_gradient`, for capped logits divided by τ; gives the gradient of the logits before the cap. `inverse` is τ over the cap.
    fn capped_row_gradient(row: &mut [f32], coefficients: [f32; 4], numbers: [f32; 2], inverse: f32) {
        let ([a, e, l, even], [entropy, log_partition]) = (coefficients, numbers);
        for z in row.iter_mut() {
            let (logprob, slope) = (*z - log_partition, slope(*z, inverse));
            *z = slope * (exp(logprob) * (l - a - e * (logprob + entropy)) + even);
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

/// Results of one row of logits divided by τ: `m = max z`, `ln Σ e^(z − m)`, and those that do not depend on the target.
#[derive(Debug, Clone, Copy)]
struct RowSums {
    max: f32,
    log_sum: f32,
    entropy: f32,
    log_partition: f32,
    mean: f32,
}

impl RowSums {
    /// Adds up the blocks of a row of `v` logits.
    fn new(blocks: &[BlockSums], v: usize) -> Self {
        let max = max_of(blocks.iter().map(|block| block.max));
        let (mut sum, mut weighted, mut total) = (0.0f32, 0.0f32, 0.0f32);
        for (i, block) in blocks.iter().enumerate() {
            let shift = block.max - max;
            let scale = exp(shift);
            sum += scale * block.sum;
            weighted += scale * (block.weighted + block.sum * shift);
            total += block.total + (v - i * BLOCK).min(BLOCK) as f32 * shift;
        }
        let log_sum = sum.ln();
        let (entropy, log_partition, mean) = (log_sum - weighted / sum, max + log_sum, max + total / v as f32);
        Self { max, log_sum, entropy, log_partition, mean }
    }

    /// Returns the five results of a target. `before` are the blocks before its own.
    fn of_target(&self, target: Target, before: &[BlockSums]) -> [f32; ROWS] {
        let is_correct = target.is_first && target.logit == self.max && before.iter().all(|block| block.max < self.max);
        let logprob = target.logit - self.max - self.log_sum;
        [logprob, self.entropy, self.log_partition, self.mean, if is_correct { 1.0 } else { 0.0 }]
    }
}

/// Splits the values of all targets by row.
fn by_row<'a, T>(begins: &[usize], mut values: &'a mut [T]) -> Vec<&'a mut [T]> {
    let split = |pair: &[usize]| values.split_off_mut(..pair[1] - pair[0]).expect("as many as there are targets");
    begins.windows(2).map(split).collect()
}

/// Largest value. NaN is ignored.
fn max_of(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

/// The part of the head for one chunk.
enum Head<'a> {
    /// `[tokens, D]`
    Dense(Mat<'a>),
    /// `[D, tokens]`
    Packed(Columns<'a>),
}

impl HeadLogprobs {
    fn product(&self) -> Product {
        Product::new(self.precision).scaled(1.0 / self.temperature)
    }

    /// Indices of the targets of row `i`.
    fn of_row(&self, i: usize) -> Range<usize> {
        self.begins[i]..self.begins[i + 1]
    }

    /// Vocabulary size, V.
    fn vocabulary(&self, inputs: &[Dense]) -> usize {
        self.frozen.as_ref().map_or_else(|| inputs[1].dims()[0], |weight| weight.dims()[1])
    }

    /// Returns the head's part for `chunk`.
    fn head<'a>(&'a self, inputs: &'a [Dense], chunk: &Chunk) -> Head<'a> {
        let tokens = chunk.tokens.clone();
        match &self.frozen {
            Some(weight) => Head::Packed(weight.matrix().columns(tokens)),
            None => {
                let d = inputs[0].dims()[1];
                let values = &inputs[1].values()[tokens.start * d..tokens.end * d];
                Head::Dense(Mat::dense(values, tokens.len(), d))
            }
        }
    }

    /// Computes `h Aᵀ` of every row, `[M, r]`, if the head has a low-rank part.
    fn reduced(&self, inputs: &[Dense]) -> Option<Dense> {
        let (product, _) = self.low_rank?;
        let (hidden, a) = (&inputs[0], &inputs[inputs.len() - 2]);
        let values = product.fresh(None, mat(hidden), mat(a).t());
        Some(Dense::new(values, &[hidden.dims()[0], a.dims()[0]]))
    }

    /// Writes the logits of `chunk`, divided by τ, to `logits`. `reduced` holds the rows `h Aᵀ` for the low-rank part.
    fn logits(&self, inputs: &[Dense], reduced: Option<&Dense>, chunk: &Chunk, logits: &mut [f32]) {
        let (hidden, width) = (hidden(inputs, chunk), chunk.tokens.len());
        // The cap applies to logits before the division by τ.
        let scale = self.cap.map_or(1.0 / self.temperature, |_| 1.0);
        match self.head(inputs, chunk) {
            Head::Dense(weight) => Product::new(self.precision).scaled(scale).store(logits, width, hidden, weight.t()),
            Head::Packed(weight) => weight.multiply(logits, width, scale, hidden),
        }
        if let (Some((product, own)), Some(reduced)) = (self.low_rank, reduced) {
            let (rows, b) = (rows_of(reduced, &chunk.rows), rows_of(&inputs[inputs.len() - 1], &chunk.tokens));
            product.scaled(own * scale).add(logits, width, rows, b.t());
        }
        if let Some(cap) = self.cap {
            logits.par_chunks_exact_mut(width).for_each(|row| cap_in_place(row, cap, 1.0 / self.temperature));
        }
    }

    /// The kept logits.
    fn last_chunks(&self) -> MutexGuard<'_, Vec<Vec<f32>>> {
        self.last_chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Number of values in the largest chunk.
fn largest(chunks: &[Chunk]) -> usize {
    chunks.iter().map(Chunk::values).max().unwrap_or(0)
}

/// Some rows of a matrix.
fn rows_of<'a>(tensor: &'a Dense, rows: &Range<usize>) -> Mat<'a> {
    let width = tensor.dims()[1];
    Mat::dense(&tensor.values()[rows.start * width..rows.end * width], rows.len(), width)
}

/// The hidden states of a chunk.
fn hidden<'a>(inputs: &'a [Dense], chunk: &Chunk) -> Mat<'a> {
    rows_of(&inputs[0], &chunk.rows)
}

impl Op for HeadLogprobs {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let (n, v, m) = (inputs[0].dims()[0], self.vocabulary(inputs), self.targets.len());
        let chunks = Chunk::all(n, v);
        let blocks_each = v.div_ceil(BLOCK);
        let mut sums = vec![BlockSums::default(); n * blocks_each];
        let mut targets = vec![Target::default(); m];
        let mut of_rows = by_row(&self.begins, &mut targets);
        let mut memory = zeros(largest(&chunks));
        let reduced = self.reduced(inputs);
        for (i, chunk) in chunks.iter().enumerate() {
            let (rows, width, first) = (chunk.rows.clone(), chunk.tokens.len(), chunk.tokens.start / BLOCK);
            let logits = &mut memory[..chunk.values()];
            self.logits(inputs, reduced.as_ref(), chunk, logits);
            let sums = sums[rows.start * blocks_each..rows.end * blocks_each].par_chunks_exact_mut(blocks_each);
            let targets = of_rows[rows.clone()].par_iter_mut().zip(rows);
            logits.par_chunks_exact(width).zip(sums).zip(targets).for_each(|((row, sums), (targets, i))| {
                let sums = &mut sums[first..];
                for (sums, block) in sums.iter_mut().zip(row.chunks(BLOCK)) {
                    *sums = block_sums(block);
                }
                for (target, &id) in targets.iter_mut().zip(&self.targets[self.of_row(i)]) {
                    if let Some(at) = chunk.place(id) {
                        let (logit, block) = (row[at], at / BLOCK);
                        let is_largest = logit == sums[block].max;
                        let is_first = is_largest && !row[block * BLOCK..at].contains(&logit);
                        *target = Target { logit, is_first };
                    }
                }
            });
            if i + self.kept >= chunks.len() {
                let next = chunks.get(i + 1).map_or(0, Chunk::values);
                self.last_chunks().push(std::mem::replace(&mut memory, zeros(next)));
            }
        }
        let mut stacked = vec![0.0f32; ROWS * m];
        for (i, blocks) in sums.chunks_exact(blocks_each).enumerate() {
            let of_row = RowSums::new(blocks, v);
            for t in self.of_row(i) {
                let before = &blocks[..self.targets[t] as usize / BLOCK];
                let numbers = of_row.of_target(targets[t], before);
                numbers.into_iter().enumerate().for_each(|(r, number)| stacked[r * m + t] = number);
            }
        }
        let output = Dense::new(stacked, &[ROWS, m]);
        let mut saved = inputs.to_vec();
        saved.push(output.clone());
        (output, saved)
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, needed: &[bool]) -> Vec<Option<Dense>> {
        let (numbers, inputs) = saved.split_last().expect("the output is saved last");
        let (n, d, v, m) = (inputs[0].dims()[0], inputs[0].dims()[1], self.vocabulary(inputs), self.targets.len());
        let (numbers, grad) = (numbers.values(), grad.values());
        let mut grad_hidden = needed[0].then(|| vec![0.0f32; n * d]);
        let is_dense = self.frozen.is_none();
        let mut grad_weight = (is_dense && needed[1]).then(|| zeros(v * d));
        let reduced = self.reduced(inputs);
        let mut low_rank = reduced.as_ref().map(|reduced| {
            let rank = reduced.dims()[1];
            (zeros(n * rank), zeros(v * rank), rank)
        });
        let chunks = Chunk::all(n, v);
        let mut last_chunks = std::mem::take(&mut *self.last_chunks());
        let mut memory = Vec::new();
        for chunk in chunks.iter().rev() {
            let (rows, tokens) = (chunk.rows.clone(), chunk.tokens.clone());
            let is_kept = last_chunks.pop().map(|logits| memory = logits).is_some();
            if memory.len() < chunk.values() {
                memory = zeros(largest(&chunks));
            }
            let logits = &mut memory[..chunk.values()];
            if !is_kept {
                self.logits(inputs, reduced.as_ref(), chunk, logits);
            }
            logits.par_chunks_exact_mut(tokens.len()).zip(rows.clone()).for_each(|(row, i)| {
                let targets = self.of_row(i);
                // No sum begins with 0, so that the sum over one target has its bits.
                let sum = |r: usize| grad[r * m..][targets.clone()].iter().copied().reduce(|a, b| a + b);
                let [a, e, l, mean] = [0, 1, 2, 3].map(|r| sum(r).expect("a row has targets"));
                let (entropy, log_partition) = (numbers[m + targets.start], numbers[2 * m + targets.start]);
                let coefficients = [a, e, l, mean / v as f32];
                let inverse = self.cap.map(|cap| self.temperature / cap);
                let of_target = |t: usize| {
                    let at = chunk.place(self.targets[t])?;
                    Some((at, grad[t] * inverse.map_or(1.0, |inverse| slope(row[at], inverse))))
                };
                let own: Vec<(usize, f32)> = targets.filter_map(of_target).collect();
                match inverse {
                    None => row_gradient(row, coefficients, entropy, log_partition),
                    Some(inverse) => capped_row_gradient(row, coefficients, [entropy, log_partition], inverse),
                }
                own.into_iter().for_each(|(at, more)| row[at] += more);
            });
            let grad_logits = Mat::dense(logits, rows.len(), tokens.len());
            if let Some(grad_hidden) = &mut grad_hidden {
                let target = &mut grad_hidden[rows.start * d..rows.end * d];
                match self.head(inputs, chunk) {
                    Head::Dense(weight) => self.product().add(target, d, grad_logits, weight),
                    Head::Packed(weight) => weight.add_transposed(target, d, 1.0 / self.temperature, grad_logits),
                }
            }
            if let (Some((product, own)), Some(reduced), Some((grad_reduced, grad_b, rank))) =
                (self.low_rank, &reduced, &mut low_rank)
            {
                let product = product.scaled(own / self.temperature);
                let b = rows_of(&inputs[inputs.len() - 1], &tokens);
                product.add(&mut grad_reduced[rows.start * *rank..rows.end * *rank], *rank, grad_logits, b);
                let of_tokens = &mut grad_b[tokens.start * *rank..tokens.end * *rank];
                product.add(of_tokens, *rank, grad_logits.t(), rows_of(reduced, &rows));
            }
            if let Some(grad_weight) = &mut grad_weight {
                let target = &mut grad_weight[tokens.start * d..tokens.end * d];
                // The last chunk of rows is processed first, so it stores; all others add.
                match rows.end == n {
                    true => self.product().store(target, d, grad_logits.t(), hidden(inputs, chunk)),
                    false => self.product().add(target, d, grad_logits.t(), hidden(inputs, chunk)),
                }
            }
        }
        let mut gradients = vec![None];
        if is_dense {
            gradients.push(grad_weight.map(|values| Dense::new(values, &[v, d])));
        }
        if let (Some((product, _)), Some((grad_reduced, grad_b, rank))) = (self.low_rank, low_rank) {
            let a = &inputs[inputs.len() - 2];
            let grad_reduced = Dense::new(grad_reduced, &[n, rank]);
            if let Some(grad_hidden) = &mut grad_hidden {
                product.add(grad_hidden, d, mat(&grad_reduced), mat(a));
            }
            let grad_a = product.fresh(None, mat(&grad_reduced).t(), mat(&inputs[0]));
            gradients.push(Some(Dense::new(grad_a, &[rank, d])));
            gradients.push(Some(Dense::new(grad_b, &[v, rank])));
        }
        gradients[0] = grad_hidden.map(|values| Dense::new(values, &[n, d]));
        gradients
    }
}

#[cfg(test)]
mod tests {
    use super::chunk::CHUNK_ROWS;
    use super::*;
    use crate::fused::testing::{assert_close, check, host, leaf};

    fn stack(numbers: TokenLogprobs) -> Tensor<2> {
        let rows = [numbers.logprobs_m, numbers.entropies_m, numbers.log_partitions_m, numbers.mean_logits_m];
        Tensor::stack(rows.to_vec(), 0)
    }

    #[test]
    fn a_low_rank_part_is_a_part_of_the_weight() {
        for (m, d, v, rank) in [(1, 3, 2, 1), (7, 16, 301, 2), (33, 8, 5000, 4)] {
            let targets: Vec<u32> = (0..m).map(|i| (i * 37 % v) as u32).collect();
            for (temperature, cap) in [(1.0, None), (0.7, None), (0.7, Some(0.8))] {
                let whole = |x: &[Tensor<2>], weight: Tensor<2>| weight + x[2].clone().matmul(x[1].clone()) * 0.5;
                let leaves = [leaf([m, d], 1), leaf([rank, d], 2), leaf([v, rank], 3), leaf([v, d], 4)];
                let parts = |x: &[Tensor<2>]| [x[1].clone(), x[2].clone()];
                check(
                    &format!("an adapted head, cap {cap:?}"),
                    &leaves,
                    |x| {
                        let head = LmHead::dense(x[3].clone(), Precision::F32).adapted(parts(x), 0.5, Precision::F32);
                        stack(token_logprobs(x[0].clone(), &head.capped(cap), &targets, temperature))
                    },
                    |x| {
                        let weight = whole(x, x[3].clone());
                        stack(reference(x[0].clone(), weight, cap, &targets, temperature))
                    },
                    5e-5,
                );
                let weight: Tensor<2> = leaf([v, d], 4).inner();
                let frozen = FrozenWeight::new(weight.clone(), Layout::OutIn, crate::WeightFormat::F32);
                check(
                    &format!("an adapted frozen head, cap {cap:?}"),
                    &leaves[..3],
                    |x| {
                        let head = LmHead::frozen(frozen.clone()).adapted(parts(x), 0.5, Precision::F32);
                        stack(token_logprobs(x[0].clone(), &head.capped(cap), &targets, temperature))
                    },
                    |x| {
                        let weight = whole(x, weight.clone().autodiff());
                        stack(reference(x[0].clone(), weight, cap, &targets, temperature))
                    },
                    5e-5,
                );
            }
        }
    }

    #[test]
    fn agrees_with_the_reference() {
        for (m, d, v) in [(1, 3, 2), (7, 16, 301), (33, 8, 1000)] {
            let targets: Vec<u32> = (0..m).map(|i| (i * 37 % v) as u32).collect();
            for temperature in [1.0, 0.7] {
                // The first cap bends all logits, the second hardly any.
                for cap in [None, Some(0.8), Some(30.0)] {
                    check(
                        &format!("token logprobs, cap {cap:?}"),
                        &[leaf([m, d], 1), leaf([v, d], 2)],
                        |x| {
                            let head = LmHead::dense(x[1].clone(), Precision::F32).capped(cap);
                            stack(token_logprobs(x[0].clone(), &head, &targets, temperature))
                        },
                        |x| stack(reference(x[0].clone(), x[1].clone(), cap, &targets, temperature)),
                        2e-5,
                    );
                }
            }
        }
    }

    #[test]
    fn a_row_with_several_targets_is_several_rows() {
        // The last case has several chunks of rows and of the vocabulary.
        let cases = [(131, BLOCK + 77, None), (131, BLOCK + 77, Some(0.8)), (CHUNK_ROWS + 3, 2 * BLOCK + 5, None)];
        for (n, v, cap) in cases {
            // One, two, three and 40 targets, some of them equal.
            let d = 3;
            let mut begins = vec![0];
            (0..n).for_each(|i| begins.push(begins[i] + [1, 2, 3, if i % 64 == 3 { 40 } else { 1 }][i % 4]));
            let targets: Vec<u32> = (0..begins[n]).map(|t| (t / 3 * 379 % v) as u32).collect();
            let rows: Vec<u32> = (0..n).flat_map(|i| vec![i as u32; begins[i + 1] - begins[i]]).collect();
            let leaves = [leaf([n, d], 1), leaf([v, d], 2), leaf([2, d], 3), leaf([v, 2], 4)];
            let head = |x: &[Tensor<2>]| {
                let head = LmHead::dense(x[1].clone(), Precision::F32);
                head.adapted([x[2].clone(), x[3].clone()], 0.5, Precision::F32).capped(cap)
            };
            let together = |x: &[Tensor<2>]| row_logprobs(x[0].clone(), &head(x), &begins, &targets, 0.7);
            let apart = |x: &[Tensor<2>]| token_logprobs(embedding(x[0].clone(), &rows), &head(x), &targets, 0.7);
            let (found, expected) = (together(&leaves), apart(&leaves));
            assert_eq!(host(found.correct_m.clone().inner()), host(expected.correct_m.clone().inner()));
            assert_eq!(host(stack(found).inner()), host(stack(expected).inner()));
            check("rows", &leaves, |x| stack(together(x)), |x| stack(apart(x)), 1e-4);
        }
    }

    #[test]
    fn a_frozen_head_agrees_with_a_dense_one() {
        let (m, d, v) = (9, 16, 301);
        let targets: Vec<u32> = (0..m).map(|i| (i * 37 % v) as u32).collect();
        let weight = leaf([v, d], 2).detach();
        for precision in [Precision::F32, Precision::Bf16] {
            for cap in [None, Some(2.0)] {
                let frozen = FrozenWeight::new(weight.clone(), Layout::OutIn, precision.into());
                let frozen = LmHead::frozen(frozen).capped(cap);
                let dense = LmHead::dense(weight.clone(), precision).capped(cap);
                check(
                    "frozen head",
                    &[leaf([m, d], 1)],
                    |x| stack(token_logprobs(x[0].clone(), &frozen, &targets, 0.7)),
                    |x| stack(token_logprobs(x[0].clone(), &dense, &targets, 0.7)),
                    1e-6,
                );
            }
        }
    }

    #[test]
    fn extreme_logits_stay_finite_and_ties_go_to_the_first() {
        let numbers = |row: &[f32], id: usize| {
            let blocks: Vec<BlockSums> = row.chunks(BLOCK).map(block_sums).collect();
            let is_first = row[id] == blocks[id / BLOCK].max && !row[id / BLOCK * BLOCK..id].contains(&row[id]);
            RowSums::new(&blocks, row.len()).of_target(Target { logit: row[id], is_first }, &blocks[..id / BLOCK])
        };
        let tie = numbers(&[1e4, 1e4, -1e4], 1);
        assert!((tie[0] + std::f32::consts::LN_2).abs() < 1e-6 && (tie[1] - std::f32::consts::LN_2).abs() < 1e-6);
        assert_eq!(tie[4], 0.0);
        assert_eq!(numbers(&[0.0, 5.0, 1.0], 1)[4], 1.0);
        // The same holds across blocks: the first of equal logits is the most likely token.
        let mut row = vec![0.0f32; 3 * BLOCK + 5];
        row[BLOCK + 7] = 3.0;
        row[2 * BLOCK + 1] = 3.0;
        assert_eq!((numbers(&row, BLOCK + 7)[4], numbers(&row, 2 * BLOCK + 1)[4]), (1.0, 0.0));
    }

    #[test]
    fn chunks_change_nothing() {
        // Several chunks of rows and of the vocabulary, compared with one row at a time.
        let (m, d, v) = (CHUNK_ROWS + 3, 2, 2 * BLOCK + 77);
        let targets: Vec<u32> = (0..m).map(|i| (i * 379 % v) as u32).collect();
        assert_eq!(Chunk::all(m, v).len(), 3);
        let (hidden, weight) = (leaf([m, d], 1), leaf([v, d], 2));
        let head = LmHead::dense(weight.clone(), Precision::F32);
        let all = stack(token_logprobs(hidden.clone(), &head, &targets, 0.7));
        for i in [0, 1, CHUNK_ROWS - 1, CHUNK_ROWS, m - 1] {
            let alone = token_logprobs(hidden.clone().narrow(0, i, 1), &head, &targets[i..=i], 0.7);
            assert_eq!(host(all.clone().narrow(1, i, 1).inner()), host(stack(alone).inner()), "row {i}");
        }
        let whole = stack(reference(hidden.clone(), weight.clone(), None, &targets, 0.7));
        let [found, expected] = [all, whole].map(|numbers| {
            let gradients = numbers.powi_scalar(2).sum().backward();
            [&hidden, &weight].map(|leaf| host(leaf.grad(&gradients).expect("gradient")))
        });
        for (found, expected) in found.iter().zip(&expected) {
            let largest = expected.iter().fold(0.0f32, |a, b| a.max(b.abs()));
            assert_close("gradient", found, expected, 1e-4 * largest);
        }
    }
}
