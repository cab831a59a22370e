//! Selection of kernel variants by measurement.
//!
//! By default, fixed limits select variants (`shaders/src/variants.rs`).
//! [`Tune::tune`](meganeura_core::backend::Tune::tune) measures all variants of the calls of some plans. It first
//! compares the results of each variant with the results of the default one ([`trial`]), then runs them alternately
//! on the device ([`comparison`]), and stores the winners in a file ([`store`]). A device reads that file when it is
//! opened, and its plans use the stored variants. Before a call uses a variant, the variant is compared once with the
//! default one for this call ([`validate`]). If a variant is wrong, or the driver rejects it, it is removed and the
//! default variant is used.

mod comparison;
mod operands;
mod store;
#[cfg(test)]
mod tests;
mod trial;
mod tuner;
pub(crate) mod validate;
#[cfg(test)]
mod variant_tests;

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use meganeura_core::config::Config;
use meganeura_core::files::{self, sha256};
use meganeura_core::precision::Precision;
use meganeura_core::{Error, Result};

use crate::gpu::NAME;
use meganeura_shaders::Schedule;
use meganeura_shaders::{Class, ScheduleChooser};
use store::DeviceMeasurements;
pub(crate) use store::{Entry, Key};

/// Name of the setting that enables stored variants.
pub(crate) const TUNE: &str = "tune";
/// Name of the setting for the folder of stored variants.
pub(crate) const FOLDER: &str = "tune_folder";

/// Returns the folder of stored variants, unless they are disabled.
///
/// # Errors
/// A setting is invalid.
pub(crate) fn folder(config: &Config) -> Result<Option<PathBuf>> {
    if config.backend_choice(NAME, TUNE, ["stored", "off"])? == "off" {
        return Ok(None);
    }
    let folder = config.backend_path(NAME, FOLDER)?;
    Ok(folder.or_else(|| Some(files::cache_folder()?.join("tuned"))))
}

/// The measured variants of a device.
pub(crate) struct Tuning {
    /// File of stored variants; `None` if variants are not stored.
    path: Option<PathBuf>,
    key: Key,
    stored: Mutex<DeviceMeasurements>,
}

impl Tuning {
    /// Creates the tuning of a device that neither measures nor stores variants.
    pub(crate) fn none() -> Self {
        Tuning {
            path: None,
            key: Key::default(),
            stored: Mutex::default(),
        }
    }

    /// Reads the stored variants of a device from a folder. If the file is unusable, logs a warning and ignores it.
    pub(crate) fn open(folder: Option<&Path>, key: Key) -> Self {
        let path = folder.map(|folder| folder.join(key.file_name()));
        let read = path
            .as_deref()
            .map_or_else(|| Ok(None), |path| DeviceMeasurements::read(path, &key));
        let stored = match read {
            Ok(stored) => stored.unwrap_or_default(),
            Err(why) => {
                warn_once(&why);
                DeviceMeasurements::default()
            }
        };
        let tuning = Tuning {
            path,
            key,
            stored: Mutex::new(stored),
        };
        let unknown = tuning.lock().unknown();
        for (class, variant) in unknown {
            tuning.drop_schedule(&class, &variant, "this version has no such variant");
        }
        tuning
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, DeviceMeasurements> {
        // A panic cannot leave the list half changed.
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a text that identifies the stored variants, or `None` if all calls use the default variants.
    pub(crate) fn fingerprint(&self) -> Option<String> {
        let stored = self.lock();
        let variants: BTreeSet<String> = stored
            .winners()
            .map(|(class, variant)| format!("{class}: {variant}\n"))
            .collect();
        if variants.is_empty() {
            None
        } else {
            Some(sha256(variants.iter().map(|variant| variant.as_bytes()))[..16].to_owned())
        }
    }

    /// Returns the stored variants for plans with this precision, or `None` if all calls use the default variants.
    pub(crate) fn choices(&self, precision: Precision) -> Option<StoredChoices<'_>> {
        let any = self.lock().winners().next().is_some();
        any.then_some(StoredChoices {
            tuning: self,
            precision,
        })
    }

    /// Stops using the variant of a class, and removes it from the file.
    pub(crate) fn refuse(&self, class: &Class, why: &Error) {
        let variant = self.lock().winner(&class.name).map(str::to_owned);
        if let Some(variant) = variant {
            self.drop_schedule(&class.name, &variant, &why.to_string());
        }
    }

    fn drop_schedule(&self, class: &str, variant: &str, why: &str) {
        warn_once(&format!(
            "{}: the stored variant '{variant}' for {class} is no longer used: {why}; the default variant is used \
             until `meganeura tune` runs again",
            self.key.device
        ));
        self.lock().entries.remove(class);
        self.change_file(|stored| {
            if stored.winner(class) == Some(variant) {
                stored.entries.remove(class);
            }
        });
    }

    /// Returns `true` if the stored variant of a class was already compared with the default one for a call with
    /// these kernels.
    pub(crate) fn is_qualified(&self, class: &Class, kernels: &str) -> bool {
        let stored = self.lock();
        let entry = stored.entries.get(&class.name);
        entry.is_some_and(|entry| entry.qualified.contains(kernels))
    }

    /// Records that the stored variant of a class is correct for a call with these kernels.
    pub(crate) fn qualified(&self, class: &Class, kernels: &str) {
        let add = |stored: &mut DeviceMeasurements, variant: Option<&str>| {
            let entry = stored.entries.get_mut(&class.name);
            if let Some(entry) = entry.filter(|entry| variant.is_none() || entry.winner.as_deref() == variant) {
                entry.qualified.insert(kernels.to_owned());
            }
        };
        add(&mut self.lock(), None);
        let variant = self.lock().winner(&class.name).map(str::to_owned);
        self.change_file(|stored| add(stored, variant.as_deref()));
    }

    /// Applies a change to the file, which another process may have written meanwhile. If the write fails, the file
    /// is unchanged.
    fn change_file(&self, change: impl FnOnce(&mut DeviceMeasurements)) {
        let Some(path) = &self.path else { return };
        let Ok(Some(there)) = DeviceMeasurements::read(path, &self.key) else {
            return;
        };
        let mut changed = there.clone();
        change(&mut changed);
        if changed != there
            && let Err(error) = changed.write(path, &self.key)
        {
            log::debug!("the file of tuned kernels is not updated: {error}");
        }
    }

    /// Stores a measurement in this process and in the file.
    ///
    /// # Errors
    /// The file or its folder cannot be written, or there is no file.
    pub(crate) fn keep(&self, class: &str, entry: Entry) -> Result<()> {
        let path = self.file()?;
        // Another process may have measured other classes meanwhile.
        let mut there = DeviceMeasurements::read(path, &self.key)
            .ok()
            .flatten()
            .unwrap_or_default();
        there.entries.insert(class.to_owned(), entry);
        there.at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        there.write(path, &self.key)?;
        *self.lock() = there;
        Ok(())
    }

    /// Deletes all measurements. Returns `true` if there was a file.
    ///
    /// # Errors
    /// The file cannot be deleted.
    pub(crate) fn forget(&self) -> Result<bool> {
        let path = self.file()?;
        *self.lock() = DeviceMeasurements::default();
        match std::fs::remove_file(path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::file(
                path,
                format!("cannot be deleted: {error}"),
                "check who may write to its folder",
            )),
        }
    }

    /// Returns the path of the file of stored variants.
    ///
    /// # Errors
    /// The settings disable the file, or no folder is available.
    pub(crate) fn file(&self) -> Result<&Path> {
        self.path.as_deref().ok_or_else(|| {
            Error::misuse(
                "results of tuning would be neither stored nor used",
                format!(
                    "let backend.{NAME}.{TUNE} be 'stored', and set backend.{NAME}.{FOLDER} where neither HOME nor \
                     XDG_CACHE_HOME is set"
                ),
            )
        })
    }
}

/// Describes the stored variants of a device.
pub(crate) fn describe(folder: Option<&Path>, key: &Key) -> String {
    let Some(folder) = folder else {
        return "not used".into();
    };
    let path = folder.join(key.file_name());
    match DeviceMeasurements::read(&path, key) {
        Ok(None) => "none; `meganeura tune` measures".into(),
        Ok(Some(stored)) => format!(
            "{} of {} classes have another schedule than the default one, of {}, in {}",
            stored.winners().count(),
            stored.entries.len(),
            stored.date(),
            path.display()
        ),
        Err(why) => why,
    }
}

/// The stored variants for the calls of a plan.
pub(crate) struct StoredChoices<'a> {
    tuning: &'a Tuning,
    precision: Precision,
}

impl ScheduleChooser for StoredChoices<'_> {
    fn precision(&self) -> Precision {
        self.precision
    }

    fn choose(&self, class: &Class, _: &dyn Fn() -> Vec<Schedule>) -> Option<Schedule> {
        self.tuning.lock().winner(&class.name)?.parse().ok()
    }

    fn missing(&self, class: &Class, schedule: &Schedule) {
        // A call of the class with another number of rows, or one that is computed in place, may have fewer variants.
        log::info!(
            "{}: no schedule '{schedule}' for this call of {class}; the default schedule is used",
            self.tuning.key.device
        );
    }
}

/// Logs a warning only once per text, because devices are opened and plans are compiled repeatedly.
fn warn_once(text: &str) {
    static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.get_or_insert_default().insert(text.to_owned()) {
        log::warn!("{text}");
    }
}
