//! HTML pages, and the same values as JSON: statistics of the rows of a data set, and the errors of a reward model.

mod pairs;
mod rows;

pub use pairs::{PairTexts, PairsReport};
pub(crate) use pairs::{reliability, reward_histogram};
pub use rows::RowsReport;

use crate::html;
use crate::html::Html;

/// Formats a share as a percentage.
fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Table cells with `value` and a bar whose length is relative to `most`.
fn bar(value: usize, most: usize, is_second: bool) -> Html {
    let width = format!("{:.1}", 100.0 * value as f64 / most.max(1) as f64);
    let class = if is_second { "bar second" } else { "bar" };
    html![
        "<td class=\"number\">" (value) "</td><td class=\"bars\"><span class=\"" (class) "\" style=\"width: " (width)
        "%\"></span></td>"
    ]
}
