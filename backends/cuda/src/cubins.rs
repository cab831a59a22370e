//! A cache of compiled kernels on disk. The key of machine code is its source, architecture and compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use meganeura_core::files::sha256;

use crate::nvrtc::{NVRTC_OPTIONS, Nvrtc};

/// File name extension of compiled kernels.
const EXTENSION: &str = "cubin";
/// Maximum total number of bytes. Opening a device deletes the oldest files above it.
const MAX_BYTES: u64 = 1 << 30;

/// A compiler of CUDA C++ sources for one architecture, with a cache.
pub(crate) struct Compiler {
    /// NVRTC. It is opened when a source is compiled for the first time.
    nvrtc: OnceLock<Result<Nvrtc, String>>,
    architecture: String,
    /// Folder of the cache, if it is enabled.
    folder: Option<PathBuf>,
}

/// A compiled kernel.
pub(crate) struct Cubin {
    pub(crate) bytes: Vec<u8>,
    /// `true` if the machine code was read from disk, where it may have been damaged.
    pub(crate) stored: bool,
}

impl Compiler {
    pub(crate) fn new(architecture: String, folder: Option<PathBuf>) -> Self {
        if let Some(folder) = &folder {
            limit(folder, MAX_BYTES);
        }
        Compiler {
            nvrtc: OnceLock::new(),
            architecture,
            folder,
        }
    }

    /// Returns NVRTC. The first call opens it.
    ///
    /// # Errors
    /// The reason why NVRTC is not available.
    pub(crate) fn nvrtc(&self) -> Result<&Nvrtc, String> {
        self.nvrtc.get_or_init(Nvrtc::open).as_ref().map_err(Clone::clone)
    }

    /// Compiles a source to machine code, or reads the machine code from the cache. The cache is not read if the
    /// second argument is `true`.
    ///
    /// # Errors
    /// There is no compiler, or the compiler rejects the source.
    pub(crate) fn compile(&self, source: &str, anew: bool) -> Result<Cubin, String> {
        let nvrtc = self.nvrtc()?;
        let path = self.folder.as_ref().map(|folder| folder.join(self.name(source, nvrtc)));
        let stored = path.as_deref().filter(|_| !anew).and_then(|path| fs::read(path).ok());
        if let Some(bytes) = stored.filter(|bytes| !bytes.is_empty()) {
            return Ok(Cubin { bytes, stored: true });
        }
        let bytes = nvrtc.compile(source, &self.architecture)?;
        if let Some(path) = &path
            && let Err(error) = store(path, &bytes)
        {
            log::debug!("cannot store a compiled kernel in {}: {error}", path.display());
        }
        Ok(Cubin { bytes, stored: false })
    }

    /// Returns the cache file name for the machine code of a source.
    fn name(&self, source: &str, nvrtc: &Nvrtc) -> String {
        let (major, minor) = nvrtc.version();
        let mut parts = vec![source.to_owned(), self.architecture.clone(), format!("{major}.{minor}")];
        parts.extend(NVRTC_OPTIONS.iter().map(|option| (*option).to_owned()));
        let hash = sha256(parts.iter().flat_map(|part| [part.as_bytes(), b"\0"]));
        format!("{}.{EXTENSION}", &hash[..32])
    }
}

/// Writes a file atomically. The file may be damaged by a crash of the machine, because a kernel that does not load
/// is compiled and written again.
fn store(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let number = {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
    let temporary = folder.join(format!(".partial-{}-{number}", std::process::id()));
    fs::write(&temporary, bytes)?;
    fs::rename(&temporary, path)
}

/// Deletes the oldest files of a folder until the total size is at most `most` bytes.
fn limit(folder: &Path, most: u64) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|ending| ending == EXTENSION))
        .filter_map(|entry| {
            let metadata = entry.metadata().ok()?;
            Some((metadata.modified().ok()?, metadata.len(), entry.path()))
        })
        .collect();
    let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    files.sort();
    for (_, size, path) in files {
        if bytes <= most {
            return;
        }
        if fs::remove_file(path).is_ok() {
            bytes -= size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_files_go_first_and_others_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, age) in [("a.cubin", 30), ("b.cubin", 20), ("c.cubin", 10), ("d.txt", 40)] {
            let path = folder.path().join(name);
            store(&path, &[0; 100]).expect("written");
            let file = fs::File::options().write(true).open(&path).expect("a file");
            let time = SystemTime::now() - std::time::Duration::from_secs(age);
            file.set_modified(time).expect("a time");
        }
        limit(folder.path(), 250);
        let mut left: Vec<String> = fs::read_dir(folder.path())
            .expect("a folder")
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        assert_eq!(left, ["b.cubin", "c.cubin", "d.txt"]);
    }

    #[test]
    fn a_source_is_compiled_once_for_each_architecture() {
        let folder = tempfile::tempdir().expect("a folder");
        let of = |architecture: &str| Compiler::new(architecture.into(), Some(folder.path().to_owned()));
        let compiler = of("sm_90");
        if compiler.nvrtc().is_err() {
            println!("CUDA-NOT-COMPILED: there is no NVRTC");
            return;
        }
        let source = "extern \"C\" __global__ void kernel_main(float* x) { x[threadIdx.x] += 1.0f; }";
        let first = compiler.compile(source, false).expect("compiled");
        let second = of("sm_90").compile(source, false).expect("read");
        assert!(!first.stored && second.stored && first.bytes == second.bytes);
        assert!(!compiler.compile(source, true).expect("compiled").stored, "anew");
        assert!(!of("sm_80").compile(source, false).expect("compiled").stored);
        let error = compiler.compile("nonsense", false).err().expect("an error");
        assert!(error.contains("kernel.cu"), "{error}");
    }
}
