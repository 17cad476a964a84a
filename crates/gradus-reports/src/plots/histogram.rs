//! Histograms: the outlines of bars, so that several kinds of values fit in one chart.

use super::scale::half_distance;
use super::{Curve, CurveKind, LineChart};

/// Number of bars.
const BINS: usize = 30;

/// Values of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Values {
    /// Name in the legend.
    pub name: String,
    /// The values; values that are not finite are left out.
    pub values: Vec<f64>,
    /// Index in the palette; `None` for the baseline.
    pub color: Option<usize>,
}

/// Range that is split into bars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Range {
    /// All.
    All,
    /// All but the lowest and the highest hundredth, which are counted in the first and the last bar. For values with a few outliers, such
    /// as lengths.
    Most,
}

/// Returns the histogram of `kinds` over a common range, in bars of equal width.
pub fn histogram(title: &str, unit: &str, x_label: &str, kinds: &[Values], range: Range) -> LineChart {
    let (low, high) = ends(kinds, range);
    let curve = |kind: &Values| Curve {
        name: kind.name.clone(),
        points: outline(&kind.values, low, high),
        intervals: Vec::new(),
        kind: CurveKind::Line,
        color: kind.color,
    };
    LineChart {
        title: title.into(),
        unit: unit.into(),
        x_label: x_label.into(),
        curves: kinds.iter().map(curve).collect(),
    }
}

/// Start of the first bar and end of the last one.
fn ends(kinds: &[Values], range: Range) -> (f64, f64) {
    let mut all: Vec<f64> =
        kinds.iter().flat_map(|kind| &kind.values).copied().filter(|value| value.is_finite()).collect();
    all.sort_by(f64::total_cmp);
    let (Some(first), Some(last)) = (all.first(), all.last()) else { return (-0.5, 0.5) };
    let cut = match range {
        Range::All => 0,
        Range::Most => all.len() / 100,
    };
    let (low, high) = (all[cut], all[all.len() - 1 - cut]);
    // Values that begin at 0, such as lengths, are drawn from 0 unless all of them are far away from it.
    let low = if range == Range::Most && *first >= 0.0 && low < high / 2.0 { 0.0 } else { low };
    if low < high { (low, high) } else { (first.min(0.0) - 0.5, last.max(0.0) + 0.5) }
}

/// Outline of bars of equal width between `low` and `high`. Values outside are counted in the nearest bar.
fn outline(values: &[f64], low: f64, high: f64) -> Vec<(f64, f64)> {
    let half_width = half_distance(low, high) / BINS as f64;
    let mut counts = [0usize; BINS];
    for value in values.iter().filter(|value| value.is_finite()) {
        // `as usize` maps values below the first bar to 0.
        counts[((half_distance(low, *value) / half_width) as usize).min(BINS - 1)] += 1;
    }
    let edge = |i: usize| ((low / 2.0 + half_width * i as f64) * 2.0).min(high);
    let bar = |(i, &count): (usize, &usize)| [(edge(i), count as f64), (edge(i + 1), count as f64)];
    let bars = counts.iter().enumerate().flat_map(bar);
    [(low, 0.0)].into_iter().chain(bars).chain([(high, 0.0)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_hold_every_value_once() {
        let points = outline(&[0.0, 0.05, 1.5, 3.0, f64::NAN], 0.0, 3.0);
        assert_eq!(points.len(), 2 + 2 * BINS);
        assert_eq!((points[0], points[1], points[2]), ((0.0, 0.0), (0.0, 2.0), (0.1, 2.0)));
        // Each bar has two corners; the last value belongs to the last bar.
        assert_eq!(points.iter().map(|point| point.1).sum::<f64>(), 8.0);
        assert_eq!((points[2 * BINS], points[2 * BINS + 1]), ((3.0, 1.0), (3.0, 0.0)));
    }

    #[test]
    fn ranges_beyond_the_largest_number_have_bars() {
        let values = vec![f64::MIN, 1e307, f64::MAX];
        let kinds = [Values { name: "reward".into(), values, color: Some(0) }];
        let points = &histogram("Rewards", "", "", &kinds, Range::All).curves[0].points;
        assert!(points.iter().all(|point| point.0.is_finite()), "{points:?}");
        let counts: Vec<f64> = points[1..=2 * BINS].iter().step_by(2).map(|point| point.1).collect();
        assert_eq!([counts[0], counts[BINS / 2], counts[BINS - 1], counts.iter().sum::<f64>()], [1.0, 1.0, 1.0, 3.0]);
    }

    #[test]
    fn outliers_share_the_last_bar_and_are_not_lost() {
        let values: Vec<f64> = (0..200).map(f64::from).chain([100_000.0]).collect();
        let kinds = [Values { name: "length".into(), values, color: Some(0) }];
        let last_edge =
            |range| histogram("Lengths", "", "", &kinds, range).curves[0].points.last().map(|point| point.0);
        assert_eq!((last_edge(Range::All), last_edge(Range::Most)), (Some(100_000.0), Some(198.0)));
        let shown = histogram("Lengths", "", "", &kinds, Range::Most);
        let corners: f64 = shown.curves[0].points.iter().map(|point| point.1).sum();
        assert_eq!(corners, 2.0 * 201.0);
        let none = [Values { name: "none".into(), values: vec![f64::NAN], color: None }];
        assert_eq!(ends(&none, Range::All), (-0.5, 0.5));
    }
}
