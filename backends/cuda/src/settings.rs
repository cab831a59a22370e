//! The settings of the configuration, `backend.cuda`, as values.

use std::path::PathBuf;

use meganeura_core::config::Config;
use meganeura_core::{Error, Result, files};
use meganeura_shaders::host::Wanted;

use crate::gpu::NAME;
use crate::graph::Order;

/// The setting that says whether tensor cores are used.
const TENSOR_CORES: &str = "tensor_cores";
/// The setting that says from how many workgroups on a matmul uses them.
const MIN_WORKGROUPS: &str = "coop_min_workgroups";
/// The setting that says how many workgroups of large blocks run at a time.
const MAX_RESIDENT: &str = "coop_max_resident_workgroups";
/// The setting that says in what results are kept that only cooperative matrices read.
const INTERMEDIATES: &str = "coop_intermediates";
/// The setting that says whether launches begin before those that they depend on have ended.
const PROGRAMMATIC: &str = "programmatic_launch";
/// The setting that says in which order the launches of a step are.
const GRAPH: &str = "graph";
/// The setting that says whether small launches that do not depend on each other become one kernel.
const MERGE: &str = "merge_launches";
/// The setting that says whether large matmuls are given to cuBLASLt.
const CUBLASLT: &str = "cublaslt";
/// The setting that says from how many operations on a matmul is large.
const CUBLASLT_MIN_FLOPS: &str = "cublaslt_min_flops";
/// The setting that says whether compiled kernels are kept on the disk.
const CACHE: &str = "kernel_cache";
/// The setting that names the folder that they are kept in.
const FOLDER: &str = "kernel_cache_folder";

/// All of them.
const NAMES: [&str; 11] = [
    TENSOR_CORES,
    MIN_WORKGROUPS,
    MAX_RESIDENT,
    INTERMEDIATES,
    PROGRAMMATIC,
    GRAPH,
    MERGE,
    CUBLASLT,
    CUBLASLT_MIN_FLOPS,
    CACHE,
    FOLDER,
];

/// What the settings say.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Settings {
    /// Of tensor cores.
    pub(crate) wanted: Wanted,
    /// Whether launches begin early, where the card has it.
    pub(crate) programmatic: bool,
    /// In which order the launches of a step are.
    pub(crate) order: Order,
    /// Whether small launches become one kernel.
    pub(crate) merge: bool,
    /// Whether large matmuls are given to cuBLASLt.
    pub(crate) cublaslt: bool,
    /// Operations from which on they are, if it is not the usual number.
    pub(crate) cublaslt_min_flops: Option<usize>,
    /// The folder of compiled kernels, if they are kept.
    pub(crate) folder: Option<PathBuf>,
}

impl Settings {
    /// The settings of a configuration.
    ///
    /// # Errors
    /// One that is unknown, out of its range, or of another type.
    pub(crate) fn of(config: &Config) -> Result<Settings> {
        config.check_backend(NAME, &NAMES)?;
        let groups = |key: &str, zero: &str| {
            let groups = config.backend_size(NAME, key)?.map(|groups| {
                u32::try_from(groups).map_err(|_| Error::Config {
                    origin: config.origin(),
                    message: format!("backend.{NAME}.{key} is {groups}; use at most 4294967295, or 0 for {zero}"),
                })
            });
            groups.transpose()
        };
        Ok(Settings {
            wanted: Wanted {
                tile: (config.backend_choice(NAME, TENSOR_CORES, ["on", "off"])? == "off").then_some(0),
                min_workgroups: groups(MIN_WORKGROUPS, "every matmul")?,
                max_resident_workgroups: groups(MAX_RESIDENT, "an unknown number")?,
                wide_results: config.backend_choice(NAME, INTERMEDIATES, ["f16", "f32"])? == "f32",
            },
            programmatic: config.backend_choice(NAME, PROGRAMMATIC, ["on", "off"])? == "on",
            order: match config.backend_choice(NAME, GRAPH, ["auto", "branches", "chain"])? {
                "branches" => Order::Branches,
                "chain" => Order::Chain,
                _ => Order::Measured,
            },
            merge: config.backend_choice(NAME, MERGE, ["on", "off"])? == "on",
            cublaslt: config.backend_choice(NAME, CUBLASLT, ["on", "off"])? == "on",
            cublaslt_min_flops: config.backend_size(NAME, CUBLASLT_MIN_FLOPS)?,
            folder: folder(config)?,
        })
    }
}

/// The folder of compiled kernels, if they are kept.
fn folder(config: &Config) -> Result<Option<PathBuf>> {
    if config.backend_choice(NAME, CACHE, ["on", "off"])? == "off" {
        return Ok(None);
    }
    let folder = config.backend_path(NAME, FOLDER)?;
    Ok(folder.or_else(|| Some(files::cache_folder()?.join("cuda"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(settings: &str) -> Result<Settings, String> {
        let config: Config = toml::from_str(&format!("[backend.cuda]\n{settings}")).expect("valid");
        Settings::of(&config).map_err(|e| e.to_string())
    }

    #[test]
    fn settings_are_read_and_wrong_ones_are_errors() {
        let usual = read("").expect("nothing is set");
        assert!(usual.programmatic && usual.wanted == Wanted::default() && usual.order == Order::Measured);
        let all = "tensor_cores = 'off'\nprogrammatic_launch = 'off'\nkernel_cache = 'off'\ncoop_min_workgroups = 7\n\
                   coop_intermediates = 'f32'\ngraph = 'chain'\ncublaslt_min_flops = 9";
        let all = read(all).expect("all are known");
        assert_eq!((all.wanted.tile, all.wanted.min_workgroups), (Some(0), Some(7)));
        assert!(all.wanted.wide_results && !all.programmatic && all.folder.is_none());
        assert_eq!((all.order, all.cublaslt_min_flops), (Order::Chain, Some(9)));
        let folder = read("kernel_cache_folder = 'there'").expect("a folder").folder;
        assert_eq!(folder, Some("there".into()));
        for (settings, words) in [
            ("tensor_core = 'on'", "tensor_core is no setting"),
            ("tensor_cores = 'maybe'", "use 'on' or 'off'"),
            ("graph = 'tree'", "use 'auto', 'branches' or 'chain'"),
            ("coop_min_workgroups = 5000000000", "at most 4294967295"),
        ] {
            let error = read(settings).expect_err(settings);
            assert!(error.contains(words), "{error}");
        }
    }
}
