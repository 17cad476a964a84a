//! Dropout of attention probabilities, with masks that depend only on a key and on positions.
//!
//! `P' = M ∘ P / (1 − p)`, `O = P' V`. Backward: `∂V = P'ᵀ ∂O`, `∂P = M ∘ (∂O Vᵀ) / (1 − p)`; `D = Σ ∂P ∘ P = Σ ∂O ∘ O` as without dropout.
//! The key, the head, the row of the query and the position of the attended key determine whether a probability is dropped. Blocks and
//! threads have no influence, and a recomputed pass drops the same probabilities.
//! Srivastava et al. 2014, <https://jmlr.org/papers/v15/srivastava14a.html>.

use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};

use crate::dropout::{Keeping, mix};

/// Selects the probabilities that are dropped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionDropout {
    /// Probability of dropping, at least 0 and below 1.
    pub probability: f32,
    /// Key from which the masks are drawn.
    pub key: u64,
}

impl AttentionDropout {
    /// Multiplies values of one head and query with their mask. Their keys start at position `first` of the sequence.
    pub(super) fn apply(self, head: usize, query: usize, first: usize, values: &mut [f32]) {
        let row = mix(self.key ^ mix(((head as u64) << 32) + query as u64));
        let keeping = Keeping::new(self.probability);
        for (value, position) in values.iter_mut().zip(first as u64..) {
            let factor = keeping.of(mix(row.wrapping_add(position)));
            *value = if factor == 0.0 { 0.0 } else { *value * factor };
        }
    }

    /// Mask of all heads for these queries and the first `seen` keys, `[H, T, seen]`.
    pub(super) fn mask(self, heads: usize, queries: &Range<usize>, seen: usize, device: &Device) -> Tensor<3> {
        let mut mask = vec![1.0; heads * queries.len() * seen];
        let rows = (0..heads).flat_map(|head| queries.clone().map(move |query| (head, query)));
        for ((head, query), row) in rows.zip(mask.chunks_exact_mut(seen)) {
            self.apply(head, query, 0, row);
        }
        Tensor::from_data(TensorData::new(mask, [heads, queries.len(), seen]), device)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::attention::reference;
    use crate::fused::testing::{assert_close, check, host, leaf};
    use crate::{
        AttentionExtras, AttentionShape, CrossSegments, Mask, PositionBias, PositionBuckets, Precision, Segments,
        attention, attention_across_with, attention_dropping, attention_fused_dropping, attention_with,
    };

    const DROPOUT: AttentionDropout = AttentionDropout { probability: 0.3, key: 11 };

    fn shape(mask: Mask) -> AttentionShape {
        AttentionShape { heads: 4, kv_heads: 2, head_dim: 5, scale: 0.4, mask, cap: None, precision: Precision::F32 }
    }

    #[test]
    fn agrees_with_the_reference() {
        // Blocks of queries end within the second sequence, and two continuations share the last prompt.
        let mut segments = Segments::sequences([3, 90]);
        segments.push(70, vec![2, 40]);
        let (n, window) = (segments.tokens(), NonZeroUsize::new(9).expect("not zero"));
        for mask in [Mask::Causal, Mask::CausalWindow(window), Mask::Bidirectional] {
            let shape = shape(mask);
            check(
                &format!("dropout, {mask:?}"),
                &[leaf([n, 20], 1), leaf([n, 10], 2), leaf([n, 10], 3)],
                |x| attention_dropping(x[0].clone(), x[1].clone(), x[2].clone(), Some(DROPOUT), &segments, shape),
                |x| reference::dropping(x[0].clone(), x[1].clone(), x[2].clone(), Some(DROPOUT), &segments, shape),
                2e-5,
            );
        }
    }

    #[test]
    fn with_a_bias_and_across_batches_it_agrees_with_the_reference() {
        let mut targets = Segments::sequences([3, 80]);
        targets.push(2, vec![5, 70]);
        let cross = CrossSegments::new(targets.clone(), Segments::sequences([66, 7]), vec![1, 0, 0]);
        let ([n, m], shape) = (cross.tokens(), shape(Mask::Bidirectional));
        let extras = |weight_hr: &Tensor<2>| AttentionExtras {
            bias: Some(PositionBias {
                weight_hr: weight_hr.clone(),
                buckets: PositionBuckets::t5_bidirectional(8, 20),
            }),
            dropout: Some(DROPOUT),
        };
        check(
            "bias and dropout",
            &[leaf([n, 20], 1), leaf([n, 10], 2), leaf([n, 10], 3), leaf([4, 8], 4)],
            |x| attention_with(x[0].clone(), x[1].clone(), x[2].clone(), extras(&x[3]), &targets, shape),
            |x| reference::within_with([x[0].clone(), x[1].clone(), x[2].clone()], &extras(&x[3]), &targets, shape),
            2e-5,
        );
        check(
            "across",
            &[leaf([n, 20], 1), leaf([m, 10], 2), leaf([m, 10], 3), leaf([4, 8], 4)],
            |x| attention_across_with(x[0].clone(), x[1].clone(), x[2].clone(), extras(&x[3]), &cross, shape),
            |x| reference::across_with([x[0].clone(), x[1].clone(), x[2].clone()], &extras(&x[3]), &cross, shape),
            2e-5,
        );
    }

    #[test]
    fn side_by_side_drops_the_same() {
        let (segments, shape) = (Segments::sequences([70, 5]), shape(Mask::Causal));
        let qkv = leaf([75, 40], 4).inner();
        let [q, k, v] = [(0, 20), (20, 10), (30, 10)].map(|(from, width)| qkv.clone().narrow(1, from, width));
        let found = host(attention_fused_dropping(qkv, Some(DROPOUT), &segments, shape));
        assert_eq!(found, host(attention_dropping(q, k, v, Some(DROPOUT), &segments, shape)));
    }

    #[test]
    fn probabilities_are_dropped_and_their_mean_is_kept() {
        // With equal scores and values of 1, an output is the share of kept probabilities divided by 0.7.
        let (n, shape) = (64, AttentionShape { scale: 0.0, ..shape(Mask::Bidirectional) });
        let [q, k] = [leaf([n, 20], 1).inner(), leaf([n, 10], 2).inner()];
        let ones = Tensor::<2>::ones([n, 10], &q.device());
        let run = |key| {
            let dropout = Some(AttentionDropout { key, ..DROPOUT });
            let segments = Segments::sequences([n]);
            host(attention_dropping(q.clone(), k.clone(), ones.clone(), dropout, &segments, shape))
        };
        let outputs = run(11);
        // One number per query and head: the five of a head are equal.
        let shares: Vec<f32> = outputs.iter().step_by(5).copied().collect();
        let mean = shares.iter().sum::<f32>() / shares.len() as f32;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        // Each of 64 probabilities is kept with probability 0.7 and then divided by 0.7: σ = √(0.3 / 0.7 / 64) = 0.082.
        let spread = shares.iter().map(|share| (share - mean).powi(2)).sum::<f32>() / shares.len() as f32;
        assert!((spread.sqrt() - 0.082).abs() < 0.012, "{}", spread.sqrt());
        assert_eq!(outputs, run(11));
        assert_ne!(outputs, run(12));
    }

    #[test]
    fn a_probability_of_0_changes_no_bit() {
        let (segments, shape) = (Segments::sequences([70, 5]), shape(Mask::Causal));
        let x = [leaf([75, 20], 1), leaf([75, 10], 2), leaf([75, 10], 3)].map(Tensor::inner);
        let [q, k, v] = x.clone();
        let plain = host(attention(q, k, v, &segments, shape));
        for dropout in [None, Some(AttentionDropout { probability: 0.0, ..DROPOUT })] {
            let [q, k, v] = x.clone();
            assert_eq!(host(attention_dropping(q, k, v, dropout, &segments, shape)), plain);
        }
        let [q, k, v] = x;
        let dropped = host(attention_dropping(q, k, v, Some(DROPOUT), &segments, shape));
        assert!(dropped != plain);
        // The first query of a sequence sees one key. Its probability is dropped, or divided by 0.7.
        for head in 0..4 {
            let (found, whole) = (&dropped[head * 5..head * 5 + 5], &plain[head * 5..head * 5 + 5]);
            let factor = if found[0] == 0.0 { 0.0 } else { 1.0 / 0.7 };
            let expected: Vec<f32> = whole.iter().map(|value| value * factor).collect();
            assert_close("first query", found, &expected, 1e-6);
        }
    }
}
