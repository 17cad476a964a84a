//! Allocator of a test program that counts the bytes in use. The numbers do not depend on the load of the machine or on the pages of
//! the system's allocator. They belong to the whole process, so a test that reads them needs a process without other tests.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, with counters of the bytes in use and of their peak.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn add(bytes: usize) {
    let now = IN_USE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: every call is forwarded to the system's allocator unchanged; counting does not touch the caller's memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both blocks exist while the values are moved.
        add(size);
        // SAFETY: guaranteed by the caller.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        moved
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of bytes in use.
#[allow(dead_code, reason = "not every program uses all helpers")]
pub fn in_use() -> usize {
    IN_USE.load(Ordering::Relaxed)
}

/// Largest number of bytes in use since the last [`begin`].
#[allow(dead_code, reason = "not every program uses all helpers")]
pub fn peak() -> usize {
    PEAK.load(Ordering::Relaxed)
}

/// Begins a measurement of the peak. Returns the peak before it.
#[allow(dead_code, reason = "not every program uses all helpers")]
pub fn begin() -> usize {
    PEAK.swap(IN_USE.load(Ordering::Relaxed), Ordering::Relaxed)
}
