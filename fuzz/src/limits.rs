//! Allocator that refuses very large allocations, as a machine without enough memory does.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;

/// Maximum bytes of one allocation. Larger ones are refused; code that does not handle the refusal ends the process:
/// a finding.
const LARGEST: usize = 256 << 20;

struct LimitedAllocator;

#[global_allocator]
static GLOBAL: LimitedAllocator = LimitedAllocator;

// SAFETY: forwards to the system's allocator, or gives null, which an allocator may at any time.
unsafe impl GlobalAlloc for LimitedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match layout.size() > LARGEST {
            true => null_mut(),
            // SAFETY: forwarded.
            false => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match layout.size() > LARGEST {
            true => null_mut(),
            // SAFETY: forwarded.
            false => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match size > LARGEST {
            true => null_mut(),
            // SAFETY: forwarded.
            false => unsafe { System.realloc(pointer, layout, size) },
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: forwarded.
        unsafe { System.dealloc(pointer, layout) }
    }
}
