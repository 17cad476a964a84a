//! A configuration file, by the command that reads it.

use std::path::Path;

use super::RunConfig;
use super::comparison::{ComparisonDefinition, ComparisonRequest};
use super::config_with_locations::ConfigWithLocations;
use super::load::{Request, file_tree, text};
use super::sweep::SweepDefinition;
use crate::error::Result;

/// A configuration file. Its keys decide which command reads it.
#[derive(Debug, Clone, PartialEq)]
pub enum ConfigFile {
    /// One run: `gradus train FILE`.
    Run(Box<ConfigWithLocations>),
    /// With `methods`: `gradus compare FILE`.
    Comparison(Box<ComparisonDefinition>),
    /// With `sweep`: `gradus sweep FILE`.
    Sweep(SweepDefinition),
}

impl ConfigFile {
    /// Reads a file as its command does. The file may be a pipe, so it is read once.
    ///
    /// # Errors
    /// As [`RunConfig::load`], [`ComparisonDefinition::load`] or [`SweepDefinition::load`].
    pub fn load(path: &Path) -> Result<Self> {
        let text = text(path)?;
        let (root, _) = file_tree(path, &text)?;
        if root.entry("sweep").is_some() {
            return SweepDefinition::of_file(path, &text, &[]).map(Self::Sweep);
        }
        if root.entry("methods").is_some() {
            let read = ComparisonDefinition::of_file(path, &text, &ComparisonRequest::default());
            return read.map(|comparison| Self::Comparison(Box::new(comparison)));
        }
        RunConfig::of_file(path, &text, &Request::default()).map(|written| Self::Run(Box::new(written)))
    }
}
