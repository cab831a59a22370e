//! Conversion of stored tensors to the form of a session's parameters, on all processors.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::f16;
use half::slice::HalfFloatSliceExt;
use meganeura_core::parallel::for_each_share;
use meganeura_core::quantization::{BLOCK, BlockFormat};

use super::blocks::each;
use super::element::Element;
use super::shard::Tensor;

/// Number of rows that are transposed together, so that their cache lines stay in the first-level cache.
const ROWS_AT_ONCE: usize = 32;
/// Minimum number of elements of a thread's share of the work.
const SHARE: usize = 64 * 1024;

/// Divides the items `0..count`, of `numbers` elements each, into shares for threads; shares begin at multiples of
/// `step`.
fn shares(count: usize, numbers: usize, step: usize) -> Vec<Range<usize>> {
    let len = (SHARE / numbers.max(1)).max(1).next_multiple_of(step);
    let starts = (0..count).step_by(len);
    starts.map(|start| start..count.min(start + len)).collect()
}

/// Divides memory of `width` elements per item among the shares.
fn cut<'a, T>(mut memory: &'a mut [T], shares: &[Range<usize>], width: usize) -> Vec<&'a mut [T]> {
    let mut parts = Vec::with_capacity(shares.len());
    for share in shares {
        let (part, rest) = memory.split_at_mut(share.len() * width);
        parts.push(part);
        memory = rest;
    }
    parts
}

/// Converts all numbers to `f32`; a matrix is transposed if requested. `out` has the number of elements of the tensor.
pub(crate) fn to_f32(tensor: &Tensor, transposed: bool, out: &mut [f32]) {
    let [rows, width] = tensor.rows();
    if out.is_empty() {
        return;
    }
    if !transposed {
        let shares = shares(rows, width, 1);
        let parts = cut(out, &shares, width);
        for_each_share(shares.into_iter().zip(parts), |(rows, out)| {
            for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
                tensor.read_row(row, out);
            }
        });
        return;
    }
    let [together, _] = tensor.element.block();
    let shares = shares(width, rows, together);
    let parts = cut(out, &shares, rows);
    for_each_share(shares.into_iter().zip(parts), |(columns, out)| {
        transpose(tensor, columns, out);
    });
}

/// Writes some columns of a matrix as rows; the columns are whole blocks of numbers.
fn transpose(tensor: &Tensor, columns: Range<usize>, out: &mut [f32]) {
    let [rows, _] = tensor.rows();
    // Rows at a distance of a power of two would share few sets of the cache.
    let pitch = columns.len().next_multiple_of(32) + 16;
    let mut some = vec![0.0; ROWS_AT_ONCE.min(rows) * pitch];
    for first in (0..rows).step_by(ROWS_AT_ONCE) {
        let count = ROWS_AT_ONCE.min(rows - first);
        for (row, some) in some.chunks_exact_mut(pitch).take(count).enumerate() {
            tensor.read_part(first + row, columns.clone(), &mut some[..columns.len()]);
        }
        for (column, out) in out.chunks_exact_mut(rows).enumerate() {
            let numbers = some[column..].iter().step_by(pitch);
            for (x, &number) in out[first..first + count].iter_mut().zip(numbers) {
                *x = number;
            }
        }
    }
}

/// Converts all numbers to binary16, as bytes. Numbers that are stored in this type are copied. `out` has 2 bytes for each
/// element of the tensor.
///
/// # Errors
/// The index of a row with a number that is too large for `f16`.
pub(crate) fn to_f16(tensor: &Tensor, out: &mut [u8]) -> Result<(), usize> {
    let [rows, width] = tensor.rows();
    let size = width * size_of::<f16>();
    if out.is_empty() {
        return Ok(());
    }
    let broken = AtomicUsize::new(usize::MAX);
    let shares = shares(rows, width, 1);
    let parts = cut(out, &shares, size);
    for_each_share(shares.into_iter().zip(parts), |(rows, out)| {
        let (mut numbers, mut halves) = (vec![0.0; width], vec![f16::ZERO; width]);
        for (row, out) in rows.zip(out.chunks_exact_mut(size)) {
            if tensor.element == Element::F16 {
                out.copy_from_slice(&tensor.row(row));
                continue;
            }
            tensor.read_row(row, &mut numbers);
            // Slices are converted several numbers at a time.
            halves.convert_from_f32_slice(&numbers);
            let mut pairs = numbers.iter().zip(&halves);
            if pairs.any(|(x, half)| x.is_finite() && half.is_infinite()) {
                broken.fetch_min(row, Ordering::Relaxed);
                return;
            }
            let (stored, _) = out.as_chunks_mut::<2>();
            for (to, half) in stored.iter_mut().zip(&halves) {
                *to = half.to_le_bytes();
            }
        }
    });
    first_broken(&broken)
}

/// Returns the index of the first row that cannot be converted as an error, if there is one.
fn first_broken(broken: &AtomicUsize) -> Result<(), usize> {
    match broken.load(Ordering::Relaxed) {
        usize::MAX => Ok(()),
        row => Err(row),
    }
}

/// Returns the numbers of bytes of the integers and of the scales of a tensor in blocks.
pub(crate) fn blocks_bytes(tensor: &Tensor, format: BlockFormat) -> [usize; 2] {
    let [rows, width] = tensor.rows();
    let blocks = rows * (width / BLOCK);
    [blocks * format.bytes(), blocks * format.scales() * size_of::<f16>()]
}

/// Converts a tensor to blocks: their integers and their scales, as bytes. Tensors that are stored with the same
/// integers are not quantised again, and integers of four or five bits are also valid integers of eight. `out` and `scales`
/// have the sizes of [`blocks_bytes`].
///
/// # Errors
/// The index of a row with a scale that is not finite in `f16`.
pub(crate) fn to_blocks(tensor: &Tensor, format: BlockFormat, out: &mut [u8], scales: &mut [u8]) -> Result<(), usize> {
    let [rows, width] = tensor.rows();
    let blocks = width / BLOCK;
    let scales_size = blocks * format.scales() * size_of::<f16>();
    if out.is_empty() {
        return Ok(());
    }
    let broken = AtomicUsize::new(usize::MAX);
    let shares = shares(rows, width, 1);
    let integers = cut(out, &shares, blocks * format.bytes());
    let scales = cut(scales, &shares, scales_size);
    let parts = shares.into_iter().zip(integers.into_iter().zip(scales));
    for_each_share(
        parts,
        |(rows, (mut out, mut scales)): (Range<usize>, (&mut [u8], &mut [u8]))| {
            // The usual case, and the fastest: blocks of the session's format.
            let split = match (tensor.element, format) {
                (Element::Blocks(BlockFormat::Q4_0), BlockFormat::Q4_0) => Some(split_blocks::<16> as Split),
                (Element::Blocks(BlockFormat::Q8_0), BlockFormat::Q8_0) => Some(split_blocks::<32> as Split),
                _ => None,
            };
            if let Some(split) = split {
                if let Err(row) = split(tensor, rows, out, scales) {
                    broken.fetch_min(row, Ordering::Relaxed);
                }
                return;
            }
            let mut memory = RowMemory::default();
            for row in rows {
                memory.convert(tensor, row, format);
                if memory.scales.iter().any(|scale| !scale.is_finite()) {
                    broken.fetch_min(row, Ordering::Relaxed);
                    return;
                }
                let bytes: Vec<u8> = memory.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
                (out, scales) = (put(out, &memory.integers), put(scales, &bytes));
            }
        },
    );
    first_broken(&broken)
}

/// A function that copies blocks.
type Split = fn(&Tensor, Range<usize>, &mut [u8], &mut [u8]) -> Result<(), usize>;

/// Copies the blocks of rows: `SIZE` bytes of integers of each block to `out`, and its scale to `scales`.
///
/// # Errors
/// The index of a row with a scale that is not finite.
fn split_blocks<const SIZE: usize>(
    tensor: &Tensor,
    rows: Range<usize>,
    out: &mut [u8],
    scales: &mut [u8],
) -> Result<(), usize> {
    const SCALE: usize = size_of::<f16>();
    let (out, scales) = (out.as_chunks_mut::<SIZE>().0, scales.as_chunks_mut::<SCALE>().0);
    let mut to = out.iter_mut().zip(scales);
    for row in rows {
        let stored = tensor.row(row);
        let blocks = stored.chunks_exact(SCALE + SIZE);
        for (block, (integers, scale)) in blocks.zip(to.by_ref()) {
            let (own, rest) = block.split_at(SCALE);
            integers.copy_from_slice(rest);
            scale.copy_from_slice(own);
            if !f16::from_le_bytes(*scale).is_finite() {
                return Err(row);
            }
        }
    }
    Ok(())
}

/// Writes bytes to the beginning of memory; returns the rest.
fn put<'a>(memory: &'a mut [u8], bytes: &[u8]) -> &'a mut [u8] {
    let (to, rest) = memory.split_at_mut(bytes.len());
    to.copy_from_slice(bytes);
    rest
}

/// Buffers for a row that is being quantised.
#[derive(Default)]
struct RowMemory {
    numbers: Vec<f32>,
    integers: Vec<u8>,
    scales: Vec<f16>,
}

impl RowMemory {
    fn convert(&mut self, tensor: &Tensor, row: usize, format: BlockFormat) {
        self.integers.clear();
        self.scales.clear();
        match (tensor.element, format) {
            (Element::Blocks(own @ (BlockFormat::Q4_0 | BlockFormat::Q5_0)), BlockFormat::Q8_0) => {
                each(tensor.element, &tensor.row(row), |block| {
                    self.scales.push(f16::from_f32(block.scales[0]));
                    self.integers
                        .extend(block.integers.map(|q| q.wrapping_sub(own.offset())));
                });
            }
            (Element::Mxfp4, BlockFormat::Q8_0) => each(tensor.element, &tensor.row(row), |block| {
                // A power of two outside of the range of `f16`, in blocks of negligible numbers.
                match f16::from_f32(block.scales[0]) {
                    scale if scale.to_f32() == block.scales[0] || scale.is_infinite() => {
                        self.scales.push(scale);
                        format.pack(&block.integers, &mut self.integers);
                    }
                    _ => format.quantize(&block.numbers(format), &mut self.integers, &mut self.scales),
                }
            }),
            (element, _) if element.format() == Some(format) => {
                each(element, &tensor.row(row), |block| {
                    let scales = block.scales.iter().take(format.scales());
                    self.scales.extend(scales.map(|&scale| f16::from_f32(scale)));
                    format.pack(&block.integers, &mut self.integers);
                });
            }
            _ => {
                let [_, width] = tensor.rows();
                self.numbers.resize(width, 0.0);
                tensor.read_row(row, &mut self.numbers);
                format.quantize(&self.numbers, &mut self.integers, &mut self.scales);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::super::arrangement::Arrangement;
    use super::*;

    fn tensor<'a>(element: Element, shape: &'a [usize], bytes: &'a [u8]) -> Tensor<'a> {
        Tensor {
            element,
            shape,
            bytes,
            arrangement: &Arrangement::Rows,
            scales: &[],
        }
    }

    /// Memory with other contents, as of an earlier tensor.
    fn memory(tensor: &Tensor, format: BlockFormat) -> [Vec<u8>; 2] {
        blocks_bytes(tensor, format).map(|bytes| vec![7; bytes])
    }

    #[test]
    fn every_plain_type_in_rows_and_transposed() {
        let shape = [37, 70];
        let values: Vec<f32> = (0..37 * 70).map(|i| (i % 251) as f32 - 100.0).collect();
        let f16s: Vec<u8> = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        let mut out = vec![7.0; 37 * 70];
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
            let mut halves = vec![7; 2 * out.len()];
            to_f16(&tensor, &mut halves).expect("in range");
            assert_eq!(halves, f16s);
        }
    }

    #[test]
    fn rows_in_pairs_go_back_to_halves_of_heads() {
        // Two heads of six rows; a stored row has its number as its only element.
        let stored: Vec<u8> = (0..12).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let mut out = vec![7.0; 12];
        for shape in [&[12, 1][..], &[12]] {
            let tensor = Tensor {
                arrangement: &Arrangement::Pairs(2),
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
        for format in [BlockFormat::Q8_0, BlockFormat::Q4_0] {
            let [mut integers, mut scales] = memory(&tensor(Element::F32, &[2, 64], &bytes), format);
            to_blocks(
                &tensor(Element::F32, &[2, 64], &bytes),
                format,
                &mut integers,
                &mut scales,
            )
            .expect("finite");
            // In the layout of a file.
            let blocks = scales.chunks(2).zip(integers.chunks(format.bytes()));
            let stored: Vec<u8> = blocks.flat_map(|(s, q)| [s, q].concat()).collect();
            let [mut copied, mut of_copy] = [vec![7; integers.len()], vec![7; scales.len()]];
            let element = Element::Blocks(format);
            assert_eq!(element.bytes(128), Some(stored.len()));
            let stored = tensor(element, &[2, 64], &stored);
            to_blocks(&stored, format, &mut copied, &mut of_copy).expect("finite");
            assert_eq!((&copied, &of_copy), (&integers, &scales));
            let mut back = vec![7.0; 128];
            to_f32(&stored, false, &mut back);
            assert!(back.iter().all(|x| x.is_finite()));
            let worst = back.iter().zip(&values).fold(0.0f32, |a, (x, y)| a.max((x - y).abs()));
            let bound = if format == BlockFormat::Q8_0 { 0.02 } else { 0.5 };
            assert!(worst < bound, "{format:?}: {worst}");
            // Conversion to more bits loses none.
            let [mut copied, mut of_copy] = memory(&stored, BlockFormat::Q8_0);
            to_blocks(&stored, BlockFormat::Q8_0, &mut copied, &mut of_copy).expect("finite");
            let widened = (of_copy.chunks(2).zip(copied.chunks(BLOCK))).flat_map(|(s, q)| [s, q].concat());
            let widened: Vec<u8> = widened.collect();
            let mut wide = vec![7.0; 128];
            to_f32(
                &tensor(Element::Blocks(BlockFormat::Q8_0), &[2, 64], &widened),
                false,
                &mut wide,
            );
            assert_eq!(wide, back);
        }
        bytes[4 * 70..4 * 71].copy_from_slice(&f32::NAN.to_le_bytes());
        let broken = tensor(Element::F32, &[2, 64], &bytes);
        let [mut integers, mut scales] = memory(&broken, BlockFormat::Q8_0);
        let outcome = to_blocks(&broken, BlockFormat::Q8_0, &mut integers, &mut scales);
        assert_eq!(outcome, Err(1));
    }
}
