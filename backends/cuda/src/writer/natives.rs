//! Functions of the shaders' library that compute in integers what NVIDIA's processors have an instruction for: WGSL has none that
//! gives the same on every driver.

/// Names of such functions. The prelude has them with `native_` in front.
const NATIVES: [&str; 3] = ["f16_to_f32", "f16_to_f32x4", "f32_to_f16"];

/// The prelude's function in place of one of the module.
pub(super) fn native(name: Option<&str>) -> Option<String> {
    let name = NATIVES.into_iter().find(|native| Some(*native) == name)?;
    Some(format!("native_{name}"))
}
