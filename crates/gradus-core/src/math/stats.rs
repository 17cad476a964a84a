//! Statistics of host values: moments, quantiles, agreement between predictions and outcomes.
//!
//! Undefined values (the mean of no values, a correlation with a constant) are `None`, never a silent 0.

/// Divisor of the sum of squared deviations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variance {
    /// Divides by the number of values, `n`: the variance of these values themselves.
    Biased,
    /// Divides by `n − 1`: an estimate for the population from which the values were drawn.
    Unbiased,
}

/// Arithmetic mean; `None` without values.
pub fn mean(values: &[f32]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64)
}

/// Variance; `None` without values, and for a single value if unbiased.
pub fn variance(values: &[f32], kind: Variance) -> Option<f64> {
    let mean = mean(values)?;
    let divisor = match kind {
        Variance::Biased => values.len(),
        Variance::Unbiased => values.len() - 1,
    };
    let squares: f64 = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum();
    (divisor > 0).then(|| squares / divisor as f64)
}

/// Standard deviation; `None` if [`variance`] is.
pub fn std(values: &[f32], kind: Variance) -> Option<f64> {
    variance(values, kind).map(f64::sqrt)
}

/// Value below which a share `q` of the values lies, interpolated linearly (as in NumPy and PyTorch).
///
/// `None` without values. `q` is between 0 and 1.
pub fn quantile(values: &[f32], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f32::total_cmp);
    let position = q.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (f64::from(sorted[position.floor() as usize]), f64::from(sorted[position.ceil() as usize]));
    Some(below + (above - below) * position.fract())
}

/// Share of the targets' variance that the predictions explain: `1 − Var(target − prediction) / Var(target)`.
///
/// 1 is perfect, 0 is no better than a constant, negative values are worse. `None` if the targets do not vary.
///
/// # Panics
/// When the lengths differ.
pub fn explained_variance(predictions: &[f32], targets: &[f32]) -> Option<f64> {
    assert_eq!(predictions.len(), targets.len(), "one prediction per target");
    let residuals: Vec<f32> = targets.iter().zip(predictions).map(|(t, p)| t - p).collect();
    let total = variance(targets, Variance::Biased)?;
    (total > 0.0).then(|| 1.0 - variance(&residuals, Variance::Biased).unwrap_or(0.0) / total)
}

/// Pearson's correlation; `None` if either list does not vary.
///
/// # Panics
/// When the lengths differ.
pub fn correlation(xs: &[f32], ys: &[f32]) -> Option<f64> {
    assert_eq!(xs.len(), ys.len(), "one x per y");
    let (mean_x, mean_y) = (mean(xs)?, mean(ys)?);
    let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
    for (&x, &y) in xs.iter().zip(ys) {
        let (x, y) = (f64::from(x) - mean_x, f64::from(y) - mean_y);
        xy += x * y;
        xx += x * x;
        yy += y * y;
    }
    (xx > 0.0 && yy > 0.0).then(|| xy / (xx * yy).sqrt())
}

/// 97.5 % quantile of the normal distribution: half the width of a 95 % interval, in standard errors.
const NORMAL_97_5: f64 = 1.959_963_984_540_054;

/// 95 % interval of a proportion, from `successes` of `trials`; `None` without trials.
///
/// Wilson 1927, "Probable inference, the law of succession, and statistical inference". Unlike `p ± 1.96·√(p(1−p)/n)`, the interval stays
/// within 0 and 1 and is valid for few trials.
pub fn proportion_interval(successes: usize, trials: usize) -> Option<(f64, f64)> {
    if trials == 0 {
        return None;
    }
    let (n, p, z2) = (trials as f64, successes as f64 / trials as f64, NORMAL_97_5 * NORMAL_97_5);
    let center = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = NORMAL_97_5 * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt() / (1.0 + z2 / n);
    Some(((center - half).max(0.0), (center + half).min(1.0)))
}

/// One bin of a calibration table.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibrationBin {
    /// Lower bound, included.
    pub from: f64,
    /// Upper bound, excluded except in the last bin.
    pub to: f64,
    /// Number of predictions in the bin.
    pub count: usize,
    /// Mean predicted probability; 0 without predictions.
    pub confidence: f64,
    /// Share of the predictions that came true; 0 without predictions.
    pub accuracy: f64,
}

/// Compares predicted probabilities with outcomes, in `bins` bins of equal width from `lowest` to 1.
///
/// A preference model's probability of its own choice lies in [0.5, 1], so its `lowest` is 0.5. Predictions outside [`lowest`, 1] go to the
/// nearest bin.
///
/// # Panics
/// When the lengths differ, or `bins` is 0.
pub fn calibration(probabilities: &[f32], outcomes: &[bool], bins: usize, lowest: f64) -> Vec<CalibrationBin> {
    assert_eq!(probabilities.len(), outcomes.len(), "one outcome per probability");
    assert!(bins > 0, "at least one bin");
    let width = (1.0 - lowest) / bins as f64;
    let mut sums = vec![(0usize, 0.0, 0usize); bins];
    for (&probability, &outcome) in probabilities.iter().zip(outcomes) {
        // `as usize` maps NaN and everything below the first bin to 0.
        let bin = (((f64::from(probability) - lowest) / width) as usize).min(bins - 1);
        let (count, confidence, hits) = &mut sums[bin];
        *count += 1;
        *confidence += f64::from(probability);
        *hits += usize::from(outcome);
    }
    let bin = |(i, (count, confidence, hits)): (usize, (usize, f64, usize))| {
        let share = |sum: f64| if count == 0 { 0.0 } else { sum / count as f64 };
        let (from, to) = (lowest + width * i as f64, lowest + width * (i + 1) as f64);
        CalibrationBin { from, to, count, confidence: share(confidence), accuracy: share(hits as f64) }
    };
    sums.into_iter().enumerate().map(bin).collect()
}

/// Expected calibration error: `Σ (count/n)·|accuracy − confidence|` over the bins; `None` without predictions.
///
/// Naeini et al. 2015; Guo et al. 2017, equation 3, <https://arxiv.org/abs/1706.04599>.
pub fn expected_calibration_error(bins: &[CalibrationBin]) -> Option<f64> {
    let n: usize = bins.iter().map(|bin| bin.count).sum();
    let gap = |bin: &CalibrationBin| bin.count as f64 * (bin.accuracy - bin.confidence).abs();
    (n > 0).then(|| bins.iter().map(gap).sum::<f64>() / n as f64)
}

/// Standard error of Σ sum / Σ weight over independently drawn rows, each a `(sum, weight)`: `√(n/(n−1) · Σ(sum − m·weight)²) / Σ weight`,
/// the linearized variance of a ratio (Cochran 1977, section 6.4). With weights of 1 it is the standard error of the mean. `None` with
/// fewer than two rows, or without weight.
pub fn ratio_error(rows: &[(f64, f64)]) -> Option<f64> {
    let (n, weight) = (rows.len() as f64, rows.iter().map(|row| row.1).sum::<f64>());
    if rows.len() < 2 || weight <= 0.0 {
        return None;
    }
    let mean = rows.iter().map(|row| row.0).sum::<f64>() / weight;
    let squares: f64 = rows.iter().map(|(sum, own)| (sum - mean * own).powi(2)).sum();
    Some((n / (n - 1.0) * squares).sqrt() / weight)
}

/// Mean of `values` and half the width of its 95 % interval by Student's distribution. One value has no width; no values give `None`.
///
/// The quantile for `n` degrees of freedom comes from a table up to 10, then from an expansion in `1/n` (Abramowitz and Stegun 1964,
/// 26.7.5).
pub fn mean_interval(values: &[f64]) -> Option<(f64, Option<f64>)> {
    const TABLE: [f64; 10] = [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281];
    const NORMAL: f64 = 1.959_964;
    let count = values.len();
    if count == 0 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / count as f64;
    let Some(beyond_two) = count.checked_sub(2) else { return Some((mean, None)) };
    let n = (beyond_two + 1) as f64;
    let quantile = TABLE.get(beyond_two).copied().unwrap_or_else(|| {
        let z = NORMAL;
        z + (z.powi(3) + z) / (4.0 * n) + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
    });
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((mean, Some(quantile * (squares / n / count as f64).sqrt())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: Option<f64>, expected: f64) {
        let found = found.expect("defined");
        assert!((found - expected).abs() < 1e-6, "{found} against {expected}");
    }

    #[test]
    fn the_error_of_a_ratio_is_that_of_the_mean_where_rows_weigh_alike() {
        // std([1, 2, 3, 4], ddof=1) / √4
        close(ratio_error(&[(1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (4.0, 1.0)]), 0.645_497_2);
        // The ratio is a tenth if every row has weight ten, and so is its error.
        close(ratio_error(&[(1.0, 10.0), (2.0, 10.0), (3.0, 10.0), (4.0, 10.0)]), 0.064_549_7);
        // By hand: m = 10/6, and both rows are off by 2/3.
        close(ratio_error(&[(1.0, 1.0), (9.0, 5.0)]), (2.0f64 * 2.0 * (2.0f64 / 3.0).powi(2)).sqrt() / 6.0);
        assert_eq!((ratio_error(&[(1.0, 1.0)]), ratio_error(&[(0.0, 0.0), (0.0, 0.0)])), (None, None));
    }

    #[test]
    fn moments() {
        close(mean(&[1.0, 2.0, 6.0]), 3.0);
        close(variance(&[1.0, 2.0, 6.0], Variance::Biased), 14.0 / 3.0);
        close(variance(&[1.0, 2.0, 6.0], Variance::Unbiased), 7.0);
        assert_eq!((mean(&[]), variance(&[], Variance::Biased), variance(&[], Variance::Unbiased)), (None, None, None));
        assert_eq!((std(&[3.0], Variance::Biased), std(&[3.0], Variance::Unbiased)), (Some(0.0), None));
    }

    #[test]
    fn quantiles_interpolate() {
        // numpy.quantile([4, 1, 3, 2], q)
        for (q, expected) in [(0.0, 1.0), (0.25, 1.75), (0.5, 2.5), (0.9, 3.7), (1.0, 4.0)] {
            close(quantile(&[4.0, 1.0, 3.0, 2.0], q), expected);
        }
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
    }

    #[test]
    fn explained_variance_of_perfect_constant_and_wrong_predictions() {
        let targets = [1.0, 2.0, 3.0];
        close(explained_variance(&targets, &targets), 1.0);
        close(explained_variance(&[5.0; 3], &targets), 0.0);
        close(explained_variance(&[3.0, 2.0, 1.0], &targets), -3.0);
        assert_eq!(explained_variance(&targets, &[1.0; 3]), None);
    }

    #[test]
    fn correlation_of_lines_and_constants() {
        close(correlation(&[1.0, 2.0, 3.0], &[-2.0, -4.0, -6.0]), -1.0);
        close(correlation(&[1.0, 2.0, 3.0, 4.0], &[1.0, 3.0, 2.0, 4.0]), 0.8);
        assert_eq!(correlation(&[1.0, 2.0], &[3.0, 3.0]), None);
    }

    #[test]
    fn proportion_interval_stays_inside() {
        // statsmodels.stats.proportion.proportion_confint(k, n, method="wilson")
        let (low, high) = proportion_interval(8, 10).expect("trials");
        assert!((low - 0.490_16).abs() < 1e-5 && (high - 0.943_318).abs() < 1e-5, "{low} {high}");
        let (low, high) = proportion_interval(10, 10).expect("trials");
        assert!((low - 0.722_467).abs() < 1e-5 && (high - 1.0).abs() < 1e-12, "{low} {high}");
        assert_eq!(proportion_interval(0, 0), None);
    }

    #[test]
    fn calibration_error_of_a_confident_coin() {
        // Four predictions of 0.9, two of which came true, and one of 0.5 that came true.
        let bins = calibration(&[0.9, 0.9, 0.9, 0.9, 0.5], &[true, false, true, false, true], 5, 0.5);
        assert_eq!(bins.iter().map(|bin| bin.count).collect::<Vec<_>>(), [1, 0, 0, 4, 0].map(|n| n));
        // 4/5·|0.5 − 0.9| + 1/5·|1 − 0.5|
        close(expected_calibration_error(&bins), 0.42);
        assert_eq!(expected_calibration_error(&calibration(&[], &[], 5, 0.5)), None);
        assert_eq!(calibration(&[1.0, 0.2, f32::NAN], &[true; 3], 2, 0.5)[0].count, 2);
    }

    #[test]
    fn an_interval_of_a_mean_is_students() {
        assert_eq!(mean_interval(&[]), None);
        assert_eq!(mean_interval(&[3.0]), Some((3.0, None)));
        let (mean, off) = mean_interval(&[1.0, 2.0, 4.0]).expect("values");
        // s² = 7/3, s/√3 = 0.881917; t₂ = 4.3027.
        assert!((mean - 7.0 / 3.0).abs() < 1e-12 && (off.expect("a width") - 3.794_6).abs() < 1e-3);
        // 26 values that alternate between 0 and 1: s² = 13/50, s/√26 = 0.1, t₂₅ = 2.0595.
        let values: Vec<f64> = (0..26).map(|i| f64::from(i % 2)).collect();
        let (_, off) = mean_interval(&values).expect("values");
        assert!((off.expect("a width") - 0.205_95).abs() < 1e-4, "{off:?}");
    }
}
