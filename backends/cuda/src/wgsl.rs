//! Parsing and validation of WGSL modules.

use naga::AddressSpace;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};

/// Parses and validates a WGSL module. Buffers without a binding, as in the modules of `meganeura-shaders`, get
/// bindings in the order of their declarations.
///
/// # Errors
/// The error of the parser or validator, with its position in the text.
pub fn read(text: &str) -> Result<(naga::Module, ModuleInfo), String> {
    let parsed = naga::front::wgsl::parse_str(text);
    let mut module = parsed.map_err(|error| error.emit_to_string(text))?;
    for (binding, (_, variable)) in (0..).zip(module.global_variables.iter_mut()) {
        let is_buffer = matches!(variable.space, AddressSpace::Storage { .. } | AddressSpace::Uniform);
        if is_buffer && variable.binding.is_none() {
            variable.binding = Some(naga::ResourceBinding { group: 0, binding });
        }
    }
    let halves = Capabilities::SHADER_FLOAT16 | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let capabilities = halves | Capabilities::COOPERATIVE_MATRIX | Capabilities::SUBGROUP;
    let valid = Validator::new(ValidationFlags::all(), capabilities).validate(&module);
    let info = valid.map_err(|error| error.emit_to_string(text))?;
    Ok((module, info))
}
