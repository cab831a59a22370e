//! Shared libraries of the CUDA toolkit, which are found when they are needed.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libloading::Library;

/// Variables that name the folder of the CUDA toolkit.
const TOOLKIT_VARIABLES: [&str; 2] = ["CUDA_PATH", "CUDA_HOME"];
/// Where the toolkit usually is.
const TOOLKIT_FOLDERS: [&str; 2] = ["/usr/local/cuda", "/opt/cuda"];
/// Where libraries are in the toolkit.
const LIBRARY_FOLDERS: [&str; 3] = ["lib64", "bin", "bin/x64"];

/// Where to look for a library.
pub(crate) struct Wanted {
    /// The variable that names its file.
    pub(crate) variable: &'static str,
    /// Names of its file, the newest first.
    pub(crate) names: &'static [&'static str],
    /// What it is and how to get it, for messages.
    pub(crate) what: &'static str,
    pub(crate) remedy: &'static str,
}

impl Wanted {
    /// Opens it with what `check` makes of the library: the file that the variable names, else the first that the system or the
    /// toolkit has.
    ///
    /// # Errors
    /// It is not found, or is none.
    pub(crate) fn open<T>(&self, check: impl Fn(Opened) -> Result<T, String>) -> Result<T, String> {
        let Wanted { variable, .. } = self;
        let named = std::env::var_os(variable)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from);
        if let Some(path) = named {
            let opened = Opened::load(&path).and_then(&check);
            return opened.map_err(|why| format!("{variable} names {}, which cannot be used: {why}", path.display()));
        }
        let mut why = String::new();
        for path in self.candidates() {
            match Opened::load(&path).and_then(&check) {
                Ok(found) => return Ok(found),
                // The first is what a system says of a library that it does not have.
                Err(error) if why.is_empty() => why = error,
                Err(_) => {}
            }
        }
        let Wanted { what, remedy, .. } = self;
        Err(format!("{what} is not found ({why}); {remedy}"))
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

/// A library that is loaded, once and for ever: NVRTC and others leave memory behind each time that they are unloaded (up to 80 kB
/// each, by NVRTC 12.9 after a compilation).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened(&'static Library);

impl Opened {
    fn load(path: &Path) -> Result<Self, String> {
        static LOADED: Mutex<BTreeMap<PathBuf, &'static Library>> = Mutex::new(BTreeMap::new());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = loaded.get(path) {
            return Ok(Opened(library));
        }
        // SAFETY: it is NVIDIA's library, or what a user says is it; what it does when it is loaded is not ours to check.
        let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
        let library: &'static Library = Box::leak(Box::new(library));
        loaded.insert(path.to_owned(), library);
        Ok(Opened(library))
    }

    /// A function by its name.
    ///
    /// # Errors
    /// It has none.
    pub(crate) fn function<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        // SAFETY: callers name a function of NVIDIA's header with its type.
        let symbol = unsafe { self.0.get::<F>(name.to_bytes_with_nul()) };
        symbol.map(|symbol| *symbol).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_same_library_again_is_the_one_that_is_loaded() {
        let path = Path::new("libc.so.6");
        let [first, second] = [(); 2].map(|()| Opened::load(path).expect("every program has it"));
        assert!(std::ptr::eq(first.0, second.0));
        Opened::load(Path::new("libnobodyhasthis.so")).expect_err("not there");
    }

    #[test]
    fn a_library_that_is_not_there_is_an_error_that_says_how_to_get_it() {
        let wanted = Wanted {
            variable: "A_VARIABLE_THAT_NOBODY_SETS",
            names: &["libnobodyhasthis.so"],
            what: "a library",
            remedy: "install it",
        };
        let error = wanted.open(|_| Ok(())).expect_err("not there");
        assert!(
            error.starts_with("a library is not found (") && error.ends_with("; install it"),
            "{error}"
        );
    }
}
