//! SVG drawing of charts for pages, with exact coordinates and the reader's own font.

use super::Chart;
use super::canvas::{AXIS, Anchor, Draw, DrawError, FAINT, GREY, GRID, GROUND, INK, Rgb, text_width};
use crate::html;
use crate::html::Html;

/// Renders an `<svg>` element that fills the available width.
pub fn render(chart: &(impl Chart + ?Sized)) -> Html {
    let (width, height) = chart.size();
    let mut svg = Svg(html![
        "<svg role=\"img\" aria-label=\"" (chart.title()) "\" viewBox=\"0 0 " (width) " " (height) "\" "
        "xmlns=\"http://www.w3.org/2000/svg\" font-family=\"system-ui, sans-serif\">\n"
    ]);
    chart.draw(&mut svg).expect("drawing into memory");
    html![(svg.0) "</svg>\n"]
}

struct Svg(Html);

impl Svg {
    fn put(&mut self, element: &Html) -> Result<(), DrawError> {
        self.0.add(element);
        self.0.markup("\n");
        Ok(())
    }
}

/// CSS color. Colors other than those of curves are variables with ours as the default, so that charts follow a page's dark mode.
fn paint(color: Rgb) -> String {
    let (red, green, blue) = color;
    let own = format!("#{red:02x}{green:02x}{blue:02x}");
    let named = [(GROUND, "ground"), (INK, "ink"), (GREY, "quiet"), (GRID, "line"), (AXIS, "quiet")];
    match named.into_iter().find(|(known, _)| *known == color) {
        Some((_, name)) => format!("var(--{name}, {own})"),
        None => own,
    }
}

/// Formats a length or position, in tenths of a pixel.
fn pixels(length: f64) -> String {
    format!("{length:.1}")
}

fn polyline(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

impl Draw for Svg {
    fn width(&self, text: &str, size: f64) -> f64 {
        // The reader's font may be wider than the embedded one: DejaVu Sans, a wide font, by a quarter.
        1.27 * text_width(text, size)
    }

    fn line(&mut self, points: &[(f64, f64)], color: Rgb, width: f64) -> Result<(), DrawError> {
        self.put(&html![
            "<polyline fill=\"none\" stroke=\"" (paint(color)) "\" stroke-width=\"" (width)
            "\" stroke-linejoin=\"round\" points=\"" (polyline(points)) "\"/>"
        ])
    }

    fn faint_line(&mut self, points: &[(f64, f64)], color: Rgb, width: f64) -> Result<(), DrawError> {
        self.put(&html![
            "<polyline fill=\"none\" stroke=\"" (paint(color)) "\" stroke-opacity=\"" (FAINT) "\" stroke-width=\"" (width)
            "\" stroke-linejoin=\"round\" points=\"" (polyline(points)) "\"/>"
        ])
    }

    fn rectangle(&mut self, from: (f64, f64), to: (f64, f64), color: Rgb) -> Result<(), DrawError> {
        let (x, y) = (pixels(from.0.min(to.0)), pixels(from.1.min(to.1)));
        let (width, height) = (pixels((to.0 - from.0).abs()), pixels((to.1 - from.1).abs()));
        self.put(&html![
            "<rect x=\"" (x) "\" y=\"" (y) "\" width=\"" (width) "\" height=\"" (height) "\" fill=\"" (paint(color)) "\"/>"
        ])
    }

    fn circle(&mut self, center: (f64, f64), radius: f64, color: Rgb) -> Result<(), DrawError> {
        let (x, y) = (pixels(center.0), pixels(center.1));
        self.put(&html!["<circle cx=\"" (x) "\" cy=\"" (y) "\" r=\"" (radius) "\" fill=\"" (paint(color)) "\"/>"])
    }

    fn text(&mut self, text: &str, at: (f64, f64), size: f64, color: Rgb, anchor: Anchor) -> Result<(), DrawError> {
        let anchor = match anchor {
            Anchor::Left => "start",
            Anchor::Center => "middle",
            Anchor::Right => "end",
        };
        // The baseline is about a third of the size below the middle.
        let (x, y) = (pixels(at.0), pixels(at.1 + 0.34 * size));
        self.put(&html![
            "<text x=\"" (x) "\" y=\"" (y) "\" font-size=\"" (size) "\" fill=\"" (paint(color)) "\" text-anchor=\"" (anchor) "\">"
            (text) "</text>"
        ])
    }
}
