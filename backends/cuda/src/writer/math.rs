//! Translation of mathematical functions. The prelude has a version of each function for scalars and for vectors.

use naga::{Expression, Handle, MathFunction};

use super::body::Body;
use super::context::Part;
use super::error::{Result, WriteError};

/// Returns the name of the prelude's function for a WGSL function, and `true` if it supports half precision.
fn function(fun: MathFunction) -> Option<(&'static str, bool)> {
    use MathFunction as Mf;
    let name = match fun {
        Mf::Abs => "abs",
        Mf::Min => "min",
        Mf::Max => "max",
        Mf::Clamp => "clamp",
        Mf::Saturate => "saturate",
        Mf::Cos => "cos",
        Mf::Cosh => "cosh",
        Mf::Sin => "sin",
        Mf::Sinh => "sinh",
        Mf::Tan => "tan",
        Mf::Tanh => "tanh",
        Mf::Acos => "acos",
        Mf::Asin => "asin",
        Mf::Atan => "atan",
        Mf::Atan2 => "atan2",
        Mf::Asinh => "asinh",
        Mf::Acosh => "acosh",
        Mf::Atanh => "atanh",
        Mf::Radians => "radians",
        Mf::Degrees => "degrees",
        Mf::Ceil => "ceil",
        Mf::Floor => "floor",
        Mf::Round => "round",
        Mf::Fract => "fract",
        Mf::Trunc => "trunc",
        Mf::Ldexp => "ldexp",
        Mf::Exp => "exp",
        Mf::Exp2 => "exp2",
        Mf::Log => "log",
        Mf::Log2 => "log2",
        Mf::Pow => "pow",
        Mf::Dot => "dot",
        Mf::Dot4I8Packed => "dot4_i8",
        Mf::Dot4U8Packed => "dot4_u8",
        Mf::Cross => "cross",
        Mf::Distance => "distance",
        Mf::Length => "length",
        Mf::Normalize => "normalize",
        Mf::Sign => "sign",
        Mf::Fma => "fma",
        Mf::Mix => "mix",
        Mf::Step => "step",
        Mf::SmoothStep => "smooth_step",
        Mf::Sqrt => "sqrt",
        Mf::InverseSqrt => "inverse_sqrt",
        Mf::CountTrailingZeros => "trailing_zeros",
        Mf::CountLeadingZeros => "leading_zeros",
        Mf::CountOneBits => "count_bits",
        Mf::ReverseBits => "reverse_bits",
        Mf::ExtractBits => "extract_bits",
        Mf::InsertBits => "insert_bits",
        Mf::FirstTrailingBit => "first_trailing_bit",
        Mf::FirstLeadingBit => "first_leading_bit",
        Mf::Pack4xI8 => "pack4_i8",
        Mf::Pack4xU8 => "pack4_u8",
        Mf::Pack4xI8Clamp => "pack4_i8_clamp",
        Mf::Pack4xU8Clamp => "pack4_u8_clamp",
        Mf::Unpack4xI8 => "unpack4_i8",
        Mf::Unpack4xU8 => "unpack4_u8",
        Mf::QuantizeToF16 => return Some(("quantize_f16", true)),
        Mf::Pack2x16float => return Some(("pack2_f16", true)),
        Mf::Unpack2x16float => return Some(("unpack2_f16", true)),
        // Functions that return structures, and functions of matrices, geometry and normalized integers. No kernel
        // uses them.
        Mf::Modf
        | Mf::Frexp
        | Mf::Outer
        | Mf::FaceForward
        | Mf::Reflect
        | Mf::Refract
        | Mf::Inverse
        | Mf::Transpose
        | Mf::Determinant
        | Mf::Pack4x8snorm
        | Mf::Pack4x8unorm
        | Mf::Pack2x16snorm
        | Mf::Pack2x16unorm
        | Mf::Unpack4x8snorm
        | Mf::Unpack4x8unorm
        | Mf::Unpack2x16snorm
        | Mf::Unpack2x16unorm => return None,
    };
    Some((name, false))
}

impl Body<'_> {
    pub(super) fn math(&self, fun: MathFunction, arguments: &[Handle<Expression>]) -> Result<String> {
        let Some((name, is_half)) = function(fun) else {
            return Err(WriteError::unsupported(format!("the function {fun:?}")));
        };
        if is_half {
            self.cx.needs(Part::Half);
        }
        Ok(format!("wgsl::{name}({})", self.values_of(arguments)?.join(", ")))
    }
}
