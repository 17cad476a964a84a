//! A value that is started at its first use, and started again after it has ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};

/// A value that several threads use and one of them starts. Callers that wait for a failing start share its failure. So a server that never
/// answers costs all of them one time limit in total, instead of one each.
pub(crate) struct Restartable<T> {
    /// Number of finished starts.
    starts: AtomicU64,
    slot: Mutex<Slot<T>>,
}

struct Slot<T> {
    value: Option<T>,
    /// Failure of the last start.
    failure: Option<Error>,
}

impl<T> Restartable<T> {
    pub fn new() -> Self {
        Self { starts: AtomicU64::new(0), slot: Mutex::new(Slot { value: None, failure: None }) }
    }

    /// Applies `take` to the value. If there is no live value, calls `start` with the old one to create another.
    ///
    /// # Errors
    /// Returns the error of `start`.
    pub fn get<R>(
        &self,
        is_alive: impl Fn(&T) -> bool,
        start: impl FnOnce(Option<T>) -> Result<T>,
        take: impl FnOnce(&T) -> R,
    ) -> Result<R> {
        self.get_since(self.starts.load(Ordering::SeqCst), is_alive, start, take)
    }

    /// Like [`get`](Self::get), for a caller that arrived when `before` starts had finished.
    fn get_since<R>(
        &self,
        before: u64,
        is_alive: impl Fn(&T) -> bool,
        start: impl FnOnce(Option<T>) -> Result<T>,
        take: impl FnOnce(&T) -> R,
    ) -> Result<R> {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = slot.value.as_ref().filter(|value| is_alive(value)) {
            return Ok(take(value));
        }
        if let Some(failure) = slot.failure.as_ref().filter(|_| self.starts.load(Ordering::SeqCst) != before) {
            return Err(failure.clone());
        }
        let old = slot.value.take();
        let started = start(old);
        slot.failure = started.as_ref().err().cloned();
        self.starts.fetch_add(1, Ordering::SeqCst);
        started.map(|value| take(slot.value.insert(value)))
    }

    /// Removes the value if `is_old` returns true for it.
    pub fn remove(&self, is_old: impl Fn(&T) -> bool) -> Option<T> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner).value.take_if(|value| is_old(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_that_wait_share_a_failure_and_later_ones_try_again() {
        let started = Restartable::<u32>::new();
        let get = |before: u64, outcome: Result<u32>| started.get_since(before, |_| true, |_| outcome, |value| *value);
        let silent = || Err(Error::episode("silent"));
        assert_eq!(get(0, silent()), silent());
        // This caller arrived during the first start.
        assert_eq!(get(0, Ok(1)), silent());
        // This caller arrived later.
        assert_eq!(get(1, silent()), silent());
        assert_eq!(get(2, Ok(2)), Ok(2));
        assert_eq!(started.get(|_| true, |_| Ok(3), |value| *value), Ok(2), "what is there is used");
        let again = |old: Option<u32>| Ok(old.expect("the old one") + 1);
        assert_eq!(started.get(|value| *value != 2, again, |value| *value), Ok(3), "what has ended is replaced");
        assert_eq!((started.remove(|value| *value == 4), started.remove(|value| *value == 3)), (None, Some(3)));
        assert_eq!(started.get(|_| true, |_| Ok(5), |value| *value), Ok(5));
    }
}
