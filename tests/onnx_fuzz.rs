//! ONNX files that were changed at random: time and memory stay near the size of the file.
// A binary of its own: its allocator notes the memory of the whole process.

#[path = "common/fuzz.rs"]
#[allow(dead_code, reason = "changes here are of bytes, not of digits")]
mod fuzz;

use std::path::Path;
use std::time::{Duration, Instant};

use fuzz::{Largest, runs};
use meganeura::onnx::{Dims, Model};
use meganeura::random::SplitMix64;

#[global_allocator]
static GLOBAL: Largest = Largest;

/// Beyond 16 times the file.
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
            Largest::forget();
            let begin = Instant::now();
            if let Ok(model) = Model::from_bytes(bytes) {
                let _ = model.preflight(&dims);
            }
            let taken = Largest::most();
            assert!(taken <= 16 * seed.len() + MAX_EXTRA, "{name}: {taken} bytes");
            assert!(
                begin.elapsed() < Duration::from_secs(20),
                "{name}: {:?}",
                begin.elapsed()
            );
        }
    }
}
