//! Elementwise operators as WGSL expressions.

use meganeura_core::DType;
use meganeura_core::attrs::Attrs;
use meganeura_core::ops::{Call, drop_threshold};

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

fn float_attr(attrs: &Attrs, name: &str) -> Result<String, String> {
    Ok(float_literal(attrs.float(name)? as f32))
}

/// The expression of an elementwise call on WGSL expressions of its operands; `number` is that of the element, for
/// operators that depend on it. `None` if the operator is not known here.
pub(super) fn expression(name: &str, call: &Call, x: &[String], number: &str) -> Result<Option<String>, String> {
    let from = match call.inputs.first().or(call.outputs.first()) {
        Some(ty) => compute_type(ty.dtype),
        None => return Ok(None),
    };
    let text = match x {
        [] => None,
        [a] => unary(name, from, call, a)?,
        [a, b] => binary(name, from, call, a, b)?,
        [a, b, c] => ternary(name, call, a, b, c, number)?,
        _ => None,
    };
    Ok(text)
}

/// The dtype in which elements of a dtype are computed.
pub(super) fn compute_type(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

fn unary(name: &str, from: DType, call: &Call, a: &str) -> Result<Option<String>, String> {
    let attrs = call.attrs;
    Ok(Some(match (name, from) {
        ("core.neg", DType::I32) => format!("0 - {a}"),
        ("core.abs", DType::I32) => format!("select({a}, 0 - {a}, {a} < 0)"),
        ("core.sign", DType::I32) => format!("sign({a})"),
        ("core.bit_not", _) => format!("~{a}"),
        ("core.logical_not", _) => format!("select(0u, 1u, {a} == 0u)"),
        ("core.cast", _) => cast(from, call.attrs.dtype("to")?, a),
        (_, DType::U32 | DType::I32) => return Ok(None),
        ("core.neg", _) => format!("-{a}"),
        ("core.abs", _) => format!("abs({a})"),
        ("core.sign", _) => format!("sign_f32({a})"),
        ("core.square", _) => format!("{a} * {a}"),
        ("core.reciprocal", _) => format!("1.0 / {a}"),
        ("core.floor", _) => format!("floor({a})"),
        ("core.ceil", _) => format!("ceil({a})"),
        ("core.round", _) => format!("round({a})"),
        ("core.log2", _) => format!("log2_f32({a})"),
        ("core.exp2", _) => format!("exp2_f32({a})"),
        ("core.sin", _) => format!("sin_f32({a})"),
        ("core.cos", _) => format!("cos_f32({a})"),
        ("core.sqrt", _) => format!("sqrt_f32({a})"),
        ("core.rsqrt", _) => format!("rsqrt_f32({a})"),
        ("core.exp", _) => format!("exp_f32({a})"),
        ("core.log", _) => format!("log_f32({a})"),
        ("core.expm1", _) => format!("expm1_f32({a})"),
        ("core.log1p", _) => format!("log1p_f32({a})"),
        ("core.tanh", _) => format!("tanh_f32({a})"),
        ("core.sigmoid", _) => format!("sigmoid_f32({a})"),
        ("core.relu", _) => format!("relu_f32({a})"),
        ("core.softplus", _) => format!("softplus_f32({a})"),
        ("core.silu", _) => format!("silu_f32({a})"),
        ("core.erf", _) => format!("erf_f32({a})"),
        ("core.gelu_tanh", _) => format!("gelu_tanh_f32({a})"),
        ("core.gelu_erf", _) => format!("gelu_erf_f32({a})"),
        ("core.hard_sigmoid", _) => format!("hard_sigmoid_f32({a})"),
        ("core.hard_swish", _) => format!("{a} * hard_sigmoid_f32({a})"),
        ("core.leaky_relu", _) => format!("leaky_relu_f32({a}, {})", float_attr(attrs, "negative_slope")?),
        ("core.elu", _) => format!("elu_f32({a}, {})", float_attr(attrs, "alpha")?),
        ("core.clamp", _) => {
            let (low, high) = (float_attr(attrs, "low")?, float_attr(attrs, "high")?);
            format!("clamp_f32({a}, {low}, {high})")
        }
        _ => return Ok(None),
    }))
}

/// A conversion; half precision is rounded where it is stored.
fn cast(from: DType, to: DType, a: &str) -> String {
    match (from, compute_type(to)) {
        (from, to) if from == to => a.to_owned(),
        (DType::F32, DType::U32) => format!("f32_to_u32({a})"),
        (DType::F32, DType::I32) => format!("f32_to_i32({a})"),
        (_, DType::F32) => format!("f32({a})"),
        (_, to) => format!("bitcast<{}>({a})", wgsl_type(to)),
    }
}

fn binary(name: &str, from: DType, call: &Call, a: &str, b: &str) -> Result<Option<String>, String> {
    let float = from == DType::F32;
    let ty = wgsl_type(from);
    let truth = |condition: String| format!("select(0u, 1u, {condition})");
    Ok(Some(match name {
        "core.add" => format!("{a} + {b}"),
        "core.sub" => format!("{a} - {b}"),
        "core.mul" => format!("{a} * {b}"),
        "core.div" if float => format!("{a} / {b}"),
        "core.div" => format!("div_{ty}({a}, {b})"),
        "core.mod" => format!("mod_{ty}({a}, {b})"),
        "core.pow" if float => format!("pow_f32({a}, {b})"),
        "core.max" if float => format!("max_f32({a}, {b})"),
        "core.min" if float => format!("min_f32({a}, {b})"),
        "core.max" => format!("max({a}, {b})"),
        "core.min" => format!("min({a}, {b})"),
        "core.less_than" => truth(format!("{a} < {b}")),
        "core.less_equal" => truth(format!("{a} <= {b}")),
        "core.greater_than" => truth(format!("{a} > {b}")),
        "core.greater_equal" => truth(format!("{a} >= {b}")),
        // NaN differs from everything, which drivers do not always know.
        "core.equal" if float => truth(format!("{a} == {b} && !is_nan({a})")),
        "core.not_equal" if float => format!("select(1u, 0u, {a} == {b} && !is_nan({a}))"),
        "core.equal" => truth(format!("{a} == {b}")),
        "core.not_equal" => truth(format!("{a} != {b}")),
        "core.bit_and" => format!("{a} & {b}"),
        "core.bit_or" => format!("{a} | {b}"),
        "core.bit_xor" => format!("{a} ^ {b}"),
        "core.shift_left" => format!("shift_left_u32({a}, {b})"),
        "core.shift_right" => format!("shift_right_u32({a}, {b})"),
        "core.logical_and" => truth(format!("{a} != 0u && {b} != 0u")),
        "core.logical_or" => truth(format!("({a} | {b}) != 0u")),
        "core.logical_xor" => truth(format!("({a} != 0u) != ({b} != 0u)")),
        "core.masked_fill" => {
            let value = call.attrs.float("value")?;
            let bits = match from {
                DType::U32 => value as u32,
                DType::I32 => value as i32 as u32,
                _ => (value as f32).to_bits(),
            };
            format!("select({a}, {}, {b} != 0u)", literal(from, bits))
        }
        _ => return Ok(None),
    }))
}

fn ternary(name: &str, call: &Call, a: &str, b: &str, c: &str, number: &str) -> Result<Option<String>, String> {
    Ok(Some(match name {
        "core.select" => format!("select({c}, {b}, {a} != 0u)"),
        "core.dropout" => {
            let p = call.attrs.float("p")?;
            let (uid, threshold) = (call.attrs.size("uid")? as u32, drop_threshold(p));
            let scale = float_literal((1.0 / (1.0 - p)) as f32);
            format!("select({a} * {scale}, 0.0, random_word({b}, {uid}u, {c}, {number}) < {threshold}u)")
        }
        _ => return Ok(None),
    }))
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
