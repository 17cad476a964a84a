//! Krippendorff's α: agreement of any number of raters, with labels missing, of labels that are names, ranks or numbers.
//!
//! Krippendorff 2011, "Computing Krippendorff's alpha-reliability".

use super::{ALIKE, ALONE, Defined, Ratings};

/// What labels are, which decides how far apart two of them are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Names: the same or not.
    Nominal,
    /// Ranks: as far apart as there are labels between them.
    Ordinal,
    /// Numbers, evenly spaced.
    Interval,
}

/// α = 1 − observed disagreement / disagreement by chance. Items with one label say nothing and are left out.
///
/// # Errors
/// When no item has two labels, or only one label was ever given.
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
    let apart = |one: usize, other: usize| {
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
            observed += count * apart(one, other);
            chance += counts[one] * counts[other] * apart(one, other);
        }
    }
    if chance == 0.0 { Err(ALIKE) } else { Ok(1.0 - (all - 1.0) * observed / chance) }
}
