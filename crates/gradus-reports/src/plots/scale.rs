//! Axes with round ticks and labels, and outlines of long curves.

use crate::run::smoothing::{DRAWN, stretch};

/// An axis from `low` to `high` with a round distance `step` between ticks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// The first tick.
    pub low: f64,
    /// The last tick.
    pub high: f64,
    /// Distance between two ticks.
    pub step: f64,
}

impl Scale {
    /// Creates an axis around `[low, high]` that begins and ends with a tick, with about `ticks` ticks.
    pub fn around(low: f64, high: f64, ticks: usize) -> Self {
        // Ignore differences in the last digits.
        let differ = half_distance(low, high) > 0.5e-6 * low.abs().max(high.abs());
        let (low, high) = match (differ, low == 0.0 && high == 0.0) {
            (true, _) => (low, high),
            // A constant 0 is drawn at the bottom, because counts and measurements start there.
            (false, true) => (0.0, 1.0),
            (false, false) => ((low - margin(low)).max(f64::MIN), (high + margin(high)).min(f64::MAX)),
        };
        let step = step(low, high, ticks);
        // The next tick may be beyond the largest number.
        let [low, high] = [(low / step + 1e-9).floor(), (high / step - 1e-9).ceil()]
            .map(|ticks| (ticks * step).clamp(f64::MIN, f64::MAX));
        Self { low, high, step }
    }

    /// Creates an axis with integer ticks that begins at `low` and ends at `high`: for counts, such as steps.
    pub fn within(low: f64, high: f64, ticks: usize) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        let round = step(low, high, ticks).max(1.0);
        // 2.5 is round, but no integer.
        let step = if round.fract() == 0.0 { round } else { 5.0 };
        Self { low, high, step }
    }

    /// Relative position of `value` between the ends, 0 to 1.
    pub fn position(&self, value: f64) -> f64 {
        (half_distance(self.low, value) / half_distance(self.low, self.high)).clamp(0.0, 1.0)
    }

    /// Values of the ticks.
    pub fn ticks(&self) -> Vec<f64> {
        let first = (self.low / self.step - 1e-9).ceil() as i64;
        let last = (self.high / self.step + 1e-9).floor() as i64;
        (first..=last).map(|index| index as f64 * self.step).collect()
    }

    /// Label of a tick, with enough digits to distinguish neighboring ticks.
    pub fn label(&self, tick: f64) -> String {
        let largest = self.low.abs().max(self.high.abs());
        if tick.abs() < self.step * 1e-6 {
            return "0".into();
        }
        if !(1e-3..1e15).contains(&largest) {
            // All ticks share one power of ten.
            let power = 10f64.powf((largest.log10() + 1e-9).floor());
            return format!("{}e{}", fixed(tick / power, self.step / power), minus(power.log10().round().to_string()));
        }
        for (unit, suffix) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
            if largest >= 10.0 * unit || (largest >= unit && self.step >= unit / 10.0 && unit > 1e3) {
                return format!("{}{suffix}", fixed(tick / unit, self.step / unit));
            }
        }
        fixed(tick, self.step)
    }
}

/// Returns half the distance of two numbers: the distance itself may exceed the largest number.
pub(super) fn half_distance(low: f64, high: f64) -> f64 {
    high / 2.0 - low / 2.0
}

/// Round distance of about `ticks` ticks between `low` and `high`.
fn step(low: f64, high: f64, ticks: usize) -> f64 {
    // More than one tick, so that the step is finite.
    round_up(half_distance(low, high) / ticks.max(2) as f64 * 2.0)
}

fn margin(value: f64) -> f64 {
    value.abs() * 0.1
}

/// Rounds up to 1, 2, 2.5, 5 or 10 times a power of ten.
fn round_up(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let digit = step / power;
    let rounded = [1.0, 2.0, 2.5, 5.0].into_iter().find(|&round| digit <= round * (1.0 + 1e-9)).unwrap_or(10.0);
    rounded * power
}

/// Formats `value` with the decimals that `step` needs.
fn fixed(value: f64, step: f64) -> String {
    let decimals = (0..8).find(|&decimals| {
        let scaled = step * 10f64.powi(decimals);
        (scaled - scaled.round()).abs() < 1e-6 * scaled.max(1.0)
    });
    minus(format!("{value:.*}", decimals.unwrap_or(8) as usize))
}

fn minus(text: String) -> String {
    text.replace('-', "\u{2212}")
}

fn trimmed(text: String) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a single value for a legend, a bar or a table, with three to four significant digits.
pub fn short(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "–".into();
    }
    let text = match size {
        0.0 => "0".into(),
        _ if size < 1e-3 => format!("{value:.2e}"),
        _ if size < 1.0 => trimmed(format!("{value:.3}")),
        _ if size < 100.0 => trimmed(format!("{value:.2}")),
        _ if size < 10_000.0 => format!("{value:.0}"),
        _ if size < 1e6 => format!("{:.1}k", value / 1e3),
        _ if size < 1e15 => format!("{:.1}M", value / 1e6),
        _ => format!("{value:.2e}"),
    };
    minus(text)
}

/// Reduces a long curve for drawing: keeps the lowest and the highest point of each slice.
pub fn outline(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= 2 * DRAWN {
        return points.to_vec();
    }
    let ends = |index: usize| {
        let stretch = stretch(points, index, DRAWN);
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let finite = || stretch.iter().filter(|point| point.1.is_finite());
        match (finite().min_by(by_value), finite().max_by(by_value)) {
            (Some(low), Some(high)) if low.0 < high.0 => [*low, *high],
            (Some(low), Some(high)) => [*high, *low],
            _ => [(stretch[0].0, f64::NAN); 2],
        }
    };
    (0..DRAWN).flat_map(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::smoothing::smoothed_curve;

    fn labels(scale: Scale) -> String {
        scale.ticks().into_iter().map(|tick| scale.label(tick)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ticks_are_round_and_labels_short() {
        assert_eq!(labels(Scale::around(0.13, 0.94, 5)), "0 0.2 0.4 0.6 0.8 1.0");
        assert_eq!(labels(Scale::around(-1.2, 2.1, 4)), "\u{2212}2 \u{2212}1 0 1 2 3");
        assert_eq!(
            labels(Scale::around(0.0, 1e-6, 4)),
            "0 0.25e\u{2212}6 0.50e\u{2212}6 0.75e\u{2212}6 1.00e\u{2212}6"
        );
        assert_eq!(labels(Scale::within(1.0, 2000.0, 5)), "500 1000 1500 2000");
        assert_eq!(labels(Scale::around(0.0, 40_000.0, 4)), "0 10k 20k 30k 40k");
        assert_eq!(labels(Scale::within(1.0, 3.0, 8)), "1 2 3");
        assert_eq!(labels(Scale::within(0.0, 20.0, 8)), "0 5 10 15 20", "steps are whole");
        assert_eq!(labels(Scale::within(0.0, 200.0, 8)), "0 25 50 75 100 125 150 175 200");
        assert_eq!(labels(Scale::around(2.0, 2.0, 4)), "1.8 1.9 2.0 2.1 2.2");
        assert_eq!(labels(Scale::around(0.0, 0.0, 4)), "0 0.25 0.50 0.75 1.00");
    }

    #[test]
    fn ranges_beyond_the_largest_number_have_ticks() {
        let wide = Scale::around(-1.7e308, 1.7e308, 5);
        assert_eq!(labels(wide), "\u{2212}1e308 0 1e308");
        assert_eq!([f64::MIN, 0.0, f64::MAX].map(|value| wide.position(value)), [0.0, 0.5, 1.0]);
        for scale in [Scale::around(1.75e308, 1.75e308, 5), Scale::within(f64::MIN, f64::MAX, 8)] {
            let ticks = scale.ticks();
            assert!((3..12).contains(&ticks.len()) && ticks.iter().all(|tick| tick.is_finite()), "{ticks:?}");
            assert!(ticks.iter().all(|&tick| (0.0..=1.0).contains(&scale.position(tick))), "{scale:?}");
        }
    }

    #[test]
    fn a_long_curve_is_drawn_with_as_many_points_as_a_picture_has_columns() {
        let line: Vec<(f64, f64)> = (0..1_000_000).map(|x| (f64::from(x), 2.0 * f64::from(x))).collect();
        let smooth = smoothed_curve(&line);
        assert_eq!(smooth.len(), DRAWN);
        assert!(smooth.iter().all(|(x, y)| (y - 2.0 * x).abs() < 1e-6));
        let mut spiked = line.clone();
        (spiked[5].1, spiked[777_777].1) = (f64::NAN, 1e9);
        let outline = outline(&spiked);
        assert!(outline.len() == 2 * DRAWN && outline.is_sorted_by_key(|point| point.0));
        assert!(outline.contains(&(777_777.0, 1e9)) && outline.iter().all(|point| point.1.is_finite()));
        assert_eq!(super::outline(&line[..10]), line[..10]);
    }

    #[test]
    fn single_values_have_few_digits() {
        let shown: Vec<_> =
            [0.0, 1e-6, 0.12345, -1.2345, 41.0, 123.4, 45_600.0, 1.7e308, f64::NAN].into_iter().map(short).collect();
        assert_eq!(shown, ["0", "1.00e\u{2212}6", "0.123", "\u{2212}1.23", "41", "123", "45.6k", "1.70e308", "–"]);
    }
}
