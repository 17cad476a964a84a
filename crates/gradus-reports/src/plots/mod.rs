//! Charts of a run: curves and bars, as PNG files and as SVG for pages.
//!
//! All share one style: white background, light horizontal grid, a bold smoothed line over the faint raw one. The font is embedded, so a
//! chart does not depend on the machine. PNGs are drawn at twice their size and averaged down, which smooths all edges.

mod bars;
mod canvas;
mod colors;
mod curves;
mod histogram;
mod line;
mod png;
mod scale;
mod svg;

pub use bars::{Bar, BarChart, Panel};
pub use colors::colors;
pub use curves::{ComparedRun, comparison_charts, training_charts, write_charts};
pub use histogram::{Range, Values, histogram};
pub use line::{Curve, CurveKind, LineChart};
pub use scale::short;

use crate::html::Html;

/// A chart that can be drawn.
pub trait Chart {
    /// Width and height in pixels at scale 1.
    fn size(&self) -> (u32, u32);

    /// Text alternative for screen readers.
    fn title(&self) -> &str;

    /// Draws the chart.
    ///
    /// # Errors
    /// If the canvas fails; drawing in memory never does.
    fn draw(&self, canvas: &mut dyn canvas::Draw) -> Result<(), canvas::DrawError>;

    /// Renders a PNG file, 1.5 times [`Chart::size`].
    fn png(&self) -> Vec<u8> {
        canvas::render_png(self.size(), &|canvas| self.draw(canvas))
    }

    /// Renders an `<svg>` element that scales with its container.
    fn svg(&self) -> Html {
        svg::render(self)
    }
}
