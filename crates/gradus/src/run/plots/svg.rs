//! SVG drawing of charts for pages, with exact coordinates and the reader's own font.

use std::fmt::Write;

use super::Chart;
use super::canvas::{AXIS, Anchor, Draw, DrawError, FAINT, GREY, GRID, GROUND, INK, Rgb, text_width};
use crate::run::html::escape;

/// Renders an `<svg>` element that fills the available width.
pub fn render(chart: &(impl Chart + ?Sized)) -> String {
    let (width, height) = chart.size();
    let mut svg = Svg(format!(
        "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {width} {height}\" xmlns=\"http://www.w3.org/2000/svg\" \
         font-family=\"system-ui, sans-serif\">\n",
        escape(chart.title())
    ));
    chart.draw(&mut svg).expect("drawing into memory");
    svg.0 + "</svg>\n"
}

struct Svg(String);

impl Svg {
    fn put(&mut self, element: std::fmt::Arguments<'_>) -> Result<(), DrawError> {
        self.0.write_fmt(element).expect("writing to memory");
        self.0.push('\n');
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

fn polyline(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

impl Draw for Svg {
    fn width(&self, text: &str, size: f64) -> f64 {
        // The reader's font may be wider than the embedded one: DejaVu Sans, a wide font, by a quarter.
        1.27 * text_width(text, size)
    }

    fn line(&mut self, points: &[(f64, f64)], color: Rgb, width: f64) -> Result<(), DrawError> {
        self.put(format_args!(
            "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\" stroke-linejoin=\"round\" points=\"{}\"/>",
            paint(color),
            polyline(points)
        ))
    }

    fn faint_line(&mut self, points: &[(f64, f64)], color: Rgb, width: f64) -> Result<(), DrawError> {
        self.put(format_args!(
            "<polyline fill=\"none\" stroke=\"{}\" stroke-opacity=\"{FAINT}\" stroke-width=\"{width}\" \
             stroke-linejoin=\"round\" points=\"{}\"/>",
            paint(color),
            polyline(points)
        ))
    }

    fn rectangle(&mut self, from: (f64, f64), to: (f64, f64), color: Rgb) -> Result<(), DrawError> {
        self.put(format_args!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
            from.0.min(to.0),
            from.1.min(to.1),
            (to.0 - from.0).abs(),
            (to.1 - from.1).abs(),
            paint(color)
        ))
    }

    fn circle(&mut self, center: (f64, f64), radius: f64, color: Rgb) -> Result<(), DrawError> {
        let (x, y) = center;
        self.put(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{}\"/>", paint(color)))
    }

    fn text(&mut self, text: &str, at: (f64, f64), size: f64, color: Rgb, anchor: Anchor) -> Result<(), DrawError> {
        let anchor = match anchor {
            Anchor::Left => "start",
            Anchor::Center => "middle",
            Anchor::Right => "end",
        };
        // The baseline is about a third of the size below the middle.
        let (x, y) = (at.0, at.1 + 0.34 * size);
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            paint(color),
            escape(text)
        ))
    }
}
