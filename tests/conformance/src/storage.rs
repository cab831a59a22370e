//! Conversion between the stored bytes of every element type and `f64`.

use half::{bf16, f16};
use meganeura_core::dtype::DType;
use meganeura_core::error::{Error, Result};

/// Encodes numbers, little-endian: floats round to nearest even, integers saturate.
pub(crate) fn encode(dtype: DType, values: &[f64]) -> Result<Vec<u8>> {
    fn each<const N: usize>(values: &[f64], f: impl Fn(f64) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|&v| f(v)).collect()
    }
    Ok(match dtype {
        DType::F32 => each(values, |v| (v as f32).to_le_bytes()),
        DType::F16 => each(values, |v| f16::from_f64(v).to_le_bytes()),
        DType::BF16 => each(values, |v| bf16::from_f64(v).to_le_bytes()),
        DType::U32 => each(values, |v| (v as u32).to_le_bytes()),
        DType::I32 => each(values, |v| (v as i32).to_le_bytes()),
        other => return Err(unknown(other)),
    })
}

/// Decodes storage bytes.
pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> Result<Vec<f64>> {
    let quads = || bytes.chunks_exact(4).map(|c| [c[0], c[1], c[2], c[3]]);
    let pairs = || bytes.chunks_exact(2).map(|c| [c[0], c[1]]);
    Ok(match dtype {
        DType::F32 => quads().map(|b| f32::from_le_bytes(b).into()).collect(),
        DType::F16 => pairs().map(|b| f16::from_le_bytes(b).into()).collect(),
        DType::BF16 => pairs().map(|b| bf16::from_le_bytes(b).into()).collect(),
        DType::U32 => quads().map(|b| u32::from_le_bytes(b).into()).collect(),
        DType::I32 => quads().map(|b| i32::from_le_bytes(b).into()).collect(),
        other => return Err(unknown(other)),
    })
}

/// Rounds numbers to the precision of a type, so that oracle and device start from the same numbers.
pub(crate) fn quantise(dtype: DType, values: &[f64]) -> Result<Vec<f64>> {
    decode(dtype, &encode(dtype, values)?)
}

/// Converts numbers to `f32`.
pub(crate) fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&v| v as f32).collect()
}

/// Converts numbers to `f64`.
pub(crate) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| v.into()).collect()
}

fn unknown(dtype: DType) -> Error {
    Error::backend(
        "conformance",
        format!("the suite does not know the element type {dtype}"),
    )
}
