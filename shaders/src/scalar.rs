//! Elementwise operators as WGSL expressions.

use meganeura_core::DType;
use meganeura_core::attrs::Attrs;
use meganeura_core::ops::{Call, drop_threshold};

/// Dtypes of operands. Half precision is computed in `f32`, and rounded by casts and where a result is stored.
pub const DTYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::U32, DType::I32];

/// Whether an operator is elementwise and known here, for these types.
pub(super) fn is_known(name: &str, call: &Call) -> Result<bool, String> {
    let arguments = vec![String::new(); call.inputs.len()];
    Ok(expression(name, call, &arguments, "")?.is_some())
}

/// WGSL type in which elements of a dtype are computed.
pub(crate) fn wgsl_type(dtype: DType) -> &'static str {
    match dtype {
        DType::U32 => "u32",
        DType::I32 => "i32",
        _ => "f32",
    }
}

/// A number of a dtype from the bits of its storage in 32 bits.
pub(crate) fn literal(dtype: DType, bits: u32) -> String {
    match dtype {
        DType::U32 => format!("{bits}u"),
        // The smallest number has no literal.
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

/// A number of a dtype, as WGSL.
pub(crate) fn number(dtype: DType, value: f64) -> String {
    let bits = match dtype {
        DType::U32 => value as u32,
        DType::I32 => value as i32 as u32,
        _ => (value as f32).to_bits(),
    };
    literal(dtype, bits)
}

/// The expression of an elementwise call on WGSL expressions of its operands; `number` is that of the element, for
/// operators that depend on it. `None` if the operator is not known here.
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

/// The value of two elements by an operator without attributes that [`OPERATORS`] has for every dtype.
pub(super) fn of_two(name: &str, dtype: DType, a: &str, b: &str) -> String {
    let row = OPERATORS
        .iter()
        .find(|row| row.0 == name && row.1.has(compute_type(dtype)));
    row.map_or_else(String::new, |row| row.2.replace("{a}", a).replace("{b}", b))
}

/// A text with the value of each `{hole}` in its location.
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

/// What an attribute puts into an expression whose first operand has a dtype.
fn attribute(name: &str, from: DType, attrs: &Attrs) -> Result<String, String> {
    Ok(match name {
        "uid" => literal(DType::U32, attrs.size("uid")? as u32),
        "threshold" => literal(DType::U32, drop_threshold(attrs.float("p")?)),
        "scale" => number(DType::F32, 1.0 / (1.0 - attrs.float("p")?)),
        _ => number(from, attrs.float(name)?),
    })
}

/// The dtype in which elements of a dtype are computed.
pub(super) fn compute_type(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// Dtypes in which the first operand of an operator is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Any,
    Float,
    Whole,
    I32,
}

impl Of {
    fn has(self, dtype: DType) -> bool {
        let whole = matches!(dtype, DType::U32 | DType::I32);
        match self {
            Of::Any => true,
            Of::Float => !whole,
            Of::Whole => whole,
            Of::I32 => dtype == DType::I32,
        }
    }
}

/// Operators, the dtypes of operand `a`, and the element of the result. `{a}`, `{b}` and `{c}` are elements of the operands,
/// `{type}` the type of the first, `{element}` is the number of the element, and all others are [attributes](attribute). Functions
/// that WGSL does not have are in `lib/math.wgsl`. Truth values are words, 1 or 0.
#[rustfmt::skip]
const OPERATORS: &[(&str, Of, &str)] = &[
    ("core.neg",           Of::I32,   "0 - {a}"),
    ("core.neg",           Of::Float, "-{a}"),
    ("core.abs",           Of::I32,   "select({a}, 0 - {a}, {a} < 0)"),
    ("core.abs",           Of::Float, "abs({a})"),
    ("core.sign",          Of::I32,   "sign({a})"),
    ("core.sign",          Of::Float, "sign_f32({a})"),
    ("core.square",        Of::Float, "{a} * {a}"),
    ("core.reciprocal",    Of::Float, "1.0 / {a}"),
    ("core.floor",         Of::Float, "floor({a})"),
    ("core.ceil",          Of::Float, "ceil({a})"),
    ("core.round",         Of::Float, "round({a})"),
    ("core.log2",          Of::Float, "log2_f32({a})"),
    ("core.exp2",          Of::Float, "exp2_f32({a})"),
    ("core.sin",           Of::Float, "sin_f32({a})"),
    ("core.cos",           Of::Float, "cos_f32({a})"),
    ("core.sqrt",          Of::Float, "sqrt_f32({a})"),
    ("core.rsqrt",         Of::Float, "rsqrt_f32({a})"),
    ("core.exp",           Of::Float, "exp_f32({a})"),
    ("core.log",           Of::Float, "log_f32({a})"),
    ("core.expm1",         Of::Float, "expm1_f32({a})"),
    ("core.log1p",         Of::Float, "log1p_f32({a})"),
    ("core.tanh",          Of::Float, "tanh_f32({a})"),
    ("core.sigmoid",       Of::Float, "sigmoid_f32({a})"),
    ("core.relu",          Of::Float, "relu_f32({a})"),
    ("core.softplus",      Of::Float, "softplus_f32({a})"),
    ("core.silu",          Of::Float, "silu_f32({a})"),
    ("core.erf",           Of::Float, "erf_f32({a})"),
    ("core.gelu_tanh",     Of::Float, "gelu_tanh_f32({a})"),
    ("core.gelu_erf",      Of::Float, "gelu_erf_f32({a})"),
    ("core.hard_sigmoid",  Of::Float, "hard_sigmoid_f32({a})"),
    ("core.hard_swish",    Of::Float, "{a} * hard_sigmoid_f32({a})"),
    ("core.leaky_relu",    Of::Float, "leaky_relu_f32({a}, {negative_slope})"),
    ("core.elu",           Of::Float, "elu_f32({a}, {alpha})"),
    ("core.clamp",         Of::Float, "clamp_f32({a}, {low}, {high})"),
    ("core.add",           Of::Any,   "{a} + {b}"),
    ("core.sub",           Of::Any,   "{a} - {b}"),
    ("core.mul",           Of::Any,   "{a} * {b}"),
    ("core.div",           Of::Float, "{a} / {b}"),
    ("core.div",           Of::Whole, "div_{type}({a}, {b})"),
    ("core.mod",           Of::Any,   "mod_{type}({a}, {b})"),
    ("core.pow",           Of::Float, "pow_f32({a}, {b})"),
    ("core.max",           Of::Float, "max_f32({a}, {b})"),
    ("core.max",           Of::Whole, "max({a}, {b})"),
    ("core.min",           Of::Float, "min_f32({a}, {b})"),
    ("core.min",           Of::Whole, "min({a}, {b})"),
    ("core.less_than",     Of::Any,   "select(0u, 1u, {a} < {b})"),
    ("core.less_equal",    Of::Any,   "select(0u, 1u, {a} <= {b})"),
    ("core.greater_than",  Of::Any,   "select(0u, 1u, {a} > {b})"),
    ("core.greater_equal", Of::Any,   "select(0u, 1u, {a} >= {b})"),
    // NaN differs from everything, which drivers do not always know.
    ("core.equal",         Of::Float, "select(0u, 1u, {a} == {b} && !is_nan({a}))"),
    ("core.equal",         Of::Whole, "select(0u, 1u, {a} == {b})"),
    ("core.not_equal",     Of::Float, "select(1u, 0u, {a} == {b} && !is_nan({a}))"),
    ("core.not_equal",     Of::Whole, "select(0u, 1u, {a} != {b})"),
    ("core.bit_not",       Of::Any,   "~{a}"),
    ("core.bit_and",       Of::Any,   "{a} & {b}"),
    ("core.bit_or",        Of::Any,   "{a} | {b}"),
    ("core.bit_xor",       Of::Any,   "{a} ^ {b}"),
    ("core.shift_left",    Of::Any,   "shift_left_u32({a}, {b})"),
    ("core.shift_right",   Of::Any,   "shift_right_u32({a}, {b})"),
    ("core.logical_not",   Of::Any,   "select(0u, 1u, {a} == 0u)"),
    ("core.logical_and",   Of::Any,   "select(0u, 1u, {a} != 0u && {b} != 0u)"),
    ("core.logical_or",    Of::Any,   "select(0u, 1u, ({a} | {b}) != 0u)"),
    ("core.logical_xor",   Of::Any,   "select(0u, 1u, ({a} != 0u) != ({b} != 0u))"),
    ("core.masked_fill",   Of::Any,   "select({a}, {value}, {b} != 0u)"),
    ("core.select",        Of::Any,   "select({c}, {b}, {a} != 0u)"),
    ("core.dropout",       Of::Any,   "select({a} * {scale}, 0.0, random_word({b}, {uid}, {c}, {element}) < {threshold})"),
];

/// A conversion. Values of half precision are held in `f32`, so a cast to half precision rounds them.
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

/// Whether an elementwise operator depends on the number of the element.
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
