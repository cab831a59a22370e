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
use super::variants::{self, Candidate as _};
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
        // The products that it is taken apart to have choices of their own.
        (None, Way::Apart) => Ok(None),
        (None, usual) => {
            let compiled = attention.compile(&usual)?;
            Ok(Some(variants::scheduled(compiled, &usual.schedule())))
        }
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
    /// Rows of an operand.
    fn rows(self, dims: &AttentionDims) -> usize {
        match self {
            Side::Queries => dims.rows_q,
            Side::Keys => dims.rows_k,
        }
    }
}

/// Where rows of heads are stored.
#[derive(Clone, Copy)]
enum Target {
    Output(usize),
    /// A scratch buffer of the kernel's own.
    Scratch(usize),
}

/// The body of a function that stores `value`, the vector of the number `vector` in the row that begins at the element `start`,
/// as far as it is within the head. A vector is stored as one where there is nothing but whole ones: threads of a
/// subgroup have different rows, so that each store of an element is a transaction of its own.
fn store_body(module: &mut Module, dims: &AttentionDims, target: Target) -> String {
    let width = dims.head_dim;
    if width.is_multiple_of(4) {
        let index = "start / 4u + vector";
        let stored = match target {
            Target::Output(output) => module.store_vector(output, index, "value"),
            Target::Scratch(number) => {
                let name = module.scratch_vectors(module.cx().scratch(number));
                Some(format!("{name}[{index}] = value;\n"))
            }
        };
        if let Some(stored) = stored {
            return format!("if (vector < {}u) {{\n{stored}}}\n", width / 4);
        }
    }
    let mut code = String::new();
    for c in 0..4 {
        let (index, element) = (format!("start + vector * 4u + {c}u"), format!("value[{c}]"));
        let stored = match target {
            Target::Output(output) => module.store(output, &index, &element),
            Target::Scratch(number) => {
                let name = module.array(module.cx().scratch(number), DType::F32, true);
                format!("{name}[{index}] = {element};\n")
            }
        };
        let _ = write!(code, "if (vector * 4u + {c}u < {width}u) {{\n{stored}}}\n");
    }
    code
}

/// The window, if it hides any key.
fn window(dims: &AttentionDims) -> Option<usize> {
    Some(dims.window).filter(|&window| window > 0 && window < dims.rows_k)
}

/// A literal of the factor of the scores.
fn scale(dims: &AttentionDims) -> String {
    super::scalar::literal(DType::F32, (dims.scale as f32).to_bits())
}
