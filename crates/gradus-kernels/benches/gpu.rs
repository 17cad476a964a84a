//! Compares kernels on a GPU with their references on the same device: numerical error and running time.
//!
//! `cargo bench --workspace --features cuda --bench gpu -- --device cuda` prints one JSON object per line; `tools/gpu/run` reads them.
//! `--small` selects sizes that a software driver can handle.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use burn::tensor::{Device, DeviceType, Tensor, TensorData};
use gradus_kernels::{
    AdamWStep, AttentionShape, Layout, LmHead, Mask, Precision, Segments, Table, adamw, attention, embedding, linear,
    reference, rms_norm, rope, sum_of_squares, swiglu, token_logprobs,
};

/// The sizes of a model and of its batch.
#[derive(Clone, Copy)]
struct Size {
    tokens: usize,
    width: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    inner: usize,
    vocabulary: usize,
}

/// Qwen3-0.6B, one packed row of 2,048 tokens.
const LARGE: Size =
    Size { tokens: 2048, width: 1024, heads: 16, kv_heads: 8, head_dim: 128, inner: 3072, vocabulary: 151_936 };
/// Sizes that a software driver computes in seconds.
const SMALL: Size = Size { tokens: 96, width: 64, heads: 4, kv_heads: 2, head_dim: 32, inner: 192, vocabulary: 1000 };

/// Seconds that all repetitions of one pass may take.
const BUDGET: f64 = 0.6;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|i| arguments.get(i + 1)).cloned();
    // `cargo test` also runs benches, and there is nothing to check here.
    let Some(name) = value("--device") else { return Ok(()) };
    let Some(device) = find(&name) else {
        return Err(io::Error::other(format!("there is no device `{name}`: `cuda`, `gpu` or `gpu:software`")));
    };
    let size = if arguments.iter().any(|argument| argument == "--small") { SMALL } else { LARGE };
    let mut out = io::stdout().lock();
    for case in cases(size, &device) {
        writeln!(out, "{}", case.measured(&device))?;
        out.flush()?;
        device.memory_cleanup();
    }
    Ok(())
}

/// Finds the device with this name.
fn find(name: &str) -> Option<Device> {
    #[cfg(feature = "cuda")]
    if matches!(name, "cuda" | "gpu")
        && let Some(cuda) = Device::enumerate(DeviceType::Cuda).into_vec().into_iter().next()
    {
        return Some(cuda);
    }
    #[cfg(feature = "wgpu")]
    if name.starts_with("gpu") {
        let software = Device::wgpu(burn::tensor::DeviceKind::Cpu);
        let mut found = Device::enumerate(DeviceType::Wgpu).into_vec().into_iter();
        return found.find(|device| (*device == software) == (name == "gpu:software"));
    }
    None
}

type Run = Box<dyn Fn(&[Tensor<2>]) -> Tensor<2>>;

/// A kernel and its reference over the same inputs.
struct Case {
    name: &'static str,
    inputs: Vec<Tensor<2>>,
    kernel: Run,
    reference: Run,
}

/// Values and gradients of one side, and what its passes cost.
struct Side {
    numbers: Vec<Vec<f32>>,
    forward: f64,
    both: f64,
    reserved: u64,
}

impl Case {
    fn new(
        name: &'static str,
        inputs: Vec<Tensor<2>>,
        kernel: impl Fn(&[Tensor<2>]) -> Tensor<2> + 'static,
        reference: impl Fn(&[Tensor<2>]) -> Tensor<2> + 'static,
    ) -> Self {
        Self { name, inputs, kernel: Box::new(kernel), reference: Box::new(reference) }
    }

    fn measured(&self, device: &Device) -> String {
        let [kernel, reference] = [&self.kernel, &self.reference].map(|run| {
            device.memory_cleanup();
            self.side(run, device)
        });
        // Errors are relative to the largest number, because gradients of different inputs have different magnitudes.
        let errors = kernel.numbers.iter().zip(&reference.numbers).map(|(found, expected)| {
            let largest = expected.iter().fold(f32::MIN_POSITIVE, |a, b| a.max(b.abs()));
            found.iter().zip(expected).map(|(a, b)| ((a - b) / largest).abs()).fold(0.0f32, f32::max)
        });
        let errors: Vec<String> = errors.map(|error| format!("{error:e}")).collect();
        format!(
            "{{\"kernel\": \"{}\", \"errors\": [{}], \"forward_ms\": {}, \"both_ms\": {}, \"reserved_bytes\": {}, \
             \"reference_forward_ms\": {}, \"reference_both_ms\": {}, \"reference_reserved_bytes\": {}}}",
            self.name,
            errors.join(", "),
            kernel.forward * 1e3,
            kernel.both * 1e3,
            kernel.reserved,
            reference.forward * 1e3,
            reference.both * 1e3,
            reference.reserved,
        )
    }

    fn side(&self, run: &Run, device: &Device) -> Side {
        let backward = |y: &Tensor<2>| (y.clone() * y.clone()).sum().backward();
        let y = run(&self.inputs);
        let gradients = backward(&y);
        let host = |tensor: Tensor<2>| tensor.into_data().try_to_vec::<f32>().expect("f32");
        let of = self.inputs.iter().filter_map(|input| input.grad(&gradients));
        let numbers = std::iter::once(host(y.inner())).chain(of.map(host)).collect();
        drop(gradients);
        let plain: Vec<Tensor<2>> = self.inputs.iter().map(|input| input.clone().inner()).collect();
        let forward = median(device, || drop(run(&plain)));
        let both = median(device, || drop(backward(&run(&self.inputs))));
        let reserved = device.memory_pool_usage().map_or(0, |usage| usage.bytes_reserved);
        Side { numbers, forward, both, reserved }
    }
}

/// Median seconds of `run`, including the wait until the device has finished.
fn median(device: &Device, mut run: impl FnMut()) -> f64 {
    let mut once = || {
        let start = Instant::now();
        run();
        device.sync().expect("the device answers");
        start.elapsed()
    };
    once();
    let first = once().as_secs_f64().max(1e-6);
    let repetitions = (BUDGET / first).clamp(1.0, 50.0) as usize;
    let mut samples: Vec<Duration> = (0..repetitions).map(|_| once()).collect();
    samples.sort();
    samples[samples.len() / 2].as_secs_f64()
}

/// Pseudo-random values in (−1, 1), the same on every machine.
fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1u64 << 24) as f32) * 2.0 - 1.0
    };
    (0..n).map(next).collect()
}

fn cases(size: Size, device: &Device) -> Vec<Case> {
    let Size { tokens: n, width: d, heads, kv_heads, head_dim, inner, vocabulary: v } = size;
    let leaf = |rows: usize, columns: usize, seed| {
        let data = TensorData::new(values(rows * columns, seed), [rows, columns]);
        Tensor::<2>::from_data(data, &device.clone().autodiff()).require_grad()
    };
    fn row(x: &Tensor<2>) -> Tensor<1> {
        let [_, d] = x.dims();
        x.clone().reshape([d])
    }
    let table = |seed| values(n * head_dim / 2, seed).into_iter().collect::<Table<f32>>();
    let (cos, sin) = (table(21), table(22));
    let (cos_too, sin_too) = (cos.clone(), sin.clone());
    let ids: Vec<u32> = (0..n).map(|i| (i * 379 % v) as u32).collect();
    let (ids_too, targets, targets_too) = (ids.clone(), ids.clone(), ids.clone());
    // Two sequences; the first has a third of the tokens.
    let segments = Segments::sequences([n / 3, n - n / 3]);
    let segments_too = segments.clone();
    let scale = 1.0 / (head_dim as f32).sqrt();
    let shape =
        AttentionShape { heads, kv_heads, head_dim, scale, mask: Mask::Causal, cap: None, precision: Precision::F32 };
    let qkv = || vec![leaf(n, heads * head_dim, 1), leaf(n, kv_heads * head_dim, 2), leaf(n, kv_heads * head_dim, 3)];
    let stacked =
        |numbers: gradus_kernels::TokenLogprobs| Tensor::stack(vec![numbers.logprobs_m, numbers.entropies_m], 0);
    vec![
        Case::new(
            "rms norm",
            vec![leaf(n, d, 1), leaf(1, d, 2)],
            |x| rms_norm(x[0].clone(), row(&x[1]), 1e-6),
            |x| reference::rms_norm(x[0].clone(), row(&x[1]), 1e-6),
        ),
        Case::new(
            "rotary",
            vec![leaf(n, heads * head_dim, 1)],
            move |x| rope(x[0].clone(), &cos, &sin, head_dim),
            move |x| reference::rope(x[0].clone(), &cos_too, &sin_too, head_dim),
        ),
        Case::new(
            "swiglu",
            vec![leaf(n, inner, 1), leaf(n, inner, 2)],
            |x| swiglu(x[0].clone(), x[1].clone()),
            |x| reference::swiglu(x[0].clone(), x[1].clone()),
        ),
        Case::new(
            "product",
            vec![leaf(n, d, 1), leaf(inner, d, 2)],
            |x| linear(x[0].clone(), x[1].clone(), None, Layout::OutIn, Precision::F32),
            |x| reference::linear(x[0].clone(), x[1].clone(), None, Layout::OutIn),
        ),
        Case::new(
            "attention",
            qkv(),
            move |x| attention(x[0].clone(), x[1].clone(), x[2].clone(), &segments, shape),
            move |x| reference::attention(x[0].clone(), x[1].clone(), x[2].clone(), &segments_too, shape),
        ),
        Case::new(
            "embedding",
            vec![leaf(v, d, 1)],
            move |x| embedding(x[0].clone(), &ids),
            move |x| reference::embedding(x[0].clone(), &ids_too),
        ),
        Case::new(
            "token log-probabilities",
            vec![leaf(n, d, 1), leaf(v, d, 2)],
            move |x| {
                let head = LmHead::dense(x[1].clone(), Precision::F32);
                stacked(token_logprobs(x[0].clone(), &head, &targets, 1.0))
            },
            move |x| stacked(reference::token_logprobs(x[0].clone(), x[1].clone(), None, &targets_too, 1.0)),
        ),
        // The optimizer records nothing: its inputs are used untracked, and the backward pass goes through a sum.
        Case::new(
            "adamw",
            vec![leaf(inner, d, 1), leaf(inner, d, 2)],
            |x| stepped(x, adamw),
            |x| stepped(x, reference::adamw),
        ),
        Case::new(
            "squares",
            vec![leaf(inner, d, 1)],
            |x| of_squares(sum_of_squares([&flat(&x[0])]), x),
            |x| of_squares(plain_squares(&x[0]), x),
        ),
    ]
}

/// Returns an untracked copy.
fn plain(x: &Tensor<2>) -> Tensor<2> {
    if x.is_autodiff() { x.clone().inner() } else { x.clone() }
}

fn flat(x: &Tensor<2>) -> Tensor<1> {
    let x = plain(x);
    let n = x.shape().num_elements();
    x.reshape([n])
}

fn plain_squares(x: &Tensor<2>) -> f64 {
    let sum = flat(x).powi_scalar(2).sum().into_data().try_to_vec::<f32>().expect("f32");
    f64::from(sum[0])
}

type Step = fn(Tensor<2>, Tensor<2>, Tensor<2>, Tensor<2>, AdamWStep) -> (Tensor<2>, Tensor<2>, Tensor<2>);

fn stepped(x: &[Tensor<2>], adamw: Step) -> Tensor<2> {
    let betas = (0.9, 0.999);
    let step = AdamWStep { learning_rate: 1e-3, betas, epsilon: 1e-8, weight_decay: 0.1, step: 3, gradient_scale: 1.0 };
    let [parameter, gradient] = [0, 1].map(|i| plain(&x[i]));
    let (parameter, first, second) =
        adamw(parameter, gradient.clone(), gradient.clone(), gradient.clone() * gradient, step);
    tracked_like(parameter + first + second, &x[0])
}

fn of_squares(sum: f64, x: &[Tensor<2>]) -> Tensor<2> {
    let sum = Tensor::<2>::from_data(TensorData::new(vec![sum as f32], [1, 1]), &plain(&x[0]).device());
    tracked_like(sum, &x[0])
}

/// Tracks `y` if `x` is tracked, so that this case returns what the other cases return.
fn tracked_like(y: Tensor<2>, x: &Tensor<2>) -> Tensor<2> {
    if x.is_autodiff() { y.autodiff().require_grad() } else { y }
}
