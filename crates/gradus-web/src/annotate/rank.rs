//! Who is better of two answers.

use serde::{Deserialize, Serialize};

/// Who is better of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rank {
    /// The first.
    First,
    /// Neither.
    Tie,
    /// Neither, and both are bad.
    Bad,
    /// The second.
    Second,
}

impl Rank {
    /// 1 for the first, -1 for the second, 0 for neither.
    pub fn sign(self) -> i8 {
        match self {
            Self::First => 1,
            Self::Tie | Self::Bad => 0,
            Self::Second => -1,
        }
    }

    /// 1, 2 or 0 for neither: the number in FineGrainedRLHF's files.
    pub fn number(self) -> u8 {
        match self {
            Self::First => 1,
            Self::Tie | Self::Bad => 0,
            Self::Second => 2,
        }
    }

    /// Whether one of the two is preferred.
    pub fn prefers(self) -> bool {
        matches!(self, Self::First | Self::Second)
    }
}

/// All pairs of `answers`, counted from 0, in the order of the files: 1v2, 1v3, …, 3v4.
pub fn pairs(answers: usize) -> Vec<(usize, usize)> {
    (0..answers).flat_map(|one| (one + 1..answers).map(move |other| (one, other))).collect()
}

/// The name of a pair.
pub fn pair_name((one, other): (usize, usize)) -> String {
    format!("{}v{}", one + 1, other + 1)
}
