//! Settings of the configuration section `backend.blade`.

use meganeura_core::config::Config;
use meganeura_core::{Error, Result};

use crate::gpu::NAME;
use meganeura_shaders::host::CoopSettings;

/// Name of the setting for the tile size of cooperative matrices.
const TILE: &str = "coop_tile";
/// Name of the setting for the minimum number of workgroups of a matmul that uses cooperative matrices.
const MIN_WORKGROUPS: &str = "coop_min_workgroups";
/// Name of the setting for the number of workgroups that run at the same time.
const MAX_RESIDENT: &str = "coop_max_resident_workgroups";
/// Name of the setting for the dtype of results that only cooperative matrices read.
const INTERMEDIATES: &str = "coop_intermediates";
/// Name of the setting that enables the measurement of pass times.
const TIMING: &str = "timing";

/// Names of all settings, except the settings of tuning.
const NAMES: [&str; 5] = [TILE, MIN_WORKGROUPS, MAX_RESIDENT, INTERMEDIATES, TIMING];
/// Former names of settings, each with the current name.
const RENAMED: [(&str, &str); 2] = [("coop_at_once", MAX_RESIDENT), ("coop_between", INTERMEDIATES)];

/// Checks the names of all settings of the backend. Valid ones are those of this file, and `others`.
///
/// # Errors
/// A setting is unknown, or has its former name.
pub(crate) fn check(config: &Config, others: &[&str]) -> Result<()> {
    let given = config.backend.get(NAME);
    let is_given = |key: &str| given.is_some_and(|settings| settings.contains_key(key));
    if let Some((old, new)) = RENAMED.into_iter().find(|(old, _)| is_given(old)) {
        return Err(Error::Config {
            origin: config.origin(),
            message: format!("backend.{NAME}.{old} is now called backend.{NAME}.{new}; rename it"),
        });
    }
    config.check_backend(NAME, &[&NAMES[..], others].concat())
}

/// Reads the settings of cooperative matrices.
///
/// # Errors
/// A setting is out of range, or of another type.
pub(crate) fn wanted(config: &Config) -> Result<CoopSettings> {
    let wrong = |message| Error::Config {
        origin: config.origin(),
        message,
    };
    let tile = config.backend_size(NAME, TILE)?.map(|tile| {
        let known = u32::try_from(tile).ok().filter(|tile| [0, 8, 16].contains(tile));
        known.ok_or_else(|| {
            let choices = "use 8 or 16, or 0 for no cooperative matrices";
            wrong(format!("backend.{NAME}.{TILE}: unsupported value {tile}; {choices}"))
        })
    });
    let groups = |key: &str, zero: &str| {
        let groups = config.backend_size(NAME, key)?.map(|groups| {
            let known = u32::try_from(groups).ok();
            known.ok_or_else(|| {
                let choices = format!("use at most 4294967295, or 0 for {zero}");
                wrong(format!("backend.{NAME}.{key}: value {groups} is too large; {choices}"))
            })
        });
        groups.transpose()
    };
    Ok(CoopSettings {
        tile: tile.transpose()?,
        min_workgroups: groups(MIN_WORKGROUPS, "every matmul")?,
        max_resident_workgroups: groups(MAX_RESIDENT, "an unknown number")?,
        wide_results: config.backend_choice(NAME, INTERMEDIATES, ["f16", "f32"])? == "f32",
        wide_rows: false,
    })
}

/// Returns `true` if the times of passes can be measured. blade-graphics then clears a thousand timestamps in every
/// submission.
///
/// # Errors
/// The setting is not 'on' or 'off'.
pub(crate) fn timed(config: &Config) -> Result<bool> {
    Ok(config.backend_choice(NAME, TIMING, ["on", "off"])? == "on")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_names_of_settings_are_errors_that_name_the_new_ones() {
        let checked = |settings: &str| {
            let config: Config = toml::from_str(&format!("[backend.blade]\n{settings}")).expect("valid");
            check(&config, &["tune"]).map_err(|e| e.to_string())
        };
        checked("coop_max_resident_workgroups = 8\ncoop_intermediates = 'f32'\ntune = 'off'").expect("known");
        for (old, new) in [
            ("coop_at_once = 8", "backend.blade.coop_max_resident_workgroups"),
            ("coop_between = 'f32'", "backend.blade.coop_intermediates"),
        ] {
            let error = checked(old).expect_err("an old name");
            assert!(error.contains(&old[..12]) && error.contains(new), "{error}");
        }
        let error = checked("coop_unknown = 1").expect_err("unknown");
        assert!(error.contains("coop_unknown is not a setting"), "{error}");
    }
}
