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
/// Plain types have one element per block; a block-quantised weight format has many (for example 32
/// elements in 34 bytes), so sizes must be computed with [`DType::storage_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Number of elements per block.
    pub elements: usize,
    /// Bytes per block.
    pub bytes: usize,
}

impl DType {
    /// All dtypes, in declaration order.
    pub const ALL: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::U32, DType::I32];

    /// Returns the type with this [`name`](DType::name).
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [DType::F32, DType::F16, DType::BF16, DType::U32, DType::I32];
        all.into_iter().find(|t| t.name() == name)
    }

    /// Returns the lower-case name, as printed in graphs and errors.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::U32 => "u32",
            DType::I32 => "i32",
        }
    }

    /// Returns the storage granule.
    pub fn block(self) -> Block {
        let bytes = match self {
            DType::F32 | DType::U32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
        };
        Block { elements: 1, bytes }
    }

    /// Returns the bytes that `elements` elements take, or `None` if that overflows `usize`.
    pub fn storage_bytes(self, elements: usize) -> Option<usize> {
        let block = self.block();
        elements.div_ceil(block.elements).checked_mul(block.bytes)
    }

    /// Returns `true` for floating-point types, through which gradients can flow.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Returns `true` for the two-byte floats, which are storage types.
    pub fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// Returns `true` for integer types.
    pub fn is_integer(self) -> bool {
        !self.is_float()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
