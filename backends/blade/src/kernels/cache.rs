//! Key-value caches: rows written in place.

use meganeura_core::DType;
use meganeura_core::ops::CacheDims;

use super::module::{CompileCx, Compiled, Launch, Module};

/// Launches for an operator of this file; half precision is left to decompositions.
pub(super) fn compile(cx: &CompileCx) -> Result<Option<Compiled>, String> {
    if cx.kernel.name != "core.cache_write" || cx.kernel.outputs[0].dtype != DType::F32 {
        return Ok(None);
    }
    Ok(Some(Compiled {
        launches: write(cx)?,
        scratch: Vec::new(),
    }))
}

/// One thread for each element of the new rows; the others are copied first, unless they are there already.
fn write(cx: &CompileCx) -> Result<Vec<Launch>, String> {
    let dims = CacheDims::of(&cx.call())?;
    let CacheDims {
        rows, capacity, width, ..
    } = dims;
    let mut launches = Vec::new();
    if !cx.is_overwritten(1) {
        let mut copy = Module::new(cx);
        let value = copy.load(1, "i");
        let store = copy.store(0, "i", &value);
        launches.push(copy.finish_elements(&store, cx.kernel.outputs[0].numel())?);
    }
    let mut module = Module::new(cx);
    let raw = module.load(2, "sequence");
    let position = module.checked_index("given", dims.bound());
    let value = module.load(0, "i");
    let target = format!("(sequence * {capacity}u + position) * {width}u + i % {}u", rows * width);
    let store = module.store(0, &target, &value);
    let code = format!(
        "let sequence = i / {}u;\nlet given = {raw};\nlet position = {position};\n\
         if (given != position) {{\nreturn;\n}}\n{store}",
        rows * width
    );
    launches.push(module.finish_elements(&code, cx.kernel.inputs[0].numel())?);
    Ok(launches)
}
