//! Memory: mimalloc, which keeps what is freed for the next step instead of handing it back to the system.
//!
//! Training allocates and frees the same large buffers every step. Handed back, each comes again as fresh pages that
//! the system must clear: 35,000 page faults in 30 steps of a small model, 700 when they are kept.

use std::ffi::{c_int, c_long};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc 2 and 3: milliseconds until freed memory goes back to the system; -1 for never.
const PURGE_DELAY: c_int = 15;

unsafe extern "C" {
    fn mi_option_set(option: c_int, value: c_long);
}

/// Keeps freed memory, unless `MIMALLOC_PURGE_DELAY` says otherwise.
pub fn keep_pages() {
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
        // SAFETY: the function is mimalloc's, which is linked as the allocator above; it takes any option number and
        // value, and may be called at any time.
        unsafe { mi_option_set(PURGE_DELAY, -1) }
    }
}
