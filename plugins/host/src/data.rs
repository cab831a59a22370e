//! Loader of plugins without native code: reads their files, and checks who can have written them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use meganeura_core::files::sha256;
use meganeura_plugin_data::{Manifest, Plugin};

use crate::file::{self, Refusal, check_folders, refuse};
use crate::{Report, check_allowed, trial};

/// Name of the manifest in a plugin's folder.
const MANIFEST: &str = "plugin.toml";
/// Maximum size of a file of such a plugin.
const MAX_BYTES: u64 = 256 << 10;
const SEE: &str = "see docs/write-a-data-plugin.md";

/// Returns `true` if a path is a plugin without native code.
pub(crate) fn is_data(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "toml") || path.is_dir()
}

/// Reads, checks and registers a plugin.
pub(crate) fn load(path: &Path, allow: Option<&[String]>, report: &mut Report) -> Result<(), Refusal> {
    let real = file::real(path)?;
    check_folders(&real)?;
    let folder = real.is_dir().then_some(real.as_path());
    let opened = match folder {
        Some(folder) => open_within(folder, MANIFEST)?,
        None => file::open(&real, MAX_BYTES)?,
    };
    let mut sums = format!("{}  {MANIFEST}\n", opened.sha256);
    report.sha256 = Some(opened.sha256);
    let manifest = Manifest::parse(&text(MANIFEST, opened.contents)?).map_err(fault)?;
    report.name = Some(manifest.name.clone());
    report.version = Some(manifest.version.clone());
    report.description = Some(manifest.description.clone()).filter(|d| !d.is_empty());
    let mut files = BTreeMap::new();
    for name in manifest.files().map_err(fault)? {
        let Some(folder) = folder else {
            return refuse(
                format!("it names the file '{name}', and is a single file itself"),
                "name a folder that contains the manifest as plugin.toml",
            );
        };
        let opened = open_within(folder, name)?;
        sums += &format!("{}  {name}\n", opened.sha256);
        files.insert(name.to_owned(), text(name, opened.contents)?);
    }
    if folder.is_some() {
        report.sha256 = Some(sha256([sums.as_bytes()]));
    }
    check_allowed(allow, report.sha256.as_deref().unwrap_or_default())?;
    let earlier = loaded().clone();
    trial::run(&real, &earlier)?;
    let plugin = Plugin::new(&manifest, &files).map_err(fault)?;
    report.brings = Some(plugin.register().map_err(fault)?);
    loaded().push(real);
    Ok(())
}

/// Paths of the registered plugins, in order. Later ones may have rules for operators of earlier ones.
static LOADED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Returns the paths of the registered plugins without native code.
pub(crate) fn loaded() -> MutexGuard<'static, Vec<PathBuf>> {
    // A panic cannot leave the list half changed.
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a file of a plugin's folder, and refuses a path that leads outside of it.
fn open_within(folder: &Path, name: &str) -> Result<file::PluginFile, Refusal> {
    let of = |refusal: Refusal| Refusal {
        message: format!("its file '{name}': {}", refusal.message),
        ..refusal
    };
    let wanted = folder.join(name);
    if file::real(&wanted).map_err(of)? != wanted {
        return refuse(
            format!("its file '{name}' is a link"),
            "put the file itself into the folder",
        );
    }
    file::open(&wanted, MAX_BYTES).map_err(of)
}

fn text(name: &str, contents: Vec<u8>) -> Result<String, Refusal> {
    match String::from_utf8(contents) {
        Ok(text) => Ok(text),
        Err(_) => refuse(format!("its file '{name}' is not UTF-8"), SEE),
    }
}

fn fault(fault: meganeura_plugin_data::Fault) -> Refusal {
    Refusal {
        message: fault.message,
        remedy: SEE.into(),
        runs_on_fallback: false,
    }
}
