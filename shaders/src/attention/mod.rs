//! Attention in kernels of its own, whose scores never reach memory: softmax over tiles of keys, whose greatest score and
//! sum are kept up to date (Milakov and Gimelshein, 2018; Dao et al., 2022). Calls that these refuse, or that are
//! few queries of many keys, are taken apart like any other operator.

mod backward;
mod cached;
mod coop;
mod forward;
mod tiles;
mod ways;

use std::fmt::Write as _;

use meganeura_core::DType;
use meganeura_core::ops::AttentionDims;

use super::kernel::{CompileCx, Compiled};
use super::module::Module;
use super::template::{KernelFile, Template};
use super::variants;
pub(super) use ways::FAMILIES;
use ways::{Attention, Way};

/// Most elements of a head, beyond which a thread's part of the results needs too many registers.
const MOST_WIDTH: usize = 256;
/// Fewest queries of a call with many keys: the rows of a tile that have no query are computed for nothing.
const FEWEST_QUERIES: usize = 8;
/// Keys up to which any number of queries is right.
const FEW_KEYS: usize = 256;
/// Workgroups from which on any number of keys is right, since one workgroup goes over all keys that a tile sees.
const ENOUGH_GROUPS: usize = 48;
/// Keys up to which any number of workgroups is right.
const SHORT_ROW: usize = 2048;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Forward,
    Gradient,
    Cached,
}

impl Kind {
    fn of(name: &str) -> Option<Self> {
        match name {
            "core.attention" => Some(Kind::Forward),
            "core.attention_grad" => Some(Kind::Gradient),
            "core.cached_attention" => Some(Kind::Cached),
            _ => None,
        }
    }
}

/// Launches for a call of this family; `None` for one that is to be taken apart.
pub(super) fn compile(cx: &CompileCx) -> Result<Option<Compiled>, String> {
    let Some(kind) = Kind::of(cx.kernel.name) else {
        return Ok(None);
    };
    let call = cx.call();
    let (dims, has_kernels) = match kind {
        Kind::Cached => {
            let dims = AttentionDims::of_cached(&call)?;
            let is_float = cx.kernel.outputs[0].dtype == DType::F32;
            (dims, is_float && dims.head_dim <= cached::MOST_ELEMENTS)
        }
        Kind::Forward | Kind::Gradient => {
            let dims = AttentionDims::of(&call)?;
            let most_width = if kind == Kind::Gradient {
                backward::MOST_WIDTH
            } else {
                MOST_WIDTH
            };
            let is_float = cx.kernel.inputs[0].dtype == DType::F32;
            (dims, is_float && !cx.overwrites() && dims.head_dim <= most_width)
        }
    };
    if !has_kernels {
        return Ok(None);
    }
    if dims.batch * dims.rows_q == 0 {
        // Without queries, the gradients of the keys are zeros.
        return Ok((kind == Kind::Cached).then(Compiled::default));
    }
    let attention = Attention { cx, kind, dims };
    let chosen = variants::chosen(
        cx,
        |precision| attention.class(precision),
        || attention.all(),
        |way| attention.compile(way),
    );
    match (chosen, attention.usual()) {
        (Some(compiled), _) => Ok(Some(compiled)),
        // Ways of the products that it is taken apart to may be chosen.
        (None, Way::Apart) => Ok(None),
        (None, usual) => attention.compile(&usual).map(Some),
    }
}

/// A kernel file with what all but those of few queries of a cache replace.
fn template(file: KernelFile, dims: &AttentionDims) -> Template {
    Template::new(file)
        .sizes([
            ("ROWS_Q", dims.rows_q),
            ("ROWS_K", dims.rows_k),
            ("HEADS", dims.heads),
            ("ALL_HEADS", dims.batch * dims.heads),
            ("KV_HEADS", dims.kv_heads),
            ("HEAD_DIM", dims.head_dim),
            ("WINDOW", window(dims).unwrap_or(0)),
        ])
        .flag("CAUSAL", dims.causal)
        .returns("scale", "", &scale(dims))
}

/// One whose call may be over a cache, with the position if it is.
fn over_cache(template: Template, module: &mut Module) -> Template {
    let Some(positions) = positions(module.cx()) else {
        return template;
    };
    module.uses_faults();
    template
        .flag("CACHED", true)
        .returns("load_position", "", &module.load(positions, "batch"))
}

/// The value that a function returns which loads a vector of a head: that of the number `vector` in the row that begins at the
/// element `start`. Elements beyond the head are zeros.
fn load_body(module: &mut Module, dims: &AttentionDims, operand: usize) -> String {
    let width = dims.head_dim;
    let is_whole = width.is_multiple_of(4);
    let whole = match is_whole {
        true => module.load_vector(operand, "start / 4u + vector"),
        false => None,
    };
    whole.unwrap_or_else(|| {
        let element = |c: usize| {
            let place = format!("vector * 4u + {c}u");
            let value = module.load(operand, &format!("start + min({place}, {}u)", width - 1));
            match is_whole {
                true => value,
                false => format!("select(0.0, {value}, {place} < {width}u)"),
            }
        };
        format!("vec4<f32>({})", [0, 1, 2, 3].map(element).join(", "))
    })
}

/// The type and the value of a function that does the same with vectors as they are in memory, if these are of `f16` and the
/// module has such.
fn load_body_as_stored(module: &mut Module, dims: &AttentionDims, operand: usize) -> (&'static str, String) {
    let stored = match dims.head_dim.is_multiple_of(4) {
        true => module.load_halves(operand, "start / 4u + vector"),
        false => None,
    };
    match stored {
        Some(stored) => ("vec4<f16>", stored),
        None => ("vec4<f32>", load_body(module, dims, operand)),
    }
}

/// The operand of a cached call with the number of cached keys.
const POSITIONS: usize = 3;

/// The operand with the number of cached keys, if there is one.
fn positions(cx: &CompileCx) -> Option<usize> {
    (Kind::of(cx.kernel.name) == Some(Kind::Cached)).then_some(POSITIONS)
}

/// Code that reads where the sequence of a cached call is, which reports what is beyond the cache, and the place as an
/// expression, which is within it.
fn position(module: &mut Module, dims: &AttentionDims, positions: usize, sequence: &str) -> [String; 2] {
    let bound = dims.rows_k + 1 - dims.rows_q;
    let given = module.load(positions, sequence);
    let checked = module.checked_index("given", bound);
    let code = format!("let given = {given};\nif (local == 0u) {{\nlet reported = {checked};\n}}\n");
    [code, format!("min(given, {}u)", bound - 1)]
}

/// Code that says how many keys the first query of a causal call sees, `shift`, for the sequence `batch`.
fn shift(module: &mut Module, dims: &AttentionDims) -> String {
    let Some(positions) = positions(module.cx()) else {
        return format!("let shift = {}u;\n", dims.rows_k + 1 - dims.rows_q.min(dims.rows_k));
    };
    // For what [`declare_fetch`] declares.
    module.items.push_str("var<private> last_key: u32;\n");
    let [code, place] = position(module, dims, positions, "batch");
    format!(
        "{code}let shift = {place} + 1u;\nlast_key = shift + {}u - 2u;\n",
        dims.rows_q
    )
}

/// Whether tiles of queries that each go over all of their keys are likely to be faster than products and a softmax.
fn pays(dims: &AttentionDims) -> bool {
    let groups = dims.batch * dims.heads * dims.rows_q.div_ceil(tiles::FEW_ROWS);
    let enough_queries = dims.rows_q >= FEWEST_QUERIES || dims.rows_k <= FEW_KEYS;
    enough_queries && (groups >= ENOUGH_GROUPS || dims.rows_k <= SHORT_ROW)
}

/// Vectors of four elements that a head has, the last one perhaps in part.
fn vectors(dims: &AttentionDims) -> usize {
    dims.head_dim.div_ceil(4)
}

/// Heads of the rows of an operand: those of queries, or those of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Queries,
    Keys,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Side::Queries => Side::Keys,
            Side::Keys => Side::Queries,
        }
    }

    /// The variable with a workgroup's head.
    fn head(self) -> &'static str {
        match self {
            Side::Queries => "head",
            Side::Keys => "kv_head",
        }
    }

    /// Rows of an operand, and heads of a row.
    fn sizes(self, dims: &AttentionDims) -> [usize; 2] {
        match self {
            Side::Queries => [dims.rows_q, dims.heads],
            Side::Keys => [dims.rows_k, dims.kv_heads],
        }
    }
}

/// The number of a head's first element in a row, as WGSL.
fn start(dims: &AttentionDims, side: Side, [batch, row, head]: [&str; 3]) -> String {
    let [rows, heads] = side.sizes(dims);
    format!("(({batch} * {rows}u + {row}) * {heads}u + {head}) * {}u", dims.head_dim)
}

/// Where rows of heads are stored.
#[derive(Clone, Copy)]
enum Target {
    Output(usize),
    /// A scratch buffer of the kernel's own.
    Scratch(usize),
}

/// Statements that store a vector of a row, as far as it is within the head: from the number of the row's first element, the
/// number of the vector, and its value. A vector is stored as one where there is nothing but whole ones: threads of a
/// subgroup have different rows, so that each store of an element is a transaction of its own.
fn store(module: &mut Module, dims: &AttentionDims, target: Target, [start, vector, value]: [&str; 3]) -> String {
    let width = dims.head_dim;
    if width.is_multiple_of(4) {
        let index = format!("({start}) / 4u + {vector}");
        let stored = match target {
            Target::Output(output) => module.store_vector(output, &index, value),
            Target::Scratch(number) => {
                let name = module.scratch_vectors(module.cx().scratch(number));
                Some(format!("{name}[{index}] = {value};\n"))
            }
        };
        if let Some(stored) = stored {
            return format!("if ({vector} < {}u) {{\n{stored}}}\n", width / 4);
        }
    }
    let mut code = String::new();
    for c in 0..4 {
        let (index, element) = (format!("{start} + ({vector}) * 4u + {c}u"), format!("({value})[{c}]"));
        let stored = match target {
            Target::Output(output) => module.store(output, &index, &element),
            Target::Scratch(number) => {
                let name = module.array(module.cx().scratch(number), DType::F32, true);
                format!("{name}[{index}] = {element};\n")
            }
        };
        let _ = write!(code, "if (({vector}) * 4u + {c}u < {width}u) {{\n{stored}}}\n");
    }
    code
}

/// The body of a function that [stores](store) `value`, the vector of the number `vector` in the row that begins at `start`.
fn store_body(module: &mut Module, dims: &AttentionDims, target: Target) -> String {
    store(module, dims, target, ["start", "vector", "value"])
}

/// Vectors of a head up to a multiple of which nothing else may be read: those of a step, and of a tile of matrix units.
const DEPTH: usize = 4;

/// Declares the function `fetch_<name>(batch, row, head, vector)` that gives four elements of a head's row. Beyond the last
/// row it is the last one, which is seen by no row that does not see it, or has no weight. Beyond the head, as far as
/// scores are made from it, elements are zero. Nothing is done with elements as they come from memory if it can be
/// avoided: whoever fetches them early would have to wait.
fn declare_fetch(module: &mut Module, dims: &AttentionDims, operand: usize, side: Side, name: &str) {
    declare_fetch_of(module, dims, operand, side, name, false);
}

/// The same of elements as they are in memory, if these are halves and the module has such.
fn declare_fetch_as_stored(module: &mut Module, dims: &AttentionDims, operand: usize, side: Side, name: &str) {
    declare_fetch_of(module, dims, operand, side, name, true);
}

fn declare_fetch_of(
    module: &mut Module,
    dims: &AttentionDims,
    operand: usize,
    side: Side,
    name: &str,
    as_stored: bool,
) {
    let ([rows, _], width) = (side.sizes(dims), dims.head_dim);
    let at = start(dims, side, ["batch", "known_row", "head"]);
    let last = vectors(dims) - 1;
    // Cached rows behind the last key may hold anything, NaN too.
    let last_row = match side == Side::Keys && positions(module.cx()).is_some() {
        true => "last_key".to_owned(),
        false => format!("{}u", rows - 1),
    };
    let index = format!("({at}) / 4u + known_vector");
    let is_whole = width.is_multiple_of(4);
    let halves = match is_whole && as_stored {
        true => module.load_halves(operand, &index),
        false => None,
    };
    let ty = if halves.is_some() { "vec4<f16>" } else { "vec4<f32>" };
    let whole = halves.or_else(|| match is_whole {
        true => module.load_vector(operand, &index),
        false => None,
    });
    let value = whole.unwrap_or_else(|| {
        let element = |c: usize| {
            let place = format!("known_vector * 4u + {c}u");
            let value = module.load(operand, &format!("{at} + min({place}, {}u)", width - 1));
            match is_whole {
                true => value,
                false => format!("select(0.0, {value}, {place} < {width}u)"),
            }
        };
        format!("vec4<f32>({})", [0, 1, 2, 3].map(element).join(", "))
    });
    let value = match vectors(dims).is_multiple_of(DEPTH) {
        true => value,
        false => format!("select({ty}(), {value}, vector <= {last}u)"),
    };
    let _ = write!(
        module.items,
        "fn fetch_{name}(batch: u32, row: u32, head: u32, vector: u32) -> {ty} {{\n\
         let known_row = min(row, {last_row});\nlet known_vector = min(vector, {last}u);\nreturn {value};\n}}\n",
    );
}

/// Code that says which rows of a side a workgroup has, in tiles of so many, for which head of the queries.
fn group_place(dims: &AttentionDims, side: Side, rows: usize) -> String {
    let (all_heads, [count, _]) = (dims.batch * dims.heads, side.sizes(dims));
    // With a causal mask the last queries and the first keys take longest: they come first.
    let tile = match side {
        Side::Queries => format!("{}u - group_number / {all_heads}u", count.div_ceil(rows) - 1),
        Side::Keys => format!("group_number / {all_heads}u"),
    };
    format!(
        "let tile = {tile};\nlet batch = group_number % {all_heads}u / {0}u;\n\
         let head = group_number % {0}u;\nlet kv_head = head / {1}u;\n\
         let first = tile * {rows}u;\nlet last = min(first + {rows}u, {count}u) - 1u;\n",
        dims.heads,
        dims.group(),
    )
}

/// Code that says which keys the queries from `first` to `last`, variables, see: those from `begin` to before `end`, of
/// which all of them see those from `all_from` to before `all_to`. It begins with [`shift`].
fn key_range(module: &mut Module, dims: &AttentionDims) -> String {
    let keys = dims.rows_k;
    if !dims.causal {
        return format!("let begin = 0u;\nlet end = {keys}u;\nlet all_from = 0u;\nlet all_to = {keys}u;\n");
    }
    let from = |query: &str| match window(dims) {
        Some(window) => format!("max({query} + shift, {window}u) - {window}u"),
        None => "0u".to_owned(),
    };
    format!(
        "{}let begin = {};\nlet end = last + shift;\nlet all_from = {};\nlet all_to = first + shift;\n",
        shift(module, dims),
        from("first"),
        from("last")
    )
}

/// Code that says which queries see the keys from `first` to `last`, as [`key_range`] does the other way round.
fn query_range(dims: &AttentionDims) -> String {
    let queries = dims.rows_q;
    if !dims.causal {
        return format!("let begin = 0u;\nlet end = {queries}u;\nlet all_from = 0u;\nlet all_to = {queries}u;\n");
    }
    let shift = dims.rows_k - queries;
    let from = |key: &str| format!("max({key}, {shift}u) - {shift}u");
    let to = |key: &str| match window(dims) {
        Some(window) => format!("min(max({key} + {window}u, {shift}u) - {shift}u, {queries}u)"),
        None => format!("{queries}u"),
    };
    format!(
        "let begin = {};\nlet end = {};\nlet all_from = {};\nlet all_to = {};\n",
        from("first"),
        to("last"),
        from("last"),
        to("first")
    )
}

/// The window, if it hides any key.
fn window(dims: &AttentionDims) -> Option<usize> {
    Some(dims.window).filter(|&window| window > 0 && window < dims.rows_k)
}

/// Whether queries see keys, as WGSL: a vector, of vectors of their numbers. Keys exist; queries do before `end`.
fn seen(dims: &AttentionDims, keys: &str, queries: &str) -> String {
    let known = format!("({queries} < vec4<u32>(end))");
    if !dims.causal {
        return known;
    }
    let shift = dims.rows_k - dims.rows_q + 1;
    let near = match window(dims) {
        Some(window) => format!(" & ({keys} + vec4<u32>({window}u) >= {queries} + vec4<u32>({shift}u))"),
        None => String::new(),
    };
    format!("{known} & ({keys} < {queries} + vec4<u32>({shift}u)){near}")
}

/// Code for the bounds of the keys that a thread's queries see: vectors `seen_from` and `seen_to`, from the vector of
/// their numbers, `row_numbers`. It is behind [`key_range`].
fn row_bounds(dims: &AttentionDims) -> String {
    if !dims.causal {
        return format!(
            "let seen_from = vec4<u32>();\nlet seen_to = vec4<u32>({}u);\n",
            dims.rows_k
        );
    }
    // Rows without a query see what the last query does.
    let from = match window(dims) {
        Some(window) => format!("max(seen_to, vec4<u32>({window}u)) - vec4<u32>({window}u)"),
        None => "vec4<u32>()".to_owned(),
    };
    format!(
        "let seen_to = min(row_numbers, vec4<u32>({}u)) + vec4<u32>(shift);\nlet seen_from = {from};\n",
        dims.rows_q - 1
    )
}

/// A literal of the factor of the scores.
fn scale(dims: &AttentionDims) -> String {
    super::scalar::literal(DType::F32, (dims.scale as f32).to_bits())
}
