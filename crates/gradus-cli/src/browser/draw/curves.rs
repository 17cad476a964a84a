//! Curves of one metric, for all displayed runs.

use gradus::run::smoothing::HEADROOM;
use gradus::runs::{Series, series};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Paragraph};

use super::{Theme, text};
use crate::browser::state::Browser;
use crate::watch::short;

/// Minimum number of measurements for smoothing.
const SMOOTHED_FROM: usize = 10;
/// Maximum number of points. More points than a wide screen has dots would only cost time.
const POINTS: usize = 1000;

struct Curve {
    name: String,
    measured: Series,
    /// Points to draw, multiplied by [`HEADROOM`].
    dots: Series,
    /// Line to draw, multiplied by [`HEADROOM`].
    line: Series,
}

/// Draws the metric, with one line of numbers per run.
pub fn draw(frame: &mut Frame<'_>, area: Rect, browser: &Browser, theme: Theme) -> usize {
    let Some(metric) = browser.metric() else {
        text::draw(frame, area, vec![Line::raw("nothing was logged yet")], 0);
        return 0;
    };
    let keys = browser.details().map_or(&[][..], |details| &details.keys);
    let place = keys.iter().position(|key| key == metric).unwrap_or(0);
    let curves = curves(browser, metric);
    let [legend, chart] =
        Layout::vertical([Constraint::Length(1 + curves.len() as u16), Constraint::Min(3)]).areas(area);
    let mut lines = vec![Line::from(vec![
        Span::styled(metric.to_owned(), theme.bold()),
        Span::styled(format!("  {} of {} metrics", place + 1, keys.len()), theme.faint()),
        Span::styled(if browser.is_raw { "  as measured" } else { "" }, theme.faint()),
    ])];
    lines.extend(
        curves.iter().enumerate().map(|(place, curve)| numbers(curve, theme.curve(place), theme, legend.width)),
    );
    frame.render_widget(Paragraph::new(lines), legend);
    picture(frame, chart, &curves, browser.is_raw, theme);
    0
}

fn curves(browser: &Browser, metric: &str) -> Vec<Curve> {
    let of = |name: &&str| {
        let measured = series(&browser.details.get(*name)?.rows, metric);
        let smooth = !browser.is_raw && measured.points.len() >= SMOOTHED_FROM;
        let mut dots = measured.thinned(POINTS);
        dots.points.iter_mut().for_each(|point| point.1 *= HEADROOM);
        let line = if smooth { dots.smoothed() } else { dots.clone() };
        (!measured.points.is_empty()).then(|| Curve { name: (*name).to_owned(), measured, dots, line })
    };
    browser.drawn().iter().filter_map(of).collect()
}

fn numbers(curve: &Curve, style: Style, theme: Theme, width: u16) -> Line<'static> {
    let (low, high) = curve.measured.range().unwrap_or((f64::NAN, f64::NAN));
    let first = curve.measured.points.first().map_or(f64::NAN, |point| point.1);
    let last = curve.measured.last().unwrap_or(f64::NAN);
    let name = text::shortened(&curve.name, (width as usize).saturating_sub(48).max(12));
    Line::from(vec![
        Span::styled("━━ ", style),
        Span::raw(format!("{name}  {} → ", short(first))),
        Span::styled(short(last), theme.bold()),
        Span::styled(format!("  {} to {}", short(low), short(high)), theme.faint()),
    ])
}

fn picture(frame: &mut Frame<'_>, area: Rect, curves: &[Curve], is_raw: bool, theme: Theme) {
    let points = || curves.iter().flat_map(|curve| &curve.line.points);
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        points().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)))
    };
    let (first, last) = bounds(|point| point.0);
    let (low, high) = bounds(|point| point.1);
    if !low.is_finite() {
        return;
    }
    let room = |value: f64| 0.5 * value.abs().max(HEADROOM);
    let most = f64::MAX * HEADROOM;
    let (low, high) =
        if high > low { (low, high) } else { ((low - room(low)).max(-most), (high + room(high)).min(most)) };
    let (first, last) = if last > first { (first, last) } else { (first - 1.0, last + 1.0) };
    let dots = |curve: &Curve| !is_raw && curve.measured.points.len() >= SMOOTHED_FROM;
    let mut sets = Vec::new();
    // Draws the faint dots first, so that they do not cover lines.
    for curve in curves.iter().filter(|curve| dots(curve)) {
        let set = Dataset::default().marker(Marker::Braille).graph_type(GraphType::Scatter);
        sets.push(set.style(theme.faint()).data(&curve.dots.points));
    }
    for (place, curve) in curves.iter().enumerate() {
        let alone = curve.line.points.len() == 1;
        let (marker, kind) = if alone { (Marker::Dot, GraphType::Scatter) } else { (Marker::Braille, GraphType::Line) };
        sets.push(
            Dataset::default().marker(marker).graph_type(kind).style(theme.curve(place)).data(&curve.line.points),
        );
    }
    let steps = |share: f64| format!("{:.0}", first + share * (last - first));
    let value = move |share: f64| short((low + (high - low) * share).min(high) / HEADROOM);
    let values = |count: usize| (0..count).map(move |i| value(i as f64 / (count - 1) as f64));
    let count = if area.height >= 16 { 5 } else { 3 };
    let x = Axis::default().style(theme.faint()).bounds([first, last]).labels([steps(0.0), steps(0.5), steps(1.0)]);
    let y = Axis::default().style(theme.faint()).bounds([low, high]).labels(values(count));
    frame.render_widget(Chart::new(sets).x_axis(x).y_axis(y).legend_position(None), area);
}
