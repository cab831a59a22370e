//! Tiled contractions, for matmuls and convolutions.
//!
//! A workgroup computes a tile of `m` by `n` results of a batch. It iterates over the summed dimension in steps. In
//! each step, it copies a part of both operands to shared memory, and every thread sums up some elements of the tile.
//! If there are too few tiles to occupy a device, the summed dimension is split into parts, and a second launch adds
//! them up. Small contractions use one thread for each result instead.

pub(super) mod schedules;

use meganeura_core::DType;
use meganeura_core::ops::FUSED;

use super::body::{Body, Def, Id};
use super::contraction::{Contraction, Sizes, contraction_of};
use super::emit::Emitter;
use super::epilogue::{self, PARTIAL, RawSums, Results, SumConsumer, epilogue, join};
use super::files;
use super::kernel::{CompileCx, Compiled, Launch};
use super::library_epilogue::FoldedEpilogue;
use super::pointwise::is_half;
use super::roles::Role;
use super::template::Template;
use super::variants::Candidate as _;
use super::{expanded, library_conv, library_matmul, neighbours, variants, vectors};
use schedules::{MatMulCall, Tiles};

/// Number of threads along each side of a tile.
const BLOCK_THREADS: usize = 16;
/// Number of terms of a step along the summed dimension.
const STEP: usize = 16;
/// Minimum number of workgroups for larger tiles.
const GROUPS_THRESHOLD: usize = 64;
/// Maximum number of workgroups for which the summed dimension is split.
const GROUPS_IN_PARTS: usize = 160;
/// Number of elements along each side of the tile of one thread, the largest first, and minimum number of workgroups
/// for which this tile is faster than the next one.
const TILES: [(usize, usize); 4] = [
    (8, 2 * GROUPS_THRESHOLD),
    (4, GROUPS_THRESHOLD),
    (2, GROUPS_THRESHOLD),
    (1, 0),
];
/// Minimum number of terms of a part of the summed dimension.
const MIN_PART: usize = 8 * STEP;
/// Maximum number of columns for which rows may be computed when they are loaded. With more columns, too many
/// workgroups would repeat this computation.
const COLUMNS_ON_THE_WAY: usize = 256;
/// Maximum number of result elements that a thread computes together.
const MAX_TOGETHER: usize = 8;
/// Maximum number of values that a thread computes for these elements. It is limited, because their code is unrolled.
const MAX_VALUES_TOGETHER: usize = 256;

impl Tiles<'_> {
    fn parts(&self) -> usize {
        match self {
            Tiles::Direct => 1,
            Tiles::Threads(tiling) => tiling.parts,
            Tiles::Coop(blocks) => blocks.parts(),
            Tiles::Vectors(vectors) => vectors.parts(),
        }
    }

    fn launch(
        &self,
        e: Emitter,
        product: &MatMulCall,
        sink: &SumConsumer,
        plain: Option<&RawSums>,
    ) -> Result<Launch, String> {
        match self {
            Tiles::Direct => direct(e, product.contraction, product.total, sink),
            Tiles::Threads(tiling) => tiling.launch(e, sink),
            Tiles::Coop(blocks) => blocks.launch(e, sink, plain),
            Tiles::Vectors(vectors) => vectors.launch(e, sink),
        }
    }

    /// Returns the maximum number of elements that a thread passes to the epilogue together.
    fn most_together(&self) -> usize {
        match self {
            Tiles::Coop(blocks) => blocks.elements_of_a_thread().min(MAX_TOGETHER),
            // While a thread waits for its loads, other threads of the multiprocessor run.
            Tiles::Direct | Tiles::Threads(_) | Tiles::Vectors(_) => 1,
        }
    }
}

/// Checks that an operand of a contraction may be computed when it is loaded. Every workgroup recomputes the rows
/// that it reads, but only once if the rows fit into its memory; `sizes` is passed in this case. An error splits a
/// program, or an operator whose rows are computed from several operands and read by many workgroups: the first
/// operand is then computed once, before the contraction.
pub(super) fn check_prologue(body: &Body, cx: &CompileCx, operand: Id, sizes: Option<Sizes>) -> Result<(), String> {
    // Reductions are computed together with the values that depend on them.
    if matches!(body.nodes[operand].def, Def::Operand(_)) || !body.calls(Role::Reduction).is_empty() {
        return Ok(());
    }
    let few = match (cx.kernel.name == FUSED.name(), sizes) {
        (true, sizes) => sizes.is_some_and(vectors::can_stage),
        (false, sizes) => {
            let operands = (0..body.nodes.len()).filter(|&id| matches!(body.nodes[id].def, Def::Operand(_)));
            let read = operands.filter(|&id| body.depends_on(operand, id)).count();
            sizes.is_none_or(|s| read <= 1 || s.n <= COLUMNS_ON_THE_WAY || vectors::can_stage(s))
        }
    };
    if few {
        Ok(())
    } else {
        Err("an operand would be computed as it is loaded, for too many rows".into())
    }
}

/// Compiles the launches of a body whose only contraction is `id`.
pub(super) fn compile(body: &Body, id: Id, cx: &CompileCx, contraction: &dyn Contraction) -> Result<Compiled, String> {
    let total = body.ty(id).numel();
    if let Some(ty) = cx.kernel.outputs.iter().find(|ty| is_half(ty)) {
        return Err(format!("it has a result of {}", ty.dtype));
    }
    let reductions = !body.calls(Role::Reduction).is_empty();
    let mut results = Results::default();
    for (output, ty) in cx.kernel.outputs.iter().enumerate() {
        let of_product = body.depends_on(body.results[output], id);
        match of_product || !reductions {
            true if ty.numel() != total => return Err("a result has other elements than the contraction".into()),
            true => results.of_product.push(output),
            false => results.before.push(output),
        }
    }
    if total == 0 && !reductions {
        return Ok(Compiled::default());
    }
    if reductions {
        vectors::check(body, id, contraction)?;
    }
    if let Some(half) = neighbours::rotated_half(&cx.kernel)? {
        if !results.before.is_empty() {
            return Err("what comes before a rotated product is stored".into());
        }
        let epilogue = |e: &mut Emitter| epilogue::of_looked_up(e, id, &results.of_product);
        return vectors::compile_shared(body, id, cx, contraction, Some(half), epilogue).map(Compiled::from);
    }
    let product = MatMulCall {
        body,
        id,
        cx,
        contraction,
        total,
        reduces: reductions,
    };
    compile_call(&product, &results)
}

/// Compiles the launches of a contraction whose operands and results were checked.
pub(super) fn compile_call(product: &MatMulCall, results: &Results) -> Result<Compiled, String> {
    if let Some(compiled) = library_matmul::compile(product, results)? {
        return Ok(compiled);
    }
    if let Some(compiled) = library_conv::compile(product, results)? {
        return Ok(compiled);
    }
    if let Some(compiled) = expanded::compile(product, results)? {
        return Ok(compiled);
    }
    let chosen = variants::chosen(
        product.cx,
        |precision| product.class(precision),
        || Tiles::all(product),
        |tiles| tiles.compile(product, results),
    );
    if let Some(compiled) = chosen {
        return Ok(compiled);
    }
    let tiles = Tiles::usual(product).ok_or("it has a contraction of many rows")?;
    let compiled = tiles.compile(product, results)?;
    Ok(variants::scheduled(compiled, &tiles.schedule()))
}

impl Tiles<'_> {
    /// Compiles the launches of a contraction.
    fn compile(&self, product: &MatMulCall, results: &Results) -> Result<Compiled, String> {
        let &MatMulCall {
            body,
            id,
            cx,
            contraction,
            total,
            ..
        } = product;
        if let (true, Tiles::Vectors(vectors)) = (product.reduces, self) {
            return vectors.compile(body, id, cx, results);
        }
        let (rounded, rounded_with_result) = match self {
            Tiles::Coop(blocks) if blocks.rounds() => {
                let columns = Some(contraction.sizes().n).filter(|_| contraction.is_by_rows());
                let folded = columns.and_then(|columns| FoldedEpilogue::of(body, id, columns, cx));
                let added = folded.map_or_else(Vec::new, |folded| folded.added(body));
                (body.only_used_by(id), added)
            }
            _ => (Vec::new(), Vec::new()),
        };
        if self.parts() == 1 {
            let mut e = Emitter::new(body, cx);
            let by_rows = contraction.is_by_rows() && !matches!(self, Tiles::Direct);
            let plain = by_rows && body.results == [id] && cx.stored_output(0) == DType::F32;
            let plain = plain.then(|| cx.outputs[0]);
            let together = if body.results == [id] {
                // The epilogue reads no operands.
                1
            } else {
                self.most_together().min(MAX_VALUES_TOGETHER / body.nodes.len().max(1))
            };
            // The number must be a power of two, like the number of elements.
            let together = 1 << together.max(1).ilog2();
            let sink = SumConsumer::Finish(epilogue(&mut e, id, &results.of_product, together)?);
            let launch = self.launch(e, product, &sink, plain.as_ref())?;
            let mut compiled = Compiled {
                launches: vec![launch],
                rounded,
                rounded_with_result,
                ..Compiled::default()
            };
            if let Tiles::Coop(blocks) = self
                && let Some(tail) = blocks.tail()
            {
                let last = blocks.join(Emitter::new(body, cx), id, &results.of_product, &tail)?;
                compiled.launches.push(last);
                compiled.scratch = vec![blocks.tail_bytes()];
            }
            return Ok(compiled);
        }
        let mut e = Emitter::new(body, cx);
        let array = e.module.array(e.cx.scratch(0), PARTIAL, true);
        let plain = e.cx.scratch(0);
        let sink = SumConsumer::Partial { array, total };
        let first = self.launch(e, product, &sink, Some(&plain).filter(|_| contraction.is_by_rows()))?;
        Ok(Compiled {
            launches: vec![
                first,
                join(Emitter::new(body, cx), id, &results.of_product, self.parts())?,
            ],
            scratch: vec![4 * total * self.parts()],
            rounded,
            rounded_with_result,
            ..Compiled::default()
        })
    }
}

/// Compiles the kernel with one thread for each result.
fn direct(mut e: Emitter, contraction: &dyn Contraction, total: usize, sink: &SumConsumer) -> Result<Launch, String> {
    let a = e.block(|e| contraction.load(e, 0, "line", "k"))?;
    let b = e.block(|e| contraction.load(e, 1, "line", "k"))?;
    let template = contraction_of(
        &mut e,
        sink.finish(Template::new(files::MATMUL_DIRECT)),
        contraction,
        [a, b],
    )?;
    e.module.finish_template_elements(template, total)
}

pub(super) struct Tiling<'a> {
    contraction: &'a dyn Contraction,
    sizes: Sizes,
    /// Number of rows and columns of the tile of one thread.
    pub(super) tile: usize,
    pub(super) parts: usize,
}

impl<'a> Tiling<'a> {
    /// Returns the default tiles.
    pub(super) fn new(contraction: &'a dyn Contraction, total: usize) -> Self {
        let sizes = contraction.sizes();
        let best = TILES
            .into_iter()
            .find(|&(tile, enough)| Tiling::groups(&sizes, tile) >= enough);
        let tile = best.map_or(1, |(tile, _)| tile);
        Tiling::of(contraction, total, tile, Tiling::usual_parts(&sizes, tile))
    }

    /// Returns all tiles, also with fewer and more parts than the default.
    pub(super) fn all(contraction: &'a dyn Contraction, total: usize) -> Vec<Self> {
        let sizes = contraction.sizes();
        let each = TILES.into_iter().flat_map(|(tile, _)| {
            let usual = Tiling::usual_parts(&sizes, tile);
            [usual, 1, usual / 2, usual * 2].map(|parts| Tiling::of(contraction, total, tile, parts.max(1)))
        });
        each.collect()
    }

    /// Creates tiles of this size, with sums in at most `wanted` parts.
    fn of(contraction: &'a dyn Contraction, total: usize, tile: usize, wanted: usize) -> Self {
        let sizes = contraction.sizes();
        let room = epilogue::most_parts(total);
        let parts = wanted.min(sizes.k / MIN_PART).min(room).max(1);
        Tiling {
            // Rounding the length up can reduce the number of parts.
            parts: sizes.k.div_ceil(Tiling::length(sizes.k, parts)).max(1),
            contraction,
            sizes,
            tile,
        }
    }

    /// Returns the number of terms of each part except the last.
    fn length(k: usize, parts: usize) -> usize {
        k.div_ceil(parts).next_multiple_of(STEP).max(STEP)
    }

    fn groups(sizes: &Sizes, tile: usize) -> usize {
        sizes.batch * sizes.m.div_ceil(tile * BLOCK_THREADS) * sizes.n.div_ceil(tile * BLOCK_THREADS)
    }

    fn usual_parts(sizes: &Sizes, tile: usize) -> usize {
        GROUPS_IN_PARTS.div_ceil(Tiling::groups(sizes, tile).max(1))
    }

    /// Returns the number of elements of an operand that a thread loads together. They are neighbours in memory and
    /// in shared memory.
    fn width(&self) -> usize {
        self.tile.min(4)
    }

    /// Returns the WGSL type of these elements.
    fn vector(&self) -> &'static str {
        match self.width() {
            1 => "f32",
            2 => "vec2<f32>",
            _ => "vec4<f32>",
        }
    }

    /// Compiles a launch that passes each sum to `sink`.
    fn launch(&self, mut e: Emitter, sink: &SumConsumer) -> Result<Launch, String> {
        let k = self.sizes.k;
        let loads = [self.load(&mut e, 0)?, self.load(&mut e, 1)?];
        let length = match self.parts {
            1 => k,
            parts => Tiling::length(k, parts),
        };
        let template = sink.finish(Template::new(files::MATMUL_TILED));
        let template = contraction_of(&mut e, template, self.contraction, loads)?
            .alias("Vector", self.vector())
            .flag("A_K_MAJOR", self.contraction.is_along_k(0))
            .flag("B_K_MAJOR", self.contraction.is_along_k(1))
            .sizes([
                ("THREAD_TILE", self.tile),
                ("BLOCK_THREADS", BLOCK_THREADS),
                ("STEP", STEP),
            ])
            .sizes([("SPLIT_K", self.parts), ("SPLIT_LENGTH", length)])
            .flag("LAST_IS_SHORT", epilogue::last_is_short(k, STEP, length, self.parts));
        e.module
            .finish_template(template, Tiling::groups(&self.sizes, self.tile) * self.parts)
    }

    /// Returns statements that load adjacent elements of an operand, and the value of these elements. Past the end of
    /// the summed dimension, the value is zero, even if the memory contains NaN.
    fn load(&self, e: &mut Emitter, operand: usize) -> Result<(String, String), String> {
        let Sizes { m, n, k, .. } = self.sizes;
        let count = if operand == 0 { m } else { n };
        let (width, vector) = (self.width(), self.vector());
        let along_k = self.contraction.is_along_k(operand);
        let contiguous = if along_k { k } else { count };
        let last = |size: usize, together: usize| size.saturating_sub(together);
        let stored = self
            .contraction
            .stored(operand)
            .filter(|_| width == 4 && contiguous.is_multiple_of(4));
        let (lines, depths) = if along_k { (1, 4) } else { (4, 1) };
        if let Some(stored) = stored {
            let (code, found) = e.block(|e| {
                let line = e.bind(&format!("min(line, {}u)", last(count, lines)))?;
                let k = e.bind(&format!("min(k, {}u)", last(k, depths)))?;
                self.contraction.number_of(e, operand, &line, &k)
            })?;
            if let Some(loaded) = e.module.load_vector(stored, &found.vector()) {
                return Ok((code, found.guarded("vec4<f32>", loaded, Some(format!("k < {k}u")))));
            }
        }
        // Rows of packed matrices are whole blocks.
        if let Some(packed) = self.contraction.packed(operand).filter(|_| width == 4) {
            return e.block(|e| {
                let line = e.bind(&format!("min(line, {}u)", last(count, lines)))?;
                let first = e.bind(&format!("min(k, {}u)", last(k, depths)))?;
                let found = self.contraction.number_of(e, operand, &line, &first)?;
                let loaded = packed.load_vector(e, &found.number)?;
                Ok(found.guarded("vec4<f32>", loaded, Some(format!("k < {k}u"))))
            });
        }
        let (code, values) = e.block(|e| {
            if width == 4 && self.contraction.finds_together(operand) {
                let (line, k) = if along_k {
                    (e.bind(&format!("min(line, {}u)", last(count, 1)))?, "k".to_owned())
                } else {
                    ("line".to_owned(), e.bind(&format!("min(k, {}u)", last(k, 1)))?)
                };
                return self.contraction.load_together(e, operand, &line, &k, width);
            }
            let mut values = Vec::new();
            for q in 0..width {
                let (dk, dl) = if along_k { (q, 0) } else { (0, q) };
                let line = e.bind(&format!("min(line + {dl}u, {}u)", last(count, 1)))?;
                let bound = e.bind(&format!("min(k + {dk}u, {}u)", last(k, 1)))?;
                values.push(self.contraction.load(e, operand, &line, &bound)?);
            }
            Ok(values)
        })?;
        let parts = values.into_iter().enumerate().map(|(q, value)| {
            let dk = if along_k { q } else { 0 };
            format!("select(0.0, {value}, k + {dk}u < {k}u)")
        });
        let parts: Vec<String> = parts.collect();
        Ok((code, format!("{vector}({})", parts.join(", "))))
    }
}
