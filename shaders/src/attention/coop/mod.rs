//! Attention and its gradients on cooperative matrices: what both have in common. Operands are rounded to the matrices' input
//! type when they go to shared memory, sums are in `f32`. Matrices have no elements that a thread could change, so what lies
//! between products goes through shared memory, in `f32`.

pub(super) mod backward;
pub(super) mod forward;

use meganeura_core::ops::AttentionDims;

use super::super::coop::{CoopConfig, prefers_coop};
use super::super::module::{COOP, HALF, Module};
use super::super::template::{KernelFile, Template};
use super::heads::template;

/// Most threads of a workgroup that every device has.
const MOST_THREADS: usize = 256;

/// The subgroups of a workgroup, and the tiles that they multiply.
#[derive(Clone, Copy)]
struct Subgroups {
    config: CoopConfig,
    count: usize,
}

impl Subgroups {
    fn tile(&self) -> usize {
        self.config.tile_size as usize
    }

    fn threads(&self) -> usize {
        self.count * self.config.subgroup_size as usize
    }

    /// Whether tiles that take so many bytes of shared memory can be tried for a call.
    fn fits(&self, dims: &AttentionDims, bytes: Option<usize>) -> bool {
        let [_, most] = shared_limits(&self.config);
        bytes.is_some_and(|bytes| bytes <= most) && self.threads() <= MOST_THREADS && dims.rows_q >= self.tile()
    }

    /// The type that operands are rounded to.
    fn element(&self) -> &'static str {
        if self.config.use_f16_input { "f16" } else { "f32" }
    }

    /// Bytes of a vector of four such elements.
    fn vector_bytes(&self) -> usize {
        if self.config.use_f16_input { 8 } else { 16 }
    }

    /// Vectors between rows of so many elements of an operand in shared memory, whose padding keeps rows apart in its
    /// banks.
    fn stride(&self, elements: usize) -> usize {
        elements / 4 + if self.config.use_f16_input { 2 } else { 1 }
    }

    /// A tile's type in a role: `A`, `B` or `C`.
    fn matrix(&self, role: char) -> String {
        let (tile, element) = (self.tile(), if role == 'C' { "f32" } else { self.element() });
        format!("coop_mat{tile}x{tile}<{element},{role}>")
    }

    /// Asks for the extensions of the language.
    fn enable(&self, module: &mut Module) {
        module.enable(COOP);
        if self.config.use_f16_input {
            module.enable(HALF);
        }
    }

    /// A kernel file with the sizes and types of matrices, for a module that has the extensions of the language.
    fn template(&self, file: KernelFile, module: &mut Module, dims: &AttentionDims) -> Template {
        self.enable(module);
        template(file, dims)
            .sizes([
                ("TILE", self.tile()),
                ("SUBGROUP", self.config.subgroup_size as usize),
                ("PADDING", self.stride(0)),
            ])
            .alias("Input", format!("vec4<{}>", self.element()))
            .alias("MatrixA", self.matrix('A'))
            .alias("MatrixB", self.matrix('B'))
            .alias("MatrixC", self.matrix('C'))
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
