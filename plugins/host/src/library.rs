//! A loaded plugin: its checked table of functions, and the conversion of the statuses that they return.

use std::ffi::{CStr, c_char};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use libloading::Library;
use meganeura_core::error::MissingKernel;
use meganeura_core::plan::ExecutionPlan;
use meganeura_core::{Error, Result};
use meganeura_plugin_abi as abi;

use crate::beside::NearbyLibraries;
use crate::file::{Identity, Manifest, PluginFile, Refusal, refuse};

/// Maximum size of a plugin's message, in bytes.
const MAX_MESSAGE: usize = 4096;
/// Maximum length of the chain of extensions.
const MAX_EXTENSIONS: usize = 64;
/// Maximum size of a plugin's table of functions, in bytes.
const MAX_TABLE: usize = 1 << 16;
/// Size of the table of functions in the first version, in bytes.
const FIRST_TABLE: usize = 144;

/// A loaded plugin. It stays loaded until the program ends, because its threads may still run, and
/// its objects may still be used.
#[derive(Debug)]
pub(crate) struct Plugin {
    pub(crate) manifest: Manifest,
    pub(crate) path: String,
    pub(crate) sha256: String,
    table: abi::Plugin,
}

// SAFETY: the table consists of functions that may be called from any thread by the rules of the
// interface, and of pointers that are not used after loading.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

struct HostInfo(abi::Host);
// SAFETY: the pointers in it are to constants.
unsafe impl Sync for HostInfo {}

static HOST: HostInfo = HostInfo(abi::Host {
    struct_size: size_of::<abi::Host>() as u32,
    abi_major: abi::ABI_MAJOR,
    abi_minor: abi::ABI_MINOR,
    plan_oldest: abi::PLAN_VERSION,
    plan_newest: abi::PLAN_VERSION,
    extensions: ptr::null(),
    version: concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast(),
    log: Some(log_line),
});

unsafe extern "C" fn log_line(level: u32, message: *const c_char) {
    // SAFETY: texts of plugins are NUL-terminated.
    let text = unsafe { text(message) };
    let level = match level {
        0 | 1 => log::Level::Error,
        2 => log::Level::Warn,
        3 => log::Level::Info,
        _ => log::Level::Debug,
    };
    log::log!(target: "meganeura::plugin", level, "plugin: {text}");
}

/// Reads the text at a pointer, up to a maximum length.
///
/// # Safety
/// Null, or a NUL-terminated text that does not change meanwhile.
pub(crate) unsafe fn text(start: *const c_char) -> String {
    if start.is_null() {
        return String::new();
    }
    let mut len = 0;
    // SAFETY: no byte after the NUL is read.
    while len < MAX_MESSAGE && unsafe { *start.add(len) } != 0 {
        len += 1;
    }
    // SAFETY: these bytes were read just now.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) };
    printable(&String::from_utf8_lossy(bytes))
}

/// Replaces control characters, which could change the state of a terminal.
pub(crate) fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

/// File whose code was loaded into this process. It stays loaded even if the plugin is rejected afterwards.
struct LoadedCode {
    /// Device and inode number of the file.
    file: Option<(u64, u64)>,
    /// Path that was passed to the loader of the operating system.
    name: PathBuf,
    sha256: String,
    library: &'static Library,
}

static LOADED_CODE: Mutex<Vec<LoadedCode>> = Mutex::new(Vec::new());

/// Loads the code of a file for the rest of the program. The loader returns the existing library for the same file or
/// path. Therefore a file that changed after it was loaded is refused, and an unchanged one gives the existing library.
fn load_code(opened: PluginFile, beside: &NearbyLibraries) -> Result<&'static Library, Refusal> {
    let mut known = LOADED_CODE.lock().unwrap_or_else(PoisonError::into_inner);
    let name = name_for_loader(&opened, beside);
    let is_same = |l: &&LoadedCode| l.name == name || (l.file.is_some() && l.file == opened.identity.file);
    let library = match known.iter().find(is_same) {
        Some(before) if before.sha256 != opened.sha256 => {
            return refuse(
                "an earlier version of this file is already loaded, and code is never unloaded",
                "start the program again; install new versions by renaming them",
            );
        }
        // Loading again would give the same library, but store another name, and keep the file open
        // once more.
        Some(before) => before.library,
        None => {
            let library = open_library(&name).map_err(|e| {
                let cause = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
                Refusal {
                    message: format!("the system cannot load it: {}", printable(&cause)),
                    remedy: "check its linked libraries".into(),
                    runs_on_fallback: true,
                }
            })?;
            // Keep the file open, too: the loader identifies libraries by name, and the name of an
            // open file is its descriptor number. An open file also keeps its inode number, so no
            // other file can be mistaken for it.
            let library: &'static Library = Box::leak(Box::new(library));
            let _: &'static File = Box::leak(Box::new(opened.file));
            known.push(LoadedCode {
                file: opened.identity.file,
                name,
                sha256: opened.sha256,
                library,
            });
            library
        }
    };
    if beside.by_place {
        check_unchanged(std::iter::once(&(opened.path, opened.identity)).chain(&beside.libraries))?;
    }
    Ok(library)
}

/// Checks that the libraries loaded by path are the checked ones: each path must lead to the same unchanged file as
/// before.
fn check_unchanged<'a>(files: impl Iterator<Item = &'a (PathBuf, Identity)>) -> Result<(), Refusal> {
    for (path, identity) in files {
        if !identity.is_at(path) {
            return refuse(
                format!("{} changed while it was loaded", path.display()),
                "start the program again after the installation has finished",
            );
        }
    }
    Ok(())
}

impl Plugin {
    /// Loads an opened file. Its code runs from here on.
    pub(crate) fn load(opened: PluginFile, beside: &NearbyLibraries, manifest: Manifest) -> Result<Plugin, Refusal> {
        let (path, sha256) = (opened.path.display().to_string(), opened.sha256.clone());
        let library = load_code(opened, beside)?;
        // SAFETY: the type is that of the interface's function; the manifest declares the file a
        // plugin of the interface.
        let entry = unsafe { library.get::<abi::EntryFn>(abi::ENTRY_SYMBOL.as_bytes()) };
        let Ok(entry) = entry else {
            let message = format!(
                "it has a manifest, but does not export the function {}",
                abi::ENTRY_SYMBOL
            );
            return refuse(message, "see docs/plugin-abi.md for the exports of a plugin");
        };
        // SAFETY: called as the interface specifies.
        let table = unsafe { entry(&HOST.0) };
        // SAFETY: the returned table lives as long as the process.
        let table = unsafe { check_table(table) }?;
        Ok(Plugin {
            manifest,
            path,
            sha256,
            table,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.manifest.name
    }

    pub(crate) fn table(&self) -> &abi::Plugin {
        &self.table
    }

    /// Returns an error about faulty behaviour of the plugin that is not a status.
    pub(crate) fn broken(&self, message: impl Into<String>) -> Error {
        Error::Plugin {
            plugin: self.name().to_owned(),
            message: message.into(),
            remedy: format!("this is a fault of the plugin {}", self.path),
        }
    }

    /// Converts a status returned by the plugin to a result, and frees it.
    ///
    /// # Safety
    /// A function of this plugin has just returned `status`.
    pub(crate) unsafe fn take(&self, status: *mut abi::Status) -> std::result::Result<(), Failure> {
        if status.is_null() {
            return Ok(());
        }
        let unusable = |message: String| Failure {
            code: abi::STATUS_FAILED,
            message,
            detail: [0; 3],
            unusable: true,
        };
        if !status.is_aligned() {
            return Err(unusable("it returned a status with an invalid address".into()));
        }
        // SAFETY: the first field exists in every version.
        let size = unsafe { (*status).struct_size };
        if (size as usize) < size_of::<abi::Status>() || size as usize > MAX_TABLE {
            return Err(unusable(format!("it returned a status that says to have {size} bytes")));
        }
        // SAFETY: it has all fields, and its texts are NUL-terminated.
        let (status_copy, message, context) = unsafe { (*status, text((*status).message), text((*status).context)) };
        if let Some(free) = self.table.status_free {
            // SAFETY: it is freed once.
            unsafe { free(status) };
        }
        let message = match (message.as_str(), context.as_str()) {
            ("", "") => format!("it failed with code {} without a message", status_copy.code),
            (_, "") => message,
            _ => format!("{message} ({context})"),
        };
        Err(Failure {
            code: status_copy.code,
            message,
            detail: status_copy.detail,
            unusable: matches!(status_copy.code, abi::STATUS_DEVICE_LOST | abi::STATUS_PANIC),
        })
    }
}

/// A status that reports a failure.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: u32,
    pub(crate) message: String,
    pub(crate) detail: [u64; 3],
    /// `true` if the executable cannot be used any more.
    pub(crate) unusable: bool,
}

impl Failure {
    /// Converts the failure of an operation on a plan to an error for users.
    pub(crate) fn about_plan(self, plugin: &Plugin, plan: &ExecutionPlan) -> Error {
        let dispatch = usize::try_from(self.detail[0])
            .ok()
            .and_then(|i| plan.dispatches.get(i));
        match (self.code, dispatch) {
            (abi::STATUS_UNSUPPORTED, Some(dispatch)) => Error::MissingKernels {
                device: plugin.name().to_owned(),
                missing: vec![MissingKernel {
                    kernel: dispatch.kernel.name.clone(),
                    label: dispatch.label.clone(),
                    reason: self.message,
                }],
            },
            // The code has no numbers, so the error names no dispatch.
            (abi::STATUS_INVALID_PLAN, _) => Error::plan(format!("plugin '{}': {}", plugin.name(), self.message)),
            _ => self.plain(plugin),
        }
    }

    /// Converts the failure to an error for users.
    pub(crate) fn plain(self, plugin: &Plugin) -> Error {
        match self.code {
            abi::STATUS_OUT_OF_MEMORY => Error::OutOfMemory {
                device: plugin.name().to_owned(),
                requested: usize::try_from(self.detail[0]).unwrap_or(usize::MAX),
                available: Some(self.detail[1]).filter(|&bytes| bytes > 0),
                remedy: "use a smaller batch or a smaller model".into(),
            },
            abi::STATUS_PANIC => plugin.broken(self.message),
            _ => Error::backend(plugin.name(), self.message),
        }
    }
}

/// Returns the path that the loader of the operating system opens. On Linux it leads to the file that was checked, even
/// if the original path now leads to another one. A plugin with libraries at relative paths needs its original path.
fn name_for_loader(opened: &PluginFile, beside: &NearbyLibraries) -> PathBuf {
    #[cfg(target_os = "linux")]
    if !beside.by_place {
        use std::os::fd::AsRawFd;
        return format!("/proc/self/fd/{}", opened.file.as_raw_fd()).into();
    }
    let _ = beside;
    opened.path.clone()
}

#[cfg(unix)]
fn open_library(name: &Path) -> std::result::Result<Library, libloading::Error> {
    use libloading::os::unix;
    // SAFETY: loading runs initialisers of the file; the user declares it trusted by naming it, and
    // its owner and its sum were checked.
    unsafe { unix::Library::open(Some(name), unix::RTLD_NOW | unix::RTLD_LOCAL) }.map(Library::from)
}

#[cfg(not(unix))]
fn open_library(name: &Path) -> std::result::Result<Library, libloading::Error> {
    // SAFETY: as above.
    unsafe { Library::new(name) }
}

/// Checks that a table of functions can be used, and returns a copy.
///
/// # Safety
/// Null, or a table as the interface describes it, at least its first field.
unsafe fn check_table(table: *const abi::Plugin) -> Result<abi::Plugin, Refusal> {
    const REBUILD: &str = "build it with the header of this version";
    if table.is_null() {
        return refuse(
            "it refuses this host: its entry returned null",
            "ask its author, or build it again",
        );
    }
    if !table.is_aligned() {
        return refuse("its table has an invalid address", REBUILD);
    }
    // SAFETY: the first field exists in every version.
    let size = unsafe { (*table).struct_size } as usize;
    if !(FIRST_TABLE..=MAX_TABLE).contains(&size) {
        return refuse(format!("its table says to have {size} bytes"), REBUILD);
    }
    // SAFETY: all zeros are a table without functions.
    let mut copy: abi::Plugin = unsafe { std::mem::zeroed() };
    let len = size.min(size_of::<abi::Plugin>());
    // SAFETY: both have at least `len` bytes.
    unsafe { ptr::copy_nonoverlapping(table.cast::<u8>(), (&raw mut copy).cast::<u8>(), len) };
    if copy.abi_major != abi::ABI_MAJOR {
        let (found, ours) = (copy.abi_major, abi::ABI_MAJOR);
        return refuse(
            format!("its table uses version {found} of the interface, expected version {ours}"),
            REBUILD,
        );
    }
    if copy.plan_oldest > abi::PLAN_VERSION || copy.plan_newest < abi::PLAN_VERSION {
        let (oldest, newest, ours) = (copy.plan_oldest, copy.plan_newest, abi::PLAN_VERSION);
        return refuse(
            format!("it supports plans of the versions {oldest} to {newest}, found {ours}"),
            REBUILD,
        );
    }
    let needed = [
        ("status_free", copy.status_free.is_some()),
        ("device_count", copy.device_count.is_some()),
        ("device_info", copy.device_info.is_some()),
        ("device_open", copy.device_open.is_some()),
        ("device_close", copy.device_close.is_some()),
        ("device_supports", copy.device_supports.is_some()),
        ("device_compile", copy.device_compile.is_some()),
        ("executable_free", copy.executable_free.is_some()),
        ("executable_write", copy.executable_write.is_some()),
        ("executable_read", copy.executable_read.is_some()),
        ("executable_run", copy.executable_run.is_some()),
        ("executable_wait", copy.executable_wait.is_some()),
    ];
    if let Some((name, _)) = needed.iter().find(|(_, there)| !there) {
        return refuse(
            format!("its table has no function {name}"),
            "only optional functions may be null",
        );
    }
    // SAFETY: the interface specifies that the chain consists of extensions.
    unsafe { check_extensions(copy.extensions) }?;
    Ok(copy)
}

/// Checks the extensions in a chain.
///
/// # Safety
/// `link` is null or the first link of a chain.
unsafe fn check_extensions(mut link: *const abi::Extension) -> Result<(), Refusal> {
    for _ in 0..MAX_EXTENSIONS {
        if link.is_null() {
            return Ok(());
        }
        // SAFETY: by contract; names are NUL-terminated texts.
        let name = unsafe { text((*link).name) };
        log::debug!("a plugin has the extension '{name}', which this host does not support");
        // SAFETY: by contract.
        link = unsafe { (*link).next };
    }
    refuse(
        format!("its chain of extensions has more than {MAX_EXTENSIONS} links"),
        "end the chain with null",
    )
}

/// Returns the version of the interface that a plugin was built with.
pub(crate) fn version_of(table: &abi::Plugin) -> String {
    format!("{}.{}", table.abi_major, table.abi_minor)
}

/// Reads a text in an array of fixed length.
pub(crate) fn array_text(array: &[c_char]) -> Option<String> {
    // SAFETY: characters are bytes, of one size and alignment.
    let bytes = unsafe { std::slice::from_raw_parts(array.as_ptr().cast::<u8>(), array.len()) };
    let text = CStr::from_bytes_until_nul(bytes).ok()?;
    Some(printable(&text.to_string_lossy()))
}
