//! Forward attention without cooperative matrices. Rows are queries, and columns are keys.

use meganeura_core::ops::AttentionDims;

use super::super::files;
use super::super::kernel::{CompileCx, Compiled};
use super::super::module::Module;
use super::heads::{Target, TiledOperand, load_body, over_cache, positions, store_body};
use super::tiles;

/// Compiles the launches of a call with tiles of `rows` queries.
pub(super) fn compile(cx: &CompileCx, dims: AttentionDims, rows: usize) -> Result<Compiled, String> {
    let mut module = Module::new(cx);
    let template = tiles::template(files::ATTENTION_FORWARD, &dims, rows);
    let mut template =
        over_cache(template, &mut module).body("store", store_body(&mut module, &dims, Target::Output(0)));
    for (operand, name) in ["load_q", "load_k", "load_v"].into_iter().enumerate() {
        template = template.returns(name, "", &load_body(&mut module, &dims, operand));
    }
    if positions(cx).is_none() {
        template = template.body("store_lse", module.store(1, "index", "value"));
    }
    let groups = tiles::groups(&dims, TiledOperand::Queries, rows);
    Ok(module.finish_template(template, groups)?.into())
}
