//! Contractions of few rows whose operands are contiguous along the summed dimension: threads read four terms or a word of packed
//! weights at a time, and all that they need of the matrix, if that is not too much, before they wait for anything else.

use meganeura_core::quantization::{BLOCK, BlockFormat};

use super::super::contraction::{Contraction, Sizes};
use super::super::emit::Emitter;
use super::super::epilogue::Sink;
use super::super::files;
use super::super::fold::{pairwise, sum};
use super::super::kernel::{CompileCx, Launch};
use super::super::packed::Packed;
use super::super::schedule::Schedule;
use super::super::template::Template;
use super::{GROUPS_THRESHOLD, MAX_STAGED, Shared, THREADS, WIDTH, has_vectors, load_rows, vector};

/// Threads that share the sum of a column.
const LANES: usize = 32;
/// Columns of a workgroup for each column of a thread.
const ACROSS: usize = THREADS / LANES;
/// Columns of a thread, the most first: each reads rows once for all of them.
pub(super) const COLUMNS: [usize; 3] = [4, 2, 1];
/// Rows from which on their vectors are not read all at once: there are too many for the registers.
const SOME_ROWS: usize = 4;
/// Most sums of a thread.
const MAX_SUMS: usize = 32;
/// Most vectors of the matrix that a thread has in flight.
const MAX_LOADS: usize = 16;
/// Loads of a lane from which on they are of several words each.
const MIN_LOADS: usize = 4;
/// Sums of each thread that are in shared memory together, if rows are not there too: all devices have 16 KB.
const TOGETHER: usize = 8;
/// Most threads that add up the sums of a column.
const MAX_ADDERS: usize = 8;

/// A launch of such a product.
pub(crate) struct Wide<'a> {
    contraction: &'a dyn Contraction,
    sizes: Sizes,
    /// Words of packed weights that a thread loads at once.
    words: usize,
    /// Whether the lanes of a column are a subgroup of the device.
    subgroups: bool,
    /// Columns of a thread.
    columns: usize,
    parts: usize,
    /// Terms of a part.
    length: usize,
    /// What of the workgroup's sums an epilogue reads.
    shared: Option<Shared>,
}

impl<'a> Wide<'a> {
    /// So many columns of a thread, or as many as are commonly the best; `None` where operands have no such vectors, or there
    /// were too many sums.
    pub(super) fn new(
        contraction: &'a dyn Contraction,
        cx: &CompileCx,
        parts: usize,
        columns: Option<usize>,
        shared: Option<Shared>,
    ) -> Option<Self> {
        let sizes = contraction.sizes();
        let Sizes { batch, m, n, k } = sizes;
        let packed = contraction.packed(1).filter(|_| contraction.is_along_k(1));
        // A block of packed weights is not cut.
        let together = if packed.is_some() { BLOCK } else { WIDTH };
        let length = k.div_ceil(parts.max(1)).next_multiple_of(together);
        let staged = contraction.stored(0).is_none() && m * length <= MAX_STAGED;
        let loads = packed.is_some() || has_vectors(contraction, cx, 1);
        if k == 0 || !k.is_multiple_of(together) || !loads || !(staged || has_vectors(contraction, cx, 0)) {
            return None;
        }
        let groups = |columns: &usize| batch * parts * n.div_ceil(columns * ACROSS);
        let tile_fits = |columns| shared.is_none_or(|shared| shared.fits(columns * ACROSS, n));
        let mut fitting = COLUMNS
            .into_iter()
            .filter(|&columns| m * columns <= MAX_SUMS && tile_fits(columns));
        let columns = fitting.find(|fitting| match columns {
            Some(columns) => *fitting == columns,
            None => *fitting == 1 || groups(fitting) >= GROUPS_THRESHOLD,
        })?;
        Some(Wide {
            contraction,
            sizes,
            words: packed.map_or(1, |packed| Wide::words_together(packed, length)),
            subgroups: cx.features.subgroup_size == Some(LANES as u32),
            columns,
            parts: k.div_ceil(length),
            length,
            shared,
        })
    }

    /// How it computes the product.
    pub(crate) fn schedule(&self) -> Schedule {
        Schedule::of("matmul_rows_wide")
            .with("columns", [self.columns])
            .with("split_k", [self.parts])
    }

    pub(crate) fn parts(&self) -> usize {
        self.parts
    }

    /// A launch that gives each sum to a sink.
    pub(super) fn launch(&self, mut e: Emitter, sink: &Sink) -> Result<Launch, String> {
        let Sizes { batch, m, n, k } = self.sizes;
        let before = std::mem::take(&mut e.code);
        let (sums, together) = (self.sums(), self.together());
        let last = sums - (sums - 1) / together * together;
        let [adders, last_adders] = [together, last].map(|sums| Wide::adders(sums * ACROSS));
        let template = Shared::tell(self.shared, sink.finish(Template::new(files::MATMUL_ROWS_WIDE)));
        let mut template = self
            .contraction
            .element_number(&mut e, template)?
            .insert("before", before)
            .sizes([("BATCH", batch), ("M", m), ("N", n), ("K", k)])
            .sizes([
                ("COLUMNS", self.columns),
                ("PARTS", self.parts),
                ("LENGTH", self.length),
            ])
            .sizes([("ROUNDS", self.rounds()), ("TOGETHER", self.together())])
            .sizes([("THREADS", THREADS), ("LANES", LANES), ("SOME_ROWS", SOME_ROWS)])
            .flag("STAGED", self.is_staged())
            .flag("SUBGROUPS", self.subgroups && self.sums() <= LANES)
            .size("UNIT", self.unit())
            .flag("SCALED", self.packed().is_some_and(|packed| packed.is_scaled()))
            .sizes([("ADDERS", adders), ("LAST_ADDERS", last_adders)])
            .returns("add_lanes", "", &Wide::add_lanes(adders))
            .returns("add_few", "", &Wide::add_few(adders))
            .returns("add_last_lanes", "", &Wide::add_lanes(last_adders))
            .returns("add_last_few", "", &Wide::add_few(last_adders));
        template = match self.packed() {
            Some(packed) => self.packed_loads(&mut e, template, packed)?,
            None => {
                let (b, b_value) = vector(self.contraction, &mut e, 1)?;
                template.returns("load_b", &b, &b_value)
            }
        };
        template = load_rows(self.contraction, &mut e, template, self.is_staged())?;
        let groups = n.div_ceil(self.columns * ACROSS) * batch * self.parts;
        e.module.finish_template(template, groups)
    }

    /// Threads that add up the sums of each of so many columns: a power of two, as lanes are dealt out evenly.
    fn adders(columns: usize) -> usize {
        1 << (THREADS / columns).min(MAX_ADDERS).ilog2()
    }

    /// The sum of what every `adders`-th lane of a column has.
    fn add_lanes(adders: usize) -> String {
        pairwise((0..LANES / adders).map(|i| format!("sums[at + {}u]", i * adders)), sum)
    }

    /// The sum of what the adders of a column found.
    fn add_few(adders: usize) -> String {
        pairwise((0..adders).map(|i| format!("few[own * {adders}u + {i}u]")), sum)
    }

    /// The matrix, if it is packed.
    fn packed(&self) -> Option<Packed> {
        self.contraction.packed(1)
    }

    /// Vectors of what a thread loads of a column at once.
    fn unit(&self) -> usize {
        self.packed().map_or(1, |packed| packed.terms(self.words) / WIDTH)
    }

    /// Units of a thread in a line.
    fn units(&self) -> usize {
        (self.length / WIDTH / self.unit()).div_ceil(LANES)
    }

    /// Rounds in which it reads them, each of about as many.
    fn rounds(&self) -> usize {
        self.units().div_ceil(MAX_LOADS / self.columns).max(1)
    }

    /// Sums of a thread: for each row, those of its columns.
    fn sums(&self) -> usize {
        self.sizes.m * self.columns
    }

    /// How many of these are in shared memory together.
    fn together(&self) -> usize {
        match self.is_staged() {
            true => 1,
            false => TOGETHER.min(self.sums()),
        }
    }

    /// Whether rows are computed before the sums.
    fn is_staged(&self) -> bool {
        self.contraction.stored(0).is_none()
    }

    /// Gives a kernel file the units of a packed matrix, their scales, and what is in them.
    fn packed_loads(&self, e: &mut Emitter, template: Template, packed: Packed) -> Result<Template, String> {
        let terms = packed.terms(self.words);
        // Where the unit `k` begins, among pieces of so many terms.
        let number = |e: &mut Emitter, together: usize| {
            let first = e.bind(&format!("k * {terms}u"))?;
            let found = self.contraction.number_of(e, 1, "line", &first)?;
            e.bind(&format!("({}) / {together}u", found.number))
        };
        let (words, word) = e.block(|e| {
            let number = number(e, terms)?;
            packed.load_unit(e, self.words, &number)
        })?;
        let template = match packed.is_scaled() {
            true => {
                let (scales, scale) = e.block(|e| {
                    let number = number(e, BLOCK)?;
                    Ok(e.module.load(packed.scales, &number))
                })?;
                template.returns("load_scale", &scales, &scale)
            }
            false => template,
        };
        Ok(template
            .alias("Unit", packed.unit_type(self.words))
            .returns("load_b", &words, &word)
            .returns("expand_b", "", &packed.expand(self.words))
            .returns("vector_of", "", &packed.vector_of(self.words)))
    }

    /// How many words a thread loads at once of a line of so many terms: of bytes as many as leave each lane some loads. Half bytes
    /// are more terms a word, whose rows a lane reads from farther apart then: on an H200 a tenth slower through Vulkan.
    fn words_together(packed: Packed, length: usize) -> usize {
        let words = length / packed.terms(1);
        let enough = |together: &usize| packed.format == BlockFormat::Q8_0 && words >= together * LANES * MIN_LOADS;
        [4, 2].into_iter().find(enough).unwrap_or(1)
    }
}
