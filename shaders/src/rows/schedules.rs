//! Variants of reductions: how many threads share a row, in how many parts it is cut, and whether the columns of a thread
//! are written out.

use meganeura_core::precision::Precision;

use super::super::body::Def;
use super::super::schedule::Class;
use super::super::schedule::Schedule;
use super::super::variants::{Candidate, range};
use super::{CompileCx, Compiled, Layout, MAX_PARTS, Rows, THREADS};

/// Multiplications that take as long as loading an element, roughly.
const WORK_OF_ELEMENT: u128 = 64;
/// Most columns of a thread that are tried: more are no work for a single one.
const MAX_COLUMNS: usize = 4_096;
/// Fewest columns of a part that are tried.
const MIN_COLUMNS: usize = 512;
/// Most threads for which rows are cut into parts.
const MAX_THREADS: usize = 1 << 20;

/// A variant to compute reductions.
#[derive(Clone, Debug)]
pub(super) struct Variant {
    pub(super) layout: Layout,
    /// Parts that a row is cut into.
    pub(super) parts: usize,
    /// Columns of a thread whose code is written out; 0 where there is a loop.
    pub(super) written: usize,
}

impl Candidate for Variant {
    fn schedule(&self) -> Schedule {
        Schedule::of("reduce")
            .with("lanes", [self.layout.lanes])
            .with("split", [self.parts])
            .with("unroll", [self.written])
    }
}

impl Rows<'_> {
    /// The variant that limits choose, which were found by measuring some devices.
    pub(super) fn usual(&self) -> Variant {
        let layout = Layout::of(self);
        let parts = self.parts(&layout);
        let written = if parts == 1 { self.written(&layout) } else { 0 };
        Variant { layout, parts, written }
    }

    /// All variants, the default one first.
    pub(super) fn all(&self) -> Vec<Variant> {
        let usual = self.usual();
        let rows_first = usual.layout.rows_first;
        let most = Layout::most_lanes(rows_first).min(self.columns.next_power_of_two());
        let mut all = vec![usual];
        for lanes in powers_of_two(most) {
            let layout = Layout::of_lanes(lanes, rows_first);
            for parts in powers_of_two(self.most_parts(&layout)) {
                if self.columns / (lanes * parts) > MAX_COLUMNS {
                    continue;
                }
                let written = if parts == 1 { self.written(&layout) } else { 0 };
                all.push(Variant { layout, parts, written });
                if written > 0 {
                    all.push(Variant {
                        layout,
                        parts,
                        written: 0,
                    });
                }
            }
        }
        all
    }

    /// Parts up to which it is tried to cut rows.
    fn most_parts(&self, layout: &Layout) -> usize {
        if !self.can_be_cut() {
            return 1;
        }
        let threads = (self.rows.div_ceil(layout.width) * THREADS).max(1);
        let most = MAX_PARTS.min(self.columns / MIN_COLUMNS);
        most.min(MAX_THREADS / threads).max(1)
    }

    /// What decides which variant is the best: what is reduced, what is read and stored, sizes, and how rows lie in memory.
    pub(super) fn class(&self, cx: &CompileCx, precision: Precision) -> Class {
        let Rows { rows, columns, .. } = *self;
        let all = self.reductions.iter();
        let all = all.map(|r| format!("{:?}.{}", r.fold, r.level).to_lowercase());
        // One for each element, for each row, or neither.
        let location = |numel: usize| match numel {
            numel if numel == rows * columns => 'e',
            numel if numel == rows => 'r',
            _ => 'o',
        };
        let operands = self
            .body
            .nodes
            .iter()
            .filter(|node| matches!(node.def, Def::Operand(_)));
        let mut read: Vec<String> = operands
            .map(|node| format!("{}.{}", node.ty.dtype, location(node.ty.numel())))
            .collect();
        read.sort_unstable();
        let stored = cx.kernel.outputs.iter();
        let stored = stored.map(|ty| format!("{}.{}", ty.dtype, location(ty.numel())));
        let along = if Layout::of(self).rows_first { "rows" } else { "columns" };
        Class {
            name: format!(
                "reduction {} {}->{} {}x{columns} by {along} {precision}",
                all.collect::<Vec<_>>().join("+"),
                read.join("+"),
                stored.collect::<Vec<_>>().join("+"),
                range(rows),
            ),
            sizes: vec![rows, columns],
            work: (rows as u128 * columns as u128).saturating_mul(WORK_OF_ELEMENT),
        }
    }

    /// Launches in a variant.
    pub(super) fn compile(&self, cx: &CompileCx, variant: &Variant) -> Result<Compiled, String> {
        let rows = Rows {
            written_out: variant.written,
            ..self.clone()
        };
        let &Variant { ref layout, parts, .. } = variant;
        if parts <= 1 {
            return Ok(rows.whole(cx, layout)?.into());
        }
        let bytes = 4 * rows.rows * parts;
        Ok(Compiled {
            launches: vec![rows.partial(cx, layout, parts)?, rows.join_parts(cx, parts)?],
            scratch: vec![bytes; rows.reductions.len()],
            ..Compiled::default()
        })
    }
}

/// 1, 2, 4 and so on.
fn powers_of_two(most: usize) -> impl Iterator<Item = usize> {
    (0..).map(|power| 1 << power).take_while(move |&number| number <= most)
}
