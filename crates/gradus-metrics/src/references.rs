//! Selection of the references that a prediction is compared with.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::python::repr;
use crate::{Row, RowError};

/// Use of several references of a row by a metric that compares with one text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum References {
    /// The best score over the references.
    #[default]
    Max,
    /// Only the first reference.
    First,
    /// Python's `str` of the list, including brackets and quotes, as RL4LMs passes references to METEOR.
    Repr,
}

impl References {
    /// Returns the texts to compare with. The best score counts.
    pub fn of(self, references: &[String]) -> Vec<String> {
        match self {
            Self::Max => references.to_vec(),
            Self::First => references[..1].to_vec(),
            Self::Repr => vec![repr(&Value::from(references))],
        }
    }
}

/// Computes one value per row in parallel, from its prediction and its references, of which there is at least one.
///
/// # Errors
/// A row has no references; the first one is reported.
pub fn each<T: Send>(rows: &[Row], of: impl Fn(&Row, &[String]) -> T + Sync) -> Result<Vec<T>, RowError> {
    let of_row = |(i, row): (usize, &Row)| match row.references.as_slice() {
        [] => Err(RowError::without_references(i)),
        references => Ok(of(row, references)),
    };
    rows.par_iter().enumerate().map(of_row).collect()
}
