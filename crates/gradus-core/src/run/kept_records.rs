//! The records of a run that stay when it resumes.

/// The records that stay when a run resumes from a checkpoint. The run writes later ones again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptRecords {
    step: usize,
    evaluation_due: bool,
}

impl KeptRecords {
    /// Keeps the records of the first `step` steps. With `evaluation_due`, the run first repeats the evaluation of the last
    /// one, so records of that evaluation are removed, and the row of metrics that contains its result.
    pub fn new(step: usize, evaluation_due: bool) -> Self {
        Self { step, evaluation_due }
    }

    /// Returns the last step whose rollouts and warnings stay. −1 if nothing stays, because no step is done.
    pub(super) fn last_trained(self) -> i64 {
        if self.step == 0 { -1 } else { self.step as i64 }
    }

    /// Returns the last step whose row of metrics and evaluated completions stay. −1 if nothing stays.
    pub(super) fn last_evaluated(self) -> i64 {
        self.last_trained() - i64::from(self.evaluation_due)
    }
}

impl From<usize> for KeptRecords {
    /// Keeps the records of the first `step` steps; 0 keeps nothing.
    fn from(step: usize) -> Self {
        Self::new(step, false)
    }
}
