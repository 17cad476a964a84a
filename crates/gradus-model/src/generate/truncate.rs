//! Truncation: restricts sampling to likely ids.
//!
//! Top-k, top-p, min-p and typical-p have the order and meaning of transformers 5.23. If logits tie at the edge of the
//! nucleus, the higher id is kept, as in transformers on a CPU. Nothing sorts the whole vocabulary: every stage is one
//! pass, or a selection from the result of one pass.

use gradus_kernels::{exp_or_zero as exp, maximum};

use super::params::SamplingParams;

/// Sets to −∞ what top-k, then top-p, then min-p, then typical-p exclude.
pub(super) fn truncate(logits_v: &mut [f32], params: &SamplingParams) {
    keep_likely(logits_v, params);
    if params.typical_p < 1.0 {
        keep_typical(logits_v, f64::from(params.typical_p), 1);
    }
}

/// Applies top-k, top-p and min-p.
fn keep_likely(logits_v: &mut [f32], params: &SamplingParams) {
    if let Some(k) = params.top_k.filter(|&k| k < logits_v.len()) {
        let smallest = kth_largest(logits_v, k.max(1));
        drop_below(logits_v, smallest);
    }
    if params.top_p < 1.0 {
        keep_nucleus(logits_v, f64::from(params.top_p));
    }
    if params.min_p > 0.0 {
        let edge = maximum(logits_v) + params.min_p.ln();
        drop_below(logits_v, edge);
    }
}

/// [`truncate`], but always keeps the `least` likeliest ids (for typical-p, the `least` most typical ones), so that
/// enough beams can continue.
pub(super) fn truncate_keeping(logits_v: &mut [f32], params: &SamplingParams, least: usize) {
    let mut order: Vec<usize> = (0..logits_v.len()).collect();
    let least = least.clamp(1, order.len());
    order.select_nth_unstable_by(least - 1, |&a, &b| logits_v[b].total_cmp(&logits_v[a]));
    let kept: Vec<(usize, f32)> = order[..least].iter().map(|&id| (id, logits_v[id])).collect();
    keep_likely(logits_v, params);
    kept.into_iter().for_each(|(id, logit)| logits_v[id] = logit);
    if params.typical_p < 1.0 {
        keep_typical(logits_v, f64::from(params.typical_p), least);
    }
}

pub(super) fn drop_below(logits_v: &mut [f32], edge: f32) {
    logits_v.iter_mut().for_each(|logit| *logit = if *logit < edge { f32::NEG_INFINITY } else { *logit });
}

/// Returns the `k`-th largest of the logits, with `k` from 1.
///
/// One pass collects the logits that exceed the `k`-th best one so far. The collection is cut back to `k` whenever it
/// reaches twice that size.
pub(super) fn kth_largest(logits_v: &[f32], k: usize) -> f32 {
    let descending = |a: &f32, b: &f32| b.total_cmp(a);
    let room = (2 * k).max(64);
    let mut best: Vec<f32> = Vec::with_capacity(room);
    let mut edge = f32::NEG_INFINITY;
    for &logit in logits_v {
        if logit >= edge {
            best.push(logit);
            if best.len() == room {
                edge = *best.select_nth_unstable_by(k - 1, descending).1;
                best.truncate(k);
            }
        }
    }
    // There are fewer than k only if the rest are NaN.
    let last = k.min(best.len()).saturating_sub(1);
    if best.is_empty() { f32::NEG_INFINITY } else { *best.select_nth_unstable_by(last, descending).1 }
}

/// Bins per nat of the histogram that locates the edge of the nucleus.
const BINS_PER_NAT: f32 = 32.0;
/// Total number of bins: 64 nats, beyond which probabilities are negligible.
const BINS: usize = 2048;

/// Keeps the smallest set of likeliest ids with probability `top_p` or more.
///
/// Mass is first summed in bins by distance from the largest logit. Only the bin in which `top_p` is reached is sorted.
fn keep_nucleus(logits_v: &mut [f32], top_p: f64) {
    let maximum = maximum(logits_v);
    if !maximum.is_finite() {
        return;
    }
    // `as usize` maps −∞ (a distance of +∞) to the last bin and NaN to the first.
    let bin = |logit: f32| (((maximum - logit) * BINS_PER_NAT) as usize).min(BINS - 1);
    let mut mass = vec![0.0f64; BINS];
    for &logit in logits_v.iter().filter(|logit| **logit > f32::NEG_INFINITY) {
        mass[bin(logit)] += f64::from(exp(logit - maximum));
    }
    let target = top_p * mass.iter().sum::<f64>();
    let (mut before, mut edge) = (0.0, 0);
    while edge + 1 < BINS && before + mass[edge] < target {
        before += mass[edge];
        edge += 1;
    }
    let in_edge =
        |(id, logit): (usize, &f32)| (bin(*logit) == edge && *logit > f32::NEG_INFINITY).then_some((*logit, id));
    let mut candidates: Vec<(f32, usize)> = logits_v.iter().enumerate().filter_map(in_edge).collect();
    candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    let kept = candidates.iter().take_while(|(logit, _)| {
        let is_needed = before < target;
        before += f64::from(exp(logit - maximum));
        is_needed
    });
    let kept = kept.count().max(usize::from(edge == 0));
    for (logit, id) in &candidates[kept.min(candidates.len())..] {
        debug_assert!(logits_v[*id] == *logit || logit.is_nan());
        logits_v[*id] = f32::NEG_INFINITY;
    }
    logits_v.iter_mut().for_each(|logit| *logit = if bin(*logit) > edge { f32::NEG_INFINITY } else { *logit });
}

/// Keeps the smallest set of ids with probability `mass` or more, in the order of the distance between their
/// information `−ln p` and the entropy. At least the `least` closest ids are kept, and ids that tie with the last one.
///
/// Meister et al. 2023, section 4, <https://arxiv.org/abs/2202.00666>.
fn keep_typical(logits_v: &mut [f32], mass: f64, least: usize) {
    let maximum = maximum(logits_v);
    if !maximum.is_finite() {
        return;
    }
    let total: f64 = logits_v.iter().map(|&logit| f64::from(exp(logit - maximum))).sum();
    let logprob = |logit: f32| f64::from(logit - maximum) - total.ln();
    let finite = || logits_v.iter().copied().filter(|logit| *logit > f32::NEG_INFINITY);
    let entropy: f64 = finite().map(logprob).map(|logprob| -logprob * logprob.exp()).sum();
    let distance = |logit: f32| (-logprob(logit) - entropy).abs();
    let mut by_distance: Vec<(f64, f64)> = finite().map(|logit| (distance(logit), logprob(logit).exp())).collect();
    let ascending = |a: &(f64, f64), b: &(f64, f64)| a.0.total_cmp(&b.0);
    let least = least.clamp(1, by_distance.len());
    let mut edge = by_distance.select_nth_unstable_by(least - 1, ascending).1.0;
    // Finds the id at which the mass is reached: partitions into halves and continues only in the half that contains it.
    let (mut rest, mut before) = (&mut by_distance[..], 0.0);
    while rest.len() > 1 {
        let half = rest.len() / 2;
        rest.select_nth_unstable_by(half, ascending);
        let (closer, farther) = rest.split_at_mut(half);
        let of_closer = closer.iter().map(|(_, probability)| probability).sum::<f64>();
        if before + of_closer >= mass {
            rest = closer;
        } else {
            before += of_closer;
            rest = farther;
        }
    }
    edge = edge.max(rest[0].0);
    for logit in logits_v.iter_mut().filter(|logit| **logit > f32::NEG_INFINITY) {
        if distance(*logit) > edge {
            *logit = f32::NEG_INFINITY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(logits: &[f32], params: &SamplingParams) -> Vec<usize> {
        let mut logits_v = logits.to_vec();
        truncate(&mut logits_v, params);
        (0..logits.len()).filter(|&id| logits_v[id] > f32::NEG_INFINITY).collect()
    }

    const PLAIN: fn() -> SamplingParams = SamplingParams::default;

    #[test]
    fn truncation_by_hand() {
        let logits: Vec<f32> = [0.4f32, 0.1, 0.3, 0.2].iter().map(|p| p.ln()).collect();
        for (params, expected) in [
            (SamplingParams { top_k: Some(2), ..PLAIN() }, vec![0, 2]),
            (SamplingParams { top_k: Some(9), ..PLAIN() }, vec![0, 1, 2, 3]),
            (SamplingParams { top_p: 0.65, ..PLAIN() }, vec![0, 2]),
            (SamplingParams { top_p: 0.75, ..PLAIN() }, vec![0, 2, 3]),
            (SamplingParams { top_p: 1e-6, ..PLAIN() }, vec![0]),
            (SamplingParams { min_p: 0.45, ..PLAIN() }, vec![0, 2, 3]),
            (SamplingParams { min_p: 1.0, ..PLAIN() }, vec![0]),
            // 0.4/0.7 = 0.571 of what top-k keeps: the nucleus uses the renormalized probabilities of the two.
            (SamplingParams { top_k: Some(2), top_p: 0.56, ..PLAIN() }, vec![0]),
            // The entropy is 1.28 nats; the ids have 0.92, 2.30, 1.20 and 1.61 nats.
            (SamplingParams { typical_p: 0.2, ..PLAIN() }, vec![2]),
            (SamplingParams { typical_p: 0.4, ..PLAIN() }, vec![2, 3]),
            (SamplingParams { typical_p: 0.6, ..PLAIN() }, vec![0, 2, 3]),
            (SamplingParams { typical_p: 0.95, ..PLAIN() }, vec![0, 1, 2, 3]),
        ] {
            assert_eq!(kept(&logits, &params), expected, "{params:?}");
        }
        // Ties: top-k keeps all ids that tie with the last one; the nucleus keeps the higher ids.
        assert_eq!(kept(&[1.0, 2.0, 1.0, 0.0], &SamplingParams { top_k: Some(2), ..PLAIN() }), [0, 1, 2]);
        assert_eq!(kept(&[0.0; 4], &SamplingParams { top_p: 0.5, ..PLAIN() }), [2, 3]);
    }

    proptest! {
        /// Compares with the definitions, on a sorted vocabulary.
        #[test]
        fn truncation_agrees_with_sorting(
            logits in prop::collection::vec(-8.0f32..8.0, 2..600), k in 1usize..80, top_p in 0.01f32..1.0, min_p in 0.0f32..0.5,
            least in 1usize..9,
        ) {
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            let mut expected = order[..k.min(order.len())].to_vec();
            expected.sort_unstable();
            prop_assert_eq!(kept(&logits, &SamplingParams { top_k: Some(k), ..PLAIN() }), expected);

            let mass = logits.iter().map(|&z| f64::from(z).exp()).sum::<f64>();
            let probabilities: Vec<f64> = logits.iter().map(|&z| f64::from(z).exp() / mass).collect();
            let (mut before, mut nucleus, mut is_close) = (0.0, Vec::new(), false);
            for &id in &order {
                is_close |= (before - f64::from(top_p)).abs() < 1e-5;
                if before >= f64::from(top_p) { break }
                nucleus.push(id);
                before += probabilities[id];
            }
            nucleus.sort_unstable();
            if !is_close {
                prop_assert_eq!(kept(&logits, &SamplingParams { top_p, ..PLAIN() }), nucleus);
            }

            let entropy = probabilities.iter().map(|p| -p * p.ln()).sum::<f64>();
            let distance = |id: usize| (-probabilities[id].ln() - entropy).abs();
            let mut by_distance: Vec<usize> = (0..logits.len()).collect();
            by_distance.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)));
            let (mut before, mut typical, mut is_close) = (0.0, Vec::new(), false);
            for &id in &by_distance {
                is_close |= (before - f64::from(top_p)).abs() < 1e-5;
                if before >= f64::from(top_p) && typical.len() >= least { break }
                typical.push(id);
                before += probabilities[id];
            }
            is_close |= by_distance.windows(2).any(|pair| (distance(pair[0]) - distance(pair[1])).abs() < 1e-5);
            typical.sort_unstable();
            if !is_close {
                let mut found = logits.clone();
                keep_typical(&mut found, f64::from(top_p), least);
                let found: Vec<usize> = (0..found.len()).filter(|&id| found[id] > f32::NEG_INFINITY).collect();
                prop_assert_eq!(found, typical);
            }

            let edge = probabilities[order[0]] * f64::from(min_p);
            let near = |p: f64| (p / edge - 1.0).abs() < 1e-5;
            if !probabilities.iter().any(|&p| near(p)) {
                let expected: Vec<usize> = (0..logits.len()).filter(|&id| probabilities[id] >= edge).collect();
                prop_assert_eq!(kept(&logits, &SamplingParams { min_p, ..PLAIN() }), expected);
            }
        }
    }
}
