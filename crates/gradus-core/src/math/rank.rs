//! Matching two lists of numbers in sorted order: optimal transport in one dimension.

/// Returns, for each of `values`, the one of `others` that has the same rank. Equal values keep their order.
///
/// # Panics
/// When the lengths differ.
pub fn of_same_rank(values: &[f32], others: &[f32]) -> Vec<f32> {
    assert_eq!(values.len(), others.len(), "as many values as others");
    let sorted = |values: &[f32]| {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
        order
    };
    let mut found = vec![0.0; values.len()];
    for (place, other) in sorted(values).into_iter().zip(sorted(others)) {
        found[place] = others[other];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_stands_beside_the_smallest() {
        // Ranks of the values: 2, 0, 1.
        assert_eq!(of_same_rank(&[5.0, -1.0, 0.5], &[0.2, 0.1, 0.3]), [0.3, 0.1, 0.2]);
        assert_eq!(of_same_rank(&[1.0, 1.0, 0.0], &[3.0, 2.0, 1.0]), [2.0, 3.0, 1.0], "equal values keep their order");
        assert!(of_same_rank(&[], &[]).is_empty());
    }
}
