//! People and their roles.

use serde::{Deserialize, Serialize};

/// Role of a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// May annotate.
    Annotator,
    /// May also see the annotations of others.
    Reviewer,
    /// May also export.
    Owner,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Annotator, Self::Reviewer, Self::Owner];

    /// Returns the name of the role.
    pub fn name(self) -> &'static str {
        match self {
            Self::Annotator => "annotator",
            Self::Reviewer => "reviewer",
            Self::Owner => "owner",
        }
    }

    /// Returns the role with this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// A person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// Id of the person.
    pub id: i64,
    /// Name of the person.
    pub name: String,
    /// Role of the person.
    pub role: Role,
}
