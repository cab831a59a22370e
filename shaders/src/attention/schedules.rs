//! Variants of attention: tiles of queries or keys, with or without cooperative matrices; one query at a time, only
//! over a cache; or a decomposition into matmuls and a softmax.

use meganeura_core::ops::AttentionDims;
use meganeura_core::precision::Precision;

use super::super::decompose::compile_decomposed;
use super::super::kernel::{CompileCx, Compiled};
use super::super::schedule::Class;
use super::super::schedule::Schedule;
use super::super::variants::{Candidate, range};
use super::cached::{self, Sharing};
use super::coop::{backward as coop_backward, forward as coop_forward};
use super::heads::{Kind, MAX_WIDTH, TiledOperand, vectors, window};
use super::{backward, forward, tiles};

/// Maximum size of the scores in bytes if the decomposition is a candidate. Every device can bind a buffer of this
/// size.
const MAX_SCORES: usize = 1 << 27;
/// Minimum number of queries of a call with many keys. Rows of a tile without a query are wasted work.
const MIN_QUERIES: usize = 8;
/// Maximum number of keys for which tiles are fast with any number of queries.
const FEW_KEYS: usize = 256;
/// Minimum number of workgroups for which tiles are fast with any number of keys, because one workgroup reads all
/// keys that are visible to a tile.
const GROUPS_THRESHOLD: usize = 48;
/// Maximum number of keys for which tiles are fast with any number of workgroups.
const SHORT_ROW: usize = 2048;

/// The kernels that can compute an attention call, or its gradient. The schedule of the call selects one variant.
#[derive(Clone, Copy)]
pub(super) enum Variant {
    /// Kernels of the operator's decomposition: matmuls and a softmax.
    Decomposed,
    /// Tiles of this number of queries, without cooperative matrices.
    Tiles(usize),
    /// Gradients by tiles of these numbers of queries and of keys, without cooperative matrices.
    GradientTiles([usize; 2]),
    Coop(coop_forward::Tiling),
    GradientCoop([coop_backward::Tiling; 2]),
    /// One workgroup for each query of each head, whose threads share keys.
    Vectors(Sharing),
    /// Like [`Variant::Vectors`], but with one thread for each key.
    Elements,
}

impl Candidate for Variant {
    fn schedule(&self) -> Schedule {
        match self {
            Variant::Decomposed => Schedule::of("attention_decomposed"),
            Variant::Tiles(rows) => Schedule::of("attention_tiled").with("rows", [*rows]),
            Variant::GradientTiles([queries, keys]) => Schedule::of("attention_tiled")
                .with("queries", [*queries])
                .with("keys", [*keys]),
            Variant::Coop(tiling) => Schedule::of("attention_coop").with("keys", [tiling.keys()]),
            Variant::GradientCoop([queries, keys]) => Schedule::of("attention_coop")
                .with("queries", queries.setting())
                .with("keys", keys.setting()),
            Variant::Vectors(sharing) => sharing.schedule(),
            Variant::Elements => Schedule::of("attention_cached_elements"),
        }
    }
}

/// A call that has several variants.
#[derive(Clone, Copy)]
pub(super) struct Attention<'a> {
    pub(super) cx: &'a CompileCx<'a>,
    pub(super) kind: Kind,
    pub(super) dims: AttentionDims,
}

impl Attention<'_> {
    /// Returns the default variant, according to thresholds that were measured on some devices.
    pub(super) fn usual(&self) -> Variant {
        let Attention { cx, kind, dims } = *self;
        match kind {
            Kind::Gradient if pays(&dims) => {
                let units = cx.coop.and_then(|config| coop_backward::usual(&config, dims));
                let rows = || [TiledOperand::Queries, TiledOperand::Keys].map(|side| tiles::usual_rows(&dims, side));
                units.map_or_else(|| Variant::GradientTiles(rows()), Variant::GradientCoop)
            }
            Kind::Forward if pays(&dims) => self.usual_tiles(),
            Kind::Forward | Kind::Gradient => Variant::Decomposed,
            Kind::Cached if dims.rows_q >= MIN_QUERIES && self.has_tiles() => self.usual_tiles(),
            Kind::Cached => Sharing::usual(cx, &dims).map_or(Variant::Elements, Variant::Vectors),
        }
    }

    fn usual_tiles(&self) -> Variant {
        let Attention { cx, dims, .. } = *self;
        let units = cx.coop.and_then(|config| coop_forward::usual(&config, dims));
        units.map_or_else(
            || Variant::Tiles(tiles::usual_rows(&dims, TiledOperand::Queries)),
            Variant::Coop,
        )
    }

    /// Returns true if the rows can be cut into tiles. They cannot if a result overwrites an operand, because
    /// workgroups would read elements that other workgroups have overwritten.
    fn has_tiles(&self) -> bool {
        self.dims.head_dim <= MAX_WIDTH && !self.cx.overwrites()
    }

    /// Returns all variants, the default one first.
    pub(super) fn all(&self) -> Vec<Variant> {
        let Attention { cx, kind, dims } = *self;
        let mut all = vec![self.usual()];
        match kind {
            Kind::Gradient => {
                let pairs = tiles::ROWS.into_iter().flat_map(|q| tiles::ROWS.map(|k| [q, k]));
                all.extend(pairs.map(Variant::GradientTiles));
                let units = cx.coop.map(|config| coop_backward::all(&config, dims));
                all.extend(units.unwrap_or_default().into_iter().map(Variant::GradientCoop));
            }
            Kind::Forward | Kind::Cached if self.has_tiles() => {
                all.extend(tiles::ROWS.map(Variant::Tiles));
                let units = cx.coop.map(|config| coop_forward::all(&config, dims));
                all.extend(units.unwrap_or_default().into_iter().map(Variant::Coop));
            }
            Kind::Forward | Kind::Cached => {}
        }
        if kind == Kind::Cached {
            all.extend(Sharing::all(cx, &dims).into_iter().map(Variant::Vectors));
            all.push(Variant::Elements);
        }
        if self.can_be_apart() {
            all.push(Variant::Decomposed);
        }
        all
    }

    /// Returns true if the decomposition is a candidate: it must have kernels, and its intermediate values must be
    /// small enough.
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
        let fits = |compiled: Compiled| compiled.scratch.iter().all(|&bytes| bytes <= MAX_SCORES);
        scores <= MAX_SCORES && self.decomposed().is_ok_and(fits)
    }

    /// Compiles the launches of the decomposition in their default variants, so that the variant that is used equals
    /// the variant that was measured.
    fn decomposed(&self) -> Result<Compiled, String> {
        let cx = self.cx;
        let part = cx.part(cx.kernel, cx.inputs.clone(), cx.outputs.clone(), cx.first_scratch);
        compile_decomposed(&CompileCx { choices: None, ..part })
    }

    /// Compiles the launches of a variant.
    pub(super) fn compile(&self, variant: &Variant) -> Result<Compiled, String> {
        let Attention { cx, dims, .. } = *self;
        match variant {
            Variant::Decomposed => self.decomposed(),
            &Variant::Tiles(rows) => forward::compile(cx, dims, rows),
            &Variant::GradientTiles(rows) => backward::compile(cx, dims, rows),
            Variant::Coop(tiling) => coop_forward::compile(cx, tiling),
            Variant::GradientCoop(tilings) => coop_backward::compile(cx, tilings),
            &Variant::Vectors(sharing) => cached::by_vectors(cx, dims, sharing, None),
            Variant::Elements => Ok(cached::by_elements(cx, dims)?.into()),
        }
    }

    /// Returns the class of calls that share the fastest variant. It depends on the kind, sizes, visible keys, and
    /// dtypes.
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
        // Number of contractions over all pairs of queries and keys.
        let contraction = match kind {
            Kind::Forward | Kind::Cached => 2,
            Kind::Gradient => 7,
        };
        let sizes = vec![all_heads, group, rows_q, rows_k, head_dim];
        let each = [all_heads, rows_q, rows_k, 4 * vectors(&dims), contraction];
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

/// Returns true if tiles of queries are probably faster than matmuls and a softmax. Each tile reads all visible keys.
fn pays(dims: &AttentionDims) -> bool {
    let groups = dims.batch * dims.heads * dims.rows_q.div_ceil(tiles::FEW_ROWS);
    let enough_queries = dims.rows_q >= MIN_QUERIES || dims.rows_k <= FEW_KEYS;
    enough_queries && (groups >= GROUPS_THRESHOLD || dims.rows_k <= SHORT_ROW)
}
