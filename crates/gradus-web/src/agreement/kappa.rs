//! Raw agreement, Cohen's κ of two raters, and Fleiss' κ of several raters.
//!
//! Cohen 1960, "A coefficient of agreement for nominal scales"; Fleiss 1971, "Measuring nominal scale agreement among many
//! raters".

use super::{ALIKE, ALONE, Defined, Ratings};

/// Computes the share of equal labels among all pairs of labels of the same item.
///
/// # Errors
/// No item has two labels.
pub fn raw(ratings: &Ratings) -> Defined {
    let (mut same, mut pairs) = (0usize, 0usize);
    for item in ratings {
        let given: Vec<usize> = item.iter().flatten().copied().collect();
        for (i, one) in given.iter().enumerate() {
            pairs += given.len() - i - 1;
            same += given[i + 1..].iter().filter(|other| *other == one).count();
        }
    }
    if pairs == 0 { Err(ALONE) } else { Ok(same as f64 / pairs as f64) }
}

/// Computes κ = (p − e) / (1 − e) over the items that both raters labeled. p is the share of equal labels, and e the share expected by
/// chance from each rater's own label frequencies.
///
/// # Errors
/// There are not exactly two raters, no item has both labels, or both raters always gave the same label.
pub fn cohen(ratings: &Ratings) -> Defined {
    let mut both = Vec::new();
    for item in ratings {
        let [one, other] = item[..] else { return Err("Cohen's κ needs two raters") };
        both.extend(one.zip(other));
    }
    if both.is_empty() {
        return Err(ALONE);
    }
    let labels = both.iter().map(|(one, other)| one.max(other) + 1).max().unwrap_or(0);
    let share = |holds: &dyn Fn(&(usize, usize)) -> bool| {
        both.iter().filter(|pair| holds(pair)).count() as f64 / both.len() as f64
    };
    let same = share(&|(one, other)| one == other);
    let chance = (0..labels).map(|label| share(&|pair| pair.0 == label) * share(&|pair| pair.1 == label)).sum::<f64>();
    beyond(same, chance)
}

/// Computes κ of several raters, who may differ between items. Chance agreement follows from the label frequencies over all items.
///
/// # Errors
/// Items have different numbers of labels or fewer than two, or all labels are equal.
pub fn fleiss(ratings: &Ratings) -> Defined {
    let given: Vec<Vec<usize>> = ratings.iter().map(|item| item.iter().flatten().copied().collect()).collect();
    let raters = given.first().map_or(0, Vec::len);
    if raters < 2 {
        return Err(ALONE);
    }
    if given.iter().any(|item| item.len() != raters) {
        return Err("Fleiss' κ needs the same number of labels for every item");
    }
    let labels = given.iter().flatten().max().map_or(0, |label| label + 1);
    let mut counts = vec![0usize; labels];
    let mut same = 0.0;
    for item in &given {
        let mut own = vec![0usize; labels];
        for &label in item {
            own[label] += 1;
            counts[label] += 1;
        }
        let pairs = own.iter().map(|count| count * count.saturating_sub(1)).sum::<usize>();
        same += pairs as f64 / (raters * (raters - 1)) as f64;
    }
    let all = (given.len() * raters) as f64;
    let chance = counts.iter().map(|&count| (count as f64 / all).powi(2)).sum::<f64>();
    beyond(same / given.len() as f64, chance)
}

fn beyond(same: f64, chance: f64) -> Defined {
    if chance >= 1.0 { Err(ALIKE) } else { Ok((same - chance) / (1.0 - chance)) }
}
