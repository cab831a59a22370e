//! Gradients of attention by single threads, from the saved logarithms: scores are made anew, once with queries as rows for
//! the gradient of these, once with keys as rows for those of keys and values. Nothing is added atomically: the parts that
//! the heads of a group give to the gradients of their keys go to scratch, one beside the other, and are added up then.

use meganeura_core::ops::AttentionDims;

use super::super::files;
use super::super::kernel::{CompileCx, Compiled, Launch};
use super::super::module::Module;
use super::super::template::Template;
use super::heads::{Side, Target, load_body, store_body};
use super::tiles;

/// Most elements of a head, beyond which two results need too many registers.
pub(super) const MAX_WIDTH: usize = 128;

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

    /// Where vectors of the gradient of the keys, 0, or of the values, 1, are stored.
    pub(super) fn target(&self, port: usize) -> Target {
        match self.scratch {
            None => Target::Output(1 + port),
            Some(first) => Target::Scratch(first + port),
        }
    }
}

/// Launches for a call, by tiles of so many queries, and of so many keys.
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

/// A kernel with the functions that load operands.
pub(super) fn loading(mut template: Template, module: &mut Module, dims: &AttentionDims) -> Template {
    for (operand, name) in [(0, "load_q"), (1, "load_k"), (2, "load_v"), (5, "load_dout")] {
        template = template.returns(name, "", &load_body(module, dims, operand));
    }
    template
        .returns("load_lse", "", &module.load(3, "index"))
        .returns("load_delta", "", &module.load(4, "index"))
}

/// The gradients of the queries.
fn queries(cx: &CompileCx, dims: &AttentionDims, rows: usize) -> Result<Launch, String> {
    let mut module = Module::new(cx);
    let template = tiles::template(files::ATTENTION_BACKWARD_QUERIES, dims, rows);
    let template = loading(template, &mut module, dims).body("store", store_body(&mut module, dims, Target::Output(0)));
    module.finish_template(template, tiles::groups(dims, Side::Queries, rows))
}

/// The gradients of keys and values, or what each head gives to them.
fn keys(cx: &CompileCx, dims: &AttentionDims, rows: usize, parts: &Parts) -> Result<Launch, String> {
    let mut module = Module::new(cx);
    let template = tiles::template(files::ATTENTION_BACKWARD_KEYS, dims, rows);
    let template = loading(template, &mut module, dims)
        .body("store_dk", store_body(&mut module, dims, parts.target(0)))
        .body("store_dv", store_body(&mut module, dims, parts.target(1)));
    module.finish_template(template, tiles::groups(dims, Side::Keys, rows))
}

/// Adds up what the heads of a group give.
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
