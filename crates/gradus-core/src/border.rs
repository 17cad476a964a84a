//! Calls into other libraries that parse untrusted bytes. If they panic, the input is wrong, and the panic becomes an
//! error.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is caught and reported as an error, and therefore not printed.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `call` and returns its result, or the message of its panic. The panic is not printed. Values that `call` was
/// working on must not be used afterwards.
///
/// # Errors
/// The message of the panic.
pub fn catch_panic<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            if !IS_CAUGHT.get() {
                others(panicked);
            }
        }));
    });
    let before = IS_CAUGHT.replace(true);
    let called = catch_unwind(AssertUnwindSafe(call));
    IS_CAUGHT.set(before);
    called.map_err(|panicked| words(&*panicked))
}

fn words(panicked: &(dyn Any + Send)) -> String {
    let literal = panicked.downcast_ref::<&str>().map(|words| (*words).to_owned());
    let words = literal.or_else(|| panicked.downcast_ref::<String>().cloned());
    // The first line states the problem; the rest is the library's state.
    words.and_then(|words| words.lines().next().map(str::to_owned)).unwrap_or_else(|| "no reason given".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_at_the_border_is_an_error_and_any_other_is_one() {
        assert_eq!(catch_panic(|| 3), Ok(3));
        let index = 7;
        assert_eq!(
            catch_panic(|| [1, 2][index]),
            Err("index out of bounds: the len is 2 but the index is 7".to_owned())
        );
        let within = catch_panic(|| (catch_panic(|| panic!("first")), IS_CAUGHT.get()));
        assert_eq!(within, Ok((Err::<(), _>("first".to_owned()), true)));
        assert!(!IS_CAUGHT.get());
    }
}
