//! Bar charts of final metrics: one panel per quantity, one bar per run.

use super::Chart;
use super::canvas::{AXIS, Anchor, Draw, DrawError, GREY, GRID, INK, NEUTRAL, PALETTE};
use super::scale::{Scale, short};

/// One bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Name of the run.
    pub name: String,
    /// The value; values that are not finite are left out.
    pub value: f64,
    /// Half the width of its error bar.
    pub error: Option<f64>,
    /// Index in the palette; `None` for the baseline.
    pub color: Option<usize>,
}

/// Panel of one quantity.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// Name of the quantity.
    pub title: String,
    /// Unit, or which direction is better.
    pub unit: String,
    /// True if values are shares, shown in percent.
    pub is_share: bool,
    /// One bar per run; every panel has the same runs in the same order.
    pub bars: Vec<Bar>,
}

/// Bar chart with rows of panels.
#[derive(Debug, Clone, PartialEq)]
pub struct BarChart {
    /// Title of the chart.
    pub title: String,
    /// One panel per quantity.
    pub panels: Vec<Panel>,
}

const PANEL_WIDTH: f64 = 300.0;
const PANEL_HEIGHT: f64 = 270.0;
/// A single panel is as large as a line chart, so that the two fit together and many bars have space.
const ALONE: (f64, f64) = (748.0, 390.0);
const TOP: f64 = 62.0;
const MARGIN: f64 = 26.0;

impl BarChart {
    fn columns(&self) -> usize {
        match self.panels.len() {
            0..=2 => self.panels.len().max(1),
            4 => 2,
            _ => 3,
        }
    }

    /// Width and height of each panel, in pixels.
    fn panel(&self) -> (f64, f64) {
        if self.panels.len() == 1 { ALONE } else { (PANEL_WIDTH, PANEL_HEIGHT) }
    }
}

impl Chart for BarChart {
    fn size(&self) -> (u32, u32) {
        let columns = self.columns();
        let rows = self.panels.len().div_ceil(columns).max(1);
        let (panel_width, panel_height) = self.panel();
        let width = 2.0 * MARGIN + columns as f64 * panel_width;
        (width.max(480.0) as u32, (TOP + rows as f64 * panel_height + 8.0) as u32)
    }

    fn title(&self) -> &str {
        &self.title
    }

    fn draw(&self, canvas: &mut dyn Draw) -> Result<(), DrawError> {
        canvas.text(&self.title, (MARGIN, 28.0), 20.0, INK, Anchor::Left)?;
        for (index, panel) in self.panels.iter().enumerate() {
            let (width, height) = self.panel();
            let left = MARGIN + (index % self.columns()) as f64 * width;
            panel.draw(canvas, (left, TOP + (index / self.columns()) as f64 * height), (width, height))?;
        }
        Ok(())
    }
}

impl Panel {
    fn draw(
        &self,
        canvas: &mut dyn Draw,
        (left, top): (f64, f64),
        (width, height): (f64, f64),
    ) -> Result<(), DrawError> {
        let right = left + width - 24.0;
        canvas.text(&self.title, (left, top + 6.0), 15.0, INK, Anchor::Left)?;
        let unit_left = left + canvas.width(&self.title, 15.0) + 8.0;
        canvas.text(&self.unit, (unit_left, top + 7.0), 12.0, GREY, Anchor::Left)?;
        let (plot_top, plot_bottom) = (top + 50.0, top + height - 52.0);
        let ends = |bar: &Bar| [bar.value - bar.error.unwrap_or(0.0), bar.value + bar.error.unwrap_or(0.0)];
        let finite = self.bars.iter().flat_map(ends).filter(|value| value.is_finite());
        let (low, high) = finite.fold((0.0f64, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        let scale = if low < high { Scale { low, high, step: 1.0 } } else { Scale { low: 0.0, high: 1.0, step: 1.0 } };
        let y_of = |value: f64| plot_bottom - scale.position(value) * (plot_bottom - plot_top);

        let slot = (right - left) / self.bars.len().max(1) as f64;
        let half = (slot * 0.34).min(30.0);
        for (index, bar) in self.bars.iter().enumerate() {
            let color = bar.color.map_or(NEUTRAL, |color| PALETTE[color % PALETTE.len()]);
            let middle = left + (index as f64 + 0.5) * slot;
            if bar.value.is_finite() {
                canvas.rectangle(
                    (middle - half, y_of(bar.value.max(0.0))),
                    (middle + half, y_of(bar.value.min(0.0))),
                    color,
                )?;
                let [low, high] = ends(bar);
                if bar.error.is_some() {
                    canvas.line(&[(middle, y_of(low)), (middle, y_of(high))], INK, 1.4)?;
                    for end in [low, high] {
                        canvas.line(&[(middle - 5.0, y_of(end)), (middle + 5.0, y_of(end))], INK, 1.4)?;
                    }
                }
                let above = if bar.value < 0.0 { y_of(low) + 11.0 } else { y_of(high) - 11.0 };
                let shown = if self.is_share { format!("{} %", short(100.0 * bar.value)) } else { short(bar.value) };
                canvas.text(&shown, (middle, above), 13.0, INK, Anchor::Center)?;
            } else {
                canvas.text("–", (middle, y_of(0.0) - 11.0), 13.0, GREY, Anchor::Center)?;
            }
            let under = if low < 0.0 { plot_bottom + 30.0 } else { plot_bottom + 14.0 };
            canvas.text(&bar.name, (middle, under), 12.0, GREY, Anchor::Center)?;
        }
        canvas.line(&[(left, y_of(0.0)), (right, y_of(0.0))], AXIS, 1.2)?;
        canvas.line(&[(left, top + 22.0), (right, top + 22.0)], GRID, 1.0)
    }
}
