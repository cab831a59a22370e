//! Configuration: `meganeura.toml`, found in the working directory or named by `MEGANEURA_CONFIG`.
//!
//! ```toml
//! device = "mine"
//! fallback = "cpu"
//! calibration = "rates.ron"
//!
//! [backend.cpu]
//! threads = 4
//!
//! [rewrite]
//! disable = ["packing"]
//!
//! # Only in a file that `MEGANEURA_CONFIG` names.
//! [plugins]
//! load = ["/opt/meganeura/libmine.so"]
//! ```

mod rewrite;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::files::{MAX_SETTINGS, read_text_limited};
pub use rewrite::RewriteConfig;

/// Environment variable with the path of the configuration file.
pub const CONFIG_VARIABLE: &str = "MEGANEURA_CONFIG";
/// File that is read from the working directory.
pub const CONFIG_FILE: &str = "meganeura.toml";

/// Settings of the library and of backends.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Device selector, overridden by the environment and the API.
    pub device: Option<String>,
    /// Selector of the fallback device, for calls that the chosen device can neither run nor decompose; see
    /// [`fallback`](crate::fallback). Without one, such calls are an error.
    pub fallback: Option<String>,
    /// File of measured rates of devices; see [`calibration`](crate::calibration).
    pub calibration: Option<PathBuf>,
    /// Settings of each backend, by the backend's name; the backend defines their meaning.
    #[serde(default)]
    pub backend: BTreeMap<String, BTreeMap<String, toml::Value>>,
    /// Settings of rewriting.
    #[serde(default)]
    pub rewrite: RewriteConfig,
    /// Plugins: shared objects, and folders or files of plugins without native code.
    #[serde(default)]
    pub plugins: PluginSettings,
    /// File that the configuration was read from.
    #[serde(skip)]
    pub path: Option<PathBuf>,
}

/// Plugins to load; see the crate `meganeura-plugin-host`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluginSettings {
    /// Absolute paths. Only a file that `MEGANEURA_CONFIG` names may list plugins: a file in the
    /// working directory may come from someone else, for instance with a cloned repository.
    #[serde(default)]
    pub load: Vec<PathBuf>,
    /// If given, only files with one of these SHA-256 sums (hexadecimal digits) are loaded.
    pub allow_sha256: Option<Vec<String>>,
}

impl Config {
    /// Reads the file that `MEGANEURA_CONFIG` names, else `meganeura.toml` in the working
    /// directory, else returns the defaults.
    ///
    /// # Errors
    /// [`Error::Config`] if a named file is missing, a file cannot be read or parsed, or the file
    /// in the working directory lists plugins to load.
    pub fn load() -> Result<Self> {
        match std::env::var_os(CONFIG_VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => Config::read(Path::new(&path)),
            None if Path::new(CONFIG_FILE).is_file() => {
                let config = Config::read(Path::new(CONFIG_FILE))?;
                if config.plugins.load.is_empty() {
                    Ok(config)
                } else {
                    Err(Error::Config {
                        origin: config.origin(),
                        message: format!(
                            "a file found in the working directory must not load plugins, because their code would \
                         run: set {CONFIG_VARIABLE} to the file, or list the plugins in MEGANEURA_PLUGINS"
                        ),
                    })
                }
            }
            None => Ok(Config::default()),
        }
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`Error::Config`] when it cannot be read or parsed.
    pub fn read(path: &Path) -> Result<Self> {
        let fail = |message: String| Error::Config {
            origin: path.display().to_string(),
            message,
        };
        let text = read_text_limited(path, MAX_SETTINGS).map_err(|e| {
            fail(format!(
                "it cannot be read: {e}; the file is {CONFIG_VARIABLE}, or {CONFIG_FILE} by default"
            ))
        })?;
        let mut config: Config = toml::from_str(&text).map_err(|e| fail(e.to_string()))?;
        config.path = Some(path.to_owned());
        Ok(config)
    }

    /// Returns a setting of a backend that is a non-negative integer.
    ///
    /// # Errors
    /// [`Error::Config`] when the setting is something else.
    pub fn backend_size(&self, backend: &str, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.backend.get(backend).and_then(|b| b.get(key)) else {
            return Ok(None);
        };
        value
            .as_integer()
            .and_then(|v| usize::try_from(v).ok())
            .map(Some)
            .ok_or_else(|| Error::Config {
                origin: self.origin(),
                message: format!("backend.{backend}.{key}: expected a non-negative integer, found {value:?}"),
            })
    }

    /// Returns a setting of a backend that is a text.
    ///
    /// # Errors
    /// [`Error::Config`] when the setting is something else.
    pub fn backend_text(&self, backend: &str, key: &str) -> Result<Option<&str>> {
        let Some(value) = self.backend.get(backend).and_then(|b| b.get(key)) else {
            return Ok(None);
        };
        value.as_str().map(Some).ok_or_else(|| Error::Config {
            origin: self.origin(),
            message: format!("backend.{backend}.{key}: expected a text in quotation marks, found {value:?}"),
        })
    }

    /// Returns a setting of a backend that is one of several words; the first is the default.
    ///
    /// # Errors
    /// [`Error::Config`] for another word, or a value that is not a text.
    pub fn backend_choice<const N: usize>(
        &self,
        backend: &str,
        key: &str,
        words: [&'static str; N],
    ) -> Result<&'static str> {
        let usual = words.first().copied().unwrap_or_default();
        let Some(text) = self.backend_text(backend, key)? else {
            return Ok(usual);
        };
        words.into_iter().find(|word| *word == text).ok_or_else(|| {
            let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
            let all = match quoted.split_last() {
                Some((last, [])) => last.clone(),
                Some((last, others)) => format!("{} or {last}", others.join(", ")),
                None => "nothing".into(),
            };
            Error::Config {
                origin: self.origin(),
                message: format!("backend.{backend}.{key} is '{text}'; use {all}"),
            }
        })
    }

    /// Returns a setting of a backend that is a path. Like other paths of the configuration, it is relative to the
    /// configuration's folder.
    ///
    /// # Errors
    /// [`Error::Config`] when the setting is something else.
    pub fn backend_path(&self, backend: &str, key: &str) -> Result<Option<PathBuf>> {
        let path = self.backend_text(backend, key)?;
        Ok(path.map(|path| match self.path.as_deref().and_then(Path::parent) {
            Some(parent) => parent.join(path),
            None => path.into(),
        }))
    }

    /// Checks that the configuration contains only settings that the backend supports.
    ///
    /// # Errors
    /// [`Error::Config`] if it contains another setting.
    pub fn check_backend(&self, backend: &str, known: &[&str]) -> Result<()> {
        let given = self.backend.get(backend).into_iter().flat_map(BTreeMap::keys);
        match given.into_iter().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => Err(Error::Config {
                origin: self.origin(),
                message: format!(
                    "backend.{backend}.{key} is not a setting; there are {}",
                    known.join(", ")
                ),
            }),
        }
    }

    /// Returns the origin of the settings (a file, or the program's code), for messages.
    pub fn origin(&self) -> String {
        self.path
            .as_ref()
            .map_or_else(|| "(in code)".to_owned(), |p| p.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_errors() {
        let error = toml::from_str::<Config>("devize = 'cpu'").map_err(|e| e.to_string());
        assert!(error.is_err_and(|e| e.contains("devize")));
    }

    #[test]
    fn backend_settings_are_typed() {
        let config: Config = toml::from_str("[backend.cpu]\nthreads = 3\npin = 'x'").expect("valid");
        assert_eq!(config.backend_size("cpu", "threads").expect("an integer"), Some(3));
        assert_eq!(config.backend_size("cpu", "absent").expect("absent"), None);
        let error = config.backend_size("cpu", "pin").expect_err("a string");
        assert!(error.to_string().contains("backend.cpu.pin"), "{error}");
        config
            .check_backend("cpu", &["threads", "pin"])
            .expect("both are known");
        config.check_backend("gpu", &[]).expect("nothing is said of it");
        let error = config.check_backend("cpu", &["threads"]).expect_err("unknown");
        assert!(
            error
                .to_string()
                .contains("backend.cpu.pin is not a setting; there are threads"),
            "{error}"
        );
        assert_eq!(config.backend_text("cpu", "pin").expect("a text"), Some("x"));
        assert_eq!(config.backend_text("gpu", "pin").expect("absent"), None);
        let error = config.backend_text("cpu", "threads").expect_err("a number");
        assert!(error.to_string().contains("backend.cpu.threads"), "{error}");
    }
}
