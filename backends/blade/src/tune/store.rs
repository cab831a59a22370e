//! The file that stores the measured variants of a device.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

use meganeura_core::files::{self, SealLine, seal, sha256, unseal};
use meganeura_core::{Error, Result};
use ron::ser::PrettyConfig;
use serde::{Deserialize, Serialize};

use meganeura_shaders::Schedule;

/// Beginning of every file, before the version.
const MAGIC: &str = "// meganeura tuned kernels, format ";
/// Version of the file format.
const VERSION: u32 = 3;
/// Maximum size of a file in bytes.
const MAX_BYTES: u64 = 1 << 24;
/// Maximum number of characters of the device's name in the file name.
const MAX_LETTERS: usize = 40;

/// The conditions under which measurements are valid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    /// Name of the device.
    pub(crate) device: String,
    /// Name and version of the driver.
    pub(crate) driver: String,
    /// Version of this crate.
    pub(crate) backend: String,
    /// Settings that determine the available variants.
    pub(crate) settings: String,
}

impl Key {
    /// Returns the file name for the device and the settings of the key. It does not contain the versions of the
    /// driver and the backend: if they change, the file becomes stale and is replaced.
    pub(crate) fn file_name(&self) -> String {
        let letter = |c: char| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        };
        let name: String = self.device.chars().map(letter).take(MAX_LETTERS).collect();
        let hash = sha256([self.device.as_bytes(), b"\n", self.settings.as_bytes()]);
        format!("blade-{name}-{}.ron", &hash[..8])
    }

    /// Describes the difference between this key and the key of a file, if they differ.
    fn difference(&self, file: &Key) -> Option<String> {
        let parts = [
            ("device", &file.device, &self.device),
            ("driver", &file.driver, &self.driver),
            ("version of the backend", &file.backend, &self.backend),
            ("settings", &file.settings, &self.settings),
        ];
        let other = parts.into_iter().find(|(_, theirs, ours)| theirs != ours);
        other.map(|(what, theirs, ours)| format!("a different {what} ('{theirs}', now '{ours}')"))
    }
}

/// The measurement of a class of calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// Sizes of the measured call, in the order of the class's name.
    pub(crate) sizes: Vec<usize>,
    /// Name of the default variant at the time of the measurement.
    pub(crate) usual: String,
    /// Name of the variant that was faster than the default one, if any.
    pub(crate) winner: Option<String>,
    /// Speedup: the time of the default variant divided by the time of the winner. It is 1 without a winner.
    pub(crate) gain: f64,
    /// Hashes of the kernels of calls whose winner was compared with the default variant.
    pub(crate) qualified: BTreeSet<String>,
}

/// All measurements on a device, as stored in its file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DeviceMeasurements {
    /// Time of the last measurement, in seconds since 1970.
    pub(crate) at: u64,
    /// Measurements, by name of the class.
    pub(crate) entries: BTreeMap<String, Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    key: Key,
    at: u64,
    entries: BTreeMap<String, Entry>,
}

impl DeviceMeasurements {
    /// Reads a file. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// The reason why the file cannot be used, with a remedy.
    pub(super) fn read(path: &Path, key: &Key) -> std::result::Result<Option<Self>, String> {
        let unusable = |why: &str| {
            format!(
                "{} {why}; the default schedules are used; `meganeura tune` measures again, `meganeura tune --forget` deletes the file",
                path.display()
            )
        };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unusable(&format!("cannot be read ({error})"))),
        };
        let mut text = String::new();
        // The number of bytes is limited, because special files such as devices can be endless.
        if let Err(error) = file.take(MAX_BYTES).read_to_string(&mut text) {
            return Err(unusable(&format!("cannot be read ({error})")));
        }
        let body = match unseal(MAGIC, VERSION, &text) {
            SealLine::Whole(body) => body,
            SealLine::Foreign => return Err(unusable("is not a file of tuned kernels")),
            SealLine::Damaged => {
                return Err(unusable("is damaged or was edited: its checksum does not match"));
            }
            SealLine::OtherVersion(other) => {
                return Err(unusable(&format!(
                    "has format version {other}, this program reads {VERSION}"
                )));
            }
        };
        let contents: Contents = ron::from_str(body).map_err(|e| unusable(&format!("has unexpected contents: {e}")))?;
        match key.difference(&contents.key) {
            Some(other) => Err(unusable(&format!("is for {other}"))),
            None => Ok(Some(DeviceMeasurements {
                at: contents.at,
                entries: contents.entries,
            })),
        }
    }

    /// Writes a file, and creates its folder.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be written. An existing file is then unchanged.
    pub(super) fn write(&self, path: &Path, key: &Key) -> Result<()> {
        let folder = files::folder_of(path);
        fs::create_dir_all(&folder).map_err(|error| {
            Error::file(
                &folder,
                format!("cannot be created: {error}"),
                "check who may write there, or set backend.blade.tune_folder",
            )
        })?;
        let contents = Contents {
            key: key.clone(),
            at: self.at,
            entries: self.entries.clone(),
        };
        let pretty = PrettyConfig::new().depth_limit(2).new_line("\n").indentor("  ");
        let body = ron::ser::to_string_pretty(&contents, pretty)
            .map_err(|e| Error::file(path, format!("cannot be written as text: {e}"), "please report this"))?;
        let text = seal(MAGIC, VERSION, &(body + "\n"));
        files::write_atomically(path, |w| w.write_all(text.as_bytes()))
    }

    /// Returns the stored variant for a class, if it differs from the default one.
    pub(super) fn winner(&self, class: &str) -> Option<&str> {
        self.entries.get(class)?.winner.as_deref()
    }

    /// Iterates over the classes whose stored variant differs from the default one.
    pub(super) fn winners(&self) -> impl Iterator<Item = (&str, &str)> {
        let entries = self.entries.iter();
        entries.filter_map(|(class, entry)| Some((class.as_str(), entry.winner.as_deref()?)))
    }

    /// Returns the class and the variant of each entry whose variant does not exist in this version.
    pub(super) fn unknown(&self) -> Vec<(String, String)> {
        let unknown = self
            .winners()
            .filter(|(_, variant)| variant.parse::<Schedule>().is_err());
        unknown
            .map(|(class, variant)| (class.to_owned(), variant.to_owned()))
            .collect()
    }

    /// Returns the date of the last measurement, in UTC.
    pub(super) fn date(&self) -> String {
        let [year, month, day] = date_of((self.at / 86_400) as i64);
        format!("{year:04}-{month:02}-{day:02}")
    }
}

/// Returns the year, month and day of a number of days since 1970, in the Gregorian calendar.
/// Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn date_of(days: i64) -> [i64; 3] {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    // Months are counted from March.
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    [year + era * 400 + i64::from(month <= 2), month, day]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key {
            device: "Card 7 (x)".into(),
            driver: "driver 1.2".into(),
            backend: "0.1.0".into(),
            settings: "usual".into(),
        }
    }

    fn stored() -> DeviceMeasurements {
        let entry = |winner: Option<&str>| Entry {
            sizes: vec![1, 64, 768, 768],
            usual: "matmul_tiled.v2 each=8 split_k=1".into(),
            winner: winner.map(str::to_owned),
            gain: 1.25,
            qualified: ["5c1f".to_owned()].into(),
        };
        DeviceMeasurements {
            at: 1_795_000_000,
            entries: [
                ("a".to_owned(), entry(Some("matmul_tiled.v2 each=4 split_k=1"))),
                ("b".to_owned(), entry(None)),
                ("c".to_owned(), entry(Some("matmul_tiled.v1 each=4 split_k=1"))),
            ]
            .into(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new/deep").join(key().file_name());
        assert_eq!(DeviceMeasurements::read(&path, &key()), Ok(None));
        stored().write(&path, &key()).expect("writes");
        let read = DeviceMeasurements::read(&path, &key())
            .expect("reads")
            .expect("is there");
        assert_eq!(read, stored());
        assert_eq!(read.winner("a"), Some("matmul_tiled.v2 each=4 split_k=1"));
        assert_eq!((read.winner("b"), read.winner("z")), (None, None));
        assert_eq!(
            read.unknown(),
            [("c".to_owned(), "matmul_tiled.v1 each=4 split_k=1".to_owned())]
        );
    }

    #[test]
    fn files_that_cannot_be_used_say_why() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(key().file_name());
        stored().write(&path, &key()).expect("writes");
        let whole = fs::read_to_string(&path).expect("it is there");
        let read = |key: &Key| DeviceMeasurements::read(&path, key).expect_err("it is not for this");
        let driver = Key {
            driver: "driver 2".into(),
            ..key()
        };
        let why = read(&driver);
        assert!(
            why.contains("a different driver ('driver 1.2', now 'driver 2')"),
            "{why}"
        );
        assert!(why.contains("meganeura tune --forget"), "{why}");
        let backend = Key {
            backend: "0.2.0".into(),
            ..key()
        };
        assert!(read(&backend).contains("a different version of the backend"));
        for (text, expected) in [
            (whole.replace("1.25", "9.99"), "is damaged"),
            (whole[..whole.len() / 2].to_owned(), "is damaged"),
            (String::new(), "is damaged"),
            ("something else\n".to_owned(), "is not a file of tuned kernels"),
            (whole.replace("format 3", "format 77"), "has format version 77"),
            (seal(MAGIC, VERSION, "(key: 3)"), "has unexpected contents"),
        ] {
            fs::write(&path, &text).expect("writes");
            let why = read(&key());
            assert!(why.contains(expected), "{text}: {why}");
        }
        fs::write(&path, [0xff, 0xfe]).expect("writes");
        assert!(read(&key()).contains("cannot be read"));
        // A folder has the path of the file.
        fs::remove_file(&path).expect("it is there");
        fs::create_dir(&path).expect("makes");
        assert!(read(&key()).contains("cannot be read"));
    }

    #[test]
    fn devices_and_settings_have_files_of_their_own() {
        let name = key().file_name();
        assert!(
            name.starts_with("blade-card-7--x--") && name.ends_with(".ron"),
            "{name}"
        );
        let settings = Key {
            settings: "others".into(),
            ..key()
        };
        assert_ne!(settings.file_name(), name);
        let driver = Key {
            driver: "driver 2".into(),
            ..key()
        };
        assert_eq!(
            driver.file_name(),
            name,
            "a new driver's measurements replace the old one's"
        );
    }

    #[test]
    fn days_have_dates() {
        assert_eq!(date_of(0), [1970, 1, 1]);
        assert_eq!(date_of(11_016), [2000, 2, 29]);
        assert_eq!(date_of(20_779), [2026, 11, 22]);
        assert_eq!(date_of(-1), [1969, 12, 31]);
    }
}
