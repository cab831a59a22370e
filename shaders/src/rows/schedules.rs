//! Variants of reductions. They differ in the number of threads of a row, of parts of a row, and of unrolled columns
//! of a thread.

use meganeura_core::precision::Precision;

use super::super::body::Def;
use super::super::schedule::Class;
use super::super::schedule::Schedule;
use super::super::variants::{Candidate, range};
use super::{CompileCx, Compiled, Layout, MAX_PARTS, Rows, THREADS};

/// Approximate number of multiplications that take as long as loading an element.
const WORK_OF_ELEMENT: u128 = 64;
/// Maximum number of columns of a thread in a candidate variant.
const MAX_COLUMNS: usize = 4_096;
/// Minimum number of columns of a part in a candidate variant.
const MIN_COLUMNS: usize = 512;
/// Maximum number of threads for which candidates split rows into parts.
const MAX_THREADS: usize = 1 << 20;

/// A variant of a reduction kernel.
#[derive(Clone, Debug)]
pub(super) struct Variant {
    pub(super) layout: Layout,
    /// Number of parts of a row.
    pub(super) parts: usize,
    /// Number of columns of a thread whose code is unrolled; 0 for a loop.
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
    /// Returns the default variant, according to thresholds that were measured on some devices.
    pub(super) fn usual(&self) -> Variant {
        let layout = Layout::of(self);
        let parts = self.parts(&layout);
        let written = if parts == 1 { self.written(&layout) } else { 0 };
        Variant { layout, parts, written }
    }

    /// Returns all variants, the default one first.
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

    /// Returns the maximum number of parts of a row in the candidates.
    fn most_parts(&self, layout: &Layout) -> usize {
        if !self.can_be_cut() {
            return 1;
        }
        let threads = (self.rows.div_ceil(layout.width) * THREADS).max(1);
        let most = MAX_PARTS.min(self.columns / MIN_COLUMNS);
        most.min(MAX_THREADS / threads).max(1)
    }

    /// Returns the class of calls that share the fastest variant. It depends on the reductions, loads and stores,
    /// sizes, and the memory layout of rows.
    pub(super) fn class(&self, cx: &CompileCx, precision: Precision) -> Class {
        let Rows { rows, columns, .. } = *self;
        let all = self.reductions.iter();
        let all = all.map(|r| format!("{:?}.{}", r.fold, r.level).to_lowercase());
        // An operand has one element for each element of the domain, one element for each row, or neither.
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

    /// Compiles the launches of a variant.
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

/// Returns 1, 2, 4 and so on up to `most`.
fn powers_of_two(most: usize) -> impl Iterator<Item = usize> {
    (0..).map(|power| 1 << power).take_while(move |&number| number <= most)
}
