//! Smooths and shortens the curves of metrics, for charts and terminals.

/// Curves of fewer points are not smoothed.
pub const FEWEST_SMOOTHED: usize = 10;

/// Maximum number of points of a drawn curve; more would exceed the width of a chart.
pub const DRAWN: usize = 2000;

/// Factor that keeps sums, products and distances of large values below the largest number. A power of two rounds no value.
pub const HEADROOM: f64 = 1.0 / (1u128 << 64) as f64;

/// Returns the `index`-th of `count` slices. None is empty if there are at least `count` points.
///
/// # Panics
/// If `index` is not below `count`.
pub fn stretch(points: &[(f64, f64)], index: usize, count: usize) -> &[(f64, f64)] {
    assert!(index < count, "slice {index} of {count}");
    &points[index * points.len() / count..(index + 1) * points.len() / count]
}

/// Reduces a curve to at most `count` points, each the mean of the finite values of a slice.
pub fn thinned(points: &[(f64, f64)], count: usize) -> Vec<(f64, f64)> {
    if points.len() <= count {
        return points.to_vec();
    }
    let mean = |index: usize| {
        let stretch = stretch(points, index, count);
        let finite = stretch.iter().filter(|point| point.1.is_finite());
        let add = |sum: (f64, f64, f64), point: &(f64, f64)| (sum.0 + point.0, sum.1 + point.1 * HEADROOM, sum.2 + 1.0);
        let (x, y, n) = finite.fold((0.0, 0.0, 0.0), add);
        // The sum of the largest numbers may be rounded up.
        if n > 0.0 { (x / n, (y / n / HEADROOM).clamp(f64::MIN, f64::MAX)) } else { (stretch[0].0, f64::NAN) }
    };
    (0..count).map(mean).collect()
}

/// Smooths a curve to remove the noise of single batches: the means of its slices, `smoothed`. Takes linear time.
pub fn smoothed_curve(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let points = thinned(points, DRAWN);
    let values: Vec<f64> = points.iter().map(|point| point.1).collect();
    points.iter().map(|point| point.0).zip(smoothed(&values)).collect()
}

/// Fits a line to the neighbors of each value, weighted by a triangle of half-width `n / 16`.
///
/// Fewer than [`FEWEST_SMOOTHED`] values are returned unchanged. Values that are not finite are left out. Results stay between the lowest
/// and the highest neighbor, so that a share stays between 0 and 1.
fn smoothed(values: &[f64]) -> Vec<f64> {
    let count = values.len() as i64;
    if values.len() < FEWEST_SMOOTHED {
        return values.to_vec();
    }
    let reach = (count / 16).max(1);
    let one = |center: i64| {
        // Sums of w, w·x, w·y, w·x², w·x·y with x the distance to the center.
        let mut sums = [0.0; 5];
        let (mut lowest, mut highest) = (f64::INFINITY, f64::NEG_INFINITY);
        // Near an end, the window extends to the other side; otherwise a single value would determine the slope.
        let first = (center - reach).clamp(0, count - 1 - 2 * reach);
        let farthest = (center - first).max(first + 2 * reach - center);
        for index in first..=first + 2 * reach {
            let (x, y) = ((index - center) as f64, values[index as usize] * HEADROOM);
            if y.is_finite() {
                (lowest, highest) = (lowest.min(y), highest.max(y));
                let weight = (farthest + 1) as f64 - x.abs();
                let terms = [1.0, x, y, x * x, x * y];
                sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += weight * term);
            }
        }
        let [w, x, y, xx, xy] = sums;
        let determinant = w * xx - x * x;
        let fitted = if determinant > 1e-9 { (y * xx - x * xy) / determinant } else { y / w };
        (if lowest <= highest { fitted.clamp(lowest, highest) } else { fitted }) / HEADROOM
    };
    (0..count).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_keeps_lines_straight_and_skips_gaps() {
        let line: Vec<f64> = (0..100).map(f64::from).collect();
        for (a, b) in smoothed(&line).iter().zip(&line) {
            assert!((a - b).abs() < 1e-9);
        }
        let mut gap = line.clone();
        gap[50] = f64::NAN;
        assert!((smoothed(&gap)[50] - 50.0).abs() < 1e-9);
        assert_eq!(smoothed(&[1.0, 5.0, 3.0]), [1.0, 5.0, 3.0]);
        // A share that falls to 0 must not fall below it.
        let falling: Vec<f64> = (0..40).map(|i| (1.0 - f64::from(i) / 30.0).max(0.0)).collect();
        assert!(smoothed(&falling).iter().all(|share| (0.0..=1.0).contains(share)));
    }

    #[test]
    fn the_largest_numbers_have_means() {
        let points = |values: &[f64]| values.iter().enumerate().map(|(x, &y)| (x as f64, y)).collect::<Vec<_>>();
        let halves = points(&[f64::MAX, f64::MAX, f64::MIN, f64::MIN]);
        assert_eq!(thinned(&halves, 2), [(0.5, f64::MAX), (2.5, f64::MIN)]);
        assert_eq!(smoothed(&[f64::MAX; 2000]), [f64::MAX; 2000]);
        let wide: Vec<f64> = (0..2000).map(|i| if i % 2 == 0 { f64::MAX } else { f64::MIN }).collect();
        assert!(smoothed(&wide).iter().all(|value| value.is_finite()));
    }
}
