//! Gradients of attention without cooperative matrices, from the saved log-sum-exp values. Scores are recomputed
//! twice: with queries as rows for the gradient of the queries, with keys as rows for the gradients of keys and
//! values. The kernels need no atomic additions: the query heads of a group write their partial key and value
//! gradients to scratch, and the last launch adds them up.

use meganeura_core::ops::AttentionDims;

use super::super::files;
use super::super::kernel::{CompileCx, Compiled, Launch};
use super::super::module::Module;
use super::super::template::Template;
use super::heads::{Target, TiledOperand, load_body, store_body};
use super::tiles;

/// Maximum number of elements of a head. With more elements, the two results of a thread need too many registers.
pub(super) const MAX_WIDTH: usize = 128;

/// Destination of the gradients of keys and values. If heads are grouped, each query head writes its partial
/// gradients to two scratch buffers. The last launch adds them up.
pub(super) struct Parts {
    /// Index of the first of the two scratch buffers, if heads are grouped.
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

    /// Returns the size of each scratch buffer in bytes.
    pub(super) fn bytes(&self, dims: &AttentionDims) -> Vec<usize> {
        let each = 4 * dims.batch * dims.rows_k * dims.heads * dims.head_dim;
        self.scratch.map_or_else(Vec::new, |_| vec![each; 2])
    }

    /// Returns the memory for the gradient of the keys (`port` 0) or of the values (`port` 1). The first launches
    /// write it.
    pub(super) fn target(&self, port: usize) -> Target {
        match self.scratch {
            None => Target::Output(1 + port),
            Some(first) => Target::Scratch(first + port),
        }
    }
}

/// Compiles the launches of a call with tiles of `rows_q` queries and of `rows_k` keys.
pub(super) fn compile(cx: &CompileCx, dims: AttentionDims, [rows_q, rows_k]: [usize; 2]) -> Result<Compiled, String> {
    let parts = Parts::of(&dims, 0);
    let mut launches = vec![queries(cx, &dims, rows_q)?, keys(cx, &dims, rows_k, &parts)?];
    if !parts.is_empty() {
        launches.push(join(cx, &dims, &parts)?);
    }
    Ok(Compiled {
        launches,
        scratch: parts.bytes(&dims),
        ..Compiled::default()
    })
}

/// Adds the functions that load the operands to a kernel template.
pub(super) fn loading(mut template: Template, module: &mut Module, dims: &AttentionDims) -> Template {
    for (operand, name) in [(0, "load_q"), (1, "load_k"), (2, "load_v"), (5, "load_dout")] {
        template = template.returns(name, "", &load_body(module, dims, operand));
    }
    template
        .returns("load_lse", "", &module.load(3, "index"))
        .returns("load_delta", "", &module.load(4, "index"))
}

/// Compiles the launch that computes the gradients of the queries.
fn queries(cx: &CompileCx, dims: &AttentionDims, rows: usize) -> Result<Launch, String> {
    let mut module = Module::new(cx);
    let template = tiles::template(files::ATTENTION_BACKWARD_QUERIES, dims, rows);
    let template = loading(template, &mut module, dims).body("store", store_body(&mut module, dims, Target::Output(0)));
    module.finish_template(template, tiles::groups(dims, TiledOperand::Queries, rows))
}

/// Compiles the launch that computes the gradients of keys and values, or the partial gradients of each query head.
fn keys(cx: &CompileCx, dims: &AttentionDims, rows: usize, parts: &Parts) -> Result<Launch, String> {
    let mut module = Module::new(cx);
    let template = tiles::template(files::ATTENTION_BACKWARD_KEYS, dims, rows);
    let template = loading(template, &mut module, dims)
        .body("store_dk", store_body(&mut module, dims, parts.target(0)))
        .body("store_dv", store_body(&mut module, dims, parts.target(1)));
    module.finish_template(template, tiles::groups(dims, TiledOperand::Keys, rows))
}

/// Compiles the launch that adds up the partial gradients of the query heads of a group.
pub(super) fn join(cx: &CompileCx, dims: &AttentionDims, parts: &Parts) -> Result<Launch, String> {
    let mut module = Module::new(cx);
    for (name, number) in ["given_dk", "given_dv"]
        .into_iter()
        .zip(parts.scratch.unwrap_or_default()..)
    {
        module.bind(name, cx.scratch(number));
    }
    let template = Template::new(files::ATTENTION_BACKWARD_JOIN)
        .sizes([("HEAD_DIM", dims.head_dim), ("GROUP", dims.group())])
        .body("store_dk", module.store(1, "i", "value"))
        .body("store_dv", module.store(2, "i", "value"));
    module.finish_template_elements(template, cx.kernel.outputs[1].numel())
}
