//! Stored numbers as `f32`, in rows or transposed.

use half::{bf16, f16};
use safetensors::tensor::Dtype;

/// Rows and columns that are moved together: their cache lines stay in the first-level cache.
const BLOCK: usize = 32;

/// Whether numbers of this type can be read.
pub(crate) fn is_known(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// Converts storage of a type that is known into `out`. A matrix that is to have `[rows, columns]` and is stored as
/// `[columns, rows]` is transposed.
pub(crate) fn to_f32(dtype: Dtype, bytes: &[u8], transposed: Option<[usize; 2]>, out: &mut Vec<f32>) {
    match dtype {
        Dtype::F32 => convert(bytes, f32::from_le_bytes, transposed, out),
        Dtype::F16 => convert(bytes, |b| f16::from_le_bytes(b).to_f32(), transposed, out),
        Dtype::BF16 => convert(bytes, |b| bf16::from_le_bytes(b).to_f32(), transposed, out),
        _ => out.clear(),
    }
}

fn convert<const N: usize>(
    bytes: &[u8],
    read: impl Fn([u8; N]) -> f32,
    transposed: Option<[usize; 2]>,
    out: &mut Vec<f32>,
) {
    let (stored, _) = bytes.as_chunks::<N>();
    out.clear();
    let Some([rows, columns]) = transposed else {
        out.extend(stored.iter().map(|&b| read(b)));
        return;
    };
    out.resize(rows * columns, 0.0);
    for row in (0..rows).step_by(BLOCK) {
        let last_row = (row + BLOCK).min(rows);
        for column in (0..columns).step_by(BLOCK) {
            for c in column..(column + BLOCK).min(columns) {
                let from = &stored[c * rows + row..c * rows + last_row];
                for (r, &b) in (row..last_row).zip(from) {
                    out[r * columns + c] = read(b);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_in_rows_and_transposed() {
        let (rows, columns) = (37, 70);
        let values: Vec<f32> = (0..rows * columns).map(|i| (i % 251) as f32 - 100.0).collect();
        let mut out = vec![7.0; 3];
        for (dtype, bytes) in [
            (
                Dtype::F32,
                values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>(),
            ),
            (
                Dtype::F16,
                values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
            ),
            (
                Dtype::BF16,
                values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
            ),
        ] {
            assert!(is_known(dtype));
            to_f32(dtype, &bytes, None, &mut out);
            assert_eq!(out, values);
            // Stored as [rows, columns], wanted as [columns, rows].
            to_f32(dtype, &bytes, Some([columns, rows]), &mut out);
            for r in 0..rows {
                for c in 0..columns {
                    assert_eq!(out[c * rows + r], values[r * columns + c]);
                }
            }
        }
        assert!(!is_known(Dtype::F64));
    }
}
