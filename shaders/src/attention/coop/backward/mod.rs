//! Gradients of attention on matrix units, from the saved logarithms: as by single threads, scores are made anew, once with
//! queries as rows for the gradient of these, once with keys as rows for those of keys and values.
//!
//! A workgroup has two rows of tiles, queries or keys of one head, and goes over tiles of columns, keys or queries. For these
//! it makes two products: the scores, `s = q k^T`, and the gradients of the probabilities, `t = dout v^T`. Its subgroups
//! are two along the rows, and one or two of each product along the columns; a subgroup keeps the tiles of its rows.
//! Products go through shared memory as `f32` to become weights, `p = e^(scale s - lse)` and `ds = scale p (t - delta)`, which
//! are rounded like operands. Then the same halves of the subgroups make two sums, which stay in their
//! registers: with keys as rows those of `ds q` and `p dout`, with queries as rows those of `ds k` over either half of the columns.
//!
//! **Range.** Gradients may be of any size, while an `f16` is flushed to zero below 2^-24 and infinite from 2^16 on.
//! Everything here is linear in `dout` and `delta`, so both are multiplied by a power of two, and the sums by
//! its inverse, which changes no digit: the largest of a row's `|dout|` and `|delta|` comes to between 1 and 2 where queries
//! are rows, the largest of all queries that see a workgroup's keys where keys are, as the sums go over queries there. The first
//! launch leaves the largest number of each tile of queries to the second. So `ds` is infinite only if
//! `2 scale (head_dim max |v| + 1)` is beyond 65,504, or `p` is, and what is flushed is below 2^-24 of
//! the largest. Queries, keys and values are rounded as they are, like operands of other products.
//!
//! **Tolerance.** A product is off by 2^-10 of the sum of `|a b|` of its terms at most. That of `t` is all that is left where
//! `t` and `delta` cancel, and goes into `ds` with its weight, as it does where the decomposition runs on units.
//!
//! With heads of 64 and tiles of 16, a step of the first launch has 32 keys, with 48 multiplications of tiles, 6 for each
//! of eight subgroups, and takes 18 KiB of shared memory; one of the second has 32 queries, 64 multiplications, 23 KiB.
//! A step has four barriers, and the columns of the next one are on their way meanwhile.

mod weights;

use std::fmt::Write as _;

use meganeura_core::DType;
use meganeura_core::ops::AttentionDims;

use super::super::super::kernel::{CompileCx, Compiled, Launch};
use super::super::super::module::Module;
use super::super::backward::{Parts, declare_operands, join, row_number};
use super::super::{Side, Target, group_place, key_range, query_range, start, store};
use super::{CoopConfig, Units, fitting, is_worth, row_bounds, sums_stride};

/// Rows of tiles of a workgroup.
const DOWN: usize = 2;
/// Subgroups along the columns of a product, and rows of tiles of columns: the first for which there is room.
const SHAPES: [[usize; 2]; 4] = [[2, 4], [2, 2], [1, 4], [1, 2]];
/// Scratch with the largest number of each tile of queries, as bits; behind it come the parts of grouped heads.
const LARGEST: usize = 0;

/// A call cut into tiles of rows.
#[derive(Clone, Copy)]
pub(in super::super) struct Tiling {
    dims: AttentionDims,
    units: Units,
    /// What the rows are.
    side: Side,
    /// Subgroups along the columns of a product.
    beside: usize,
    /// Rows of tiles of columns.
    column_tiles: usize,
}

/// The tiles of queries and of keys of a call; `None` where single threads are likely to be faster.
pub(in super::super) fn usual(config: &CoopConfig, dims: AttentionDims) -> Option<[Tiling; 2]> {
    if !is_worth(config, &dims) {
        return None;
    }
    let tiling = |side| fitting(config, &tilings(config, dims, side), Tiling::shared);
    Some([tiling(Side::Queries)?, tiling(Side::Keys)?])
}

/// All pairs of such tiles for which there is room.
pub(in super::super) fn all(config: &CoopConfig, dims: AttentionDims) -> Vec<[Tiling; 2]> {
    let [queries, keys] = [Side::Queries, Side::Keys].map(|side| {
        let mut all = tilings(config, dims, side).to_vec();
        all.retain(|tiling| tiling.units.fits(&dims, tiling.shared()));
        all
    });
    let pairs = queries.iter().flat_map(|&q| keys.iter().map(move |&k| [q, k]));
    pairs.collect()
}

fn tilings(config: &CoopConfig, dims: AttentionDims, side: Side) -> [Tiling; SHAPES.len()] {
    SHAPES.map(|[beside, column_tiles]| Tiling {
        dims,
        units: Units {
            config: *config,
            subgroups: DOWN * 2 * beside,
        },
        side,
        beside,
        column_tiles,
    })
}

/// The launches for a call.
pub(in super::super) fn compile(cx: &CompileCx, [queries, keys]: &[Tiling; 2]) -> Result<Compiled, String> {
    let dims = &queries.dims;
    let parts = Parts::of(dims, LARGEST + 1);
    let mut launches = vec![queries.launch(cx, &parts)?, keys.launch(cx, &parts)?];
    let mut scratch = vec![4 * queries.groups()];
    if !parts.is_empty() {
        launches.push(join(cx, dims, &parts)?);
        scratch.extend(parts.bytes(dims));
    }
    Ok(Compiled {
        launches,
        scratch,
        ..Compiled::default()
    })
}

impl Tiling {
    /// The setting of a schedule: subgroups beside each other, and columns of a step.
    pub(in super::super) fn setting(&self) -> [usize; 2] {
        [self.beside, self.columns()]
    }
}

impl Tiling {
    /// Bytes of shared memory that it takes, if threads share out evenly what there is to do.
    fn shared(&self) -> Option<usize> {
        let threads = self.units.threads();
        let bytes = self.units.vector_bytes() * self.pool() + 16 * (self.sums() + self.marks()) + 4 * self.largest();
        let is_even = matches!(self.units.tile(), 8 | 16)
            && threads.is_multiple_of(self.rows())
            && (self.columns() / 4).is_multiple_of(self.across())
            && threads > self.rows()
            && threads >= self.columns();
        is_even.then_some(bytes)
    }

    /// Rows of a workgroup, as many with either side.
    fn rows(&self) -> usize {
        DOWN * self.units.tile()
    }

    /// One for each tile of rows and each head of the queries.
    fn groups(&self) -> usize {
        let [count, _] = self.side.sizes(&self.dims);
        self.dims.batch * self.dims.heads * count.div_ceil(self.rows())
    }

    /// Columns of a step.
    fn columns(&self) -> usize {
        self.column_tiles * self.units.tile()
    }

    /// Threads of a row.
    fn across(&self) -> usize {
        self.units.threads() / self.rows()
    }

    /// Vectors of a product that a thread has.
    fn each(&self) -> usize {
        self.columns() / 4 / self.across()
    }

    /// Elements of a head with those that make its tiles a multiple of the subgroups of a sum.
    fn width(&self) -> usize {
        self.dims.head_dim.next_multiple_of(self.beside * self.units.tile())
    }

    /// Tiles along the summed dimension of the products.
    fn depth(&self) -> usize {
        self.dims.head_dim.div_ceil(self.units.tile())
    }

    /// Tiles of results that a subgroup has.
    fn own(&self) -> usize {
        self.width() / self.units.tile() / self.beside
    }

    /// Vectors of one operand's columns in shared memory, where that of the rows is before there are any.
    fn piece(&self) -> usize {
        let columns = self.columns().max(self.rows()) * self.units.stride(self.width());
        columns.max(self.weights())
    }

    /// Vectors of one kind of weights.
    fn weights(&self) -> usize {
        self.rows() * self.units.stride(self.columns())
    }

    /// Where the weights begin: with queries as rows, the second operand's columns are needed for the products alone.
    fn first_weight(&self) -> usize {
        match self.side {
            Side::Queries => self.piece(),
            Side::Keys => 2 * self.piece(),
        }
    }

    /// Vectors of shared memory for operands and weights.
    fn pool(&self) -> usize {
        match self.side {
            Side::Queries => 2 * self.piece(),
            Side::Keys => 2 * self.piece() + 2 * self.weights(),
        }
    }

    /// Vectors of one product, or of some columns of one sum.
    fn product(&self) -> usize {
        self.rows() * sums_stride(self.columns().max(self.beside * self.units.tile()))
    }

    /// Vectors of both.
    fn sums(&self) -> usize {
        2 * self.product()
    }

    /// Vectors of logarithms and deltas of the columns, if these are queries.
    fn marks(&self) -> usize {
        match self.side {
            Side::Queries => 0,
            Side::Keys => 2 * self.columns() / 4,
        }
    }

    /// Largest numbers: of each query and of all, or of all queries that see a key.
    fn largest(&self) -> usize {
        match self.side {
            Side::Queries => self.rows() + 1,
            Side::Keys => 1,
        }
    }

    /// Names of the two operands of rows, or columns.
    fn operands(side: Side) -> [&'static str; 2] {
        match side {
            Side::Queries => ["q", "dout"],
            Side::Keys => ["k", "v"],
        }
    }

    fn launch(&self, cx: &CompileCx, parts: &Parts) -> Result<Launch, String> {
        let dims = &self.dims;
        let mut module = Module::new(cx);
        self.units.enable(&mut module);
        self.declare(&mut module);
        let (tile, size, beside) = (self.units.tile(), self.units.config.subgroup_size, self.beside);
        let mut code = group_place(dims, self.side, self.rows());
        let _ = write!(
            code,
            "let subgroup = local / {size}u;\nlet sub_row = subgroup / {}u * {tile}u;\n\
             let which = subgroup / {beside}u % 2u;\nlet sub_column = subgroup % {beside}u;\n\
             let own_row = local % {rows}u;\nlet part = local / {rows}u;\n",
            2 * beside,
            rows = self.rows(),
        );
        code.push_str(&match self.side {
            Side::Queries => key_range(&mut module, dims),
            Side::Keys => query_range(dims),
        });
        code.push_str("var column = begin;\n");
        self.fetch_columns(&mut module, &mut code, "var ", "column");
        self.units.copies(self.rows(), self.width(), |piece, row, vector| {
            for (i, name) in Self::operands(self.side).iter().enumerate() {
                let head = self.side.head();
                let _ = writeln!(
                    code,
                    "let row_{i}_{piece} = fetch_{name}(batch, first + {row}, {head}, {vector});"
                );
            }
        });
        match self.side {
            Side::Queries => self.begin_queries(&mut module, &mut code),
            Side::Keys => self.begin_keys(&mut module, &mut code),
        }
        let matrix = self.units.matrix('C');
        (0..self.own()).for_each(|j| _ = writeln!(code, "var sum_{j} = {matrix}();"));
        code.push_str("loop {\nif (column >= end) {\nbreak;\n}\n");
        self.store_columns(&mut code);
        let next = format!("column + {}u", self.columns());
        let _ = writeln!(code, "workgroupBarrier();\nif ({next} < end) {{");
        self.fetch_columns(&mut module, &mut code, "", &next);
        code.push_str("}\n");
        self.products(&mut code);
        match self.side {
            Side::Queries => self.weights_of_queries(&mut code),
            Side::Keys => self.weights_of_keys(&mut code),
        }
        self.add_up(&mut code);
        let _ = writeln!(code, "column = {next};\n}}");
        self.finish(&mut module, &mut code, parts);
        module.finish(&code, self.units.threads(), self.groups())
    }

    /// Declares shared memory and functions.
    fn declare(&self, module: &mut Module) {
        declare_operands(module, &self.dims);
        let _ = write!(
            module.items,
            "var<workgroup> pool: array<vec4<{}>, {}>;\nvar<workgroup> sums: array<vec4<f32>, {}>;\n\
             var<workgroup> largest: array<atomic<u32>, {}>;\n",
            self.units.element(),
            self.pool(),
            self.sums(),
            self.largest()
        );
        if self.marks() > 0 {
            let _ = writeln!(
                module.items,
                "var<workgroup> marks: array<vec4<f32>, {}>;",
                self.marks()
            );
        }
        // Bits of numbers that are not negative are in the order of the numbers. The factor is 2^-n for a number from 2^n
        // to 2^(n + 1), as far as it and its inverse are normal, and 1 for what is infinite or none.
        module.items.push_str(
            "fn size_of(x: vec4<f32>) -> u32 {\nlet bits = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);\n\
             return max(max(bits.x, bits.y), max(bits.z, bits.w));\n}\n\
             fn factor_of(size: u32) -> f32 {\nlet exponent = size >> 23u;\n\
             return bitcast<f32>(select(clamp(254u - exponent, 1u, 253u), 127u, exponent == 255u) << 23u);\n}\n\
             fn inverse_of(factor: f32) -> f32 {\nreturn bitcast<f32>((254u << 23u) - bitcast<u32>(factor));\n}\n",
        );
    }

    /// Code that fetches a tile of columns, with their logarithms and deltas if these are queries.
    fn fetch_columns(&self, module: &mut Module, code: &mut String, declare: &str, column: &str) {
        let side = self.side.other();
        self.units.copies(self.columns(), self.width(), |piece, row, vector| {
            for (i, name) in Self::operands(side).iter().enumerate() {
                let _ = writeln!(
                    code,
                    "{declare}column_{i}_{piece} = fetch_{name}(batch, {column} + {row}, {}, {vector});",
                    side.head()
                );
            }
        });
        if side == Side::Queries {
            let number = row_number(&self.dims, &format!("({column} + local % {}u)", self.columns()));
            for (operand, name) in [(3, "lse"), (4, "delta")] {
                let _ = writeln!(code, "{declare}{name} = {};", module.load(operand, &number));
            }
        }
    }

    /// Code that puts a tile of columns into shared memory.
    fn store_columns(&self, code: &mut String) {
        let element = self.units.element();
        let side = self.side.other();
        self.units.copies(self.columns(), self.width(), |piece, row, vector| {
            let at = format!("{row} * {}u + {vector}", self.units.stride(self.width()));
            for (i, name) in Self::operands(side).iter().enumerate() {
                let factor = if *name == "dout" { " * factor" } else { "" };
                let _ = writeln!(
                    code,
                    "pool[{}u + {at}] = vec4<{element}>(column_{i}_{piece}{factor});",
                    i * self.piece()
                );
            }
        });
        if side == Side::Queries {
            let _ = write!(
                code,
                "if (local < {}u) {{\nmarks[local / 4u][local % 4u] = lse;\n\
                 marks[{}u + local / 4u][local % 4u] = delta * factor;\n}}\n",
                self.columns(),
                self.columns() / 4
            );
        }
    }

    /// Code that begins a tile of queries: finds their factors, loads them, and leaves their largest number.
    fn begin_queries(&self, module: &mut Module, code: &mut String) {
        let (dims, rows) = (&self.dims, self.rows());
        for (operand, name) in [(3, "lse"), (4, "given_delta")] {
            let value = module.load(operand, &row_number(dims, "(first + own_row)"));
            let _ = writeln!(code, "let {name} = {value};");
        }
        let _ = write!(
            code,
            "let query = min(first + own_row, last);\n{}\
             if (local <= {rows}u) {{\natomicStore(&largest[local], 0u);\n}}\nworkgroupBarrier();\n\
             if (part == 0u) {{\natomicMax(&largest[own_row], size_of(vec4<f32>(given_delta)));\n}}\n",
            row_bounds(dims),
        );
        self.units.copies(rows, self.width(), |piece, row, _| {
            let _ = writeln!(code, "atomicMax(&largest[{row}], size_of(row_1_{piece}));");
        });
        code.push_str(
            "workgroupBarrier();\nlet own_size = atomicLoad(&largest[own_row]);\n\
             let delta = given_delta * factor_of(own_size);\n",
        );
        let _ = writeln!(code, "if (part == 0u) {{\natomicMax(&largest[{rows}u], own_size);\n}}");
        self.load_rows(code, |row| format!(" * factor_of(atomicLoad(&largest[{row}]))"));
        let left = module.array(module.cx().scratch(LARGEST), DType::U32, true);
        let _ = writeln!(
            code,
            "if (local == 0u) {{\n{left}[{}] = atomicLoad(&largest[{rows}u]);\n}}\nworkgroupBarrier();",
            self.tile_number("tile")
        );
    }

    /// Code that begins a tile of keys: loads them, and finds the factor of the queries that see them.
    fn begin_keys(&self, module: &mut Module, code: &mut String) {
        let rows = self.rows();
        code.push_str("if (local == 0u) {\natomicStore(&largest[0], 0u);\n}\n");
        self.load_rows(code, |_| String::new());
        let left = module.array(module.cx().scratch(LARGEST), DType::U32, false);
        let _ = write!(
            code,
            "for (var i = begin / {rows}u + local; i * {rows}u < end; i += {}u) {{\n\
             atomicMax(&largest[0], {left}[{}]);\n}}\nworkgroupBarrier();\n\
             let factor = factor_of(atomicLoad(&largest[0]));\n",
            self.units.threads(),
            self.tile_number("i")
        );
    }

    /// The number of a tile of queries of the workgroup's head among those of all heads.
    fn tile_number(&self, tile: &str) -> String {
        let tiles = self.dims.rows_q.div_ceil(self.rows());
        format!("(batch * {}u + head) * {tiles}u + {tile}", self.dims.heads)
    }

    /// Code that loads the tiles of a subgroup's rows, which it keeps; the second operand's are multiplied by a `factor`
    /// of the row before.
    fn load_rows(&self, code: &mut String, factor: impl Fn(&str) -> String) {
        let (stride, element) = (self.units.stride(self.width()), self.units.element());
        self.units.copies(self.rows(), self.width(), |piece, row, vector| {
            let _ = write!(
                code,
                "pool[{row} * {stride}u + {vector}] = vec4<{element}>(row_0_{piece});\n\
                 pool[{}u + {row} * {stride}u + {vector}] = vec4<{element}>(row_1_{piece}{});\n",
                self.piece(),
                factor(row)
            );
        });
        code.push_str("workgroupBarrier();\n");
        for d in 0..self.depth() {
            let at = format!(
                "which * {}u + sub_row * {stride}u + {}u",
                self.piece(),
                d * self.units.tile() / 4
            );
            self.units.load(code, &format!("row_{d}"), 'A', &at, stride, true);
        }
        code.push_str("workgroupBarrier();\n");
    }

    /// Code that multiplies rows and columns, each subgroup tiles of one of the two products.
    fn products(&self, code: &mut String) {
        let (tile, stride, tiles) = (
            self.units.tile(),
            self.units.stride(self.width()),
            self.column_tiles / self.beside,
        );
        for j in 0..tiles {
            let _ = writeln!(code, "var product_{j} = {}();", self.units.matrix('C'));
        }
        for d in 0..self.depth() {
            for j in 0..tiles {
                let at = format!(
                    "which * {}u + (sub_column * {}u + {}u) * {stride}u + {}u",
                    self.piece(),
                    tiles * tile,
                    j * tile,
                    d * tile / 4
                );
                let name = format!("column_{d}_{j}");
                self.units.load(code, &name, 'B', &at, stride, false);
                let _ = writeln!(code, "product_{j} = coopMultiplyAdd(row_{d}, {name}, product_{j});");
            }
        }
        for j in 0..tiles {
            let column = format!("sub_column * {}u + {}u", tiles * tile / 4, j * tile / 4);
            self.store(code, &format!("product_{j}"), &column);
        }
        code.push_str("workgroupBarrier();\n");
    }

    /// Code that stores a subgroup's tile of a product or a sum at a column, in vectors.
    fn store(&self, code: &mut String, name: &str, column: &str) {
        let stride = self.product() / self.rows();
        let _ = write!(
            code,
            "let to_{name} = which * {}u + sub_row * {stride}u + {column};\n\
             coopStoreT({name}, &sums[to_{name}], {stride}u);\n",
            self.product()
        );
    }

    /// Code that multiplies weights and columns, and adds up. Where rows are queries, there is one sum, of which half of the
    /// subgroups have the terms of half of the columns.
    fn add_up(&self, code: &mut String) {
        let (tile, stride) = (self.units.tile(), self.units.stride(self.width()));
        let weights = self.units.stride(self.columns());
        let (steps, from_weight, from_column) = match self.side {
            Side::Queries => {
                let half = self.columns() / 2;
                (self.column_tiles / 2, half / 4, half * stride)
            }
            Side::Keys => (self.column_tiles, self.weights(), self.piece()),
        };
        for d in 0..steps {
            let at = format!(
                "{}u + which * {from_weight}u + sub_row * {weights}u",
                self.first_weight() + d * tile / 4
            );
            self.units.load(code, &format!("weight_{d}"), 'A', &at, weights, true);
            for j in 0..self.own() {
                let at = format!(
                    "which * {from_column}u + {}u + sub_column * {}u",
                    d * tile * stride + j * tile / 4,
                    self.own() * tile / 4
                );
                let name = format!("term_{d}_{j}");
                self.units.load(code, &name, 'B', &at, stride, true);
                let _ = writeln!(code, "sum_{j} = coopMultiplyAdd(weight_{d}, {name}, sum_{j});");
            }
        }
        code.push_str("workgroupBarrier();\n");
    }

    /// Code that brings the sums to shared memory, a tile of each subgroup at a time, and stores the results.
    fn finish(&self, module: &mut Module, code: &mut String, parts: &Parts) {
        let (dims, tile) = (&self.dims, self.units.tile());
        let [count, _] = self.side.sizes(dims);
        let stride = self.product() / self.rows();
        for j in 0..self.own() {
            self.store(code, &format!("sum_{j}"), &format!("sub_column * {}u", tile / 4));
            code.push_str("workgroupBarrier();\n");
            self.units.copies(self.rows(), self.beside * tile, |_, row, vector| {
                let _ = write!(
                    code,
                    "{{\nlet own = {row};\nlet across = {vector};\nlet row = first + own;\n\
                     let vector = (across / {0}u * {1}u + {j}u) * {0}u + across % {0}u;\n\
                     let at = own * {stride}u + across;\n",
                    tile / 4,
                    self.own()
                );
                let results: &[&str] = match self.side {
                    Side::Queries => {
                        let _ = writeln!(
                            code,
                            "let dq = (sums[at] + sums[{}u + at]) * inverse_of(factor_of(atomicLoad(&largest[own])));",
                            self.product()
                        );
                        &["dq"]
                    }
                    Side::Keys => {
                        let _ = write!(
                            code,
                            "let dk = sums[at] * inverse_of(factor);\n\
                             let dv = sums[{}u + at] * inverse_of(factor);\n",
                            self.product()
                        );
                        &["dk", "dv"]
                    }
                };
                let _ = writeln!(code, "if (row < {count}u) {{");
                for (port, name) in results.iter().enumerate() {
                    code.push_str(&match self.side {
                        Side::Queries => {
                            let start = start(dims, Side::Queries, ["batch", "row", "head"]);
                            store(module, dims, Target::Output(0), [&start, "vector", name])
                        }
                        Side::Keys => parts.store(module, dims, port, ["row", "vector", name]),
                    });
                }
                code.push_str("}\n}\n");
            });
            code.push_str("workgroupBarrier();\n");
        }
    }
}
