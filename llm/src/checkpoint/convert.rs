//! Stored tensors in the form that parameters of a session have.

use half::f16;
use meganeura_core::quantization::BlockFormat;

use super::Tensor;
use super::element::{Element, split_scale};

/// Rows that are moved together: their cache lines stay in the first-level cache.
const TOGETHER: usize = 32;

/// All numbers in `f32`; of a matrix, its transpose if asked for.
pub(crate) fn to_f32(tensor: &Tensor, transposed: bool, out: &mut Vec<f32>) {
    let [rows, width] = tensor.rows();
    out.clear();
    out.resize(rows * width, 0.0);
    if out.is_empty() {
        return;
    }
    if !transposed {
        for (row, out) in out.chunks_exact_mut(width.max(1)).enumerate() {
            tensor.read_row(row, out);
        }
        return;
    }
    let mut some = vec![0.0; TOGETHER.min(rows) * width];
    for first in (0..rows).step_by(TOGETHER) {
        let count = TOGETHER.min(rows - first);
        for (row, some) in some.chunks_exact_mut(width.max(1)).take(count).enumerate() {
            tensor.read_row(first + row, some);
        }
        for (column, out) in out.chunks_exact_mut(rows).enumerate() {
            let out = &mut out[first..first + count];
            out.iter_mut()
                .enumerate()
                .for_each(|(row, x)| *x = some[row * width + column]);
        }
    }
}

/// All numbers in binary16, as bytes. What is stored so is copied.
///
/// # Errors
/// The number of a row with a number that is too large.
pub(super) fn to_f16(tensor: &Tensor, out: &mut Vec<u8>) -> Result<(), usize> {
    let [rows, width] = tensor.rows();
    out.clear();
    let mut numbers = vec![0.0; width];
    for row in 0..rows {
        if tensor.element == Element::F16 {
            out.extend_from_slice(tensor.row(row));
            continue;
        }
        tensor.read_row(row, &mut numbers);
        if numbers.iter().any(|&x| x.is_finite() && f16::from_f32(x).is_infinite()) {
            return Err(row);
        }
        out.extend(numbers.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()));
    }
    Ok(())
}

/// Integers of blocks and their scales, as bytes. What is stored so is copied, and integers of four bits are integers of
/// eight, too.
///
/// # Errors
/// The number of a row that has no finite scale.
pub(super) fn to_blocks(
    tensor: &Tensor,
    format: BlockFormat,
    out: &mut Vec<u8>,
    scales: &mut Vec<u8>,
) -> Result<(), usize> {
    let [rows, width] = tensor.rows();
    out.clear();
    scales.clear();
    let (mut numbers, mut of_row) = (vec![0.0; width], Vec::new());
    for row in 0..rows {
        of_row.clear();
        match (tensor.element, format) {
            (Element::Blocks(own), _) if own == format => {
                for (scale, integers) in blocks(tensor, row) {
                    of_row.push(scale);
                    out.extend_from_slice(integers);
                }
            }
            (Element::Blocks(own), BlockFormat::Q8_0) => {
                for (scale, integers) in blocks(tensor, row) {
                    of_row.push(scale);
                    out.extend(own.integers(integers).map(i8::cast_unsigned));
                }
            }
            _ => {
                tensor.read_row(row, &mut numbers);
                format.quantize(&numbers, out, &mut of_row);
            }
        }
        if of_row.iter().any(|scale| !scale.is_finite()) {
            return Err(row);
        }
        scales.extend(of_row.iter().flat_map(|scale| scale.to_le_bytes()));
    }
    Ok(())
}

/// Scales and integers of a row that is stored in blocks.
fn blocks<'a>(tensor: &'a Tensor, row: usize) -> impl Iterator<Item = (f16, &'a [u8])> {
    let [_, size] = tensor.element.block();
    tensor.row(row).chunks_exact(size).map(split_scale)
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use meganeura_core::quantization::BLOCK;

    use super::*;

    fn tensor<'a>(element: Element, shape: &'a [usize], bytes: &'a [u8]) -> Tensor<'a> {
        Tensor {
            element,
            shape,
            bytes,
            heads: None,
        }
    }

    #[test]
    fn every_plain_type_in_rows_and_transposed() {
        let shape = [37, 70];
        let values: Vec<f32> = (0..37 * 70).map(|i| (i % 251) as f32 - 100.0).collect();
        let f16s: Vec<u8> = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        let mut out = vec![7.0; 3];
        for (element, bytes) in [
            (
                Element::F32,
                values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>(),
            ),
            (Element::F16, f16s.clone()),
            (
                Element::BF16,
                values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
            ),
        ] {
            let tensor = tensor(element, &shape, &bytes);
            to_f32(&tensor, false, &mut out);
            assert_eq!(out, values);
            to_f32(&tensor, true, &mut out);
            for r in 0..37 {
                for c in 0..70 {
                    assert_eq!(out[c * 37 + r], values[r * 70 + c]);
                }
            }
            let mut halves = Vec::new();
            to_f16(&tensor, &mut halves).expect("in range");
            assert_eq!(halves, f16s);
        }
    }

    #[test]
    fn rows_in_pairs_go_back_to_halves_of_heads() {
        // Two heads of six rows; a stored row has its number as its only element.
        let stored: Vec<u8> = (0..12).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let mut out = Vec::new();
        for shape in [&[12, 1][..], &[12]] {
            let tensor = Tensor {
                heads: Some(2),
                ..tensor(Element::F32, shape, &stored)
            };
            to_f32(&tensor, false, &mut out);
            assert_eq!(out, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0, 6.0, 8.0, 10.0, 7.0, 9.0, 11.0]);
        }
    }

    #[test]
    fn blocks_are_copied_or_made_and_have_finite_scales() {
        let values: Vec<f32> = (0..128).map(|i| ((i * 29 % 67) as f32 - 33.0) * 0.1).collect();
        let mut bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        for format in BlockFormat::ALL {
            let (mut integers, mut scales) = (Vec::new(), Vec::new());
            to_blocks(
                &tensor(Element::F32, &[2, 64], &bytes),
                format,
                &mut integers,
                &mut scales,
            )
            .expect("finite");
            // As a file has them.
            let blocks = scales.chunks(2).zip(integers.chunks(format.bytes()));
            let stored: Vec<u8> = blocks.flat_map(|(s, q)| [s, q].concat()).collect();
            let (mut copied, mut of_copy) = (Vec::new(), Vec::new());
            let element = Element::Blocks(format);
            assert_eq!(element.bytes(128), Some(stored.len()));
            let stored = tensor(element, &[2, 64], &stored);
            to_blocks(&stored, format, &mut copied, &mut of_copy).expect("finite");
            assert_eq!((&copied, &of_copy), (&integers, &scales));
            let mut back = Vec::new();
            to_f32(&stored, false, &mut back);
            assert!(back.iter().all(|x| x.is_finite()));
            let worst = back.iter().zip(&values).fold(0.0f32, |a, (x, y)| a.max((x - y).abs()));
            assert!(worst < if format == BlockFormat::Q8_0 { 0.02 } else { 0.5 }, "{worst}");
            // No bits are lost on the way to more of them.
            to_blocks(&stored, BlockFormat::Q8_0, &mut copied, &mut of_copy).expect("finite");
            let widened = (of_copy.chunks(2).zip(copied.chunks(BLOCK))).flat_map(|(s, q)| [s, q].concat());
            let widened: Vec<u8> = widened.collect();
            let mut wide = Vec::new();
            to_f32(
                &tensor(Element::Blocks(BlockFormat::Q8_0), &[2, 64], &widened),
                false,
                &mut wide,
            );
            assert_eq!(wide, back);
        }
        bytes[4 * 70..4 * 71].copy_from_slice(&f32::NAN.to_le_bytes());
        let broken = tensor(Element::F32, &[2, 64], &bytes);
        let outcome = to_blocks(&broken, BlockFormat::Q8_0, &mut Vec::new(), &mut Vec::new());
        assert_eq!(outcome, Err(1));
    }
}
