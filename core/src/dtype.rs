//! Element types and the number of bytes that they take in storage.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Element type of a tensor.
///
/// `F16` and `BF16` are storage types: kernels may widen them to `f32` for arithmetic. Comparisons
/// yield `U32` holding 0 or 1, since GPU storage buffers have no boolean type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// Unsigned 32-bit integer: token ids, indices, masks.
    U32,
    /// Signed 32-bit integer, two's complement.
    I32,
}

/// Storage granule of a dtype: `elements` consecutive elements take `bytes` bytes.
///
/// Plain types have one element a block; a block-quantised weight format has many (for example 32
/// elements in 34 bytes), which is why sizes are always asked of [`DType::storage_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Elements a block.
    pub elements: usize,
    /// Bytes a block.
    pub bytes: usize,
}

impl DType {
    /// All dtypes, in declaration order.
    pub const ALL: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::U32, DType::I32];

    /// The type of that [`name`](DType::name).
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [DType::F32, DType::F16, DType::BF16, DType::U32, DType::I32];
        all.into_iter().find(|t| t.name() == name)
    }

    /// Lower-case name, as printed in graphs and errors.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::U32 => "u32",
            DType::I32 => "i32",
        }
    }

    /// Storage granule.
    pub fn block(self) -> Block {
        let bytes = match self {
            DType::F32 | DType::U32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
        };
        Block { elements: 1, bytes }
    }

    /// Bytes that `elements` elements take, or `None` if that overflows `usize`.
    pub fn storage_bytes(self, elements: usize) -> Option<usize> {
        let block = self.block();
        elements.div_ceil(block.elements).checked_mul(block.bytes)
    }

    /// Whether this is a floating-point type, so that gradients can flow through it.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Whether it is one of the floats of two bytes, which are for storage.
    pub fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// Whether this is an integer type.
    pub fn is_integer(self) -> bool {
        !self.is_float()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
