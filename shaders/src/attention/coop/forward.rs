//! Attention on cooperative matrices: `kernels/attention_forward_coop.wgsl`.

use meganeura_core::ops::AttentionDims;

use super::super::super::files;
use super::super::super::kernel::{CompileCx, Compiled, Launch};
use super::super::super::module::Module;
use super::super::heads::{Target, load_body_as_stored, over_cache, positions, store_body};
use super::{CoopConfig, Subgroups, fitting, is_worth, sums_stride};

/// Rows of tiles of a workgroup, and subgroups beside each other.
const DOWN: usize = 2;
const BESIDE: usize = 2;
/// Rows of tiles of keys of a step: the first that there is room for.
const KEY_TILES: [usize; 2] = [4, 2];

/// A call cut into tiles.
#[derive(Clone, Copy)]
pub(in super::super) struct Tiling {
    dims: AttentionDims,
    subgroups: Subgroups,
    /// Rows of tiles of keys.
    key_tiles: usize,
}

/// The tiles of a call; `None` where single threads are likely to be faster.
pub(in super::super) fn usual(config: &CoopConfig, dims: AttentionDims) -> Option<Tiling> {
    let tiling = fitting(config, &tilings(config, dims), Tiling::shared);
    tiling.filter(|_| is_worth(config, &dims))
}

/// All tiles for which there is room.
pub(in super::super) fn all(config: &CoopConfig, dims: AttentionDims) -> Vec<Tiling> {
    let mut all = tilings(config, dims).to_vec();
    all.retain(|tiling| tiling.subgroups.fits(&dims, tiling.shared()));
    all
}

fn tilings(config: &CoopConfig, dims: AttentionDims) -> [Tiling; KEY_TILES.len()] {
    let subgroups = Subgroups {
        config: *config,
        count: DOWN * BESIDE,
    };
    KEY_TILES.map(|key_tiles| Tiling {
        dims,
        subgroups,
        key_tiles,
    })
}

/// The launch for a call.
pub(in super::super) fn compile(cx: &CompileCx, tiling: &Tiling) -> Result<Compiled, String> {
    Ok(Compiled {
        launches: vec![tiling.launch(cx)?],
        rounded: if tiling.subgroups.config.use_f16_input {
            vec![0, 1, 2]
        } else {
            Vec::new()
        },
        ..Compiled::default()
    })
}

impl Tiling {
    /// Bytes of shared memory that it takes, if threads share out evenly what there is to do.
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

    /// Queries of a workgroup.
    fn rows(&self) -> usize {
        DOWN * self.subgroups.config.tile()
    }

    /// Keys of a step.
    pub(in super::super) fn keys(&self) -> usize {
        self.key_tiles * self.subgroups.config.tile()
    }

    /// Threads of a row.
    fn across(&self) -> usize {
        self.subgroups.threads() / self.rows()
    }

    /// Elements of a head with those that make its tiles a multiple of the subgroups beside each other.
    fn width(&self) -> usize {
        self.dims
            .head_dim
            .next_multiple_of(BESIDE * self.subgroups.config.tile())
    }

    /// Vectors between rows of scores and results in shared memory.
    fn sums_stride(&self) -> usize {
        sums_stride(self.keys().max(self.width()))
    }

    /// Vectors of keys, or of values, in shared memory; queries and numerators are where keys are when there are none.
    fn piece(&self) -> usize {
        let keys = self.keys() * self.subgroups.config.stride(self.width());
        keys.max(self.rows() * self.subgroups.config.stride(self.keys()))
    }

    fn launch(&self, cx: &CompileCx) -> Result<Launch, String> {
        let dims = &self.dims;
        let mut module = Module::new(cx);
        let template = self
            .subgroups
            .template(files::ATTENTION_FORWARD_COOP, &mut module, dims);
        let mut template = over_cache(template, &mut module)
            .size("KEY_TILES", self.key_tiles)
            .body("store", store_body(&mut module, dims, Target::Output(0)));
        for (operand, (name, alias)) in [("load_q", "Q"), ("load_k", "K"), ("load_v", "V")]
            .into_iter()
            .enumerate()
        {
            let (ty, value) = load_body_as_stored(&mut module, dims, operand);
            template = template.alias(alias, ty).returns(name, "", &value);
        }
        if positions(cx).is_none() {
            template = template.body("store_lse", module.store(1, "index", "value"));
        }
        let groups = dims.batch * dims.heads * dims.rows_q.div_ceil(self.rows());
        module.finish_template(template, groups)
    }
}
