//! Masks of a caller's own over what can be drawn, and the one by probability that NLPO draws under.
//!
//! Ramamurthy et al. 2023 (RL4LMs), section 4.2, <https://arxiv.org/abs/2210.01241>. As in their code, the smallest set of
//! tokens whose probability exceeds a bound is kept, and the tokens given as `always` beside it.

use rayon::prelude::*;

use super::params::{Record, SamplingParams};
use super::processors::History;
use super::truncate::{drop_below, kth_largest, truncate};
use crate::model::{CausalLm, Support};

/// A mask of the caller's own over what can be drawn, such as an algorithm's.
pub trait LogitsMask: Sync {
    /// The ids of each row that may be drawn. `logits_bv` has one line of the vocabulary per row: at the temperature, after
    /// everything that looks at a row's ids, before truncation. `guide_bv` has what another model says of the same rows,
    /// where one guides them.
    ///
    /// What would leave a row nothing to draw does not apply to it.
    fn supports(&self, rows: &[(usize, History<'_>)], logits_bv: &[f32], guide_bv: Option<&[f32]>) -> Vec<Support>;
}

/// A mask, the model that decides on it, and what is recorded.
#[derive(Clone, Copy)]
pub struct Masking<'a> {
    /// The mask.
    pub mask: &'a dyn LogitsMask,
    /// The model that looks at every row beside the one that samples.
    pub guide: Option<&'a CausalLm>,
    /// Which ids are recorded as those that a token could have been.
    pub record: Record,
}

/// Keeps the likeliest ids.
#[derive(Debug, Clone, PartialEq)]
pub struct LikeliestMask {
    /// How many, or of which probability together.
    pub kept: Kept,
    /// These many at least.
    pub at_least: usize,
    /// These ids as well.
    pub always: Vec<u32>,
    /// What the rows' own logits were divided by, where no other model decides.
    pub temperature: f32,
}

/// Which ids count as the likeliest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kept {
    /// The fewest that together have more than this probability; 1 is all of them.
    TopP(f64),
    /// So many, and those that tie with the last of them.
    TopK(usize),
}

impl LikeliestMask {
    /// The ids that one line of logits leaves.
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
            Kept::TopK(k) if k.max(self.at_least) >= all => return Support::All,
            Kept::TopK(k) => {
                let edge = kth_largest(logits_v, k.max(self.at_least));
                drop_below(&mut kept_v, edge);
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
        let vocabulary = logits_bv.len() / rows.len().max(1);
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

/// Takes out of `logits_v` what is not in `support`; whether anything was. A row that would have nothing left stays.
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
        // 0.1, 0.4, 0.2, 0.3: in order 0.4, 0.7, 0.9, 1.
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
        ] {
            assert_eq!(kept(&mask, &logits), expected, "{mask:?}");
        }
        assert_eq!(mask(Kept::TopP(1.0), 1, &[]).support(&logits), Support::All);
    }

    #[test]
    fn a_guide_decides_and_otherwise_the_rows_own_logits_at_temperature_one() {
        let mask = LikeliestMask { kept: Kept::TopP(0.6), at_least: 1, always: Vec::new(), temperature: 0.5 };
        let rows = [(0, History::new(&[], 0))];
        // At temperature 1 the first has 0.55, at ½ it has 0.78.
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
