//! Conversion of numbers to the storage bytes of a dtype, and back.

use half::{bf16, f16};

use crate::dtype::DType;

/// Encodes a scalar in the storage of its dtype, without allocation; two-byte types use the first half.
pub(crate) fn scalar_bytes(dtype: DType, value: f64) -> [u8; 4] {
    let pair = |b: [u8; 2]| [b[0], b[1], 0, 0];
    match dtype {
        DType::F32 => (value as f32).to_le_bytes(),
        DType::U32 => (value as u32).to_le_bytes(),
        DType::I32 => (value as i32).to_le_bytes(),
        DType::F16 => pair(f16::from_f64(value).to_le_bytes()),
        DType::BF16 => pair(bf16::from_f64(value).to_le_bytes()),
    }
}

/// Decodes storage bytes to numbers.
pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let quads = || bytes.chunks_exact(4).map(|c| [c[0], c[1], c[2], c[3]]);
    let pairs = || bytes.chunks_exact(2).map(|c| [c[0], c[1]]);
    match dtype {
        DType::F32 => quads().map(|b| f32::from_le_bytes(b).into()).collect(),
        DType::U32 => quads().map(|b| u32::from_le_bytes(b).into()).collect(),
        DType::I32 => quads().map(|b| i32::from_le_bytes(b).into()).collect(),
        DType::F16 => pairs().map(|b| f16::from_le_bytes(b).into()).collect(),
        DType::BF16 => pairs().map(|b| bf16::from_le_bytes(b).into()).collect(),
    }
}
