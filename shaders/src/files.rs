//! List of the kernel files.

use super::template::KernelFile;

/// Declares a constant for each file of `kernels/`, and the list of all these files.
macro_rules! files {
    ($($constant:ident $name:literal;)*) => {
        $(pub(crate) const $constant: KernelFile = KernelFile {
            name: $name,
            text: include_str!(concat!("../kernels/", $name, ".wgsl")),
        };)*

        /// All kernel files, by name.
        pub const KERNEL_FILES: &[KernelFile] = &[$($constant),*];
    };
}

files! {
    ARG_REDUCE "arg_reduce";
    ARG_REDUCE_JOIN "arg_reduce_join";
    ATTENTION_BACKWARD_JOIN "attention_backward_join";
    ATTENTION_BACKWARD_KEYS "attention_backward_keys";
    ATTENTION_BACKWARD_KEYS_COOP "attention_backward_keys_coop";
    ATTENTION_BACKWARD_QUERIES "attention_backward_queries";
    ATTENTION_BACKWARD_QUERIES_COOP "attention_backward_queries_coop";
    ATTENTION_CACHED "attention_cached";
    ATTENTION_CACHED_ELEMENTS "attention_cached_elements";
    ATTENTION_CACHED_GROUPED "attention_cached_grouped";
    ATTENTION_CACHED_JOIN "attention_cached_join";
    ATTENTION_FORWARD "attention_forward";
    ATTENTION_FORWARD_COOP "attention_forward_coop";
    CACHE_WRITE "cache_write";
    CUMSUM "cumsum";
    DECISION_TREES "decision_trees";
    EXPERT_MATMUL_ROWS "expert_matmul_rows";
    EXPERT_MATMUL_TILED "expert_matmul_tiled";
    EXPERT_SORT "expert_sort";
    EXPERT_WEIGHT_GRAD "expert_weight_grad";
    MATMUL_COOP "matmul_coop";
    MATMUL_DIRECT "matmul_direct";
    MATMUL_ROWS "matmul_rows";
    MATMUL_ROWS_STAGED "matmul_rows_staged";
    MATMUL_ROWS_WIDE "matmul_rows_wide";
    MATMUL_TILED "matmul_tiled";
    PAGED_CACHE_WRITE "paged_cache_write";
    PAGED_TILES "paged_tiles";
    POINTWISE "pointwise";
    POOL_AVG "pool_avg";
    POOL_AVG_GRAD "pool_avg_grad";
    POOL_MAX "pool_max";
    POOL_MAX_CHANNELS "pool_max_channels";
    QUANTIZED_CACHE_WRITE "quantized_cache_write";
    REDUCE "reduce";
    REDUCE_JOIN "reduce_join";
    SAMPLING_THRESHOLD "sampling_threshold";
    SCATTER_LISTS_APPLY "scatter_lists_apply";
    SCATTER_LISTS_BUILD "scatter_lists_build";
    SCATTER_LISTS_CLEAR "scatter_lists_clear";
    SCATTER_SCAN "scatter_scan";
    SPLIT_K_JOIN "split_k_join";
    TOP_K "top_k";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::validate;

    /// Maximum number of lines of a kernel file.
    const MAX_LINES: usize = 320;

    #[test]
    fn every_kernel_file_is_listed_once_and_short() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let there: BTreeSet<String> = std::fs::read_dir(folder)
            .expect("the folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        let listed: Vec<String> = KERNEL_FILES.iter().map(|file| format!("{}.wgsl", file.name)).collect();
        assert!(listed.is_sorted(), "{listed:?}");
        assert_eq!(there, listed.into_iter().collect());
        for file in KERNEL_FILES {
            let lines = file.text.lines().count();
            assert!(lines < MAX_LINES, "{} has {lines} lines", file.name);
            assert!(
                file.text.starts_with("// "),
                "{} does not say what it computes",
                file.name
            );
        }
    }

    #[test]
    fn every_kernel_file_is_valid_as_it_stands() {
        for file in KERNEL_FILES {
            if let Err(why) = validate(file.text) {
                panic!("{}: {why}", file.name);
            }
        }
    }
}
