//! The threads that compute.

use crate::error::{Error, Result};

/// Computes on this many threads from now on, or on all processors without a number. The calling thread is one of them.
///
/// The calling thread takes its own share of every product. If it only waited, each product would wake it twice, which
/// costs a sixth of a small model's step. It must not wait for another computing thread: with one thread in total,
/// nobody would do the work. If you already own such threads, do not call this; run their work with [`among_threads`].
///
/// # Errors
/// If threads have already been started.
pub fn use_threads(threads: Option<usize>) -> Result<()> {
    start(rayon::ThreadPoolBuilder::new().use_current_thread(), threads)
}

/// Computes on this many threads from now on. The calling thread is not one of them, so it may wait for other computing
/// threads.
///
/// # Errors
/// If threads have already been started.
pub fn use_other_threads(threads: usize) -> Result<()> {
    start(rayon::ThreadPoolBuilder::new(), Some(threads))
}

fn start(pool: rayon::ThreadPoolBuilder, threads: Option<usize>) -> Result<()> {
    pool.num_threads(threads.unwrap_or(0)).build_global().map_err(|error| {
        let count = threads.map_or("all".to_owned(), |threads| threads.to_string());
        Error::input(format!("the computation cannot use {count} threads: {error}"))
    })
}

/// Runs `work` on one of the computing threads, and waits for it.
///
/// An outside thread is woken twice for every product that it requests, but only once if all of `work` runs on the
/// computing threads.
pub fn among_threads<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| work())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_among_the_threads_that_compute() {
        assert_eq!(rayon::current_thread_index(), None);
        assert!(among_threads(rayon::current_thread_index).is_some());
    }
}
