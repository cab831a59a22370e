//! Ways to compute attention: by tiles of queries or keys, on single threads or matrix units; over a cache also query by
//! query; or taken apart to products and a softmax.

use meganeura_core::ops::AttentionDims;
use meganeura_core::precision::Precision;

use super::super::decompose::compile_decomposed;
use super::super::kernel::{CompileCx, Compiled};
use super::super::schedule::Class;
use super::super::schedule::Schedule;
use super::super::variants::{Candidate, range};
use super::cached::{self, Sharing};
use super::coop::{backward as units_backward, forward as units_forward};
use super::heads::{Kind, MOST_WIDTH, Side, vectors, window};
use super::{backward, forward, tiles};

/// Most bytes of the scores of a call that is tried taken apart: a buffer that every device can bind.
const MOST_SCORES: usize = 1 << 27;
/// Fewest queries of a call with many keys: the rows of a tile that have no query are computed for nothing.
const FEWEST_QUERIES: usize = 8;
/// Keys up to which any number of queries is right.
const FEW_KEYS: usize = 256;
/// Workgroups from which on any number of keys is right, since one workgroup goes over all keys that a tile sees.
const ENOUGH_GROUPS: usize = 48;
/// Keys up to which any number of workgroups is right.
const SHORT_ROW: usize = 2048;

/// A way to compute attention.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// By kernels for what it is taken apart to.
    Apart,
    /// By single threads, with so many queries of a tile.
    Tiles(usize),
    /// The same of a gradient: so many queries, and so many keys.
    GradientTiles([usize; 2]),
    Units(units_forward::Tiling),
    GradientUnits([units_backward::Tiling; 2]),
    /// A workgroup for each query of each head, whose threads share keys.
    Vectors(Sharing),
    /// The same with a thread for each key.
    Elements,
}

impl Candidate for Way {
    fn schedule(&self) -> Schedule {
        match self {
            Way::Apart => Schedule::of("attention_decomposed"),
            Way::Tiles(rows) => Schedule::of("attention_tiled").with("rows", [*rows]),
            Way::GradientTiles([queries, keys]) => Schedule::of("attention_tiled")
                .with("queries", [*queries])
                .with("keys", [*keys]),
            Way::Units(tiling) => Schedule::of("attention_coop").with("keys", [tiling.keys()]),
            Way::GradientUnits([queries, keys]) => Schedule::of("attention_coop")
                .with("queries", queries.setting())
                .with("keys", keys.setting()),
            Way::Vectors(sharing) => sharing.schedule(),
            Way::Elements => Schedule::of("attention_cached_elements"),
        }
    }
}

/// A call that has several ways.
#[derive(Clone, Copy)]
pub(super) struct Attention<'a> {
    pub(super) cx: &'a CompileCx<'a>,
    pub(super) kind: Kind,
    pub(super) dims: AttentionDims,
}

impl Attention<'_> {
    /// The way that limits choose, which were found by measuring some devices.
    pub(super) fn usual(&self) -> Way {
        let Attention { cx, kind, dims } = *self;
        match kind {
            Kind::Gradient if pays(&dims) => {
                let units = cx.coop.and_then(|config| units_backward::usual(&config, dims));
                let rows = || [Side::Queries, Side::Keys].map(|side| tiles::usual_rows(&dims, side));
                units.map_or_else(|| Way::GradientTiles(rows()), Way::GradientUnits)
            }
            Kind::Forward if pays(&dims) => self.usual_tiles(),
            Kind::Forward | Kind::Gradient => Way::Apart,
            Kind::Cached if dims.rows_q >= FEWEST_QUERIES && self.has_tiles() => self.usual_tiles(),
            Kind::Cached => Sharing::usual(cx, &dims).map_or(Way::Elements, Way::Vectors),
        }
    }

    fn usual_tiles(&self) -> Way {
        let Attention { cx, dims, .. } = *self;
        let units = cx.coop.and_then(|config| units_forward::usual(&config, dims));
        units.map_or_else(|| Way::Tiles(tiles::usual_rows(&dims, Side::Queries)), Way::Units)
    }

    /// Whether its rows can be cut into tiles: workgroups read what others overwrite otherwise.
    fn has_tiles(&self) -> bool {
        self.dims.head_dim <= MOST_WIDTH && !self.cx.overwrites()
    }

    /// All ways, the usual one first.
    pub(super) fn all(&self) -> Vec<Way> {
        let Attention { cx, kind, dims } = *self;
        let mut all = vec![self.usual()];
        match kind {
            Kind::Gradient => {
                let pairs = tiles::ROWS.into_iter().flat_map(|q| tiles::ROWS.map(|k| [q, k]));
                all.extend(pairs.map(Way::GradientTiles));
                let units = cx.coop.map(|config| units_backward::all(&config, dims));
                all.extend(units.unwrap_or_default().into_iter().map(Way::GradientUnits));
            }
            Kind::Forward | Kind::Cached if self.has_tiles() => {
                all.extend(tiles::ROWS.map(Way::Tiles));
                let units = cx.coop.map(|config| units_forward::all(&config, dims));
                all.extend(units.unwrap_or_default().into_iter().map(Way::Units));
            }
            Kind::Forward | Kind::Cached => {}
        }
        if kind == Kind::Cached {
            all.extend(Sharing::all(cx, &dims).into_iter().map(Way::Vectors));
            all.push(Way::Elements);
        }
        if self.can_be_apart() {
            all.push(Way::Apart);
        }
        all
    }

    /// Whether what it is taken apart to has kernels that keep little enough on the way.
    fn can_be_apart(&self) -> bool {
        let AttentionDims {
            batch,
            heads,
            rows_q,
            rows_k,
            ..
        } = self.dims;
        let scores = [heads, rows_q, rows_k, 4]
            .into_iter()
            .fold(batch, usize::saturating_mul);
        let fits = |compiled: Compiled| compiled.scratch.iter().all(|&bytes| bytes <= MOST_SCORES);
        scores <= MOST_SCORES && self.apart().is_ok_and(fits)
    }

    /// Launches for what it is taken apart to, in their usual ways: as it is measured, so it is used.
    fn apart(&self) -> Result<Compiled, String> {
        let cx = self.cx;
        let part = cx.part(cx.kernel, cx.inputs.clone(), cx.outputs.clone(), cx.first_scratch);
        compile_decomposed(&CompileCx { choices: None, ..part })
    }

    /// Launches in a way.
    pub(super) fn compile(&self, way: &Way) -> Result<Compiled, String> {
        let Attention { cx, dims, .. } = *self;
        match way {
            Way::Apart => self.apart(),
            &Way::Tiles(rows) => forward::compile(cx, dims, rows),
            &Way::GradientTiles(rows) => backward::compile(cx, dims, rows),
            Way::Units(tiling) => units_forward::compile(cx, tiling),
            Way::GradientUnits(tilings) => units_backward::compile(cx, tilings),
            &Way::Vectors(sharing) => cached::by_vectors(cx, dims, sharing),
            Way::Elements => Ok(cached::by_elements(cx, dims)?.into()),
        }
    }

    /// What decides which way is the best: what is computed, sizes, what is seen, and types.
    pub(super) fn class(&self, precision: Precision) -> Class {
        let Attention { cx, kind, dims } = *self;
        let AttentionDims {
            rows_q,
            rows_k,
            head_dim,
            ..
        } = dims;
        let (all_heads, group) = (dims.batch * dims.heads, dims.group());
        let kind_name = match kind {
            Kind::Forward => "forward",
            Kind::Gradient => "gradient",
            Kind::Cached => "cached",
        };
        let seen = match (dims.causal, window(&dims)) {
            (false, _) => "all".to_owned(),
            (true, None) => "causal".to_owned(),
            (true, Some(window)) => format!("window {window}"),
        };
        let dtypes: Vec<String> = cx.kernel.inputs[..3].iter().map(|ty| ty.dtype.to_string()).collect();
        // Products of queries and keys.
        let products = match kind {
            Kind::Forward | Kind::Cached => 2,
            Kind::Gradient => 7,
        };
        let sizes = vec![all_heads, group, rows_q, rows_k, head_dim];
        let each = [all_heads, rows_q, rows_k, 4 * vectors(&dims), products];
        Class {
            name: format!(
                "attention {kind_name} {} {}/{group}x{}x{rows_k}x{head_dim} {seen} {precision}",
                dtypes.join("*"),
                range(all_heads),
                range(rows_q),
            ),
            sizes,
            work: each.iter().map(|&size| size as u128).product(),
        }
    }
}

/// Whether tiles of queries that each go over all of their keys are likely to be faster than products and a softmax.
fn pays(dims: &AttentionDims) -> bool {
    let groups = dims.batch * dims.heads * dims.rows_q.div_ceil(tiles::FEW_ROWS);
    let enough_queries = dims.rows_q >= FEWEST_QUERIES || dims.rows_k <= FEW_KEYS;
    enough_queries && (groups >= ENOUGH_GROUPS || dims.rows_k <= SHORT_ROW)
}
