//! Masks over the vocabulary that a caller provides, and the likelihood mask of NLPO.
//!
//! Ramamurthy et al. 2023 (RL4LMs), section 4.2, <https://arxiv.org/abs/2210.01241>. As in their code, the mask keeps
//! the smallest set of tokens whose probability exceeds a bound, and in addition the tokens in `always`.

use rayon::prelude::*;

use super::params::{Record, SamplingParams};
use super::processors::History;
use super::truncate::{drop_below, kth_largest, truncate};
use crate::model::{CausalLm, Support};

/// A mask over the vocabulary that a caller provides, such as an algorithm.
pub trait LogitsMask: Sync {
    /// Returns the ids that each row may sample. `logits_bv` has one line per row: at the temperature, after the
    /// processors that depend on a row's ids, and before truncation. `guide_bv` has the logits of the guide model for
    /// the same rows, if there is one.
    ///
    /// A mask that would leave a row nothing to sample is not applied to it.
    fn supports(&self, rows: &[(usize, History<'_>)], logits_bv: &[f32], guide_bv: Option<&[f32]>) -> Vec<Support>;
}

/// A mask, its guide model, and what is recorded.
#[derive(Clone, Copy)]
pub struct Masking<'a> {
    /// The mask.
    pub mask: &'a dyn LogitsMask,
    /// A second model that computes every row and determines the mask.
    pub guide: Option<&'a CausalLm>,
    /// Ids that are recorded as possible choices of a token.
    pub record: Record,
}

/// A mask that keeps the likeliest ids.
#[derive(Debug, Clone, PartialEq)]
pub struct LikeliestMask {
    /// Which ids count as the likeliest.
    pub kept: Kept,
    /// Minimum number of ids to keep.
    pub at_least: usize,
    /// Ids that are always kept.
    pub always: Vec<u32>,
    /// Divisor of the rows' own logits, for masks without a guide model.
    pub temperature: f32,
}

/// Criterion for the likeliest ids.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kept {
    /// The smallest set with more than this total probability; 1 keeps all ids.
    TopP(f64),
    /// This many ids, at least 1, and those that tie with the last one.
    TopK(usize),
}

impl LikeliestMask {
    /// Returns the ids that the mask keeps for one line of logits.
    pub fn support(&self, logits_v: &[f32]) -> Support {
        let (mut kept_v, all) = (logits_v.to_vec(), logits_v.len());
        match self.kept {
            Kept::TopP(top_p) if top_p >= 1.0 => return Support::All,
            Kept::TopP(top_p) => {
                truncate(&mut kept_v, &SamplingParams { top_p: top_p as f32, ..SamplingParams::default() });
                let left = kept_v.iter().filter(|logit| **logit > f32::NEG_INFINITY).count();
                if left < self.at_least {
                    kept_v.copy_from_slice(logits_v);
                    let edge = kth_largest(logits_v, self.at_least.min(all));
                    drop_below(&mut kept_v, edge);
                }
            }
            Kept::TopK(k) => {
                let k = k.max(self.at_least).max(1);
                if k >= all {
                    return Support::All;
                }
                drop_below(&mut kept_v, kth_largest(logits_v, k));
            }
        }
        for &id in self.always.iter().filter(|id| (**id as usize) < all) {
            kept_v[id as usize] = 0.0;
        }
        Support::of(&kept_v)
    }
}

impl LogitsMask for LikeliestMask {
    fn supports(&self, rows: &[(usize, History<'_>)], logits_bv: &[f32], guide_bv: Option<&[f32]>) -> Vec<Support> {
        // Chunks of 0 are not allowed, even of no rows.
        let vocabulary = (logits_bv.len() / rows.len().max(1)).max(1);
        match guide_bv {
            Some(guide_bv) => guide_bv.par_chunks(vocabulary).map(|logits_v| self.support(logits_v)).collect(),
            None => {
                let own = |logits_v: &[f32]| {
                    let raw_v: Vec<f32> = logits_v.iter().map(|logit| logit * self.temperature).collect();
                    self.support(&raw_v)
                };
                logits_bv.par_chunks(vocabulary).map(own).collect()
            }
        }
    }
}

/// Removes from `logits_v` all ids outside `support`, and returns whether there were any. A row that would have nothing
/// left is not changed.
pub(super) fn apply(logits_v: &mut [f32], support: &Support) -> bool {
    let is_left = |(id, logit): (usize, &f32)| *logit > f32::NEG_INFINITY && support.contains(id as u32);
    if *support == Support::All || !logits_v.iter().enumerate().any(is_left) {
        return false;
    }
    let mut taken = false;
    for (id, logit) in logits_v.iter_mut().enumerate() {
        if *logit > f32::NEG_INFINITY && !support.contains(id as u32) {
            (*logit, taken) = (f32::NEG_INFINITY, true);
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(mask: &LikeliestMask, logits_v: &[f32]) -> Vec<u32> {
        let support = mask.support(logits_v);
        (0..logits_v.len() as u32).filter(|id| support.contains(*id)).collect()
    }

    #[test]
    fn the_likeliest_by_hand() {
        // 0.1, 0.4, 0.2, 0.3; sorted and cumulated: 0.4, 0.7, 0.9, 1.
        let logits: Vec<f32> = [0.1f32, 0.4, 0.2, 0.3].map(f32::ln).to_vec();
        let mask = |kept, at_least, always: &[u32]| LikeliestMask {
            kept,
            at_least,
            always: always.to_vec(),
            temperature: 1.0,
        };
        for (mask, expected) in [
            (mask(Kept::TopP(0.3), 1, &[]), vec![1]),
            (mask(Kept::TopP(0.5), 1, &[]), vec![1, 3]),
            (mask(Kept::TopP(0.75), 1, &[]), vec![1, 2, 3]),
            (mask(Kept::TopP(0.3), 3, &[]), vec![1, 2, 3]),
            (mask(Kept::TopP(0.3), 9, &[]), vec![0, 1, 2, 3]),
            (mask(Kept::TopP(0.3), 1, &[0, 77]), vec![0, 1]),
            (mask(Kept::TopP(1.0), 1, &[]), vec![0, 1, 2, 3]),
            (mask(Kept::TopK(2), 1, &[]), vec![1, 3]),
            (mask(Kept::TopK(2), 3, &[]), vec![1, 2, 3]),
            (mask(Kept::TopK(4), 1, &[]), vec![0, 1, 2, 3]),
            (mask(Kept::TopK(0), 0, &[]), vec![1]),
        ] {
            assert_eq!(kept(&mask, &logits), expected, "{mask:?}");
        }
        assert_eq!(mask(Kept::TopP(1.0), 1, &[]).support(&logits), Support::All);
        // So many logits that the k-th largest is selected in several passes.
        assert_eq!(kept(&mask(Kept::TopK(0), 0, &[]), &(0..200).map(|i| i as f32).collect::<Vec<_>>()), [199]);
        assert!(mask(Kept::TopK(1), 1, &[]).supports(&[], &[], None).is_empty());
    }

    #[test]
    fn a_guide_decides_and_otherwise_the_rows_own_logits_at_temperature_one() {
        let mask = LikeliestMask { kept: Kept::TopP(0.6), at_least: 1, always: Vec::new(), temperature: 0.5 };
        let rows = [(0, History::new(&[], 0))];
        // The first id has 0.55 at temperature 1, and 0.78 at ½.
        let raw: Vec<f32> = [0.55f32, 0.3, 0.15].map(f32::ln).to_vec();
        let own: Vec<f32> = raw.iter().map(|logit| logit / 0.5).collect();
        let found = |guide: Option<&[f32]>| {
            let supports = mask.supports(&rows, &own, guide);
            (0..3).filter(|id| supports[0].contains(*id)).collect::<Vec<u32>>()
        };
        assert_eq!(found(None), [0, 1]);
        assert_eq!(found(Some(&[0.0, 0.0, 9.0])), [2]);
    }

    #[test]
    fn a_row_is_never_left_without_anything_to_draw() {
        let support = Support::Ids([1].into());
        let mut logits = [1.0, f32::NEG_INFINITY, 2.0];
        assert!(!apply(&mut logits, &support), "its only id is banned");
        assert_eq!(logits, [1.0, f32::NEG_INFINITY, 2.0]);
        let mut logits = [1.0, 3.0, 2.0];
        assert!(apply(&mut logits, &support));
        assert_eq!(logits, [f32::NEG_INFINITY, 3.0, f32::NEG_INFINITY]);
        assert!(!apply(&mut logits, &support) && !apply(&mut logits, &Support::All), "nothing more is taken");
    }
}
