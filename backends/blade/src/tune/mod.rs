//! Choosing variants of calls by measuring them.
//!
//! Commonly limits in the program choose (`kernels/variants.rs`). [`Tune::tune`](meganeura_core::backend::Tune::tune) has all
//! variants of the calls of some plans take turns on the device at hand ([`comparison`]), after each was compared with the usual
//! one ([`trial`]), and keeps what was found in a file ([`store`]). A device reads that file when it is opened, and its plans
//! get the variants that were measured to be faster, once each was compared for the call at hand ([`validate`]). What is wrong, or
//! the driver no longer takes, is dropped, and the default variant is used.

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
use store::Stored;
pub(crate) use store::{Entry, Key};

/// The setting that says whether stored variants are used.
pub(crate) const TUNE: &str = "tune";
/// The setting that names the folder that they are stored in.
pub(crate) const FOLDER: &str = "tune_folder";

/// The folder of stored variants, unless they are not to be used.
///
/// # Errors
/// A setting that is none.
pub(crate) fn folder(config: &Config) -> Result<Option<PathBuf>> {
    if config.backend_choice(NAME, TUNE, ["stored", "off"])? == "off" {
        return Ok(None);
    }
    let folder = config.backend_path(NAME, FOLDER)?;
    Ok(folder.or_else(|| Some(files::cache_folder()?.join("tuned"))))
}

/// What a device knows of variants that were measured on it.
pub(crate) struct Tuning {
    /// Where it is stored; `None` where nothing is.
    path: Option<PathBuf>,
    key: Key,
    stored: Mutex<Stored>,
}

impl Tuning {
    /// A device of which nothing is known, and nothing will be stored.
    pub(crate) fn none() -> Self {
        Tuning {
            path: None,
            key: Key::default(),
            stored: Mutex::default(),
        }
    }

    /// What is stored in a folder for a device. What cannot be used is passed over with a warning.
    pub(crate) fn open(folder: Option<&Path>, key: Key) -> Self {
        let path = folder.map(|folder| folder.join(key.file_name()));
        let read = path
            .as_deref()
            .map_or_else(|| Ok(None), |path| Stored::read(path, &key));
        let stored = match read {
            Ok(stored) => stored.unwrap_or_default(),
            Err(why) => {
                warn_once(&why);
                Stored::default()
            }
        };
        let tuning = Tuning {
            path,
            key,
            stored: Mutex::new(stored),
        };
        let unknown = tuning.lock().unknown();
        for (class, variant) in unknown {
            tuning.drop_schedule(&class, &variant, "there is no such variant in this version");
        }
        tuning
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Stored> {
        // A panic cannot leave the list half changed.
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What tells its variants from others; `None` where all are the default ones.
    pub(crate) fn fingerprint(&self) -> Option<String> {
        let stored = self.lock();
        let variants: BTreeSet<String> = stored
            .winners()
            .map(|(class, variant)| format!("{class}: {variant}\n"))
            .collect();
        match variants.is_empty() {
            true => None,
            false => Some(sha256(variants.iter().map(|variant| variant.as_bytes()))[..16].to_owned()),
        }
    }

    /// The variants for the calls of plans of a precision; `None` where all are the default ones.
    pub(crate) fn choices(&self, precision: Precision) -> Option<Chosen<'_>> {
        let any = self.lock().winners().next().is_some();
        any.then_some(Chosen {
            tuning: self,
            precision,
        })
    }

    /// Does no longer use the variant of a class, and takes it out of the file.
    pub(crate) fn refuse(&self, class: &Class, why: &Error) {
        let variant = self.lock().winner(&class.name).map(str::to_owned);
        if let Some(variant) = variant {
            self.drop_schedule(&class.name, &variant, &why.to_string());
        }
    }

    fn drop_schedule(&self, class: &str, variant: &str, why: &str) {
        warn_once(&format!(
            "{}: the stored variant '{variant}' for {class} is not used any more: {why}; the default one is used instead, \
             `meganeura tune` finds the best again",
            self.key.device
        ));
        self.lock().entries.remove(class);
        self.change_file(|stored| {
            if stored.winner(class) == Some(variant) {
                stored.entries.remove(class);
            }
        });
    }

    /// Whether the stored variant of a class was compared with the default one for a call with these kernels.
    pub(crate) fn is_qualified(&self, class: &Class, kernels: &str) -> bool {
        let stored = self.lock();
        let entry = stored.entries.get(&class.name);
        entry.is_some_and(|entry| entry.qualified.contains(kernels))
    }

    /// Remembers that it was, and right.
    pub(crate) fn qualified(&self, class: &Class, kernels: &str) {
        let add = |stored: &mut Stored, variant: Option<&str>| {
            let entry = stored.entries.get_mut(&class.name);
            if let Some(entry) = entry.filter(|entry| variant.is_none() || entry.winner.as_deref() == variant) {
                entry.qualified.insert(kernels.to_owned());
            }
        };
        add(&mut self.lock(), None);
        let variant = self.lock().winner(&class.name).map(str::to_owned);
        self.change_file(|stored| add(stored, variant.as_deref()));
    }

    /// Changes the file, which another process may have written meanwhile. Where it cannot be written, it stays as it is.
    fn change_file(&self, change: impl FnOnce(&mut Stored)) {
        let Some(path) = &self.path else { return };
        let Ok(Some(there)) = Stored::read(path, &self.key) else {
            return;
        };
        let mut changed = there.clone();
        change(&mut changed);
        if changed != there
            && let Err(error) = changed.write(path, &self.key)
        {
            log::debug!("the file of tuned kernels stays as it is: {error}");
        }
    }

    /// Keeps what was measured, from now on and in the file.
    ///
    /// # Errors
    /// The file, or its folder, cannot be written; or there is none.
    pub(crate) fn keep(&self, class: &str, entry: Entry) -> Result<()> {
        let path = self.file()?;
        // Another process may have measured others meanwhile.
        let mut there = Stored::read(path, &self.key).ok().flatten().unwrap_or_default();
        there.entries.insert(class.to_owned(), entry);
        there.at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        there.write(path, &self.key)?;
        *self.lock() = there;
        Ok(())
    }

    /// Forgets all that was measured. Returns whether there was a file.
    ///
    /// # Errors
    /// It cannot be deleted.
    pub(crate) fn forget(&self) -> Result<bool> {
        let path = self.file()?;
        *self.lock() = Stored::default();
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

    /// The file that it is stored in.
    ///
    /// # Errors
    /// There is none, by the settings or because no folder is known.
    pub(crate) fn file(&self) -> Result<&Path> {
        self.path.as_deref().ok_or_else(|| {
            Error::misuse(
                "what is measured would not be stored or used",
                format!(
                    "let backend.{NAME}.{TUNE} be 'stored', and set backend.{NAME}.{FOLDER} where neither HOME nor \
                     XDG_CACHE_HOME is set"
                ),
            )
        })
    }
}

/// What is stored for a device, in words.
pub(crate) fn describe(folder: Option<&Path>, key: &Key) -> String {
    let Some(folder) = folder else {
        return "not used".into();
    };
    let path = folder.join(key.file_name());
    match Stored::read(&path, key) {
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

/// Variants for the calls of a plan, as they are stored.
pub(crate) struct Chosen<'a> {
    tuning: &'a Tuning,
    precision: Precision,
}

impl ScheduleChooser for Chosen<'_> {
    fn precision(&self) -> Precision {
        self.precision
    }

    fn choose(&self, class: &Class, _: &dyn Fn() -> Vec<Schedule>) -> Option<Schedule> {
        self.tuning.lock().winner(&class.name)?.parse().ok()
    }

    fn missing(&self, class: &Class, schedule: &Schedule) {
        // Another number of rows of the class may have fewer variants, as may a call computed in place.
        log::info!(
            "{}: there is no schedule '{schedule}' for this call of {class}; the default one is used",
            self.tuning.key.device
        );
    }
}

/// Warns, unless it was said before: devices are opened and plans made again and again.
fn warn_once(text: &str) {
    static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.get_or_insert_default().insert(text.to_owned()) {
        log::warn!("{text}");
    }
}
