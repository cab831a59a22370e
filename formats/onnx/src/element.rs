//! Element types of ONNX, and the corresponding types in a graph.

use std::fmt;

use meganeura_core::DType;
use serde::Serialize;

use crate::small::SmallFloat;

/// Element type of a tensor of a model.
///
/// Graphs have 32-bit integers, no `f64`, and no floats of less than 16 bits: [`ElementType::dtype`] is the corresponding type.
/// Values that do not fit are an error when they are passed ([`crate::Runner`]). Arithmetic of integers with up to 16 bits wraps
/// to their size, and casts round to the floats of 8 and 4 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // The names are the types of ONNX.
#[non_exhaustive]
pub enum ElementType {
    F32,
    F64,
    F16,
    BF16,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F4E2M1,
    U2,
    I2,
    U4,
    I4,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    Bool,
    /// Strings. Graphs contain the index of each string in a list of the import; results of a model are `int64`.
    #[serde(rename = "string")]
    Text,
}

use ElementType::*;

/// Element types with their numbers in `TensorProto.DataType`.
const NUMBERS: [(ElementType, i32); 22] = [
    (F32, 1),
    (U8, 2),
    (I8, 3),
    (U16, 4),
    (I16, 5),
    (I32, 6),
    (I64, 7),
    (Bool, 9),
    (F16, 10),
    (F64, 11),
    (U32, 12),
    (U64, 13),
    (BF16, 16),
    (U4, 21),
    (I4, 22),
    (F8E4M3FN, 17),
    (F8E4M3FNUZ, 18),
    (F8E5M2, 19),
    (F8E5M2FNUZ, 20),
    (F4E2M1, 23),
    (U2, 25),
    (I2, 26),
];

impl ElementType {
    /// Returns the type with this number in `TensorProto.DataType`. For types that graphs do not support, the error
    /// contains a description of the type.
    pub(crate) fn from_number(number: i64) -> Result<Self, String> {
        let known = NUMBERS.iter().find(|(_, n)| i64::from(*n) == number);
        known.map(|(element, _)| *element).ok_or_else(|| match number {
            0 => "its element type is missing".into(),
            8 => "strings are not supported".into(),
            14 | 15 => "complex numbers are not supported".into(),
            24 => "floats of 8 bits without a mantissa are not supported".into(),
            _ => format!("{number} is not a known element type"),
        })
    }

    /// Returns the number of the type in `TensorProto.DataType`.
    pub(crate) fn number(self) -> i32 {
        NUMBERS.iter().find(|(e, _)| *e == self).map_or(0, |(_, n)| *n)
    }

    /// Returns the element type in a graph: booleans are `u32` 0 or 1, and integers keep their signedness.
    pub fn dtype(self) -> DType {
        match self {
            F32 | F64 | F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ | F4E2M1 => DType::F32,
            F16 => DType::F16,
            BF16 => DType::BF16,
            I2 | I4 | I8 | I16 | I32 | I64 | Text => DType::I32,
            U2 | U4 | U8 | U16 | U32 | U64 | Bool => DType::U32,
        }
    }

    /// Returns true for a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, F32 | F64 | F16 | BF16) || SmallFloat::of(self).is_some()
    }

    /// Returns true for a signed integer type.
    pub fn is_signed(self) -> bool {
        matches!(self, I2 | I4 | I8 | I16 | I32 | I64 | Text)
    }

    /// Returns the type of a model's result: strings are returned as `int64` indices.
    pub(crate) fn of_result(self) -> Self {
        if self == Text { I64 } else { self }
    }

    /// Returns the size of an element in a file, in bits.
    pub(crate) fn bits(self) -> usize {
        match self {
            U2 | I2 => 2,
            U4 | I4 | F4E2M1 => 4,
            U8 | I8 | Bool | F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ => 8,
            F16 | BF16 | U16 | I16 => 16,
            F32 | U32 | I32 | Text => 32,
            F64 | U64 | I64 => 64,
        }
    }

    /// Returns the smallest and largest integer of the type. For floats, these are the bounds of the integers that the type, and
    /// types of the same size, represent exactly.
    pub(crate) fn range(self) -> (i64, i64) {
        match self {
            U2 => (0, 3),
            I2 => (-2, 1),
            U4 => (0, 15),
            I4 => (-8, 7),
            U8 => (0, 255),
            I8 => (-128, 127),
            U16 => (0, 65535),
            I16 => (-32768, 32767),
            U32 => (0, i64::from(u32::MAX)),
            I32 | Text => (i64::from(i32::MIN), i64::from(i32::MAX)),
            U64 => (0, i64::MAX),
            I64 => (i64::MIN, i64::MAX),
            Bool => (0, 1),
            F32 | F64 | F16 | BF16 => (-256, 256),
            F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ | F4E2M1 => (-4, 4),
        }
    }

    /// Returns the smallest and largest integer of the type that its 32-bit type in a graph can represent; `None` for
    /// floats.
    pub(crate) fn graph_range(self) -> Option<(i64, i64)> {
        if self.is_float() {
            return None;
        }
        let (low, high) = self.range();
        Some(if self.is_signed() {
            (low.max(i32::MIN.into()), high.min(i32::MAX.into()))
        } else {
            (low, high.min(u32::MAX.into()))
        })
    }

    /// Wraps `value` to the bits of the type.
    pub(crate) fn wrap(self, value: i64) -> i64 {
        match self {
            U2 => value & 3,
            I2 => (value << 62) >> 62,
            U4 => value & 15,
            I4 => (value << 60) >> 60,
            U8 => value as u8 as i64,
            I8 => value as i8 as i64,
            U16 => value as u16 as i64,
            I16 => value as i16 as i64,
            U32 => value as u32 as i64,
            I32 => value as i32 as i64,
            Bool => (value != 0) as i64,
            _ => value,
        }
    }

    /// Returns the lower-case name, as in NumPy if NumPy has the type.
    pub fn name(self) -> &'static str {
        match self {
            F32 => "float32",
            F64 => "float64",
            F16 => "float16",
            BF16 => "bfloat16",
            F8E4M3FN => "float8e4m3fn",
            F8E4M3FNUZ => "float8e4m3fnuz",
            F8E5M2 => "float8e5m2",
            F8E5M2FNUZ => "float8e5m2fnuz",
            F4E2M1 => "float4e2m1",
            U2 => "uint2",
            I2 => "int2",
            U4 => "uint4",
            I4 => "int4",
            U8 => "uint8",
            I8 => "int8",
            U16 => "uint16",
            I16 => "int16",
            U32 => "uint32",
            I32 => "int32",
            U64 => "uint64",
            I64 => "int64",
            Bool => "bool",
            Text => "string",
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
