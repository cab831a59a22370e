//! The data of a constant, stored as little-endian bytes of its dtype.

use crate::dtype::DType;
use crate::storage::decode;

/// Elements of a constant; compared and hashed by bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConstantData {
    dtype: DType,
    len: usize,
    bytes: Vec<u8>,
}

impl ConstantData {
    /// Creates a constant from `f32` elements.
    pub fn from_f32(data: Vec<f32>) -> Self {
        let bytes = data.iter().flat_map(|v| v.to_le_bytes()).collect();
        ConstantData {
            dtype: DType::F32,
            len: data.len(),
            bytes,
        }
    }

    /// Creates a constant from `u32` elements.
    pub fn from_u32(data: Vec<u32>) -> Self {
        let bytes = data.iter().flat_map(|v| v.to_le_bytes()).collect();
        ConstantData {
            dtype: DType::U32,
            len: data.len(),
            bytes,
        }
    }

    /// Creates a constant from storage bytes, little-endian; `None` if they are not whole elements.
    pub fn from_bytes(dtype: DType, bytes: Vec<u8>) -> Option<Self> {
        let size = dtype.block().bytes;
        bytes.len().is_multiple_of(size).then(|| ConstantData {
            dtype,
            len: bytes.len() / size,
            bytes,
        })
    }

    /// Creates a constant of one element, rounded (floats) or saturated (integers) to the dtype.
    pub fn splat(dtype: DType, value: f64) -> Self {
        ConstantData {
            dtype,
            len: 1,
            bytes: crate::storage::scalar_bytes(dtype, value)[..dtype.block().bytes].to_vec(),
        }
    }

    /// Creates `len` elements with the same value, rounded like [`ConstantData::splat`].
    pub fn repeated(dtype: DType, value: f64, len: usize) -> Self {
        let one = ConstantData::splat(dtype, value);
        ConstantData {
            dtype,
            len,
            bytes: one.bytes.repeat(len),
        }
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the storage bytes, little-endian.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the first element; `None` if there is none.
    pub fn first(&self) -> Option<f64> {
        let bytes = self.bytes.get(..self.dtype.block().bytes)?;
        decode(self.dtype, bytes).first().copied()
    }

    /// Returns the elements as `f64`.
    pub fn to_f64(&self) -> Vec<f64> {
        decode(self.dtype, &self.bytes)
    }
}
