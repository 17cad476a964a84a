//! Krippendorff's α: agreement of any number of raters on nominal, ordinal or interval labels. Labels may be missing.
//!
//! Krippendorff 2011, "Computing Krippendorff's alpha-reliability".

use super::{ALIKE, ALONE, Defined, Ratings};

/// Scale of labels. It determines the distance between two labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Names: equal or different.
    Nominal,
    /// Ranks: the distance depends on the number of labels in between.
    Ordinal,
    /// Evenly spaced numbers.
    Interval,
}

/// Computes α = 1 − observed disagreement / disagreement by chance. Items with a single label are ignored.
///
/// # Errors
/// No item has two labels, or all labels are equal.
pub fn alpha(ratings: &Ratings, level: Level) -> Defined {
    let labels = ratings.iter().flatten().flatten().max().map_or(0, |label| label + 1);
    let mut together = vec![vec![0.0; labels]; labels];
    for item in ratings {
        let given: Vec<usize> = item.iter().flatten().copied().collect();
        for (i, &one) in given.iter().enumerate() {
            for (j, &other) in given.iter().enumerate() {
                if i != j {
                    together[one][other] += 1.0 / (given.len() - 1) as f64;
                }
            }
        }
    }
    let counts: Vec<f64> = together.iter().map(|row| row.iter().sum()).collect();
    let all: f64 = counts.iter().sum();
    if all == 0.0 {
        return Err(ALONE);
    }
    let distance = |one: usize, other: usize| {
        let (low, high) = (one.min(other), one.max(other));
        match level {
            Level::Nominal => f64::from(u8::from(one != other)),
            Level::Ordinal => (counts[low..=high].iter().sum::<f64>() - (counts[low] + counts[high]) / 2.0).powi(2),
            Level::Interval => ((high - low) as f64).powi(2),
        }
    };
    let (mut observed, mut chance) = (0.0, 0.0);
    for (one, row) in together.iter().enumerate() {
        for (other, &count) in row.iter().enumerate() {
            observed += count * distance(one, other);
            chance += counts[one] * counts[other] * distance(one, other);
        }
    }
    if chance == 0.0 { Err(ALIKE) } else { Ok(1.0 - (all - 1.0) * observed / chance) }
}
