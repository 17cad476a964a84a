//! A model of a run: its role, directory and sizes.

use crate::method::{Role, Source};
use crate::model::{ModelDir, ModelShape};

/// A role in a run, and the model that fills it.
#[derive(Debug, Clone)]
pub struct Player {
    /// Role of the model.
    pub role: Role,
    /// Configured name of the model.
    pub name: String,
    /// Model directory. A model that starts as the policy has the policy's.
    pub dir: ModelDir,
    /// Sizes of the model.
    pub shape: ModelShape,
}

impl Player {
    /// Returns true if its weights come from its own files.
    pub fn is_named(&self) -> bool {
        matches!(self.role.source, Source::Named(_))
    }
}
