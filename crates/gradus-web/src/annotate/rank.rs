//! Preference between two answers.

use serde::{Deserialize, Serialize};

/// Preference between the two answers of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rank {
    /// The first answer is better.
    First,
    /// Neither is better.
    Tie,
    /// Neither is better, and both are bad.
    Bad,
    /// The second answer is better.
    Second,
}

impl Rank {
    /// Returns 1 for the first answer, −1 for the second, 0 for neither.
    pub fn sign(self) -> i8 {
        match self {
            Self::First => 1,
            Self::Tie | Self::Bad => 0,
            Self::Second => -1,
        }
    }

    /// Returns the number in FineGrainedRLHF's files: 1, 2, or 0 for neither.
    pub fn number(self) -> u8 {
        match self {
            Self::First => 1,
            Self::Tie | Self::Bad => 0,
            Self::Second => 2,
        }
    }

    /// Returns whether one of the two is preferred.
    pub fn prefers(self) -> bool {
        matches!(self, Self::First | Self::Second)
    }
}

/// Returns all pairs of `answers`, counted from 0, in the order of the files: 1v2, 1v3, …, 3v4.
pub fn pairs(answers: usize) -> Vec<(usize, usize)> {
    (0..answers).flat_map(|one| (one + 1..answers).map(move |other| (one, other))).collect()
}

/// Returns the name of a pair.
pub fn pair_name((one, other): (usize, usize)) -> String {
    format!("{}v{}", one + 1, other + 1)
}
