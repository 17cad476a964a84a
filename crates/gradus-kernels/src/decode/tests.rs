use std::num::NonZeroUsize;

use super::*;
use burn::tensor::Device;

use crate::attention::{Mask, PositionBuckets, attention, attention_across, attention_biased};
use crate::fused::testing::{assert_close, host, values};
use crate::product::Precision;
use crate::segments::CrossSegments;

#[test]
fn token_by_token_equals_the_whole_sequence() {
    // Windows that end within the prompt, at its end, and within the row's own tokens.
    let windows = [1, 4, 6, 100].map(|tokens| Mask::CausalWindow(NonZeroUsize::new(tokens).expect("not zero")));
    for mask in [Mask::Causal].into_iter().chain(windows) {
        for (prompt, cap) in [(0, None), (1, None), (4, None), (4, Some(0.5))] {
            check(
                AttentionShape { heads: 4, kv_heads: 2, head_dim: 3, scale: 0.7, mask, cap, precision: Precision::F32 },
                mask,
                prompt,
            );
        }
    }
    // Later tokens are not in the cache yet, whatever the mask.
    for (mask, so_far) in [
        (Mask::Bidirectional, Mask::Causal),
        (Mask::BidirectionalWindow(3), Mask::CausalWindow(NonZeroUsize::new(4).expect("not zero"))),
    ] {
        check(
            AttentionShape {
                heads: 4,
                kv_heads: 2,
                head_dim: 3,
                scale: 0.7,
                mask,
                cap: None,
                precision: Precision::F32,
            },
            so_far,
            2,
        );
    }
}

#[test]
fn several_tokens_at_once_equal_the_whole_sequence() {
    let windows = [1, 5, 40].map(|tokens| Mask::CausalWindow(NonZeroUsize::new(tokens).expect("not zero")));
    for mask in [Mask::Causal].into_iter().chain(windows) {
        let shape = AttentionShape {
            heads: 4,
            kv_heads: 2,
            head_dim: 3,
            scale: 0.7,
            mask,
            cap: Some(0.5),
            precision: Precision::F32,
        };
        // Turns of one token, of several, and of more than a block, together with a row that grows by one token per
        // turn. Both outgrow the initial space of their slots.
        for (prompt, turns) in [(0, [1, 70, 2]), (5, [33, 1, 32]), (40, [3, 4, 5])] {
            let total = prompt + turns.iter().sum::<usize>();
            let x = Sequence::new(total);
            let whole = x.whole(shape);
            let mut cache = LayerCache::new(shape, 1, 2);
            cache.add_prompts(x.keys(0..prompt), x.values(0..prompt), &Segments::sequences([prompt]));
            let mut at = prompt;
            for (turn, count) in turns.into_iter().enumerate() {
                let mut tokens: Vec<usize> = (at..at + count).collect();
                let mut rows: Vec<CacheRow> =
                    tokens.iter().map(|t| CacheRow { prompt: 0, slot: 3, length: t - prompt }).collect();
                tokens.push(prompt + turn);
                rows.push(CacheRow { prompt: 0, slot: 1, length: turn });
                let [q, k, v] = x.of(&tokens);
                let out = host(cache.extend(q, k, v, &rows, shape.scale));
                let expected: Vec<f32> = tokens.iter().flat_map(|t| &whole[t * 12..(t + 1) * 12]).copied().collect();
                assert_close(&format!("{mask:?}, turn {turn}"), &out, &expected, 2e-6);
                at += count;
            }
        }
    }
}

#[test]
fn a_bias_counts_from_the_beginning_of_the_prompt() {
    let (x, buckets) = (Sequence::new(50), PositionBuckets::t5_causal(8, 20));
    let weight_hr = Tensor::from_data(TensorData::new(values(4 * 8, 9), [4, 8]), &Device::flex());
    let bias = PositionBias { weight_hr, buckets };
    for mask in [Mask::Causal, Mask::CausalWindow(NonZeroUsize::new(9).expect("not zero"))] {
        let shape = AttentionShape {
            heads: 4,
            kv_heads: 2,
            head_dim: 3,
            scale: 0.7,
            mask,
            cap: None,
            precision: Precision::F32,
        };
        let [q, k, v] = x.of(&(0..50).collect::<Vec<_>>());
        let whole = host(attention_biased(q, k, v, bias.clone(), &Segments::sequences([50]), shape));
        let mut cache = LayerCache::new(shape, 1, 50);
        cache.add_prompts(x.keys(0..3), x.values(0..3), &Segments::sequences([3]));
        for tokens in [3..4, 4..40, 40..41, 41..50] {
            let rows: Vec<CacheRow> = tokens.clone().map(|t| CacheRow { prompt: 0, slot: 0, length: t - 3 }).collect();
            let [q, k, v] = x.of(&tokens.clone().collect::<Vec<_>>());
            let out = host(cache.extend_biased(q, k, v, Some(&bias), &rows, shape.scale));
            assert_close(&format!("{mask:?}, {tokens:?}"), &out, &whole[tokens.start * 12..tokens.end * 12], 2e-6);
        }
    }
}

#[test]
fn sources_are_read_and_nothing_is_added() {
    let (x, sources) = (Sequence::new(50), Segments::sequences([0, 1, 49]));
    let buckets = PositionBuckets::t5_bidirectional(8, 20);
    let weight_hr = Tensor::from_data(TensorData::new(values(4 * 8, 9), [4, 8]), &Device::flex());
    for mask in [Mask::Bidirectional, Mask::Causal, Mask::BidirectionalWindow(2)] {
        let shape = AttentionShape {
            heads: 4,
            kv_heads: 2,
            head_dim: 3,
            scale: 0.7,
            mask,
            cap: None,
            precision: Precision::F32,
        };
        let mut cache = LayerCache::new(shape, 0, 0);
        cache.add_prompts(x.keys(0..50), x.values(0..50), &sources);
        // Two rows share the last source, one of them with several tokens; one row reads an empty source.
        let rows = [(2, 0, 0), (2, 0, 1), (2, 0, 2), (2, 5, 0), (0, 1, 0), (1, 2, 0)];
        let rows = rows.map(|(prompt, slot, length)| CacheRow { prompt, slot, length });
        let [q, ..] = x.of(&[7, 8, 9, 10, 11, 12]);
        let cross = CrossSegments::new(Segments::sequences([3, 1, 1, 1]), sources.clone(), vec![2, 2, 0, 1]);
        for bias in [None, Some(PositionBias { weight_hr: weight_hr.clone(), buckets: buckets.clone() })] {
            let found = host(cache.attend(q.clone(), bias.as_ref(), &rows, shape.scale));
            let whole = attention_across(q.clone(), x.keys(0..50), x.values(0..50), bias, &cross, shape);
            assert_close(&format!("{mask:?}"), &found, &host(whole), 2e-6);
        }
        assert!(cache.host.slots.is_empty(), "nothing is added");
    }
}

#[test]
fn a_copied_row_goes_on_by_itself_as_its_original_does() {
    let shape = AttentionShape {
        heads: 4,
        kv_heads: 2,
        head_dim: 3,
        scale: 0.7,
        mask: Mask::Causal,
        cap: None,
        precision: Precision::F32,
    };
    let x = Sequence::new(40);
    let whole = x.whole(shape);
    let expected = |tokens: Range<usize>| &whole[tokens.start * 12..tokens.end * 12];
    let extend = |cache: &mut LayerCache, slot: usize, tokens: Range<usize>, of: &Sequence| {
        let rows: Vec<CacheRow> = tokens.clone().map(|t| CacheRow { prompt: 0, slot, length: t - 3 }).collect();
        let [q, k, v] = of.of(&tokens.collect::<Vec<_>>());
        host(cache.extend(q, k, v, &rows, shape.scale))
    };
    let mut cache = LayerCache::new(shape, 3, 2);
    cache.add_prompts(x.keys(0..3), x.values(0..3), &Segments::sequences([3]));
    // The target slot holds more tokens, of another row.
    let other = Sequence(std::array::from_fn(|i| values(40 * Sequence::WIDTHS[i], i as u64 + 11)));
    extend(&mut cache, 2, 3..40, &other);
    extend(&mut cache, 0, 3..10, &x);
    // The original continues with a token that the copy does not have.
    extend(&mut cache, 0, 10..11, &other);
    cache.copy_slot(0, 2, 7);
    cache.copy_slot(0, 1, 4);
    for (slot, from) in [(2, 10), (1, 7), (2, 11), (1, 8)] {
        let out = extend(&mut cache, slot, from..from + 1, &x);
        assert_close(&format!("slot {slot}, token {from}"), &out, expected(from..from + 1), 2e-6);
    }
    // A row that has added no token.
    cache.copy_slot(1, 0, 0);
    assert_close("anew", &extend(&mut cache, 0, 3..6, &x), expected(3..6), 2e-6);
}

#[test]
fn prompts_and_slots_are_forgotten_one_by_one() {
    let shape = AttentionShape {
        heads: 4,
        kv_heads: 2,
        head_dim: 3,
        scale: 0.7,
        mask: Mask::Causal,
        cap: None,
        precision: Precision::F32,
    };
    let (x, mut cache) = (Sequence::new(6), LayerCache::new(shape, 1, 4));
    cache.add_prompts(x.keys(0..6), x.values(0..6), &Segments::sequences([1, 2, 3]));
    cache.drop_prompt(1);
    let next = |cache: &mut LayerCache, prompt| {
        let ([q, k, v], rows) = (x.of(&[5]), [CacheRow { prompt, slot: 0, length: 0 }]);
        host(cache.extend(q, k, v, &rows, shape.scale))
    };
    let (first, third) = (next(&mut cache, 0), next(&mut cache, 2));
    cache.clear_slot(0);
    cache.clear_slot(9);
    assert_eq!((next(&mut cache, 0), next(&mut cache, 2)), (first, third.clone()));
    cache.drop_prompts_before(2);
    assert_eq!(cache.host.prompts.len(), 1);
    assert_eq!(next(&mut cache, 2), third);
    cache.add_prompts(x.keys(0..1), x.values(0..1), &Segments::sequences([1]));
    assert!(cache.host.prompts.contains_key(&3), "numbers stay taken");
}

#[test]
#[should_panic(expected = "tokens of slot 0 follow each other")]
fn tokens_of_a_row_follow_each_other() {
    runs(&[0, 2].map(|length| CacheRow { prompt: 0, slot: 0, length }));
}

/// Queries, keys and values of one sequence: four query heads and two key/value heads of width 3.
struct Sequence([Vec<f32>; 3]);

impl Sequence {
    const WIDTHS: [usize; 3] = [12, 6, 6];

    fn new(total: usize) -> Self {
        Self(std::array::from_fn(|i| values(total * Self::WIDTHS[i], i as u64 + 1)))
    }

    fn of(&self, tokens: &[usize]) -> [Tensor<2>; 3] {
        std::array::from_fn(|i| {
            let width = Self::WIDTHS[i];
            let rows = tokens.iter().flat_map(|t| &self.0[i][t * width..(t + 1) * width]).copied().collect();
            Tensor::from_data(TensorData::new::<f32, _>(rows, [tokens.len(), width]), &Device::flex())
        })
    }

    fn keys(&self, tokens: Range<usize>) -> Tensor<2> {
        let [_, k, _] = self.of(&tokens.collect::<Vec<_>>());
        k
    }

    fn values(&self, tokens: Range<usize>) -> Tensor<2> {
        let [.., v] = self.of(&tokens.collect::<Vec<_>>());
        v
    }

    /// Attention output of every token of the whole sequence.
    fn whole(&self, shape: AttentionShape) -> Vec<f32> {
        let total = self.0[0].len() / 12;
        let [q, k, v] = self.of(&(0..total).collect::<Vec<_>>());
        host(attention(q, k, v, &Segments::sequences([total]), shape))
    }
}

/// Checks that a cache of `shape`, filled token by token, gives the result of a whole pass under `mask`.
fn check(shape: AttentionShape, mask: Mask, prompt: usize) {
    let (total, device) = (9, Device::flex());
    let (q, k, v) = (values(total * 12, 1), values(total * 6, 2), values(total * 6, 3));
    let tensor = |v: &[f32], w: usize| Tensor::<2>::from_data(TensorData::new(v.to_vec(), [v.len() / w, w]), &device);
    let [all_q, all_k, all_v] = [tensor(&q, 12), tensor(&k, 6), tensor(&v, 6)];
    let one = Segments::sequences([total]);
    let whole = host(attention(all_q, all_k, all_v, &one, AttentionShape { mask, ..shape }));
    let mut cache = LayerCache::new(shape, 2, total - prompt);
    cache.add_prompts(tensor(&k[..prompt * 6], 6), tensor(&v[..prompt * 6], 6), &Segments::sequences([prompt]));
    for t in prompt..total {
        // Both slots get the same tokens: rows of a group do not see each other.
        let rows = [0, 1].map(|slot| CacheRow { prompt: 0, slot, length: t - prompt });
        let twice = |v: &[f32], w: usize| tensor(&[&v[t * w..(t + 1) * w], &v[t * w..(t + 1) * w]].concat(), w);
        let out = host(cache.extend(twice(&q, 12), twice(&k, 6), twice(&v, 6), &rows, shape.scale));
        assert_close("slot 0", &out[..12], &whole[t * 12..(t + 1) * 12], 1e-6);
        assert_eq!(out[..12], out[12..]);
    }
}
