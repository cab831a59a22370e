//! Memory layout of heads, and the template values that the kernel files of attention share.

use std::fmt::Write as _;

use meganeura_core::DType;
use meganeura_core::ops::{AttentionDims, attention_sinks};

use super::super::kernel::CompileCx;
use super::super::module::Module;
use super::super::scalar::literal;
use super::super::template::{KernelFile, Template};
use super::caches;

/// Maximum number of elements of a head. With more elements, the results of a thread need too many registers.
pub(super) const MAX_WIDTH: usize = 256;

/// Kind of attention computation.
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

/// Creates a template with the values that all kernels share, except the kernel for few queries over a cache.
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

/// Adds the function that loads the position of a sequence, if the call reads a cache.
pub(super) fn over_cache(template: Template, module: &mut Module) -> Template {
    let Some(positions) = positions(module.cx()) else {
        return template;
    };
    module.uses_faults();
    let template = template
        .flag("CACHED", true)
        .returns("load_position", "", &module.load(positions, "batch"));
    with_sinks(template, module)
}

/// Adds the function that loads the sink of a head, if the call has sinks.
pub(super) fn with_sinks(template: Template, module: &mut Module) -> Template {
    match attention_sinks(module.cx().kernel.inputs) {
        Some(sinks) => {
            let sink = module.load(sinks, "head");
            template.flag("SINKS", true).returns("load_sink", "", &sink)
        }
        None => template,
    }
}

/// Returns the body of a function that loads a vector of four elements. `start` is the first element of the row, and
/// `vector` is the index of the vector in the row. Elements past the end of the head are zero.
pub(super) fn load_body(module: &mut Module, dims: &AttentionDims, operand: usize) -> String {
    let width = dims.head_dim;
    let is_whole = width.is_multiple_of(4);
    let whole = if is_whole {
        caches::load_vector(module, operand, "start / 4u + vector")
    } else {
        None
    };
    whole.unwrap_or_else(|| {
        let element = |c: usize| {
            let location = format!("vector * 4u + {c}u");
            let value = caches::load(module, operand, &format!("start + min({location}, {}u)", width - 1));
            if is_whole {
                value
            } else {
                format!("select(0.0, {value}, {location} < {width}u)")
            }
        };
        format!("vec4<f32>({})", [0, 1, 2, 3].map(element).join(", "))
    })
}

/// Returns the type and the body of a function that loads the same vector. If the operand is stored as `f16` and the
/// module supports `f16`, the vector is not converted; otherwise it is `f32`.
pub(super) fn load_body_as_stored(module: &mut Module, dims: &AttentionDims, operand: usize) -> (&'static str, String) {
    let stored = if dims.head_dim.is_multiple_of(4) {
        module.load_f16(operand, "start / 4u + vector")
    } else {
        None
    };
    match stored {
        Some(stored) => ("vec4<f16>", stored),
        None => ("vec4<f32>", load_body(module, dims, operand)),
    }
}

/// Index of the operand of a cached call that contains the number of cached keys.
pub(super) const POSITIONS: usize = 3;

/// Returns the index of the operand that contains the number of cached keys, if any.
pub(super) fn positions(cx: &CompileCx) -> Option<usize> {
    (Kind::of(cx.kernel.name) == Some(Kind::Cached)).then_some(POSITIONS)
}

/// Returns the number of vectors of four elements of a head. The last one may be partial.
pub(super) fn vectors(dims: &AttentionDims) -> usize {
    dims.head_dim.div_ceil(4)
}

/// The operand whose rows are cut into tiles: queries or keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TiledOperand {
    Queries,
    Keys,
}

impl TiledOperand {
    /// Returns the number of rows of an operand.
    pub(super) fn rows(self, dims: &AttentionDims) -> usize {
        match self {
            TiledOperand::Queries => dims.rows_q,
            TiledOperand::Keys => dims.rows_k,
        }
    }
}

/// Memory to which rows of heads are written.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Output(usize),
    /// A scratch buffer of the kernel.
    Scratch(usize),
}

/// Returns the body of a function that stores `value`, a vector of four elements. `start` is the first element of the
/// row, and `vector` is the index of the vector in the row. Elements past the end of the head are not stored. If the
/// head consists of whole vectors, it stores whole vectors: the threads of a subgroup write to different rows, so
/// each store of a single element would be a separate memory transaction.
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

/// Returns the window, or `None` if it hides no key.
pub(super) fn window(dims: &AttentionDims) -> Option<usize> {
    Some(dims.window).filter(|&window| window > 0 && window < dims.rows_k)
}

/// Returns the scale factor of the scores as a literal.
pub(super) fn scale(dims: &AttentionDims) -> String {
    literal(DType::F32, (dims.scale as f32).to_bits())
}
