//! Settings of the configuration section `backend.cuda`.

use std::path::PathBuf;

use meganeura_core::config::Config;
use meganeura_core::{Error, Result, files};
use meganeura_shaders::host::CoopSettings;

use crate::gpu::NAME;
use crate::graph::Order;

/// Name of the setting that enables tensor cores.
const TENSOR_CORES: &str = "tensor_cores";
/// Name of the setting for the minimum number of workgroups of a matmul that uses tensor cores.
const MIN_WORKGROUPS: &str = "coop_min_workgroups";
/// Name of the setting for the number of workgroups with large blocks that run at the same time.
const MAX_RESIDENT: &str = "coop_max_resident_workgroups";
/// Name of the setting for the dtype of results that only cooperative matrices read.
const INTERMEDIATES: &str = "coop_intermediates";
/// Name of the setting with which launches begin before their predecessors have ended.
const PROGRAMMATIC: &str = "programmatic_launch";
/// Name of the setting for the order of the launches of a step.
const GRAPH: &str = "graph";
/// Name of the setting that enables merging of small independent launches into one kernel.
const MERGE: &str = "merge_launches";
/// Name of the setting that enables cuBLASLt for large matmuls.
const CUBLASLT: &str = "cublaslt";
/// Name of the setting for the minimum number of operations of a large matmul.
const CUBLASLT_MIN_FLOPS: &str = "cublaslt_min_flops";
/// Name of the setting that enables cuDNN for large convolutions.
const CUDNN: &str = "cudnn";
/// Name of the setting for the minimum number of operations of a large convolution.
const CUDNN_MIN_FLOPS: &str = "cudnn_min_flops";
/// Name of the setting that enables the cache of compiled kernels on disk.
const CACHE: &str = "kernel_cache";
/// Name of the setting for the folder of the kernel cache.
const FOLDER: &str = "kernel_cache_folder";

/// Names of all settings.
const NAMES: [&str; 13] = [
    TENSOR_CORES,
    MIN_WORKGROUPS,
    MAX_RESIDENT,
    INTERMEDIATES,
    PROGRAMMATIC,
    GRAPH,
    MERGE,
    CUBLASLT,
    CUBLASLT_MIN_FLOPS,
    CUDNN,
    CUDNN_MIN_FLOPS,
    CACHE,
    FOLDER,
];

/// The values of all settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Settings {
    /// Requested settings of tensor cores.
    pub(crate) wanted: CoopSettings,
    /// True if launches begin before their predecessors have ended, on cards that support it.
    pub(crate) programmatic: bool,
    /// Order of the launches of a step.
    pub(crate) order: Order,
    /// True if small launches are merged into one kernel.
    pub(crate) merge: bool,
    /// True if large matmuls use cuBLASLt.
    pub(crate) cublaslt: bool,
    /// Minimum number of operations of a matmul that uses cuBLASLt; `None` for the default.
    pub(crate) cublaslt_min_flops: Option<usize>,
    /// True if large convolutions use cuDNN.
    pub(crate) cudnn: bool,
    /// Minimum number of operations of a convolution that uses cuDNN; `None` for the default.
    pub(crate) cudnn_min_flops: Option<usize>,
    /// Folder of the cache of compiled kernels; `None` if the cache is disabled.
    pub(crate) folder: Option<PathBuf>,
}

impl Settings {
    /// Reads the settings from a configuration.
    ///
    /// # Errors
    /// A setting is unknown, out of range, or of another type.
    pub(crate) fn of(config: &Config) -> Result<Settings> {
        config.check_backend(NAME, &NAMES)?;
        let groups = |key: &str, zero: &str| {
            let groups = config.backend_size(NAME, key)?.map(|groups| {
                u32::try_from(groups).map_err(|_| Error::Config {
                    origin: config.origin(),
                    message: format!(
                        "backend.{NAME}.{key}: value {groups} is too large; use at most 4294967295, or 0 \
                        for {zero}"
                    ),
                })
            });
            groups.transpose()
        };
        Ok(Settings {
            wanted: CoopSettings {
                tile: (config.backend_choice(NAME, TENSOR_CORES, ["on", "off"])? == "off").then_some(0),
                min_workgroups: groups(MIN_WORKGROUPS, "every matmul")?,
                max_resident_workgroups: groups(MAX_RESIDENT, "an unknown number")?,
                wide_results: config.backend_choice(NAME, INTERMEDIATES, ["f16", "f32"])? == "f32",
                wide_rows: true,
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
            cudnn: config.backend_choice(NAME, CUDNN, ["on", "off"])? == "on",
            cudnn_min_flops: config.backend_size(NAME, CUDNN_MIN_FLOPS)?,
            folder: folder(config)?,
        })
    }
}

/// Returns the folder of the cache of compiled kernels, or `None` if the cache is disabled.
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
        let wanted = CoopSettings {
            wide_rows: true,
            ..CoopSettings::default()
        };
        assert!(usual.programmatic && usual.wanted == wanted && usual.order == Order::Measured);
        let all = "tensor_cores = 'off'\nprogrammatic_launch = 'off'\nkernel_cache = 'off'\ncoop_min_workgroups = 7\n\
                   coop_intermediates = 'f32'\ngraph = 'chain'\ncublaslt_min_flops = 9\ncudnn = 'off'";
        let all = read(all).expect("all are known");
        assert_eq!((all.wanted.tile, all.wanted.min_workgroups), (Some(0), Some(7)));
        assert!(all.wanted.wide_results && !all.programmatic && all.folder.is_none());
        assert_eq!(
            (all.order, all.cublaslt_min_flops, all.cudnn),
            (Order::Chain, Some(9), false)
        );
        let folder = read("kernel_cache_folder = 'there'").expect("a folder").folder;
        assert_eq!(folder, Some("there".into()));
        for (settings, words) in [
            ("tensor_core = 'on'", "tensor_core is not a setting"),
            ("tensor_cores = 'maybe'", "use 'on' or 'off'"),
            ("graph = 'tree'", "use 'auto', 'branches' or 'chain'"),
            ("coop_min_workgroups = 5000000000", "at most 4294967295"),
        ] {
            let error = read(settings).expect_err(settings);
            assert!(error.contains(words), "{error}");
        }
    }
}
