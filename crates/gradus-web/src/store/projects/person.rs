//! Someone who takes part, and what they may do.

use serde::{Deserialize, Serialize};

/// What someone may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Annotates.
    Annotator,
    /// Also sees what others said.
    Reviewer,
    /// Also exports.
    Owner,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Annotator, Self::Reviewer, Self::Owner];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Annotator => "annotator",
            Self::Reviewer => "reviewer",
            Self::Owner => "owner",
        }
    }

    /// The role of a word.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// Someone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// Their number.
    pub id: i64,
    /// Their name.
    pub name: String,
    /// What they may do.
    pub role: Role,
}
