//! Files of plugins: checks of their owner and permissions, and of their manifest before any of
//! their code runs.

use std::fs::{File, Metadata, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};

use meganeura_core::files::sha256;
use meganeura_plugin_abi as abi;
use object::{Architecture, BinaryFormat, Object, ObjectSection, ObjectSymbol};
use serde::Deserialize;

/// Maximum size of a plugin's shared object.
pub(crate) const MAX_BYTES: u64 = 1 << 30;

/// Reason why a plugin is refused, and the remedy.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) message: String,
    pub(crate) remedy: String,
    /// `true` if the cause may be outside of the plugin, such as a missing library; the plugin is then tried again each
    /// time.
    pub(crate) runs_on_fallback: bool,
}

pub(crate) fn refuse<T>(message: impl Into<String>, remedy: &str) -> Result<T, Refusal> {
    Err(Refusal {
        message: message.into(),
        remedy: remedy.to_owned(),
        runs_on_fallback: false,
    })
}

/// A file that was opened and checked.
#[derive(Debug)]
pub(crate) struct PluginFile {
    pub(crate) file: File,
    pub(crate) identity: Identity,
    /// Path with all links resolved.
    pub(crate) path: PathBuf,
    pub(crate) contents: Vec<u8>,
    pub(crate) sha256: String,
}

/// Identity of a file's contents at a time: it differs from that of another file at the same path, and changes with the
/// file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Device and inode number of the file, if the operating system has them.
    pub(crate) file: Option<(u64, u64)>,
    size: u64,
    /// Time of the last change, in seconds and nanoseconds.
    changed: (i64, i64),
}

impl Identity {
    #[cfg(unix)]
    fn of(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Identity {
            file: Some((metadata.dev(), metadata.ino())),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    #[cfg(not(unix))]
    fn of(metadata: &Metadata) -> Self {
        let since = |time: std::time::SystemTime| time.duration_since(std::time::UNIX_EPOCH).ok();
        let changed = metadata.modified().ok().and_then(since).unwrap_or_default();
        Identity {
            file: None,
            size: metadata.len(),
            changed: (changed.as_secs() as i64, changed.subsec_nanos().into()),
        }
    }

    /// Returns `true` if a path still leads to the unchanged file.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        path.metadata().is_ok_and(|metadata| Identity::of(&metadata) == *self)
    }
}

fn unreadable(error: std::io::Error) -> Refusal {
    Refusal {
        message: format!("it cannot be read: {error}"),
        remedy: "check the path in MEGANEURA_PLUGINS or in the configuration file".into(),
        runs_on_fallback: false,
    }
}

/// Resolves a path, including links.
pub(crate) fn real(path: &Path) -> Result<PathBuf, Refusal> {
    if path.is_absolute() {
        path.canonicalize().map_err(unreadable)
    } else {
        refuse(
            "its path is not absolute",
            "use absolute paths for plugins; there is no search path",
        )
    }
}

/// Checks that only this user or root can change the folders above a path, and the path itself if
/// it is a folder.
pub(crate) fn check_folders(path: &Path) -> Result<(), Refusal> {
    for folder in path.ancestors() {
        let metadata = folder.metadata().map_err(unreadable)?;
        if metadata.is_dir() {
            check_owner(&metadata, "the folder", folder, true)?;
        }
    }
    Ok(())
}

/// Opens a file of at most `largest` bytes, and checks that only this user and root can have written it.
pub(crate) fn open(path: &Path, largest: u64) -> Result<PluginFile, Refusal> {
    let path = real(path)?;
    let mut options = OpenOptions::new();
    options.read(true);
    // Opening a pipe would otherwise block until it has a writer.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let mut file = options.open(&path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return refuse("it is not a file", "name the shared object itself");
    }
    check_owner(&metadata, "the file", &path, false)?;
    check_folders(&path)?;
    if metadata.len() > largest {
        return refuse(
            format!("it has {} bytes; {largest} are allowed", metadata.len()),
            "name the plugin itself",
        );
    }
    let mut contents = Vec::new();
    file.by_ref()
        .take(largest)
        .read_to_end(&mut contents)
        .map_err(unreadable)?;
    Ok(PluginFile {
        file,
        identity: Identity::of(&metadata),
        path,
        sha256: sha256([&contents[..]]),
        contents,
    })
}

#[cfg(unix)]
fn check_owner(metadata: &Metadata, what: &str, path: &Path, is_folder: bool) -> Result<(), Refusal> {
    use std::os::unix::fs::MetadataExt;
    const OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    // SAFETY: it only reads a number.
    let own = unsafe { libc::geteuid() };
    if metadata.uid() != 0 && metadata.uid() != own {
        return refuse(
            format!("{what} {} belongs to another user ({})", path.display(), metadata.uid()),
            "plugins and their parent folders must belong to you or to root",
        );
    }
    // In a sticky folder, such as /tmp, users cannot replace files of other users.
    let replaceable = metadata.mode() & OTHERS_WRITE != 0 && !(is_folder && metadata.mode() & STICKY != 0);
    if replaceable {
        return refuse(
            format!("{what} {} can be written by others", path.display()),
            "remove this permission: chmod go-w",
        );
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_owner(_: &Metadata, _: &str, _: &Path, _: bool) -> Result<(), Refusal> {
    // Access control lists are the administrator's task; here, paths are explicit and sums can be
    // listed.
    Ok(())
}

/// The manifest of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Manifest {
    /// Name of its backend, as selectors use it.
    pub(crate) name: String,
    pub(crate) version: String,
    /// Version `MAJOR.MINOR` of the interface.
    pub(crate) abi: String,
    #[serde(default)]
    pub(crate) description: String,
}

/// Reads the manifest from the bytes of a shared object.
pub(crate) fn manifest(contents: &[u8]) -> Result<Manifest, Refusal> {
    const REBUILD: &str = "build it for this machine, as a shared object";
    let file = match object::File::parse(contents) {
        Ok(file) => file,
        Err(e) => return refuse(format!("it is not a shared object: {e}"), REBUILD),
    };
    if file.format() != native_format() || file.kind() != object::ObjectKind::Dynamic {
        let (format, kind) = (file.format(), file.kind());
        return refuse(
            format!("it is {format:?} of the kind {kind:?}, not a shared object of this system"),
            REBUILD,
        );
    }
    if native_architecture().is_some_and(|native| file.architecture() != native) || !file.is_little_endian() {
        let found = file.architecture();
        return refuse(format!("it is for another architecture, {found:?}"), REBUILD);
    }
    const NOT_A_PLUGIN: &str = "see docs/plugin-abi.md for the exports of a plugin";
    let Some(bytes) = symbol(&file, abi::MANIFEST_SYMBOL) else {
        let message = format!(
            "it is not a plugin: it does not export the data {}",
            abi::MANIFEST_SYMBOL
        );
        return refuse(message, NOT_A_PLUGIN);
    };
    let Some(end) = bytes.iter().take(abi::MANIFEST_LIMIT).position(|&b| b == 0) else {
        let message = format!(
            "its manifest has no terminating zero within {} bytes",
            abi::MANIFEST_LIMIT
        );
        return refuse(message, NOT_A_PLUGIN);
    };
    let Ok(text) = std::str::from_utf8(&bytes[..end]) else {
        return refuse("its manifest is not UTF-8", NOT_A_PLUGIN);
    };
    match toml::from_str::<Manifest>(text) {
        Ok(manifest) => check_manifest(manifest),
        Err(e) => refuse(format!("its manifest cannot be read: {}", e.message()), NOT_A_PLUGIN),
    }
}

fn check_manifest(manifest: Manifest) -> Result<Manifest, Refusal> {
    let name = &manifest.name;
    if !abi::is_backend_name(name) {
        return refuse(
            format!("its name '{}' cannot be used in a selector", name.escape_debug()),
            "use up to 32 lower-case letters, digits, '-' and '_', and not 'auto'",
        );
    }
    let texts = [&manifest.version, &manifest.description];
    if texts.iter().any(|t| t.chars().any(char::is_control)) || manifest.version.len() > 64 {
        return refuse("its version or description cannot be printed", "use one line of text");
    }
    let major = manifest.abi.split('.').next().and_then(|m| m.parse::<u16>().ok());
    if major != Some(abi::ABI_MAJOR) {
        let (found, ours) = (manifest.abi.escape_debug(), abi::ABI_MAJOR);
        return refuse(
            format!("it uses version '{found}' of the interface, expected version {ours}"),
            "build it with the header of this version",
        );
    }
    Ok(manifest)
}

/// Returns the bytes of a file from the start of a symbol.
fn symbol<'a>(file: &object::File<'a>, name: &str) -> Option<&'a [u8]> {
    // Mach-O puts an underscore before names in C.
    let wanted = |found: &[u8]| found == name.as_bytes() || found.strip_prefix(b"_") == Some(name.as_bytes());
    let dynamic = file
        .dynamic_symbols()
        .find(|s| s.is_definition() && s.name_bytes().is_ok_and(wanted));
    let address = dynamic.map(|s| s.address());
    let exported = || {
        let exports = file.exports().unwrap_or_default();
        exports.iter().find(|e| wanted(e.name())).map(|e| e.address())
    };
    let address = address.or_else(exported)?;
    file.sections().find_map(|section| {
        // Sections that are not loaded have no address.
        let start = Some(section.address()).filter(|&start| start != 0)?;
        let offset = address.checked_sub(start).filter(|&o| o < section.size())?;
        let data = section.data().ok()?;
        data.get(usize::try_from(offset).ok()?..)
            .filter(|rest| !rest.is_empty())
    })
}

fn native_format() -> BinaryFormat {
    if cfg!(target_vendor = "apple") {
        BinaryFormat::MachO
    } else if cfg!(windows) {
        BinaryFormat::Pe
    } else {
        BinaryFormat::Elf
    }
}

/// Returns the architecture of this program, if plugins are supported on it.
fn native_architecture() -> Option<Architecture> {
    Some(match std::env::consts::ARCH {
        "x86_64" => Architecture::X86_64,
        "aarch64" => Architecture::Aarch64,
        "riscv64" => Architecture::Riscv64,
        "powerpc64" => Architecture::PowerPc64,
        "s390x" => Architecture::S390x,
        "loongarch64" => Architecture::LoongArch64,
        _ => return None,
    })
}
