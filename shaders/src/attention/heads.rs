//! Rows of heads: how they lie in memory, and what the kernel files of attention replace alike.

use std::fmt::Write as _;

use meganeura_core::DType;
use meganeura_core::ops::AttentionDims;

use super::super::kernel::CompileCx;
use super::super::module::Module;
use super::super::scalar::literal;
use super::super::template::{KernelFile, Template};

/// Most elements of a head, beyond which a thread's part of the results needs too many registers.
pub(super) const MAX_WIDTH: usize = 256;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Forward,
    Gradient,
    Cached,
}

impl Kind {
    pub(super) fn of(name: &str) -> Option<Self> {
        match name {
            "core.attention" => Some(Kind::Forward),
            "core.attention_grad" => Some(Kind::Gradient),
            "core.cached_attention" => Some(Kind::Cached),
            _ => None,
        }
    }
}

/// A kernel file with what all but those of few queries of a cache replace.
pub(super) fn template(file: KernelFile, dims: &AttentionDims) -> Template {
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
pub(super) fn over_cache(template: Template, module: &mut Module) -> Template {
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
pub(super) fn load_body(module: &mut Module, dims: &AttentionDims, operand: usize) -> String {
    let width = dims.head_dim;
    let is_whole = width.is_multiple_of(4);
    let whole = match is_whole {
        true => module.load_vector(operand, "start / 4u + vector"),
        false => None,
    };
    whole.unwrap_or_else(|| {
        let element = |c: usize| {
            let location = format!("vector * 4u + {c}u");
            let value = module.load(operand, &format!("start + min({location}, {}u)", width - 1));
            match is_whole {
                true => value,
                false => format!("select(0.0, {value}, {location} < {width}u)"),
            }
        };
        format!("vec4<f32>({})", [0, 1, 2, 3].map(element).join(", "))
    })
}

/// The type and the value of a function that does the same with vectors as they are in memory, if these are of `f16` and the
/// module has such.
pub(super) fn load_body_as_stored(module: &mut Module, dims: &AttentionDims, operand: usize) -> (&'static str, String) {
    let stored = match dims.head_dim.is_multiple_of(4) {
        true => module.load_f16(operand, "start / 4u + vector"),
        false => None,
    };
    match stored {
        Some(stored) => ("vec4<f16>", stored),
        None => ("vec4<f32>", load_body(module, dims, operand)),
    }
}

/// The operand of a cached call with the number of cached keys.
pub(super) const POSITIONS: usize = 3;

/// The operand with the number of cached keys, if there is one.
pub(super) fn positions(cx: &CompileCx) -> Option<usize> {
    (Kind::of(cx.kernel.name) == Some(Kind::Cached)).then_some(POSITIONS)
}

/// Vectors of four elements that a head has, the last one perhaps in part.
pub(super) fn vectors(dims: &AttentionDims) -> usize {
    dims.head_dim.div_ceil(4)
}

/// Heads of the rows of an operand: those of queries, or those of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Queries,
    Keys,
}

impl Side {
    /// Rows of an operand.
    pub(super) fn rows(self, dims: &AttentionDims) -> usize {
        match self {
            Side::Queries => dims.rows_q,
            Side::Keys => dims.rows_k,
        }
    }
}

/// Where rows of heads are stored.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Output(usize),
    /// A scratch buffer of the kernel's own.
    Scratch(usize),
}

/// The body of a function that stores `value`, the vector of the number `vector` in the row that begins at the element `start`,
/// as far as it is within the head. A vector is stored as one where there is nothing but whole ones: threads of a
/// subgroup have different rows, so that each store of an element is a transaction of its own.
pub(super) fn store_body(module: &mut Module, dims: &AttentionDims, target: Target) -> String {
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
pub(super) fn window(dims: &AttentionDims) -> Option<usize> {
    Some(dims.window).filter(|&window| window > 0 && window < dims.rows_k)
}

/// A literal of the factor of the scores.
pub(super) fn scale(dims: &AttentionDims) -> String {
    literal(DType::F32, (dims.scale as f32).to_bits())
}
