//! Compares the kernels of `gpu/cuda/attention.cu`, compiled for the CPU by `tests/emulated/`, with the definition.

use std::path::{Path, PathBuf};

use super::reference;
use super::tiles::{Batch, KEY_WORDS, QUERY_WORDS, View};
use super::{AttentionDropout, AttentionExtras, AttentionShape, Mask};
use crate::dropout::Keeping;
use crate::emulated::{self, distance, halves};
use crate::fused::testing::{given, host};
use crate::product::Precision;
use crate::segments::{CrossSegments, Segments};

/// Rows of a tile, the same as in the kernels.
const TILE: usize = 64;

/// Heads, and dropout of their probabilities.
type Heads = (AttentionShape, Option<AttentionDropout>);

/// Compiles the kernels for these heads into a program, with products of warps or of warpgroups. `None` without a C++ compiler.
fn compiled((shape, dropout): &Heads, of_warpgroups: bool, folder: &Path) -> Option<PathBuf> {
    let defines = [
        ("HEAD_DIM", shape.head_dim),
        ("GROUP", shape.group()),
        ("IS_CAPPED", shape.cap.is_some().into()),
        ("DROPS", dropout.is_some().into()),
        ("WARPGROUPS", of_warpgroups.into()),
    ];
    emulated::compiled("attention.cpp", &defines, folder)
}

/// The buffers of a kernel, as bytes.
#[derive(Default)]
struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    fn halves(mut self, values: &[f32]) -> Self {
        // The values are bf16 already: the lower halves of their f32 forms are zero.
        self.0.push(values.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect());
        self
    }

    fn floats(mut self, values: &[f32]) -> Self {
        self.0.push(values.iter().flat_map(|value| value.to_le_bytes()).collect());
        self
    }

    fn words(mut self, words: &[u32]) -> Self {
        self.0.push(words.iter().flat_map(|word| word.to_le_bytes()).collect());
        self
    }

    /// Space for `n` numbers that a kernel writes. Numbers that it does not write stay NaN.
    fn room(self, n: usize) -> Self {
        self.floats(&vec![f32::NAN; n])
    }

    /// Space for `n` numbers in bf16 that a kernel writes.
    fn room_for_halves(self, n: usize) -> Self {
        self.halves(&vec![f32::NAN; n])
    }

    fn halves_at(&self, i: usize) -> Vec<f32> {
        let number = |bytes: &[u8]| u32::from(u16::from_le_bytes(bytes.try_into().expect("two"))) << 16;
        self.0[i].chunks(2).map(|bytes| f32::from_bits(number(bytes))).collect()
    }

    fn values(&self, i: usize) -> Vec<f32> {
        self.0[i].chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four"))).collect()
    }

    /// Runs a kernel over a grid.
    fn run(mut self, program: &Path, kernel: u32, grid: [usize; 2], is_late: bool, (shape, dropout): &Heads) -> Self {
        let View { before, after } = View::from(shape.mask);
        let AttentionDropout { probability, key } = dropout.unwrap_or(AttentionDropout { probability: 0.0, key: 0 });
        let Keeping { threshold, factor } = Keeping::new(probability);
        let of_shape = [shape.heads as u32, shape.scale.to_bits(), shape.cap.unwrap_or(1.0).to_bits(), before, after];
        let of_dropout = [key as u32, (key >> 32) as u32, threshold, factor.to_bits()];
        let scalars = of_shape.into_iter().chain(of_dropout);
        let head = [kernel, grid[0] as u32, grid[1] as u32, u32::from(is_late)];
        let mut input: Vec<u8> = head.into_iter().chain(scalars).flat_map(u32::to_le_bytes).collect();
        input.extend((self.0.len() as u32).to_le_bytes());
        for buffer in &self.0 {
            input.extend((buffer.len() as u32).to_le_bytes());
            input.extend(buffer);
        }
        let output = emulated::answer(program, &input, self.0.iter().map(Vec::len).sum());
        let mut rest = &output[..];
        for buffer in &mut self.0 {
            let (own, others) = rest.split_at(buffer.len());
            buffer.copy_from_slice(own);
            rest = others;
        }
        self
    }
}

/// Runs all kernels over a batch and compares them with the f32 definition on the same numbers.
fn check(name: &str, batch: &Batch, shape: AttentionShape, dropout: Option<AttentionDropout>) {
    let heads = (shape, dropout);
    for of_warpgroups in [false, true] {
        let name = format!("{name}{}", if of_warpgroups { "-warpgroups" } else { "" });
        emulated::in_folder(&name, |folder| {
            if let Some(program) = compiled(&heads, of_warpgroups, folder) {
                for is_late in [false, true] {
                    agrees(&name, batch, &heads, &program, is_late);
                }
            }
        });
    }
}

fn agrees(name: &str, batch: &Batch, heads: &Heads, program: &Path, is_late: bool) {
    let (shape, dropout) = *heads;
    let (n, m) = match batch {
        Batch::Within(segments) => (segments.tokens(), segments.tokens()),
        Batch::Across(cross) => cross.tokens().into(),
    };
    let [width, kv_width, _] = shape.widths();
    let (q, k, v, g) = (halves(n * width, 1), halves(m * kv_width, 2), halves(m * kv_width, 3), halves(n * width, 4));
    let [tq, tk, tv] = [(&q, n, width), (&k, m, kv_width), (&v, m, kv_width)].map(|(x, n, d)| given([n, d], x));
    let (qkv, extras) = ([tq.clone(), tk.clone(), tv.clone()], AttentionExtras { bias: None, dropout });
    let y = match batch {
        Batch::Within(segments) => reference::within_with(qkv, &extras, segments, shape),
        Batch::Across(cross) => reference::across_with(qkv, &extras, cross, shape),
    };
    let gradients = (y.clone() * given([n, width], &g)).sum().backward();
    let expected = [&tq, &tk, &tv].map(|x| host(x.grad(&gradients).expect("a gradient")));

    let tiles = batch.tiles(TILE);
    let [of_queries, of_keys] = [tiles.queries.len() / QUERY_WORDS, tiles.keys.len() / KEY_WORDS];
    let operands = || Buffers::default().halves(&q).halves(&k).halves(&v);
    let done = operands().words(&tiles.queries).room_for_halves(n * width).room(n * shape.heads);
    let done = done.run(program, 0, [of_queries, shape.heads], is_late, heads);
    let (out, log_sums) = (done.halves_at(4), done.values(5));
    let far = |what: &str, found: &[f32], expected: &[f32], most: f64| {
        let off = distance(found, expected);
        assert!(off <= most, "{name}, {what}, copies {}: {off:.1e} off", if is_late { "late" } else { "at once" });
    };
    far("output", &out, &host(y), 3e-3);

    let dim = shape.head_dim;
    let dots: Vec<f32> =
        out.chunks(dim).zip(g.chunks(dim)).map(|(o, g)| o.iter().zip(g).map(|(a, b)| a * b).sum()).collect();
    let given = || operands().halves(&g).floats(&log_sums).floats(&dots);
    let done = given().words(&tiles.queries).room(n * width).run(program, 1, [of_queries, shape.heads], is_late, heads);
    far("gradient of queries", &done.values(7), &expected[0], 5e-3);
    let done = given().words(&tiles.keys).words(&tiles.readers).room(m * kv_width).room(m * kv_width);
    let done = done.run(program, 2, [of_keys, shape.kv_heads], is_late, heads);
    far("gradient of keys", &done.values(8), &expected[1], 5e-3);
    far("gradient of values", &done.values(9), &expected[2], 5e-3);
}

fn shape(heads: usize, kv_heads: usize, head_dim: usize, mask: Mask) -> AttentionShape {
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionShape { heads, kv_heads, head_dim, scale, mask, cap: None, precision: Precision::Bf16 }
}

#[test]
fn sequences_and_shared_prefixes() {
    let batch = Batch::Within(Segments::sequences([70, 1, 100]));
    check("sequences", &batch, shape(2, 1, 64, Mask::Causal), None);
    let mut tree = Segments::default();
    tree.push(90, vec![30, 70, 1]);
    let batch = Batch::Within(tree);
    check("prefixes", &batch, AttentionShape { cap: Some(0.5), ..shape(2, 1, 128, Mask::Causal) }, None);
}

#[test]
fn windows_both_ways_and_other_sequences() {
    let window = Mask::CausalWindow(50.try_into().expect("not zero"));
    check("window", &Batch::Within(Segments::sequences([140])), shape(1, 1, 64, window), None);
    check("both ways", &Batch::Within(Segments::sequences([130])), shape(2, 1, 64, Mask::Bidirectional), None);
    let near = Mask::BidirectionalWindow(20);
    check("near", &Batch::Within(Segments::sequences([130])), shape(1, 1, 128, near), None);
    let cross = CrossSegments::new(Segments::sequences([40, 70]), Segments::sequences([100, 30]), vec![0, 1]);
    check("across", &Batch::Across(cross), shape(1, 1, 64, Mask::Bidirectional), None);
}

#[test]
fn dropped_probabilities() {
    let dropout = Some(AttentionDropout { probability: 0.3, key: 0x1234_5678_9ABC_DEF0 });
    let mut tree = Segments::default();
    tree.push(30, vec![20, 70]);
    check("dropped", &Batch::Within(tree), shape(2, 1, 64, Mask::Causal), dropout);
    let cross = CrossSegments::new(Segments::sequences([40, 70]), Segments::sequences([100, 30]), vec![0, 1]);
    check("dropped-across", &Batch::Across(cross), shape(2, 2, 128, Mask::Bidirectional), dropout);
}
