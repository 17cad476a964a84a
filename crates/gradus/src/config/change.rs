//! Keys that change when a run resumes.

/// A key whose value differs from the run so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The key with its sections, such as `train.learning_rate`.
    pub key: String,
    /// Old value, on one line.
    pub from: String,
    /// New value, on one line.
    pub to: String,
    /// Effect on the run.
    pub effect: Effect,
}

/// Effect of a changed key on a resumed run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Training does not depend on the key.
    None,
    /// The result differs from that of a run with the new or the old value from its start.
    Differs,
    /// The run cannot continue with the new value.
    Refused,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` was {} and is {} from this step on", self.key, self.from, self.to)?;
        match self.effect {
            Effect::Differs => f.write_str(": the result differs from a run with either value from the start"),
            Effect::None | Effect::Refused => Ok(()),
        }
    }
}
