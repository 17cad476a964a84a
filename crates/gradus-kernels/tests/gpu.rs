//! Compares every kernel with its reference, on Mesa's software Vulkan or, with `GRADUS_TEST_DEVICE=gpu`, on a GPU.

#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use burn::module::{Module, Param};
#[cfg(feature = "wgpu")]
use burn::tensor::DeviceKind;
use burn::tensor::{Device, DeviceType, Tensor, TensorData};
use gradus_kernels::{
    Activated, AdamWStep, AdamWUpdate, AttentionDropout, AttentionExtras, AttentionShape, CacheRow, CrossSegments,
    Draw, DrawChoice, Drawn, FrozenWeight, Gelu, Int8Moments, LayerCache, Layout, LmHead, Mask, Operands, PositionBias,
    PositionBuckets, Precision, Quantized, Segments, Table, TokenLogprobs, WeightFormat, adamw, adamw_each, attention,
    attention_across, attention_across_with, attention_biased, attention_fused, attention_with, draw, draws, dropout,
    embedding, geglu, gelu, layer_norm, linear, linear_onto, linear_written_in, low_rank, recompute, reference,
    rms_norm, rms_norm_and_rope, rope, row_logprobs, softcap, sum_of_squares, swiglu, token_logprobs,
};

use testing::{assert_close, check, host, values};

#[path = "../../gradus/tests/support/skip.rs"]
mod skip;
#[path = "../src/testing.rs"]
mod testing;

/// Device of the tests: the software driver, or the GPU that `GRADUS_TEST_DEVICE` selects. `None` if neither exists.
fn device() -> Option<Device> {
    static DEVICE: LazyLock<Option<Device>> = LazyLock::new(|| {
        let wants_gpu = std::env::var("GRADUS_TEST_DEVICE").is_ok_and(|name| name != "gpu:software");
        #[cfg(feature = "cuda")]
        if let (true, Some(cuda)) = (wants_gpu, Device::enumerate(DeviceType::Cuda).into_vec().into_iter().next()) {
            return Some(cuda);
        }
        #[cfg(feature = "wgpu")]
        let found = {
            let software = Device::wgpu(DeviceKind::Cpu);
            let found = Device::enumerate(DeviceType::Wgpu).into_vec();
            found.into_iter().find(|device| (*device == software) != wants_gpu)
        };
        #[cfg(not(feature = "wgpu"))]
        let found: Option<Device> = None;
        assert!(found.is_some() || !wants_gpu, "GRADUS_TEST_DEVICE asks for a GPU, but there is none");
        found
    });
    if DEVICE.is_none() {
        skip::skipped("vulkan", "a kernel for GPUs: neither a GPU nor Mesa's software Vulkan is here");
    }
    DEVICE.clone()
}

fn leaf<const R: usize>(shape: [usize; R], seed: u64, device: &Device) -> Tensor<R> {
    let data = TensorData::new(values(shape.iter().product(), seed), shape);
    Tensor::from_data(data, &device.clone().autodiff()).require_grad()
}

fn row(x: &Tensor<2>) -> Tensor<1> {
    let [_, d] = x.dims();
    x.clone().reshape([d])
}

#[test]
fn norms_agree_with_their_references() {
    let Some(device) = device() else { return };
    for (n, d) in [(1, 2), (3, 8), (130, 33), (5, 700)] {
        let inputs = [leaf([n, d], 1, &device), leaf([1, d], 2, &device), leaf([1, d], 3, &device)];
        check(
            "layer norm",
            &inputs,
            |x| layer_norm(x[0].clone(), row(&x[1]), row(&x[2]), 1e-5),
            |x| reference::layer_norm(x[0].clone(), row(&x[1]), row(&x[2]), 1e-5),
            5e-5,
        );
        check(
            "rms norm",
            &inputs[..2],
            |x| rms_norm(x[0].clone(), row(&x[1]), 1e-6),
            |x| reference::rms_norm(x[0].clone(), row(&x[1]), 1e-6),
            5e-5,
        );
    }
}

#[test]
fn activations_agree_with_their_references() {
    let Some(device) = device() else { return };
    for shape in [[1, 1], [9, 11], [129, 131]] {
        let x = [leaf(shape, 1, &device), leaf(shape, 2, &device)];
        for form in [Gelu::Exact, Gelu::Tanh] {
            check(
                "gelu",
                &x[..1],
                |x| gelu(x[0].clone() * 4.0, form),
                |x| reference::gelu(x[0].clone() * 4.0, form),
                2e-5,
            );
            check(
                "geglu",
                &x,
                |x| geglu(x[0].clone() * 4.0, x[1].clone(), form),
                |x| reference::gelu(x[0].clone() * 4.0, form) * x[1].clone(),
                2e-5,
            );
        }
        let swiglus = (
            |x: &[Tensor<2>]| swiglu(x[0].clone() * 4.0, x[1].clone()),
            |x: &[Tensor<2>]| reference::swiglu(x[0].clone() * 4.0, x[1].clone()),
        );
        check("swiglu", &x, swiglus.0, swiglus.1, 2e-5);
        let relu = |x: &[Tensor<2>]| Activated::Relu(x[0].clone()).tensor();
        check("relu", &x[..1], relu, |x| burn::tensor::activation::relu(x[0].clone()), 0.0);
        for cap in [0.5, 30.0] {
            let capped = |x: &[Tensor<2>]| (x[0].clone() / cap).tanh() * cap;
            check("softcap", &x[..1], |x| softcap(x[0].clone(), cap), capped, 2e-5);
        }
    }
}

#[test]
fn activations_far_from_zero_stay_finite() {
    let Some(device) = device() else { return };
    let x = Tensor::<2>::from_data(TensorData::new(vec![1e4f32, -1e4, 30.0, -30.0], [1, 4]), &device);
    let of = |y: Tensor<2>| host(y);
    assert_eq!(of(gelu(x.clone(), Gelu::Exact)), [1e4, 0.0, 30.0, 0.0]);
    assert_eq!(of(gelu(x.clone(), Gelu::Tanh)), [1e4, 0.0, 30.0, 0.0]);
    assert_close("silu", &of(swiglu(x.clone(), x.clone().ones_like())), &[1e4, 0.0, 30.0, 0.0], 1e-6);
    assert_eq!(of(softcap(x, 2.0)), [2.0, -2.0, 2.0, -2.0]);
}

#[test]
fn rotation_agrees_with_its_reference() {
    let Some(device) = device() else { return };
    for (n, heads, head_dim, turned) in [(1, 1, 2, 2), (5, 3, 8, 8), (33, 2, 10, 10), (7, 2, 10, 6)] {
        let angles = values(n * turned / 2, 4);
        let cos: Table<f32> = angles.iter().map(|a| (3.0 * a).cos() * 1.1).collect();
        let sin: Table<f32> = angles.iter().map(|a| (3.0 * a).sin() * 1.1).collect();
        check(
            "rope",
            &[leaf([n, heads * head_dim], 1, &device)],
            |x| rope(x[0].clone(), &cos, &sin, head_dim),
            |x| reference::rope(x[0].clone(), &cos, &sin, head_dim),
            2e-5,
        );
    }
}

#[test]
fn rotated_norms_of_heads_agree_with_their_references() {
    let Some(device) = device() else { return };
    // The first three are computed in one pass. In the last two, the numbers of a pair are held by different units.
    for (n, heads, head_dim, turned) in
        [(1, 1, 64, 64), (37, 3, 128, 128), (5, 2, 256, 128), (7, 2, 96, 96), (9, 3, 64, 32)]
    {
        let angles = values(n * turned / 2, 4);
        let cos: Table<f32> = angles.iter().map(|a| (3.0 * a).cos() * 1.1).collect();
        let sin: Table<f32> = angles.iter().map(|a| (3.0 * a).sin() * 1.1).collect();
        check(
            "rotated norm",
            &[leaf([n, heads * head_dim], 1, &device), leaf([1, head_dim], 2, &device)],
            |x| rms_norm_and_rope(x[0].clone(), row(&x[1]), 1e-6, [&cos, &sin], Operands::default()),
            |x| {
                let normed = reference::rms_norm(x[0].clone().reshape([n * heads, head_dim]), row(&x[1]), 1e-6);
                reference::rope(normed.reshape([n, heads * head_dim]), &cos, &sin, head_dim)
            },
            5e-5,
        );
    }
}

#[test]
fn gradients_of_all_readers_are_added() {
    let Some(device) = device() else { return };
    let product = |x: &Tensor<2>, weight: &Tensor<2>| x.clone().matmul(weight.clone().transpose());
    for (n, d) in [(1, 8), (150, 24)] {
        let weight = |seed| leaf([d, d], seed, &device);
        let inputs = [leaf([n, d], 1, &device), weight(2), weight(3), weight(4), leaf([1, d], 5, &device)];
        let frozen = FrozenWeight::new(weight(6).inner(), Layout::OutIn, WeightFormat::BF16);
        let kept = frozen.dense().to_device(&device).autodiff();
        // Kernels read `x` first, in between and last, so each of them meets a gradient that is already there, also from others.
        check(
            "many readers",
            &inputs,
            |inputs| {
                let [x, a, b, c, gamma] = inputs else { unreachable!("five") };
                let x = x.clone() * 1.5;
                let read = |weight: &Tensor<2>| linear(x.clone(), weight.clone(), None, Layout::OutIn, Precision::F32);
                let adapted = low_rank(x.clone(), a.clone(), b.clone(), 0.5, Precision::F32);
                let y = rms_norm(x.clone(), row(gamma), 1e-6) + read(a) + frozen.apply(x.clone(), None) + adapted;
                let y = linear_onto(x.clone(), y, b.clone(), Layout::OutIn, Precision::F32) + x.clone() * 3.0;
                linear_onto(y, read(c), a.clone(), Layout::OutIn, Precision::F32)
            },
            |inputs| {
                let [x, a, b, c, gamma] = inputs else { unreachable!("five") };
                let x = x.clone() * 1.5;
                let adapted = product(&product(&x, a), b) * 0.5;
                let y = reference::rms_norm(x.clone(), row(gamma), 1e-6)
                    + product(&x, a)
                    + x.clone().matmul(kept.clone())
                    + adapted;
                let y = x.clone() + product(&y, b) + x.clone() * 3.0;
                y + product(&product(&x, c), a)
            },
            1e-4,
        );
    }
}

#[test]
fn a_sum_that_others_read_keeps_its_numbers() {
    let Some(device) = device() else { return };
    let plain = |shape, seed| leaf(shape, seed, &device).inner();
    let (x, weight, sum) = (plain([9, 16], 1), plain([16, 16], 2), plain([9, 16], 3));
    let before = host(sum.clone());
    let y = linear_onto(sum.clone(), x.clone(), weight.clone(), Layout::OutIn, Precision::F32);
    assert_eq!(host(sum.clone()), before);
    let expected = host(sum + x.matmul(weight.transpose()));
    assert_close("sum", &host(y), &expected, 1e-5);
}

#[test]
fn embeddings_agree_with_their_reference() {
    let Some(device) = device() else { return };
    for (ids, rows, d) in
        [(vec![3, 0, 3, 4, 1, 3], 6, 7), (vec![0], 1, 1), ((0..400).map(|i| i * 7 % 11).collect(), 12, 300)]
    {
        check(
            "embedding",
            &[leaf([rows, d], 1, &device)],
            |x| embedding(x[0].clone(), &ids),
            |x| reference::embedding(x[0].clone(), &ids),
            1e-5,
        );
    }
}

fn stack(numbers: TokenLogprobs) -> Tensor<2> {
    let rows = [numbers.logprobs_m, numbers.entropies_m, numbers.log_partitions_m, numbers.mean_logits_m];
    Tensor::stack(rows.to_vec(), 0)
}

#[test]
fn logprobs_agree_with_their_reference() {
    let Some(device) = device() else { return };
    for (m, d, v) in [(1, 3, 2), (7, 16, 301), (33, 8, 1000)] {
        let targets: Vec<u32> = (0..m).map(|i| (i * 37 % v) as u32).collect();
        for (temperature, cap) in [(1.0, None), (0.7, None), (0.7, Some(0.8)), (1.0, Some(30.0))] {
            let inputs = [leaf([m, d], 1, &device), leaf([v, d], 2, &device)];
            let head = |x: &[Tensor<2>]| LmHead::dense(x[1].clone(), Precision::F32).capped(cap);
            let of = |x: &[Tensor<2>]| token_logprobs(x[0].clone(), &head(x), &targets, temperature);
            let defined =
                |x: &[Tensor<2>]| reference::token_logprobs(x[0].clone(), x[1].clone(), cap, &targets, temperature);
            let (found, expected) = (of(&inputs).correct_m, defined(&inputs).correct_m);
            assert_eq!(host(found.inner()), host(expected.inner()), "the most likely token of {m} × {v}");
            check("token logprobs", &inputs, |x| stack(of(x)), |x| stack(defined(x)), 5e-5);
        }
    }
}

#[test]
fn rows_with_several_targets_are_several_rows() {
    let Some(device) = device() else { return };
    // One, three and two targets.
    let (begins, rows, targets) = ([0, 1, 4, 6], [0, 1, 1, 1, 2, 2], [3, 300, 0, 3, 17, 17]);
    let inputs = [leaf([3, 16], 1, &device), leaf([301, 16], 2, &device)];
    let head = |x: &[Tensor<2>]| LmHead::dense(x[1].clone(), Precision::F32);
    check(
        "rows with several targets",
        &inputs,
        |x| stack(row_logprobs(x[0].clone(), &head(x), &begins, &targets, 0.7)),
        |x| stack(reference::token_logprobs(embedding(x[0].clone(), &rows), x[1].clone(), None, &targets, 0.7)),
        5e-5,
    );
}

#[test]
fn chunks_of_the_vocabulary_and_of_rows_change_nothing() {
    let Some(device) = device() else { return };
    // The same sizes as on the CPU; they give three chunks.
    let (m, d, v) = (4099, 2, 4173);
    let targets: Vec<u32> = (0..m).map(|i| (i * 379 % v) as u32).collect();
    let inputs = [leaf([m, d], 1, &device), leaf([v, d], 2, &device)];
    let of =
        |x: &[Tensor<2>]| token_logprobs(x[0].clone(), &LmHead::dense(x[1].clone(), Precision::F32), &targets, 0.7);
    let (whole, defined) =
        (of(&inputs), reference::token_logprobs(inputs[0].clone(), inputs[1].clone(), None, &targets, 0.7));
    assert_close("correct", &host(whole.correct_m.clone().inner()), &host(defined.correct_m.clone().inner()), 0.0);
    let [(found, grads), (expected, expected_grads)] = [whole, defined].map(|numbers| {
        let numbers = stack(numbers);
        let gradients = numbers.clone().powi_scalar(2).sum().backward();
        (host(numbers.inner()), inputs.each_ref().map(|leaf| host(leaf.grad(&gradients).expect("gradient"))))
    });
    assert_close("numbers", &found, &expected, 5e-5);
    for (found, expected) in grads.iter().zip(&expected_grads) {
        let largest = expected.iter().fold(0.0f32, |a, b| a.max(b.abs()));
        assert_close("gradient", found, expected, 2e-4 * largest);
    }
}

fn shape(heads: usize, kv_heads: usize, head_dim: usize, mask: Mask, cap: Option<f32>) -> AttentionShape {
    AttentionShape { heads, kv_heads, head_dim, scale: 0.4, mask, cap, precision: Precision::F32 }
}

fn masks() -> [Mask; 4] {
    let window = NonZeroUsize::new(5).expect("not zero");
    [Mask::Causal, Mask::CausalWindow(window), Mask::Bidirectional, Mask::BidirectionalWindow(9)]
}

#[test]
fn attention_agrees_with_its_reference() {
    let Some(device) = device() else { return };
    let mut shared = Segments::sequences([3]);
    shared.push(37, vec![40, 1, 0, 21]);
    shared.push(0, vec![5]);
    let batches = [Segments::sequences([1]), Segments::sequences([2, 0, 70, 33]), shared];
    for segments in &batches {
        let n = segments.tokens();
        for (i, mask) in masks().into_iter().enumerate() {
            // One head, groups, and heads whose width is not a multiple of a tile.
            let (heads, kv_heads, dim) = [(1, 1, 8), (4, 2, 16), (3, 1, 5), (2, 2, 33)][i];
            for cap in [None, Some(0.6)] {
                let shape = shape(heads, kv_heads, dim, mask, cap);
                let leaves = [(heads, 1), (kv_heads, 2), (kv_heads, 3)];
                let inputs = leaves.map(|(heads, seed)| leaf([n, heads * dim], seed, &device));
                check(
                    &format!("attention of {n} tokens, {mask:?}, cap {cap:?}"),
                    &inputs,
                    |x| attention(x[0].clone(), x[1].clone(), x[2].clone(), segments, shape),
                    |x| reference::attention(x[0].clone(), x[1].clone(), x[2].clone(), segments, shape),
                    5e-5,
                );
            }
        }
    }
}

#[test]
fn attention_with_a_bias_agrees_with_its_reference() {
    let Some(device) = device() else { return };
    let mut shared = Segments::sequences([3]);
    shared.push(37, vec![40, 1, 0, 21]);
    let batches = [Segments::sequences([1]), Segments::sequences([2, 0, 150, 33]), shared];
    let (mut same, mut all) = (0, 0);
    for segments in &batches {
        let n = segments.tokens();
        for (i, mask) in masks().into_iter().enumerate() {
            // Fewer buckets than distances, and more.
            let buckets = [
                PositionBuckets::t5_causal(32, 128),
                PositionBuckets::t5_causal(6, 10),
                PositionBuckets::t5_bidirectional(32, 128),
                PositionBuckets::new(40, 19, |distance| (distance + 20) as usize),
            ][i]
                .clone();
            let (heads, kv_heads, dim) = [(2, 2, 64), (4, 2, 16), (3, 3, 8), (2, 1, 33)][i];
            let shape = shape(heads, kv_heads, dim, mask, None);
            let bias = |x: &Tensor<2>| PositionBias { weight_hr: x.clone(), buckets: buckets.clone() };
            let leaves = [(heads, 1), (kv_heads, 2), (kv_heads, 3)];
            let inputs = leaves.map(|(heads, seed)| leaf([n, heads * dim], seed, &device));
            let inputs = [&inputs[..], &[leaf([heads, buckets.buckets()], 4, &device)]].concat();
            let found = |x: &[Tensor<2>]| {
                attention_biased(x[0].clone(), x[1].clone(), x[2].clone(), bias(&x[3]), segments, shape)
            };
            let expected = |x: &[Tensor<2>]| {
                let bias = bias(&x[3]);
                reference::attention_biased(x[0].clone(), x[1].clone(), x[2].clone(), Some(&bias), segments, shape)
            };
            check(&format!("attention with a bias, {n} tokens, {mask:?}"), &inputs, found, expected, 1e-4);
            same += usize::from(host(found(&inputs).inner()) == host(expected(&inputs).inner()));
            all += 1;
        }
    }
    assert!(same * 2 < all, "the kernel rounds differently: {same} of {all} have the bits of the reference");
}

#[test]
fn dropout_has_the_masks_of_the_processor() {
    let Some(device) = device() else { return };
    for (shape, key) in [([1, 1], 7), ([9, 11], 0), ([129, 1031], u64::MAX - 100)] {
        for probability in [0.0, 0.3, 0.999_999_94] {
            check(
                &format!("dropout of {shape:?} with {probability}"),
                &[leaf(shape, 1, &device)],
                |x| dropout(x[0].clone(), probability, key),
                |x| reference::dropout(x[0].clone(), probability, key),
                0.0,
            );
        }
    }
}

#[test]
fn attention_with_dropout_agrees_with_its_reference() {
    let Some(device) = device() else { return };
    let mut shared = Segments::sequences([3]);
    shared.push(37, vec![40, 1, 0, 21]);
    let batches = [Segments::sequences([1]), Segments::sequences([2, 0, 150, 33]), shared];
    let dropout = Some(AttentionDropout { probability: 0.3, key: 0x1234_5678_9ABC_DEF0 });
    let (mut same, mut all) = (0, 0);
    for segments in &batches {
        let n = segments.tokens();
        for (i, mask) in masks().into_iter().enumerate() {
            let (heads, kv_heads, dim) = [(2, 2, 64), (4, 2, 16), (3, 3, 8), (2, 1, 33)][i];
            let shape = shape(heads, kv_heads, dim, mask, None);
            let buckets = PositionBuckets::t5_bidirectional(8, 20);
            let leaves = [(heads, 1), (kv_heads, 2), (kv_heads, 3)];
            let qkv = leaves.map(|(heads, seed)| leaf([n, heads * dim], seed, &device));
            let with_bias = [&qkv[..], &[leaf([heads, buckets.buckets()], 4, &device)]].concat();
            for inputs in [&qkv[..], &with_bias] {
                let extras = |x: &[Tensor<2>]| AttentionExtras {
                    bias: x.get(3).map(|x| PositionBias { weight_hr: x.clone(), buckets: buckets.clone() }),
                    dropout,
                };
                let parts = |x: &[Tensor<2>]| [x[0].clone(), x[1].clone(), x[2].clone()];
                let found = |x: &[Tensor<2>]| {
                    let [q, k, v] = parts(x);
                    attention_with(q, k, v, extras(x), segments, shape)
                };
                let expected = |x: &[Tensor<2>]| reference::attention_with(parts(x), &extras(x), segments, shape);
                check(&format!("attention with dropout, {n} tokens, {mask:?}"), inputs, found, expected, 1e-4);
                same += usize::from(host(found(inputs).inner()) == host(expected(inputs).inner()));
                all += 1;
            }
        }
    }
    assert!(same * 2 < all, "the kernel rounds differently: {same} of {all} have the bits of the reference");
}

#[test]
fn attention_across_with_dropout_agrees_with_its_reference() {
    let Some(device) = device() else { return };
    let mut targets = Segments::sequences([4]);
    targets.push(3, vec![17, 2]);
    targets.push(35, vec![]);
    let cross = CrossSegments::new(targets, Segments::sequences([6, 41, 8]), vec![0, 1, 1]);
    let ([n, m], shape) = (cross.tokens(), shape(4, 2, 8, Mask::Bidirectional, None));
    let extras = AttentionExtras { bias: None, dropout: Some(AttentionDropout { probability: 0.5, key: 3 }) };
    check(
        "attention across with dropout",
        &[leaf([n, 32], 1, &device), leaf([m, 16], 2, &device), leaf([m, 16], 3, &device)],
        |x| attention_across_with(x[0].clone(), x[1].clone(), x[2].clone(), extras.clone(), &cross, shape),
        |x| reference::attention_across_with([x[0].clone(), x[1].clone(), x[2].clone()], &extras, &cross, shape),
        5e-5,
    );
}

#[test]
fn attention_of_one_tensor_is_that_of_its_parts() {
    let Some(device) = device() else { return };
    let (segments, shape) = (Segments::sequences([9, 4]), shape(2, 2, 4, Mask::Causal, None));
    let part = |x: &Tensor<2>, i: usize| x.clone().narrow(1, i * 8, 8);
    check(
        "attention of one tensor",
        &[leaf([13, 24], 1, &device)],
        |x| attention_fused(x[0].clone(), &segments, shape),
        |x| reference::attention(part(&x[0], 0), part(&x[0], 1), part(&x[0], 2), &segments, shape),
        5e-5,
    );
}

#[test]
fn attention_across_agrees_with_its_reference() {
    let Some(device) = device() else { return };
    let mut targets = Segments::sequences([4]);
    targets.push(3, vec![17, 2]);
    targets.push(35, vec![]);
    // Two targets read the second source, and none reads the last.
    let sources = Segments::sequences([6, 41, 8]);
    let cross = CrossSegments::new(targets, sources, vec![0, 1, 1]);
    let [n, m] = cross.tokens();
    for mask in [Mask::Bidirectional, Mask::Causal, Mask::BidirectionalWindow(2)] {
        let shape = shape(4, 2, 8, mask, None);
        check(
            &format!("attention across, {mask:?}"),
            &[leaf([n, 32], 1, &device), leaf([m, 16], 2, &device), leaf([m, 16], 3, &device)],
            |x| attention_across(x[0].clone(), x[1].clone(), x[2].clone(), None, &cross, shape),
            |x| reference::attention_across(x[0].clone(), x[1].clone(), x[2].clone(), None, &cross, shape),
            5e-5,
        );
        let buckets = PositionBuckets::t5_bidirectional(8, 20);
        let bias = |x: &Tensor<2>| PositionBias { weight_hr: x.clone(), buckets: buckets.clone() };
        let qkv = [leaf([n, 32], 1, &device), leaf([m, 16], 2, &device), leaf([m, 16], 3, &device)];
        check(
            &format!("attention across with a bias, {mask:?}"),
            &[&qkv[..], &[leaf([4, 8], 4, &device)]].concat(),
            |x| attention_across(x[0].clone(), x[1].clone(), x[2].clone(), Some(bias(&x[3])), &cross, shape),
            |x| {
                let bias = bias(&x[3]);
                reference::attention_across(x[0].clone(), x[1].clone(), x[2].clone(), Some(&bias), &cross, shape)
            },
            1e-4,
        );
    }
}

/// ‖found − expected‖ / ‖expected‖.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    difference / norm(&mut expected.iter().copied()).max(1e-9)
}

/// Asserts that the relative distance between `found` and `expected` is at most `most`, over all values and over each gradient.
fn check_whole(
    name: &str,
    inputs: &[Tensor<2>],
    found: impl Fn(&[Tensor<2>]) -> Tensor<2>,
    expected: impl Fn(&[Tensor<2>]) -> Tensor<2>,
    most: f64,
) {
    let (a, b) = (found(inputs), expected(inputs));
    let off = distance(&host(a.clone().inner()), &host(b.clone().inner()));
    assert!(off <= most, "{name}: {off:.1e} off");
    let weights = TensorData::new(values(a.shape().num_elements(), 99), a.dims());
    let weights = Tensor::<2>::from_data(weights, &a.device());
    let (of_a, of_b) = ((a * weights.clone()).sum().backward(), (b * weights).sum().backward());
    for (i, input) in inputs.iter().enumerate() {
        let [a, b] = [&of_a, &of_b].map(|gradients| host(input.grad(gradients).expect("a gradient")));
        let off = distance(&a, &b);
        assert!(off <= most, "{name}, gradient {i}: {off:.1e} off");
    }
}

#[test]
fn products_in_f32_are_not_shortened() {
    let Some(device) = device() else { return };
    for [n, width, out] in [[1, 1, 1], [5, 64, 3], [70, 33, 40], [300, 256, 136]] {
        for layout in [Layout::OutIn, Layout::InOut] {
            let shape = if layout == Layout::OutIn { [out, width] } else { [width, out] };
            let inputs = [leaf([n, width], 1, &device), leaf(shape, 2, &device), leaf([1, out], 3, &device)];
            // The definition on the CPU.
            let there = |x: &[Tensor<2>]| {
                let x = x.iter().map(|x| x.clone().to_device(&Device::flex().autodiff())).collect::<Vec<_>>();
                reference::linear(x[0].clone(), x[1].clone(), Some(row(&x[2])), layout)
                    .to_device(&device.clone().autodiff())
            };
            let here = |x: &[Tensor<2>]| linear(x[0].clone(), x[1].clone(), Some(row(&x[2])), layout, Precision::F32);
            check_whole(&format!("{n} × {width} × {out}, {layout:?}"), &inputs, here, there, 2e-6);
        }
    }
}

#[test]
fn products_in_bf16_are_off_by_what_their_operands_are() {
    let Some(device) = device() else { return };
    for [n, width, out] in [[1, 8, 8], [5, 64, 3], [70, 33, 40], [300, 256, 136], [520, 72, 1000]] {
        for layout in [Layout::OutIn, Layout::InOut] {
            let shape = if layout == Layout::OutIn { [out, width] } else { [width, out] };
            let inputs = [leaf([n, width], 1, &device), leaf(shape, 2, &device)];
            let of = |x: &[Tensor<2>], precision| linear(x[0].clone(), x[1].clone(), None, layout, precision);
            let name = format!("{n} × {width} × {out}, {layout:?}");
            check_whole(&name, &inputs, |x| of(x, Precision::Bf16), |x| of(x, Precision::F32), 5e-3);
        }
    }
}

#[test]
fn results_in_bf16_are_off_by_what_they_are_rounded() {
    let Some(device) = device() else { return };
    // Heads of 64, and a gated feed-forward layer whose result is added to them.
    for (n, width, heads, inner) in [(3, 40, 1, 24), (150, 64, 2, 136), (300, 128, 4, 1000)] {
        let d = 64 * heads;
        let angles = values(n * 32, 4);
        let cos: Table<f32> = angles.iter().map(|a| (3.0 * a).cos()).collect();
        let sin: Table<f32> = angles.iter().map(|a| (3.0 * a).sin()).collect();
        let shapes = [[n, width], [d, width], [1, 64], [inner, width], [inner, width], [d, inner]];
        let inputs: Vec<_> = shapes.iter().zip(1..).map(|(&shape, seed)| leaf(shape, seed, &device)).collect();
        let of = |inputs: &[Tensor<2>], p: Precision| {
            let [x, q, gamma, gate, up, down] = inputs else { unreachable!("six") };
            let made = |weight: &Tensor<2>| linear_written_in(p, x.clone(), weight.clone(), None, Layout::OutIn, p);
            let operands = Operands { input: p, ..Operands::default() };
            let heads = rms_norm_and_rope(made(q), row(gamma), 1e-6, [&cos, &sin], operands);
            Activated::Swiglu(made(gate), made(up)).linear_onto(heads, down.clone(), Layout::OutIn, p, p)
        };
        let name = format!("{n} × {width}, {heads} heads");
        check_whole(&name, &inputs, |x| of(x, Precision::Bf16), |x| of(x, Precision::F32), 1.5e-2);
    }
}

#[test]
fn attention_in_bf16_is_off_by_what_its_operands_are() {
    let Some(device) = device() else { return };
    let mut shared = Segments::sequences([3, 0]);
    shared.push(137, vec![40, 1, 0, 150]);
    for segments in [Segments::sequences([1]), Segments::sequences([65, 200]), shared] {
        for (i, mask) in masks().into_iter().enumerate() {
            let (heads, kv_heads, dim) = [(1, 1, 64), (4, 2, 128), (3, 1, 64), (2, 2, 128)][i];
            let coarse = AttentionShape {
                precision: Precision::Bf16,
                ..shape(heads, kv_heads, dim, mask, [None, Some(0.6)][i % 2])
            };
            let n = segments.tokens();
            let inputs =
                [(heads, 1), (kv_heads, 2), (kv_heads, 3)].map(|(heads, seed)| leaf([n, heads * dim], seed, &device));
            let of = |x: &[Tensor<2>], shape| attention(x[0].clone(), x[1].clone(), x[2].clone(), &segments, shape);
            let name = format!("attention of {n} tokens, {mask:?}");
            // A single token attends only to itself: the gradients of its query and key are zero up to noise.
            if n > 1 {
                let exact = AttentionShape { precision: Precision::F32, ..coarse };
                check_whole(&name, &inputs, |x| of(x, coarse), |x| of(x, exact), 8e-3);
            } else {
                let (a, b) = (
                    of(&inputs, coarse),
                    reference::attention(inputs[0].clone(), inputs[1].clone(), inputs[2].clone(), &segments, coarse),
                );
                assert!(distance(&host(a.inner()), &host(b.inner())) <= 8e-3, "{name}");
            }
        }
    }
}

#[test]
fn a_cache_on_the_device_gives_what_that_of_the_processor_gives() {
    let Some(device) = device() else { return };
    let windows = [1, 4, 100].map(|tokens| Mask::CausalWindow(NonZeroUsize::new(tokens).expect("not zero")));
    for (i, mask) in [Mask::Causal].into_iter().chain(windows).enumerate() {
        let (heads, kv_heads, dim) = [(4, 2, 16), (2, 2, 5), (3, 1, 8), (1, 1, 64)][i];
        let shape = shape(heads, kv_heads, dim, mask, [None, Some(0.6)][i % 2]);
        let widths = [heads, kv_heads, kv_heads].map(|heads| heads * dim);
        // Attention outputs of all passes, one after the other.
        let run = |device: &Device| -> Vec<f32> {
            let seeds = Cell::new(10);
            let parts = |n: usize| {
                widths.map(|width| {
                    let seed = seeds.get();
                    seeds.set(seed + 1);
                    Tensor::<2>::from_data(TensorData::new(values(n * width, seed), [n, width]), device)
                })
            };
            let mut outputs = Vec::new();
            let mut cache = LayerCache::new(shape, 4, 3);
            let [_, k, v] = parts(12);
            cache.add_prompts(k, v, &Segments::sequences([7, 0, 5]));
            let row = |prompt, slot, length| CacheRow { prompt, slot, length };
            // Scores without a cap have a bias.
            let weight = Tensor::<2>::from_data(TensorData::new(values(heads * 6, 3), [heads, 6]), device);
            let bias = PositionBias { weight_hr: weight, buckets: PositionBuckets::t5_causal(6, 10) };
            let bias = shape.cap.is_none().then_some(&bias);
            let mut pass = |cache: &mut LayerCache, rows: &[CacheRow]| {
                let [q, k, v] = parts(rows.len());
                outputs.extend(host(cache.extend_biased(q, k, v, bias, rows, 0.3)));
            };
            pass(&mut cache, &[row(0, 0, 0), row(2, 1, 0), row(1, 3, 0)]);
            // Rows outgrow their slots, one by several tokens at once.
            for length in 1..9 {
                pass(&mut cache, &[row(0, 0, length), row(1, 3, length)]);
            }
            let turn: Vec<CacheRow> = (1..20).map(|length| row(2, 1, length)).collect();
            pass(&mut cache, &turn);
            // Two rows continue from one, a row ends, and another prompt takes its place.
            cache.copy_slot(0, 2, 6);
            let kept = cache.clone();
            pass(&mut cache, &[row(0, 0, 9), row(0, 2, 6), row(2, 1, 20)]);
            cache.clear_slot(1);
            cache.drop_prompt(2);
            let [_, k, v] = parts(4);
            cache.add_prompts(k, v, &Segments::sequences([4]));
            pass(&mut cache, &[row(3, 1, 0), row(0, 2, 7)]);
            // A copy continues independently.
            let mut kept = kept;
            pass(&mut kept, &[row(0, 0, 9), row(2, 1, 20)]);
            let [q, ..] = parts(2);
            outputs.extend(host(cache.attend(q, None, &[row(0, 0, 3), row(3, 1, 1)], 0.3)));
            outputs
        };
        assert_close(&format!("{mask:?}"), &run(&device), &run(&Device::flex()), 2e-5);
    }
}

#[test]
fn adamw_agrees_with_its_reference_and_updates_in_place() {
    let Some(device) = device() else { return };
    let tensor = |n: usize, seed| Tensor::<1>::from_data(TensorData::new(values(n, seed), [n]), &device);
    let betas = (0.9, 0.999);
    let step =
        |t| AdamWStep { learning_rate: 1e-2, betas, epsilon: 1e-8, weight_decay: 0.1, step: t, gradient_scale: 0.5 };
    for n in [1, 101, 70_000] {
        let zeros = || Tensor::<1>::zeros([n], &device);
        let (mut fused, mut plain) = ((tensor(n, 1), zeros(), zeros()), (tensor(n, 1), zeros(), zeros()));
        let kept = fused.0.clone();
        for t in 1..=5 {
            let gradient = tensor(n, t + 10);
            fused = adamw(fused.0, gradient.clone(), fused.1, fused.2, step(t));
            plain = reference::adamw(plain.0, gradient, plain.1, plain.2, step(t));
        }
        assert_eq!(host(kept), values(n, 1), "a parameter that somebody else holds stays as it was");
        for (name, a, b) in [("parameter", fused.0, plain.0), ("m", fused.1, plain.1), ("v", fused.2, plain.2)] {
            assert_close(&format!("{name} of {n}"), &host(a), &host(b), 1e-5);
        }
    }
}

/// More tensors than fit into one launch, of various sizes, some decayed and some not. The results equal those of single updates to the
/// bit.
#[test]
fn adamw_of_many_parameters_is_that_of_each() {
    let Some(device) = device() else { return };
    let tensor = |n: usize, seed| Tensor::<1>::from_data(TensorData::new(values(n, seed), [n]), &device);
    let sizes: Vec<usize> = (0..41).map(|i| [1, 256, 0, 1_000, 70_001, 3][i % 6]).collect();
    let step = |i: usize| {
        let (betas, weight_decay) = ((0.9, 0.999), [0.1, 0.0][i % 2]);
        AdamWStep { learning_rate: 1e-2, betas, epsilon: 1e-8, weight_decay, step: 3, gradient_scale: 0.5 }
    };
    let update = |(i, &n): (usize, &usize)| AdamWUpdate {
        parameter: tensor(n, i as u64),
        gradient: tensor(n, i as u64 + 100),
        first_moment: tensor(n, i as u64 + 200),
        second_moment: tensor(n, i as u64 + 300).powi_scalar(2),
        step: step(i),
    };
    let kept: Vec<AdamWUpdate> = sizes.iter().enumerate().map(update).collect();
    let handles = kept.iter().map(|of| AdamWUpdate {
        parameter: of.parameter.clone(),
        gradient: of.gradient.clone(),
        first_moment: of.first_moment.clone(),
        second_moment: of.second_moment.clone(),
        step: of.step,
    });
    let moved = adamw_each(handles.collect());
    assert_eq!(moved.len(), sizes.len());
    for (i, (moved, of)) in moved.into_iter().zip(kept).enumerate() {
        let n = sizes[i];
        assert_eq!(host(of.parameter.clone()), values(n, i as u64), "somebody else holds parameter {i}");
        let moved = moved.map(host);
        let (parameter, first, second) = (of.parameter, of.first_moment, of.second_moment);
        let one = adamw(parameter.clone(), of.gradient.clone(), first.clone(), second.clone(), of.step);
        assert_eq!(moved, [host(one.0), host(one.1), host(one.2)], "parameter {i} of {n}");
        let plain = reference::adamw(parameter, of.gradient, first, second, of.step);
        for (found, expected) in moved.iter().zip([plain.0, plain.1, plain.2]) {
            assert_close(&format!("parameter {i} of {n}"), found, &host(expected), 1e-5);
        }
    }
}

/// The CPU takes the same steps. Both round, so a number on the border between two codes may get either.
#[test]
fn adamw_with_moments_in_int8_agrees_with_that_of_the_processor() {
    let Some(device) = device() else { return };
    let betas = (0.9, 0.999);
    let step =
        |t| AdamWStep { learning_rate: 1e-2, betas, epsilon: 1e-8, weight_decay: 0.1, step: t, gradient_scale: 0.5 };
    for n in [1, 256, 1_000, 70_001] {
        let run = |device: &Device| {
            // Blocks of several magnitudes, one of zeros.
            let tensor = |seed| {
                let sized = |(i, x): (usize, f32)| x * [1.0, 1e-3, 0.0, 1e-8][i / 256 % 4];
                let numbers: Vec<f32> = values(n, seed).into_iter().enumerate().map(sized).collect();
                Tensor::<1>::from_data(TensorData::new(numbers, [n]), device)
            };
            let (mut parameter, mut moments) = (tensor(1), Int8Moments::zeros(n, device));
            let (kept, kept_moments) = (parameter.clone(), moments.clone());
            for t in 1..=5 {
                parameter = moments.step(parameter, tensor(t + 10), step(t));
            }
            assert_eq!(host(kept), host(tensor(1)), "a parameter that somebody else holds stays as it was");
            assert_eq!(kept_moments.to_host(), Int8Moments::zeros(n, device).to_host(), "and so do its moments");
            let again = Int8Moments::new(moments.to_host(), device).expect("they fit");
            assert_eq!((again.numbers(), again.to_host()), (n, moments.to_host()));
            (host(parameter), moments.to_host())
        };
        let ((found, found_moments), (expected, expected_moments)) = (run(&device), run(&Device::flex()));
        for (found, expected) in found_moments.iter().zip(&expected_moments) {
            let differing = found.codes.iter().zip(&expected.codes).filter(|(a, b)| a != b).count();
            assert!(differing * 100 <= n, "{differing} codes of {n} differ");
            assert!(found.codes.iter().zip(&expected.codes).all(|(a, b)| a.abs_diff(*b) <= 1), "by one at most");
            assert_close(&format!("sizes of {n}"), &found.sizes, &expected.sizes, 1e-6);
        }
        // A code that differs by one changes the parameter by a part of the learning rate.
        assert_close(&format!("parameter of {n}"), &found, &expected, 1e-3);
    }
}

#[test]
fn squares_are_those_of_the_host() {
    let Some(device) = device() else { return };
    let tensor = |n: usize, seed| Tensor::<1>::from_data(TensorData::new(values(n, seed), [n]), &device);
    // More tensors than fit into one launch, some of them empty.
    let sizes = || (0..75).map(|i| ([1, 4096, 0, 70_001, 33][i % 5], i as u64));
    let tensors: Vec<_> = sizes().map(|(n, seed)| tensor(n, seed)).collect();
    let exact = sizes().flat_map(|(n, seed)| values(n, seed)).map(|x| f64::from(x).powi(2)).sum::<f64>();
    let found = sum_of_squares(&tensors);
    assert!((found - exact).abs() <= 1e-6 * exact, "{found} instead of {exact}");
}

#[test]
fn the_same_input_gives_the_same_bits() {
    let Some(device) = device() else { return };
    let mut segments = Segments::sequences([30]);
    segments.push(20, vec![33, 40]);
    let (n, shape) = (segments.tokens(), shape(4, 2, 8, Mask::Causal, None));
    let ids: Vec<u32> = (0..n as u32).map(|i| i * 7 % 11).collect();
    let run = || {
        let (table, gamma) = (leaf([11, 32], 1, &device), leaf([1, 32], 2, &device));
        let x = rms_norm(embedding(table.clone(), &ids), row(&gamma), 1e-6);
        let kv = x.clone().narrow(1, 0, 16);
        let y = attention(x.clone(), kv.clone(), kv, &segments, shape);
        let head = LmHead::dense(table.clone(), Precision::F32);
        let numbers = token_logprobs(y, &head, &ids, 1.0);
        let gradients = numbers.logprobs_m.sum().backward();
        [&table, &gamma].map(|leaf| host(leaf.grad(&gradients).expect("gradient")))
    };
    let first = run();
    assert!((0..3).all(|_| run() == first));
}

#[test]
fn what_a_device_cannot_do_its_references_do() {
    let Some(device) = device() else { return };
    // The head is too wide for shared memory, so the reference runs.
    let (segments, shape) = (Segments::sequences([5]), shape(1, 1, 4096, Mask::Causal, None));
    let x = leaf([5, 4096], 1, &device);
    let y = attention(x.clone(), x.clone(), x.clone(), &segments, shape);
    let expected = reference::attention(x.clone(), x.clone(), x, &segments, shape);
    assert_eq!(host(y.inner()), host(expected.inner()));
}

#[test]
fn weights_in_few_bits_stay_so_on_the_device_and_multiply_as_what_they_stand_for() {
    let Some(device) = device() else { return };
    for (n, width, out) in [(1, 3, 2), (7, 70, 33), (9, 128, 64)] {
        let weight = TensorData::new(values(out * width, 3), [out, width]);
        for format in [WeightFormat::BF16, WeightFormat::INT8, WeightFormat::NF4] {
            let weight = Tensor::<2>::from_data(weight.clone(), &Device::flex());
            let frozen = FrozenWeight::new(weight, Layout::OutIn, format);
            let stands_for = match frozen.quantized() {
                None => host(frozen.dense().transpose()),
                Some(Quantized::Nf4(weight)) => weight.values(),
                Some(Quantized::Int8(weight)) => {
                    let scaled = |(i, &code): (usize, &i8)| f32::from(code) * (weight.absmax()[i / width] / 127.0);
                    weight.codes().iter().enumerate().map(scaled).collect()
                }
            };
            let dense = Tensor::<2>::from_data(TensorData::new(stands_for, [out, width]), &device.clone().autodiff());
            // The other operand is rounded, too, if the device multiplies in bf16.
            let precision = if format == WeightFormat::NF4 { Precision::F32 } else { Precision::Bf16 };
            let base = |x: &Tensor<2>, bias| linear(x.clone(), dense.clone(), bias, Layout::OutIn, precision);
            let inputs = [leaf([n, width], 1, &device), leaf([1, out], 2, &device)];
            check(
                format.name(),
                &inputs,
                |x| frozen.apply(x[0].clone(), Some(row(&x[1]))),
                |x| base(&x[0], Some(row(&x[1]))),
                1e-5,
            );
            let parts = [leaf([3, width], 4, &device), leaf([out, 3], 5, &device)];
            let inputs = [&inputs[..1], &parts[..]].concat();
            check(
                format.name(),
                &inputs,
                |x| frozen.apply_adapted(x[0].clone(), None, [x[1].clone(), x[2].clone()], 0.5, Precision::F32),
                |x| {
                    let added = x[0].clone().matmul(x[1].clone().transpose()).matmul(x[2].clone().transpose()) * 0.5;
                    base(&x[0], None) + added
                },
                1e-5,
            );
        }
    }
}

#[test]
fn a_weight_that_its_device_converted_is_the_one_that_the_processor_packs() {
    let Some(device) = device() else { return };
    for layout in [Layout::OutIn, Layout::InOut] {
        let of = |device: &Device| {
            let weight = Tensor::<2>::from_data(TensorData::new(values(33 * 70, 3), [33, 70]), device);
            FrozenWeight::new(weight, layout, WeightFormat::BF16)
        };
        let (there, here) = (of(&device), of(&Device::flex()));
        assert_eq!((there.dims(), there.format(), there.quantized().is_none()), (here.dims(), here.format(), true));
        assert_eq!(host(there.dense()), host(here.dense()), "{layout:?}");
        let x = leaf([5, there.dims()[0]], 1, &device);
        let [there, here] = [there, here].map(|weight| host(weight.apply(x.clone(), None).inner()));
        assert_eq!(there, here, "{layout:?}");
    }
}

/// A row's distribution from a sort of its ids, in f64: the definition of [`draw`].
struct Sorted {
    /// The logits after penalty and bans, divided by the temperature; the kept ids with their weights, in ascending order.
    kept: Vec<(usize, f64)>,
    total: f64,
    logprobs: Vec<f64>,
    sampled_logprobs: Vec<f64>,
}

impl Sorted {
    fn new(logits_v: &[f32], row: &Draw) -> Self {
        let temperature = f64::from(row.temperature);
        let log_softmax = |logits: &[f64]| -> Vec<f64> {
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let partition = largest + logits.iter().map(|z| (z - largest).exp()).sum::<f64>().ln();
            logits.iter().map(|z| z - partition).collect()
        };
        let reported = if row.untempered { 1.0 } else { temperature };
        let raw: Vec<f64> = logits_v.iter().map(|&z| f64::from(z) / reported).collect();
        let mut edited: Vec<f64> = logits_v.iter().map(|&z| f64::from(z)).collect();
        for &id in &row.penalized {
            let (z, penalty) = (edited[id as usize], f64::from(row.penalty));
            edited[id as usize] = if z < 0.0 { z * penalty } else { z / penalty };
        }
        row.banned.iter().for_each(|&id| edited[id as usize] = f64::NEG_INFINITY);
        edited.iter_mut().for_each(|z| *z /= temperature);
        let mut order: Vec<usize> = (0..edited.len()).filter(|&id| edited[id] > f64::NEG_INFINITY).collect();
        // Higher ids first among ties.
        order.sort_by(|&a, &b| edited[b].total_cmp(&edited[a]).then(b.cmp(&a)));
        let largest = edited[order[0]];
        let weight = |id: usize| (edited[id] - largest).exp();
        if row.top_k > 0 {
            let last = edited[order[(row.top_k as usize).min(order.len()) - 1]];
            order.retain(|&id| edited[id] >= last);
        }
        if row.top_p < 1.0 {
            let target = f64::from(row.top_p) * order.iter().map(|&id| weight(id)).sum::<f64>();
            let mut before = 0.0;
            let kept = order.iter().take_while(|&&id| {
                let is_needed = before < target;
                before += weight(id);
                is_needed
            });
            let kept = kept.count();
            order.truncate(kept);
        }
        order.retain(|&id| weight(id) >= f64::from(row.min_p));
        order.sort_unstable();
        let kept: Vec<(usize, f64)> = order.into_iter().map(|id| (id, weight(id))).collect();
        let total = kept.iter().map(|(_, weight)| weight).sum::<f64>();
        let sampled_logprobs = edited.iter().map(|z| z - largest - total.ln()).collect();
        Self { kept, total, logprobs: log_softmax(&raw), sampled_logprobs }
    }

    /// Checks a drawn id and its log-probabilities.
    fn check(&self, what: &str, row: &Draw, drawn: Drawn) {
        let id = drawn.id as usize;
        let close = |found: f32, expected: f64| (f64::from(found) - expected).abs() < 2e-5 * expected.abs().max(1.0);
        assert!(close(drawn.logprob, self.logprobs[id]), "{what}: {drawn:?}, expected {}", self.logprobs[id]);
        match row.choice {
            DrawChoice::Forced(forced) => assert_eq!((drawn.id, drawn.sampled_logprob), (forced, 0.0), "{what}"),
            DrawChoice::Greedy => {
                let best = self.kept.iter().map(|(_, weight)| *weight).fold(0.0, f64::max);
                let first = self.kept.iter().find(|(_, weight)| *weight == best).expect("an id").0;
                assert_eq!((id, drawn.sampled_logprob), (first, 0.0), "{what}");
            }
            DrawChoice::Sampled(uniform) => {
                assert!(close(drawn.sampled_logprob, self.sampled_logprobs[id]), "{what}: {drawn:?}");
                let before: f64 = self.kept.iter().take_while(|(kept, _)| *kept < id).map(|(_, weight)| weight).sum();
                let Some((_, weight)) = self.kept.iter().find(|(kept, _)| *kept == id) else {
                    panic!("{what}: id {id} was dropped")
                };
                // The share of the total at which the id was drawn, up to the rounding of sums in f32.
                let (from, to) = (before / self.total, (before + weight) / self.total);
                assert!(from - 2e-5 <= uniform && uniform <= to + 2e-5, "{what}: {uniform} is not in {from}..{to}");
            }
        }
    }
}

/// A draw at temperature 1 from all ids.
fn plain_draw(choice: DrawChoice) -> Draw {
    Draw {
        choice,
        temperature: 1.0,
        untempered: false,
        penalty: 1.0,
        penalized: Vec::new(),
        banned: Vec::new(),
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
    }
}

#[test]
fn draws_agree_with_a_sort() {
    let Some(device) = device() else { return };
    let plain = plain_draw(DrawChoice::Greedy);
    let choices = [0.0, 0.1, 0.37, 0.5, 0.777, 0.999, 1.0 - 1e-12].map(DrawChoice::Sampled);
    let choices = [&choices[..], &[DrawChoice::Greedy, DrawChoice::Forced(1)]].concat();
    let mut drawn_ids = std::collections::BTreeSet::new();
    for (v, steps) in [(2, 1e9), (300, 1e9), (300, 4.0), (2048, 1e9), (5003, 8.0), (20_000, 1e9)] {
        let edits = |n: u32| (0..n).map(|i| i * (v as u32 / n).max(1)).filter(|&id| id < v as u32).collect::<Vec<_>>();
        let settings = [
            plain.clone(),
            Draw { temperature: 0.5, ..plain.clone() },
            Draw { temperature: 1.7, untempered: true, ..plain.clone() },
            Draw { top_k: 1, ..plain.clone() },
            Draw { top_k: 20, temperature: 0.9, ..plain.clone() },
            Draw { top_k: u32::MAX, top_p: 0.901, ..plain.clone() },
            Draw { top_p: 0.33, ..plain.clone() },
            Draw { top_p: 0.951, top_k: 50, min_p: 0.031, temperature: 0.7, ..plain.clone() },
            Draw { min_p: 0.21, ..plain.clone() },
            Draw { penalty: 1.3, penalized: edits(40), banned: edits(7)[1..].to_vec(), ..plain.clone() },
            Draw {
                penalty: 0.8,
                penalized: edits(300),
                top_p: 0.8,
                untempered: true,
                temperature: 0.6,
                ..plain.clone()
            },
        ];
        let rows: Vec<Draw> = settings
            .iter()
            .flat_map(|row| choices.iter().map(|&choice| Draw { choice, ..row.clone() }))
            // Greedy draws do not truncate.
            .map(|row| match row.choice {
                DrawChoice::Sampled(_) => row,
                _ => Draw { top_k: 0, top_p: 1.0, min_p: 0.0, ..row },
            })
            .collect();
        // With few steps, many logits tie.
        let logits: Vec<f32> =
            values(rows.len() * v, 7 + v as u64).iter().map(|x| (x * 5.0 * steps).round() / steps).collect();
        let logits_bv = Tensor::<2>::from_data(TensorData::new(logits.clone(), [rows.len(), v]), &device);
        assert!(draws(&logits_bv));
        let drawn = draw(logits_bv.clone(), &rows);
        assert_eq!(host(logits_bv), logits, "the caller's logits stay as they are");
        for (i, (row, drawn)) in rows.iter().zip(&drawn).enumerate() {
            let sorted = Sorted::new(&logits[i * v..(i + 1) * v], row);
            sorted.check(&format!("{v} ids, {row:?}"), row, *drawn);
            drawn_ids.insert(drawn.id);
        }
    }
    assert!(drawn_ids.len() > 200, "{} different ids", drawn_ids.len());
}

#[test]
fn broken_logits_are_visible_in_what_is_drawn() {
    let Some(device) = device() else { return };
    let row = plain_draw(DrawChoice::Sampled(0.5));
    for logits in [[f32::NAN; 3], [f32::NEG_INFINITY; 3], [1.0, f32::NAN, 2.0]] {
        for row in [row.clone(), Draw { top_k: 2, top_p: 0.9, ..row.clone() }] {
            let logits_bv = Tensor::<2>::from_data(TensorData::new(logits.to_vec(), [1, 3]), &device);
            let drawn = draw(logits_bv, std::slice::from_ref(&row))[0];
            assert!(drawn.id < 3 && !drawn.logprob.is_finite(), "{logits:?}: {drawn:?}");
        }
    }
}

#[derive(Module, Debug)]
struct Block {
    norm: Param<Tensor<1>>,
    weight: Param<Tensor<2>>,
}

#[test]
fn recomputed_blocks_give_the_bits_of_kept_activations_and_keep_only_their_input() {
    let Some(device) = device() else { return };
    let (n, d) = (40, 24);
    let block = |seed| Block {
        norm: Param::from_tensor(leaf([d], seed, &device)),
        weight: Param::from_tensor(leaf([d, d], seed + 1, &device)),
    };
    let blocks = [block(1), block(3), block(5)];
    let forward = |block: &Block, x: Tensor<2>| {
        let normed = rms_norm(x.clone(), block.norm.val(), 1e-6);
        let y = linear(normed, block.weight.val(), None, Layout::OutIn, Precision::F32);
        x + gelu(y, Gelu::Tanh)
    };
    let gradients = |step: &dyn Fn(&Block, Tensor<2>) -> Tensor<2>| {
        let x = leaf([n, d], 9, &device);
        let y = blocks.iter().fold(x.clone() * 2.0, |x, block| step(block, x));
        let mut gradients = y.powi_scalar(2).sum().backward();
        let mut found = vec![host(x.grad_remove(&mut gradients).expect("of the input"))];
        for block in &blocks {
            found.push(host(block.norm.val().grad_remove(&mut gradients).expect("of the norm")));
            found.push(host(block.weight.val().grad_remove(&mut gradients).expect("of the weight")));
        }
        found
    };
    let runs = Arc::new(AtomicUsize::new(0));
    let recomputed = gradients(&|block, x| {
        let runs = Arc::clone(&runs);
        recompute(block, x, move |block: &Block, x| {
            runs.fetch_add(1, Ordering::Relaxed);
            forward(block, x)
        })
    });
    assert_eq!(recomputed, gradients(&forward));
    assert_eq!(runs.load(Ordering::Relaxed), 6, "three forward and three backward");
}
