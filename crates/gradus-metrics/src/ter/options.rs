//! The options of the translation edit rate.

use serde::{Deserialize, Serialize};

/// Options of [`Ter`](super::Ter), with sacreBLEU's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TerOptions {
    /// Split punctuation from words.
    pub normalized: bool,
    /// Remove punctuation.
    pub no_punct: bool,
    /// Include punctuation of Asian scripts. With `normalized`, each character of these scripts is a word.
    pub asian_support: bool,
    /// Distinguish upper and lower case.
    pub case_sensitive: bool,
}
