//! A configuration as written, with the locations of its keys.

use std::path::PathBuf;

use super::node::Node;
use super::{RunConfig, write};
use crate::error::{Diagnostic, Location};

/// A configuration as written, with the location of each key.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigWithLocations {
    /// The written keys, with defaults for the rest.
    pub config: RunConfig,
    pub(super) root: Node,
    /// Files that are a resolved `config.yml`, in which marks identify the keys that the user set.
    pub(super) marked: Vec<PathBuf>,
    /// Notes on the files.
    pub(super) notes: Vec<Diagnostic>,
}

impl From<RunConfig> for ConfigWithLocations {
    /// Wraps a configuration that a program made. Its problems have no locations.
    fn from(config: RunConfig) -> Self {
        Self { config, root: Node::empty(), marked: Vec::new(), notes: Vec::new() }
    }
}

impl ConfigWithLocations {
    /// Returns the location of a key such as `method.ppo.clip_range`; `None` for defaults.
    pub fn location(&self, key: &str) -> Option<&Location> {
        self.root.at(key).and_then(|(node, location)| location.or(node.location.as_ref()))
    }

    /// Returns where the request gives a key: the flag or argument of the key or of one below it, otherwise as [`Self::location`].
    pub(super) fn given(&self, key: &str) -> Option<&Location> {
        let is_request = |location: &&Location| matches!(location, Location::Flag(_) | Location::Argument(_));
        let mut below = Vec::new();
        if let Some((node, _)) = self.root.at(key) {
            node.paths(key, &mut below);
        }
        below.iter().filter_map(|path| self.location(path)).find(is_request).or_else(|| self.location(key))
    }

    /// Returns notes on the files: at most one per file, which lists the keys whose place has changed.
    pub fn notes(&self) -> &[Diagnostic] {
        &self.notes
    }

    /// Whether a resolved file marks this key as a default.
    pub(super) fn is_default(&self, key: &str) -> bool {
        match self.location(key) {
            Some(Location::File { path, excerpt, .. }) => self.marked.contains(path) && !excerpt.ends_with(write::MARK),
            _ => false,
        }
    }

    /// Returns dotted paths of the keys that the user set: all keys of a file, or the marked keys of a resolved one.
    pub fn keys(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.root.paths("", &mut paths);
        if !self.marked.is_empty() {
            paths.retain(|path| self.location(path).is_some() && !self.is_default(path));
        }
        paths
    }
}
