//! Code that all fuzz targets share: a macro that defines them, seeds, mutations of texts and binary files, and limits.
//!
//! A target starts from seeds, which are fixtures of the repository, so that no corpus has to be
//! maintained. libFuzzer keeps inputs that reach new code. Half of its next inputs are its own
//! mutations of bytes, and half are mutations that use the format ([`text`], [`protobuf`],
//! [`binary`]).

pub mod binary;
mod limits;
pub mod protobuf;
pub mod text;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::abort;
use std::sync::{Mutex, OnceLock, PoisonError};

pub use meganeura_core::random::SplitMix64;

/// Function that mutates a file. It may copy parts of the seeds.
pub type Change = fn(&mut Vec<u8>, &[Vec<u8>], &mut SplitMix64);

/// Defines a target: its seeds, their mutation, and the function that reads them.
#[macro_export]
macro_rules! target {
    (seeds: $seeds:expr, change: $change:expr, |$data:ident| $body:block) => {
        libfuzzer_sys::fuzz_target!(init: $crate::begin(), |bytes: &[u8]| {
            $crate::guarded(|| {
                let $data = bytes;
                $body
            })
        });
        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
            static SEEDS: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
            $crate::change(data, size, max_size, seed, SEEDS.get_or_init($seeds), $change)
        });
    };
}

/// Returns the bytes of a file of the repository.
#[macro_export]
macro_rules! seed {
    ($path:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../", $path)).to_vec()
    };
}

/// Message of the most recent panic.
static LAST: Mutex<String> = Mutex::new(String::new());

/// Replaces libFuzzer's panic hook, which aborts on every panic. Afterwards, caught panics of libraries count as
/// errors. Panics of our own code count as findings even if they are caught.
pub fn begin() {
    std::panic::set_hook(Box::new(|panic| {
        let file = panic.location().map_or("", |at| at.file());
        let is_of_library = file.contains("/registry/src/") || file.contains("/rustc/") || file.contains("/library/");
        if is_of_library {
            *LAST.lock().unwrap_or_else(PoisonError::into_inner) = panic.to_string();
        } else {
            eprintln!("{panic}\n{}", std::backtrace::Backtrace::force_capture());
            abort();
        }
    }));
}

/// Runs a reader. A panic that it does not catch is a finding.
pub fn guarded(read: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(read)).is_err() {
        eprintln!("{}", LAST.lock().unwrap_or_else(PoisonError::into_inner));
        abort();
    }
}

/// Mutates an input for libFuzzer: the given input, or one of the seeds.
pub fn change(data: &mut [u8], size: usize, max_size: usize, seed: u32, seeds: &[Vec<u8>], change: Change) -> usize {
    // Smaller inputs are libFuzzer's initial ones, which have no format.
    const SMALLEST: usize = 8;
    let mut rng = SplitMix64::new(seed.into());
    let is_new = size < SMALLEST || rng.below(64) == 0;
    if !is_new && rng.below(2) == 0 {
        return libfuzzer_sys::fuzzer_mutate(data, size, max_size);
    }
    let mut bytes = match is_new {
        true => seeds[rng.below(seeds.len())].clone(),
        false => data[..size].to_vec(),
    };
    // An unchanged seed is a useful input as well.
    let changes = if is_new { rng.below(3) } else { 1 + rng.below(4) };
    for _ in 0..changes {
        if !bytes.is_empty() {
            change(&mut bytes, seeds, &mut rng);
        }
    }
    let size = bytes.len().min(max_size);
    data[..size].copy_from_slice(&bytes[..size]);
    size
}

/// Numbers at which readers often fail.
pub const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    7,
    127,
    255,
    65535,
    65536,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as u64,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

/// Returns a number, usually one of [`NUMBERS`].
pub fn number(rng: &mut SplitMix64) -> u64 {
    match rng.below(3) {
        0 => rng.below(64) as u64,
        1 => 1 << rng.below(64),
        _ => NUMBERS[rng.below(NUMBERS.len())],
    }
}

/// Writes a file with this name to a folder of the process that contains no other files, and calls `read` with its
/// path.
pub fn in_file<T>(name: &str, bytes: &[u8], read: impl FnOnce(&Path) -> T) -> T {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("meganeura-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for files, in TMPDIR");
        folder
    });
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("room in TMPDIR");
    read(&path)
}
