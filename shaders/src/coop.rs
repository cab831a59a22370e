//! Sums of products on the matrix units of a GPU, through cooperative matrices: what [`tiled`](super::tiled) does with
//! single threads, done by subgroups.
//!
//! A workgroup computes a block of the result, each of its subgroups a part of it, held as square tiles in registers.
//! It goes over the summed dimension in steps: pieces of both operands are rounded to the units' input type and put
//! into shared memory as they lie in memory, the next ones are on their way from memory meanwhile, and every subgroup
//! multiplies tiles. In the end tiles are stored as they are, or go through shared memory to what follows the product.
//!
//! Products that are too small for many blocks are bound by waiting for memory: of few rows, which have but one row of tiles, and
//! of few blocks. They have small blocks, whose subgroups share the terms of a step, and several steps on their way.

mod block;
mod tail;

use std::fmt::Write as _;

use super::emit::Emitter;
use super::fold::{pairwise, sum};
use super::kernel::Launch;
use super::module::{COOP, HALF};
use super::sums::{self, Element, PARTIAL, Plain, Sink};
use super::tiled::{Products, Sizes};
pub(super) use block::Block;
use tail::Tail;

/// How matrix units are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopConfig {
    /// Rows and columns of a tile: 8 or 16.
    pub tile_size: u32,
    /// Whether operands are rounded to `f16`; sums are in `f32` in any case.
    pub use_f16_input: bool,
    /// Threads of a subgroup, which compute a tile together.
    pub subgroup_size: u32,
    /// Workgroups of two by two tiles from which on a product is given to the units, commonly
    /// [`MIN_COOP_WORKGROUPS`]; with 0, every product is.
    pub min_workgroups: u32,
    /// Workgroups of large blocks that the device runs at a time; 0 if that is not known.
    pub at_once: u32,
}

/// Workgroups of two by two tiles from which on a product is given to the matrix units.
pub const MIN_COOP_WORKGROUPS: u32 = 128;
/// The same of long sums.
pub const MIN_COOP_WORKGROUPS_HIGH_K: usize = 32;
/// Terms of a long sum.
const HIGH_K: usize = 1024;
/// Fewest steps of a part of the summed dimension: a launch that puts parts together takes as long as some.
const FEWEST_STEPS: usize = 8;

/// Most rows of a product with few.
const FEW_ROWS: usize = 16;
/// Elements of the matrix from which on it is worth the units.
const FEWEST_ELEMENTS: usize = 1 << 16;
/// Multiplications from which on one of more rows is.
const FEWEST_PRODUCTS: usize = 1 << 21;
/// Terms from which on products of few rows are worth the units, whose steps have at least twice as many.
const FEWEST_TERMS: usize = 64;

/// Whether matrix units are likely to be faster: whether there are enough tiles, by the number of workgroups of two by
/// two tiles each.
pub fn prefers_coop(config: &CoopConfig, batch: usize, m: usize, n: usize, k: usize) -> bool {
    let side = 2 * config.tile_size as usize;
    let groups = batch.saturating_mul(m.div_ceil(side)).saturating_mul(n.div_ceil(side));
    groups >= config.min_workgroups as usize || (groups >= MIN_COOP_WORKGROUPS_HIGH_K && k >= HIGH_K)
}

/// Whether a product has so few rows that large blocks are left out. What a convolution multiplies is computed element by
/// element, which small blocks do more often.
fn has_few_rows(products: &dyn Products) -> bool {
    products.sizes().m <= FEW_ROWS && products.is_by_rows()
}

/// A product cut into blocks.
pub(super) struct Blocks<'a> {
    products: &'a dyn Products,
    sizes: Sizes,
    config: CoopConfig,
    block: Block,
    cut: Cut,
    /// Blocks that are cut, though others are not.
    tail: Option<Tail>,
}

/// The summed dimension in parts of whole steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    parts: usize,
    /// Terms of a part, but for the last.
    length: usize,
    /// Steps of the last one.
    last_steps: usize,
}

impl Cut {
    /// `k` terms in as many parts as are wanted, or fewer: each has some steps, and rounding up may leave fewer.
    fn new(k: usize, step: usize, wanted: usize) -> Self {
        let length = k
            .div_ceil(wanted.min(k / (FEWEST_STEPS * step)).max(1))
            .next_multiple_of(step);
        let parts = k.div_ceil(length);
        Cut {
            parts,
            length,
            last_steps: (k - (parts - 1) * length).div_ceil(step),
        }
    }

    /// The same, in parts of equal lengths if about as many have them, and in `most` parts at most.
    fn even(k: usize, step: usize, wanted: usize, most: usize) -> Self {
        let most = most.min(k / (FEWEST_STEPS * step)).max(1);
        Cut::new(k, step, sums::even_parts(k.div_ceil(step), wanted, most))
    }

    /// Where a part of `k` terms begins, and how many it has, as WGSL expressions.
    fn bounds(&self, k: usize, step: usize) -> [String; 2] {
        sums::bounds(k, step, self.length, self.parts)
    }
}

impl<'a> Blocks<'a> {
    /// `None` where single threads are likely to be faster.
    pub(super) fn new(products: &'a dyn Products, config: CoopConfig, total: usize) -> Option<Self> {
        let sizes = products.sizes();
        let Sizes { batch, m, n, k } = sizes;
        let tile = config.tile_size as usize;
        let products_of = |m: usize| batch.saturating_mul(m).saturating_mul(n).saturating_mul(k);
        let prefers = prefers_coop(&config, batch, m, n, k);
        let is_few = has_few_rows(products);
        let is_large = match config.min_workgroups {
            0 => true,
            // Fewer were asked for.
            groups if groups > MIN_COOP_WORKGROUPS => prefers,
            _ if is_few => (products_of(1) >= FEWEST_ELEMENTS && k >= FEWEST_TERMS) || prefers,
            _ => (products_of(m) >= FEWEST_PRODUCTS && m > FEW_ROWS) || prefers,
        };
        if k == 0 || !is_large || !matches!(tile, 8 | 16) {
            return None;
        }
        let block = Block::usual(&config, &sizes, is_few)?;
        let wanted = block.usual_parts(&sizes, is_few);
        let blocks = Blocks::of(products, config, total, block, wanted)?;
        // Of smaller ones it was not measured how many there are at a time.
        Some(match Block::largest(&config) == Some(block) {
            true => blocks.with_tail(),
            false => blocks,
        })
    }

    /// All ways to cut it, as blocks and numbers of parts.
    pub(super) fn all(products: &'a dyn Products, config: CoopConfig, total: usize) -> Vec<Self> {
        let sizes = products.sizes();
        if sizes.k == 0 || !matches!(config.tile_size, 8 | 16) {
            return Vec::new();
        }
        let each = Block::all(&config, &sizes).into_iter().flat_map(|block| {
            let usual = block.usual_parts(&sizes, has_few_rows(products));
            let parts = [usual, 1, usual / 2, usual * 2];
            let each = parts.map(|parts| Blocks::of(products, config, total, block, parts.max(1)));
            let with_tail = Blocks::of(products, config, total, block, 1).map(Blocks::with_tail);
            each.into_iter()
                .chain([with_tail.filter(|blocks| blocks.tail.is_some())])
        });
        each.flatten().collect()
    }

    /// Blocks of this kind, and sums in as many parts as are wanted, or fewer; `None` where threads would not share evenly
    /// what they copy.
    fn of(
        products: &'a dyn Products,
        config: CoopConfig,
        total: usize,
        mut block: Block,
        wanted: usize,
    ) -> Option<Self> {
        let sizes = products.sizes();
        let k = sizes.k;
        let cut = Cut::even(k, block.step, wanted, sums::most_parts(total));
        // The first steps of the last part are fetched without looking for its end.
        block.ahead = block.ahead.min(cut.last_steps);
        let blocks = Blocks {
            products,
            sizes,
            config,
            block,
            cut,
            tail: None,
        };
        // Every thread copies as many vectors.
        let vectors = [0, 1].map(|operand| blocks.vectors(operand));
        let are_even = vectors.iter().all(|v| *v > 0 && v.is_multiple_of(blocks.threads()));
        are_even.then_some(blocks)
    }

    pub(super) fn parts(&self) -> usize {
        self.cut.parts
    }

    /// Whether operands are rounded to `f16`.
    pub(super) fn rounds(&self) -> bool {
        self.config.use_f16_input
    }

    pub(super) fn block(&self) -> &Block {
        &self.block
    }

    fn tile(&self) -> usize {
        self.config.tile_size as usize
    }

    fn threads(&self) -> usize {
        self.block.subgroups() * self.config.subgroup_size as usize
    }

    /// Threads that give a row of tiles to a sink.
    fn threads_of_a_row(&self) -> usize {
        self.block.depths * self.config.subgroup_size as usize
    }

    /// Elements of [`Blocks::slab_columns`] of a row of tiles that each of these threads has.
    pub(super) fn elements_of_a_thread(&self) -> usize {
        self.tile() * self.slab_columns() / self.threads_of_a_row()
    }

    /// Columns of a row of tiles that go through shared memory together: as few as there can be, since what a workgroup has of
    /// it decides how many there are on a multiprocessor at a time.
    fn slab_columns(&self) -> usize {
        (self.threads_of_a_row() / self.tile()).clamp(self.tile(), self.block.sub_columns)
    }

    /// The element type of tiles of the operands.
    fn element(&self) -> &'static str {
        if self.config.use_f16_input { "f16" } else { "f32" }
    }

    /// A tile's type in a role: `A`, `B` or `C`.
    fn matrix(&self, role: char) -> String {
        let (tile, element) = (self.tile(), if role == 'C' { "f32" } else { self.element() });
        format!("coop_mat{tile}x{tile}<{element},{role}>")
    }

    /// Rows and columns of tiles of a subgroup.
    fn tiles(&self) -> (usize, usize) {
        (self.block.sub_rows / self.tile(), self.block.sub_columns / self.tile())
    }

    /// Lines of an operand in a block: rows of the first, columns of the second.
    fn lines(&self, operand: usize) -> usize {
        if operand == 0 {
            self.block.rows
        } else {
            self.block.columns
        }
    }

    /// Vectors of four elements that lie side by side in memory, of an operand's piece in shared memory.
    fn width(&self, operand: usize) -> usize {
        match self.products.is_along_k(operand) {
            true => self.block.step / 4,
            false => self.lines(operand) / 4,
        }
    }

    /// Vectors from one such row of an operand's piece to the next. The padding keeps rows apart in the banks of
    /// shared memory.
    fn stride(&self, operand: usize) -> usize {
        self.width(operand) + if self.config.use_f16_input { 2 } else { 1 }
    }

    /// Vectors of a piece.
    fn vectors(&self, operand: usize) -> usize {
        self.lines(operand) * self.block.step / 4
    }

    /// A launch that gives each sum to a sink, or stores whole tiles where they are `plain`.
    pub(super) fn launch(&self, mut e: Emitter, sink: &Sink, plain: Option<&Plain>) -> Result<Launch, String> {
        let Sizes { batch, m, n, k } = self.sizes;
        let Block {
            rows,
            columns,
            step,
            sub_rows,
            sub_columns,
            depths,
            ahead,
            ..
        } = self.block;
        let (across, down) = (n.div_ceil(columns), m.div_ceil(rows));
        let (threads, size) = (self.threads(), self.config.subgroup_size);
        let element = self.element();
        e.module.enable(COOP);
        if self.config.use_f16_input {
            e.module.enable(HALF);
        }
        for (operand, name) in [(0, "a"), (1, "b")] {
            let rows = self.vectors(operand) / self.width(operand);
            let _ = writeln!(
                e.module.items,
                "var<workgroup> shared_{name}: array<vec4<{element}>, {}>;",
                rows * self.stride(operand)
            );
            self.fetch(&mut e, operand, name)?;
        }
        let beside = columns / sub_columns;
        let (mut code, number, part) = match &self.tail {
            Some(tail) => (tail.numbers(), "block", String::new()),
            None => {
                let part = format!("let part = group_number / {}u;\n", across * down * batch);
                (String::new(), "group_number", part)
            }
        };
        let _ = write!(
            code,
            "let first_column = {number} % {across}u * {columns}u;\n\
             let first_row = {number} / {across}u % {down}u * {rows}u;\n\
             let batch = {number} / {0}u % {batch}u;\n{part}\
             let subgroup = local / {size}u;\nlet sub_block = subgroup / {depths}u;\n\
             let sub_row = sub_block / {beside}u * {sub_rows}u;\nlet sub_column = sub_block % {beside}u * {sub_columns}u;\n",
            across * down
        );
        let (down_tiles, across_tiles) = self.tiles();
        let matrix = self.matrix('C');
        for (i, j) in self.pairs() {
            let _ = writeln!(code, "var sum_{i}_{j} = {matrix}();");
        }
        let [begin, terms] = match &self.tail {
            Some(tail) => {
                let [begin, terms] = tail.cut.bounds(k, step);
                [begin, format!("select({k}u, {terms}, is_part)")]
            }
            None => self.cut.bounds(k, step),
        };
        let _ = writeln!(code, "let begin = {begin};\nlet terms = {terms};");
        for set in 0..ahead {
            let first_k = format!("begin + {}u", set * step);
            self.copies(&mut code, |copy| {
                format!("var {0}_{set} = {1};\n", copy.variable, copy.fetch(&first_k))
            });
        }
        code.push_str("var done = 0u;\nloop {\n");
        for set in 0..ahead {
            self.copies(&mut code, |copy| {
                format!("shared_{}[{}] = {}_{set};\n", copy.name, copy.place, copy.variable)
            });
            let _ = write!(
                code,
                "workgroupBarrier();\nif (done + {0}u < terms) {{\nlet next_k = begin + done + {0}u;\n",
                ahead * step
            );
            self.copies(&mut code, |copy| {
                format!("{0}_{set} = {1};\n", copy.variable, copy.fetch("next_k"))
            });
            code.push_str("}\n");
            for depth in (0..step).step_by(self.tile() * depths) {
                self.multiply(&mut code, depth);
            }
            let _ = write!(
                code,
                "workgroupBarrier();\ndone += {step}u;\nif (done >= terms) {{\nbreak;\n}}\n"
            );
        }
        code.push_str("}\n");
        debug_assert_eq!(threads % size as usize, 0);
        if let Some(tail) = &self.tail {
            let array = e.module.array(e.cx.scratch(0), PARTIAL, true);
            let _ = write!(code, "if (is_part) {{\n{}}} else {{\n", self.store_part(tail, &array));
        }
        match plain {
            Some((array, offset)) if depths == 1 && m % self.tile() == 0 && n % self.tile() == 0 => {
                for (i, j) in self.pairs() {
                    let (row, column) = (i * self.tile(), j * self.tile());
                    let _ = write!(
                        code,
                        "{{\nlet row = first_row + sub_row + {row}u;\nlet column = first_column + sub_column + {column}u;\n\
                         if (row < {m}u && column < {n}u) {{\nlet at = {offset}{};\n\
                         coopStoreT(sum_{i}_{j}, &{array}[at], {n}u);\n}}\n}}\n",
                        self.products.number("row", "column")
                    );
                }
            }
            _ => self.finish_elements(&mut e, &mut code, sink, down_tiles, across_tiles),
        }
        let groups = match &self.tail {
            Some(tail) => {
                code.push_str("}\n");
                tail.groups()
            }
            None => across * down * batch * self.cut.parts,
        };
        e.module.finish(&code, threads, groups)
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (down, across) = self.tiles();
        (0..down).flat_map(move |i| (0..across).map(move |j| (i, j)))
    }

    /// Code for every vector that a thread copies to shared memory.
    fn copies(&self, code: &mut String, text: impl Fn(Copy) -> String) {
        for (operand, name, first) in [(0, "a", "first_row"), (1, "b", "first_column")] {
            let (width, stride) = (self.width(operand), self.stride(operand));
            for piece in 0..self.vectors(operand) / self.threads() {
                let at = format!("(local + {}u)", piece * self.threads());
                let (outer, inner) = (format!("{at} / {width}u"), format!("{at} % {width}u"));
                let (line, depth) = match self.products.is_along_k(operand) {
                    true => (outer.clone(), format!("{inner} * 4u")),
                    false => (format!("{inner} * 4u"), outer.clone()),
                };
                code.push_str(&text(Copy {
                    name,
                    variable: format!("{name}_{piece}"),
                    place: format!("{outer} * {stride}u + {inner}"),
                    line: format!("{first} + {line}"),
                    depth,
                }));
            }
        }
    }

    /// Declares the function that fetches four elements of an operand that lie side by side in memory; those beyond
    /// the end of the summed dimension are zero.
    fn fetch(&self, e: &mut Emitter, operand: usize, name: &str) -> Result<(), String> {
        let Sizes { m, n, k, .. } = self.sizes;
        let count = if operand == 0 { m } else { n };
        let element = self.element();
        let along_k = self.products.is_along_k(operand);
        let whole_k = k.is_multiple_of(self.block.step);
        let whole_lines = count.is_multiple_of(self.lines(operand));
        let contiguous = if along_k { k } else { count };
        let below = |name: &str, whole: bool, size: usize, together: usize| match whole {
            true => name.to_owned(),
            false => format!("min({name}, {}u)", size.saturating_sub(together)),
        };
        let stored = self.products.stored(operand).filter(|_| contiguous.is_multiple_of(4));
        let vector = match stored {
            Some(stored) => {
                let (line_step, k_step) = if along_k { (1, 4) } else { (4, 1) };
                let (code, at) = e.block(|e| {
                    let line = e.bind(&below("line", whole_lines, count, line_step))?;
                    let k = e.bind(&below("k", whole_k, k, k_step))?;
                    self.products.number_of(e, operand, &line, &k)
                })?;
                let index = format!("({at}) / 4u");
                let halves = e.module.load_halves(stored, &index).filter(|_| self.rounds());
                let vector = halves.or_else(|| {
                    let vector = e.module.load_vector(stored, &index)?;
                    Some(format!("vec4<{element}>({vector})"))
                });
                vector.map(|vector| (code, vector))
            }
            None => None,
        };
        let (code, value) = match vector {
            Some((code, vector)) => {
                let value = match whole_k {
                    true => vector,
                    false => format!("select(vec4<{element}>(), {vector}, k < {k}u)"),
                };
                (code, value)
            }
            None => {
                let (code, parts) = e.block(|e| {
                    let mut parts = Vec::new();
                    for q in 0..4 {
                        let of = |name: &str, moves: bool| {
                            if moves {
                                format!("{name} + {q}u")
                            } else {
                                name.to_owned()
                            }
                        };
                        let (line, k_at) = (of("line", !along_k), of("k", along_k));
                        let bound_line = e.bind(&below(&line, whole_lines, count, 1))?;
                        let bound_k = e.bind(&below(&k_at, whole_k, k, 1))?;
                        let value = self.products.load(e, operand, &bound_line, &bound_k)?;
                        parts.push(match whole_k {
                            true => value,
                            false => format!("select(0.0, {value}, {k_at} < {k}u)"),
                        });
                    }
                    Ok(parts)
                })?;
                (code, format!("vec4<{element}>(vec4<f32>({}))", parts.join(", ")))
            }
        };
        let _ = write!(
            e.module.items,
            "fn fetch_{name}(batch: u32, line: u32, k: u32) -> vec4<{element}> {{\n{code}return {value};\n}}\n"
        );
        Ok(())
    }

    /// Code that multiplies the tiles at a depth of the step in shared memory, or from there on, one for each of the
    /// subgroups that share the step.
    fn multiply(&self, code: &mut String, depth: usize) {
        let tile = self.tile();
        let (down, across) = self.tiles();
        let depth = match self.block.depths {
            1 => format!("{depth}u"),
            depths => format!("({depth}u + subgroup % {depths}u * {tile}u)"),
        };
        code.push_str("{\n");
        for (operand, name, role, count, first) in [(0, "a", 'A', down, "sub_row"), (1, "b", 'B', across, "sub_column")]
        {
            let (matrix, stride) = (self.matrix(role), self.stride(operand));
            // Rows of a tile of the second operand are along the summed dimension.
            let by_rows = self.products.is_along_k(operand) == (operand == 0);
            let load = if by_rows { "coopLoadT" } else { "coopLoad" };
            for i in 0..count {
                let line = format!("{first} + {}u", i * tile);
                let at = match self.products.is_along_k(operand) {
                    true => format!("({line}) * {stride}u + {depth} / 4u"),
                    false => format!("{depth} * {stride}u + ({line}) / 4u"),
                };
                let _ = write!(
                    code,
                    "let at_{name}{i} = {at};\nlet {name}{i} = {load}<{matrix}>(&shared_{name}[at_{name}{i}], {stride}u);\n"
                );
            }
        }
        for (i, j) in self.pairs() {
            let _ = writeln!(code, "sum_{i}_{j} = coopMultiplyAdd(a{i}, b{j}, sum_{i}_{j});");
        }
        code.push_str("}\n");
    }

    /// Code that brings tiles to shared memory, a part of a row of them at a time, and gives their elements, which are sums over the
    /// subgroups that share steps, to a sink.
    fn finish_elements(&self, e: &mut Emitter, code: &mut String, sink: &Sink, down: usize, across: usize) {
        let tile = self.tile();
        let Block {
            depths, rows, columns, ..
        } = self.block;
        let Sizes { m, n, .. } = self.sizes;
        let width = self.slab_columns();
        let slab = tile * width;
        let threads = self.threads_of_a_row();
        let _ = writeln!(
            e.module.items,
            "var<workgroup> slab: array<f32, {}>;",
            slab * self.block.subgroups()
        );
        let is_whole = m.is_multiple_of(rows) && n.is_multiple_of(columns);
        let together = sink.together();
        let mut body = String::new();
        let elements = (0..together).map(|q| {
            let of_depths = (0..depths).map(|i| format!("slab[(sub_block * {depths}u + {i}u) * {slab}u + e_{q}]"));
            let _ = write!(
                body,
                "let e_{q} = first + {}u;\nlet row_{q} = first_of_tiles + e_{q} / {width}u;\n\
                 let column_{q} = first_of_columns + e_{q} % {width}u;\nlet sum_{q} = {};\n",
                q * threads,
                pairwise(of_depths, sum)
            );
            let (row, column) = (format!("row_{q}"), format!("column_{q}"));
            Element::within(self.products, is_whole, &row, &column, format!("sum_{q}"))
        });
        let elements: Vec<Element> = elements.collect();
        body.push_str(&sink.take(&elements));
        let together_across = width / tile;
        for (i, first) in (0..down).flat_map(|i| (0..across).step_by(together_across).map(move |first| (i, first))) {
            for j in first..across.min(first + together_across) {
                let _ = write!(
                    code,
                    "let slab_{i}_{j} = subgroup * {slab}u + {}u;\ncoopStoreT(sum_{i}_{j}, &slab[slab_{i}_{j}], {width}u);\n",
                    (j - first) * tile
                );
            }
            let _ = write!(
                code,
                "workgroupBarrier();\nfor (var first = local % {threads}u; first < {slab}u; first += {}u) {{\n\
                 let first_of_tiles = first_row + sub_row + {}u;\n\
                 let first_of_columns = first_column + sub_column + {}u;\n{body}}}\nworkgroupBarrier();\n",
                threads * together,
                i * tile,
                first * tile
            );
        }
    }
}

/// A vector that a thread copies to shared memory.
struct Copy {
    name: &'static str,
    /// Where it is on the way.
    variable: String,
    /// Its number in shared memory.
    place: String,
    line: String,
    /// Its place in the step.
    depth: String,
}

impl Copy {
    /// Fetches the vector for a step that begins at a place of the summed dimension.
    fn fetch(&self, first_k: &str) -> String {
        format!("fetch_{}(batch, {}, {first_k} + {})", self.name, self.line, self.depth)
    }
}
