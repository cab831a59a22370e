//! Loads plugins: backends from shared objects, and operators, rules and kernels from data.
//!
//! Plugins are listed in the variable `MEGANEURA_PLUGINS` (absolute paths, separated as in `PATH`),
//! and in the section `[plugins]` of a configuration file that `MEGANEURA_CONFIG` names:
//!
//! ```toml
//! [plugins]
//! load = ["/opt/meganeura/libmine.so", "/opt/meganeura/fusions"]
//! allow_sha256 = ["3f0a..."]  # optional: nothing else is loaded
//! ```
//!
//! There is no search path. A file is opened once, and the opened file is both checked and loaded:
//! it and all folders above it must belong to the user or to root, and must not be writable by
//! anyone else. Its manifest is read before any of its code runs, so a file that is not a plugin,
//! or one for another version or machine, is rejected without running. The same rules apply to
//! libraries that it finds relative to its own location. A loaded plugin stays loaded. A rejected
//! plugin has no effect; [`loaded`] and `meganeura plugins` give the reason. It is tried again when
//! the file, its permissions or the list of sums change.
//!
//! A folder, or a file `*.toml`, is a plugin without native code; the crate `meganeura-plugin-data`
//! describes its checks.
//!
//! Code of a shared object runs with the permissions of the program, without a sandbox.
//! `docs/plugin-abi.md` in the repository describes the interface.

mod backend;
mod beside;
mod data;
mod encode;
mod file;
mod library;
mod seen;
mod trial;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use meganeura_core::backend::Backend;
use meganeura_core::config::Config;
use meganeura_core::registry;
use meganeura_core::{Error, ExecutionPlan, Result};
pub use meganeura_plugin_data::PluginContents;

use crate::backend::PluginBackend;
use crate::file::{Refusal, refuse};
use crate::library::Plugin;
use crate::seen::PluginState;
pub use crate::trial::{TrialLimits, try_plugins_with};

meganeura_core::register_plugin!(meganeura_core::registry::PluginManifest {
    name: env!("CARGO_PKG_NAME"),
    version: env!("CARGO_PKG_VERSION"),
    backends: &[],
    ops: &[],
    rule_sets: &[],
});

registry::inventory::submit! { registry::LoaderEntry(load) }

/// Environment variable with the paths of plugins.
pub const PLUGINS_VARIABLE: &str = "MEGANEURA_PLUGINS";

/// Outcome of loading a plugin, successful or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Path of the plugin as the user gave it.
    pub path: PathBuf,
    /// SHA-256 sum of the file, if it could be read; for a folder, that of the list of its files'
    /// sums.
    pub sha256: Option<String>,
    /// Name of the backend, or of the plugin without native code, if the manifest could be read.
    pub name: Option<String>,
    /// Version of the plugin, if the manifest could be read.
    pub version: Option<String>,
    /// Description of the plugin.
    pub description: Option<String>,
    /// Version of the interface that the plugin was built with, if it was loaded.
    pub abi: Option<String>,
    /// Contents of the plugin, if it has no native code and was loaded.
    pub brings: Option<PluginContents>,
    /// Reason why the plugin was rejected; `None` if it was loaded.
    pub refused: Option<String>,
}

impl Report {
    fn new(path: &Path) -> Self {
        Report {
            path: path.to_owned(),
            sha256: None,
            name: None,
            version: None,
            description: None,
            abi: None,
            brings: None,
            refused: None,
        }
    }

    /// Returns the name of the backend or plugin, or else the name of the file.
    pub fn title(&self) -> String {
        let file = || self.path.file_name().map(|n| n.to_string_lossy().into_owned());
        let name = self.name.clone().or_else(file);
        name.unwrap_or_else(|| self.path.display().to_string())
    }
}

/// Plugin that this process tried to load.
struct TriedPlugin {
    report: Report,
    /// Reason why the plugin was rejected; `None` if it was loaded.
    problem: Option<Error>,
    /// State of its files at that time; `None` if the cause of a rejection may be outside of them.
    seen: Option<PluginState>,
}

impl TriedPlugin {
    /// Returns `true` if the plugin must be tried again: it was rejected, and the cause may have been fixed.
    fn is_due(&self, path: &Path, allow: Option<&[String]>) -> bool {
        self.problem.is_some()
            && self
                .seen
                .as_ref()
                .is_none_or(|seen| *seen != PluginState::of(path, allow))
    }
}

/// Plugins that were tried, in order.
static TRIED: Mutex<Vec<TriedPlugin>> = Mutex::new(Vec::new());

/// Returns the reports of all plugins that were tried so far, in order, including rejected ones.
pub fn loaded() -> Vec<Report> {
    let tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    tried.iter().map(|tried| tried.report.clone()).collect()
}

/// Loads the plugins that the environment and the configuration name, each once. A rejected plugin
/// is a problem of the registry ([`registry::problems`]), and later calls try it again after a
/// change. Called whenever devices are listed.
pub fn load(config: &Config) {
    let variable = std::env::var_os(PLUGINS_VARIABLE).unwrap_or_default();
    let paths = std::env::split_paths(&variable).filter(|p| !p.as_os_str().is_empty());
    let paths: Vec<PathBuf> = paths.chain(config.plugins.load.iter().cloned()).collect();
    if paths.is_empty() {
        return;
    }
    let allow = config.plugins.allow_sha256.as_deref();
    let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    for path in paths {
        match tried.iter_mut().find(|tried| tried.report.path == path) {
            Some(before) if before.is_due(&path, allow) => {
                let now = try_one(&path, allow);
                settle(Some(before), &now);
                *before = now;
            }
            Some(_) => {}
            None => {
                let now = try_one(&path, allow);
                settle(None, &now);
                tried.push(now);
            }
        }
    }
}

/// Loads a plugin, registers its contents, and records the outcome.
fn try_one(path: &Path, allow: Option<&[String]>) -> TriedPlugin {
    // Before the file is read: a change meanwhile is detected the next time.
    let seen = PluginState::of(path, allow);
    let mut report = Report::new(path);
    let outcome = if data::is_data(path) {
        data::load(path, allow, &mut report)
    } else {
        try_open(path, allow, &mut report).and_then(register)
    };
    let runs_on_fallback = outcome.as_ref().is_err_and(|refusal| refusal.runs_on_fallback);
    let problem = named(outcome, &report).err();
    if let Some(Error::Plugin { message, .. }) = &problem {
        report.refused = Some(message.clone());
    }
    TriedPlugin {
        report,
        problem,
        seen: Some(seen).filter(|_| !runs_on_fallback),
    }
}

fn register(backend: PluginBackend) -> std::result::Result<(), Refusal> {
    registry::register_backend(Arc::new(backend)).or_else(|error| match error {
        Error::Plugin { message, remedy, .. } => refuse(message, &remedy),
        other => refuse(other.to_string(), ""),
    })
}

/// Reports a new outcome of a plugin to the registry and the log, if it differs from the outcome before.
fn settle(before: Option<&TriedPlugin>, now: &TriedPlugin) {
    let said = before.and_then(|before| before.problem.as_ref());
    if let (Some(said), Some(problem)) = (said, &now.problem)
        && said.to_string() == problem.to_string()
    {
        return;
    }
    said.inspect(|said| registry::forget_problem(said));
    match &now.problem {
        Some(problem) => {
            log::warn!("{problem}");
            registry::report_problem(problem.clone());
        }
        None => log::info!(
            "plugin '{}' of {} is loaded",
            now.report.title(),
            now.report.path.display()
        ),
    }
}

/// Loads one file as a backend, without registering it. It stays loaded.
///
/// # Errors
/// [`Error::Plugin`] with the name and the cause when it is refused.
pub fn open_backend(path: &Path, allow_sha256: Option<&[String]>) -> Result<Arc<dyn Backend>> {
    let backend = open(path, allow_sha256, &mut Report::new(path))?;
    Ok(Arc::new(backend))
}

/// Encodes a plan in the form that plugins read, for tests that damage it.
///
/// # Errors
/// A plan that the interface cannot represent.
#[doc(hidden)]
pub fn encoded_plan(plan: &ExecutionPlan) -> Result<Vec<u8>> {
    encode::plan(plan).map(|block| block.to_vec())
}

/// Loads one folder or file as a plugin without native code, registers it, and returns the report.
///
/// # Errors
/// [`Error::Plugin`] with the name and the cause if it is rejected.
pub fn open_data(path: &Path, allow_sha256: Option<&[String]>) -> Result<Report> {
    let mut report = Report::new(path);
    named(data::load(path, allow_sha256, &mut report), &report)?;
    Ok(report)
}

/// Loads one plugin of either kind: a plugin without native code is registered, the backend of a shared object is not.
/// It also lists the devices of a shared object, because every command does so later: a plugin that ends or blocks the
/// process in this call must fail the check.
///
/// # Errors
/// [`Error::Plugin`] with the name and the cause when it is refused.
pub fn check_plugin(path: &Path, allow_sha256: Option<&[String]>) -> Result<Report> {
    if data::is_data(path) {
        return open_data(path, allow_sha256);
    }
    let mut report = Report::new(path);
    let backend = open(path, allow_sha256, &mut report)?;
    // A backend without devices is no fault of the plugin.
    if let Err(error) = backend.devices(&Config::default()) {
        log::debug!("{error}");
    }
    Ok(report)
}

fn open(path: &Path, allow: Option<&[String]>, report: &mut Report) -> Result<PluginBackend> {
    let outcome = try_open(path, allow, report);
    named(outcome, report)
}

/// Loads a plugin without native code on trial, in a separate process that runs `program` as [`try_plugins_with`]
/// describes. That process first loads the plugins that this one has loaded.
///
/// # Errors
/// [`Error::Plugin`] with the reason if the process rejects it, or does not end by itself within
/// the limits.
pub fn try_plugin(program: &Path, plugin: &Path, limits: TrialLimits) -> Result<()> {
    let earlier = data::loaded().clone();
    named(trial::run_with(program, plugin, &earlier, limits), &Report::new(plugin))
}

/// Converts a refusal to an error with the name of the plugin.
fn named<T>(outcome: std::result::Result<T, Refusal>, report: &Report) -> Result<T> {
    outcome.map_err(|Refusal { message, remedy, .. }| Error::Plugin {
        plugin: report.title(),
        message: format!("{message} ({})", report.path.display()),
        remedy,
    })
}

/// Refuses a SHA-256 sum that is not on the list, if there is a list.
fn check_allowed(allow: Option<&[String]>, sum: &str) -> std::result::Result<(), Refusal> {
    match allow {
        Some(sums) if !sums.iter().any(|s| s.eq_ignore_ascii_case(sum)) => refuse(
            format!("its SHA-256 sum, {sum}, is not on the list"),
            "add the sum to plugins.allow_sha256 if you trust this file",
        ),
        _ => Ok(()),
    }
}

fn try_open(path: &Path, allow: Option<&[String]>, report: &mut Report) -> std::result::Result<PluginBackend, Refusal> {
    let opened = file::open(path, file::MAX_BYTES)?;
    report.sha256 = Some(opened.sha256.clone());
    let manifest = file::manifest(&opened.contents);
    if let Ok(manifest) = &manifest {
        report.name = Some(manifest.name.clone());
        report.version = Some(manifest.version.clone());
        report.description = Some(manifest.description.clone()).filter(|d| !d.is_empty());
    }
    check_allowed(allow, &opened.sha256)?;
    let manifest = manifest?;
    // Check before its code runs.
    if let Some(other) = registry::backends()
        .iter()
        .map(|b| b.info())
        .find(|i| i.name == manifest.name)
    {
        return refuse(
            format!(
                "a backend named '{}' is already registered, from {}",
                other.name, other.origin
            ),
            "load only one of them",
        );
    }
    let beside = beside::check(&opened, allow)?;
    trial::run_native(path, &opened.sha256)?;
    let plugin = Plugin::load(opened, &beside, manifest)?;
    report.abi = Some(library::version_of(plugin.table()));
    Ok(PluginBackend {
        plugin: Arc::new(plugin),
    })
}
