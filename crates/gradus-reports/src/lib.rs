//! Charts and pages of gradus: plots, reports of runs, comparisons, model cards, and files for experiment trackers. It
//! has no tensors, no rows and no models.
//!
//! Programs use the crate `gradus`, which exports these modules.

#![deny(missing_docs)]

pub mod calendar;
pub mod card;
pub mod comparison;
pub mod html;
pub mod page;
pub mod plots;
pub mod run_report;
pub mod trackers;

// The modules name what is below them as if it were here.
use gradus_core::{error, files, run, visible};
