//! What hostile files may take: time and memory stay near the size of the file.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use meganeura_onnx::{Dims, Model};

/// Counts what is allocated, and the most at any time.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: it passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller says.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Beyond 16 times the file.
const MAX_EXTRA: usize = 64 << 20;

fn next(state: &mut u64) -> usize {
    *state = state
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    (*state >> 33) as usize
}

/// MEGANEURA_ONNX_MUTATIONS says how many changed files of each model; there are 1000 otherwise.
#[test]
fn changed_files_take_little_memory_and_time() {
    let count: usize = std::env::var("MEGANEURA_ONNX_MUTATIONS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1000);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let dims = Dims::new().bind("batch", 2).bind("rounds", 3);
    let mut state = 7;
    for name in ["convnet", "sequence", "function"] {
        let seed = std::fs::read(folder.join(name).join("model.onnx")).expect("a model");
        for _ in 0..count {
            let mut bytes = seed.clone();
            for _ in 0..1 + next(&mut state) % 3 {
                // Sizes are varints: large bytes make them long.
                let at = next(&mut state) % bytes.len();
                bytes[at] = if next(&mut state).is_multiple_of(2) {
                    0xff
                } else {
                    next(&mut state) as u8
                };
            }
            let before = NOW.load(Ordering::Relaxed);
            PEAK.store(before, Ordering::Relaxed);
            let begin = Instant::now();
            if let Ok(model) = Model::from_bytes(bytes) {
                let _ = model.preflight(&dims);
            }
            let taken = PEAK.load(Ordering::Relaxed) - before;
            assert!(taken <= 16 * seed.len() + MAX_EXTRA, "{name}: {taken} bytes");
            assert!(
                begin.elapsed() < Duration::from_secs(20),
                "{name}: {:?}",
                begin.elapsed()
            );
        }
    }
}
