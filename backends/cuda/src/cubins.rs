//! Compiled kernels on the disk: machine code by source, architecture and compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use meganeura_core::files::sha256;

use crate::nvrtc::{NVRTC_OPTIONS, Nvrtc};

/// The ending of the files.
const ENDING: &str = "cubin";
/// Bytes of all files from which on the oldest ones are deleted, when a device is opened.
const MAX_BYTES: u64 = 1 << 30;

/// What compiles sources for an architecture.
pub(crate) struct Compiler {
    /// Opened when the first source is not on the disk.
    nvrtc: OnceLock<Result<Nvrtc, String>>,
    architecture: String,
    /// Where compiled kernels are kept, if they are.
    folder: Option<PathBuf>,
}

/// A compiled kernel.
pub(crate) struct Cubin {
    pub(crate) bytes: Vec<u8>,
    /// Whether it is from the disk, where it may have been damaged.
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

    /// NVRTC, which is opened the first time.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn nvrtc(&self) -> Result<&Nvrtc, String> {
        self.nvrtc.get_or_init(Nvrtc::open).as_ref().map_err(Clone::clone)
    }

    /// Machine code of a source; what is on the disk is not looked at where `anew` says so.
    ///
    /// # Errors
    /// There is no compiler, or what it says against the source.
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
            log::debug!("a compiled kernel is not stored in {}: {error}", path.display());
        }
        Ok(Cubin { bytes, stored: false })
    }

    /// The name of the file of a source.
    fn name(&self, source: &str, nvrtc: &Nvrtc) -> String {
        let (major, minor) = nvrtc.version();
        let mut parts = vec![source.to_owned(), self.architecture.clone(), format!("{major}.{minor}")];
        parts.extend(NVRTC_OPTIONS.iter().map(|option| (*option).to_owned()));
        let hash = sha256(parts.iter().flat_map(|part| [part.as_bytes(), b"\0"]));
        format!("{}.{ENDING}", &hash[..32])
    }
}

/// Writes a file as a whole or not at all. It need not survive a crash of the machine: a file that does not load is written again.
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

/// Deletes the oldest files of a folder while there are more bytes than `most`.
fn limit(folder: &Path, most: u64) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|ending| ending == ENDING))
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
