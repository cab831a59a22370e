//! Elementwise operators as WGSL expressions.

use meganeura_core::DType;
use meganeura_core::attrs::Attrs;
use meganeura_core::ops::{Call, drop_threshold};

/// Supported dtypes of operands. Half precision is computed in `f32`, and rounded by casts and when a result is
/// stored.
pub const DTYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::U32, DType::I32];

/// Returns true if an operator is elementwise and supported for these types.
pub(super) fn is_known(name: &str, call: &Call) -> Result<bool, String> {
    let arguments = vec![String::new(); call.inputs.len()];
    Ok(expression(name, call, &arguments, "")?.is_some())
}

/// Returns the WGSL type in which elements of a dtype are computed.
pub(crate) fn wgsl_type(dtype: DType) -> &'static str {
    match dtype {
        DType::U32 => "u32",
        DType::I32 => "i32",
        _ => "f32",
    }
}

/// Returns a number of a dtype as a WGSL literal, given its bits.
pub(crate) fn literal(dtype: DType, bits: u32) -> String {
    match dtype {
        DType::U32 => format!("{bits}u"),
        // The smallest `i32` has no literal.
        DType::I32 => format!("bitcast<i32>({bits}u)"),
        _ => float_literal(f32::from_bits(bits)),
    }
}

fn float_literal(value: f32) -> String {
    if value.is_normal() || value.to_bits() == 0 {
        format!("({value:e}f)")
    } else {
        format!("from_bits({:#x}u)", value.to_bits())
    }
}

/// Returns a number of a dtype, as WGSL.
pub(crate) fn number(dtype: DType, value: f64) -> String {
    let bits = match dtype {
        DType::U32 => value as u32,
        DType::I32 => value as i32 as u32,
        _ => (value as f32).to_bits(),
    };
    literal(dtype, bits)
}

/// Returns the WGSL expression of an elementwise call, given expressions of its operands. `number` is the index of
/// the element, for operators that depend on it. Returns `None` if the operator is not supported.
pub(super) fn expression(name: &str, call: &Call, x: &[String], number: &str) -> Result<Option<String>, String> {
    let Some(ty) = call.inputs.first().or(call.outputs.first()) else {
        return Ok(None);
    };
    let from = compute_type(ty.dtype);
    let text = match name {
        "core.cast" => Some(cast(ty.dtype, call.attrs.dtype("to")?)),
        _ => OPERATORS
            .iter()
            .find(|row| row.0 == name && row.1.has(from))
            .map(|row| row.2),
    };
    let value = |hole: &str| match (hole, x) {
        ("a", [a, ..]) | ("b", [_, a, ..]) | ("c", [_, _, a, ..]) => Ok(a.clone()),
        ("element", _) => Ok(number.to_owned()),
        ("type", _) => Ok(wgsl_type(from).to_owned()),
        _ => attribute(hole, from, call.attrs),
    };
    text.map(|text| fill(text, value)).transpose()
}

/// Returns the expression of an operator without attributes that [`OPERATORS`] lists for every dtype.
pub(super) fn of_two(name: &str, dtype: DType, a: &str, b: &str) -> String {
    let row = OPERATORS
        .iter()
        .find(|row| row.0 == name && row.1.has(compute_type(dtype)));
    row.map_or_else(String::new, |row| row.2.replace("{a}", a).replace("{b}", b))
}

/// Replaces each `{hole}` of a text by the value that `value` returns.
fn fill(text: &str, value: impl Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let mut parts = text.split('{');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (hole, rest) = part.split_once('}').ok_or("a hole has no end")?;
        filled += &value(hole)?;
        filled += rest;
    }
    Ok(filled)
}

/// Returns the value of an attribute for an expression whose first operand has the dtype `from`.
fn attribute(name: &str, from: DType, attrs: &Attrs) -> Result<String, String> {
    Ok(match name {
        "uid" => literal(DType::U32, attrs.size("uid")? as u32),
        "threshold" => literal(DType::U32, drop_threshold(attrs.float("p")?)),
        "scale" => number(DType::F32, 1.0 / (1.0 - attrs.float("p")?)),
        _ => number(from, attrs.float(name)?),
    })
}

/// Returns the dtype in which elements of a dtype are computed.
pub(super) fn compute_type(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// A set of dtypes that the first operand of an operator can be computed in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DtypeSet {
    Any,
    Float,
    Whole,
    I32,
}

impl DtypeSet {
    fn has(self, dtype: DType) -> bool {
        let whole = matches!(dtype, DType::U32 | DType::I32);
        match self {
            DtypeSet::Any => true,
            DtypeSet::Float => !whole,
            DtypeSet::Whole => whole,
            DtypeSet::I32 => dtype == DType::I32,
        }
    }
}

/// Operators with the dtypes of operand `a` and the expression of a result element. `{a}`, `{b}` and `{c}` are
/// elements of the operands, `{type}` is the type of the first one, `{element}` is the index of the element, and all
/// other holes are [attributes](attribute). `lib/math.wgsl` contains functions that WGSL does not have. Truth values
/// are words, 1 or 0.
#[rustfmt::skip]
const OPERATORS: &[(&str, DtypeSet, &str)] = &[
    ("core.neg",           DtypeSet::I32,   "0 - {a}"),
    ("core.neg",           DtypeSet::Float, "-{a}"),
    ("core.abs",           DtypeSet::I32,   "select({a}, 0 - {a}, {a} < 0)"),
    ("core.abs",           DtypeSet::Float, "abs({a})"),
    ("core.sign",          DtypeSet::I32,   "sign({a})"),
    ("core.sign",          DtypeSet::Float, "sign_f32({a})"),
    ("core.square",        DtypeSet::Float, "{a} * {a}"),
    ("core.reciprocal",    DtypeSet::Float, "1.0 / {a}"),
    ("core.floor",         DtypeSet::Float, "floor({a})"),
    ("core.ceil",          DtypeSet::Float, "ceil({a})"),
    ("core.round",         DtypeSet::Float, "round({a})"),
    ("core.log2",          DtypeSet::Float, "log2_f32({a})"),
    ("core.exp2",          DtypeSet::Float, "exp2_f32({a})"),
    ("core.sin",           DtypeSet::Float, "sin_f32({a})"),
    ("core.cos",           DtypeSet::Float, "cos_f32({a})"),
    ("core.sqrt",          DtypeSet::Float, "sqrt_f32({a})"),
    ("core.rsqrt",         DtypeSet::Float, "rsqrt_f32({a})"),
    ("core.exp",           DtypeSet::Float, "exp_f32({a})"),
    ("core.log",           DtypeSet::Float, "log_f32({a})"),
    ("core.expm1",         DtypeSet::Float, "expm1_f32({a})"),
    ("core.log1p",         DtypeSet::Float, "log1p_f32({a})"),
    ("core.tanh",          DtypeSet::Float, "tanh_f32({a})"),
    ("core.sigmoid",       DtypeSet::Float, "sigmoid_f32({a})"),
    ("core.relu",          DtypeSet::Float, "relu_f32({a})"),
    ("core.softplus",      DtypeSet::Float, "softplus_f32({a})"),
    ("core.silu",          DtypeSet::Float, "silu_f32({a})"),
    ("core.erf",           DtypeSet::Float, "erf_f32({a})"),
    ("core.gelu_tanh",     DtypeSet::Float, "gelu_tanh_f32({a})"),
    ("core.gelu_erf",      DtypeSet::Float, "gelu_erf_f32({a})"),
    ("core.hard_sigmoid",  DtypeSet::Float, "hard_sigmoid_f32({a})"),
    ("core.hard_swish",    DtypeSet::Float, "{a} * hard_sigmoid_f32({a})"),
    ("core.leaky_relu",    DtypeSet::Float, "leaky_relu_f32({a}, {negative_slope})"),
    ("core.elu",           DtypeSet::Float, "elu_f32({a}, {alpha})"),
    ("core.clamp",         DtypeSet::Float, "clamp_f32({a}, {low}, {high})"),
    ("core.add",           DtypeSet::Any,   "{a} + {b}"),
    ("core.sub",           DtypeSet::Any,   "{a} - {b}"),
    ("core.mul",           DtypeSet::Any,   "{a} * {b}"),
    ("core.div",           DtypeSet::Float, "{a} / {b}"),
    ("core.div",           DtypeSet::Whole, "div_{type}({a}, {b})"),
    ("core.mod",           DtypeSet::Any,   "mod_{type}({a}, {b})"),
    ("core.pow",           DtypeSet::Float, "pow_f32({a}, {b})"),
    ("core.max",           DtypeSet::Float, "max_f32({a}, {b})"),
    ("core.max",           DtypeSet::Whole, "max({a}, {b})"),
    ("core.min",           DtypeSet::Float, "min_f32({a}, {b})"),
    ("core.min",           DtypeSet::Whole, "min({a}, {b})"),
    ("core.less_than",     DtypeSet::Any,   "select(0u, 1u, {a} < {b})"),
    ("core.less_equal",    DtypeSet::Any,   "select(0u, 1u, {a} <= {b})"),
    ("core.greater_than",  DtypeSet::Any,   "select(0u, 1u, {a} > {b})"),
    ("core.greater_equal", DtypeSet::Any,   "select(0u, 1u, {a} >= {b})"),
    // NaN is not equal to any number, but some drivers violate this.
    ("core.equal",         DtypeSet::Float, "select(0u, 1u, {a} == {b} && !is_nan({a}))"),
    ("core.equal",         DtypeSet::Whole, "select(0u, 1u, {a} == {b})"),
    ("core.not_equal",     DtypeSet::Float, "select(1u, 0u, {a} == {b} && !is_nan({a}))"),
    ("core.not_equal",     DtypeSet::Whole, "select(0u, 1u, {a} != {b})"),
    ("core.bit_not",       DtypeSet::Any,   "~{a}"),
    ("core.bit_and",       DtypeSet::Any,   "{a} & {b}"),
    ("core.bit_or",        DtypeSet::Any,   "{a} | {b}"),
    ("core.bit_xor",       DtypeSet::Any,   "{a} ^ {b}"),
    ("core.shift_left",    DtypeSet::Any,   "shift_left_u32({a}, {b})"),
    ("core.shift_right",   DtypeSet::Any,   "shift_right_u32({a}, {b})"),
    ("core.logical_not",   DtypeSet::Any,   "select(0u, 1u, {a} == 0u)"),
    ("core.logical_and",   DtypeSet::Any,   "select(0u, 1u, {a} != 0u && {b} != 0u)"),
    ("core.logical_or",    DtypeSet::Any,   "select(0u, 1u, ({a} | {b}) != 0u)"),
    ("core.logical_xor",   DtypeSet::Any,   "select(0u, 1u, ({a} != 0u) != ({b} != 0u))"),
    ("core.masked_fill",   DtypeSet::Any,   "select({a}, {value}, {b} != 0u)"),
    ("core.select",        DtypeSet::Any,   "select({c}, {b}, {a} != 0u)"),
    ("core.dropout",       DtypeSet::Any,   "select({a} * {scale}, 0.0, random_word({b}, {uid}, {c}, {element}) < {threshold})"),
];

/// Returns a conversion. Values of half precision are computed in `f32`, so a cast to half precision rounds them.
fn cast(from: DType, to: DType) -> &'static str {
    match (compute_type(from), to) {
        _ if from == to => "{a}",
        (_, DType::F16) => "round_to_f16(f32({a}))",
        (_, DType::BF16) => "round_to_bf16(f32({a}))",
        (DType::F32, DType::F32) => "{a}",
        (DType::F32, DType::U32) => "f32_to_u32({a})",
        (DType::F32, DType::I32) => "f32_to_i32({a})",
        (_, DType::F32) => "f32({a})",
        (_, DType::I32) => "bitcast<i32>({a})",
        _ => "bitcast<u32>({a})",
    }
}

/// Returns true if an elementwise operator depends on the index of the element.
pub(super) fn counts(name: &str) -> bool {
    name == "core.dropout"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_exact() {
        assert_eq!(literal(DType::F32, 0.1f32.to_bits()), "(1e-1f)");
        assert_eq!(
            literal(DType::F32, f32::NEG_INFINITY.to_bits()),
            "from_bits(0xff800000u)"
        );
        assert_eq!(literal(DType::F32, (-0.0f32).to_bits()), "from_bits(0x80000000u)");
        assert_eq!(literal(DType::U32, u32::MAX), "4294967295u");
        assert_eq!(literal(DType::I32, i32::MIN as u32), "bitcast<i32>(2147483648u)");
    }
}
