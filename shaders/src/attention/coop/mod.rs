//! Code that attention and its gradients on cooperative matrices share. Operands are rounded to the input type of the
//! matrices when they are copied to shared memory; sums are `f32`. A thread cannot change single elements of a
//! matrix, so intermediate values between matmuls are written to shared memory as `f32`.

pub(super) mod backward;
pub(super) mod forward;

use meganeura_core::ops::AttentionDims;

use super::super::coop::{CoopConfig, prefers_coop};
use super::super::module::Module;
use super::super::template::{KernelFile, Template};
use super::heads::template;

/// Maximum number of threads of a workgroup that every device supports.
const MAX_THREADS: usize = 256;

/// The subgroups of a workgroup: their number, and the configuration of their matrices.
#[derive(Clone, Copy)]
struct Subgroups {
    config: CoopConfig,
    count: usize,
}

impl Subgroups {
    fn threads(&self) -> usize {
        self.count * self.config.subgroup()
    }

    /// Returns true if tiles that need this many bytes of shared memory are possible for a call.
    fn fits(&self, dims: &AttentionDims, bytes: Option<usize>) -> bool {
        let [_, most] = shared_limits(&self.config);
        bytes.is_some_and(|bytes| bytes <= most) && self.threads() <= MAX_THREADS && dims.rows_q >= self.config.tile()
    }

    /// Creates a template of a kernel file with the matrix fragments, and enables the required WGSL extensions in the module.
    fn template(&self, file: KernelFile, module: &mut Module, dims: &AttentionDims) -> Template {
        self.config.fragments(template(file, dims), module)
    }
}

/// Returns the preferred and the maximum number of bytes of shared memory of a workgroup. With tiles of 8, both are
/// the limit of Metal devices. With tiles of 16, several workgroups should share a multiprocessor, which has 64 KiB
/// on the measured devices. Large heads need more memory, and then one workgroup per multiprocessor must suffice.
fn shared_limits(config: &CoopConfig) -> [usize; 2] {
    match config.tile_size {
        8 => [32 << 10; 2],
        _ => [24 << 10, 36 << 10],
    }
}

/// Returns the first tiling within the preferred limit. If there is none, returns the first tiling within the
/// maximum.
fn fitting<T: Copy>(config: &CoopConfig, tilings: &[T], bytes: impl Fn(&T) -> Option<usize>) -> Option<T> {
    let within = |limit| {
        tilings
            .iter()
            .find(|tiling| bytes(tiling).is_some_and(|bytes| bytes <= limit))
    };
    shared_limits(config).into_iter().find_map(within).copied()
}

/// Returns the stride of rows of `elements` sums in shared memory, in vectors.
fn sums_stride(elements: usize) -> usize {
    elements / 4 + 1
}

/// Returns true if cooperative matrices are probably faster, provided that the call fits.
fn is_worth(config: &CoopConfig, dims: &AttentionDims) -> bool {
    dims.rows_q >= config.tile_size as usize
        && prefers_coop(config, dims.batch * dims.heads, dims.rows_q, dims.rows_k, dims.head_dim)
}
