//! Supports: the ids that could be sampled at a position, and logprobs normalized over them.

use burn::tensor::{Int, Tensor, TensorData, activation};
use gradus_kernels::{LmHead, TokenLogprobs};
use serde::{Deserialize, Serialize};

/// Ids that could be sampled at one position, after bans and truncation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Support {
    /// All ids of the vocabulary.
    All,
    /// These ids, in ascending order.
    Ids(Box<[u32]>),
    /// Ids whose bits are set, used if the list of ids would be longer.
    Bits(Box<[u64]>),
}

impl Support {
    /// Returns the ids whose logits are above −∞.
    pub fn of(logits_v: &[f32]) -> Self {
        let is_kept = |logit: &f32| *logit > f32::NEG_INFINITY;
        let count = logits_v.iter().filter(|logit| is_kept(logit)).count();
        if count == logits_v.len() {
            Self::All
        } else if count * 32 <= logits_v.len() {
            let kept = logits_v.iter().enumerate().filter(|(_, logit)| is_kept(logit));
            Self::Ids(kept.map(|(id, _)| id as u32).collect())
        } else {
            let word =
                |logits: &[f32]| logits.iter().rev().fold(0, |word, logit| word << 1 | u64::from(is_kept(logit)));
            Self::Bits(logits_v.chunks(64).map(word).collect())
        }
    }

    /// Whether the support contains `id`.
    pub fn contains(&self, id: u32) -> bool {
        match self {
            Self::All => true,
            Self::Ids(ids) => ids.binary_search(&id).is_ok(),
            Self::Bits(words) => words.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1),
        }
    }

    /// Number of ids, in a vocabulary of `vocabulary` ids.
    pub fn len(&self, vocabulary: usize) -> usize {
        match self {
            Self::All => vocabulary,
            Self::Ids(ids) => ids.len(),
            Self::Bits(words) => words.iter().map(|word| word.count_ones() as usize).sum(),
        }
    }

    /// Writes the mask that is added to logits: 0 for ids of the support, `without` for all others.
    fn write(&self, line_v: &mut [f32], without: f32) {
        match self {
            Self::All => line_v.fill(0.0),
            Self::Ids(ids) => {
                line_v.fill(without);
                ids.iter().for_each(|&id| line_v[id as usize] = 0.0);
            }
            Self::Bits(_) => {
                let of = |id: usize| if self.contains(id as u32) { 0.0 } else { without };
                line_v.iter_mut().enumerate().for_each(|(id, value)| *value = of(id));
            }
        }
    }
}

/// Far below every logit, but finite: entropies contain products such as 0 · −∞, which would be NaN.
const NEVER: f32 = -1e30;

/// Computes the logits of each target at `temperature`, `[M, V]`. Adds [`NEVER`] to ids outside of the target's support. Without supports,
/// the logits do not change.
pub(super) fn logits(hidden_md: Tensor<2>, head: &LmHead, supports_m: &[Support], temperature: f32) -> Tensor<2> {
    let logits_mv = head.logits(hidden_md) / temperature;
    let ([m, v], device) = (logits_mv.dims(), logits_mv.device());
    if supports_m.is_empty() {
        return logits_mv;
    }
    let mut mask = vec![0.0; m * v];
    mask.chunks_exact_mut(v).zip(supports_m).for_each(|(line, support)| support.write(line, NEVER));
    logits_mv + Tensor::<2>::from_data(TensorData::new(mask, [m, v]), &device)
}

/// Computes logprobs and entropies of each target, normalized over its support. The `logits` of all rows and their gradients are in memory.
///
/// # Panics
/// When the numbers of targets and supports differ.
pub(super) fn logprobs(
    hidden_md: Tensor<2>,
    head: &LmHead,
    targets_m: &[u32],
    supports_m: &[Support],
    temperature: f32,
) -> TokenLogprobs {
    let (m, device) = (targets_m.len(), hidden_md.device());
    assert_eq!(m, supports_m.len(), "one support per target");
    let ids: Vec<i64> = targets_m.iter().map(|&id| i64::from(id)).collect();
    let ids_m1 = Tensor::<2, Int>::from_data(TensorData::new(ids, [m, 1]), &device);
    let logits_mv = logits(hidden_md, head, supports_m, temperature);
    let logprobs_mv = activation::log_softmax(logits_mv.clone(), 1);
    let at_target_m1 = logits_mv.clone().gather(1, ids_m1.clone());
    let target_logprobs_m1 = logprobs_mv.clone().gather(1, ids_m1.clone());
    TokenLogprobs {
        logprobs_m: target_logprobs_m1.clone().squeeze_dim(1),
        entropies_m: -(logprobs_mv.clone().exp() * logprobs_mv).sum_dim(1).squeeze_dim(1),
        log_partitions_m: (at_target_m1 - target_logprobs_m1).squeeze_dim(1),
        mean_logits_m: logits_mv.clone().mean_dim(1).squeeze_dim(1),
        correct_m: logits_mv.argmax(1).equal(ids_m1).float().squeeze_dim(1).detach(),
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use gradus_kernels::Precision;

    use super::*;
    use crate::host::read;

    #[test]
    fn few_ids_are_a_list_and_many_are_bits() {
        for v in [1usize, 63, 64, 65, 200] {
            for step in [1, 2, 3, 40, 199] {
                let logits: Vec<f32> =
                    (0..v).map(|id| if id % step == 0 { id as f32 } else { f32::NEG_INFINITY }).collect();
                let support = Support::of(&logits);
                match (&support, v.div_ceil(step)) {
                    (Support::All, count) => assert_eq!(count, v),
                    (Support::Ids(ids), count) => assert!(ids.len() == count && count * 32 <= v),
                    (Support::Bits(_), count) => assert!(count < v && count * 32 > v),
                }
                let found: Vec<usize> = (0..v).filter(|&id| support.contains(id as u32)).collect();
                assert_eq!(found, (0..v).step_by(step).collect::<Vec<_>>(), "{v} {step}");
                assert_eq!(support.len(v), found.len());
                let mut line = vec![7.0; v];
                support.write(&mut line, -1.0);
                assert!((0..v).all(|id| line[id] == if id % step == 0 { 0.0 } else { -1.0 }), "{v} {step}");
            }
        }
    }

    /// Two targets over four ids. Hidden states 1 and 2, head (0, 1, 2, 3), temperature 2, so logits 0, ½, 1, 1½ and 0, 1, 2, 3.
    #[test]
    fn logprobs_are_taken_among_the_support() {
        let device = Device::flex().autodiff();
        let hidden = Tensor::<2>::from_data(TensorData::new(vec![1.0f32, 2.0], [2, 1]), &device).require_grad();
        let weight = Tensor::<2>::from_data(TensorData::new(vec![0.0f32, 1.0, 2.0, 3.0], [4, 1]), &device);
        let head = LmHead::dense(weight, Precision::F32);
        let supports = [Support::Ids([1, 3].into()), Support::All];
        let found = logprobs(hidden.clone(), &head, &[3, 1], &supports, 2.0);
        // p(3 | {1, 3}) = 1/(1 + e⁻¹) = 0.7310586; p(1) = e/(1 + e + e² + e³) = 0.0871443.
        let logprobs_m = read(&found.logprobs_m);
        assert!((logprobs_m[0] - 0.731_058_6f32.ln()).abs() < 1e-6, "{logprobs_m:?}");
        assert!((logprobs_m[1] - 0.087_144_3f32.ln()).abs() < 1e-5, "{logprobs_m:?}");
        // −p ln p − q ln q with p = 0.7310586: 0.5822031.
        assert!((read(&found.entropies_m)[0] - 0.582_203_1).abs() < 1e-6);
        // ∂/∂h of the first: (w₃ − E[w])/τ = (3 − (3p + q))/2 = q = 0.2689414.
        let gradient = hidden.grad(&found.logprobs_m.sum().backward()).expect("a gradient").into_data();
        let gradient: Vec<f32> = gradient.try_into_vec().expect("f32");
        assert!((gradient[0] - 0.268_941_4).abs() < 1e-6, "{gradient:?}");
    }
}
