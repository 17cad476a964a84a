//! What a prediction is compared with.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::python::repr;
use crate::{Row, RowError};

/// How several references of a row are used by a metric that compares with one text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum References {
    /// The best over references.
    #[default]
    Max,
    /// The first reference alone.
    First,
    /// Python's `str` of the list, brackets and quotes included, as RL4LMs hands references to METEOR.
    Repr,
}

impl References {
    /// The texts to compare with, of which the best counts.
    pub fn of(self, references: &[String]) -> Vec<String> {
        match self {
            Self::Max => references.to_vec(),
            Self::First => references[..1].to_vec(),
            Self::Repr => vec![repr(&Value::from(references))],
        }
    }
}

/// One value a row, in parallel, of its prediction and its references, of which there is at least one.
///
/// # Errors
/// The first row without references.
pub fn each<T: Send>(rows: &[Row], of: impl Fn(&Row, &[String]) -> T + Sync) -> Result<Vec<T>, RowError> {
    let of_row = |(i, row): (usize, &Row)| match row.references.as_slice() {
        [] => Err(RowError::without_references(i)),
        references => Ok(of(row, references)),
    };
    rows.par_iter().enumerate().map(of_row).collect()
}
