//! Attention on matrix units: both products through cooperative matrices, of operands rounded to the units' input type,
//! with sums in `f32`; the softmax between them in `f32` by single threads.
//!
//! A workgroup of four subgroups has two rows of tiles of queries of one head, 32 queries for tiles of 16, and goes over
//! as many keys at a time. A subgroup has one row of tiles, and half of the columns: of the keys for the
//! scores, of the results for the values. Matrices cannot be scaled row by row, so scores and products with values go
//! through shared memory as `f32`; a thread has the same row of both, and keeps the row's greatest score, its part of the
//! sum and of the results in registers. Keys and values are rounded on their way to shared memory, those of the next tile
//! being on their way from memory meanwhile.
//!
//! For heads of 64 and tiles of 16, a step of 32 keys is 16 KiB of keys and values from memory for 32 multiplications of tiles
//! by tiles, 8 a subgroup, and 5 barriers, with 18 KiB of shared memory. Steps of 64 keys have fewer barriers, but leave
//! room for fewer workgroups, which hide more of the waiting.

use std::fmt::Write as _;

use meganeura_core::ops::AttentionDims;

use super::super::super::kernel::{CompileCx, Compiled, Launch};
use super::super::super::module::Module;
use super::super::{Side, Target, declare_fetch_as_stored, group_place, key_range, positions, scale, start, store};
use super::{CoopConfig, Units, fitting, is_worth, row_bounds, sums_stride};

/// Rows of tiles of a workgroup, and subgroups beside each other.
const DOWN: usize = 2;
const BESIDE: usize = 2;
/// Rows of tiles of keys of a step: the first that there is room for.
const KEY_TILES: [usize; 2] = [4, 2];

/// A call cut into tiles.
#[derive(Clone, Copy)]
pub(in super::super) struct Tiling {
    dims: AttentionDims,
    units: Units,
    /// Rows of tiles of keys.
    key_tiles: usize,
}

/// The tiles of a call; `None` where single threads are likely to be faster.
pub(in super::super) fn usual(config: &CoopConfig, dims: AttentionDims) -> Option<Tiling> {
    let tiling = fitting(config, &tilings(config, dims), Tiling::shared);
    tiling.filter(|_| is_worth(config, &dims))
}

/// All tiles for which there is room.
pub(in super::super) fn all(config: &CoopConfig, dims: AttentionDims) -> Vec<Tiling> {
    let mut all = tilings(config, dims).to_vec();
    all.retain(|tiling| tiling.units.fits(&dims, tiling.shared()));
    all
}

fn tilings(config: &CoopConfig, dims: AttentionDims) -> [Tiling; KEY_TILES.len()] {
    let units = Units {
        config: *config,
        subgroups: DOWN * BESIDE,
    };
    KEY_TILES.map(|key_tiles| Tiling { dims, units, key_tiles })
}

/// The launch for a call.
pub(in super::super) fn compile(cx: &CompileCx, tiling: &Tiling) -> Result<Compiled, String> {
    Ok(Compiled {
        launches: vec![tiling.launch(cx)?],
        rounded: if tiling.units.config.use_f16_input {
            vec![0, 1, 2]
        } else {
            Vec::new()
        },
        ..Compiled::default()
    })
}

impl Tiling {
    /// Bytes of shared memory that it takes, if threads share out evenly what there is to do.
    fn shared(&self) -> Option<usize> {
        let threads = self.units.threads();
        let bytes = self.units.vector_bytes() * 2 * self.piece() + 16 * self.rows() * self.sums_stride() + 4 * threads;
        let is_even = matches!(self.units.tile(), 8 | 16)
            && threads.is_multiple_of(self.rows())
            && (self.keys() / 4).is_multiple_of(self.across());
        is_even.then_some(bytes)
    }

    /// Queries of a workgroup.
    fn rows(&self) -> usize {
        DOWN * self.units.tile()
    }

    /// Keys of a step.
    pub(in super::super) fn keys(&self) -> usize {
        self.key_tiles * self.units.tile()
    }

    /// Threads of a row.
    fn across(&self) -> usize {
        self.units.threads() / self.rows()
    }

    /// Elements of a head with those that make its tiles a multiple of the subgroups beside each other.
    fn width(&self) -> usize {
        self.dims.head_dim.next_multiple_of(BESIDE * self.units.tile())
    }

    /// Vectors between rows of scores and results in shared memory.
    fn sums_stride(&self) -> usize {
        sums_stride(self.keys().max(self.width()))
    }

    /// Vectors of keys, or of values, in shared memory; queries and numerators are where keys are when there are none.
    fn piece(&self) -> usize {
        let keys = self.keys() * self.units.stride(self.width());
        keys.max(self.rows() * self.units.stride(self.keys()))
    }

    /// Vectors of scores that a thread has.
    fn scores(&self) -> usize {
        self.keys() / 4 / self.across()
    }

    /// Vectors of results that a thread has, the last one perhaps beyond the row.
    fn results(&self) -> usize {
        (self.width() / 4).div_ceil(self.across())
    }

    fn launch(&self, cx: &CompileCx) -> Result<Launch, String> {
        let dims = &self.dims;
        let mut module = Module::new(cx);
        self.units.enable(&mut module);
        let (rows, across, element) = (self.rows(), self.across(), self.units.element());
        let _ = write!(
            module.items,
            "var<workgroup> pool: array<vec4<{element}>, {}>;\nvar<workgroup> sums: array<vec4<f32>, {}>;\n\
             var<workgroup> partial: array<f32, {}>;\n",
            2 * self.piece(),
            rows * self.sums_stride(),
            rows * across
        );
        declare_fetch_as_stored(&mut module, dims, 0, Side::Queries, "q");
        declare_fetch_as_stored(&mut module, dims, 1, Side::Keys, "k");
        declare_fetch_as_stored(&mut module, dims, 2, Side::Keys, "v");
        let size = self.units.config.subgroup_size;
        let mut code = group_place(dims, Side::Queries, rows);
        let _ = write!(
            code,
            "{}let sub_row = local / {size}u / {BESIDE}u * {tile}u;\nlet sub_column = local / {size}u % {BESIDE}u;\n\
             let own_row = local % {rows}u;\nlet part = local / {rows}u;\nlet query = min(first + own_row, last);\n{}\
             let hidden = from_bits(0xff800000u);\nvar greatest = -3.4028234e38;\nvar total = 0.0;\n",
            key_range(&mut module, dims),
            row_bounds(dims),
            tile = self.units.tile(),
        );
        (0..self.results()).for_each(|i| _ = writeln!(code, "var out_{i} = vec4<f32>();"));
        self.queries(&mut code);
        code.push_str("var key = begin;\n");
        self.fetch(&mut code, "var ", "key");
        code.push_str("loop {\n");
        self.units.copies(self.keys(), self.width(), |piece, row, vector| {
            let at = format!("{row} * {}u + {vector}", self.units.stride(self.width()));
            let _ = write!(
                code,
                "pool[{at}] = vec4<{element}>(k_{piece});\npool[{}u + {at}] = vec4<{element}>(v_{piece});\n",
                self.piece()
            );
        });
        let _ = writeln!(code, "workgroupBarrier();\nif (key + {}u < end) {{", self.keys());
        self.fetch(&mut code, "", &format!("key + {}u", self.keys()));
        code.push_str("}\n");
        self.score_tiles(&mut code);
        self.softmax(&mut code);
        self.result_tiles(&mut code);
        let _ = writeln!(code, "key += {}u;\nif (key >= end) {{\nbreak;\n}}\n}}", self.keys());
        self.finish(&mut module, &mut code);
        let groups = dims.batch * dims.heads * dims.rows_q.div_ceil(rows);
        module.finish(&code, self.units.threads(), groups)
    }

    /// Code that fetches a tile of keys and values.
    fn fetch(&self, code: &mut String, declare: &str, key: &str) {
        self.units.copies(self.keys(), self.width(), |piece, row, vector| {
            for name in ["k", "v"] {
                let _ = writeln!(
                    code,
                    "{declare}{name}_{piece} = fetch_{name}(batch, {key} + {row}, kv_head, {vector});"
                );
            }
        });
    }

    /// Tiles along the summed dimension of the scores.
    fn depth(&self) -> usize {
        self.dims.head_dim.div_ceil(self.units.tile())
    }

    /// Code that loads the tiles of a subgroup's queries, which it keeps.
    fn queries(&self, code: &mut String) {
        let (stride, element) = (self.units.stride(self.width()), self.units.element());
        self.units.copies(self.rows(), self.width(), |_, row, vector| {
            let _ = writeln!(
                code,
                "pool[{row} * {stride}u + {vector}] = \
                 vec4<{element}>(fetch_q(batch, first + {row}, head, {vector}));"
            );
        });
        code.push_str("workgroupBarrier();\n");
        for d in 0..self.depth() {
            let at = format!("sub_row * {stride}u + {}u", d * self.units.tile() / 4);
            self.units.load(code, &format!("q{d}"), 'A', &at, stride, true);
        }
        code.push_str("workgroupBarrier();\n");
    }

    /// Code that multiplies queries and keys.
    fn score_tiles(&self, code: &mut String) {
        let (tile, stride) = (self.units.tile(), self.units.stride(self.width()));
        for j in 0..self.key_tiles / BESIDE {
            let _ = writeln!(code, "var score_{j} = {}();", self.units.matrix('C'));
        }
        for d in 0..self.depth() {
            for j in 0..self.key_tiles / BESIDE {
                let key = format!("(sub_column * {}u + {}u)", self.keys() / BESIDE, j * tile);
                let at = format!("{key} * {stride}u + {}u", d * tile / 4);
                self.units.load(code, &format!("k{d}_{j}"), 'B', &at, stride, false);
                let _ = writeln!(code, "score_{j} = coopMultiplyAdd(q{d}, k{d}_{j}, score_{j});");
            }
        }
        self.store(code, "score", self.key_tiles / BESIDE, self.keys());
        code.push_str("workgroupBarrier();\n");
    }

    /// Code that stores a subgroup's tiles of sums, of rows of `width` elements.
    fn store(&self, code: &mut String, name: &str, tiles: usize, width: usize) {
        let stride = self.sums_stride();
        for j in 0..tiles {
            let column = format!("sub_column * {}u + {}u", width / BESIDE / 4, j * self.units.tile() / 4);
            let _ = write!(
                code,
                "let to_{name}_{j} = sub_row * {stride}u + {column};\n\
                 coopStoreT({name}_{j}, &sums[to_{name}_{j}], {stride}u);\n"
            );
        }
    }

    /// Code that makes scores numerators, rounds them, and brings what there is up to date.
    fn softmax(&self, code: &mut String) {
        let (rows, across) = (self.rows(), self.across());
        let scale = scale(&self.dims);
        for j in 0..self.scores() {
            let _ = writeln!(
                code,
                "var s{j} = sums[own_row * {}u + {}u + part] * {scale};",
                self.sums_stride(),
                j * across
            );
        }
        let _ = writeln!(code, "if (key < all_from || key + {}u > all_to) {{", self.keys());
        for j in 0..self.scores() {
            let _ = writeln!(
                code,
                "let key_{j} = vec4<u32>(key + ({}u + part) * 4u) + vec4<u32>(0u, 1u, 2u, 3u);\n\
                 s{j} = select(vec4<f32>(hidden), s{j}, (key_{j} >= vec4<u32>(seen_from)) & (key_{j} < vec4<u32>(seen_to)));",
                j * across
            );
        }
        code.push_str("}\nvar most = greatest;\n{\nvar all = s0;\n");
        (1..self.scores()).for_each(|j| _ = writeln!(code, "all = max(all, s{j});"));
        let _ = write!(
            code,
            "partial[part * {rows}u + own_row] = max(max(all.x, all.y), max(all.z, all.w));\n}}\nworkgroupBarrier();\n"
        );
        for i in 0..across {
            let _ = writeln!(code, "most = max(most, partial[{}u + own_row]);", i * rows);
        }
        code.push_str("let change = numerators(vec4<f32>(greatest - most)).x;\ngreatest = most;\ntotal *= change;\n");
        let stride = self.units.stride(self.keys());
        for j in 0..self.scores() {
            let _ = write!(
                code,
                "s{j} = numerators(s{j} - vec4<f32>(most));\ntotal += (s{j}.x + s{j}.y) + (s{j}.z + s{j}.w);\n\
                 pool[own_row * {stride}u + {}u + part] = vec4<{}>(s{j});\n",
                j * across,
                self.units.element()
            );
        }
        code.push_str("workgroupBarrier();\n");
    }

    /// Code that multiplies numerators and values, and adds the products to the results.
    fn result_tiles(&self, code: &mut String) {
        let (tile, width) = (self.units.tile(), self.width());
        let (own, stride) = (width / tile / BESIDE, self.units.stride(self.keys()));
        for j in 0..own {
            let _ = writeln!(code, "var product_{j} = {}();", self.units.matrix('C'));
        }
        for d in 0..self.key_tiles {
            let at = format!("sub_row * {stride}u + {}u", d * tile / 4);
            self.units.load(code, &format!("p{d}"), 'A', &at, stride, true);
            for j in 0..own {
                let values = self.units.stride(width);
                let column = format!("sub_column * {}u + {}u", width / BESIDE / 4, j * tile / 4);
                let at = format!("{}u + {column}", self.piece() + d * tile * values);
                self.units.load(code, &format!("v{d}_{j}"), 'B', &at, values, true);
                let _ = writeln!(code, "product_{j} = coopMultiplyAdd(p{d}, v{d}_{j}, product_{j});");
            }
        }
        self.store(code, "product", own, width);
        code.push_str("workgroupBarrier();\n");
        for i in 0..self.results() {
            let _ = writeln!(
                code,
                "out_{i} = out_{i} * change + sums[own_row * {}u + min({}u + part, {}u)];",
                self.sums_stride(),
                i * self.across(),
                width / 4 - 1
            );
        }
    }

    /// Code that brings the parts of the sums together and stores the results.
    fn finish(&self, module: &mut Module, code: &mut String) {
        let (dims, rows) = (&self.dims, self.rows());
        let _ = write!(
            code,
            "partial[part * {rows}u + own_row] = total;\nworkgroupBarrier();\nvar sum = 0.0;\n"
        );
        for i in 0..self.across() {
            let _ = writeln!(code, "sum += partial[{}u + own_row];", i * rows);
        }
        // Scores that are all minus infinity have no numerators. Results go through shared memory, so that threads beside each
        // other store what lies side by side.
        code.push_str("sum = select(sum, from_bits(0x7fc00000u), sum == 0.0);\n");
        let (stride, vectors) = (self.sums_stride(), self.width() / 4);
        for i in 0..self.results() {
            let vector = format!("{}u + part", i * self.across());
            let place = format!("sums[own_row * {stride}u + {vector}] = out_{i} / sum;\n");
            match (i + 1) * self.across() <= vectors {
                true => code.push_str(&place),
                false => _ = write!(code, "if ({vector} < {vectors}u) {{\n{place}}}\n"),
            }
        }
        if positions(module.cx()).is_none() {
            let lse = format!("(batch * {}u + head) * {}u + first + own_row", dims.heads, dims.rows_q);
            let store = module.store(1, &lse, "greatest + log_f32(sum)");
            let _ = write!(
                code,
                "if (part == 0u && first + own_row < {}u) {{\n{store}}}\n",
                dims.rows_q
            );
        }
        code.push_str("workgroupBarrier();\n");
        let start = start(dims, Side::Queries, ["batch", "row", "head"]);
        self.units.copies(rows, self.width(), |_, row, vector| {
            let stored = store(module, dims, Target::Output(0), [&start, "vector", "sums[at]"]);
            let _ = write!(
                code,
                "{{\nlet own = {row};\nlet vector = {vector};\nlet row = first + own;\n\
                 let at = own * {stride}u + vector;\nif (row < {}u) {{\n{stored}}}\n}}\n",
                dims.rows_q
            );
        });
    }
}
