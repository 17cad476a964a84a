//! Memory: mimalloc, which keeps what is freed for the next step instead of handing it back to the system.
//!
//! Training allocates and frees the same large buffers every step. Handed back, each comes again as fresh pages that
//! the system must clear: 35,000 page faults in 30 steps of a small model, 700 when they are kept.

use std::ffi::{c_int, c_long};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc 2 and 3: milliseconds until freed memory goes back to the system; -1 for never.
const PURGE_DELAY: c_int = 15;

/// `mi_option_allow_large_os_pages` of mimalloc 2 and 3: asks the system for pages of 2 MiB where it has them. Weights
/// and activations are large and live long: the first steps of a 124 M model spend half as much time in the system.
const ALLOW_LARGE_OS_PAGES: c_int = 6;

unsafe extern "C" {
    fn mi_option_set(option: c_int, value: c_long);
}

/// Keeps freed memory and asks for large pages, unless mimalloc's environment variables say otherwise.
pub fn keep_pages() {
    let options =
        [("MIMALLOC_PURGE_DELAY", PURGE_DELAY, -1), ("MIMALLOC_ALLOW_LARGE_OS_PAGES", ALLOW_LARGE_OS_PAGES, 1)];
    for (variable, option, value) in options {
        if std::env::var_os(variable).is_none() {
            // SAFETY: the function is mimalloc's, which is linked as the allocator above; it takes any option number
            // and value, and may be called at any time.
            unsafe { mi_option_set(option, value) }
        }
    }
}
