//! Variants of contractions: one thread for each result, tiles, lanes or wide columns, or cooperative matrices.

use meganeura_core::precision::Precision;

use super::super::body::{Body, Id};
use super::super::contraction::{Contraction, Sizes};
use super::super::coop::Blocks;
use super::super::kernel::CompileCx;
use super::super::schedule::Class;
use super::super::schedule::Schedule;
use super::super::variants::{Candidate, range};
use super::super::vectors::{self, RowMatmul};
use super::Tiling;

/// Maximum number of multiplications for which one thread for each result is equally fast, and simpler.
const FEW_PRODUCTS: usize = 1 << 16;
/// Maximum number of terms of a sum for which one thread for each result is the default.
const SHORT_SUM: usize = 256;
/// Maximum number of multiplications for which one thread for each result is a candidate.
const MAX_DIRECT: usize = 1 << 22;

/// A contraction that is cut into tiles of one kind.
pub(super) enum Tiles<'a> {
    /// One thread for each result.
    Direct,
    Threads(Tiling<'a>),
    Coop(Blocks<'a>),
    Vectors(RowMatmul<'a>),
}

/// A contraction and its context, for the variants.
#[derive(Clone, Copy)]
pub(crate) struct MatMulCall<'a> {
    pub(crate) body: &'a Body,
    pub(crate) id: Id,
    pub(crate) cx: &'a CompileCx<'a>,
    pub(crate) contraction: &'a dyn Contraction,
    /// Number of elements of the result.
    pub(crate) total: usize,
    /// True if reductions precede the contraction. Only [`vectors`] supports this.
    pub(crate) reduces: bool,
}

impl MatMulCall<'_> {
    /// Returns the class of calls that share the fastest variant. It depends on the kind of contraction, the memory
    /// layout of operands, sizes, and the presence of an epilogue.
    pub(super) fn class(&self, precision: Precision) -> Class {
        let &MatMulCall {
            body, id, contraction, ..
        } = self;
        let Sizes { batch, m, n, k } = contraction.sizes();
        let operand = |operand: usize| {
            let dtype = contraction
                .stored(operand)
                .map(|i| self.cx.kernel.inputs[i].dtype.to_string());
            let dtype = dtype.unwrap_or_else(|| "computed".into());
            let along = match (contraction.is_along_k(operand), operand) {
                (true, _) => 'k',
                (false, 0) => 'm',
                (false, _) => 'n',
            };
            format!("{dtype}.{along}")
        };
        let around = match (self.reduces, body.results == [id]) {
            (true, _) => "after reductions",
            (false, true) => "alone",
            (false, false) => "with more",
        };
        Class {
            name: format!(
                "{} {}*{} {}x{}x{n}x{k} {around} {precision}",
                contraction.kind(),
                operand(0),
                operand(1),
                range(batch),
                range(m)
            ),
            sizes: vec![batch, m, n, k],
            work: [batch, m, n, k].iter().map(|&size| size as u128).product(),
        }
    }
}

impl<'a> Tiles<'a> {
    /// Returns the default variant, according to thresholds that were measured on some devices. Returns `None` for
    /// many rows after reductions.
    pub(super) fn usual(product: &MatMulCall<'a>) -> Option<Self> {
        let MatMulCall {
            cx, contraction, total, ..
        } = *product;
        let sizes = contraction.sizes();
        if product.reduces {
            return RowMatmul::new(contraction, total, cx).map(Tiles::Vectors);
        }
        let units_always = cx.coop.is_some_and(|config| config.min_workgroups == 0 && sizes.k > 0);
        if total.saturating_mul(sizes.k) <= FEW_PRODUCTS && sizes.k <= SHORT_SUM && !units_always {
            return Some(Tiles::Direct);
        }
        let units = cx.coop.and_then(|config| Blocks::new(contraction, config, total));
        // Cooperative matrices compute whole tiles even for few rows. Kernels without them are faster in this case.
        let few = sizes.m <= vectors::FEW_ROWS;
        Some(match (units, RowMatmul::new(contraction, total, cx)) {
            (Some(blocks), vectors) if units_always || !few || vectors.is_none() => Tiles::Coop(blocks),
            (_, Some(vectors)) => Tiles::Vectors(vectors),
            (_, None) => Tiles::Threads(Tiling::new(contraction, total)),
        })
    }

    /// Returns all variants, the default one first.
    pub(super) fn all(product: &MatMulCall<'a>) -> Vec<Self> {
        let MatMulCall {
            cx, contraction, total, ..
        } = *product;
        let mut all: Vec<Self> = Tiles::usual(product).into_iter().collect();
        all.extend(RowMatmul::all(contraction, total, cx).into_iter().map(Tiles::Vectors));
        if !product.reduces {
            all.extend(Tiling::all(contraction, total).into_iter().map(Tiles::Threads));
            let units = cx.coop.map(|config| Blocks::all(contraction, config, total));
            all.extend(units.unwrap_or_default().into_iter().map(Tiles::Coop));
            if total.saturating_mul(contraction.sizes().k) <= MAX_DIRECT {
                all.push(Tiles::Direct);
            }
        }
        all
    }
}

impl Candidate for Tiles<'_> {
    fn schedule(&self) -> Schedule {
        match self {
            Tiles::Direct => Schedule::of("matmul_direct"),
            Tiles::Threads(tiling) => Schedule::of("matmul_tiled")
                .with("each", [tiling.tile])
                .with("split_k", [tiling.parts]),
            Tiles::Vectors(vectors) => vectors.schedule(),
            Tiles::Coop(blocks) => {
                let b = blocks.block();
                let schedule = Schedule::of("matmul_coop")
                    .with("block", [b.rows, b.columns, b.step])
                    .with("subgroup", [b.sub_rows, b.sub_columns])
                    .with("sliced_k", [b.depths])
                    .with("prefetch", [b.prefetch])
                    .with("split_k", [blocks.parts()]);
                match blocks.tail() {
                    Some(tail) => schedule.with("tail", [tail.blocks, tail.parts()]),
                    None => schedule,
                }
            }
        }
    }
}
