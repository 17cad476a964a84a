//! A model of a run: its part in the cast, its directory and sizes.

use crate::method::{Role, Source};
use crate::model::{ModelDir, ModelShape};

/// One part of a run, and the model that plays it.
#[derive(Debug, Clone)]
pub struct Player {
    /// The part.
    pub role: Role,
    /// What the user calls the model.
    pub name: String,
    /// Its files. What starts as the policy has the policy's.
    pub dir: ModelDir,
    /// Its sizes.
    pub shape: ModelShape,
}

impl Player {
    /// Whether its weights come from files of its own.
    pub fn is_named(&self) -> bool {
        matches!(self.role.source, Source::Named(_))
    }
}
