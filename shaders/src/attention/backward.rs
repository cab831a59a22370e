//! Gradients of attention by single threads, from the saved logarithms: scores are made anew, once with queries as rows for
//! the gradient of these, once with keys as rows for those of keys and values. Nothing is added atomically: the parts that
//! the heads of a group give to the gradients of their keys go to scratch, one beside the other, and are added up then.

use std::fmt::Write as _;

use meganeura_core::DType;
use meganeura_core::ops::AttentionDims;

use super::super::kernel::{CompileCx, Compiled, Launch};
use super::super::module::Module;
use super::tiles::{ACROSS, COLUMNS, EACH, Scores, Sums, Tiling};
use super::{Side, Target, declare_fetch, key_range, query_range, row_bounds, scale, seen, start, store};

/// Most elements of a head, beyond which two results need too many registers.
pub(super) const MOST_WIDTH: usize = 128;

/// Of queries: the scores, and the gradients of the probabilities.
const QUERY_SCORES: &[Scores] = &[
    Scores {
        name: "s",
        rows: "q",
        columns: "k",
    },
    Scores {
        name: "t",
        rows: "dout",
        columns: "v",
    },
];
const QUERY_SUMS: &[Sums] = &[Sums {
    name: "dq",
    weights: "t",
    columns: "k",
}];
/// The same with keys as rows.
const KEY_SCORES: &[Scores] = &[
    Scores {
        name: "s",
        rows: "k",
        columns: "q",
    },
    Scores {
        name: "t",
        rows: "v",
        columns: "dout",
    },
];
const KEY_SUMS: &[Sums] = &[
    Sums {
        name: "dk",
        weights: "t",
        columns: "q",
    },
    Sums {
        name: "dv",
        weights: "s",
        columns: "dout",
    },
];

/// Where the gradients of keys and values go: where heads are in groups, what each head gives lies side by side in two scratch
/// buffers, and is added up afterwards.
pub(super) struct Parts {
    /// Number of the first scratch buffer, if there are such.
    scratch: Option<usize>,
}

impl Parts {
    pub(super) fn of(dims: &AttentionDims, first_scratch: usize) -> Self {
        Parts {
            scratch: (dims.group() > 1).then_some(first_scratch),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.scratch.is_none()
    }

    /// Bytes of the scratch buffers.
    pub(super) fn bytes(&self, dims: &AttentionDims) -> Vec<usize> {
        let each = 4 * dims.batch * dims.rows_k * dims.heads * dims.head_dim;
        self.scratch.map_or_else(Vec::new, |_| vec![each; 2])
    }

    /// Statements that store a vector of a workgroup's head, given its row, its number in the head, and its value, for
    /// the gradient of the keys, 0, or of the values, 1.
    pub(super) fn store(
        &self,
        module: &mut Module,
        dims: &AttentionDims,
        port: usize,
        [row, vector, value]: [&str; 3],
    ) -> String {
        let (target, start) = match self.scratch {
            None => {
                let start = start(dims, Side::Keys, ["batch", row, "kv_head"]);
                (Target::Output(1 + port), start)
            }
            Some(first) => {
                let row = format!("(batch * {}u + {row}) * {}u + head", dims.rows_k, dims.heads);
                (Target::Scratch(first + port), format!("({row}) * {}u", dims.head_dim))
            }
        };
        store(module, dims, target, [&start, vector, value])
    }
}

/// Launches for a call, by tiles of so many queries, and of so many keys.
pub(super) fn compile(cx: &CompileCx, dims: AttentionDims, [rows_q, rows_k]: [usize; 2]) -> Result<Compiled, String> {
    let parts = Parts::of(&dims, 0);
    let mut launches = vec![
        queries(cx, &Tiling::new(dims, Side::Queries, rows_q, QUERY_SCORES, QUERY_SUMS))?,
        keys(cx, &Tiling::new(dims, Side::Keys, rows_k, KEY_SCORES, KEY_SUMS), &parts)?,
    ];
    if !parts.is_empty() {
        launches.push(join(cx, &dims, &parts)?);
    }
    Ok(Compiled {
        launches,
        scratch: parts.bytes(&dims),
        ..Compiled::default()
    })
}

/// Declares the functions that fetch operands.
pub(super) fn declare_operands(module: &mut Module, dims: &AttentionDims) {
    declare_fetch(module, dims, 0, Side::Queries, "q");
    declare_fetch(module, dims, 1, Side::Keys, "k");
    declare_fetch(module, dims, 2, Side::Keys, "v");
    declare_fetch(module, dims, 5, Side::Queries, "dout");
}

/// The number of a query's logarithm.
pub(super) fn row_number(dims: &AttentionDims, query: &str) -> String {
    format!(
        "(batch * {}u + head) * {}u + min({query}, {}u)",
        dims.heads,
        dims.rows_q,
        dims.rows_q - 1
    )
}

/// The gradients of the queries.
fn queries(cx: &CompileCx, tiling: &Tiling) -> Result<Launch, String> {
    let dims = &tiling.dims;
    let mut module = Module::new(cx);
    declare_operands(&mut module, dims);
    let mut code = tiling.begin(&mut module);
    code.push_str(&key_range(&mut module, dims));
    code.push_str(&row_bounds(dims));
    for (operand, name) in [(3, "lse"), (4, "delta")] {
        let elements = [0, 1, 2, 3].map(|i| module.load(operand, &row_number(dims, &format!("row + {i}u"))));
        let _ = writeln!(code, "let {name} = vec4<f32>({});", elements.join(", "));
    }
    let scale = scale(dims);
    let mut middle = String::new();
    for j in 0..EACH {
        let _ = writeln!(
            middle,
            "t{j} = numerators(s{j} * {scale} - lse) * (t{j} - delta) * {scale};"
        );
    }
    let _ = writeln!(middle, "if (column < all_from || column + {COLUMNS}u > all_to) {{");
    for j in 0..EACH {
        let _ = writeln!(
            middle,
            "let key_{j} = vec4<u32>(column + across + {}u);\n\
             t{j} = select(vec4<f32>(), t{j}, (key_{j} >= seen_from) & (key_{j} < seen_to));",
            j * ACROSS
        );
    }
    middle.push_str("}\n");
    tiling.go(&mut code, "", &middle);
    tiling.finish(&mut code, |_, i, vector, value| {
        store(&mut module, dims, Target::Output(0), [&tiling.start(i), vector, value])
    });
    module.finish(&code, tiling.threads(), tiling.groups())
}

/// The gradients of keys and values, or what each head gives to them.
fn keys(cx: &CompileCx, tiling: &Tiling, parts: &Parts) -> Result<Launch, String> {
    let dims = &tiling.dims;
    let mut module = Module::new(cx);
    declare_operands(&mut module, dims);
    let mut code = tiling.begin(&mut module);
    code.push_str(&query_range(dims));
    let (scale, mut before, mut middle) = (scale(dims), String::new(), String::new());
    for j in 0..EACH {
        let number = row_number(dims, &format!("query_{j}"));
        let _ = write!(
            before,
            "let query_{j} = column + across + {}u;\nlet lse_{j} = {};\nlet delta_{j} = {};\n",
            j * ACROSS,
            module.load(3, &number),
            module.load(4, &number)
        );
        let _ = write!(
            middle,
            "s{j} = numerators(s{j} * {scale} - vec4<f32>(lse_{j}));\n\
             t{j} = s{j} * (t{j} - vec4<f32>(delta_{j})) * {scale};\n"
        );
    }
    let _ = writeln!(middle, "if (column < all_from || column + {COLUMNS}u > all_to) {{");
    for j in 0..EACH {
        let _ = write!(
            middle,
            "let seen_{j} = {};\ns{j} = select(vec4<f32>(), s{j}, seen_{j});\nt{j} = select(vec4<f32>(), t{j}, seen_{j});\n",
            seen(dims, "row_numbers", &format!("vec4<u32>(query_{j})"))
        );
    }
    middle.push_str("}\n");
    tiling.go(&mut code, &before, &middle);
    tiling.finish(&mut code, |sums, i, vector, value| {
        let port = if sums.name == "dk" { 0 } else { 1 };
        parts.store(&mut module, dims, port, [&format!("(row + {i}u)"), vector, value])
    });
    module.finish(&code, tiling.threads(), tiling.groups())
}

/// Adds up what the heads of a group give.
pub(super) fn join(cx: &CompileCx, dims: &AttentionDims, parts: &Parts) -> Result<Launch, String> {
    let mut module = Module::new(cx);
    let (width, group) = (dims.head_dim, dims.group());
    let mut code = format!("let start = i / {width}u * {}u + i % {width}u;\n", group * width);
    for (port, scratch) in parts.scratch.iter().flat_map(|&first| [first, first + 1]).enumerate() {
        let given = module.array(cx.scratch(scratch), DType::F32, false);
        let store = module.store(1 + port, "i", &format!("sum_{port}"));
        let _ = write!(
            code,
            "var sum_{port} = 0.0;\nfor (var head = 0u; head < {group}u; head += 1u) {{\n\
             sum_{port} += {given}[start + head * {width}u];\n}}\n{store}"
        );
    }
    module.finish_elements(&code, cx.kernel.outputs[1].numel())
}
