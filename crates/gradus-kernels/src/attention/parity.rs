//! Parity with attention layers of transformers, including gradients: Longformer and T5 (`tools/parity/attention.py`).

use super::*;
use crate::fused::testing::{assert_close, given, host};
use crate::{CacheRow, LayerCache, Layout, Precision, linear};

/// Tensors by name.
struct Fixture(Vec<(String, [usize; 2], Vec<f32>)>);

impl Fixture {
    fn read(family: &str) -> Self {
        let mut lines = include_str!("../../fixtures/attention.txt").lines().skip(1);
        let mut tensors = Vec::new();
        while let (Some(head), Some(numbers)) = (lines.next(), lines.next()) {
            let mut words = head.split(' ');
            let name = words.next().expect("a name");
            let dims: Vec<usize> = words.map(|word| word.parse().expect("a size")).collect();
            let dims = [dims.iter().product::<usize>() / dims[dims.len() - 1], dims[dims.len() - 1]];
            if let Some(name) = name.strip_prefix(family).and_then(|name| name.strip_prefix('.')) {
                let numbers = numbers.split(' ').map(|number| number.parse().expect("a number")).collect();
                tensors.push((name.to_owned(), dims, numbers));
            }
        }
        Self(tensors)
    }

    fn find(&self, name: &str) -> ([usize; 2], &[f32]) {
        let (_, dims, numbers) = self.0.iter().find(|(found, ..)| found == name).expect(name);
        (*dims, numbers)
    }

    fn numbers(&self, name: &str) -> &[f32] {
        self.find(name).1
    }

    /// A tracked leaf.
    fn leaf(&self, name: &str) -> Tensor<2> {
        let (dims, numbers) = self.find(name);
        given(dims, numbers)
    }

    /// Applies the linear layer whose weight has this name to `x`, with the bias if given.
    fn linear(&self, x: &Tensor<2>, weight: &str, bias: Option<&str>) -> Tensor<2> {
        let bias = bias.map(|name| given([self.numbers(name).len()], self.numbers(name)));
        linear(x.clone(), self.leaf(weight), bias, Layout::OutIn, Precision::F32)
    }

    /// Asserts that value and gradients equal the named tensors. Every number of the value has its own weight in the loss.
    fn check(&self, y: Tensor<2>, gradients: &[(&Tensor<2>, &str)]) {
        assert_close("out", &host(y.clone().inner()), self.numbers("out"), 2e-5);
        let graph = (y * self.leaf("weights").detach()).sum().backward();
        for (leaf, name) in gradients {
            assert_close(name, &host(leaf.grad(&graph).expect("gradient")), self.numbers(name), 5e-5);
        }
    }
}

#[test]
fn a_window_and_global_tokens_are_longformers() {
    let fixture = Fixture::read("longformer");
    let shape = |mask| AttentionShape {
        heads: 2,
        kv_heads: 2,
        head_dim: 3,
        scale: 1.0 / 3f32.sqrt(),
        mask,
        cap: None,
        precision: Precision::F32,
    };
    let (hidden, lengths, global) = (fixture.leaf("hidden"), [24, 19], [0u32, 3, 17, 24, 36]);
    let project = |name: &str| fixture.linear(&hidden, &format!("{name}.weight"), Some(&format!("{name}.bias")));
    let sequences = Segments::sequences(lengths);
    let near = attention(
        project("query"),
        project("key"),
        project("value"),
        &sequences.clone().with_global(global.map(|token| token as usize)),
        shape(Mask::BidirectionalWindow(4)),
    );
    // Global tokens have projections of their own. Their results replace those of the windowed pass.
    let far = attention_across(
        embedding(project("query_global"), &global),
        project("key_global"),
        project("value_global"),
        None,
        &CrossSegments::new(Segments::sequences([3, 2]), sequences, vec![0, 1]),
        shape(Mask::Bidirectional),
    );
    let place = |token: u32| match global.binary_search(&token) {
        Ok(i) => 43 + i as u32,
        Err(_) => token,
    };
    let y = embedding(Tensor::cat(vec![near, far], 0), &(0..43).map(place).collect::<Vec<u32>>());
    fixture.check(y, &[(&hidden, "grad_hidden")]);
}

/// Shape of the fixture's layers.
fn t5(mask: Mask) -> AttentionShape {
    AttentionShape { heads: 2, kv_heads: 2, head_dim: 3, scale: 1.0, mask, cap: None, precision: Precision::F32 }
}

#[test]
fn a_bias_and_a_source_are_t5s() {
    let fixture = Fixture::read("t5");
    let (hidden, encoded, bias) = (fixture.leaf("hidden"), fixture.leaf("encoded"), fixture.leaf("bias"));
    let project = |x: &Tensor<2>, name: &str| fixture.linear(x, name, None);
    let own = attention_biased(
        project(&hidden, "own.q"),
        project(&hidden, "own.k"),
        project(&hidden, "own.v"),
        PositionBias { weight_hr: bias.clone().transpose(), buckets: PositionBuckets::t5_causal(6, 10) },
        &Segments::sequences([17]),
        t5(Mask::Causal),
    );
    let middle = project(&own, "own.o");
    let cross = attention_across(
        project(&middle, "cross.q"),
        project(&encoded, "cross.k"),
        project(&encoded, "cross.v"),
        None,
        &CrossSegments::new(Segments::sequences([17]), Segments::sequences([6]), vec![0]),
        t5(Mask::Bidirectional),
    );
    let y = project(&cross, "cross.o");
    fixture.check(y, &[(&hidden, "grad_hidden"), (&encoded, "grad_encoded"), (&bias, "grad_bias")]);
}

#[test]
fn a_cache_gives_token_by_token_what_t5_gives() {
    let fixture = Fixture::read("t5");
    let project = |x: &Tensor<2>, name: &str| fixture.linear(x, name, None).inner();
    let (hidden, encoded) = (fixture.leaf("hidden"), fixture.leaf("encoded"));
    let weight_hr = fixture.leaf("bias").transpose().inner();
    let bias = PositionBias { weight_hr, buckets: PositionBuckets::t5_causal(6, 10) };
    let mut own = LayerCache::new(t5(Mask::Causal), 1, 17);
    let mut cross = LayerCache::new(t5(Mask::Bidirectional), 0, 0);
    own.add_prompts(
        project(&hidden, "own.k").narrow(0, 0, 1),
        project(&hidden, "own.v").narrow(0, 0, 1),
        &Segments::sequences([1]),
    );
    cross.add_prompts(project(&encoded, "cross.k"), project(&encoded, "cross.v"), &Segments::sequences([6]));
    for tokens in [1..2, 2..3, 3..12, 12..17] {
        let rows: Vec<CacheRow> = tokens.clone().map(|t| CacheRow { prompt: 0, slot: 0, length: t - 1 }).collect();
        let x = hidden.clone().narrow(0, tokens.start, tokens.len());
        let [q, k, v] = ["own.q", "own.k", "own.v"].map(|name| project(&x, name));
        let middle = fixture.linear(&own.extend_biased(q, k, v, Some(&bias), &rows, 1.0).autodiff(), "own.o", None);
        let read = cross.attend(project(&middle, "cross.q"), None, &rows, 1.0);
        let out = fixture.linear(&read.autodiff(), "cross.o", None);
        let expected = |name: &str| &fixture.numbers(name)[tokens.start * 8..tokens.end * 8];
        assert_close("middle", &host(middle.inner()), expected("middle"), 2e-5);
        assert_close("out", &host(out.inner()), expected("out"), 2e-5);
    }
}
