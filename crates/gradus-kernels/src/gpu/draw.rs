//! Draws of the next token, one cube per row of logits; the settings are those of [`crate::draw`].
//!
//! Every sum and count is over a whole row. Edges of top-k and top-p are found by bisection over the bits of a logit, so nothing is sorted.
//! The loops have a fixed number of turns, because barriers need the same control flow in all units.

use burn::tensor::Tensor;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{UNITS, Words, arg, cube_max, cube_of, cube_sum, dims, empty_f32, grid, grid_of_units, tensor_of};
use crate::draw::options::{Draw, DrawChoice, Drawn};

/// Consecutive ids that a unit reads of every chunk.
const RUN: usize = 8;
/// Consecutive ids of a chunk.
const CHUNK: usize = RUN * UNITS as usize;
/// Largest number of chunks.
const CHUNKS: usize = 512;
/// Largest vocabulary.
pub(crate) const MOST_IDS: usize = CHUNK * CHUNKS;

/// Value of a banned logit. Shaders have no infinities.
const LOWEST: f32 = -3.0e38;

/// Words per row of the options: temperature, temperature of the returned log-probability, top-p, min-p, uniform number, top-k, kind of
/// choice, forced id, and the range of the row's edits.
const OPTIONS: usize = 10;
const GREEDY: u32 = 1;
const FORCED: u32 = 2;

/// Words per edit: row, id, and the bits of the penalty; 0 bans the id.
const EDIT: usize = 3;

/// Numbers per row of the whole distribution: the largest logit, and the sum of the weights.
const WHOLE: usize = 2;
/// Numbers per row of the result: the id, and two log-probabilities.
const RESULT: usize = 3;

#[cube]
fn option(options: &[u32], row: usize, #[comptime] which: usize) -> u32 {
    options[row * comptime!(OPTIONS) + which]
}

/// Maps a number to an unsigned integer with the same order.
#[cube]
fn key_of(x: f32) -> u32 {
    let bits = u32::reinterpret(x);
    select(bits >= 0x8000_0000u32, bits ^ 0xffff_ffffu32, bits ^ 0x8000_0000u32)
}

/// The number that `key_of` maps to `key`.
#[cube]
fn number_of(key: u32) -> f32 {
    f32::reinterpret(select(key >= 0x8000_0000u32, key ^ 0x8000_0000u32, key ^ 0xffff_ffffu32))
}

/// The middle of a range, rounded up, so that a bisection for the largest fitting number ends.
#[cube]
fn upper_middle(low: u32, high: u32) -> u32 {
    low + (high - low) / 2u32 + ((high - low) & 1u32)
}

/// Returns `e^((logit − largest)/temperature)`.
#[cube]
fn weight(logit: f32, largest: f32, temperature: f32) -> f32 {
    ((logit - largest) / temperature).exp()
}

/// The weight, or 0 if the id is dropped: its logit is below `edge`, or equal to it and its id is below `first_tie`. NaN is kept, so that it
/// is visible in the result.
#[cube]
fn kept_weight(logit: f32, id: usize, largest: f32, temperature: f32, edge: f32, first_tie: u32) -> f32 {
    let is_dropped = logit < edge || (logit == edge && (id as u32) < first_tie);
    select(is_dropped, 0.0f32, weight(logit, largest, temperature))
}

#[cube]
fn largest_of(logits: &[f32], from: usize, n: usize, scratch: &mut Shared<[f32]>) -> f32 {
    let mut best = f32::new(LOWEST);
    let mut i = UNIT_POS as usize;
    while i < n {
        best = max(best, logits[from + i]);
        i += comptime!(UNITS as usize);
    }
    cube_max(best, scratch)
}

/// Sums the weights of this unit's ids of a chunk.
#[cube]
fn run_mass(
    logits: &[f32],
    from: usize,
    n: usize,
    chunk: usize,
    largest: f32,
    temperature: f32,
    edge: f32,
    first_tie: u32,
) -> f32 {
    let mut sum = 0.0f32;
    let begin = chunk * comptime!(CHUNK) + (UNIT_POS as usize) * comptime!(RUN);
    for i in 0..comptime!(RUN) {
        if begin + i < n {
            sum += kept_weight(logits[from + begin + i], begin + i, largest, temperature, edge, first_tie);
        }
    }
    sum
}

/// Sums the weights of each chunk into `masses` and returns their sum.
#[cube]
fn chunk_masses(
    logits: &[f32],
    from: usize,
    n: usize,
    largest: f32,
    temperature: f32,
    edge: f32,
    first_tie: u32,
    masses: &mut Shared<[f32]>,
    scratch: &mut Shared<[f32]>,
) -> f32 {
    let mut total = 0.0f32;
    let mut chunk = 0usize;
    while chunk * comptime!(CHUNK) < n {
        let sum = run_mass(logits, from, n, chunk, largest, temperature, edge, first_tie);
        let sum = cube_sum(sum, scratch);
        if UNIT_POS == 0 {
            masses[chunk] = sum;
        }
        total += sum;
        chunk += 1;
    }
    sync_cube();
    total
}

/// Counts the logits whose key is at least `key`.
#[cube]
fn count_from(logits: &[f32], from: usize, n: usize, key: u32, scratch: &mut Shared<[f32]>) -> f32 {
    let mut count = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < n {
        count += select(key_of(logits[from + i]) >= key, 1.0f32, 0.0f32);
        i += comptime!(UNITS as usize);
    }
    cube_sum(count, scratch)
}

/// Counts the ids from `id` on whose key is `key`.
#[cube]
fn ties_from(logits: &[f32], from: usize, n: usize, key: u32, id: u32, scratch: &mut Shared<[f32]>) -> f32 {
    let mut count = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < n {
        count += select(key_of(logits[from + i]) == key && i as u32 >= id, 1.0f32, 0.0f32);
        i += comptime!(UNITS as usize);
    }
    cube_sum(count, scratch)
}

/// Sums the weights of the logits whose key is at least `key`.
#[cube]
fn mass_from(
    logits: &[f32],
    from: usize,
    n: usize,
    key: u32,
    largest: f32,
    temperature: f32,
    scratch: &mut Shared<[f32]>,
) -> f32 {
    let mut sum = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < n {
        let logit = logits[from + i];
        sum += select(key_of(logit) >= key, weight(logit, largest, temperature), 0.0f32);
        i += comptime!(UNITS as usize);
    }
    cube_sum(sum, scratch)
}

/// Writes the largest logit of each row, and the sum of its weights at the temperature of the returned log-probability.
#[cube(launch)]
fn measure(logits: &[f32], options: &[u32], whole: &mut [f32], width: u32) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(UNITS as usize));
    let mut masses = Shared::<[f32]>::new_slice(comptime!(CHUNKS));
    let row = CUBE_POS;
    if row * comptime!(OPTIONS) < options.len() {
        let (n, from) = (width as usize, row * (width as usize));
        let largest = largest_of(logits, from, n, &mut scratch);
        let temperature = f32::reinterpret(option(options, row, 1usize));
        let mass =
            chunk_masses(logits, from, n, largest, temperature, f32::new(LOWEST), 0u32, &mut masses, &mut scratch);
        if UNIT_POS == 0 {
            whole[row * comptime!(WHOLE)] = largest;
            whole[row * comptime!(WHOLE) + 1] = mass;
        }
    }
}

/// Changes logits in place, and keeps their values in `before`.
#[cube(launch)]
fn edit(logits: &mut [f32], edits: &[u32], before: &mut [f32], width: u32, count: u32) {
    let i = ABSOLUTE_POS;
    if i < count as usize {
        let at = edits[i * comptime!(EDIT)] as usize * (width as usize) + edits[i * comptime!(EDIT) + 1] as usize;
        let logit = logits[at];
        before[i] = logit;
        let penalty = f32::reinterpret(edits[i * comptime!(EDIT) + 2]);
        let penalized = select(logit < 0.0f32, logit * penalty, logit / penalty);
        logits[at] = select(penalty == 0.0f32, f32::new(LOWEST), penalized);
    }
}

/// Draws one id per row.
#[cube(launch)]
fn draw_rows(
    logits: &[f32],
    options: &[u32],
    edits: &[u32],
    before: &[f32],
    whole: &[f32],
    out: &mut [f32],
    width: u32,
    #[comptime] has_top_k: bool,
    #[comptime] has_top_p: bool,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(UNITS as usize));
    let mut masses = Shared::<[f32]>::new_slice(comptime!(CHUNKS));
    let row = CUBE_POS;
    if row * comptime!(OPTIONS) < options.len() {
        let (n, from) = (width as usize, row * (width as usize));
        let temperature = f32::reinterpret(option(options, row, 0usize));
        let reported = f32::reinterpret(option(options, row, 1usize));
        let top_p = f32::reinterpret(option(options, row, 2usize));
        let min_p = f32::reinterpret(option(options, row, 3usize));
        let uniform = f32::reinterpret(option(options, row, 4usize));
        let top_k = option(options, row, 5usize);
        let kind = option(options, row, 6usize);

        let largest = largest_of(logits, from, n, &mut scratch);
        // The first of equal logits is the likeliest: the largest negated id.
        let mut place = f32::new(LOWEST);
        let mut i = UNIT_POS as usize;
        while i < n {
            if logits[from + i] == largest {
                place = max(place, -f32::cast_from(i as u32));
            }
            i += comptime!(UNITS as usize);
        }
        let place = cube_max(place, &mut scratch);
        let likeliest = select(place == f32::new(LOWEST), 0.0f32, -place);

        let mut edge = f32::new(LOWEST);
        let mut first_tie = 0u32;
        if comptime!(has_top_k) {
            // The largest key from which on there are `k` logits.
            let k = f32::cast_from(min(select(top_k == 0u32, width, top_k), width));
            let mut low = 0u32;
            let mut high = 0xffff_ffffu32;
            for _ in 0..32 {
                let middle = upper_middle(low, high);
                let is_enough = count_from(logits, from, n, middle, &mut scratch) >= k;
                low = select(is_enough, middle, low);
                high = select(is_enough || middle == low, high, middle - 1u32);
            }
            edge = select(top_k == 0u32, edge, max(edge, number_of(low)));
        }
        if comptime!(has_top_p) {
            // The largest key from which on the weights reach the share.
            let mut low = key_of(edge);
            let mut high = key_of(largest);
            let target = top_p * mass_from(logits, from, n, low, largest, temperature, &mut scratch);
            for _ in 0..32 {
                let middle = upper_middle(low, high);
                let is_enough = mass_from(logits, from, n, middle, largest, temperature, &mut scratch) >= target;
                low = select(is_enough, middle, low);
                high = select(is_enough || middle == low, high, middle - 1u32);
            }
            let above = mass_from(logits, from, n, low + 1u32, largest, temperature, &mut scratch);
            let each = weight(number_of(low), largest, temperature);
            let needed = max(1.0f32, ((target - above) / each).ceil());
            // The largest id from which on there are as many ties as needed.
            let mut first = 0u32;
            let mut last = width;
            for _ in 0..20 {
                let middle = upper_middle(first, last);
                let is_enough = ties_from(logits, from, n, low, middle, &mut scratch) >= needed;
                first = select(is_enough, middle, first);
                last = select(is_enough || middle == first, last, middle - 1u32);
            }
            let is_cut = top_p < 1.0f32;
            edge = select(is_cut, number_of(low), edge);
            first_tie = select(is_cut, first, 0u32);
        }
        if min_p > 0.0f32 {
            let other = largest + min_p.ln() * temperature;
            first_tie = select(other > edge, 0u32, first_tie);
            edge = max(edge, other);
        }

        let total = chunk_masses(logits, from, n, largest, temperature, edge, first_tie, &mut masses, &mut scratch);
        let chunks = (n + comptime!(CHUNK - 1)) / comptime!(CHUNK);
        // Because of rounding, parts can sum to less than the whole. Then it is the last part with a weight.
        let mut left = uniform * total;
        let mut in_chunk = 0.0f32;
        let mut found = chunks;
        let mut is_open = true;
        for chunk in 0..chunks {
            let mass = masses[chunk];
            let is_candidate = is_open && mass > 0.0f32;
            found = select(is_candidate, chunk, found);
            in_chunk = select(is_candidate, left, in_chunk);
            is_open = select(is_candidate, left >= mass, is_open);
            left = select(is_candidate, left - mass, left);
        }
        let of_run = run_mass(logits, from, n, found, largest, temperature, edge, first_tie);
        sync_cube();
        scratch[UNIT_POS as usize] = of_run;
        sync_cube();
        if UNIT_POS == 0 {
            let mut id = likeliest as u32;
            if kind == comptime!(FORCED) {
                id = option(options, row, 7usize);
            } else if kind != comptime!(GREEDY) && found < chunks {
                let units = comptime!(UNITS as usize);
                let mut run = 0usize;
                let mut in_run = 0.0f32;
                is_open = true;
                for unit in 0..units {
                    let mass = scratch[unit];
                    if is_open && mass > 0.0f32 {
                        run = unit;
                        in_run = in_chunk;
                        is_open = in_chunk >= mass;
                        in_chunk -= mass;
                    }
                }
                let begin = found * comptime!(CHUNK) + run * comptime!(RUN);
                is_open = true;
                for i in 0..comptime!(RUN) {
                    if is_open && begin + i < n {
                        let logit = logits[from + begin + i];
                        let mass = kept_weight(logit, begin + i, largest, temperature, edge, first_tie);
                        if mass > 0.0f32 {
                            id = (begin + i) as u32;
                            is_open = in_run >= mass;
                            in_run -= mass;
                        }
                    }
                }
            }
            scratch[0] = f32::cast_from(id);
            scratch[1] = logits[from + id as usize];
        }
        sync_cube();
        let id = scratch[0];
        let logit = scratch[1];
        sync_cube();
        // The logit of the id before the edits.
        let mut i = option(options, row, 8usize) as usize + UNIT_POS as usize;
        while i < option(options, row, 9usize) as usize {
            if edits[i * comptime!(EDIT) + 1] == id as u32 {
                scratch[1] = before[i];
            }
            i += comptime!(UNITS as usize);
        }
        sync_cube();
        if UNIT_POS == 0 {
            let log_mass = whole[row * comptime!(WHOLE) + 1].ln();
            let sampled = (logit - largest) / temperature - total.ln();
            let at = row * comptime!(RESULT);
            out[at] = id;
            out[at + 1] = (scratch[1] - whole[row * comptime!(WHOLE)]) / reported - log_mass;
            out[at + 2] = select(kind == 0u32, sampled, 0.0f32);
        }
    }
}

/// Draws one id per row. The caller has checked the ids.
pub(crate) fn draw(logits_bv: Tensor<2>, rows: &[Draw]) -> Vec<Drawn> {
    if rows.is_empty() {
        return Vec::new();
    }
    let (settings, edits) = tables(rows);
    let logits = cube_of(logits_bv);
    // Edits change the logits in place.
    let is_own = logits.is_contiguous() && logits.handle.can_mut();
    let logits = if is_own || edits.is_empty() { into_contiguous(logits) } else { into_contiguous(logits.copy()) };
    let out = launch(&logits, &settings, &edits, rows);
    let values: Vec<f32> = tensor_of::<2>(out).into_data().try_into_vec().expect("f32 results");
    let drawn = |row: &[f32]| Drawn { id: row[0] as u32, logprob: row[1], sampled_logprob: row[2] };
    values.chunks_exact(RESULT).map(drawn).collect()
}

fn launch(logits: &CubeTensor, settings: &[u32], edits: &[u32], rows: &[Draw]) -> CubeTensor {
    let (client, [b, v]) = (&logits.client, dims(logits));
    let count = edits.len() / EDIT;
    let [of_rows, of_edits] = [settings, edits].map(|words| Words::new(client, words));
    let (whole, before) = (empty_f32(logits, &[b, WHOLE]), empty_f32(logits, &[count.max(1)]));
    let out = empty_f32(logits, &[b, RESULT]);
    let units = CubeDim::new_1d(UNITS);
    measure::launch(client, grid(b), units, arg(logits), of_rows.arg(), arg(&whole), v as u32);
    if count > 0 {
        let (grid, count) = (grid_of_units(count), count as u32);
        edit::launch(client, grid, units, arg(logits), of_edits.arg(), arg(&before), v as u32, count);
    }
    draw_rows::launch(
        client,
        grid(b),
        units,
        arg(logits),
        of_rows.arg(),
        of_edits.arg(),
        arg(&before),
        arg(&whole),
        arg(&out),
        v as u32,
        rows.iter().any(|row| row.top_k > 0 && (row.top_k as usize) < v),
        rows.iter().any(|row| row.top_p < 1.0),
    );
    out
}

/// Returns the settings of all rows, and their edits.
fn tables(rows: &[Draw]) -> (Vec<u32>, Vec<u32>) {
    let (mut settings, mut edits) = (Vec::with_capacity(rows.len() * OPTIONS), Vec::new());
    for (i, row) in rows.iter().enumerate() {
        let begin = edits.len() / EDIT;
        let penalized = row.penalized.iter().filter(|id| row.banned.binary_search(id).is_err());
        penalized.for_each(|&id| edits.extend([i as u32, id, row.penalty.to_bits()]));
        row.banned.iter().for_each(|&id| edits.extend([i as u32, id, 0]));
        // The largest f32 below 1: a uniform number may round up to 1.
        let below_one = 1.0 - f32::EPSILON / 2.0;
        let (uniform, kind, forced) = match row.choice {
            DrawChoice::Sampled(uniform) => ((uniform as f32).min(below_one), 0, 0),
            DrawChoice::Greedy => (0.0, GREEDY, 0),
            DrawChoice::Forced(id) => (0.0, FORCED, id),
        };
        let reported = if row.untempered { 1.0 } else { row.temperature };
        let numbers = [row.temperature, reported, row.top_p, row.min_p, uniform];
        settings.extend(numbers.map(f32::to_bits));
        settings.extend([row.top_k, kind, forced, begin as u32, (edits.len() / EDIT) as u32]);
    }
    (settings, edits)
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let f32 = super::offline::F32;
    let settings = || offline.settings(UNITS);
    let mut sources = Vec::new();
    let [a, b, c] = offline.buffers();
    let kernel = measure::Measure::new(settings(), offline.device(), offline.target(), a, b, c, ());
    sources.push(offline.source("draw: measure", f32, &kernel));
    let [a, b, c] = offline.buffers();
    let kernel = edit::Edit::new(settings(), offline.device(), offline.target(), a, b, c, (), ());
    sources.push(offline.source("draw: edit", f32, &kernel));
    for cuts in [false, true] {
        let ([a, b, c, d, e, f], (device, target)) = (offline.buffers(), (offline.device(), offline.target()));
        let kernel = draw_rows::DrawRows::new(settings(), device, target, a, b, c, d, e, f, (), cuts, cuts);
        sources.push(offline.source("draw", f32, &kernel));
    }
    sources
}
