//! Test of randomly changed ONNX files: the time and memory to read them stay proportional to the size of the file.
// A separate binary: its allocator measures the memory of the whole process.

#[path = "common/fuzz.rs"]
#[allow(dead_code, reason = "changes here are of bytes, not of digits")]
mod fuzz;

use std::path::Path;
use std::time::{Duration, Instant};

use fuzz::{PeakAllocator, runs};
use meganeura::onnx::{Dims, Model};
use meganeura::random::SplitMix64;

#[global_allocator]
static GLOBAL: PeakAllocator = PeakAllocator;

/// Allowed bytes in addition to 16 times the size of the file.
const MAX_EXTRA: usize = 64 << 20;

#[test]
fn changed_files_take_little_memory_and_time() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("formats/onnx/tests/data");
    let dims = Dims::new().bind("batch", 2).bind("rounds", 3);
    let mut rng = SplitMix64::new(7);
    for name in ["convnet", "sequence", "function"] {
        let seed = std::fs::read(folder.join(name).join("model.onnx")).expect("a model");
        for _ in 0..runs(1000) {
            let mut bytes = seed.clone();
            for _ in 0..1 + rng.below(3) {
                // Sizes are varints: large bytes make them long.
                let at = rng.below(bytes.len());
                bytes[at] = if rng.below(2) == 0 { 0xff } else { rng.next_u64() as u8 };
            }
            PeakAllocator::forget();
            let begin = Instant::now();
            if let Ok(model) = Model::from_bytes(bytes) {
                let _ = model.preflight(&dims);
            }
            let taken = PeakAllocator::most();
            assert!(taken <= 16 * seed.len() + MAX_EXTRA, "{name}: {taken} bytes");
            assert!(
                begin.elapsed() < Duration::from_secs(20),
                "{name}: {:?}",
                begin.elapsed()
            );
        }
    }
}
