//! Compute threads, and waiting for them: without the interpreter's lock, and interruptible by Ctrl-C.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gradus::process::Interrupt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Interval at which a waiting thread checks for Ctrl-C.
const PATIENCE: Duration = Duration::from_millis(20);

/// Stack size of a compute thread, the same as that of a main thread.
const STACK_BYTES: usize = 8 << 20;

/// Thread pools by number of threads; `None` means one thread per CPU. Pools are kept, because idle threads only sleep.
static POOLS: LazyLock<Mutex<HashMap<Option<usize>, Arc<rayon::ThreadPool>>>> = LazyLock::new(Mutex::default);

/// Process in which the first computation began; 0 before. Its threads do not exist in processes that are forked from it.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Refuses to compute in a process that was forked after a computation, because it would wait for threads that it does not have.
///
/// # Errors
/// Raises `RuntimeError`.
pub fn refuse_fork() -> PyResult<()> {
    let own = std::process::id();
    match PROCESS.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Ok(()),
        Err(first) if first == own => Ok(()),
        Err(_) => Err(PyRuntimeError::new_err(
            "this process was forked from one that had used gradus, and the threads of gradus do not exist here: start it with the \
             method `spawn` (`multiprocessing.get_context(\"spawn\")`), or use gradus only in the forked processes",
        )),
    }
}

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

/// Runs `job` on compute threads: `threads` of them, or one per CPU. Other Python threads run meanwhile. Ctrl-C sets `interrupt`, which the
/// job may check. The call still waits until the job has ended.
///
/// # Errors
/// Raises `KeyboardInterrupt`, or the exception of another signal's handler, after the job has ended; `RuntimeError` in a forked process
/// ([`refuse_fork`]), and for a panic, which is a bug.
pub fn compute<T: Send + 'static>(
    py: Python<'_>,
    threads: Option<usize>,
    interrupt: &Interrupt,
    job: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    refuse_fork()?;
    let (sender, receiver) = channel();
    let pool = pool(threads)?;
    // If the wait was given up, there is no receiver any more.
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

/// Reason why a callable returned no answer.
pub enum NoAnswer {
    /// It exceeded its time limit.
    TimedOut,
    /// The user canceled the wait.
    Interrupted,
}

/// Calls Python on a separate thread, while a compute thread waits for at most `limit`. A callable that exceeds the limit keeps running,
/// because Python cannot end it.
///
/// # Errors
/// Returns an error if there is no answer in time.
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

/// Waits a moment for the answer. The callable may itself start computations in gradus. If there is only a single compute thread, that is
/// the waiting one, so it executes work meanwhile.
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
