//! Times every kernel, forward and backward, against its definition in plain tensors.
//!
//! `cargo bench --workspace` runs everything; `cargo bench --workspace -- norm` runs the kernels with `norm` in their names. Fused kernel
//! and reference alternate, so that other load on the machine affects both. The medians are reported.

mod timing;

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::time::Duration;

use burn::tensor::{Device, Tensor, TensorData, activation};
use gradus_kernels::{
    Activated, AdamWStep, AttentionShape, CacheRow, CrossSegments, FrozenWeight, Gelu, LayerCache, Layout, LmHead,
    Mask, PositionBias, PositionBuckets, Precision, Segments, Table, TokenLogprobs, WeightFormat, adamw, attention,
    attention_across, attention_biased, embedding, gelu, layer_norm, linear, reference, rms_norm, rope, swiglu,
    token_logprobs,
};
use timing::{compare, medians, timed};

/// The sizes of a model and of its batch.
#[derive(Clone, Copy)]
struct Size {
    name: &'static str,
    tokens: usize,
    width: usize,
    heads: usize,
    vocabulary: usize,
}

const SIZES: [Size; 2] = [
    Size { name: "gpt2", tokens: 1024, width: 768, heads: 12, vocabulary: 50_257 },
    Size { name: "small", tokens: 64, width: 64, heads: 4, vocabulary: 512 },
];

/// Rows, inputs and outputs of matrix products: GPT-2's layers in training, and in sampling with 8 rows and one.
const PRODUCTS: [[usize; 3]; 7] = [
    [1024, 768, 2304],
    [1024, 768, 3072],
    [1024, 3072, 768],
    [1024, 768, 50_257],
    [64, 768, 3072],
    [8, 768, 3072],
    [1, 768, 3072],
];

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo bench` passes `--bench`. Anything else is a test run, and there is nothing to check here.
    if !arguments.iter().any(|argument| argument == "--bench") || arguments.iter().any(|argument| argument == "--test")
    {
        return Ok(());
    }
    let filters: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter));
    let mut out = io::stdout().lock();
    writeln!(out, "{} threads; medians", rayon::current_num_threads())?;
    writeln!(
        out,
        "{:<22} {:<6} {:<8} {:>10} {:>13} {:>6}",
        "kernel", "size", "pass", "fused ms", "reference ms", "ratio"
    )?;
    for size in SIZES {
        let mut bench = Bench { out: &mut out, is_wanted: &is_wanted, size };
        bench.linears()?;
        bench.attentions()?;
        bench.decoding()?;
        bench.norms()?;
        bench.activations()?;
        bench.positions()?;
        bench.head()?;
        bench.optimizer()?;
    }
    if is_wanted("products") { products(&mut out) } else { Ok(()) }
}

/// A tracked leaf on the CPU.
fn leaf<const R: usize>(shape: [usize; R], seed: u32) -> Tensor<R> {
    Tensor::from_data(data(shape, seed), &Device::flex().autodiff()).require_grad()
}

/// A tensor without gradient.
fn plain<const R: usize>(shape: [usize; R], seed: u32) -> Tensor<R> {
    Tensor::from_data(data(shape, seed), &Device::flex())
}

/// Pseudo-random values in (−2, 2), the same on every machine.
fn data<const R: usize>(shape: [usize; R], seed: u32) -> TensorData {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 22) as f32 - 2.0
    };
    TensorData::new((0..shape.iter().product()).map(|_| next()).collect::<Vec<f32>>(), shape)
}

/// Writes the table rows of one size.
struct Bench<'a> {
    out: &'a mut dyn Write,
    is_wanted: &'a dyn Fn(&str) -> bool,
    size: Size,
}

impl Bench<'_> {
    /// Writes one row of the table if `name` is selected.
    fn row(
        &mut self,
        name: &str,
        pass: &str,
        fused: &mut dyn FnMut() -> Duration,
        reference: &mut dyn FnMut() -> Duration,
    ) -> io::Result<()> {
        let [fused, reference] = compare(fused, reference);
        let (size, ratio) = (self.size.name, reference / fused);
        writeln!(self.out, "{name:<22} {size:<6} {pass:<8} {fused:>10.3} {reference:>13.3} {ratio:>6.1}")?;
        self.out.flush()
    }

    /// Writes the rows of the forward and the backward pass. The gradient of every output is 1.
    fn rows<const R: usize>(
        &mut self,
        name: &str,
        fused: impl Fn() -> Tensor<R>,
        reference: impl Fn() -> Tensor<R>,
    ) -> io::Result<()> {
        if !(self.is_wanted)(name) {
            return Ok(());
        }
        self.row(name, "forward", &mut || timed(&fused), &mut || timed(&reference))?;
        let backward = |output: Tensor<R>| timed(|| output.backward());
        self.row(name, "backward", &mut || backward(fused()), &mut || backward(reference()))
    }

    fn linears(&mut self) -> io::Result<()> {
        let Size { tokens, width, .. } = self.size;
        let (x, weight, bias) = (leaf([tokens, width], 1), leaf([width, 4 * width], 2), leaf([4 * width], 3));
        for (name, precision) in [("linear f32", Precision::F32), ("linear bf16", Precision::Bf16)] {
            let inputs = || (x.clone(), weight.clone(), Some(bias.clone()), Layout::InOut);
            self.rows(
                name,
                || {
                    let (x, weight, bias, layout) = inputs();
                    linear(x, weight, bias, layout, precision)
                },
                || {
                    let (x, weight, bias, layout) = inputs();
                    reference::linear(x, weight, bias, layout)
                },
            )?;
        }
        Ok(())
    }

    fn shape(&self, mask: Mask) -> AttentionShape {
        let head_dim = self.size.width / self.size.heads;
        AttentionShape {
            heads: self.size.heads,
            kv_heads: self.size.heads,
            head_dim,
            scale: (head_dim as f32).powf(-0.5),
            mask,
            cap: None,
            precision: Precision::F32,
        }
    }

    /// Rows of attention: one sequence of all tokens, the same tokens as four sequences, windows, a bias, global tokens, and targets that
    /// read sources.
    fn attentions(&mut self) -> io::Result<()> {
        let Size { tokens, width, heads, .. } = self.size;
        let inputs = [1, 2, 3].map(|seed| leaf([tokens, width], seed));
        let run = |attention: fn(Tensor<2>, Tensor<2>, Tensor<2>, &Segments, AttentionShape) -> Tensor<2>,
                   segments,
                   shape| {
            let [q, k, v] = inputs.clone();
            attention(q, k, v, segments, shape)
        };
        let (one, four) = (Segments::sequences([tokens]), Segments::sequences([tokens / 4; 4]));
        let window = |part| Mask::CausalWindow(NonZeroUsize::new(tokens / part).unwrap_or(NonZeroUsize::MIN));
        for (name, segments, mask) in [
            ("attention causal", &one, Mask::Causal),
            ("attention of four", &four, Mask::Causal),
            ("attention window 1/4", &one, window(4)),
            ("attention window 1/16", &one, window(16)),
            ("attention both ways", &one, Mask::Bidirectional),
        ] {
            let shape = self.shape(mask);
            self.rows(name, || run(attention, segments, shape), || run(reference::attention, segments, shape))?;
        }
        let (buckets, shape) = (PositionBuckets::t5_causal(32, 128), self.shape(Mask::Causal));
        let bias = PositionBias { weight_hr: leaf([heads, buckets.buckets()], 4), buckets };
        let [q, k, v] = &inputs;
        self.rows(
            "attention biased",
            || attention_biased(q.clone(), k.clone(), v.clone(), bias.clone(), &one, shape),
            || reference::attention_biased(q.clone(), k.clone(), v.clone(), Some(&bias), &one, shape),
        )?;
        let shape = self.shape(Mask::BidirectionalWindow(tokens / 16));
        let global = one.with_global((0..4).map(|i| i * tokens / 4));
        self.rows(
            "attention global",
            || attention(q.clone(), k.clone(), v.clone(), &global, shape),
            || reference::attention(q.clone(), k.clone(), v.clone(), &global, shape),
        )?;
        // Eight targets with half as many tokens in total read two sources.
        let (targets, sources) = (Segments::sequences([tokens / 16; 8]), Segments::sequences([tokens / 2; 2]));
        let cross = CrossSegments::new(targets, sources, (0..8).map(|target| target / 4).collect());
        let (q, shape) = (leaf([tokens / 2, width], 5), self.shape(Mask::Bidirectional));
        self.rows(
            "attention across",
            || attention_across(q.clone(), k.clone(), v.clone(), None, &cross, shape),
            || reference::attention_across(q.clone(), k.clone(), v.clone(), None, &cross, shape),
        )
    }

    /// Rows of cached attention. First one new token in each of 8 rows that share a prompt; the reference gets all keys already laid out.
    /// Then several tokens of one row; the reference processes them token by token.
    fn decoding(&mut self) -> io::Result<()> {
        let name = "attention cached";
        if !(self.is_wanted)(name) {
            return Ok(());
        }
        let (Size { tokens, width, heads, .. }, rows) = (self.size, 8);
        let (prompt, shape) = (tokens / 2, self.shape(Mask::Causal));
        let mut cache = LayerCache::new(shape, rows, tokens - prompt);
        cache.add_prompts(plain([prompt, width], 1), plain([prompt, width], 2), &Segments::sequences([prompt]));
        let [q, k, v] = [1, 2, 3].map(|seed| plain([rows, width], seed));
        let mut extend = |length| {
            let rows: Vec<CacheRow> = (0..rows).map(|slot| CacheRow { prompt: 0, slot, length }).collect();
            timed(|| cache.extend(q.clone(), k.clone(), v.clone(), &rows, shape.scale))
        };
        let last = tokens - prompt - 1;
        for length in 0..last {
            extend(length);
        }
        let (keys, values) =
            (plain([rows * heads, shape.head_dim, tokens], 1), plain([rows * heads, tokens, shape.head_dim], 2));
        let reference = || {
            let q = q.clone().reshape([rows * heads, 1, shape.head_dim]);
            activation::softmax(q.matmul(keys.clone()) * shape.scale, 2).matmul(values.clone())
        };
        self.row(name, "forward", &mut || extend(last), &mut || timed(reference))?;
        // A turn of 32 tokens of one row, in one call and token by token.
        let turn = 32.min(last);
        let entries: Vec<CacheRow> =
            (0..turn).map(|i| CacheRow { prompt: 0, slot: 0, length: last - turn + i }).collect();
        let [q, k, v] = [1, 2, 3].map(|seed| plain([turn, width], seed));
        let mut alone = cache.clone();
        let mut at_once = || timed(|| cache.extend(q.clone(), k.clone(), v.clone(), &entries, shape.scale));
        let line = |x: &Tensor<2>, i| x.clone().narrow(0, i, 1);
        let mut one_by_one = || {
            timed(|| {
                for (i, entry) in entries.iter().enumerate() {
                    alone.extend(line(&q, i), line(&k, i), line(&v, i), std::slice::from_ref(entry), shape.scale);
                }
            })
        };
        self.row("attention cached turn", "forward", &mut at_once, &mut one_by_one)
    }

    fn norms(&mut self) -> io::Result<()> {
        let Size { tokens, width, .. } = self.size;
        let (x, gamma, beta) = (leaf([tokens, width], 1), leaf([width], 2), leaf([width], 3));
        let inputs = || (x.clone(), gamma.clone(), beta.clone());
        let with_bias = |norm: fn(Tensor<2>, Tensor<1>, Tensor<1>, f64) -> Tensor<2>| {
            let (x, gamma, beta) = inputs();
            norm(x, gamma, beta, 1e-5)
        };
        self.rows("layer norm", || with_bias(layer_norm), || with_bias(reference::layer_norm))?;
        let without = |norm: fn(Tensor<2>, Tensor<1>, f64) -> Tensor<2>| norm(x.clone(), gamma.clone(), 1e-5);
        self.rows("rms norm", || without(rms_norm), || without(reference::rms_norm))
    }

    fn activations(&mut self) -> io::Result<()> {
        let shape = [self.size.tokens, 4 * self.size.width];
        let (x, up) = (leaf(shape, 1), leaf(shape, 2));
        for (name, form) in [("gelu tanh", Gelu::Tanh), ("gelu exact", Gelu::Exact)] {
            self.rows(name, || gelu(x.clone(), form), || reference::gelu(x.clone(), form))?;
        }
        self.rows("swiglu", || swiglu(x.clone(), up.clone()), || reference::swiglu(x.clone(), up.clone()))?;
        let weight = leaf([4 * self.size.width, self.size.width], 3);
        self.rows(
            "linear of gelu",
            || {
                Activated::Gelu(Gelu::Tanh, x.clone()).linear(
                    weight.clone(),
                    None,
                    Layout::InOut,
                    Precision::F32,
                    Precision::F32,
                )
            },
            || reference::linear(reference::gelu(x.clone(), Gelu::Tanh), weight.clone(), None, Layout::InOut),
        )
    }

    fn positions(&mut self) -> io::Result<()> {
        let Size { tokens, width, heads, vocabulary, .. } = self.size;
        let (x, head_dim) = (leaf([tokens, width], 1), width / heads);
        let angles = || (0..tokens * head_dim / 2).map(|i| (i / (head_dim / 2)) as f32 * 0.9f32.powi((i % 32) as i32));
        let (cos, sin): (Table<f32>, Table<f32>) = (angles().map(f32::cos).collect(), angles().map(f32::sin).collect());
        self.rows(
            "rope",
            || rope(x.clone(), &cos, &sin, head_dim),
            || reference::rope(x.clone(), &cos, &sin, head_dim),
        )?;
        let table = leaf([vocabulary, width], 2);
        let ids: Vec<u32> = (0..tokens).map(|i| (i * 7919 % vocabulary) as u32).collect();
        self.rows("embedding", || embedding(table.clone(), &ids), || reference::embedding(table.clone(), &ids))
    }

    fn head(&mut self) -> io::Result<()> {
        let Size { tokens, width, vocabulary, .. } = self.size;
        let (hidden, weight) = (leaf([tokens, width], 1), leaf([vocabulary, width], 2));
        let targets: Vec<u32> = (0..tokens).map(|i| (i * 7919 % vocabulary) as u32).collect();
        let sum = |numbers: TokenLogprobs| numbers.logprobs_m + numbers.entropies_m;
        for (name, precision) in [("token logprobs f32", Precision::F32), ("token logprobs bf16", Precision::Bf16)] {
            let head = LmHead::dense(weight.clone(), precision);
            self.rows(
                name,
                || sum(token_logprobs(hidden.clone(), &head, &targets, 0.7)),
                || sum(reference::token_logprobs(hidden.clone(), weight.clone(), None, &targets, 0.7)),
            )?;
        }
        Ok(())
    }

    /// One step over the weight of a projection. Moments and parameter are carried from step to step.
    fn optimizer(&mut self) -> io::Result<()> {
        if !(self.is_wanted)("adamw") {
            return Ok(());
        }
        type State = (Tensor<2>, Tensor<2>, Tensor<2>);
        let shape = [self.size.width, 4 * self.size.width];
        let (gradient, zeros) = (plain(shape, 1), Tensor::zeros(shape, &Device::flex()));
        let step = AdamWStep {
            learning_rate: 1e-4,
            betas: (0.9, 0.999),
            epsilon: 1e-8,
            weight_decay: 0.1,
            step: 10,
            gradient_scale: 0.5,
        };
        let run = |update: fn(Tensor<2>, Tensor<2>, Tensor<2>, Tensor<2>, AdamWStep) -> State| {
            let mut state = Some((plain(shape, 2), zeros.clone(), zeros.clone()));
            let gradient = gradient.clone();
            move || {
                let (parameter, first, second) = state.take().expect("the state of the step before");
                timed(|| state = Some(update(parameter, gradient.clone(), first, second, step)))
            }
        };
        self.row("adamw", "forward", &mut run(adamw), &mut run(reference::adamw))
    }
}

/// GFLOP/s of matrix products of single tensors without gradient: weight packed in every product, weight packed once, and Burn's product.
fn products(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nmatrix products, GFLOP/s; fresh: both operands packed in each product, packed: the weight once")?;
    writeln!(
        out,
        "{:<22} {:>10} {:>11} {:>10} {:>11} {:>11} {:>9}",
        "rows × in × out", "f32 fresh", "f32 packed", "bf16 fresh", "bf16 packed", "int8 packed", "burn f32"
    )?;
    for [rows, inputs, outputs] in PRODUCTS {
        let (x, weight) = (plain([rows, inputs], 1), plain([inputs, outputs], 2));
        let [f32, bf16, int8] = [WeightFormat::F32, WeightFormat::BF16, WeightFormat::INT8]
            .map(|format| FrozenWeight::new(weight.clone(), Layout::InOut, format));
        let fresh = |precision| timed(|| linear(x.clone(), weight.clone(), None, Layout::InOut, precision));
        let packed = |weight: &FrozenWeight| timed(|| weight.apply(x.clone(), None));
        let seconds = medians(&mut [
            &mut || fresh(Precision::F32),
            &mut || packed(&f32),
            &mut || fresh(Precision::Bf16),
            &mut || packed(&bf16),
            &mut || packed(&int8),
            &mut || timed(|| x.clone().matmul(weight.clone())),
        ]);
        let operations = 2.0 * (rows * inputs * outputs) as f64;
        write!(out, "{:<22}", format!("{rows} × {inputs} × {outputs}"))?;
        for (seconds, width) in seconds.iter().zip([10, 11, 10, 11, 11, 9]) {
            write!(out, " {:>width$.0}", operations / seconds / 1e9)?;
        }
        writeln!(out)?;
        out.flush()?;
    }
    Ok(())
}
