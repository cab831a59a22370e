//! Matmuls with one matrix for each expert, selected by row, and their derivative.

use meganeura_core::ops::{Call, ExpertDims};

use super::body::{Body, Def, Node};
use super::emit::Emitter;
use super::files;
use super::kernel::{CompileCx, Compiled, Launch};
use super::module::Module;
use super::packed::Packed;
use super::pointwise::is_half;
use super::template::{KernelFile, Template};

/// Maximum number of rows that are multiplied one by one.
const FEW_ROWS: usize = 32;
/// Maximum average number of rows per expert that are multiplied one by one: tiles would be mostly empty.
const FEW_EACH: usize = 2;
/// Number of threads that share a sum. The second one is for matrices that are read along the summed dimension.
const LANES: [usize; 2] = [8, 32];
const THREADS: usize = 256;
/// Number of rows and columns of a tile. They are constants of the kernel files.
const TILE: [usize; 2] = [32, 64];

/// Indices of the operands of a call.
const X: usize = 0;
const INDICES: usize = 1;
const WEIGHT: usize = 2;

/// Compiles the launches of an operator of this module.
pub(super) fn compile(cx: &CompileCx) -> Result<Option<Compiled>, String> {
    let call = Call {
        attrs: cx.kernel.attrs,
        inputs: cx.kernel.inputs,
        outputs: cx.kernel.outputs,
    };
    let is_grad = match cx.kernel.name {
        "core.expert_matmul" | "core.quantized_expert_matmul" => false,
        "core.expert_matmul_weight_grad" => true,
        _ => return Ok(None),
    };
    if let Some(ty) = cx.kernel.outputs.iter().find(|ty| is_half(ty)) {
        return Err(format!("it has a result of {}", ty.dtype));
    }
    let dims = if is_grad {
        ExpertDims::of_weight_grad(&call)?
    } else {
        ExpertDims::of(&call)?
    };
    if dims.n == 0 || dims.experts == 0 || (!is_grad && dims.rows == 0) || (is_grad && dims.k == 0) {
        return Err("it has nothing to compute, or no expert".into());
    }
    let elements = [dims.n, dims.k]
        .iter()
        .try_fold(dims.experts, |all, &size| all.checked_mul(size));
    if elements.is_none_or(|elements| u32::try_from(elements).is_err()) {
        // The number of packed words may be small enough, but kernels index elements.
        return Err("it has more elements than 32 bits can number".into());
    }
    if is_grad {
        return Ok(Some(sorted(cx, &dims, weight_grad(cx, &dims)?)?));
    }
    if dims.rows <= FEW_ROWS.max(FEW_EACH * dims.experts) {
        return Ok(Some(rows(cx, &dims)?.into()));
    }
    Ok(Some(sorted(cx, &dims, tiled(cx, &dims)?)?))
}

/// Binds the buffers with the rows in the order of their experts.
fn bind_order(module: &mut Module) {
    module.bind("starts", module.cx().scratch(0));
    module.bind("order", module.cx().scratch(1));
}

/// Returns two launches: the one that sorts the rows by expert, then `launch`.
fn sorted(cx: &CompileCx, dims: &ExpertDims, launch: Launch) -> Result<Compiled, String> {
    let mut module = Module::new(cx);
    module.uses_faults();
    bind_order(&mut module);
    let template = Template::new(files::EXPERT_SORT).size("ROWS", dims.rows).returns(
        "load_index",
        "",
        &module.load(INDICES, "row"),
    );
    let sort = module.finish_template_elements(template, dims.experts + 1)?;
    Ok(Compiled {
        launches: vec![sort, launch],
        scratch: vec![4 * (dims.experts + 1), 4 * dims.rows.max(1)],
        ..Compiled::default()
    })
}

/// Adds the functions that load elements of the experts' matrices: single elements, and four elements at a time if
/// they are adjacent in memory. Packed weights are always loaded four at a time.
fn with_matrices<'a>(
    cx: &'a CompileCx<'a>,
    body: &'a Body,
    dims: &ExpertDims,
    file: KernelFile,
) -> Result<(Template, Module<'a>), String> {
    let mut e = Emitter::new(body, cx);
    let along_k = dims.transpose_b;
    let four = along_k && dims.k.is_multiple_of(4);
    let mut template = Template::new(file);
    let vectors = match dims.format {
        Some(format) => {
            let packed = Packed {
                format,
                words: WEIGHT,
                scales: WEIGHT + 1,
            };
            let (code, vector) = e.block(|e| packed.load_vector(e, "at"))?;
            template = template.returns("load_b_vector", &code, &vector);
            true
        }
        None => {
            template = template.returns("load_b", "", &e.module.load(WEIGHT, "at"));
            match four.then(|| e.module.load_vector(WEIGHT, "at / 4u")).flatten() {
                Some(vector) => {
                    template = template.returns("load_b_vector", "", &vector);
                    true
                }
                None => false,
            }
        }
    };
    let template = template
        .sizes([("EXPERTS", dims.experts), ("N", dims.n), ("K", dims.k)])
        .flag("B_K_MAJOR", along_k)
        .flag("VECTORS", vectors)
        .returns("load_a", "", &e.module.load(X, "at"));
    Ok((template, e.module))
}

/// Creates a body for an emitter that does not use the values of the body.
fn body_of(cx: &CompileCx) -> Body {
    Body {
        nodes: vec![Node {
            def: Def::Operand(X),
            ty: cx.kernel.inputs[X].clone(),
        }],
        results: vec![0],
    }
}

/// Compiles the kernel that multiplies each row separately.
fn rows(cx: &CompileCx, dims: &ExpertDims) -> Result<Launch, String> {
    let body = body_of(cx);
    let (template, mut module) = with_matrices(cx, &body, dims, files::EXPERT_MATMUL_ROWS)?;
    module.uses_faults();
    let lanes = LANES[usize::from(dims.transpose_b)];
    // If K is a multiple of four, rows are loaded in vectors, like the matrices.
    let a = match module.load_vector(X, "at / 4u") {
        Some(vector) if dims.k.is_multiple_of(4) => vector,
        _ => {
            let each = ["at", "at + 1u", "at + 2u", "at + 3u"].map(|at| module.load(X, at));
            format!("vec4<f32>({})", each.join(", "))
        }
    };
    let template = template
        .size("LANES", lanes)
        .returns("load_a_vector", "", &a)
        .returns("load_index", "", &module.load(INDICES, "row"))
        .body("store", module.store(0, "i", "value"));
    module.finish_template(template, dims.rows * dims.n.div_ceil(THREADS / lanes))
}

/// Compiles the kernel for tiles of rows that are in the order of experts.
fn tiled(cx: &CompileCx, dims: &ExpertDims) -> Result<Launch, String> {
    let body = body_of(cx);
    let (template, mut module) = with_matrices(cx, &body, dims, files::EXPERT_MATMUL_TILED)?;
    bind_order(&mut module);
    let template = template.body("store", module.store(0, "i", "value"));
    // Each expert with rows has one tile, and at most one more for every TILE rows.
    let tiles = dims.experts.min(dims.rows) + dims.rows / TILE[0];
    module.finish_template(template, tiles * dims.n.div_ceil(TILE[1]))
}

/// Compiles the kernel that sums over the rows of each expert.
fn weight_grad(cx: &CompileCx, dims: &ExpertDims) -> Result<Launch, String> {
    let mut module = Module::new(cx);
    bind_order(&mut module);
    let template = Template::new(files::EXPERT_WEIGHT_GRAD)
        .sizes([("N", dims.n), ("K", dims.k)])
        .returns("load_a", "", &module.load(0, "at"))
        .returns("load_b", "", &module.load(2, "at"))
        .body("store", module.store(0, "i", "value"));
    let tiles = dims.n.div_ceil(TILE[0]) * dims.k.div_ceil(TILE[1]);
    module.finish_template(template, dims.experts * tiles)
}
