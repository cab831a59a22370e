//! Helpers that build the plugins for tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use meganeura_core::backend::{Backend, Device};
use meganeura_core::config::Config;
use meganeura_core::{Error, Result};
use meganeura_plugin_host::open_backend;

pub(crate) use super::compile::{compile, set_mode};

/// Returns the path of a file or folder in the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Returns the first device.
pub(crate) fn device(backend: &Arc<dyn Backend>) -> Result<Arc<dyn Device>> {
    let config = Config::default();
    assert_eq!(backend.devices(&config)?.len(), 1);
    backend.open(0, &config)
}

/// Temporary folder for plugins that are built from `hostile.c`.
pub(crate) struct Folder(pub(crate) tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Folder(tempfile::tempdir().expect("a folder"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Builds a case of `hostile.c` under a plugin name.
    pub(crate) fn build(&self, case: u32, name: &str, options: &[String]) -> PathBuf {
        let file = self.path(&format!("lib{name}-{case}.so"));
        let mut all = vec![format!("-DCASE={case}"), format!("-DNAME={name}")];
        all.extend_from_slice(options);
        compile_hostile(&all, &file);
        file
    }
}

/// Compiles `hostile.c`.
pub(crate) fn compile_hostile(options: &[String], to: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plugins/hostile.c");
    compile(&source, &repository("plugins/abi/include"), options, to);
}

/// Returns the reason why a plugin is rejected.
pub(crate) fn refusal(path: &Path) -> String {
    match open_backend(path, None) {
        Err(error @ Error::Plugin { .. }) => error.to_string(),
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("{} was loaded", path.display()),
    }
}

/// Checks that the error contains the plugin's name and these words.
pub(crate) fn assert_names(error: &str, plugin: &str, words: &[&str]) {
    for word in std::iter::once(&plugin).chain(words) {
        assert!(error.contains(word), "'{word}' in: {error}");
    }
}
