//! Keys that a resumed run changes.

/// A key that has another value than in the run so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The dotted key.
    pub key: String,
    /// What it was, on one line.
    pub from: String,
    /// What it is now.
    pub to: String,
    /// What that means for the run.
    pub effect: Effect,
}

/// What a changed key means for a run that goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing that is trained depends on it.
    None,
    /// The result is not that of a run that had the new value, or the old one, from its start.
    Differs,
    /// The run cannot go on with it.
    Refused,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` was {} and is {} from here on", self.key, self.from, self.to)?;
        match self.effect {
            Effect::Differs => f.write_str(": the result differs from that of a run with either from its start"),
            Effect::None | Effect::Refused => Ok(()),
        }
    }
}
