//! Log-probabilities of the LM head in chunks of the vocabulary; the mathematics is in [`crate::token_logprobs`].
//!
//! The backend computes the logits of a chunk as a product; one cube per row accumulates them. The backward pass
//! computes the same chunks again, turns them into their gradient in place, and multiplies that with the head and the
//! hidden states. Between chunks a row keeps the running maximum, sum and best token of its softmax.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::activation::capped;
use super::finish::Finish;
use super::product::{held, multiply, multiply_and, operand};
use super::{
    Before, GpuOp, InputGradients, UNITS, Words, arg, dims, element, elements, empty, empty_f32, grid, rows, zeros,
};
use crate::product::Precision;
use crate::token_logprobs::{Chunk, ROWS};

/// Numbers that a row keeps between chunks: maximum, Σ eˢ, Σ eˢ·s, Σ z, the first best token, and the target's z, with
/// `s = z − maximum`.
const STATE: usize = 6;

/// Scalars of a head: its temperature and its soft cap, if any.
#[derive(Debug, Clone, Copy)]
struct Scale {
    temperature: f32,
    cap: Option<f32>,
}

/// Returns a logit after the cap, divided by the temperature.
#[cube]
fn counted(x: f32, inverse_temperature: f32, cap: f32, #[comptime] is_capped: bool) -> f32 {
    let mut z = x;
    if comptime!(is_capped) {
        z = cap * capped(x / cap);
    }
    z * inverse_temperature
}

/// Adds a chunk of the vocabulary to the state of each row. Each unit sums its part of the row around its own maximum, and the units'
/// results are joined pair by pair, so all numbers of a row need one reduction.
#[cube(launch)]
fn add_chunk<F: Float>(
    logits: &[F],
    targets: &[u32],
    state: &mut [f32],
    width: u32,
    start: u32,
    inverse_temperature: f32,
    cap: f32,
    #[comptime] is_first: bool,
    #[comptime] is_capped: bool,
    #[define(F)] _dtype: ElemType,
) {
    let units = comptime!(UNITS as usize);
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(5 * UNITS as usize));
    let row = CUBE_POS;
    if row < targets.len() {
        let (n, from, unit) = (width as usize, row * (width as usize), UNIT_POS as usize);
        // Finite, so that the difference of two bounds of units without logits is 0.
        let mut largest = f32::new(-1.0e38f32);
        // The first of equal logits wins: the largest negated index.
        let mut place = f32::new(-1.0e38f32);
        let mut i = unit;
        while i < n {
            let z = counted(f32::cast_from(logits[from + i]), inverse_temperature, cap, is_capped);
            if z > largest {
                largest = z;
                place = -f32::cast_from(i as u32);
            }
            i += units;
        }
        let mut sum = 0.0f32;
        let mut weighted = 0.0f32;
        let mut total = 0.0f32;
        let mut i = unit;
        while i < n {
            let z = counted(f32::cast_from(logits[from + i]), inverse_temperature, cap, is_capped);
            let s = z - largest;
            let e = s.exp();
            sum += e;
            weighted += e * s;
            total += z;
            i += units;
        }
        let mut span = comptime!(UNITS as usize / 2).runtime();
        while span > 0 {
            // The upper half of the units hands its numbers to the lower half.
            sync_cube();
            if unit >= span && unit < 2 * span {
                scratch[unit] = largest;
                scratch[units + unit] = sum;
                scratch[2 * units + unit] = weighted;
                scratch[3 * units + unit] = total;
                scratch[4 * units + unit] = place;
            }
            sync_cube();
            if unit < span {
                let other = unit + span;
                let (their_largest, their_sum) = (scratch[other], scratch[units + other]);
                let (their_weighted, their_place) = (scratch[2 * units + other], scratch[4 * units + other]);
                let both = max(largest, their_largest);
                let (down, their_down) = (largest - both, their_largest - both);
                let (a, b) = (down.exp(), their_down.exp());
                // Σ e^(z − both)(z − both), from sums around each maximum.
                weighted = a * (weighted + down * sum) + b * (their_weighted + their_down * their_sum);
                sum = a * sum + b * their_sum;
                total += scratch[3 * units + other];
                if their_largest > largest {
                    place = their_place;
                } else if their_largest == largest {
                    place = max(place, their_place);
                }
                largest = both;
            }
            span /= 2;
        }
        if unit == 0 {
            let at = row * comptime!(STATE);
            let token = f32::cast_from(start) - place;
            if comptime!(is_first) {
                state[at] = largest;
                state[at + 1] = sum;
                state[at + 2] = weighted;
                state[at + 3] = total;
                state[at + 4] = token;
            } else {
                let before = state[at];
                let both = max(before, largest);
                let (down, other) = (before - both, largest - both);
                let (a, b) = (down.exp(), other.exp());
                state[at] = both;
                state[at + 2] = a * (state[at + 2] + down * state[at + 1]) + b * (weighted + other * sum);
                state[at + 1] = a * state[at + 1] + b * sum;
                state[at + 3] += total;
                if largest > before {
                    state[at + 4] = token;
                }
            }
            let target = targets[row];
            if target >= start && target - start < width {
                let logit = f32::cast_from(logits[from + (target - start) as usize]);
                state[at + 5] = counted(logit, inverse_temperature, cap, is_capped);
            }
        }
    }
}

/// Computes the results for each row's target, one row of numbers below the other, from the state after the last chunk.
#[cube(launch)]
fn finish(state: &[f32], targets: &[u32], numbers: &mut [f32], first_row: u32, all_rows: u32, vocabulary: u32) {
    let row = ABSOLUTE_POS;
    if row < targets.len() {
        let (at, m, column) = (row * comptime!(STATE), all_rows as usize, first_row as usize + row);
        let (largest, sum) = (state[at], state[at + 1]);
        let log_sum = sum.ln();
        let log_partition = largest + log_sum;
        numbers[column] = state[at + 5] - log_partition;
        numbers[m + column] = log_sum - state[at + 2] / sum;
        numbers[2 * m + column] = log_partition;
        numbers[3 * m + column] = state[at + 3] / f32::cast_from(vocabulary);
        numbers[4 * m + column] = select(state[at + 4] == f32::cast_from(targets[row]), 1.0f32, 0.0f32);
    }
}

/// Logits of a row that one unit of [`chunk_gradient`] processes.
const EACH: usize = 8;

/// Computes the gradient of a chunk of logits. Each cube processes a part of one row.
#[cube(launch)]
fn chunk_gradient<F: Float>(
    logits: &[f32],
    targets: &[u32],
    numbers: &[f32],
    grad: &[f32],
    out: &mut [F],
    width: u32,
    start: u32,
    first_row: u32,
    all_rows: u32,
    vocabulary: u32,
    inverse_temperature: f32,
    cap: f32,
    #[comptime] is_capped: bool,
    #[define(F)] _dtype: ElemType,
) {
    let (n, units) = (width as usize, comptime!(UNITS as usize));
    let parts = n.div_ceil(comptime!(UNITS as usize * EACH));
    let (row, part) = (CUBE_POS / parts, CUBE_POS % parts);
    if row < targets.len() {
        let (m, column) = (all_rows as usize, first_row as usize + row);
        let (a, e, l) = (grad[column], grad[m + column], grad[2 * m + column]);
        let of_mean = grad[3 * m + column] / f32::cast_from(vocabulary);
        let (entropy, log_partition) = (numbers[m + column], numbers[2 * m + column]);
        let target = targets[row];
        let mut token = part * comptime!(UNITS as usize * EACH) + UNIT_POS as usize;
        let end = min(n, (part + 1) * comptime!(UNITS as usize * EACH));
        while token < end {
            let z = counted(logits[row * n + token], inverse_temperature, cap, is_capped);
            let logprob = z - log_partition;
            let mut value = logprob.exp() * (l - a - e * (logprob + entropy)) + of_mean;
            if target == start + token as u32 {
                value += a;
            }
            if comptime!(is_capped) {
                let t = z / inverse_temperature / cap;
                value *= 1.0f32 - t * t;
            }
            out[row * n + token] = F::cast_from(value * inverse_temperature);
            token += units;
        }
    }
}

/// Computes the numbers of [`crate::token_logprobs`] from hidden states and a whole head.
#[derive(Debug)]
pub(crate) struct Logprobs {
    targets: Arc<[u32]>,
    scale: Scale,
    /// Type in which the operands of products are held.
    precision: Precision,
}

impl Logprobs {
    pub(crate) fn new(targets: &[u32], temperature: f32, cap: Option<f32>, precision: Precision) -> Self {
        Self { targets: targets.into(), scale: Scale { temperature, cap }, precision }
    }

    fn logits(&self, [hidden, head]: &[CubeTensor; 2], chunk: &Chunk) -> CubeTensor {
        let hidden = rows(hidden, chunk.rows.start, chunk.rows.end);
        let head = rows(head, chunk.tokens.start, chunk.tokens.end);
        multiply(&hidden, &head, [false, true], self.precision)
    }

    fn targets(&self, like: &CubeTensor, rows: &Range<usize>) -> Words {
        Words::shared(like, &self.targets[rows.clone()])
    }
}

impl GpuOp for Logprobs {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let (hidden, head) = (&inputs[0], &inputs[1]);
        let ([m, _], [v, _], client) = (dims(hidden), dims(head), &hidden.client);
        // Every chunk reads them, so they are converted once.
        let operands = [hidden, head].map(|x| operand(x, self.precision));
        let numbers = empty_f32(hidden, &[ROWS, m]);
        let Scale { temperature, cap } = self.scale;
        let mut state = None;
        for chunk in Chunk::all(m, v) {
            let (n, is_first, is_last) = (chunk.rows.len(), chunk.tokens.start == 0, chunk.tokens.end == v);
            let logits = self.logits(&operands, &chunk);
            let targets = self.targets(hidden, &chunk.rows);
            let of_rows = if is_first { None } else { state.take() };
            let of_rows = of_rows.unwrap_or_else(|| empty_f32(hidden, &[n, STATE]));
            add_chunk::launch(
                client,
                grid(n),
                CubeDim::new_1d(UNITS),
                arg(&logits),
                targets.arg(),
                arg(&of_rows),
                chunk.tokens.len() as u32,
                chunk.tokens.start as u32,
                1.0 / temperature,
                cap.unwrap_or(1.0),
                is_first,
                cap.is_some(),
                element(&logits),
            );
            if is_last {
                let (grid, units) = (super::grid_of_units(n), CubeDim::new_1d(UNITS));
                let sizes = [chunk.rows.start, m, v].map(|size| size as u32);
                let [first_row, all_rows, vocabulary] = sizes;
                let (of_rows, numbers) = (arg(&of_rows), arg(&numbers));
                finish::launch(client, grid, units, of_rows, targets.arg(), numbers, first_row, all_rows, vocabulary);
            } else {
                state = Some(of_rows);
            }
        }
        (numbers.clone(), vec![hidden.clone(), head.clone(), numbers])
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool], _: Before) -> InputGradients {
        let [hidden, head, numbers] = saved else { unreachable!("the forward pass keeps three tensors") };
        let ([m, d], [v, _], client) = (dims(hidden), dims(head), &hidden.client);
        let Scale { temperature, cap } = self.scale;
        let operands = [hidden, head].map(|x| operand(x, self.precision));
        // Sums over chunks are in f32, whatever the type of the tensors.
        let grad_hidden = needed[0].then(|| zeros(hidden, &[m, d], DType::F32));
        let grad_head = needed[1].then(|| zeros(hidden, &[v, d], DType::F32));
        for chunk in Chunk::all(m, v) {
            let logits = self.logits(&operands, &chunk);
            let [rows_here, width] = dims(&logits);
            let grad_logits = empty(&logits, &[rows_here, width], held(&logits.device, self.precision));
            chunk_gradient::launch(
                client,
                grid(rows_here * width.div_ceil(UNITS as usize * EACH)),
                CubeDim::new_1d(UNITS),
                arg(&logits),
                self.targets(hidden, &chunk.rows).arg(),
                arg(numbers),
                arg(&grad),
                arg(&grad_logits),
                width as u32,
                chunk.tokens.start as u32,
                chunk.rows.start as u32,
                m as u32,
                v as u32,
                1.0 / temperature,
                cap.unwrap_or(1.0),
                cap.is_some(),
                element(&grad_logits),
            );
            drop(logits);
            if let Some(sum) = &grad_hidden {
                let of_tokens = rows(&operands[1], chunk.tokens.start, chunk.tokens.end);
                let sum = rows(sum, chunk.rows.start, chunk.rows.end);
                multiply_and(&grad_logits, &of_tokens, [false, false], self.precision, Finish::onto(sum));
            }
            if let Some(sum) = &grad_head {
                let of_rows = rows(&operands[0], chunk.rows.start, chunk.rows.end);
                let sum = rows(sum, chunk.tokens.start, chunk.tokens.end);
                multiply_and(&grad_logits, &of_rows, [true, false], self.precision, Finish::onto(sum));
            }
        }
        let given = |sum: Option<CubeTensor>, like: &CubeTensor| {
            sum.map(|sum| match like.dtype {
                DType::F32 => sum,
                dtype => {
                    let cast = empty(like, &dims(&sum), dtype);
                    write(&cast, &sum);
                    cast
                }
            })
        };
        vec![given(grad_hidden, hidden), given(grad_head, head)]
    }
}

/// Writes `x` to `to`, converted to the type of `to`.
fn write(to: &CubeTensor, x: &CubeTensor) {
    if elements(to) > 0 {
        let (grid, units) = (super::grid_of_units(elements(to)), CubeDim::new_1d(UNITS));
        write_as::launch(&to.client, grid, units, arg(x), arg(to), [element(x), element(to)]);
    }
}

#[cube(launch)]
fn write_as<F: Float, G: Float>(x: &[F], y: &mut [G], #[define(F, G)] _dtypes: [ElemType; 2]) {
    if ABSOLUTE_POS < y.len() {
        y[ABSOLUTE_POS] = G::cast_from(x[ABSOLUTE_POS]);
    }
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let f32 = super::offline::F32;
    let mut sources = Vec::new();
    let (device, target) = (|| offline.device(), || offline.target());
    let settings = || offline.settings(UNITS);
    for dtype in offline.dtypes() {
        for (is_first, is_capped) in [(true, false), (false, true)] {
            let [a, b, c] = offline.buffers();
            let (settings, device, target) = (settings(), device(), target());
            let kernel =
                add_chunk::AddChunk::new(settings, device, target, a, b, c, (), (), (), (), is_first, is_capped, dtype);
            sources.push(offline.source("logprobs: add a chunk", dtype, &kernel));
        }
        for is_capped in [false, true] {
            let [a, b, c, d, e] = offline.buffers();
            let (settings, device, target) = (settings(), device(), target());
            let kernel = chunk_gradient::ChunkGradient::new(
                settings,
                device,
                target,
                a,
                b,
                c,
                d,
                e,
                (),
                (),
                (),
                (),
                (),
                (),
                (),
                is_capped,
                dtype,
            );
            sources.push(offline.source("logprobs: gradient of a chunk", dtype, &kernel));
        }
        let [a, b] = offline.buffers();
        let kernel = write_as::WriteAs::new(settings(), device(), target(), a, b, [f32, dtype]);
        sources.push(offline.source("cast", dtype, &kernel));
    }
    let [a, b, c] = offline.buffers();
    let kernel = finish::Finish::new(settings(), device(), target(), a, b, c, (), (), ());
    sources.push(offline.source("logprobs: finish", f32, &kernel));
    sources
}
