//! Custom kernels: WGSL that a plugin registers for its operator.

use meganeura_core::backend::shader::{SHADER_BUFFERS, SHADER_FAULT, SHADER_REPORTER, Shader, ShaderBuffer};

use super::kernel::{Binding, CompileCx, Compiled, CustomKernel, Launch};
use super::module::Module;

/// Compiles the launches of the custom kernel of an operator. Returns `None` if no custom kernel supports this call.
pub(super) fn compile(cx: &CompileCx) -> Result<Option<Compiled>, String> {
    // A custom kernel cannot skip its writes, so it does not run in a segment that may be skipped. Faults need no
    // check, because operators with custom kernels write no persistent data.
    let Some(kernel) = cx.custom.filter(|_| cx.skip_if.is_none()) else {
        return Ok(None);
    };
    if cx.kernel.outputs.iter().all(|ty| ty.numel() == 0) {
        return Ok(Some(Compiled::default()));
    }
    match kernel.shader(&cx.kernel) {
        Ok(shader) => launches(cx, kernel, shader).map(Some),
        Err(_) => Ok(None),
    }
}

/// Returns the launches of a custom kernel. Before its shader, a launch checks indices that the host does not
/// validate, and launches copy operands that are not in a buffer.
fn launches(cx: &CompileCx, kernel: &dyn CustomKernel, shader: Shader) -> Result<Compiled, String> {
    let mut compiled = Compiled::default();
    if let Some((operand, bound)) = kernel.op().index_bound(&cx.call()).filter(|_| !cx.host_validated) {
        compiled.launches.push(check_indices(cx, operand, bound)?);
    }
    let mut bindings = Vec::with_capacity(shader.buffers.len());
    for buffer in shader.buffers {
        let memory = match buffer {
            ShaderBuffer::Result(i) => cx.outputs[i],
            ShaderBuffer::Operand(i) => match cx.memory_of(i) {
                Some(memory) => memory,
                None => {
                    let ty = &cx.kernel.inputs[i];
                    let copy = cx.scratch(compiled.scratch.len());
                    let mut module = Module::new(cx);
                    let value = module.load(i, "i");
                    let to = module.array(copy, ty.dtype, true);
                    let launch = module.finish_elements(format!("{to}[i] = {value};\n"), ty.numel())?;
                    compiled.launches.push(launch);
                    compiled.scratch.push(ty.bytes());
                    copy
                }
            },
        };
        bindings.push(Binding::Custom(memory));
    }
    if shader.reports {
        bindings.extend([Binding::Fault, Binding::Reporter]);
    }
    compiled.launches.push(Launch {
        kernel: "custom",
        source: shader.source,
        names: bindings
            .iter()
            .enumerate()
            .map(|(i, binding)| name(i, binding))
            .collect(),
        bindings,
        tables: Vec::new(),
        groups: shader.groups,
        coop: false,
        library: None,
        schedule: None,
        chosen: None,
        replacements: None,
    });
    Ok(compiled)
}

/// Returns the name of a variable in a custom kernel.
fn name(number: usize, binding: &Binding) -> &'static str {
    match binding {
        Binding::Fault => SHADER_FAULT,
        Binding::Reporter => SHADER_REPORTER,
        _ => SHADER_BUFFERS[number % SHADER_BUFFERS.len()],
    }
}

/// Compiles a launch that reports indices out of range in the same way as generated kernels.
fn check_indices(cx: &CompileCx, operand: usize, bound: usize) -> Result<Launch, String> {
    let mut module = Module::new(cx);
    let given = module.load(operand, "i");
    let index = module.checked_index("given", bound);
    let code = format!("let given = {given};\nlet index = {index};\n");
    module.finish_elements(code, cx.kernel.inputs[operand].numel())
}
