//! A configuration as written, with the places of its keys.

use std::path::PathBuf;

use super::node::Node;
use super::{RunConfig, write};
use crate::error::Place;

/// A configuration as written, and where each key stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Written {
    /// What was written, with defaults for the rest.
    pub config: RunConfig,
    pub(super) root: Node,
    /// The files that are a resolved `config.yml`, in which marks say what was asked for.
    pub(super) marked: Vec<PathBuf>,
}

impl From<RunConfig> for Written {
    /// A configuration that a program made: problems have no places then.
    fn from(config: RunConfig) -> Self {
        Self { config, root: Node::empty(), marked: Vec::new() }
    }
}

impl Written {
    /// Where a key such as `method.ppo.clip_range` was written; nothing for defaults.
    pub fn place(&self, key: &str) -> Option<&Place> {
        self.root.at(key).and_then(|(node, place)| place.or(node.place.as_ref()))
    }

    /// Whether a resolved file says that nobody asked for this key.
    pub(super) fn is_default(&self, key: &str) -> bool {
        match self.place(key) {
            Some(Place::File { path, excerpt, .. }) => self.marked.contains(path) && !excerpt.ends_with(write::MARK),
            _ => false,
        }
    }

    /// Dotted paths of the keys that the user asked for: all in the file, or those marked in a resolved one.
    pub fn keys(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.root.paths("", &mut paths);
        if !self.marked.is_empty() {
            paths.retain(|path| self.place(path).is_some() && !self.is_default(path));
        }
        paths
    }
}
