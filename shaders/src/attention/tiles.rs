//! Products of a tile of rows with tiles of columns, by single threads: what attention and both of its derivatives have in
//! common.
//!
//! A workgroup has a tile of rows, queries or keys of one head, and goes over tiles of columns, keys or queries. For a tile it
//! makes *scores*, a number for each row and column: products of rows with columns. From these it makes *weights*, and
//! sums up *results*, a vector for each row: products of weights with columns. A thread has four rows: of the scores, four
//! columns that are 32 apart; of the results, a column of vectors. All products go in steps through shared memory, the next
//! step's elements being on their way from memory meanwhile:
//!
//! - scores: [`DEPTH`] vectors of all columns of the tile, and of the rows, at a time;
//! - results: 32 columns at a time, whose weights go through shared memory, and a *slab* of up to 64 elements of each.
//!
//! For heads of 64, a tile of 128 columns is 32 KiB for each of its operands, and takes 4 steps of 2 barriers for each
//! product, in which a thread does 1024 multiplications and loads 128 vectors from shared memory, half of which are the
//! same for all threads of a row. With 16 rows that are 4 multiplications for a byte from memory, with 32 rows 8. Shared
//! memory is within the 16 KiB that every device has.

use std::fmt::Write as _;

use meganeura_core::ops::AttentionDims;

use super::super::module::Module;
use super::{DEPTH, Side, group_place, start, vectors};

/// Rows of a thread, and columns.
pub(super) const EACH: usize = 4;
/// Threads of a row.
pub(super) const ACROSS: usize = 32;
/// Columns of a tile.
pub(super) const COLUMNS: usize = EACH * ACROSS;
/// Vectors from one row to the next in shared memory during such a step: an odd number keeps rows apart in its banks.
const STRIDE: usize = DEPTH + 1;
/// Most vectors of a slab.
const SLAB: usize = 16;
/// Threads that bring what rows have together before all do.
const SOME: usize = 8;
/// Rows of a tile where there are few workgroups, and where there are many.
pub(super) const FEW_ROWS: usize = 16;
const MANY_ROWS: usize = 32;
/// Workgroups from which on the larger tile is better: it reads the columns half as often.
const MANY_GROUPS: usize = 528;

/// Numbers of rows of a tile.
pub(super) const ROWS: [usize; 2] = [FEW_ROWS, MANY_ROWS];

/// The number of rows of a tile that is likely to be the best.
pub(super) fn usual_rows(dims: &AttentionDims, side: Side) -> usize {
    let groups = dims.batch * dims.heads * side.sizes(dims)[0].div_ceil(MANY_ROWS);
    match groups >= MANY_GROUPS {
        true => MANY_ROWS,
        false => FEW_ROWS,
    }
}

/// Scores: products of rows and columns, by the names of the functions that fetch these.
pub(super) struct Scores {
    /// Four variables have this name and a number: vectors of four rows, a column each.
    pub(super) name: &'static str,
    pub(super) rows: &'static str,
    pub(super) columns: &'static str,
}

/// Results: products of weights and columns.
pub(super) struct Sums {
    pub(super) name: &'static str,
    /// Name of the scores that have become the weights.
    pub(super) weights: &'static str,
    pub(super) columns: &'static str,
}

/// A call cut into tiles of rows.
pub(super) struct Tiling {
    pub(super) dims: AttentionDims,
    /// What the rows are.
    side: Side,
    /// Threads along the rows.
    down: usize,
    scores: &'static [Scores],
    sums: &'static [Sums],
}

impl Tiling {
    /// Tiles of so many rows.
    pub(super) fn new(
        dims: AttentionDims,
        side: Side,
        rows: usize,
        scores: &'static [Scores],
        sums: &'static [Sums],
    ) -> Self {
        Tiling {
            dims,
            side,
            down: rows / EACH,
            scores,
            sums,
        }
    }

    fn rows(&self) -> usize {
        EACH * self.down
    }

    pub(super) fn threads(&self) -> usize {
        self.down * ACROSS
    }

    /// One for each tile of rows and each head of the queries.
    pub(super) fn groups(&self) -> usize {
        self.dims.batch * self.dims.heads * self.side.sizes(&self.dims)[0].div_ceil(self.rows())
    }

    /// Vectors of a slab, a power of two.
    fn slab(&self) -> usize {
        vectors(&self.dims).next_power_of_two().min(SLAB)
    }

    fn slabs(&self) -> usize {
        vectors(&self.dims).div_ceil(self.slab())
    }

    /// Threads of a row that have the same elements of the results, and share out the columns.
    fn parts(&self) -> usize {
        ACROSS / self.slab()
    }

    /// Where shared memory has the weights, behind the columns.
    fn weights(&self) -> usize {
        ACROSS * self.slab()
    }

    /// Where it has what comes of the rows, behind the weights.
    fn reduced(&self) -> usize {
        self.weights() + ACROSS * (self.down + 1)
    }

    /// Vectors of shared memory.
    fn shared(&self) -> usize {
        let scores = (COLUMNS + self.rows()) * STRIDE;
        let merged = self.rows() * ACROSS / 2;
        scores.max(self.reduced() + self.down * SOME).max(merged)
    }

    /// Code that says what rows a thread has, from `row` on, and declares the results and shared memory.
    pub(super) fn begin(&self, module: &mut Module) -> String {
        let shared = self.shared();
        let _ = writeln!(module.items, "var<workgroup> pool: array<vec4<f32>, {shared}>;");
        let mut code = group_place(&self.dims, self.side, self.rows());
        let _ = write!(
            code,
            "let down = local / {ACROSS}u;\nlet across = local % {ACROSS}u;\n\
             let part = across / {0}u;\nlet piece = across % {0}u;\nlet row = first + down * {EACH}u;\n\
             let row_numbers = vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u);\n",
            self.slab(),
        );
        self.each_result(|sums, slab, i| _ = writeln!(code, "var {}_{slab}_{i} = vec4<f32>();", sums.name));
        code
    }

    /// Code that goes over the columns from `begin` to `end`: `column` is the first one of a tile, `before` the code that a
    /// tile begins with, `middle` the code that makes weights of scores.
    pub(super) fn go(&self, code: &mut String, before: &str, middle: &str) {
        code.push_str("var column = begin;\n");
        self.fetch_scores(code, "var ", 0, "column", "0u");
        let _ = writeln!(code, "loop {{\nif (column >= end) {{\nbreak;\n}}\n{before}");
        (0..self.scores.len()).for_each(|i| self.make_scores(code, i));
        // What the first step needs comes while weights are made.
        self.fetch_sums(code, "var ", 0, [0, 0]);
        code.push_str(middle);
        self.make_sums(code, 0);
        let _ = writeln!(code, "column += {COLUMNS}u;\n}}");
    }

    /// Does something for every vector of results that a thread has: of which sums, slab, and row.
    pub(super) fn each_result(&self, mut f: impl FnMut(&Sums, usize, usize)) {
        for sums in self.sums {
            for slab in 0..self.slabs() {
                (0..EACH).for_each(|i| f(sums, slab, i));
            }
        }
    }

    /// Pieces of so many vectors that threads copy, and the number of a thread's vector in each.
    fn pieces(&self, vectors: usize) -> impl Iterator<Item = (usize, String)> + use<> {
        let threads = self.threads();
        (0..vectors.div_ceil(threads)).map(move |piece| (piece, format!("(local + {}u)", piece * threads)))
    }

    /// Code that fetches what a thread copies for a step of some scores.
    fn fetch_scores(&self, code: &mut String, declare: &str, number: usize, column: &str, depth: &str) {
        let Scores { rows, columns, .. } = self.scores[number];
        for (piece, at) in self.pieces(COLUMNS * DEPTH) {
            let _ = writeln!(
                code,
                "{declare}c_{piece} = fetch_{columns}(batch, {column} + {at} / {DEPTH}u, {}, {depth} + {at} % {DEPTH}u);",
                self.side.other().head()
            );
        }
        // There are fewer of them than threads.
        let _ = writeln!(
            code,
            "{declare}r_0 = fetch_{rows}(batch, first + local / {DEPTH}u, {}, {depth} + local % {DEPTH}u);",
            self.side.head()
        );
    }

    /// Code that makes scores of a tile.
    fn make_scores(&self, code: &mut String, number: usize) {
        let name = self.scores[number].name;
        for j in 0..EACH {
            let _ = writeln!(code, "var {name}{j} = vec4<f32>();");
        }
        let steps = vectors(&self.dims).div_ceil(DEPTH);
        let _ = writeln!(code, "for (var step = 0u; step < {steps}u; step += 1u) {{");
        for (piece, at) in self.pieces(COLUMNS * DEPTH) {
            let _ = writeln!(code, "pool[{at} / {DEPTH}u * {STRIDE}u + {at} % {DEPTH}u] = c_{piece};");
        }
        let rows = COLUMNS * STRIDE;
        let _ = write!(
            code,
            "if (local < {}u) {{\npool[{rows}u + local / {DEPTH}u * {STRIDE}u + local % {DEPTH}u] = r_0;\n}}\n\
             workgroupBarrier();\n",
            self.rows() * DEPTH
        );
        if steps > 1 {
            let _ = writeln!(code, "if (step + 1u < {steps}u) {{");
            self.fetch_scores(code, "", number, "column", &format!("(step + 1u) * {DEPTH}u"));
            code.push_str("}\n");
        }
        if number + 1 < self.scores.len() {
            let _ = writeln!(code, "if (step + 1u == {steps}u) {{");
            self.fetch_scores(code, "", number + 1, "column", "0u");
            code.push_str("}\n");
        }
        let _ = writeln!(code, "for (var d = 0u; d < {DEPTH}u; d += 1u) {{");
        for i in 0..EACH {
            let _ = write!(
                code,
                "let a{i} = pool[{rows}u + (down * {EACH}u + {i}u) * {STRIDE}u + d];\n\
                 let b{i} = pool[(across + {}u) * {STRIDE}u + d];\n",
                i * ACROSS
            );
        }
        for c in ["x", "y", "z", "w"] {
            let _ = writeln!(code, "let a_{c} = vec4<f32>(a0.{c}, a1.{c}, a2.{c}, a3.{c});");
            for j in 0..EACH {
                let _ = writeln!(code, "{name}{j} = fma(a_{c}, vec4<f32>(b{j}.{c}), {name}{j});");
            }
        }
        code.push_str("}\nworkgroupBarrier();\n}\n");
    }

    /// Code that fetches the columns that a thread copies for a step of some results.
    fn fetch_sums(&self, code: &mut String, declare: &str, number: usize, [chunk, slab]: [usize; 2]) {
        let (width, columns) = (self.slab(), self.sums[number].columns);
        for (piece, at) in self.pieces(ACROSS * width) {
            let _ = writeln!(
                code,
                "{declare}v_{piece} = fetch_{columns}(batch, column + {}u + {at} / {width}u, {}, {}u + {at} % {width}u);",
                chunk * ACROSS,
                self.side.other().head(),
                slab * width
            );
        }
    }

    /// Code that adds to the results, from a chunk of 32 columns on. Later chunks may be beyond the end.
    fn make_sums(&self, code: &mut String, chunk: usize) {
        let steps: Vec<[usize; 2]> = (0..self.sums.len())
            .flat_map(|number| (0..self.slabs()).map(move |slab| [number, slab]))
            .collect();
        for (at, &step) in steps.iter().enumerate() {
            self.store_step(code, chunk, step);
            code.push_str("workgroupBarrier();\n");
            match (steps.get(at + 1), chunk + 1 < EACH) {
                (Some(&[number, slab]), _) => self.fetch_sums(code, "", number, [chunk, slab]),
                (None, true) => self.fetch_sums(code, "", 0, [chunk + 1, 0]),
                (None, false) => {
                    let _ = writeln!(code, "if (column + {COLUMNS}u < end) {{");
                    self.fetch_scores(code, "", 0, &format!("column + {COLUMNS}u"), "0u");
                    code.push_str("}\n");
                }
            }
            self.add_step(code, step);
            code.push_str("workgroupBarrier();\n");
        }
        if chunk + 1 < EACH {
            let _ = writeln!(code, "if (column + {}u < end) {{", (chunk + 1) * ACROSS);
            self.make_sums(code, chunk + 1);
            code.push_str("}\n");
        }
    }

    /// Code that puts what a step needs into shared memory.
    fn store_step(&self, code: &mut String, chunk: usize, [number, slab]: [usize; 2]) {
        let vectors = ACROSS * self.slab();
        for (piece, at) in self.pieces(vectors) {
            let store = format!("pool[{at}] = v_{piece};\n");
            match vectors.is_multiple_of(self.threads()) {
                true => code.push_str(&store),
                false => _ = write!(code, "if ({at} < {vectors}u) {{\n{store}}}\n"),
            }
        }
        if slab == 0 {
            let _ = writeln!(
                code,
                "pool[{}u + across * {}u + down] = {}{chunk};",
                self.weights(),
                self.down + 1,
                self.sums[number].weights
            );
        }
    }

    /// Code that multiplies what is in shared memory.
    fn add_step(&self, code: &mut String, [number, slab]: [usize; 2]) {
        let name = self.sums[number].name;
        let _ = write!(
            code,
            "for (var i = part; i < {ACROSS}u; i += {}u) {{\n\
             let value = pool[i * {}u + piece];\nlet weights = pool[{}u + i * {}u + down];\n",
            self.parts(),
            self.slab(),
            self.weights(),
            self.down + 1
        );
        for i in 0..EACH {
            let _ = writeln!(
                code,
                "{name}_{slab}_{i} = fma(vec4<f32>(weights[{i}]), value, {name}_{slab}_{i});"
            );
        }
        code.push_str("}\n");
    }

    /// Code that brings a vector of each thread together with those of the same rows, by a function: `reduced`.
    pub(super) fn reduce(&self, code: &mut String, value: &str, function: &str) {
        let each = ACROSS / SOME;
        let fold = |at: &str, count: usize| {
            let first = format!("pool[{at}]");
            (1..count).fold(first, |folded, i| format!("{function}({folded}, pool[{at} + {i}u])"))
        };
        let _ = write!(
            code,
            "pool[local] = {value};\nworkgroupBarrier();\nif (across < {SOME}u) {{\n\
             let at = down * {ACROSS}u + across * {each}u;\npool[{0}u + down * {SOME}u + across] = {1};\n}}\n\
             workgroupBarrier();\nlet reduced_at = {0}u + down * {SOME}u;\nlet reduced = {2};\n",
            self.reduced(),
            fold("at", each),
            fold("reduced_at", SOME),
        );
    }

    /// Code that brings the parts of the results together and stores them: `store` makes the statement from the name of the
    /// sums, the number of a thread's row, the number of the vector in a head, and an expression for it.
    pub(super) fn finish(&self, code: &mut String, mut store: impl FnMut(&Sums, usize, &str, &str) -> String) {
        let mut parts = self.parts();
        while parts > 1 {
            parts /= 2;
            self.merge(code, parts);
        }
        let [rows, _] = self.side.sizes(&self.dims);
        code.push_str("if (part == 0u) {\n");
        self.each_result(|sums, slab, i| {
            let _ = writeln!(code, "if (row + {i}u < {rows}u) {{");
            let vector = format!("({}u + piece)", slab * self.slab());
            code.push_str(&store(sums, i, &vector, &format!("{}_{slab}_{i}", sums.name)));
            code.push_str("}\n");
        });
        code.push_str("}\n");
    }

    /// Code that adds the results of so many parts, those from there on, to those of as many before.
    fn merge(&self, code: &mut String, parts: usize) {
        let lanes = parts * self.slab();
        let at = |i: usize| format!("pool[(down * {EACH}u + {i}u) * {lanes}u + across % {lanes}u]");
        for sums in self.sums {
            for slab in 0..self.slabs() {
                let name = format!("{}_{slab}", sums.name);
                let _ = writeln!(code, "if (part >= {parts}u && part < {}u) {{", 2 * parts);
                (0..EACH).for_each(|i| _ = writeln!(code, "{} = {name}_{i};", at(i)));
                let _ = writeln!(code, "}}\nworkgroupBarrier();\nif (part < {parts}u) {{");
                (0..EACH).for_each(|i| _ = writeln!(code, "{name}_{i} += {};", at(i)));
                code.push_str("}\nworkgroupBarrier();\n");
            }
        }
    }

    /// The number of the first element of a thread's row, in an operand like those of the rows.
    pub(super) fn start(&self, i: usize) -> String {
        start(
            &self.dims,
            self.side,
            ["batch", &format!("(row + {i}u)"), self.side.head()],
        )
    }
}
