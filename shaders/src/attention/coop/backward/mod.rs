//! Gradients of attention on cooperative matrices, from the saved log-sum-exp values. The first launch is
//! `kernels/attention_backward_queries_coop.wgsl`. The second one, `kernels/attention_backward_keys_coop.wgsl`, reads
//! the maxima that the first launch writes.

use meganeura_core::ops::AttentionDims;

use super::super::super::files;
use super::super::super::kernel::{CompileCx, Compiled, Launch};
use super::super::super::module::Module;
use super::super::backward::{Parts, join, loading};
use super::super::heads::{Target, TiledOperand, store_body};
use super::{CoopConfig, Subgroups, fitting, is_worth, sums_stride};

/// Number of matrix tiles along the rows of a workgroup.
const ROW_TILES: usize = 2;
/// Possible pairs: the number of subgroups along the columns of a matmul, and the number of matrix tiles along the
/// columns of a step. The first pair that fits is used.
const SHAPES: [[usize; 2]; 4] = [[2, 4], [2, 2], [1, 4], [1, 2]];
/// Index of the scratch buffer that contains the maximum of each tile of queries, as bits. The partial gradients of
/// grouped heads follow it.
const ROW_MAX: usize = 0;

/// A call whose rows (queries or keys) are cut into tiles.
#[derive(Clone, Copy)]
pub(in super::super) struct Tiling {
    dims: AttentionDims,
    subgroups: Subgroups,
    /// Operand whose rows are cut into tiles: queries or keys.
    side: TiledOperand,
    /// Number of subgroups along the columns of a matmul.
    beside: usize,
    /// Number of matrix tiles along the columns of a step.
    column_tiles: usize,
}

/// Returns the default tiles of queries and of keys of a call, or `None` if kernels without cooperative matrices are
/// probably faster.
pub(in super::super) fn usual(config: &CoopConfig, dims: AttentionDims) -> Option<[Tiling; 2]> {
    if !is_worth(config, &dims) {
        return None;
    }
    let tiling = |side| fitting(config, &tilings(config, dims, side), Tiling::shared);
    Some([tiling(TiledOperand::Queries)?, tiling(TiledOperand::Keys)?])
}

/// Returns all pairs of tiles that fit into shared memory.
pub(in super::super) fn all(config: &CoopConfig, dims: AttentionDims) -> Vec<[Tiling; 2]> {
    let [queries, keys] = [TiledOperand::Queries, TiledOperand::Keys].map(|side| {
        let mut all = tilings(config, dims, side).to_vec();
        all.retain(|tiling| tiling.subgroups.fits(&dims, tiling.shared()));
        all
    });
    let pairs = queries.iter().flat_map(|&q| keys.iter().map(move |&k| [q, k]));
    pairs.collect()
}

fn tilings(config: &CoopConfig, dims: AttentionDims, side: TiledOperand) -> [Tiling; SHAPES.len()] {
    SHAPES.map(|[beside, column_tiles]| Tiling {
        dims,
        subgroups: Subgroups {
            config: *config,
            count: ROW_TILES * 2 * beside,
        },
        side,
        beside,
        column_tiles,
    })
}

/// Compiles the launches of a call.
pub(in super::super) fn compile(cx: &CompileCx, [queries, keys]: &[Tiling; 2]) -> Result<Compiled, String> {
    let dims = &queries.dims;
    let parts = Parts::of(dims, ROW_MAX + 1);
    let mut launches = vec![queries.launch(cx, &parts)?, keys.launch(cx, &parts)?];
    let mut scratch = vec![4 * queries.groups()];
    if !parts.is_empty() {
        launches.push(join(cx, dims, &parts)?);
        scratch.extend(parts.bytes(dims));
    }
    Ok(Compiled {
        launches,
        scratch,
        ..Compiled::default()
    })
}

impl Tiling {
    /// Returns the values of this tiling in a schedule: the number of subgroups along the columns, and the number of
    /// columns of a step.
    pub(in super::super) fn setting(&self) -> [usize; 2] {
        [self.beside, self.columns()]
    }
}

impl Tiling {
    /// Returns the required number of bytes of shared memory, or `None` if the work cannot be divided evenly among
    /// the threads.
    fn shared(&self) -> Option<usize> {
        let threads = self.subgroups.threads();
        let bytes =
            self.subgroups.config.vector_bytes() * self.pool() + 16 * (self.sums() + self.marks()) + 4 * self.largest();
        let is_even = matches!(self.subgroups.config.tile(), 8 | 16)
            && threads.is_multiple_of(self.rows())
            && (self.columns() / 4).is_multiple_of(self.across())
            && threads > self.rows()
            && threads >= self.columns();
        is_even.then_some(bytes)
    }

    /// Returns the number of rows of a workgroup. It is the same for queries and for keys.
    fn rows(&self) -> usize {
        ROW_TILES * self.subgroups.config.tile()
    }

    /// Returns the number of workgroups: one for each tile of rows and each query head.
    fn groups(&self) -> usize {
        self.dims.batch * self.dims.heads * self.side.rows(&self.dims).div_ceil(self.rows())
    }

    /// Returns the number of columns of a step.
    fn columns(&self) -> usize {
        self.column_tiles * self.subgroups.config.tile()
    }

    /// Returns the number of threads that share a row.
    fn across(&self) -> usize {
        self.subgroups.threads() / self.rows()
    }

    /// Returns the number of elements of a head, padded so that the subgroups along the columns have equal numbers of
    /// tiles.
    fn width(&self) -> usize {
        self.dims
            .head_dim
            .next_multiple_of(self.beside * self.subgroups.config.tile())
    }

    /// Returns the size of one operand's columns of a step in shared memory, in vectors. The rows use the same memory
    /// before the first columns.
    fn piece(&self) -> usize {
        let columns = self.columns().max(self.rows()) * self.subgroups.config.stride(self.width());
        columns.max(self.weights())
    }

    /// Returns the size of one weight matrix of a step (`p` or `ds` of the kernel files), in vectors.
    fn weights(&self) -> usize {
        self.rows() * self.subgroups.config.stride(self.columns())
    }

    /// Returns the size of operands and weights in shared memory, in vectors.
    fn pool(&self) -> usize {
        match self.side {
            TiledOperand::Queries => 2 * self.piece(),
            TiledOperand::Keys => 2 * self.piece() + 2 * self.weights(),
        }
    }

    /// Returns the size of the result of one matmul, or of some columns of one sum, in vectors.
    fn product(&self) -> usize {
        self.rows() * sums_stride(self.columns().max(self.beside * self.subgroups.config.tile()))
    }

    /// Returns the size of the results of two matmuls, in vectors.
    fn sums(&self) -> usize {
        2 * self.product()
    }

    /// Returns the size of the log-sum-exp values and deltas of the columns, in vectors; 0 if the columns are keys.
    fn marks(&self) -> usize {
        match self.side {
            TiledOperand::Queries => 0,
            TiledOperand::Keys => 2 * self.columns() / 4,
        }
    }

    /// Returns the number of maxima in shared memory: one for each query and one for all of them if the rows are
    /// queries, else only one for all queries that attend to the keys.
    fn largest(&self) -> usize {
        match self.side {
            TiledOperand::Queries => self.rows() + 1,
            TiledOperand::Keys => 1,
        }
    }

    fn launch(&self, cx: &CompileCx, parts: &Parts) -> Result<Launch, String> {
        let (dims, mut module) = (&self.dims, Module::new(cx));
        let file = match self.side {
            TiledOperand::Queries => files::ATTENTION_BACKWARD_QUERIES_COOP,
            TiledOperand::Keys => files::ATTENTION_BACKWARD_KEYS_COOP,
        };
        let template = self
            .subgroups
            .template(file, &mut module, dims)
            .sizes([("COLUMN_SUBGROUPS", self.beside), ("COLUMN_TILES", self.column_tiles)]);
        let template = loading(template, &mut module, dims);
        module.bind("left", cx.scratch(ROW_MAX));
        let template = match self.side {
            TiledOperand::Queries => template.body("store", store_body(&mut module, dims, Target::Output(0))),
            TiledOperand::Keys => template
                .body("store_dk", store_body(&mut module, dims, parts.target(0)))
                .body("store_dv", store_body(&mut module, dims, parts.target(1))),
        };
        module.finish_template(template, self.groups())
    }
}
