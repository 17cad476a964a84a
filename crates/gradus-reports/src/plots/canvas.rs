//! Drawing primitives in pixels at scale 1, over plotters' bitmap backend.

use std::fmt::Display;
use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};

use super::png;

/// Error of a drawing backend.
#[derive(Debug)]
pub struct DrawError(String);

impl Display for DrawError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A color: red, green, blue.
pub type Rgb = (u8, u8, u8);

/// Colors for curves and bars, in order. Most color-blind readers can distinguish them.
pub const PALETTE: [Rgb; 8] = [
    (37, 99, 235),
    (234, 88, 12),
    (13, 148, 136),
    (190, 24, 93),
    (124, 58, 237),
    (101, 163, 13),
    (8, 145, 178),
    (120, 113, 108),
];
/// Background.
pub const GROUND: Rgb = (255, 255, 255);
/// Titles.
pub const INK: Rgb = (28, 33, 40);
/// Labels.
pub const GREY: Rgb = (82, 91, 102);
/// Bars of the baseline: the start.
pub const NEUTRAL: Rgb = (156, 163, 175);
/// Horizontal axis.
pub const AXIS: Rgb = (176, 183, 191);
/// Grid lines.
pub const GRID: Rgb = (232, 235, 239);

/// Share of its color that a faint line keeps.
pub const FAINT: f64 = 0.28;

/// `color` mixed with white: 1 is the color, 0 is white.
fn faint(color: Rgb, share: f64) -> Rgb {
    let mix = |channel: u8| (255.0 - share * (255.0 - f64::from(channel))).round() as u8;
    (mix(color.0), mix(color.1), mix(color.2))
}

/// Horizontal reference point of a text's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Its left end.
    Left,
    /// Its middle.
    Center,
    /// Its right end.
    Right,
}

/// Drawing operations of charts. Lengths and positions are pixels at scale 1, from the upper left corner.
pub trait Draw {
    /// Draws a line through `points`.
    fn line(&mut self, points: &[(f64, f64)], color: Rgb, width: f64) -> Result<(), DrawError>;
    /// Draws a faint line for the background.
    fn faint_line(&mut self, points: &[(f64, f64)], color: Rgb, width: f64) -> Result<(), DrawError> {
        self.line(points, faint(color, FAINT), width)
    }
    /// Draws a filled rectangle between two corners.
    fn rectangle(&mut self, from: (f64, f64), to: (f64, f64), color: Rgb) -> Result<(), DrawError>;
    /// Draws a filled circle.
    fn circle(&mut self, center: (f64, f64), radius: f64, color: Rgb) -> Result<(), DrawError>;
    /// Draws a text, vertically centered on `at`.
    fn text(&mut self, text: &str, at: (f64, f64), size: f64, color: Rgb, anchor: Anchor) -> Result<(), DrawError>;
    /// Width of a text.
    fn width(&self, text: &str, size: f64) -> f64 {
        text_width(text, size)
    }
}

const FONT: &str = "sans-serif";

/// Size of a PNG relative to scale 1.
const PNG_SCALE: f64 = 1.5;
/// Factor of oversampling when a PNG is drawn.
const OVERSAMPLING: usize = 2;

fn register_fonts() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        let registered = register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT);
        assert!(registered.is_ok(), "the embedded font is a font");
    });
}

/// Draws a chart of `size` at scale 1 and encodes it as PNG.
///
/// This function is not generic, so that its loops are compiled, and optimized, in this crate only.
pub fn render_png(size: (u32, u32), draw: &dyn Fn(&mut dyn Draw) -> Result<(), DrawError>) -> Vec<u8> {
    register_fonts();
    let scale = PNG_SCALE * OVERSAMPLING as f64;
    let large = |length: u32| (f64::from(length) * scale).round() as usize / OVERSAMPLING * OVERSAMPLING;
    let (width, height) = (large(size.0), large(size.1));
    // White is the background.
    let mut pixels = vec![255; width * height * 3];
    let area = BitMapBackend::with_buffer(&mut pixels, (width as u32, height as u32)).into_drawing_area();
    let mut canvas = Canvas { area, scale };
    let drawn = draw(&mut canvas).and_then(|()| canvas.area.present().map_err(|error| DrawError(error.to_string())));
    // Drawing in memory cannot fail, and the font is embedded.
    drawn.expect("drawing into memory");
    drop(canvas);
    let small = png::shrink::<OVERSAMPLING>(&pixels, width, height);
    png::encode(&small, (width / OVERSAMPLING) as u32, (height / OVERSAMPLING) as u32)
}

/// Width of `text` in the embedded font, in pixels at scale 1.
pub fn text_width(text: &str, size: f64) -> f64 {
    // Measured at a large size, because the font module rounds to whole pixels.
    const LARGE: f64 = 8.0;
    register_fonts();
    (FONT, size * LARGE).into_font().box_size(text).map_or(0.0, |(width, _)| f64::from(width) / LARGE)
}

struct Canvas<DB: DrawingBackend> {
    area: DrawingArea<DB, Shift>,
    scale: f64,
}

impl<DB: DrawingBackend> Canvas<DB> {
    fn pixel(&self, point: (f64, f64)) -> (i32, i32) {
        ((point.0 * self.scale).round() as i32, (point.1 * self.scale).round() as i32)
    }

    fn put<E>(&self, element: &E) -> Result<(), DrawError>
    where
        for<'a> &'a E: plotters::element::PointCollection<'a, (i32, i32)>,
        E: plotters::element::Drawable<DB>,
    {
        self.area.draw(element).map_err(|error| DrawError(error.to_string()))
    }
}

fn rgb(color: Rgb) -> RGBColor {
    RGBColor(color.0, color.1, color.2)
}

impl<DB: DrawingBackend> Draw for Canvas<DB> {
    fn line(&mut self, points: &[(f64, f64)], color: Rgb, width: f64) -> Result<(), DrawError> {
        let points: Vec<_> = points.iter().map(|&point| self.pixel(point)).collect();
        let width = (width * self.scale).round().max(1.0) as u32;
        self.put(&PathElement::new(points, rgb(color).stroke_width(width)))
    }

    fn rectangle(&mut self, from: (f64, f64), to: (f64, f64), color: Rgb) -> Result<(), DrawError> {
        let corners = [self.pixel(from), self.pixel(to)];
        self.put(&Rectangle::new(corners, rgb(color).filled()))
    }

    fn circle(&mut self, center: (f64, f64), radius: f64, color: Rgb) -> Result<(), DrawError> {
        let radius = (radius * self.scale).round() as i32;
        self.put(&Circle::new(self.pixel(center), radius, rgb(color).filled()))
    }

    fn text(&mut self, text: &str, at: (f64, f64), size: f64, color: Rgb, anchor: Anchor) -> Result<(), DrawError> {
        let horizontal = match anchor {
            Anchor::Left => HPos::Left,
            Anchor::Center => HPos::Center,
            Anchor::Right => HPos::Right,
        };
        let color = rgb(color);
        // The box of a text includes descenders, so its center is below that of the lowercase letters.
        let at = (at.0, at.1 + 0.13 * size);
        let font = (FONT, size * self.scale).into_font().color(&color).pos(Pos::new(horizontal, VPos::Center));
        self.put(&Text::new(text.to_owned(), self.pixel(at), font))
    }
}
