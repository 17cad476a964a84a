//! The options of the translation edit rate.

use serde::{Deserialize, Serialize};

/// Options of [`Ter`](super::Ter), by sacreBLEU's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TerOptions {
    /// Split punctuation from words.
    pub normalized: bool,
    /// Leave punctuation out.
    pub no_punct: bool,
    /// Also of Asian scripts; with `normalized`, their characters are words.
    pub asian_support: bool,
    /// Tell upper case from lower.
    pub case_sensitive: bool,
}
