//! Lanes: the parts of a step. They are summed in a fixed order, whichever ranks compute them.

use std::ops::Range;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Ranks, share};

/// The rows of an optimizer step in parts of equal size, and the ranks that share them.
///
/// Floating-point sums depend on their order. Within a lane, rows are added up in their order. Lanes are added up in a fixed binary tree:
/// `((l₀ + l₁) + (l₂ + l₃)) + …`. Each rank owns neighboring lanes. The sum therefore has the same bits on any number of ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lanes {
    count: usize,
    ranks: Ranks,
}

impl Default for Lanes {
    fn default() -> Self {
        Self::ONE
    }
}

impl Lanes {
    /// One lane on one rank: all rows are added up in order.
    pub const ONE: Self = Self { count: 1, ranks: Ranks::ALONE };

    /// Creates `count` lanes on `ranks`.
    ///
    /// # Panics
    /// If `count` is not a power of two, or is below the number of ranks.
    pub fn new(count: usize, ranks: Ranks) -> Self {
        assert!(count.is_power_of_two(), "{count} lanes form no binary tree");
        assert!(count >= ranks.size(), "{} ranks cannot share {count} lanes", ranks.size());
        Self { count, ranks }
    }

    /// Ranks that share the lanes.
    pub fn ranks(self) -> Ranks {
        self.ranks
    }

    /// Number of lanes.
    pub fn count(self) -> usize {
        self.count
    }

    /// Lanes of this rank.
    pub fn own(self) -> Range<usize> {
        self.of_rank(self.ranks.rank())
    }

    /// Lanes of a rank.
    pub fn of_rank(self, rank: usize) -> Range<usize> {
        share(self.count, 1, rank, self.ranks.size())
    }

    /// Range of the `rows` rows that are in a lane.
    pub fn rows(self, lane: usize, rows: usize) -> Range<usize> {
        share(rows, 1, lane, self.count)
    }

    /// Runs `work` for each lane of this rank. Returns the results of all lanes on all ranks, in order.
    ///
    /// # Errors
    /// The error of the first lane that failed.
    pub fn run<T, E>(self, what: &'static str, mut work: impl FnMut(usize) -> Result<T, E>) -> Result<Vec<T>, E>
    where
        T: Serialize + DeserializeOwned,
        E: Serialize + DeserializeOwned,
    {
        let own = self.run_own(&mut work);
        self.share(what, own)
    }

    /// Runs `work` for each lane of this rank until one fails.
    ///
    /// # Errors
    /// The error of that lane.
    pub fn run_own<T, E>(self, work: impl FnMut(usize) -> Result<T, E>) -> Result<Vec<T>, E> {
        self.own().map(work).collect()
    }

    /// Collects the results of [`run_own`](Self::run_own) from all ranks, in the order of the lanes.
    ///
    /// # Errors
    /// The error of the first lane that failed.
    pub fn share<T, E>(self, what: &'static str, own: Result<Vec<T>, E>) -> Result<Vec<T>, E>
    where
        T: Serialize + DeserializeOwned,
        E: Serialize + DeserializeOwned,
    {
        if self.ranks.is_alone() {
            return own;
        }
        let mut found = Vec::with_capacity(self.count);
        for one in self.ranks.all(what, &own) {
            found.extend(one?);
        }
        Ok(found)
    }
}
