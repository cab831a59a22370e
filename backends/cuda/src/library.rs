//! Shared libraries of the CUDA toolkit, loaded at run time.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libloading::Library;

/// Environment variables that contain the folder of the CUDA toolkit.
const TOOLKIT_VARIABLES: [&str; 2] = ["CUDA_PATH", "CUDA_HOME"];
/// Default folders of the CUDA toolkit.
const TOOLKIT_FOLDERS: [&str; 2] = ["/usr/local/cuda", "/opt/cuda"];
/// Folders of libraries, relative to the folder of the toolkit.
const LIBRARY_FOLDERS: [&str; 3] = ["lib64", "bin", "bin/x64"];

/// A description of a library to load.
pub(crate) struct LibraryRequest {
    /// Environment variable that contains the path of the library file.
    pub(crate) variable: &'static str,
    /// File names of the library, the newest first.
    pub(crate) names: &'static [&'static str],
    /// Name of the library and how to get it, for messages.
    pub(crate) what: &'static str,
    pub(crate) remedy: &'static str,
}

impl LibraryRequest {
    /// Opens the library and returns the result of `check`. If the environment variable is set, tries only the file
    /// in it. Otherwise tries the files of the system and of the toolkit until one is found.
    ///
    /// # Errors
    /// The library is not found, or the file is not the expected library.
    pub(crate) fn open<T>(&self, check: impl Fn(LoadedLibrary) -> Result<T, String>) -> Result<T, String> {
        let LibraryRequest { variable, .. } = self;
        let named = std::env::var_os(variable)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from);
        if let Some(path) = named {
            let opened = LoadedLibrary::load(&path).and_then(&check);
            return opened.map_err(|why| format!("{variable} is {}, which cannot be used: {why}", path.display()));
        }
        let mut why = String::new();
        for path in self.candidates() {
            match LoadedLibrary::load(&path).and_then(&check) {
                Ok(found) => return Ok(found),
                // Keep only the first error. In it, the system reports a library that does not exist.
                Err(error) if why.is_empty() => why = error,
                Err(_) => {}
            }
        }
        let LibraryRequest { what, remedy, .. } = self;
        Err(format!("{what} not found ({why}); {remedy}"))
    }

    fn candidates(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = self.names.iter().map(PathBuf::from).collect();
        let variables = TOOLKIT_VARIABLES.iter().filter_map(std::env::var_os).map(PathBuf::from);
        for folder in variables.chain(TOOLKIT_FOLDERS.iter().map(PathBuf::from)) {
            for library in LIBRARY_FOLDERS {
                all.extend(self.names.iter().map(|name| folder.join(library).join(name)));
            }
        }
        all
    }
}

/// A library that is loaded once and never unloaded. NVRTC and other libraries leak memory whenever they are
/// unloaded: NVRTC 12.9 up to 80 kB after a compilation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedLibrary(&'static Library);

impl LoadedLibrary {
    fn load(path: &Path) -> Result<Self, String> {
        static LOADED: Mutex<BTreeMap<PathBuf, &'static Library>> = Mutex::new(BTreeMap::new());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = loaded.get(path) {
            return Ok(LoadedLibrary(library));
        }
        // SAFETY: it is NVIDIA's library, or the user declares that it is. Its initialisers cannot be checked.
        let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
        let library: &'static Library = Box::leak(Box::new(library));
        loaded.insert(path.to_owned(), library);
        Ok(LoadedLibrary(library))
    }

    /// Returns a function of the library by its name.
    ///
    /// # Errors
    /// The library has no such function.
    pub(crate) fn function<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        // SAFETY: callers request a function of NVIDIA's header with its type.
        let symbol = unsafe { self.0.get::<F>(name.to_bytes_with_nul()) };
        symbol.map(|symbol| *symbol).map_err(|error| error.to_string())
    }
}

/// Converts the status of a function of a library.
///
/// # Errors
/// The function failed.
pub(crate) fn check(status: c_int, function: &str) -> Result<(), String> {
    match status {
        0 => Ok(()),
        status => Err(format!("{function} fails with status {status}")),
    }
}

/// Returns the version of a library as text, such as 12.9.1 for 120901.
pub(crate) fn version_text(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_same_library_again_is_the_one_that_is_loaded() {
        let path = Path::new("libc.so.6");
        let [first, second] = [(); 2].map(|()| LoadedLibrary::load(path).expect("every program has it"));
        assert!(std::ptr::eq(first.0, second.0));
        LoadedLibrary::load(Path::new("libnobodyhasthis.so")).expect_err("not there");
    }

    #[test]
    fn a_library_that_is_not_there_is_an_error_that_says_how_to_get_it() {
        let wanted = LibraryRequest {
            variable: "A_VARIABLE_THAT_NOBODY_SETS",
            names: &["libnobodyhasthis.so"],
            what: "a library",
            remedy: "install it",
        };
        let error = wanted.open(|_| Ok(())).expect_err("not there");
        assert!(
            error.starts_with("a library not found (") && error.ends_with("; install it"),
            "{error}"
        );
    }
}
