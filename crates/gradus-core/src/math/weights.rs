//! The weight of each counted token in the loss of one optimizer step.
//!
//! The weights are computed once for the whole step, before its first micro-batch. The loss of a micro-batch is `Σ weight · token loss`,
//! and micro-batches are summed, so any split into micro-batches gives the same gradient.

use std::ops::Range;

/// How token losses are reduced to one number. `Cᵢ` is the number of counted tokens of sequence `i`, `B` the number of sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// `Σ / Σᵢ Cᵢ`: every token has the same weight. SFT, PPO; DAPO (Yu et al. 2025, <https://arxiv.org/abs/2503.14476>).
    TokenMean,
    /// `1/B · Σᵢ (Σ / Cᵢ)`: every sequence has the same weight. GRPO (Shao et al. 2024, <https://arxiv.org/abs/2402.03300>).
    SequenceMean,
    /// `Σ / (B · length)`: Dr. GRPO (Liu et al. 2025, <https://arxiv.org/abs/2503.20783>).
    FixedLength(usize),
    /// `1/B · Σ`: the weight of a sequence is its length (LUSPO).
    SequenceSum,
}

/// Weight of one counted token in each sequence; the loss is `Σ weight · loss` over counted tokens.
///
/// `counts_b` covers the whole optimizer step. A sequence without counted tokens has weight 0 but counts in `B`, as in TRL 1.16. If no
/// token of the step counts, all weights are 0.
pub fn token_weights(counts_b: &[usize], reduction: Reduction) -> Vec<f32> {
    let (tokens, sequences) = (counts_b.iter().sum::<usize>() as f64, counts_b.len() as f64);
    let weight = |count: usize| match reduction {
        _ if count == 0 => 0.0,
        Reduction::TokenMean => 1.0 / tokens,
        Reduction::SequenceMean => 1.0 / (sequences * count as f64),
        Reduction::FixedLength(length) => 1.0 / (sequences * length as f64),
        Reduction::SequenceSum => 1.0 / sequences,
    };
    counts_b.iter().map(|&count| weight(count) as f32).collect()
}

/// Like [`token_weights`], but reduced within each micro-batch and then averaged over micro-batches (`bnpo` in TRL; other code that
/// accumulates the means of micro-batches does the same). The result depends on the split: tokens of small micro-batches have a larger
/// weight. An empty micro-batch counts as one with the mean 0.
///
/// # Panics
/// When the micro-batches do not cover the sequences in order.
pub fn micro_mean_weights(counts_b: &[usize], micro_batches: &[Range<usize>], reduction: Reduction) -> Vec<f32> {
    let mut weights_b = Vec::with_capacity(counts_b.len());
    for range in micro_batches {
        assert_eq!(range.start, weights_b.len(), "micro-batches follow each other");
        let within = token_weights(&counts_b[range.clone()], reduction);
        weights_b.extend(within.iter().map(|weight| weight / micro_batches.len() as f32));
    }
    assert_eq!(weights_b.len(), counts_b.len(), "micro-batches cover every sequence");
    weights_b
}

/// Weights of tokens whose losses are averaged within parts of `size` sequences, like the gradient accumulation of FineGrainedRLHF,
/// <https://github.com/allenai/FineGrainedRLHF>.
///
/// The parts are added up (`summed`) or averaged. With `mean_length`, the mean length of all sequences of the iteration, each part is
/// weighted by its own mean length divided by `mean_length`.
pub fn part_weights(counts_b: &[usize], size: usize, summed: bool, mean_length: Option<f64>) -> Vec<f32> {
    let size = size.clamp(1, counts_b.len().max(1));
    let parts = if summed { 1.0 } else { counts_b.len().div_ceil(size) as f64 };
    let weight = |part: &[usize]| {
        let tokens = part.iter().sum::<usize>() as f64;
        let length = mean_length.map_or(1.0, |all| tokens / part.len() as f64 / all);
        if tokens == 0.0 { 0.0 } else { (length / tokens / parts) as f32 }
    };
    counts_b.chunks(size).flat_map(|part| vec![weight(part); part.len()]).collect()
}

/// Repeats the weight of each sequence for each of its counted tokens: `[B]` to `[M]`.
///
/// # Panics
/// When the lengths differ.
pub fn per_token(weights_b: &[f32], counts_b: &[usize]) -> Vec<f32> {
    assert_eq!(weights_b.len(), counts_b.len(), "one weight per sequence");
    weights_b.iter().zip(counts_b).flat_map(|(&weight, &count)| std::iter::repeat_n(weight, count)).collect()
}

/// Weight of each token of `[2P]` completions (all chosen ones, then all rejected ones), `[M]`: 1 up to the length of the shorter
/// completion of the pair, `alpha` after it.
///
/// Liu et al. 2024 (length-desensitized DPO), <https://arxiv.org/abs/2409.06411>.
///
/// # Panics
/// When the completions are not pairs.
pub fn beyond_shared(counts_b: &[usize], alpha: f32) -> Vec<f32> {
    assert!(counts_b.len().is_multiple_of(2), "chosen and rejected completions are equally many");
    let (chosen, rejected) = counts_b.split_at(counts_b.len() / 2);
    let shared: Vec<usize> = chosen.iter().zip(rejected).map(|(chosen, rejected)| *chosen.min(rejected)).collect();
    let shared = shared.iter().chain(&shared);
    let weight = |(&count, &shared): (&usize, &usize)| (0..count).map(move |t| if t < shared { 1.0 } else { alpha });
    counts_b.iter().zip(shared).flat_map(weight).collect()
}

/// Weight of each of P pairs, `[P]`: the likelihood that the policy itself writes completions like these two.
///
/// `exp(meanₜ aₜ)` of the chosen completion times that of the rejected one. `aₜ = log pₜ − log Σᵥ pᵥ²` compares a token's logprob with the
/// expected one. Zhou et al. 2024 (WPO), equation 2, <https://arxiv.org/abs/2406.11827>.
///
/// `aligned_m` holds `aₜ` of all chosen completions, then of all rejected ones; `counts_b` holds their lengths.
///
/// # Panics
/// When the completions are not pairs, or the counts do not sum to `M`.
pub fn on_policy(aligned_m: &[f32], counts_b: &[usize]) -> Vec<f32> {
    assert!(counts_b.len().is_multiple_of(2), "chosen and rejected completions are equally many");
    let mut rest = aligned_m;
    let mut mean = |&count: &usize| {
        let (tokens, after) = rest.split_at(count);
        rest = after;
        tokens.iter().map(|&a| f64::from(a)).sum::<f64>() / count.max(1) as f64
    };
    let means_b: Vec<f64> = counts_b.iter().map(&mut mean).collect();
    assert!(rest.is_empty(), "counts_b sum to M");
    let (chosen, rejected) = means_b.split_at(means_b.len() / 2);
    chosen.iter().zip(rejected).map(|(chosen, rejected)| (chosen + rejected).exp() as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_are_averaged_or_added_and_weigh_what_they_are_long() {
        // Parts of 3 + 1 tokens and of 2 tokens; the mean length of all sequences is 2.
        let counts_b = [3, 1, 2];
        assert_eq!(part_weights(&counts_b, 2, false, None), [0.125, 0.125, 0.25]);
        assert_eq!(part_weights(&counts_b, 2, true, None), [0.25, 0.25, 0.5]);
        assert_eq!(part_weights(&counts_b, 1, true, Some(2.0)), [0.5, 0.5, 0.5], "each token as much as any other");
        assert_eq!(part_weights(&counts_b, 9, false, None), token_weights(&counts_b, Reduction::TokenMean));
        assert_eq!(part_weights(&[0, 0], 1, false, Some(1.0)), [0.0, 0.0]);
    }

    #[test]
    fn three_and_two_tokens_by_hand() {
        for (reduction, expected) in [
            (Reduction::TokenMean, [1.0 / 5.0, 1.0 / 5.0, 0.0]),
            (Reduction::SequenceMean, [1.0 / 9.0, 1.0 / 6.0, 0.0]),
            (Reduction::FixedLength(4), [1.0 / 12.0, 1.0 / 12.0, 0.0]),
            (Reduction::SequenceSum, [1.0 / 3.0, 1.0 / 3.0, 0.0]),
        ] {
            assert_eq!(token_weights(&[3, 2, 0], reduction), expected, "{reduction:?}");
        }
        assert_eq!(per_token(&[0.5, 9.0, 0.25], &[2, 0, 1]), [0.5, 0.5, 0.25]);
    }

    #[test]
    fn nothing_counted_is_all_zeros() {
        assert_eq!(token_weights(&[0, 0], Reduction::TokenMean), [0.0, 0.0]);
        assert!(token_weights(&[], Reduction::SequenceMean).is_empty());
    }

    #[test]
    fn micro_means_favor_small_micro_batches() {
        // Micro-batches of 1 token and of 2 + 3 tokens.
        let found = micro_mean_weights(&[1, 2, 3], &[0..1, 1..3], Reduction::TokenMean);
        assert_eq!(found, [0.5, 0.1, 0.1]);
        // An empty one between them: thirds instead of halves.
        let found = micro_mean_weights(&[1, 2, 3], &[0..1, 1..1, 1..3], Reduction::TokenMean);
        assert_eq!(found, [1.0 / 3.0, 0.2 / 3.0, 0.2 / 3.0]);
    }

    #[test]
    fn tokens_beyond_the_shorter_completion_weigh_less() {
        // Pairs of 3 and 1 tokens, and of 2 and 4 tokens.
        assert_eq!(beyond_shared(&[3, 2, 1, 4], 0.25), [1.0, 0.25, 0.25, 1.0, 1.0, 1.0, 1.0, 1.0, 0.25, 0.25]);
        assert!(beyond_shared(&[], 0.5).is_empty());
    }

    #[test]
    fn a_pair_weighs_what_its_completions_are_likely() {
        // e^((−1 − 3)/2) · e^(−1) and e^(½) · e^0
        let found = on_policy(&[-1.0, -3.0, 0.5, -1.0], &[2, 1, 1, 0]);
        assert!((found[0] - (-3.0f32).exp()).abs() < 1e-7 && (found[1] - 0.5f32.exp()).abs() < 1e-6, "{found:?}");
    }

    proptest! {
        #[test]
        fn weights_of_a_step_sum_to_one(counts_b in prop::collection::vec(1usize..50, 1..20)) {
            for reduction in [Reduction::TokenMean, Reduction::SequenceMean] {
                let weights_b = token_weights(&counts_b, reduction);
                let sum: f32 = per_token(&weights_b, &counts_b).iter().sum();
                prop_assert!((sum - 1.0).abs() < 1e-4, "{}", sum);
            }
        }

        #[test]
        fn equal_lengths_make_all_means_equal(count in 1usize..50, sequences in 1usize..20) {
            let counts_b = vec![count; sequences];
            let token = token_weights(&counts_b, Reduction::TokenMean);
            prop_assert_eq!(&token, &token_weights(&counts_b, Reduction::SequenceMean));
            prop_assert_eq!(&token, &token_weights(&counts_b, Reduction::FixedLength(count)));
        }
    }
}
