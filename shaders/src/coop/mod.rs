//! Contractions on the cooperative matrices (tensor cores) of a GPU. They are like `tiled`, but with subgroups
//! instead of single threads.
//!
//! A workgroup computes a block of the result. Each subgroup computes a part of the block as square tiles in
//! registers. The workgroup iterates over the summed dimension in steps. It rounds parts of both operands to the
//! input type of the matrices, copies them to shared memory in their memory order, and prefetches the next ones. Then
//! every subgroup multiplies tiles. At the end, tiles are stored directly, or are passed to the epilogue through
//! shared memory.
//!
//! Contractions with only one row of tiles or with few blocks are bound by memory latency. They use small blocks,
//! whose subgroups share the terms of a step, and prefetch several steps.

mod block;
mod tail;

use meganeura_core::quantization::BLOCK;

use super::contraction::{Contraction, Sizes, contraction_of, packed_along_k, packed_block};
use super::emit::Emitter;
use super::epilogue::{self, RawSums, SumConsumer};
use super::files;
use super::fold::{pairwise, sum};
use super::kernel::Launch;
pub use super::limits::CoopConfig;
use super::packed::Packed;
use super::template::Template;
pub(super) use block::Block;
use tail::Tail;

/// A contraction uses cooperative matrices if it has at least this number of workgroups of two by two tiles.
pub const MIN_COOP_WORKGROUPS: u32 = 128;
/// [`MIN_COOP_WORKGROUPS`] for long sums.
pub const MIN_COOP_WORKGROUPS_HIGH_K: usize = 32;
/// Minimum number of terms of a long sum.
const HIGH_K: usize = 1024;
/// Minimum number of steps of a part of the summed dimension. The launch that combines the parts takes as long as
/// some steps.
const MIN_STEPS: usize = 8;

/// Maximum number of rows of a contraction with few rows.
const FEW_ROWS: usize = 16;
/// A contraction of few rows uses cooperative matrices if the matrix has at least this number of elements.
const MIN_ELEMENTS: usize = 1 << 16;
/// A contraction of more than [`FEW_ROWS`] rows uses cooperative matrices if it has at least this number of
/// multiplications.
const MIN_MULTIPLICATIONS: usize = 1 << 21;
/// A contraction of few rows uses cooperative matrices if its sums have at least this number of terms. A step has at
/// least twice this number.
const MIN_TERMS: usize = 64;

/// Returns true if cooperative matrices are probably faster. This depends on the number of workgroups of two by two
/// tiles.
pub fn prefers_coop(config: &CoopConfig, batch: usize, m: usize, n: usize, k: usize) -> bool {
    let side = 2 * config.tile_size as usize;
    let groups = batch.saturating_mul(m.div_ceil(side)).saturating_mul(n.div_ceil(side));
    groups >= config.min_workgroups as usize || (groups >= MIN_COOP_WORKGROUPS_HIGH_K && k >= HIGH_K)
}

/// Returns true if a contraction has so few rows that large blocks are excluded. Convolutions are never excluded from
/// large blocks: the locations of their elements are computed one by one, and smaller blocks do this more often.
fn has_few_rows(contraction: &dyn Contraction) -> bool {
    contraction.sizes().m <= FEW_ROWS && contraction.is_by_rows()
}

/// A contraction that is cut into blocks.
pub(super) struct Blocks<'a> {
    contraction: &'a dyn Contraction,
    sizes: Sizes,
    config: CoopConfig,
    block: Block,
    cut: KSplit,
    /// The last blocks, if only these blocks are split along the summed dimension.
    tail: Option<Tail>,
}

/// The summed dimension, cut into parts of whole steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KSplit {
    parts: usize,
    /// Number of terms of each part except the last.
    length: usize,
    /// Number of steps of the last part.
    last_steps: usize,
}

impl KSplit {
    /// Cuts `k` terms into at most `wanted` parts. Each part has at least [`MIN_STEPS`] steps, and rounding up can
    /// reduce the number of parts further.
    fn new(k: usize, step: usize, wanted: usize) -> Self {
        let length = k
            .div_ceil(wanted.min(k / (MIN_STEPS * step)).max(1))
            .next_multiple_of(step);
        let parts = k.div_ceil(length);
        KSplit {
            parts,
            length,
            last_steps: (k - (parts - 1) * length).div_ceil(step),
        }
    }

    /// Cuts `k` terms into about `wanted` parts, at most `most`. Prefers numbers that give
    /// parts of equal length.
    fn even(k: usize, step: usize, wanted: usize, most: usize) -> Self {
        let most = most.min(k / (MIN_STEPS * step)).max(1);
        KSplit::new(k, step, epilogue::even_parts(k.div_ceil(step), wanted, most))
    }
}

impl<'a> Blocks<'a> {
    /// Cuts a contraction into blocks of the default size. Returns `None` if kernels without cooperative matrices are
    /// probably faster.
    pub(super) fn new(contraction: &'a dyn Contraction, config: CoopConfig, total: usize) -> Option<Self> {
        let sizes = contraction.sizes();
        let Sizes { batch, m, n, k } = sizes;
        let tile = config.tile_size as usize;
        let products_of = |m: usize| batch.saturating_mul(m).saturating_mul(n).saturating_mul(k);
        let prefers = prefers_coop(&config, batch, m, n, k);
        let is_few = has_few_rows(contraction);
        let is_large = match config.min_workgroups {
            0 => true,
            // The user has requested a smaller minimum.
            groups if groups > MIN_COOP_WORKGROUPS => prefers,
            _ if is_few => (products_of(1) >= MIN_ELEMENTS && k >= MIN_TERMS) || prefers,
            _ => (products_of(m) >= MIN_MULTIPLICATIONS && m > FEW_ROWS) || prefers,
        };
        if k == 0 || !is_large || !matches!(tile, 8 | 16) {
            return None;
        }
        let is_packed = packed_along_k(contraction).is_some();
        let block = Block::usual(&config, &sizes, is_few, is_packed)?;
        let wanted = block.usual_parts(&sizes, is_few);
        let blocks = Blocks::of(contraction, config, total, block, wanted)?;
        // For smaller blocks, the number of resident workgroups was not measured.
        Some(if Block::largest(&config) == Some(block) {
            blocks.with_tail()
        } else {
            blocks
        })
    }

    /// Returns all candidates: every block size with several numbers of parts.
    pub(super) fn all(contraction: &'a dyn Contraction, config: CoopConfig, total: usize) -> Vec<Self> {
        let sizes = contraction.sizes();
        if sizes.k == 0 || !matches!(config.tile_size, 8 | 16) {
            return Vec::new();
        }
        let each = Block::all(&config, &sizes).into_iter().flat_map(|block| {
            let usual = block.usual_parts(&sizes, has_few_rows(contraction));
            let parts = [usual, 1, usual / 2, usual * 2];
            let each = parts.map(|parts| Blocks::of(contraction, config, total, block, parts.max(1)));
            let with_tail = Blocks::of(contraction, config, total, block, 1).map(Blocks::with_tail);
            each.into_iter()
                .chain([with_tail.filter(|blocks| blocks.tail.is_some())])
        });
        each.flatten().collect()
    }

    /// Creates blocks of this size, with sums in at most `wanted` parts. Returns `None` if the copies cannot be
    /// divided evenly among the threads.
    fn of(
        contraction: &'a dyn Contraction,
        config: CoopConfig,
        total: usize,
        mut block: Block,
        wanted: usize,
    ) -> Option<Self> {
        let sizes = contraction.sizes();
        let k = sizes.k;
        let cut = KSplit::even(k, block.step, wanted, epilogue::most_parts(total));
        // The first steps of the last part are fetched without a bounds check, so there must be enough of them.
        block.prefetch = block.prefetch.min(cut.last_steps);
        let blocks = Blocks {
            contraction,
            sizes,
            config,
            block,
            cut,
            tail: None,
        };
        // Every thread copies the same number of vectors.
        let vectors = [0, 1].map(|operand| blocks.vectors(operand));
        let are_even = vectors.iter().all(|v| *v > 0 && v.is_multiple_of(blocks.threads()));
        are_even.then_some(blocks)
    }

    pub(super) fn parts(&self) -> usize {
        self.cut.parts
    }

    /// Returns true if operands are rounded to `f16`.
    pub(super) fn rounds(&self) -> bool {
        self.config.use_f16_input
    }

    pub(super) fn block(&self) -> &Block {
        &self.block
    }

    fn threads(&self) -> usize {
        self.block.subgroups() * self.config.subgroup()
    }

    /// Returns the number of threads that compute the epilogue of a row of tiles.
    fn threads_of_a_row(&self) -> usize {
        self.block.depths * self.config.subgroup()
    }

    /// Returns the number of elements per thread of a slab. A slab is the part of the results that passes through
    /// shared memory to the epilogue at a time. Slabs are as small as possible, because the shared memory of a
    /// workgroup limits the number of resident workgroups of a multiprocessor.
    pub(super) fn elements_of_a_thread(&self) -> usize {
        let columns = (self.threads_of_a_row() / self.config.tile()).clamp(self.config.tile(), self.block.sub_columns);
        self.config.tile() * columns / self.threads_of_a_row()
    }

    /// Returns the number of lines of an operand in a block: rows of the first operand, columns of the second.
    fn lines(&self, operand: usize) -> usize {
        if operand == 0 {
            self.block.rows
        } else {
            self.block.columns
        }
    }

    /// Returns the number of vectors of an operand that a step copies.
    fn vectors(&self, operand: usize) -> usize {
        self.lines(operand) * self.block.step / 4
    }

    /// Compiles a launch that passes each sum to `sink`. With `plain`, it stores whole tiles there instead.
    pub(super) fn launch(&self, mut e: Emitter, sink: &SumConsumer, plain: Option<&RawSums>) -> Result<Launch, String> {
        let Sizes { batch, m, n, k } = self.sizes;
        let Block { rows, columns, .. } = self.block;
        let plain =
            plain.filter(|_| self.block.depths == 1 && m % self.config.tile() == 0 && n % self.config.tile() == 0);
        if let Some(memory) = plain {
            e.module.bind("tiles", *memory);
        }
        let cut = match &self.tail {
            Some(tail) => {
                e.module.bind("tail", e.cx.scratch(0));
                &tail.cut
            }
            None => &self.cut,
        };
        let last_is_short = epilogue::last_is_short(k, self.block.step, cut.length, cut.parts);
        let template = self.config.fragments(Template::new(files::MATMUL_COOP), &mut e.module);
        let template = self.schedule(template);
        let template = sink.finish_together(self.operands(&mut e, template)?);
        let template = template
            .sizes([("SPLIT_K", cut.parts), ("SPLIT_LENGTH", cut.length)])
            .flag("LAST_IS_SHORT", last_is_short)
            .flag("PLAIN", plain.is_some());
        let groups = match &self.tail {
            Some(tail) => tail.groups(),
            None => n.div_ceil(columns) * m.div_ceil(rows) * batch * self.cut.parts,
        };
        e.module.finish_template(template, groups)
    }

    /// Adds the schedule to the kernel file: tiles, block, and distribution of the block over subgroups.
    fn schedule(&self, template: Template) -> Template {
        let (block, depths) = (&self.block, self.block.depths);
        let slab = self.config.tile() * self.elements_of_a_thread() * self.threads_of_a_row() / self.config.tile();
        let of_depths = (0..depths).map(|i| format!("slab[(sub_block * {depths}u + {i}u) * {slab}u + e]"));
        let template = template
            .returns("slab_sum", "", &pairwise(of_depths, sum))
            .sizes([("ROWS", block.rows), ("COLUMNS", block.columns), ("STEP", block.step)])
            .sizes([("SUB_ROWS", block.sub_rows), ("SUB_COLUMNS", block.sub_columns)])
            .sizes([("K_SUBGROUPS", depths), ("PREFETCH", block.prefetch)]);
        match &self.tail {
            Some(tail) => template
                .flag("TAIL", true)
                .sizes([("TAIL_FIRST", tail.whole), ("TAIL_BLOCKS", tail.blocks)]),
            None => template,
        }
    }

    /// Adds the contraction and the memory layout of the operands to the kernel file.
    fn operands(&self, e: &mut Emitter, template: Template) -> Result<Template, String> {
        let (loads, template) = match self.whole_blocks() {
            Some(packed) => {
                let unused = (String::new(), format!("vec4<{}>()", self.config.element()));
                ([self.load(e, 0)?, unused], self.load_blocks(e, template, packed)?)
            }
            None => ([self.load(e, 0)?, self.load(e, 1)?], template),
        };
        Ok(contraction_of(e, template, self.contraction, loads)?
            .flag("A_K_MAJOR", self.contraction.is_along_k(0))
            .flag("B_K_MAJOR", self.contraction.is_along_k(1)))
    }

    /// Returns the packed second operand if its blocks can be copied as a whole: all terms are in whole steps, and every thread
    /// copies the same number of blocks.
    fn whole_blocks(&self) -> Option<Packed> {
        let packed = packed_along_k(self.contraction)?;
        let step = self.block.step;
        let are_whole = self.sizes.k.is_multiple_of(step) && step.is_multiple_of(BLOCK);
        let blocks = self.block.columns * step / BLOCK;
        (are_whole && blocks.is_multiple_of(self.threads())).then_some(packed)
    }

    /// Adds the loads of whole blocks of the second operand, and their expansion, to the kernel file.
    fn load_blocks(&self, e: &mut Emitter, template: Template, packed: Packed) -> Result<Template, String> {
        let n = self.sizes.n;
        let (code, [low, high, scales]) = e.block(|e| {
            let line = if n.is_multiple_of(self.block.columns) {
                "line".to_owned()
            } else {
                e.bind(&format!("min(line, {}u)", n - 1))?
            };
            let block = packed_block(e, self.contraction, &line, "k")?;
            let low = packed.load_block_low(e, &block)?;
            let high = if packed.has_high() {
                packed.load_block_high(e, &block)?
            } else {
                "vec4<u32>()".to_owned()
            };
            Ok([low, high, packed.load_block_scales(e, &block)?])
        })?;
        let fields = "let low = block.low;\nlet high = block.high;\nlet scales = block.scales;\n";
        let element = self.config.element();
        Ok(template
            .flag("B_BLOCKS", true)
            .returns("load_block", &code, &format!("PackedBlock({low}, {high}, {scales})"))
            .returns(
                "expand_block",
                fields,
                &format!("vec4<{element}>({})", packed.expand_exactly()),
            ))
    }

    /// Returns statements that load four adjacent elements of an operand, and the value of these elements. Elements
    /// past the end of the summed dimension are zero.
    fn load(&self, e: &mut Emitter, operand: usize) -> Result<(String, String), String> {
        let Sizes { m, n, k, .. } = self.sizes;
        let count = if operand == 0 { m } else { n };
        let element = self.config.element();
        let along_k = self.contraction.is_along_k(operand);
        let whole_k = k.is_multiple_of(self.block.step);
        let whole_lines = count.is_multiple_of(self.lines(operand));
        let contiguous = if along_k { k } else { count };
        let below = |name: &str, whole: bool, size: usize, together: usize| {
            if whole {
                name.to_owned()
            } else {
                format!("min({name}, {}u)", size.saturating_sub(together))
            }
        };
        let stored = self
            .contraction
            .stored(operand)
            .filter(|_| contiguous.is_multiple_of(4));
        let (line_step, k_step) = if along_k { (1, 4) } else { (4, 1) };
        let vector = match stored {
            Some(stored) => {
                let (code, found) = e.block(|e| {
                    let line = e.bind(&below("line", whole_lines, count, line_step))?;
                    let k = e.bind(&below("k", whole_k, k, k_step))?;
                    self.contraction.number_of(e, operand, &line, &k)
                })?;
                let index = found.vector();
                let halves = e.module.load_f16(stored, &index).filter(|_| self.rounds());
                let vector = halves.or_else(|| {
                    let vector = e.module.load_vector(stored, &index)?;
                    Some(format!("vec4<{element}>({vector})"))
                });
                vector.map(|vector| (code, vector, found))
            }
            // Rows of packed matrices are whole blocks.
            None => match self.contraction.packed(operand) {
                Some(packed) => {
                    let (code, (vector, found)) = e.block(|e| {
                        let line = e.bind(&below("line", whole_lines, count, line_step))?;
                        let k = e.bind(&below("k", whole_k, k, k_step))?;
                        let found = self.contraction.number_of(e, operand, &line, &k)?;
                        Ok((packed.load_vector(e, &found.number)?, found))
                    })?;
                    Some((code, format!("vec4<{element}>({vector})"), found))
                }
                None => None,
            },
        };
        if let Some((code, vector, found)) = vector {
            let within = (!whole_k).then(|| format!("k < {k}u"));
            return Ok((code, found.guarded(&format!("vec4<{element}>"), vector, within)));
        }
        let of = |name: &str, moves: bool, q: usize| {
            if moves {
                format!("{name} + {q}u")
            } else {
                name.to_owned()
            }
        };
        let (code, values) = e.block(|e| {
            if self.contraction.finds_together(operand) {
                let (line, k) = if along_k {
                    (e.bind(&below("line", whole_lines, count, 1))?, "k".to_owned())
                } else {
                    ("line".to_owned(), e.bind(&below("k", whole_k, k, 1))?)
                };
                return self.contraction.load_together(e, operand, &line, &k, 4);
            }
            let mut values = Vec::new();
            for q in 0..4 {
                let line = e.bind(&below(&of("line", !along_k, q), whole_lines, count, 1))?;
                let k = e.bind(&below(&of("k", along_k, q), whole_k, k, 1))?;
                values.push(self.contraction.load(e, operand, &line, &k)?);
            }
            Ok(values)
        })?;
        let parts = values.into_iter().enumerate().map(|(q, value)| {
            if whole_k {
                value
            } else {
                format!("select(0.0, {value}, {} < {k}u)", of("k", along_k, q))
            }
        });
        let parts: Vec<String> = parts.collect();
        Ok((code, format!("vec4<{element}>(vec4<f32>({}))", parts.join(", "))))
    }
}
