//! Attention and its gradients on cooperative matrices: what both have in common. Operands are rounded to the matrices' input
//! type when they go to shared memory, sums are in `f32`. Matrices have no elements that a thread could change, so what lies
//! between products goes through shared memory, in `f32`.

pub(super) mod backward;
pub(super) mod forward;

use meganeura_core::ops::AttentionDims;

use super::super::coop::{CoopConfig, prefers_coop};
use super::super::module::Module;
use super::super::template::{KernelFile, Template};
use super::heads::template;

/// Most threads of a workgroup that every device has.
const MAX_THREADS: usize = 256;

/// The subgroups of a workgroup, and the tiles that they multiply.
#[derive(Clone, Copy)]
struct Subgroups {
    config: CoopConfig,
    count: usize,
}

impl Subgroups {
    fn threads(&self) -> usize {
        self.count * self.config.subgroup()
    }

    /// Whether tiles that take so many bytes of shared memory can be tried for a call.
    fn fits(&self, dims: &AttentionDims, bytes: Option<usize>) -> bool {
        let [_, most] = shared_limits(&self.config);
        bytes.is_some_and(|bytes| bytes <= most) && self.threads() <= MAX_THREADS && dims.rows_q >= self.config.tile()
    }

    /// A kernel file with the fragments of matrices, for a module that has the extensions of the language.
    fn template(&self, file: KernelFile, module: &mut Module, dims: &AttentionDims) -> Template {
        self.config.fragments(template(file, dims), module)
    }
}

/// Bytes of shared memory that a workgroup should stay within, and most ones: with tiles of 8 what Metal's devices have. With
/// tiles of 16 it is best that several workgroups share a multiprocessor, which was seen to have 64 KiB in all; with heads
/// too wide for that, one has to do.
fn shared_limits(config: &CoopConfig) -> [usize; 2] {
    match config.tile_size {
        8 => [32 << 10; 2],
        _ => [24 << 10, 36 << 10],
    }
}

/// The first of some tilings that fits within the limits, by the bytes that it takes, if it fits otherwise.
fn fitting<T: Copy>(config: &CoopConfig, tilings: &[T], bytes: impl Fn(&T) -> Option<usize>) -> Option<T> {
    let within = |limit| {
        tilings
            .iter()
            .find(|tiling| bytes(tiling).is_some_and(|bytes| bytes <= limit))
    };
    shared_limits(config).into_iter().find_map(within).copied()
}

/// Vectors between rows of so many elements of sums in shared memory.
fn sums_stride(elements: usize) -> usize {
    elements / 4 + 1
}

/// Whether matrices are likely to be faster than single threads, if a call fits.
fn is_worth(config: &CoopConfig, dims: &AttentionDims) -> bool {
    dims.rows_q >= config.tile_size as usize
        && prefers_coop(config, dims.batch * dims.heads, dims.rows_q, dims.rows_k, dims.head_dim)
}
