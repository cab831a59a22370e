//! Functions of the shader library that are replaced by instructions of NVIDIA's GPUs. The library computes them with
//! integers, because no WGSL function has the same result on every driver.

/// Names of these functions. The names of their replacements in the prelude begin with `native_`.
const NATIVES: [&str; 3] = ["f16_to_f32", "f16_to_f32x4", "f32_to_f16"];

/// Returns the name of the prelude's function that replaces a function of the module, if there is one.
pub(super) fn native(name: Option<&str>) -> Option<String> {
    let name = NATIVES.into_iter().find(|native| Some(*native) == name)?;
    Some(format!("native_{name}"))
}
