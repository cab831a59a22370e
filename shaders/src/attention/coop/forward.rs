//! Forward attention on cooperative matrices: `kernels/attention_forward_coop.wgsl`.

use meganeura_core::ops::AttentionDims;

use super::super::super::files;
use super::super::super::kernel::{CompileCx, Compiled, Launch, Memory};
use super::super::super::module::Module;
use super::super::super::template::Template;
use super::super::caches::rounded;
use super::super::heads::{POSITIONS, Target, load_body_as_stored, over_cache, positions, store_body, with_sinks};
use super::{CoopConfig, Subgroups, fitting, is_worth, sums_stride};

/// Number of matrix tiles along the rows of a workgroup, and number of subgroups along the columns.
const ROW_TILES: usize = 2;
const COLUMN_SUBGROUPS: usize = 2;
/// Possible numbers of matrix tiles along the keys of a step. The first number that fits is used.
const KEY_TILES: [usize; 2] = [4, 2];

/// A call that is cut into tiles.
#[derive(Clone, Copy)]
pub(in super::super) struct Tiling {
    dims: AttentionDims,
    subgroups: Subgroups,
    /// Number of matrix tiles along the keys of a step.
    key_tiles: usize,
}

/// Returns the default tiles of a call, or `None` if kernels without cooperative matrices are probably faster.
pub(in super::super) fn usual(config: &CoopConfig, dims: AttentionDims) -> Option<Tiling> {
    let tiling = fitting(config, &tilings(config, dims), Tiling::shared);
    tiling.filter(|_| is_worth(config, &dims))
}

/// Returns all tiles that fit into shared memory.
pub(in super::super) fn all(config: &CoopConfig, dims: AttentionDims) -> Vec<Tiling> {
    let mut all = tilings(config, dims).to_vec();
    all.retain(|tiling| tiling.subgroups.fits(&dims, tiling.shared()));
    all
}

fn tilings(config: &CoopConfig, dims: AttentionDims) -> [Tiling; KEY_TILES.len()] {
    let subgroups = Subgroups {
        config: *config,
        count: ROW_TILES * COLUMN_SUBGROUPS,
    };
    KEY_TILES.map(|key_tiles| Tiling {
        dims,
        subgroups,
        key_tiles,
    })
}

/// Compiles the launch of a call.
pub(in super::super) fn compile(cx: &CompileCx, tiling: &Tiling) -> Result<Compiled, String> {
    Ok(Compiled {
        launches: vec![tiling.launch(cx)?],
        rounded: if tiling.subgroups.config.use_f16_input {
            rounded(cx)
        } else {
            Vec::new()
        },
        ..Compiled::default()
    })
}

impl Tiling {
    /// Returns the required number of bytes of shared memory, or `None` if the work cannot be divided evenly among
    /// the threads.
    fn shared(&self) -> Option<usize> {
        let threads = self.subgroups.threads();
        let bytes = self.subgroups.config.vector_bytes() * 2 * self.piece()
            + 16 * self.rows() * self.sums_stride()
            + 4 * threads;
        let is_even = matches!(self.subgroups.config.tile(), 8 | 16)
            && threads.is_multiple_of(self.rows())
            && (self.keys() / 4).is_multiple_of(self.across());
        is_even.then_some(bytes)
    }

    /// Returns the number of queries of a workgroup.
    pub(in super::super) fn rows(&self) -> usize {
        ROW_TILES * self.subgroups.config.tile()
    }

    /// Returns the number of keys of a step.
    pub(in super::super) fn keys(&self) -> usize {
        self.key_tiles * self.subgroups.config.tile()
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
            .next_multiple_of(COLUMN_SUBGROUPS * self.subgroups.config.tile())
    }

    /// Returns the stride of rows of scores and results in shared memory, in vectors.
    fn sums_stride(&self) -> usize {
        sums_stride(self.keys().max(self.width()))
    }

    /// Returns the size of the keys or of the values of a step in shared memory, in vectors. Queries and numerators
    /// use the same memory while it contains no keys.
    fn piece(&self) -> usize {
        let keys = self.keys() * self.subgroups.config.stride(self.width());
        keys.max(self.rows() * self.subgroups.config.stride(self.keys()))
    }

    /// Compiles a launch over a paged cache, for the tiles whose queries all belong to one sequence. `in_blocks` adds
    /// the block sizes, and the function that reads the block table, to the template. `tiles` contains the
    /// description of each tile.
    pub(in super::super) fn launch_paged(
        &self,
        mut module: Module,
        in_blocks: impl FnOnce(Template, &mut Module) -> Result<Template, String>,
        tiles: Memory,
    ) -> Result<Launch, String> {
        module.bind("tiles", tiles);
        let dims = &self.dims;
        let template = self
            .subgroups
            .template(files::ATTENTION_FORWARD_COOP, &mut module, dims);
        let template = in_blocks(template, &mut module)?
            .flag("CAUSAL", true)
            .flag("CACHED", true)
            .flag("PAGED", true)
            .returns("load_position", "", &module.load(POSITIONS, "batch"));
        let template = with_sinks(template, &mut module);
        self.finish(module, template)
    }

    fn launch(&self, cx: &CompileCx) -> Result<Launch, String> {
        let dims = &self.dims;
        let mut module = Module::new(cx);
        let template = self
            .subgroups
            .template(files::ATTENTION_FORWARD_COOP, &mut module, dims);
        let mut template = over_cache(template, &mut module);
        if positions(cx).is_none() {
            template = template.body("store_lse", module.store(1, "index", "value"));
        }
        self.finish(module, template)
    }

    fn finish(&self, mut module: Module, template: Template) -> Result<Launch, String> {
        let dims = &self.dims;
        let mut template = template
            .size("KEY_TILES", self.key_tiles)
            .body("store", store_body(&mut module, dims, Target::Output(0)));
        for (operand, (name, alias)) in [("load_q", "Q"), ("load_k", "K"), ("load_v", "V")]
            .into_iter()
            .enumerate()
        {
            let (ty, value) = load_body_as_stored(&mut module, dims, operand);
            template = template.alias(alias, ty).returns(name, "", &value);
        }
        let groups = dims.batch * dims.heads * dims.rows_q.div_ceil(self.rows());
        module.finish_template(template, groups)
    }
}
