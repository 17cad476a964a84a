//! Line charts: curves over steps, histograms and single points.

use super::Chart;
use super::canvas::{AXIS, Anchor, Draw, DrawError, GREY, GRID, GROUND, INK, NEUTRAL, PALETTE, Rgb};
use super::scale::{Scale, outline, short};
use crate::run::smoothing::{FEWEST_SMOOTHED, smoothed_curve};

/// Style of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CurveKind {
    /// A bold smoothed line over the faint raw one.
    Smoothed,
    /// A line with a dot at every measurement, for evaluations.
    Measured,
    /// A line with dots but without a last value in the legend, for points that do not follow each other in time.
    Dotted,
    /// An unsmoothed line, for values that are set, such as a learning rate.
    Exact,
    /// An unsmoothed line without a last value in the legend, for outlines and diagonals.
    Line,
}

impl CurveKind {
    fn has_dots(self) -> bool {
        matches!(self, Self::Measured | Self::Dotted)
    }

    /// Whether the last value of the curve is its result.
    fn has_last_value(self) -> bool {
        !matches!(self, Self::Dotted | Self::Line)
    }
}

/// One curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// Step and value. Values that are not finite leave a gap.
    pub points: Vec<(f64, f64)>,
    /// Step, lower and upper end of an interval around a value; may be empty.
    pub intervals: Vec<(f64, f64, f64)>,
    /// Style of the curve.
    pub kind: CurveKind,
    /// Index in the palette; `None` for the baseline.
    pub color: Option<usize>,
}

/// A chart of several curves.
#[derive(Debug, Clone, PartialEq)]
pub struct LineChart {
    /// Title of the chart.
    pub title: String,
    /// Unit of the values.
    pub unit: String,
    /// Label of the x-axis.
    pub x_label: String,
    /// Curves of the chart.
    pub curves: Vec<Curve>,
}

struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: Scale,
    y: Scale,
}

impl Frame {
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let across = self.left + self.x.position(x) * (self.right - self.left);
        (across, self.bottom - self.y.position(y) * (self.bottom - self.top))
    }
}

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 460.0;
const MARGIN: f64 = 26.0;
const LABEL: f64 = 13.0;
const LEGEND_ROW: f64 = 22.0;

impl Chart for LineChart {
    fn size(&self) -> (u32, u32) {
        (WIDTH as u32, HEIGHT as u32)
    }

    fn title(&self) -> &str {
        &self.title
    }

    fn draw(&self, canvas: &mut dyn Draw) -> Result<(), DrawError> {
        canvas.text(&self.title, (MARGIN, 28.0), 20.0, INK, Anchor::Left)?;
        let title_end = MARGIN + canvas.width(&self.title, 20.0);
        canvas.text(&self.subtitle(), (title_end + 12.0, 30.0), LABEL, GREY, Anchor::Left)?;
        let below_legend = self.legend(canvas)?;
        let frame = self.frame(canvas, below_legend + 12.0);
        self.axes(canvas, &frame)?;
        // Faint lines first, so that no curve hides another curve's bold line.
        for (curve, color) in self.colored() {
            if curve.kind == CurveKind::Smoothed {
                strokes(&outline(&curve.points), &frame, |run| canvas.faint_line(run, color, 1.2))?;
            }
        }
        for (curve, color) in self.colored() {
            let width = if curve.kind == CurveKind::Smoothed { 2.4 } else { 1.6 };
            for &(x, low, high) in curve.intervals.iter().filter(|(_, low, high)| low.is_finite() && high.is_finite()) {
                canvas.faint_line(&[frame.at(x, low), frame.at(x, high)], color, 5.0)?;
            }
            strokes(&bold(curve), &frame, |run| canvas.line(run, color, width))?;
            if curve.kind.has_dots() || curve.points.len() == 1 {
                for &(x, y) in curve.points.iter().filter(|point| point.1.is_finite()) {
                    // A single point is larger, because it is the whole curve.
                    let radius = if curve.points.len() == 1 { 6.5 } else { 3.5 };
                    canvas.circle(frame.at(x, y), radius + 1.0, GROUND)?;
                    canvas.circle(frame.at(x, y), radius, color)?;
                }
            }
        }
        Ok(())
    }
}

impl LineChart {
    fn colored(&self) -> impl Iterator<Item = (&Curve, Rgb)> {
        self.curves.iter().map(|curve| (curve, curve.color.map_or(NEUTRAL, |color| PALETTE[color % PALETTE.len()])))
    }

    /// The unit, and the meaning of bold lines and bars.
    fn subtitle(&self) -> String {
        let is_smoothed = |curve: &Curve| curve.kind == CurveKind::Smoothed && curve.points.len() >= FEWEST_SMOOTHED;
        let notes = [
            self.unit.as_str(),
            if self.curves.iter().any(is_smoothed) { "bold: smoothed" } else { "" },
            if self.curves.iter().any(|curve| !curve.intervals.is_empty()) { "bars: 95 % intervals" } else { "" },
        ];
        notes.into_iter().filter(|note| !note.is_empty()).collect::<Vec<_>>().join(" · ")
    }

    /// Draws the names with the last measured values. Returns the y-coordinate below the legend.
    fn legend(&self, canvas: &mut dyn Draw) -> Result<f64, DrawError> {
        let (mut x, mut y) = (MARGIN, 56.0);
        for (curve, color) in self.colored() {
            let last = curve.points.iter().rev().find(|point| point.1.is_finite() && curve.kind.has_last_value());
            let last = last.map_or(String::new(), |point| short(point.1));
            let (name_width, last_width) = (canvas.width(&curve.name, 14.0), canvas.width(&last, 14.0));
            let width = 26.0 + name_width + 8.0 + last_width + 22.0;
            if x > MARGIN && x + width > WIDTH - MARGIN {
                (x, y) = (MARGIN, y + LEGEND_ROW);
            }
            canvas.line(&[(x, y), (x + 18.0, y)], color, 3.0)?;
            if curve.kind.has_dots() {
                canvas.circle((x + 9.0, y), 4.0, color)?;
            }
            canvas.text(&curve.name, (x + 26.0, y), 14.0, INK, Anchor::Left)?;
            canvas.text(&last, (x + 26.0 + name_width + 8.0, y), 14.0, GREY, Anchor::Left)?;
            x += width;
        }
        Ok(y + 8.0)
    }

    fn frame(&self, canvas: &dyn Draw, top: f64) -> Frame {
        let bottom = HEIGHT - 52.0;
        let y = self.values();
        let finite = |values: &mut dyn Iterator<Item = f64>| {
            values
                .filter(|value| value.is_finite())
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
        };
        let (low, high) = finite(&mut y.into_iter());
        let y = if low <= high { Scale::around(low, high, 5) } else { Scale::around(0.0, 1.0, 5) };
        let places = || self.curves.iter().flat_map(|curve| &curve.points).map(|point| point.0);
        let (first, last) = finite(&mut places());
        let x = match first <= last {
            true if places().all(|x| x.fract() == 0.0) => Scale::within(first, last, 8),
            true => Scale::around(first, last, 8),
            false => Scale::within(0.0, 1.0, 8),
        };
        let widest = y.ticks().iter().map(|&tick| canvas.width(&y.label(tick), LABEL)).fold(0.0, f64::max);
        Frame { left: MARGIN + widest + 10.0, right: WIDTH - MARGIN - 6.0, top, bottom, x, y }
    }

    /// Values that the chart must show: all bold lines, and the raw values without the most extreme hundredth at each end.
    fn values(&self) -> Vec<f64> {
        let mut all = Vec::new();
        for curve in &self.curves {
            all.extend(bold(curve).iter().map(|point| point.1));
            all.extend(curve.intervals.iter().flat_map(|&(_, low, high)| [low, high]));
            let mut raw: Vec<f64> = curve.points.iter().map(|point| point.1).filter(|y| y.is_finite()).collect();
            raw.sort_by(f64::total_cmp);
            let outliers = raw.len() / 100;
            all.extend(raw.iter().skip(outliers).take(raw.len() - 2 * outliers));
        }
        all
    }

    fn axes(&self, canvas: &mut dyn Draw, frame: &Frame) -> Result<(), DrawError> {
        for tick in frame.y.ticks() {
            let (_, y) = frame.at(frame.x.low, tick);
            canvas.line(&[(frame.left, y), (frame.right, y)], GRID, 1.0)?;
            canvas.text(&frame.y.label(tick), (frame.left - 10.0, y), LABEL, GREY, Anchor::Right)?;
        }
        canvas.line(&[(frame.left, frame.bottom), (frame.right, frame.bottom)], AXIS, 1.2)?;
        for tick in frame.x.ticks() {
            let (x, _) = frame.at(tick, frame.y.low);
            canvas.line(&[(x, frame.bottom), (x, frame.bottom + 5.0)], AXIS, 1.2)?;
            canvas.text(&frame.x.label(tick), (x, frame.bottom + 16.0), LABEL, GREY, Anchor::Center)?;
        }
        let middle = (frame.left + frame.right) / 2.0;
        canvas.text(&self.x_label, (middle, HEIGHT - 16.0), LABEL, GREY, Anchor::Center)
    }
}

/// Bold line of a curve.
fn bold(curve: &Curve) -> Vec<(f64, f64)> {
    if curve.kind == CurveKind::Smoothed { smoothed_curve(&curve.points) } else { curve.points.clone() }
}

/// Draws a line with gaps at values that are not finite.
fn strokes(
    points: &[(f64, f64)],
    frame: &Frame,
    mut draw: impl FnMut(&[(f64, f64)]) -> Result<(), DrawError>,
) -> Result<(), DrawError> {
    for run in points.split(|point| !point.1.is_finite()).filter(|run| run.len() > 1) {
        let run: Vec<_> = run.iter().map(|&(x, y)| frame.at(x, y)).collect();
        draw(&run)?;
    }
    Ok(())
}
