//! Properties of every kernel: empty inputs give empty outputs, and every instruction set gives the same result.

use burn::tensor::Tensor;

use crate::fused::Dense;
use crate::fused::testing::{assert_close, check, given, host, leaf, values};
use crate::simd::testing::every_level;
use crate::{
    Activated, AdamWStep, AttentionShape, CrossSegments, FrozenWeight, Gelu, Layout, LmHead, Mask, PositionBias,
    PositionBuckets, Precision, Segments, Table, TokenLogprobs, WeightFormat, adamw, attention, attention_across,
    attention_biased, embedding, gelu, host_values, layer_norm, linear, low_rank, reference, rms_norm, rope, swiglu,
    token_logprobs,
};

mod off;

type Run = Box<dyn Fn(&[Tensor<2>]) -> Tensor<2>>;

/// A kernel over tracked inputs.
struct Kernel {
    name: &'static str,
    inputs: Vec<Tensor<2>>,
    run: Run,
}

impl Kernel {
    fn new(name: &'static str, inputs: Vec<Tensor<2>>, run: impl Fn(&[Tensor<2>]) -> Tensor<2> + 'static) -> Self {
        Self { name, inputs, run: Box::new(run) }
    }

    /// Value and gradients. Every output has a different gradient.
    fn results(&self) -> (Vec<f32>, Vec<Vec<f32>>) {
        let y = (self.run)(&self.inputs);
        let weights = given(y.dims(), &values(y.dims().iter().product(), 99)).detach();
        let gradients = (y.clone() * weights).backward();
        let of = |input: &Tensor<2>| match input.grad(&gradients) {
            Some(gradient) => {
                assert_eq!(gradient.dims(), input.dims(), "{}: shape of a gradient", self.name);
                host(gradient)
            }
            // A row of an empty tensor is not connected to the tensor that it was taken from.
            None if host(y.clone().inner()).is_empty() => Vec::new(),
            None => panic!("{}: an input without gradient", self.name),
        };
        let gradients: Vec<Vec<f32>> = self.inputs.iter().map(of).collect();
        (host(y.inner()), gradients)
    }
}

fn row(x: &Tensor<2>) -> Tensor<1> {
    let [_, d] = x.dims();
    x.clone().reshape([d])
}

fn stack(numbers: TokenLogprobs) -> Tensor<2> {
    let rows = [numbers.logprobs_m, numbers.entropies_m, numbers.log_partitions_m, numbers.mean_logits_m];
    Tensor::stack(rows.to_vec(), 1)
}

/// Kernels over `n` rows whose sums have a fixed order, so they give the same bits everywhere.
fn kernels(n: usize) -> Vec<Kernel> {
    let d = 38;
    let inputs = |count: u64| (1..=count).map(|seed| leaf([n, d], seed)).collect::<Vec<_>>();
    let with_rows = |rows: u64| [inputs(1), (1..=rows).map(|seed| leaf([1, d], 10 + seed)).collect()].concat();
    let table = |seed| values(n * d / 2, seed).into_iter().collect::<Table<f32>>();
    let (cos, sin) = (table(21), table(22));
    let ids: Vec<u32> = (0..n as u32).map(|i| i * 7 % 11).collect();
    vec![
        Kernel::new("gelu tanh", inputs(1), |x| gelu(x[0].clone() * 4.0, Gelu::Tanh)),
        Kernel::new("gelu exact", inputs(1), |x| gelu(x[0].clone() * 4.0, Gelu::Exact)),
        Kernel::new("swiglu", inputs(2), |x| swiglu(x[0].clone(), x[1].clone())),
        Kernel::new("layer norm", with_rows(2), |x| layer_norm(x[0].clone(), row(&x[1]), row(&x[2]), 1e-5)),
        Kernel::new("rms norm", with_rows(1), |x| rms_norm(x[0].clone(), row(&x[1]), 1e-5)),
        Kernel::new("rope", inputs(1), move |x| rope(x[0].clone(), &cos, &sin, d)),
        Kernel::new("embedding", vec![leaf([11, d], 1)], move |x| embedding(x[0].clone(), &ids)),
    ]
}

/// Kernels over `n` rows that multiply matrices. Some instruction sets multiply and add with one rounding.
fn products(n: usize) -> Vec<Kernel> {
    let targets: Vec<u32> = (0..n as u32).map(|i| i * 37 % 301).collect();
    let (of_frozen, capped_targets) = (targets.clone(), targets.clone());
    // Two sequences with an empty one between them.
    let segments = Segments::sequences([n / 2, 0, n - n / 2]);
    let of_capped = segments.clone();
    let windowed = segments.clone().with_global(0..n.min(2));
    let cross = CrossSegments::new(segments.clone(), segments.clone(), vec![2, 1, 2]);
    let with_bias = || vec![leaf([n, 20], 1), leaf([n, 10], 2), leaf([n, 10], 3), leaf([4, 6], 4)];
    let bias = |weight_hr: &Tensor<2>| PositionBias {
        weight_hr: weight_hr.clone(),
        buckets: PositionBuckets::t5_causal(6, 9),
    };
    let (heads, mask) = (4, Mask::Causal);
    let shape =
        AttentionShape { heads, kv_heads: 2, head_dim: 5, scale: 0.5, mask, cap: None, precision: Precision::F32 };
    let mut kernels = vec![
        Kernel::new("attention", vec![leaf([n, 20], 1), leaf([n, 10], 2), leaf([n, 10], 3)], move |x| {
            attention(x[0].clone(), x[1].clone(), x[2].clone(), &segments, shape)
        }),
        Kernel::new("attention, capped", vec![leaf([n, 20], 1), leaf([n, 10], 2), leaf([n, 10], 3)], move |x| {
            let shape = AttentionShape { cap: Some(0.7), ..shape };
            attention(x[0].clone(), x[1].clone(), x[2].clone(), &of_capped, shape)
        }),
        Kernel::new("attention, biased", with_bias(), move |x| {
            let shape = AttentionShape { mask: Mask::BidirectionalWindow(3), ..shape };
            attention_biased(x[0].clone(), x[1].clone(), x[2].clone(), bias(&x[3]), &windowed, shape)
        }),
        Kernel::new("attention across", with_bias(), move |x| {
            let shape = AttentionShape { mask: Mask::Bidirectional, ..shape };
            attention_across(x[0].clone(), x[1].clone(), x[2].clone(), Some(bias(&x[3])), &cross, shape)
        }),
        Kernel::new("token logprobs", vec![leaf([n, 16], 1), leaf([301, 16], 2)], move |x| {
            stack(token_logprobs(x[0].clone(), &LmHead::dense(x[1].clone(), Precision::F32), &targets, 0.7))
        }),
        Kernel::new("token logprobs, capped", vec![leaf([n, 16], 1), leaf([301, 16], 2)], move |x| {
            let head = LmHead::dense(x[1].clone(), Precision::F32).capped(Some(1.5));
            stack(token_logprobs(x[0].clone(), &head, &capped_targets, 0.7))
        }),
        Kernel::new("token logprobs, int8", vec![leaf([n, 16], 1)], move |x| {
            let weight = FrozenWeight::new(leaf([301, 16], 2).inner(), Layout::OutIn, WeightFormat::INT8);
            stack(token_logprobs(x[0].clone(), &LmHead::frozen(weight), &of_frozen, 0.7))
        }),
    ];
    let adapted = |extra: &[Tensor<2>]| [&[leaf([n, 16], 1), leaf([3, 16], 2), leaf([9, 3], 3)], extra].concat();
    kernels.push(Kernel::new("low rank", adapted(&[]), |x| {
        low_rank(x[0].clone(), x[1].clone(), x[2].clone(), 0.7, Precision::F32)
    }));
    kernels.push(Kernel::new("frozen linear, adapted", adapted(&[leaf([1, 9], 4)]), |x| {
        let weight = FrozenWeight::new(leaf([9, 16], 5).inner(), Layout::OutIn, WeightFormat::F32);
        weight.apply_adapted(x[0].clone(), Some(row(&x[3])), [x[1].clone(), x[2].clone()], 0.7, Precision::F32)
    }));
    for (layout, weight) in [(Layout::OutIn, [35, 70]), (Layout::InOut, [70, 35])] {
        for (name, precision) in [("linear", Precision::F32), ("linear, bf16", Precision::Bf16)] {
            let inputs = vec![leaf([n, 70], 1), leaf(weight, 2), leaf([1, 35], 3)];
            kernels.push(Kernel::new(name, inputs, move |x| {
                linear(x[0].clone(), x[1].clone(), Some(row(&x[2])), layout, precision)
            }));
        }
        let inputs = vec![leaf([n, 70], 1), leaf([n, 70], 4), leaf(weight, 2), leaf([1, 35], 3)];
        kernels.push(Kernel::new("linear of swiglu", inputs, move |x| {
            let activated = Activated::Swiglu(x[0].clone(), x[1].clone());
            activated.linear(x[2].clone(), Some(row(&x[3])), layout, Precision::F32, Precision::F32)
        }));
        for (name, format) in [
            ("frozen linear", WeightFormat::F32),
            ("frozen linear, bf16", WeightFormat::BF16),
            ("frozen linear, int8", WeightFormat::INT8),
            ("frozen linear, nf4", WeightFormat::NF4),
        ] {
            kernels.push(Kernel::new(name, vec![leaf([n, 70], 1), leaf([1, 35], 3)], move |x| {
                let frozen = FrozenWeight::new(leaf(weight, 2).inner(), layout, format);
                frozen.apply(x[0].clone(), Some(row(&x[1])))
            }));
        }
    }
    kernels
}

#[test]
fn nothing_gives_nothing_and_gradients_of_zero() {
    for kernel in kernels(0).into_iter().chain(products(0)) {
        let (value, gradients) = kernel.results();
        assert!(value.is_empty(), "{}: {value:?}", kernel.name);
        assert!(gradients.iter().flatten().all(|&g| g == 0.0), "{}: {gradients:?}", kernel.name);
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    // One row, and several blocks of rows with a tail.
    for n in [1, 75] {
        let results =
            every_level(|| kernels(n).iter().map(|kernel| (kernel.name, kernel.results())).collect::<Vec<_>>());
        for (level, found) in &results[1..] {
            for ((name, found), (_, baseline)) in found.iter().zip(&results[0].1) {
                assert!(found == baseline, "{name}, {n} rows: {level:?} differs from the baseline");
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_products() {
    for n in [1, 75] {
        let results =
            every_level(|| products(n).iter().map(|kernel| (kernel.name, kernel.results())).collect::<Vec<_>>());
        for (level, found) in &results[1..] {
            for ((name, (value, gradients)), (_, baseline)) in found.iter().zip(&results[0].1) {
                let name = format!("{name}, {n} rows, {level:?}");
                assert_close(&name, value, &baseline.0, 2e-5);
                for (gradient, expected) in gradients.iter().zip(&baseline.1) {
                    assert_close(&name, gradient, expected, 2e-5);
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_step() {
    let results = every_level(|| {
        let mut state = [1, 2, 3].map(|seed| values(1001, seed));
        state[2].iter_mut().for_each(|v| *v = v.abs());
        let [parameter, first, second] = state.map(|values| Dense::new(values, &[1001]).tensor::<1>());
        let (betas, gradient) = ((0.9, 0.999), Dense::new(values(1001, 4), &[1001]).tensor());
        let step =
            AdamWStep { learning_rate: 1e-2, betas, epsilon: 1e-8, weight_decay: 0.1, step: 3, gradient_scale: 0.5 };
        let moved = adamw(parameter, gradient, first, second, step);
        [moved.0, moved.1, moved.2].map(|tensor| host_values(tensor).to_vec())
    });
    assert!(results.iter().all(|(_, state)| *state == results[0].1));
}

#[test]
fn token_logprobs_of_more_rows_than_fit_a_chunk() {
    let (m, v) = (4100, 3);
    let targets: Vec<u32> = (0..m as u32).map(|i| i % v as u32).collect();
    let fused = |x: &[Tensor<2>]| {
        stack(token_logprobs(x[0].clone(), &LmHead::dense(x[1].clone(), Precision::F32), &targets, 1.0))
    };
    let plain = |x: &[Tensor<2>]| stack(reference::token_logprobs(x[0].clone(), x[1].clone(), None, &targets, 1.0));
    check("token logprobs", &[leaf([m, 2], 1), leaf([v, 2], 2)], fused, plain, 2e-5);
}

#[test]
fn token_logprobs_of_extreme_logits() {
    // Logits 10⁴, −10⁴ and 0 in both rows: the first target is certain, the second is 2 · 10⁴ nats away.
    let inputs = [given([2, 1], &[100.0, 100.0]), given([3, 1], &[100.0, -100.0, 0.0])];
    let targets = [0, 1];
    let fused = |x: &[Tensor<2>]| {
        stack(token_logprobs(x[0].clone(), &LmHead::dense(x[1].clone(), Precision::F32), &targets, 1.0))
    };
    let numbers = host(fused(&inputs).inner());
    let expected = [[0.0, 0.0, 1e4, 0.0], [-2e4, 0.0, 1e4, 0.0]];
    assert_close("logprob, entropy, log-partition, mean", &numbers, expected.as_flattened(), 1e-6);
    let plain = |x: &[Tensor<2>]| stack(reference::token_logprobs(x[0].clone(), x[1].clone(), None, &targets, 1.0));
    check("token logprobs", &inputs, fused, plain, 1e-6);
}
