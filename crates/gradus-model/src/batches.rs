//! The rows of each step, and their split into forward passes.

use std::ops::Range;

use rand::Rng;
use rand::seq::SliceRandom;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ranks::{Lanes, Ranks};
use crate::rng::{Purpose, Seed};

/// The order in which rows are visited. It depends only on the seed and the step, so a resumed run needs no cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The seed of the run.
    pub seed: Seed,
    /// Random stream of the order; its `step` is the epoch.
    pub purpose: Purpose,
    /// Whether each epoch is shuffled.
    pub shuffle: bool,
    /// Number of rows.
    pub rows: usize,
    /// Rows per step; at least 1.
    pub batch_size: usize,
}

impl Order {
    /// Returns the number of steps per epoch; the last one may be smaller, as in TRL.
    ///
    /// # Panics
    /// If `batch_size` is 0.
    pub fn steps_per_epoch(&self) -> usize {
        self.rows.div_ceil(self.batch_size)
    }

    /// Returns the number of steps of `epochs` passes (rounded up), unless `max_steps` overrides it.
    pub fn total_steps(&self, epochs: f64, max_steps: Option<usize>) -> usize {
        max_steps.unwrap_or_else(|| (epochs * self.steps_per_epoch() as f64).ceil() as usize)
    }

    /// Returns the epoch of `step`; both count from 0.
    ///
    /// # Panics
    /// If there are no rows, or `batch_size` is 0.
    pub fn epoch(&self, step: usize) -> usize {
        step / self.steps_per_epoch()
    }

    /// Returns the number of rows in the first `steps` steps; a row counts each time.
    pub fn rows_seen(&self, steps: usize) -> usize {
        let (epochs, rest) = (steps / self.steps_per_epoch().max(1), steps % self.steps_per_epoch().max(1));
        epochs * self.rows + (rest * self.batch_size).min(self.rows)
    }

    /// Returns all rows in the order of `epoch`.
    fn rows_of(&self, epoch: usize) -> Vec<usize> {
        let mut rows: Vec<usize> = (0..self.rows).collect();
        if self.shuffle {
            rows.shuffle(&mut self.seed.stream(self.purpose, epoch as u64, 0));
        }
        rows
    }

    /// Iterates over the [`batch`](Self::batch) of each of the first `steps` steps. Without rows, there is none.
    ///
    /// # Panics
    /// If `batch_size` is 0.
    pub fn batches(self, steps: usize) -> Box<dyn Iterator<Item = Vec<usize>>> {
        let epochs = (0..steps.div_ceil(self.steps_per_epoch().max(1))).map(move |epoch| self.rows_of(epoch));
        let chunks = move |rows: Vec<usize>| rows.chunks(self.batch_size).map(<[usize]>::to_vec).collect::<Vec<_>>();
        Box::new(epochs.flat_map(chunks).take(steps))
    }

    /// Iterates over the [`full_batch`](Self::full_batch) of each of the first `steps` steps. Without rows, they are empty.
    pub fn full_batches(self, steps: usize) -> Box<dyn Iterator<Item = Vec<usize>>> {
        let epochs = steps.saturating_mul(self.batch_size).div_ceil(self.rows.max(1));
        let mut rows = (0..epochs).flat_map(move |epoch| self.rows_of(epoch));
        Box::new((0..steps).map(move |_| rows.by_ref().take(self.batch_size).collect()))
    }

    /// Returns the rows of `step`, counted from 0, in order.
    ///
    /// # Panics
    /// If there are no rows, or `batch_size` is 0.
    pub fn batch(&self, step: usize) -> Vec<usize> {
        let (epoch, within) = (self.epoch(step), step % self.steps_per_epoch());
        let rows = self.rows_of(epoch);
        let start = within * self.batch_size;
        rows[start..self.rows.min(start + self.batch_size)].to_vec()
    }

    /// Like [`batch`](Self::batch), but always returns `batch_size` rows: the end of an epoch is filled from the next
    /// one.
    ///
    /// # Panics
    /// If there are no rows.
    pub fn full_batch(&self, step: usize) -> Vec<usize> {
        let mut batch = Vec::with_capacity(self.batch_size);
        let mut position = step * self.batch_size;
        while batch.len() < self.batch_size {
            let (epoch, within) = (position / self.rows, position % self.rows);
            let rows = self.rows_of(epoch);
            let taken = (self.batch_size - batch.len()).min(self.rows - within);
            batch.extend_from_slice(&rows[within..within + taken]);
            position += taken;
        }
        batch
    }
}

/// Rows drawn with replacement, each with its own probability. They depend only on the seed and the step, so a resumed
/// run needs only the rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Weighted {
    order: Order,
    /// Cumulative weights up to each row.
    sums: Vec<f64>,
}

impl Weighted {
    /// Uses the seed, purpose and size of `order`. Row `i` is drawn with a probability in proportion to
    /// `weights[i]^scale`. Returns `None` unless all weights are finite and at least 0, and their sum is above 0.
    pub fn new(order: Order, weights: &[f64], scale: f64) -> Option<Self> {
        let mut sum = 0.0;
        let fine = weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0);
        let mut add = |weight: &f64| {
            sum += if scale == 0.0 { 1.0 } else { weight.powf(scale) };
            sum
        };
        let sums: Vec<f64> = weights.iter().map(&mut add).collect();
        (fine && sum > 0.0 && sum.is_finite()).then_some(Self { order, sums })
    }

    /// Returns the rows of `step`.
    pub fn batch(&self, step: usize) -> Vec<usize> {
        let mut stream = self.order.seed.stream(self.order.purpose, step as u64, 1);
        let all = self.sums.last().copied().unwrap_or(0.0);
        let mut draw = || {
            let at = stream.random::<f64>() * all;
            self.sums.partition_point(|sum| *sum <= at).min(self.sums.len() - 1)
        };
        (0..self.order.batch_size).map(|_| draw()).collect()
    }
}

/// Split of the rows of a step into lanes, which ranks share, and within a lane into forward and backward passes. The
/// result of a step does not depend on it, except for the rounding of sums.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MicroBatch {
    /// Maximum number of tokens; a longer row is a pass of its own.
    pub tokens: usize,
    /// Maximum number of rows.
    pub rows: Option<usize>,
    /// Parts of a step, each summed in a fixed order.
    pub lanes: Lanes,
}

impl MicroBatch {
    /// Creates passes of at most this many tokens and rows, in one lane.
    pub const fn new(tokens: usize, rows: Option<usize>) -> Self {
        Self { tokens, rows, lanes: Lanes::ONE }
    }

    /// Returns the same passes for work that this rank does alone.
    #[must_use]
    pub fn alone(self) -> Self {
        Self { lanes: Lanes::ONE, ..self }
    }

    /// Returns the ranks that share the work.
    pub fn ranks(&self) -> Ranks {
        self.lanes.ranks()
    }

    /// Runs `of_pass` on all passes, each with its index, and returns the results of all rows, in order. Ranks share
    /// the passes. The passes do not depend on the number of ranks, because rows that share a forward pass can change
    /// each other's last bits.
    pub fn deal<T: Serialize + DeserializeOwned>(
        &self,
        what: &'static str,
        lengths: &[usize],
        mut of_pass: impl FnMut(usize, Range<usize>) -> Vec<T>,
    ) -> Vec<T> {
        let passes = self.split(lengths);
        let own = |share: Range<usize>| share.flat_map(|number| of_pass(number, passes[number].clone())).collect();
        self.ranks().deal_all(what, (passes.len(), 1), own)
    }

    /// Returns the passes of each lane over rows of the given lengths. Passes are numbered from 0 over all lanes,
    /// regardless of the rank that runs them.
    pub fn in_lanes(&self, lengths: &[usize]) -> Vec<Vec<(usize, Range<usize>)>> {
        let mut number = 0;
        let mut numbered = |pass: Range<usize>, first: usize| {
            number += 1;
            (number - 1, pass.start + first..pass.end + first)
        };
        let of_lane = |lane: usize| {
            let rows = self.lanes.rows(lane, lengths.len());
            let passes = self.split(&lengths[rows.clone()]);
            passes.into_iter().map(|pass| numbered(pass, rows.start)).collect()
        };
        (0..self.lanes.count()).map(of_lane).collect()
    }

    /// Returns the rows of the longest pass that a step over `batch_size` rows of the given lengths can contain: the
    /// longest row, then the longest of the others that still fit.
    pub fn longest(&self, lengths: &[usize], batch_size: usize) -> Vec<usize> {
        let most_rows = self.rows.unwrap_or(usize::MAX).max(1).min(batch_size);
        let mut rows: Vec<usize> = (0..lengths.len()).collect();
        rows.sort_by_key(|&row| std::cmp::Reverse(lengths[row]));
        let (mut chosen, mut tokens) = (Vec::new(), 0);
        for row in rows {
            if chosen.len() == most_rows {
                break;
            }
            if chosen.is_empty() || tokens + lengths[row] <= self.tokens {
                tokens += lengths[row];
                chosen.push(row);
            }
        }
        chosen
    }

    /// Splits rows of the given lengths, in order, into consecutive passes.
    pub fn split(&self, lengths: &[usize]) -> Vec<Range<usize>> {
        let most_rows = self.rows.unwrap_or(usize::MAX).max(1);
        let (mut passes, mut start, mut tokens) = (Vec::new(), 0, 0);
        for (i, &length) in lengths.iter().enumerate() {
            if i > start && (tokens + length > self.tokens || i - start == most_rows) {
                passes.push(start..i);
                (start, tokens) = (i, 0);
            }
            tokens += length;
        }
        if start < lengths.len() {
            passes.push(start..lengths.len());
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(shuffle: bool) -> Order {
        Order { seed: Seed(7), purpose: Purpose::DataOrder, shuffle, rows: 5, batch_size: 2 }
    }

    #[test]
    fn an_epoch_visits_every_row_once_and_epochs_differ() {
        let order = order(true);
        assert_eq!(order.steps_per_epoch(), 3);
        let epoch = |n: usize| (3 * n..3 * n + 3).flat_map(|step| order.batch(step)).collect::<Vec<_>>();
        let mut sorted = epoch(0);
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4]);
        assert_ne!((0..4).map(epoch).collect::<std::collections::BTreeSet<_>>().len(), 1);
        assert_eq!(order.total_steps(1.5, None), 5);
        assert_eq!(order.total_steps(1.5, Some(7)), 7);
    }

    #[test]
    fn without_shuffling_the_order_is_the_files() {
        let order = order(false);
        assert_eq!(
            (0..4).map(|step| order.batch(step)).collect::<Vec<_>>(),
            [vec![0, 1], vec![2, 3], vec![4], vec![0, 1]]
        );
        assert_eq!((0..3).map(|step| order.full_batch(step)).collect::<Vec<_>>(), [[0, 1], [2, 3], [4, 0]]);
    }

    #[test]
    fn all_batches_at_once_are_those_of_each_step() {
        for shuffle in [false, true] {
            let order = order(shuffle);
            let each = |of: &dyn Fn(usize) -> Vec<usize>| (0..7).map(of).collect::<Vec<_>>();
            assert_eq!(order.batches(7).collect::<Vec<_>>(), each(&|step| order.batch(step)));
            assert_eq!(order.full_batches(7).collect::<Vec<_>>(), each(&|step| order.full_batch(step)));
        }
    }

    #[test]
    fn rows_are_drawn_by_their_weights() {
        let order = Order { batch_size: 40_000, rows: 3, ..order(true) };
        let counts = |weights: &[f64], scale| {
            let batch = Weighted::new(order, weights, scale).expect("weights").batch(5);
            assert_eq!(batch, Weighted::new(order, weights, scale).expect("weights").batch(5), "the same again");
            [0, 1, 2].map(|row| batch.iter().filter(|drawn| **drawn == row).count() as f64 / 40_000.0)
        };
        let near = |found: [f64; 3], expected: [f64; 3]| {
            let far = found.iter().zip(expected).any(|(found, expected)| (found - expected).abs() > 0.01);
            assert!(!far, "{found:?} instead of {expected:?}");
        };
        near(counts(&[1.0, 3.0, 0.0], 1.0), [0.25, 0.75, 0.0]);
        near(counts(&[1.0, 3.0, 0.0], 2.0), [0.1, 0.9, 0.0]);
        near(counts(&[1.0, 3.0, 9.0], 0.0), [1.0 / 3.0; 3]);
        let small = Weighted::new(Order { batch_size: 8, ..order }, &[1.0; 3], 1.0).expect("weights");
        assert_ne!(small.batch(0), small.batch(1));
        for bad in [&[0.0, 0.0][..], &[-1.0, 2.0], &[f64::NAN, 1.0], &[]] {
            assert_eq!(Weighted::new(order, bad, 1.0), None, "{bad:?}");
        }
    }

    #[test]
    fn the_longest_pass_holds_the_longest_row_and_what_fits_beside_it() {
        let longest = |tokens, rows, batch| MicroBatch::new(tokens, rows).longest(&[3, 9, 2, 9, 4, 30], batch);
        assert_eq!(longest(45, None, 8), [5, 1, 4, 2], "30 + 9 + 4 + 2: the other 9 and the 3 no longer fit");
        assert_eq!(longest(20, None, 8), [5], "a row over the limit makes a pass of its own");
        assert_eq!((longest(100, Some(2), 8), longest(100, None, 3)), (vec![5, 1], vec![5, 1, 3]));
        assert_eq!(MicroBatch::new(8, None).longest(&[], 4), Vec::<usize>::new());
    }

    #[test]
    fn passes_are_bounded_by_tokens_and_rows() {
        let split = |tokens, rows, lengths: &[usize]| MicroBatch::new(tokens, rows).split(lengths);
        assert_eq!(split(10, None, &[4, 4, 4, 20, 1]), [0..2, 2..3, 3..4, 4..5]);
        assert_eq!(split(100, Some(2), &[4, 4, 4]), [0..2, 2..3]);
        assert_eq!(split(10, None, &[]), Vec::<Range<usize>>::new());
        let lanes = MicroBatch { lanes: Lanes::new(2, Ranks::ALONE), ..MicroBatch::new(10, None) };
        assert_eq!(lanes.in_lanes(&[4, 4, 4, 20, 1]), [vec![(0, 0..2)], vec![(1, 2..3), (2, 3..4), (3, 4..5)]]);
        let more = MicroBatch { lanes: Lanes::new(4, Ranks::ALONE), ..lanes };
        assert_eq!(more.in_lanes(&[4]).concat(), [(0, 0..1)], "lanes without rows");
    }
}
