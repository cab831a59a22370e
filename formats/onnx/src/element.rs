//! Element types of ONNX, and what they are in a graph.

use std::fmt;

use meganeura_core::DType;
use serde::Serialize;

/// Element type of a tensor of a model.
///
/// Graphs have 32-bit integers and no `f64`: [`ElementType::dtype`] says what becomes of each. Data that do not fit are
/// an error when they are given ([`crate::Runner`]), and arithmetic of the types with 8 and 16 bits wraps as theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // Each is what its name says.
#[non_exhaustive]
pub enum ElementType {
    F32,
    F64,
    F16,
    BF16,
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
}

use ElementType::*;

/// Numbers of `TensorProto.DataType`.
const NUMBERS: [(ElementType, i32); 15] = [
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
];

impl ElementType {
    /// The type with that number in `TensorProto.DataType`; an error that names those which no graph has.
    pub(crate) fn from_number(number: i64) -> Result<Self, String> {
        let known = NUMBERS.iter().find(|(_, n)| i64::from(*n) == number);
        known.map(|(element, _)| *element).ok_or_else(|| match number {
            0 => "it has no element type".into(),
            8 => "strings are not supported".into(),
            14 | 15 => "complex numbers are not supported".into(),
            17..=20 | 23 | 24 => "floats of 8 and 4 bits are not supported".into(),
            25 | 26 => "integers of 2 bits are not supported".into(),
            _ => format!("{number} is not an element type"),
        })
    }

    /// Its number in `TensorProto.DataType`.
    pub(crate) fn number(self) -> i32 {
        NUMBERS.iter().find(|(e, _)| *e == self).map_or(0, |(_, n)| *n)
    }

    /// Element type in a graph: booleans are `u32` 0 or 1, and integers keep their sign.
    pub fn dtype(self) -> DType {
        match self {
            F32 | F64 => DType::F32,
            F16 => DType::F16,
            BF16 => DType::BF16,
            I4 | I8 | I16 | I32 | I64 => DType::I32,
            U4 | U8 | U16 | U32 | U64 | Bool => DType::U32,
        }
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, F32 | F64 | F16 | BF16)
    }

    /// Whether it is an integer type with a sign.
    pub fn is_signed(self) -> bool {
        matches!(self, I4 | I8 | I16 | I32 | I64)
    }

    /// Bits of an element in a file.
    pub(crate) fn bits(self) -> usize {
        match self {
            U4 | I4 => 4,
            U8 | I8 | Bool => 8,
            F16 | BF16 | U16 | I16 => 16,
            F32 | U32 | I32 => 32,
            F64 | U64 | I64 => 64,
        }
    }

    /// Smallest and largest integer of the type; of floats those that every float type here holds exactly.
    pub(crate) fn range(self) -> (i64, i64) {
        match self {
            U4 => (0, 15),
            I4 => (-8, 7),
            U8 => (0, 255),
            I8 => (-128, 127),
            U16 => (0, 65535),
            I16 => (-32768, 32767),
            U32 => (0, i64::from(u32::MAX)),
            I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
            U64 => (0, i64::MAX),
            I64 => (i64::MIN, i64::MAX),
            Bool => (0, 1),
            F32 | F64 | F16 | BF16 => (-256, 256),
        }
    }

    /// `value` as arithmetic of the type leaves it: wrapped to its bits.
    pub(crate) fn wrap(self, value: i64) -> i64 {
        match self {
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

    /// Lower-case name, as in NumPy where NumPy has the type.
    pub fn name(self) -> &'static str {
        match self {
            F32 => "float32",
            F64 => "float64",
            F16 => "float16",
            BF16 => "bfloat16",
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
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
