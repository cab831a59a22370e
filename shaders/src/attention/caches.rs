//! Reading of cached keys and values, which may be 8-bit integers with a scale for each block of 32.

use meganeura_core::ops::cache_scales;

use super::super::kernel::CompileCx;
use super::super::module::Module;

/// Returns the index of the operand with the scales of an operand, if that is a quantized cache.
fn scales_of(cx: &CompileCx, operand: usize) -> Option<usize> {
    let [keys, values] = cache_scales(cx.kernel.inputs)?;
    match operand {
        1 => Some(keys),
        2 => Some(values),
        _ => None,
    }
}

/// Returns true if an operand can be read in vectors of four elements.
pub(super) fn has_vectors(cx: &CompileCx, operand: usize) -> bool {
    scales_of(cx, operand).is_some() || cx.has_vectors(operand)
}

/// Returns an expression for four adjacent elements of an operand. The first one has the index `4 * index`. Returns
/// `None` if the operand cannot be read in vectors.
pub(super) fn load_vector(module: &mut Module, operand: usize, index: &str) -> Option<String> {
    let Some(scales) = scales_of(module.cx(), operand) else {
        return module.load_vector(operand, index);
    };
    let word = module.load(operand, index);
    let scale = module.load(scales, &format!("({index}) / 8u"));
    Some(format!("({scale} * q8_0_to_f32x4({word}))"))
}

/// Returns an expression for an element of an operand.
pub(super) fn load(module: &mut Module, operand: usize, index: &str) -> String {
    let Some(scales) = scales_of(module.cx(), operand) else {
        return module.load(operand, index);
    };
    let word = module.load(operand, &format!("({index}) / 4u"));
    let scale = module.load(scales, &format!("({index}) / 32u"));
    format!("({scale} * q8_0_to_f32({word}, {index}))")
}

/// Returns the operands whose elements a kernel on cooperative matrices rounds to `f16`, so that they may be stored in
/// `f16`: queries, and keys and values unless they are quantized.
pub(super) fn rounded(cx: &CompileCx) -> Vec<usize> {
    (0..3).filter(|&operand| scales_of(cx, operand).is_none()).collect()
}
