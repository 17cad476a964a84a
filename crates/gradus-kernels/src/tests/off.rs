//! With `GRADUS_KERNELS=off` all operations run through the references and give the results of the kernels.

use std::fs;
use std::process::Command;

use burn::tensor::{Device, TensorData};

use super::*;
use crate::fused::is_cpu;
use crate::fused::testing::host;
use crate::{CacheRow, LayerCache, recompute};

/// Variable with the path to which the process without kernels writes its results.
const RESULTS: &str = "GRADUS_KERNELS_TEST_RESULTS";

/// Values and gradients by name, for every public function that has a kernel.
fn results() -> Vec<(String, Vec<f32>)> {
    let mut results = Vec::new();
    for n in [1, 75] {
        for (i, kernel) in kernels(n).into_iter().chain(products(n)).enumerate() {
            let (value, gradients) = kernel.results();
            let all = std::iter::once(value).chain(gradients).enumerate();
            results.extend(all.map(|(j, numbers)| (format!("{i} {}, {n} rows, {j}", kernel.name), numbers)));
        }
    }
    results.push(("adamw".into(), step()));
    results.push(("recompute".into(), recomputed()));
    results.push(("decoding".into(), decoded()));
    results
}

/// Parameter and moments after a step.
fn step() -> Vec<f32> {
    let tensor = |seed| Tensor::<1>::from_data(TensorData::new(values(33, seed), [33]), &Device::flex());
    let betas = (0.9, 0.999);
    let step = AdamWStep { learning_rate: 1e-2, betas, epsilon: 1e-8, weight_decay: 0.1, step: 3, gradient_scale: 0.5 };
    let (parameter, first, second) = adamw(tensor(1), tensor(2), tensor(3), tensor(4).powi_scalar(2), step);
    host(Tensor::cat(vec![parameter, first, second], 0))
}

/// Gradients of the input and the parameter of a recomputed block.
fn recomputed() -> Vec<f32> {
    let (x, weight) = (leaf([5, 6], 1), burn::module::Param::from_tensor(leaf([6, 6], 2)));
    let y = recompute(&weight, x.clone(), |weight: &burn::module::Param<Tensor<2>>, x| {
        linear(x, weight.val(), None, Layout::OutIn, Precision::F32)
    });
    let gradients = y.powi_scalar(2).sum().backward();
    let of = |tensor: Tensor<2>| host(tensor.grad(&gradients).expect("gradient"));
    [of(x), of(weight.val())].concat()
}

/// Attention over a cache: one token and several at a time, with a bias, in a slot that another row has left, and over the prompts alone.
fn decoded() -> Vec<f32> {
    let tensor = |rows, width, seed| leaf([rows, width], seed).inner();
    let bias = PositionBias { weight_hr: tensor(4, 6, 20), buckets: PositionBuckets::t5_causal(6, 9) };
    let window = Mask::CausalWindow(std::num::NonZeroUsize::new(3).expect("not zero"));
    let mut all = Vec::new();
    for mask in [Mask::Causal, window, Mask::Bidirectional, Mask::BidirectionalWindow(1)] {
        let shape = AttentionShape {
            heads: 4,
            kv_heads: 2,
            head_dim: 3,
            scale: 0.5,
            mask,
            cap: None,
            precision: Precision::F32,
        };
        let mut cache = LayerCache::new(shape, 2, 1);
        cache.add_prompts(tensor(5, 6, 1), tensor(5, 6, 2), &Segments::sequences([4, 0, 1]));
        for (seed, rows) in [&[(0, 0, 0), (0, 0, 1), (2, 1, 0)][..], &[(2, 1, 1), (0, 0, 2)], &[(1, 0, 0), (1, 0, 1)]]
            .into_iter()
            .enumerate()
        {
            let row = |&(prompt, slot, length): &(usize, usize, usize)| CacheRow { prompt, slot, length };
            let rows: Vec<CacheRow> = rows.iter().map(row).collect();
            let [q, k, v] = [(12, 3), (6, 4), (6, 5)].map(|(width, i)| tensor(rows.len(), width, 10 * seed as u64 + i));
            all.extend(host(cache.extend_biased(q.clone(), k, v, Some(&bias), &rows, shape.scale)));
            all.extend(host(cache.attend(q, None, &rows, shape.scale)));
        }
        let rows = [CacheRow { prompt: 0, slot: 3, length: 0 }];
        cache.add_prompts_fused(tensor(2, 24, 6), &Segments::sequences([2]));
        all.extend(host(cache.extend_fused(tensor(1, 24, 7), &rows.map(|row| CacheRow { prompt: 3, ..row }), 0.5)));
        let mut capped = LayerCache::new(AttentionShape { cap: Some(0.6), ..shape }, 1, 1);
        capped.add_prompts(tensor(5, 6, 1), tensor(5, 6, 2), &Segments::sequences([5]));
        let rows = [0, 1].map(|length| CacheRow { prompt: 0, slot: 0, length });
        let [q, k, v] = [(12, 3), (6, 4), (6, 5)].map(|(width, seed)| tensor(2, width, seed));
        all.extend(host(capped.extend(q, k, v, &rows, 0.5)));
    }
    all
}

#[test]
fn without_kernels_everything_gives_the_same() {
    if let Some(path) = std::env::var_os(RESULTS) {
        assert!(!is_cpu(&Device::flex()) && !is_cpu(&Device::flex().autodiff()), "kernels are off");
        let line = |(name, numbers): (String, Vec<f32>)| {
            let numbers: Vec<String> = numbers.iter().map(f32::to_string).collect();
            format!("{name}\t{}\n", numbers.join(" "))
        };
        fs::write(path, results().into_iter().map(line).collect::<String>()).expect("a file of the test's own");
        return;
    }
    let path = std::env::temp_dir().join(format!("gradus-kernels-off-{}", std::process::id()));
    let name = std::thread::current().name().expect("a test has a name").to_owned();
    let binary = std::env::current_exe().expect("this test");
    let output = Command::new(binary)
        .args(["--exact", &name, "--nocapture"])
        .env("GRADUS_KERNELS", "off")
        .env(RESULTS, &path)
        .output()
        .expect("the same test once more");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = fs::read_to_string(&path).expect("the results");
    fs::remove_file(&path).expect("removed");
    let expected = results();
    assert!(is_cpu(&Device::flex()), "kernels are on");
    assert_eq!(found.lines().count(), expected.len());
    for (line, (name, expected)) in found.lines().zip(&expected) {
        let (found_name, numbers) = line.split_once('\t').expect("name and numbers");
        assert_eq!(found_name, name);
        let numbers: Vec<f32> = numbers.split_whitespace().map(|n| n.parse().expect("a number")).collect();
        // Kernels round operands to bf16 if weights are held in few bits.
        let rounded = ["bf16", "int8", "nf4"].iter().any(|format| name.contains(format));
        let tolerance = if rounded { 3e-2 } else { 5e-5 };
        assert_close(name, &numbers, expected, tolerance);
    }
}
