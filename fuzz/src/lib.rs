//! What the targets share: their macro, seeds, changes of texts and of binary files, and limits.
//!
//! A target starts from seeds, which are fixtures of the repository, so that there is no corpus to be kept up to date.
//! libFuzzer keeps what reaches new code; half of what it tries next are its own changes of bytes, and half are changes
//! that know the format ([`text`], [`protobuf`], [`binary`]).

pub mod binary;
mod limits;
pub mod protobuf;
pub mod text;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::abort;
use std::sync::{Mutex, OnceLock, PoisonError};

pub use meganeura_core::random::SplitMix64;

/// A change of a file, which may take parts of the seeds.
pub type Change = fn(&mut Vec<u8>, &[Vec<u8>], &mut SplitMix64);

/// Defines a target: its seeds, how they are changed, and what reads them.
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

/// Bytes of a file of the repository.
#[macro_export]
macro_rules! seed {
    ($path:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../", $path)).to_vec()
    };
}

/// What the last panic said.
static LAST: Mutex<String> = Mutex::new(String::new());

/// Takes the place of libFuzzer's hook, for which every panic is an end: those of libraries that our code contains become
/// errors. Panics of our own code are findings even where they are contained.
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

/// Runs a reader. A panic that comes out of it is a finding.
pub fn guarded(read: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(read)).is_err() {
        eprintln!("{}", LAST.lock().unwrap_or_else(PoisonError::into_inner));
        abort();
    }
}

/// A change for libFuzzer: of what it gives, or of a seed.
pub fn change(data: &mut [u8], size: usize, max_size: usize, seed: u32, seeds: &[Vec<u8>], change: Change) -> usize {
    // Smaller inputs are what it begins with, or nothing's form.
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
    // A seed as it stands is worth to be known as well.
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

/// Numbers at which readers count wrongly.
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

/// A number, mostly one of [`NUMBERS`].
pub fn number(rng: &mut SplitMix64) -> u64 {
    match rng.below(3) {
        0 => rng.below(64) as u64,
        1 => 1 << rng.below(64),
        _ => NUMBERS[rng.below(NUMBERS.len())],
    }
}

/// Writes a file of this name in a folder of the process, which has no other files but those that were given so.
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
