//! Test that invalid headers of IDX and NumPy files do not cost memory: it counts the bytes that parsing requests from
//! the allocator.
//!
//! A single test, because the counter covers the whole process.
// A separate binary: its allocator measures the memory of the whole process.

#![allow(clippy::unwrap_used)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    io::Write,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use flate2::{Compression, write::GzEncoder};
use meganeura_nn::data::{parse_idx, parse_npy};

struct CountingAllocator;

/// Bytes in use now, and the most since the last reset.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: the caller fulfils the contract of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `pointer` came from `System.alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Returns the maximum bytes that parsing `bytes` needs at a time, in addition to earlier ones.
fn peak(bytes: &[u8]) -> usize {
    peak_of(|| drop(parse_idx(bytes, "file")))
}

fn peak_of(parse: impl FnOnce()) -> usize {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    parse();
    PEAK.load(Relaxed) - before
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns a `u8` array of shape `[declared]` that actually contains `present` elements.
fn idx(declared: u32, present: usize) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, 1];
    bytes.extend(declared.to_be_bytes());
    bytes.resize(8 + present, 7);
    bytes
}

#[test]
fn memory_follows_the_data_not_the_header() {
    const SMALL: usize = 256 * 1024;
    for declared in [1000, 1 << 20, 1 << 30, u32::MAX] {
        let bytes = idx(declared, 10);
        assert!(peak(&bytes) < SMALL, "{declared}: {}", peak(&bytes));
        assert!(peak(&gzip(&bytes)) < SMALL, "{declared}: {}", peak(&gzip(&bytes)));
    }
    // 32 MiB after a header that declares ten bytes are not unpacked.
    let bomb = gzip(&idx(10, 32 << 20));
    assert!(peak(&bomb) < SMALL, "{}", peak(&bomb));
    // A truncated megabyte after a header that declares a gigabyte costs only megabytes.
    let cut = gzip(&idx(1 << 30, 1 << 20));
    assert!(peak(&cut) < 6 << 20, "{}", peak(&cut));

    flipped_header_bits_stay_cheap();
    numpy_headers_stay_cheap();
}

fn numpy_headers_stay_cheap() {
    let npy = |shape: &str, present: usize| {
        let header = format!("{{'descr': '<f8', 'fortran_order': True, 'shape': {shape}}}");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + present, 0);
        bytes
    };
    for shape in [
        "(1000000, 500)",
        "(4294967296, 4294967296)",
        "(18446744073709551615, 0)",
    ] {
        for bytes in [npy(shape, 10), gzip(&npy(shape, 10)), gzip(&npy("(1,)", 32 << 20))] {
            let peak = peak_of(|| drop(parse_npy(&bytes, "file")));
            assert!(peak < 256 * 1024, "{shape}: {peak}");
        }
    }
}

fn flipped_header_bits_stay_cheap() {
    let bytes = idx(1000, 1000);
    let packed = gzip(&bytes);
    for bit in 0..8 * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(peak(&damaged) < 256 * 1024, "plain bit {bit}");
        assert!(peak(&gzip(&damaged)) < 256 * 1024, "inside gzip bit {bit}");
    }
    for bit in 0..8 * packed.len() {
        let mut damaged = packed.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(peak(&damaged) < 4 << 20, "gzip bit {bit}");
    }
}
