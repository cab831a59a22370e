//! The settings of the configuration, `backend.blade` and what belongs to it, as values.

use meganeura_core::config::Config;
use meganeura_core::{Error, Result};

use crate::gpu::NAME;

/// The setting that chooses the tile of cooperative matrices.
const TILE: &str = "coop_tile";
/// The setting that says from how many workgroups on a product uses them.
const MIN_WORKGROUPS: &str = "coop_min_workgroups";
/// The setting that says how many workgroups run at a time.
const MAX_RESIDENT: &str = "coop_max_resident_workgroups";
/// The setting that says in what results are kept that only cooperative matrices read.
const INTERMEDIATES: &str = "coop_intermediates";
/// The setting that says whether times of passes can be measured.
const TIMING: &str = "timing";

/// All of them. Those of tuning are named there.
pub(crate) const NAMES: [&str; 5] = [TILE, MIN_WORKGROUPS, MAX_RESIDENT, INTERMEDIATES, TIMING];

/// What settings say of cooperative matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wanted {
    /// The tile; 0 for none.
    pub(crate) tile: Option<u32>,
    /// [`meganeura_shaders::coop::CoopConfig::min_workgroups`].
    pub(crate) min_workgroups: Option<u32>,
    /// [`meganeura_shaders::coop::CoopConfig::max_resident_workgroups`].
    pub(crate) max_resident_workgroups: Option<u32>,
    /// Whether results that they alone read stay in `f32`; see [`f16_storage`](crate::f16_storage).
    pub(crate) wide_results: bool,
}

/// The settings of cooperative matrices.
///
/// # Errors
/// One that is out of its range, or of another type.
pub(crate) fn wanted(config: &Config) -> Result<Wanted> {
    let wrong = |message| Error::Config {
        origin: config.origin(),
        message,
    };
    let tile = config.backend_size(NAME, TILE)?.map(|tile| {
        let known = u32::try_from(tile).ok().filter(|tile| [0, 8, 16].contains(tile));
        known.ok_or_else(|| {
            let choices = "use 8 or 16, or 0 for no cooperative matrices";
            wrong(format!("backend.{NAME}.{TILE} is {tile}; {choices}"))
        })
    });
    let groups = |key: &str, zero: &str| {
        let groups = config.backend_size(NAME, key)?.map(|groups| {
            let known = u32::try_from(groups).ok();
            known.ok_or_else(|| {
                let choices = format!("use at most 4294967295, or 0 for {zero}");
                wrong(format!("backend.{NAME}.{key} is {groups}; {choices}"))
            })
        });
        groups.transpose()
    };
    Ok(Wanted {
        tile: tile.transpose()?,
        min_workgroups: groups(MIN_WORKGROUPS, "every product")?,
        max_resident_workgroups: groups(MAX_RESIDENT, "an unknown number")?,
        wide_results: choice(config, INTERMEDIATES, ["f16", "f32"])? == "f32",
    })
}

/// A setting that is one of two words, of which the first is meant where it is not given.
///
/// # Errors
/// Another word, or no text.
pub(crate) fn choice(config: &Config, key: &str, words: [&'static str; 2]) -> Result<&'static str> {
    let [usual, other] = words;
    match config.backend_text(NAME, key)? {
        None => Ok(usual),
        Some(text) if text == usual => Ok(usual),
        Some(text) if text == other => Ok(other),
        Some(text) => Err(Error::Config {
            origin: config.origin(),
            message: format!("backend.{NAME}.{key} is '{text}'; use '{usual}' or '{other}'"),
        }),
    }
}

/// Whether times of passes can be measured. Every submission has to clear a thousand of them, as blade-graphics decides.
///
/// # Errors
/// Another word than 'on' and 'off', or no text.
pub(crate) fn timed(config: &Config) -> Result<bool> {
    Ok(choice(config, TIMING, ["on", "off"])? == "on")
}
