//! Contractions of few rows whose operands are contiguous along the summed dimension. Threads load four terms or a
//! word of packed weights at a time. They issue all loads of the matrix, up to a limit, before they wait for other
//! data.

use meganeura_core::quantization::{BLOCK, BlockFormat};

use super::super::contraction::{Contraction, Sizes};
use super::super::emit::Emitter;
use super::super::epilogue::SumConsumer;
use super::super::files;
use super::super::fold::{pairwise, sum};
use super::super::kernel::{CompileCx, Launch};
use super::super::packed::Packed;
use super::super::schedule::Schedule;
use super::super::template::Template;
use super::{GROUPS_THRESHOLD, MAX_STAGED, SharedSums, THREADS, WIDTH, has_vectors, load_rows, vector};

/// Number of threads that share the sum of a column.
const LANES: usize = 32;
/// Number of columns of a workgroup for each column of a thread.
const COLUMN_GROUPS: usize = THREADS / LANES;
/// Possible numbers of columns of a thread, the largest first. Each thread reads rows once for all of its columns.
pub(super) const COLUMNS: [usize; 3] = [4, 2, 1];
/// With at least this number of rows, the vectors of all rows would need too many registers, so they are not loaded at
/// once.
const SOME_ROWS: usize = 4;
/// Maximum number of sums of a thread.
const MAX_SUMS: usize = 32;
/// Maximum number of vectors of the matrix that a thread has in flight.
const MAX_LOADS: usize = 16;
/// Minimum number of loads that each lane must have if a load has several words.
const MIN_LOADS: usize = 4;
/// Maximum number of sums of each thread that are in shared memory together, if shared memory does not also contain
/// rows. All devices have 16 KiB.
const MAX_STORED_SUMS: usize = 8;
/// Maximum number of threads that add up the sums of a column.
const MAX_ADDERS: usize = 8;

/// A launch of `kernels/matmul_rows_wide.wgsl`.
pub(crate) struct WideRowMatmul<'a> {
    contraction: &'a dyn Contraction,
    sizes: Sizes,
    /// Number of words of packed weights that a thread loads at once.
    words: usize,
    /// True if the lanes of a column are a subgroup of the device.
    subgroups: bool,
    /// Number of columns of a thread.
    columns: usize,
    parts: usize,
    /// Number of terms of a part.
    length: usize,
    /// Settings for an epilogue that reads other sums of the workgroup, if any.
    shared: Option<SharedSums>,
}

impl<'a> WideRowMatmul<'a> {
    /// Returns the launch with `columns` columns per thread, or with the default number. Returns `None` if the
    /// operands have no such vectors, or if there would be too many sums.
    pub(super) fn new(
        contraction: &'a dyn Contraction,
        cx: &CompileCx,
        parts: usize,
        columns: Option<usize>,
        shared: Option<SharedSums>,
    ) -> Option<Self> {
        let sizes = contraction.sizes();
        let Sizes { batch, m, n, k } = sizes;
        let packed = contraction.packed(1).filter(|_| contraction.is_along_k(1));
        // A block of packed weights is not split.
        let together = if packed.is_some() { BLOCK } else { WIDTH };
        let length = k.div_ceil(parts.max(1)).next_multiple_of(together);
        let staged = contraction.stored(0).is_none() && m * length <= MAX_STAGED;
        let loads = packed.is_some() || has_vectors(contraction, cx, 1);
        if k == 0 || !k.is_multiple_of(together) || !loads || !(staged || has_vectors(contraction, cx, 0)) {
            return None;
        }
        let groups = |columns: &usize| batch * parts * n.div_ceil(columns * COLUMN_GROUPS);
        let tile_fits = |columns| shared.is_none_or(|shared| shared.fits(columns * COLUMN_GROUPS, n));
        let mut fitting = COLUMNS
            .into_iter()
            .filter(|&columns| m * columns <= MAX_SUMS && tile_fits(columns));
        let columns = fitting.find(|fitting| match columns {
            Some(columns) => *fitting == columns,
            None => *fitting == 1 || groups(fitting) >= GROUPS_THRESHOLD,
        })?;
        Some(WideRowMatmul {
            contraction,
            sizes,
            words: packed.map_or(1, |packed| WideRowMatmul::words_together(packed, length)),
            subgroups: cx.features.subgroup_size == Some(LANES as u32),
            columns,
            parts: k.div_ceil(length),
            length,
            shared,
        })
    }

    /// Returns the schedule of the contraction.
    pub(crate) fn schedule(&self) -> Schedule {
        Schedule::of("matmul_rows_wide")
            .with("columns", [self.columns])
            .with("split_k", [self.parts])
    }

    pub(crate) fn parts(&self) -> usize {
        self.parts
    }

    /// Compiles a launch that passes each sum to `sink`.
    pub(super) fn launch(&self, mut e: Emitter, sink: &SumConsumer) -> Result<Launch, String> {
        let Sizes { batch, m, n, k } = self.sizes;
        let before = std::mem::take(&mut e.code);
        let (sums, together) = (self.sums(), self.together());
        let last = sums - (sums - 1) / together * together;
        let [adders, last_adders] = [together, last].map(|sums| WideRowMatmul::adders(sums * COLUMN_GROUPS));
        let template = SharedSums::tell(self.shared, sink.finish(Template::new(files::MATMUL_ROWS_WIDE)));
        let mut template = self
            .contraction
            .element_number(&mut e, template)?
            .insert("before", before)
            .sizes([("BATCH", batch), ("M", m), ("N", n), ("K", k)])
            .sizes([
                ("COLUMNS", self.columns),
                ("SPLIT_K", self.parts),
                ("LENGTH", self.length),
            ])
            .sizes([("ROUNDS", self.rounds()), ("STORED_SUMS", self.together())])
            .sizes([("THREADS", THREADS), ("LANES", LANES), ("SOME_ROWS", SOME_ROWS)])
            .flag("STAGED", self.is_staged())
            .flag("SUBGROUPS", self.subgroups && self.sums() <= LANES)
            .size("UNIT", self.unit())
            .flag("SCALED", self.packed().is_some_and(|packed| packed.is_scaled()))
            .sizes([("REDUCE_THREADS", adders), ("LAST_REDUCE_THREADS", last_adders)])
            .returns("add_lanes", "", &WideRowMatmul::add_lanes(adders))
            .returns("add_few", "", &WideRowMatmul::add_few(adders))
            .returns("add_last_lanes", "", &WideRowMatmul::add_lanes(last_adders))
            .returns("add_last_few", "", &WideRowMatmul::add_few(last_adders));
        template = match self.packed() {
            Some(packed) => self.packed_loads(&mut e, template, packed)?,
            None => {
                let (b, b_value) = vector(self.contraction, &mut e, 1)?;
                template.returns("load_b", &b, &b_value)
            }
        };
        template = load_rows(self.contraction, &mut e, template, self.is_staged())?;
        let groups = n.div_ceil(self.columns * COLUMN_GROUPS) * batch * self.parts;
        e.module.finish_template(template, groups)
    }

    /// Returns the number of threads (*adders*) that reduce the partial sums of one column, if a workgroup reduces
    /// `columns` columns at once. It is a power of two, so that all adders add up the same number of partial sums.
    fn adders(columns: usize) -> usize {
        1 << (THREADS / columns).min(MAX_ADDERS).ilog2()
    }

    /// Returns the WGSL expression of the sum that one adder computes, over every `adders`-th lane of a column.
    fn add_lanes(adders: usize) -> String {
        pairwise((0..LANES / adders).map(|i| format!("sums[at + {}u]", i * adders)), sum)
    }

    /// Returns the WGSL expression of the sum of the results of a column's adders.
    fn add_few(adders: usize) -> String {
        pairwise((0..adders).map(|i| format!("few[own * {adders}u + {i}u]")), sum)
    }

    /// Returns the packed matrix, or `None` if the matrix is not packed.
    fn packed(&self) -> Option<Packed> {
        self.contraction.packed(1)
    }

    /// Returns the number of vectors of a unit. A unit is the part of a column that a thread loads at once.
    fn unit(&self) -> usize {
        self.packed().map_or(1, |packed| packed.terms(self.words) / WIDTH)
    }

    /// Returns the number of units of a column that a thread loads in total.
    fn units(&self) -> usize {
        (self.length / WIDTH / self.unit()).div_ceil(LANES)
    }

    /// Returns the number of iterations of a thread's loads. All of them load about the same number of units.
    fn rounds(&self) -> usize {
        self.units().div_ceil(MAX_LOADS / self.columns).max(1)
    }

    /// Returns the number of sums of a thread: one for each row and each of its columns.
    fn sums(&self) -> usize {
        self.sizes.m * self.columns
    }

    /// Returns the number of sums that are in shared memory together.
    fn together(&self) -> usize {
        if self.is_staged() {
            1
        } else {
            MAX_STORED_SUMS.min(self.sums())
        }
    }

    /// Returns true if rows are computed before the sums.
    fn is_staged(&self) -> bool {
        self.contraction.stored(0).is_none()
    }

    /// Adds the units of a packed matrix, their scales, and the code that expands them to a kernel file.
    fn packed_loads(&self, e: &mut Emitter, template: Template, packed: Packed) -> Result<Template, String> {
        let terms = packed.terms(self.words);
        // Returns the index of the unit `k`, counted in pieces of `together` terms.
        let number = |e: &mut Emitter, together: usize| {
            let first = e.bind(&format!("k * {terms}u"))?;
            let found = self.contraction.number_of(e, 1, "line", &first)?;
            e.bind(&format!("({}) / {together}u", found.number))
        };
        let (words, word) = e.block(|e| {
            let number = number(e, terms)?;
            packed.load_unit(e, self.words, &number)
        })?;
        let template = if packed.is_scaled() {
            let (scales, scale) = e.block(|e| {
                let number = number(e, BLOCK)?;
                Ok(e.module.load(packed.scales, &number))
            })?;
            template.returns("load_scale", &scales, &scale)
        } else {
            template
        };
        Ok(template
            .alias("Unit", packed.unit_type(self.words))
            .returns("load_b", &words, &word)
            .returns("expand_b", "", &packed.expand(self.words))
            .returns("vector_of", "", &packed.vector_of(self.words)))
    }

    /// Returns the number of words that a thread loads at once from a line of `length` terms. For 8-bit weights, it
    /// is the maximum that leaves each lane enough loads. For 4-bit weights, it is 1: a word has more terms, and with
    /// several words, a lane would read the row elements from more distant memory. On an H200, this was a tenth
    /// slower through Vulkan.
    fn words_together(packed: Packed, length: usize) -> usize {
        let words = length / packed.terms(1);
        let enough = |together: &usize| packed.format == BlockFormat::Q8_0 && words >= together * LANES * MIN_LOADS;
        [4, 2].into_iter().find(enough).unwrap_or(1)
    }
}
