//! Kernels that others bring for their operators, as WGSL.

use meganeura_core::backend::shader::{Shader, ShaderBuffer};

use super::module::{Binding, CompileCx, Compiled, Launch, Module, Source};

/// Launches of the kernel that was brought for an operator; `None` if there is none for this call.
pub(super) fn compile(cx: &CompileCx) -> Result<Option<Compiled>, String> {
    // What writes lasting data has to look at faults first. Operators that are brought write none.
    let Some(kernel) = cx.brought.filter(|_| !cx.guarded && cx.skip_if.is_none()) else {
        return Ok(None);
    };
    if cx.kernel.outputs.iter().all(|ty| ty.numel() == 0) {
        return Ok(Some(Compiled::default()));
    }
    match kernel.shader(&cx.kernel) {
        Ok(shader) => launches(cx, shader).map(Some),
        Err(_) => Ok(None),
    }
}

/// The shader, and before it copies of operands that are in no buffer of their own.
fn launches(cx: &CompileCx, shader: Shader) -> Result<Compiled, String> {
    let mut compiled = Compiled::default();
    let mut bindings = Vec::with_capacity(shader.buffers.len());
    for buffer in shader.buffers {
        let memory = match buffer {
            ShaderBuffer::Result(i) => cx.outputs[i],
            ShaderBuffer::Operand(i) => match cx.inputs[i] {
                Source::Memory(memory) if !cx.is_overwritten(i) => memory,
                _ => {
                    let ty = &cx.kernel.inputs[i];
                    let copy = cx.scratch(compiled.scratch.len());
                    let mut module = Module::new(cx);
                    let value = module.load(i, "i");
                    let to = module.array(copy, ty.dtype, true);
                    let launch = module.finish_elements(&format!("{to}[i] = {value};\n"), ty.numel())?;
                    compiled.launches.push(launch);
                    compiled.scratch.push(ty.bytes());
                    copy
                }
            },
        };
        bindings.push(Binding::Given(memory));
    }
    compiled.launches.push(Launch {
        source: shader.source,
        bindings,
        tables: Vec::new(),
        groups: shader.groups,
        coop: false,
    });
    Ok(compiled)
}
