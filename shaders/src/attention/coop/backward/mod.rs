//! Gradients of attention on cooperative matrices, from the saved logarithms: `kernels/attention_backward_queries_coop.wgsl`,
//! then `kernels/attention_backward_keys_coop.wgsl`, which reads the largest numbers that the first launch leaves.

use meganeura_core::ops::AttentionDims;

use super::super::super::files;
use super::super::super::kernel::{CompileCx, Compiled, Launch};
use super::super::super::module::Module;
use super::super::backward::{Parts, join, loading};
use super::super::heads::{Side, Target, store_body};
use super::{CoopConfig, Subgroups, fitting, is_worth, sums_stride};

/// Rows of tiles of a workgroup.
const DOWN: usize = 2;
/// Subgroups along the columns of a product, and rows of tiles of columns: the first for which there is room.
const SHAPES: [[usize; 2]; 4] = [[2, 4], [2, 2], [1, 4], [1, 2]];
/// Scratch with the largest number of each tile of queries, as bits; behind it come the parts of grouped heads.
const ROW_MAX: usize = 0;

/// A call cut into tiles of rows.
#[derive(Clone, Copy)]
pub(in super::super) struct Tiling {
    dims: AttentionDims,
    subgroups: Subgroups,
    /// What the rows are.
    side: Side,
    /// Subgroups along the columns of a product.
    beside: usize,
    /// Rows of tiles of columns.
    column_tiles: usize,
}

/// The tiles of queries and of keys of a call; `None` where single threads are likely to be faster.
pub(in super::super) fn usual(config: &CoopConfig, dims: AttentionDims) -> Option<[Tiling; 2]> {
    if !is_worth(config, &dims) {
        return None;
    }
    let tiling = |side| fitting(config, &tilings(config, dims, side), Tiling::shared);
    Some([tiling(Side::Queries)?, tiling(Side::Keys)?])
}

/// All pairs of such tiles for which there is room.
pub(in super::super) fn all(config: &CoopConfig, dims: AttentionDims) -> Vec<[Tiling; 2]> {
    let [queries, keys] = [Side::Queries, Side::Keys].map(|side| {
        let mut all = tilings(config, dims, side).to_vec();
        all.retain(|tiling| tiling.subgroups.fits(&dims, tiling.shared()));
        all
    });
    let pairs = queries.iter().flat_map(|&q| keys.iter().map(move |&k| [q, k]));
    pairs.collect()
}

fn tilings(config: &CoopConfig, dims: AttentionDims, side: Side) -> [Tiling; SHAPES.len()] {
    SHAPES.map(|[beside, column_tiles]| Tiling {
        dims,
        subgroups: Subgroups {
            config: *config,
            count: DOWN * 2 * beside,
        },
        side,
        beside,
        column_tiles,
    })
}

/// The launches for a call.
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
    /// The setting of a schedule: subgroups beside each other, and columns of a step.
    pub(in super::super) fn setting(&self) -> [usize; 2] {
        [self.beside, self.columns()]
    }
}

impl Tiling {
    /// Bytes of shared memory that it takes, if threads share out evenly what there is to do.
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

    /// Rows of a workgroup, as many with either side.
    fn rows(&self) -> usize {
        DOWN * self.subgroups.config.tile()
    }

    /// One for each tile of rows and each head of the queries.
    fn groups(&self) -> usize {
        self.dims.batch * self.dims.heads * self.side.rows(&self.dims).div_ceil(self.rows())
    }

    /// Columns of a step.
    fn columns(&self) -> usize {
        self.column_tiles * self.subgroups.config.tile()
    }

    /// Threads of a row.
    fn across(&self) -> usize {
        self.subgroups.threads() / self.rows()
    }

    /// Elements of a head with those that make its tiles a multiple of the subgroups of a sum.
    fn width(&self) -> usize {
        self.dims
            .head_dim
            .next_multiple_of(self.beside * self.subgroups.config.tile())
    }

    /// Vectors of one operand's columns in shared memory, where that of the rows is before there are any.
    fn piece(&self) -> usize {
        let columns = self.columns().max(self.rows()) * self.subgroups.config.stride(self.width());
        columns.max(self.weights())
    }

    /// Vectors of one kind of weights.
    fn weights(&self) -> usize {
        self.rows() * self.subgroups.config.stride(self.columns())
    }

    /// Vectors of shared memory for operands and weights.
    fn pool(&self) -> usize {
        match self.side {
            Side::Queries => 2 * self.piece(),
            Side::Keys => 2 * self.piece() + 2 * self.weights(),
        }
    }

    /// Vectors of one product, or of some columns of one sum.
    fn product(&self) -> usize {
        self.rows() * sums_stride(self.columns().max(self.beside * self.subgroups.config.tile()))
    }

    /// Vectors of both.
    fn sums(&self) -> usize {
        2 * self.product()
    }

    /// Vectors of logarithms and deltas of the columns, if these are queries.
    fn marks(&self) -> usize {
        match self.side {
            Side::Queries => 0,
            Side::Keys => 2 * self.columns() / 4,
        }
    }

    /// Largest numbers: of each query and of all, or of all queries that see a key.
    fn largest(&self) -> usize {
        match self.side {
            Side::Queries => self.rows() + 1,
            Side::Keys => 1,
        }
    }

    fn launch(&self, cx: &CompileCx, parts: &Parts) -> Result<Launch, String> {
        let (dims, mut module) = (&self.dims, Module::new(cx));
        let file = match self.side {
            Side::Queries => files::ATTENTION_BACKWARD_QUERIES_COOP,
            Side::Keys => files::ATTENTION_BACKWARD_KEYS_COOP,
        };
        let template = self
            .subgroups
            .template(file, &mut module, dims)
            .sizes([("BESIDE", self.beside), ("COLUMN_TILES", self.column_tiles)]);
        let template = loading(template, &mut module, dims);
        module.bind("left", cx.scratch(ROW_MAX));
        let template = match self.side {
            Side::Queries => template.body("store", store_body(&mut module, dims, Target::Output(0))),
            Side::Keys => template
                .body("store_dk", store_body(&mut module, dims, parts.target(0)))
                .body("store_dv", store_body(&mut module, dims, parts.target(1))),
        };
        module.finish_template(template, self.groups())
    }
}
