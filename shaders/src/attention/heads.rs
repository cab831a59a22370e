//! Memory layout of heads, and the template values that all kernel files of attention share.

use std::fmt::Write as _;

use meganeura_core::DType;
use meganeura_core::ops::AttentionDims;

use super::super::kernel::CompileCx;
use super::super::module::Module;
use super::super::scalar::literal;
use super::super::template::{KernelFile, Template};

/// Maximum number of elements of a head. With more, the results of a thread need too many registers.
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

/// Creates a template with the values that all kernels share, except the one for few queries over a cache.
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

/// Adds the function that loads the position, if the call reads a cache.
pub(super) fn over_cache(template: Template, module: &mut Module) -> Template {
    let Some(positions) = positions(module.cx()) else {
        return template;
    };
    module.uses_faults();
    template
        .flag("CACHED", true)
        .returns("load_position", "", &module.load(positions, "batch"))
}

/// Returns the body of a function that loads the vector with index `vector` of the row that begins at element `start`. Elements
/// past the end of the head are zero.
pub(super) fn load_body(module: &mut Module, dims: &AttentionDims, operand: usize) -> String {
    let width = dims.head_dim;
    let is_whole = width.is_multiple_of(4);
    let whole = if is_whole {
        module.load_vector(operand, "start / 4u + vector")
    } else {
        None
    };
    whole.unwrap_or_else(|| {
        let element = |c: usize| {
            let location = format!("vector * 4u + {c}u");
            let value = module.load(operand, &format!("start + min({location}, {}u)", width - 1));
            if is_whole {
                value
            } else {
                format!("select(0.0, {value}, {location} < {width}u)")
            }
        };
        format!("vec4<f32>({})", [0, 1, 2, 3].map(element).join(", "))
    })
}

/// Returns the type and the body of a function that loads the same vector without conversion if it is stored as `f16` and the
/// module supports `f16`, and as `f32` otherwise.
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

/// Operand of a cached call with the number of cached keys.
pub(super) const POSITIONS: usize = 3;

/// Returns the operand with the number of cached keys, if there is one.
pub(super) fn positions(cx: &CompileCx) -> Option<usize> {
    (Kind::of(cx.kernel.name) == Some(Kind::Cached)).then_some(POSITIONS)
}

/// Returns the number of four-element vectors of a head; the last one may be partial.
pub(super) fn vectors(dims: &AttentionDims) -> usize {
    dims.head_dim.div_ceil(4)
}

/// The operand whose heads are tiled: queries or keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TiledOperand {
    Queries,
    Keys,
}

impl TiledOperand {
    /// Returns the rows of an operand.
    pub(super) fn rows(self, dims: &AttentionDims) -> usize {
        match self {
            TiledOperand::Queries => dims.rows_q,
            TiledOperand::Keys => dims.rows_k,
        }
    }
}

/// Destination of rows of heads.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Output(usize),
    /// A scratch buffer of the kernel.
    Scratch(usize),
}

/// Returns the body of a function that stores `value` as the vector with index `vector` of the row that begins at element
/// `start`, without the elements past the end of the head. If the head consists of whole vectors, it stores whole vectors: the
/// threads of a subgroup write to different rows, so each store of a single element would be a separate memory transaction.
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

/// Returns the window, if it hides any key.
pub(super) fn window(dims: &AttentionDims) -> Option<usize> {
    Some(dims.window).filter(|&window| window > 0 && window < dims.rows_k)
}

/// Returns the scale factor of the scores as a literal.
pub(super) fn scale(dims: &AttentionDims) -> String {
    literal(DType::F32, (dims.scale as f32).to_bits())
}
