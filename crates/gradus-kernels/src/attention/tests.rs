use std::num::NonZeroUsize;

use std::ops::Range;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::fused::testing::{assert_close, check, given, host, leaf};
use crate::product::Precision;

fn shape(heads: usize, kv_heads: usize, head_dim: usize, mask: Mask) -> AttentionShape {
    AttentionShape {
        heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        mask,
        cap: None,
        precision: Precision::F32,
    }
}

fn window(tokens: usize) -> Mask {
    Mask::CausalWindow(NonZeroUsize::new(tokens).expect("a query sees itself"))
}

/// Segments with numbers of query and key heads: one token, no token, block tails, prompts shared by a group.
fn cases() -> Vec<(Segments, usize, usize)> {
    let mut groups = Segments::sequences([7]);
    groups.push(70, vec![3, 90, 0, 1]);
    groups.push(1, vec![5]);
    vec![
        (Segments::sequences([1]), 1, 1),
        (Segments::sequences([0, 1, 7, 0, 1]), 4, 2),
        (Segments::sequences([70, 130]), 3, 1),
        (groups, 4, 2),
    ]
}

/// Windows of one token, within a block, across blocks, and wider than any sequence.
fn masks() -> Vec<Mask> {
    let windows = [1, 3, 64, 65, 100, usize::MAX].map(window);
    let distances = [0, 2, 64, 90, usize::MAX].map(Mask::BidirectionalWindow);
    [&[Mask::Causal, Mask::Bidirectional], &windows[..], &distances[..]].concat()
}

#[test]
fn agrees_with_the_reference() {
    for (segments, heads, kv) in cases() {
        for mask in masks() {
            let (n, shape) = (segments.tokens(), shape(heads, kv, 5, mask));
            let inputs = [leaf([n, heads * 5], 1), leaf([n, kv * 5], 2), leaf([n, kv * 5], 3)];
            check(
                &format!("attention, {mask:?}"),
                &inputs,
                |x| attention(x[0].clone(), x[1].clone(), x[2].clone(), &segments, shape),
                |x| reference::attention(x[0].clone(), x[1].clone(), x[2].clone(), &segments, shape),
                1e-5,
            );
            let part = |x: &Tensor<2>, from, width| x.clone().narrow(1, from, width);
            check(
                &format!("attention side by side, {mask:?}"),
                &[leaf([n, (heads + 2 * kv) * 5], 4)],
                |x| attention_fused(x[0].clone(), &segments, shape),
                |x| {
                    let (q, kv) = (heads * 5, kv * 5);
                    reference::attention(
                        part(&x[0], 0, q),
                        part(&x[0], q, kv),
                        part(&x[0], q + kv, kv),
                        &segments,
                        shape,
                    )
                },
                1e-5,
            );
        }
    }
}

#[test]
fn capped_scores_agree_with_the_reference() {
    for (segments, heads, kv) in cases() {
        for mask in [Mask::Causal, window(3), window(65), Mask::Bidirectional] {
            // One cap bends every score, the other hardly any.
            for cap in [0.3, 50.0] {
                let (n, shape) = (segments.tokens(), AttentionShape { cap: Some(cap), ..shape(heads, kv, 5, mask) });
                check(
                    &format!("capped attention, {mask:?}, {cap}"),
                    &[leaf([n, heads * 5], 1), leaf([n, kv * 5], 2), leaf([n, kv * 5], 3)],
                    |x| attention(x[0].clone(), x[1].clone(), x[2].clone(), &segments, shape),
                    |x| reference::attention(x[0].clone(), x[1].clone(), x[2].clone(), &segments, shape),
                    1e-5,
                );
            }
        }
    }
}

#[test]
fn a_bias_agrees_with_the_reference() {
    for (segments, heads, kv) in cases() {
        for (mask, buckets) in [
            (Mask::Causal, PositionBuckets::t5_causal(8, 20)),
            (window(30), PositionBuckets::t5_causal(8, 20)),
            (Mask::Bidirectional, PositionBuckets::t5_bidirectional(10, 40)),
            (Mask::BidirectionalWindow(70), PositionBuckets::new(1, 0, |_| 0)),
        ] {
            let (n, shape) = (segments.tokens(), shape(heads, kv, 5, mask));
            let weight = leaf([heads, buckets.buckets()], 4);
            let bias = |weight_hr: &Tensor<2>| PositionBias { weight_hr: weight_hr.clone(), buckets: buckets.clone() };
            check(
                &format!("attention with a bias, {mask:?}"),
                &[leaf([n, heads * 5], 1), leaf([n, kv * 5], 2), leaf([n, kv * 5], 3), weight],
                |x| attention_biased(x[0].clone(), x[1].clone(), x[2].clone(), bias(&x[3]), &segments, shape),
                |x| {
                    let bias = bias(&x[3]);
                    reference::biased(x[0].clone(), x[1].clone(), x[2].clone(), Some(&bias), &segments, shape)
                },
                2e-5,
            );
        }
    }
}

#[test]
fn a_window_is_the_end_of_the_sequence_alone() {
    let (n, size, shape) = (90, 13, shape(2, 1, 4, window(13)));
    let x = leaf([n, 16], 1).inner();
    let all = host(attention_fused(x.clone(), &Segments::sequences([n]), shape));
    for i in [0, 5, 12, 13, 63, 64, 89] {
        // The query and up to twelve tokens before it, under the plain causal mask.
        let seen = size.min(i + 1);
        let end = x.clone().narrow(0, i + 1 - seen, seen);
        let end = attention_fused(end, &Segments::sequences([seen]), AttentionShape { mask: Mask::Causal, ..shape });
        assert_close("window", &all[i * 8..(i + 1) * 8], &host(end)[(seen - 1) * 8..], 1e-6);
    }
}

#[test]
fn a_bias_of_minus_infinity_is_a_window() {
    let (n, shape) = (100, shape(2, 2, 4, Mask::Causal));
    let x = [1, 2, 3].map(|seed| leaf([n, 8], seed).inner());
    let [q, k, v] = x.clone();
    let segments = Segments::sequences([n]);
    let expected = attention(q, k, v, &segments, AttentionShape { mask: window(5), ..shape });
    // Bucket 1 holds keys that are five or more tokens away.
    let buckets = PositionBuckets::new(2, 5, |distance| if distance <= -5 { 1 } else { 0 });
    let weight_hr = given([2, 2], &[0.5, f32::NEG_INFINITY, -7.0, -1e30]).inner();
    let [q, k, v] = x;
    let found = attention_biased(q, k, v, PositionBias { weight_hr, buckets }, &segments, shape);
    assert_close("output", &host(found), &host(expected), 1e-6);
}

#[test]
fn a_continuation_gets_what_the_whole_sequence_gives_it() {
    for mask in [Mask::Causal, window(1), window(12), window(30)] {
        let (prompt, lengths, shape) = (20, [9, 70], shape(2, 2, 8, mask));
        let mut shared = Segments::default();
        shared.push(prompt, lengths.to_vec());
        let n = shared.tokens();
        let x = leaf([n, 48], 1).inner();
        let together = host(attention_fused(x.clone(), &shared, shape));
        for segment in shared.iter().skip(1) {
            let rows = |range: Range<usize>| x.clone().narrow(0, range.start, range.len());
            let alone = Tensor::cat(vec![rows(segment.prefix.clone()), rows(segment.tokens.clone())], 0);
            let alone = host(attention_fused(alone, &Segments::sequences([segment.length()]), shape));
            let own = &together[segment.tokens.start * 16..segment.tokens.end * 16];
            assert_close("continuation", own, &alone[prompt * 16..], 1e-6);
        }
    }
}

#[test]
fn large_scores_agree_with_the_reference() {
    // Scores up to 10⁴: most rows see one key, and gradients vanish. The logarithm of a sum near 10⁴ is accurate to 5e-4.
    for mask in [Mask::Causal, window(9), Mask::Bidirectional] {
        let (segments, shape) = (Segments::sequences([1, 70]), AttentionShape { scale: 1e4, ..shape(2, 1, 4, mask) });
        check(
            "attention",
            &[leaf([71, 8], 1), leaf([71, 4], 2), leaf([71, 4], 3)],
            |x| attention(x[0].clone(), x[1].clone(), x[2].clone(), &segments, shape),
            |x| reference::attention(x[0].clone(), x[1].clone(), x[2].clone(), &segments, shape),
            2e-3,
        );
    }
}

/// Targets and the sources that they read: one of each, a group that shares a source, continuations, an empty source, a source of more than
/// a block, and one without readers.
fn crossings() -> Vec<CrossSegments> {
    let mut trees = Segments::sequences([3, 70]);
    trees.push(2, vec![5, 0, 66]);
    trees.push(1, vec![2]);
    vec![
        CrossSegments::new(Segments::sequences([1]), Segments::sequences([1]), vec![0]),
        CrossSegments::new(Segments::sequences([2, 0, 65, 4]), Segments::sequences([0, 7, 90]), vec![2, 0, 2, 1]),
        CrossSegments::new(Segments::sequences([2, 3]), Segments::sequences([0, 4]), vec![0, 0]),
        CrossSegments::new(trees, Segments::sequences([70, 3, 9]), vec![2, 0, 0, 2]),
    ]
}

#[test]
fn across_batches_it_agrees_with_the_reference() {
    let masks = [Mask::Bidirectional, Mask::Causal, window(3), window(100), Mask::BidirectionalWindow(2)];
    for (cross, mask) in crossings().into_iter().flat_map(|cross| masks.map(|mask| (cross.clone(), mask))) {
        for (heads, kv) in [(4, 2), (3, 3)] {
            let ([n, m], shape) = (cross.tokens(), shape(heads, kv, 5, mask));
            let inputs = [leaf([n, heads * 5], 1), leaf([m, kv * 5], 2), leaf([m, kv * 5], 3)];
            check(
                &format!("attention across, {mask:?}"),
                &inputs,
                |x| attention_across(x[0].clone(), x[1].clone(), x[2].clone(), None, &cross, shape),
                |x| {
                    // Every input is part of the graph, even if no source has a token.
                    let nothing = (x[1].clone().sum() + x[2].clone().sum() + x[0].clone().sum()) * 0.0;
                    let y = reference::across(x[0].clone(), x[1].clone(), x[2].clone(), None, &cross, shape);
                    y + nothing.unsqueeze()
                },
                1e-5,
            );
            let buckets = PositionBuckets::t5_bidirectional(10, 40);
            let bias = |x: &[Tensor<2>]| PositionBias { weight_hr: x[3].clone(), buckets: buckets.clone() };
            check(
                &format!("attention across with a bias, {mask:?}"),
                &[&inputs[..], &[leaf([heads, 10], 4)]].concat(),
                |x| attention_across(x[0].clone(), x[1].clone(), x[2].clone(), Some(bias(x)), &cross, shape),
                |x| {
                    let nothing = x.iter().map(|x| x.clone().sum() * 0.0).reduce(|a, b| a + b).expect("inputs");
                    let y = reference::across(x[0].clone(), x[1].clone(), x[2].clone(), Some(&bias(x)), &cross, shape);
                    y + nothing.unsqueeze()
                },
                2e-5,
            );
        }
    }
}

#[test]
fn a_batch_that_reads_itself_across_is_self_attention_to_the_bit() {
    let segments = Segments::sequences([7, 70, 0, 1]);
    let cross = CrossSegments::new(segments.clone(), segments.clone(), vec![0, 1, 2, 3]);
    for mask in masks() {
        let shape = shape(4, 2, 5, mask);
        let all = |run: &dyn Fn([Tensor<2>; 3]) -> Tensor<2>| {
            let inputs = [leaf([78, 20], 1), leaf([78, 10], 2), leaf([78, 10], 3)];
            let y = run(inputs.clone());
            let gradients = y.clone().powi_scalar(2).sum().backward();
            (host(y.inner()), inputs.map(|input| host(input.grad(&gradients).expect("gradient"))))
        };
        let within = all(&|[q, k, v]| attention(q, k, v, &segments, shape));
        assert!(within == all(&|[q, k, v]| attention_across(q, k, v, None, &cross, shape)), "{mask:?}");
    }
}

/// The cases with some global tokens: the first of a sequence, neighbors, the last, none in a continuation.
fn globals() -> Vec<(Segments, usize, usize)> {
    let global = [vec![0], vec![0, 1, 5], vec![0, 3, 69, 70, 150, 199], vec![6, 7, 30, 80, 82, 172]];
    let cases = cases().into_iter().zip(global);
    cases.map(|((segments, heads, kv), global)| (segments.with_global(global), heads, kv)).collect()
}

#[test]
fn global_tokens_agree_with_the_reference() {
    for (segments, heads, kv) in globals() {
        for mask in masks() {
            let (n, shape) = (segments.tokens(), shape(heads, kv, 5, mask));
            let inputs = [leaf([n, heads * 5], 1), leaf([n, kv * 5], 2), leaf([n, kv * 5], 3)];
            check(
                &format!("attention with global tokens, {mask:?}"),
                &inputs,
                |x| attention(x[0].clone(), x[1].clone(), x[2].clone(), &segments, shape),
                |x| reference::attention(x[0].clone(), x[1].clone(), x[2].clone(), &segments, shape),
                1e-5,
            );
            let buckets = PositionBuckets::t5_bidirectional(10, 40);
            let bias = |x: &[Tensor<2>]| PositionBias { weight_hr: x[3].clone(), buckets: buckets.clone() };
            check(
                &format!("attention with global tokens and a bias, {mask:?}"),
                &[&inputs[..], &[leaf([heads, 10], 4)]].concat(),
                |x| attention_biased(x[0].clone(), x[1].clone(), x[2].clone(), bias(x), &segments, shape),
                |x| reference::biased(x[0].clone(), x[1].clone(), x[2].clone(), Some(&bias(x)), &segments, shape),
                2e-5,
            );
        }
    }
}

#[test]
fn a_window_with_every_token_global_is_no_window() {
    let segments = Segments::sequences([5, 80]);
    let x = leaf([85, 16], 1).inner();
    for (narrow, wide) in [(window(2), Mask::Causal), (Mask::BidirectionalWindow(1), Mask::Bidirectional)] {
        let of = |segments: &Segments, mask| host(attention_fused(x.clone(), segments, shape(2, 1, 4, mask)));
        let all = segments.clone().with_global(0..85);
        assert_close(&format!("{narrow:?}"), &of(&all, narrow), &of(&segments, wide), 1e-6);
    }
}

/// Any mask, with windows up to 100 tokens.
fn mask() -> impl Strategy<Value = Mask> {
    prop_oneof![
        Just(Mask::Causal),
        Just(Mask::Bidirectional),
        (1usize..100).prop_map(window),
        (0usize..100).prop_map(Mask::BidirectionalWindow),
    ]
}

/// Roots with their continuations.
fn trees() -> impl Strategy<Value = Segments> {
    vec((0usize..75, vec(0usize..70, 0..3)), 1..4).prop_map(|trees| {
        let mut segments = Segments::default();
        trees.into_iter().for_each(|(root, continuations)| segments.push(root, continuations));
        segments
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sizes_agree_with_the_reference(
        targets in trees(),
        sources in vec(0usize..90, 1..4),
        choices in vec(any::<prop::sample::Index>(), 3),
        global in vec(any::<prop::sample::Index>(), 0..9),
        (kv, group, dim) in (1usize..3, 1usize..3, 1usize..9),
        mask in mask(),
    ) {
        let (n, heads) = (targets.tokens(), kv * group);
        prop_assume!(n > 0);
        let (shape, buckets) = (shape(heads, kv, dim, mask), PositionBuckets::t5_bidirectional(10, 40));
        let bias = |x: &[Tensor<2>]| PositionBias { weight_hr: x[3].clone(), buckets: buckets.clone() };
        let inputs = |m| [leaf([n, heads * dim], 1), leaf([m, kv * dim], 2), leaf([m, kv * dim], 3), leaf([heads, 10], 4)];
        let segments = targets.clone().with_global(global.iter().map(|token| token.index(n)));
        check(
            &format!("{segments:?}, {shape:?}"),
            &inputs(n),
            |x| attention_biased(x[0].clone(), x[1].clone(), x[2].clone(), bias(x), &segments, shape),
            |x| reference::biased(x[0].clone(), x[1].clone(), x[2].clone(), Some(&bias(x)), &segments, shape),
            3e-5,
        );
        let sources = Segments::sequences(sources);
        let count = sources.iter().count();
        let source_of = targets.trees().iter().zip(&choices).map(|(_, choice)| choice.index(count)).collect();
        let cross = CrossSegments::new(targets, sources, source_of);
        check(
            &format!("{cross:?}, {shape:?}"),
            &inputs(cross.tokens()[1]),
            |x| attention_across(x[0].clone(), x[1].clone(), x[2].clone(), Some(bias(x)), &cross, shape),
            |x| {
                let nothing = x.iter().map(|x| x.clone().sum() * 0.0).reduce(|a, b| a + b).expect("inputs");
                let y = reference::across(x[0].clone(), x[1].clone(), x[2].clone(), Some(&bias(x)), &cross, shape);
                y + nothing.unsqueeze()
            },
            3e-5,
        );
    }
}
