//! Validation of WGSL with naga.

use naga::AddressSpace;
use naga::valid::{Capabilities, ValidationFlags, Validator};

/// Validates the text of a kernel. It is a complete module whose buffers have no binding yet.
///
/// # Errors
/// The text is not valid. The message contains the location.
pub fn validate(text: &str) -> Result<(), String> {
    let parsed = naga::front::wgsl::parse_str(text);
    let mut module = parsed.map_err(|error| error.emit_to_string(text))?;
    // Bindings are added here, because hosts bind variables by name.
    for (binding, (_, variable)) in (0..).zip(module.global_variables.iter_mut()) {
        if matches!(variable.space, AddressSpace::Storage { .. } | AddressSpace::Uniform) {
            variable.binding = Some(naga::ResourceBinding { group: 0, binding });
        }
    }
    let capabilities = Capabilities::SHADER_FLOAT16 | Capabilities::COOPERATIVE_MATRIX | Capabilities::SUBGROUP;
    let valid = Validator::new(ValidationFlags::all(), capabilities).validate(&module);
    valid.map(|_| ()).map_err(|error| error.emit_to_string(text))
}

#[cfg(test)]
mod tests {
    use super::validate;

    #[test]
    fn errors_show_the_place() {
        let module = |body: &str| {
            format!("var<storage, read_write> a: array<f32>;\n@compute @workgroup_size(1)\nfn main() {{\n{body}\n}}\n")
        };
        assert_eq!(validate(&module("a[0] = 1.0;")), Ok(()));
        let unknown = validate(&module("a[0] = b;")).expect_err("an unknown name");
        assert!(unknown.contains('b') && unknown.contains(":4:"), "{unknown}");
        let wrong = validate(&module("a[0] = 1u;")).expect_err("another type");
        assert!(wrong.contains("u32") || wrong.contains("type"), "{wrong}");
    }
}
