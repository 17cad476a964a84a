//! The threads that compute, and the wait for them: without the interpreter's lock, and with an ear for Ctrl-C.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gradus::process::Interrupt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// How often a wait looks whether the user pressed Ctrl-C.
const PATIENCE: Duration = Duration::from_millis(20);

/// Stack of a thread that computes: that of a main thread.
const STACK_BYTES: usize = 8 << 20;

/// The pools by their number of threads; `None` is one thread a processor. Pools are kept: their threads sleep.
static POOLS: LazyLock<Mutex<HashMap<Option<usize>, Arc<rayon::ThreadPool>>>> = LazyLock::new(Mutex::default);

fn pool(threads: Option<usize>) -> PyResult<Arc<rayon::ThreadPool>> {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = pools.get(&threads) {
        return Ok(Arc::clone(pool));
    }
    let builder = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).stack_size(STACK_BYTES);
    let pool = builder.thread_name(|i| format!("gradus-{i}")).build();
    let pool = Arc::new(pool.map_err(|error| PyRuntimeError::new_err(format!("threads cannot be started: {error}")))?);
    pools.insert(threads, Arc::clone(&pool));
    Ok(pool)
}

/// Does `job` on threads that compute, `threads` of them or one a processor. Other Python threads run meanwhile. Ctrl-C raises
/// `interrupt`, which the job may look at; the wait goes on until the job has ended.
///
/// # Errors
/// `KeyboardInterrupt`, or what another signal's handler raised, once the job has ended; `RuntimeError` for a panic, which is a bug.
pub fn compute<T: Send + 'static>(
    py: Python<'_>,
    threads: Option<usize>,
    interrupt: &Interrupt,
    job: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = channel();
    let pool = pool(threads)?;
    // Nobody hears the answer where the wait was given up.
    pool.spawn(move || drop(sender.send(catch_unwind(AssertUnwindSafe(job)))));
    let (found, raised) = py.detach(move || {
        let mut raised = None;
        loop {
            match receiver.recv_timeout(PATIENCE) {
                Ok(found) => return (Some(found), raised),
                Err(RecvTimeoutError::Disconnected) => return (None, raised),
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(error) = Python::attach(|py| py.check_signals()) {
                        interrupt.raise();
                        raised = Some(error);
                    }
                }
            }
        }
    });
    match (raised, found) {
        (Some(error), _) => Err(error),
        (None, Some(Ok(found))) => Ok(found),
        (None, Some(Err(panic))) => {
            Err(PyRuntimeError::new_err(format!("a bug in gradus: {}; please report it", words(&*panic))))
        }
        (None, None) => Err(PyRuntimeError::new_err("a bug in gradus: the computation ended without an answer")),
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let literal = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
    literal.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}

/// Why a callable gave no answer.
pub enum NoAnswer {
    /// It took longer than it may.
    TimedOut,
    /// The user does not want to wait.
    Interrupted,
}

/// Calls Python on a thread of its own and waits, at most `limit`, on a thread that computes. A callable that is given up goes on,
/// since Python cannot end it.
///
/// # Errors
/// When there is no answer in time.
pub fn call_python<T: Send + 'static>(
    limit: Duration,
    interrupt: &Interrupt,
    call: impl FnOnce(Python<'_>) -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || drop(sender.send(Python::attach(call))));
    let until = Instant::now() + limit;
    loop {
        if let Some(answer) = wait(&receiver)? {
            return Ok(answer);
        }
        if interrupt.is_raised() {
            return Err(NoAnswer::Interrupted);
        }
        if Instant::now() >= until {
            return Err(NoAnswer::TimedOut);
        }
    }
}

/// The answer, if it comes soon. The callable may ask gradus to compute: with a single thread, that is the one that waits here, so it
/// takes work meanwhile.
fn wait<T>(receiver: &Receiver<T>) -> Result<Option<T>, NoAnswer> {
    if rayon::current_num_threads() > 1 {
        return match receiver.recv_timeout(PATIENCE) {
            Ok(answer) => Ok(Some(answer)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(NoAnswer::Interrupted),
        };
    }
    match receiver.try_recv() {
        Ok(answer) => return Ok(Some(answer)),
        Err(TryRecvError::Disconnected) => return Err(NoAnswer::Interrupted),
        Err(TryRecvError::Empty) => {}
    }
    if rayon::yield_now() != Some(rayon::Yield::Executed) {
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(None)
}
