//! Orders of the numbers of a tensor in a file, and its rows.

use std::borrow::Cow;
use std::ops::Range;

use meganeura_core::quantization::BLOCK;

use super::element::Element;
use super::shard::Tensor;

/// Order of a tensor's numbers in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Arrangement {
    /// Row by row.
    #[default]
    Rows,
    /// The rows of this number of heads, of which rotary embeddings (RoPE) rotate pairs that are adjacent in the file. Row `i` of
    /// the first half of a head is stored as its row `2 i`, row `i` of the second half as `2 i + 1`.
    Pairs(usize),
    /// Every `step`-th number of longer rows, from number `first` on.
    Every { first: usize, step: usize },
    /// Transposed matrices: each row is a column of a larger matrix in the file. Columns begin at `first` and are `step` apart.
    Columns { first: usize, step: usize },
    /// Blocks of MXFP4 whose scales are a separate range of the file (checkpoints of gpt-oss). Rows belong to a larger matrix, begin at
    /// row `first`, and are `step` apart. A byte contains two adjacent numbers, the first one in its lower half.
    SplitMxfp4 {
        first: usize,
        step: usize,
        scales: Range<usize>,
    },
}

impl Arrangement {
    /// Returns the numbers of bytes of a tensor with `count` numbers, and of its separate scales; `None` for a number that
    /// is too large, or not a multiple of the block size.
    pub(super) fn stored_sizes(&self, element: Element, count: usize) -> Option<[usize; 2]> {
        match *self {
            Arrangement::Rows | Arrangement::Pairs(_) => Some([element.bytes(count)?, 0]),
            Arrangement::Every { step, .. } | Arrangement::Columns { step, .. } => {
                Some([element.bytes(count.checked_mul(step)?)?, 0])
            }
            Arrangement::SplitMxfp4 { step, .. } => {
                let all = count.checked_mul(step)?;
                all.is_multiple_of(BLOCK).then_some([all / 2, all / BLOCK])
            }
        }
    }
}

/// Returns the bytes of a row in the layout of its element type.
pub(super) fn row<'a>(tensor: &Tensor<'a>, row: usize) -> Cow<'a, [u8]> {
    let [rows, width] = tensor.rows();
    let size = tensor.element.bytes(width).unwrap_or(0);
    // Rows of one matrix; a tensor of several matrices has the rows of all of them.
    let of_matrix = match *tensor.shape {
        [.., rows, _] => rows.max(1),
        _ => rows.max(1),
    };
    let (matrix, at) = (row / of_matrix, row % of_matrix);
    match *tensor.arrangement {
        Arrangement::Rows => whole(tensor.bytes, row, size),
        Arrangement::Pairs(heads) => {
            let stored = match rows.checked_div(heads) {
                Some(of_head) if of_head > 1 => {
                    let (head, at, half) = (row / of_head, row % of_head, of_head / 2);
                    head * of_head + at % half * 2 + at / half
                }
                _ => row,
            };
            whole(tensor.bytes, stored, size)
        }
        Arrangement::Every { first, step } => gathered(tensor, row * width * step + first, step),
        Arrangement::Columns { first, step } => {
            let columns = of_matrix * step;
            gathered(tensor, matrix * width * columns + first + at * step, columns)
        }
        Arrangement::SplitMxfp4 { first, step, .. } => {
            let stored = matrix * of_matrix * step + first + at * step;
            let blocks = width / BLOCK;
            let halves = whole(tensor.bytes, stored, blocks * BLOCK / 2);
            let scales = whole(tensor.scales, stored, blocks);
            let (blocks, _) = halves.as_chunks::<{ BLOCK / 2 }>();
            let all = blocks.iter().zip(scales.iter());
            all.flat_map(|(block, &scale)| std::iter::once(scale).chain(in_halves(block)))
                .collect()
        }
    }
}

fn whole(bytes: &[u8], row: usize, size: usize) -> Cow<'_, [u8]> {
    Cow::Borrowed(bytes.get(row * size..(row + 1) * size).unwrap_or_default())
}

/// Returns the numbers of a row that are `step` apart in the file, from number `first` on.
fn gathered<'a>(tensor: &Tensor<'a>, first: usize, step: usize) -> Cow<'a, [u8]> {
    let [_, width] = tensor.rows();
    let size = tensor.element.bytes(1).unwrap_or(0);
    let mut row = Vec::with_capacity(width * size);
    for number in 0..width {
        let at = (first + number * step) * size;
        row.extend_from_slice(tensor.bytes.get(at..at + size).unwrap_or_default());
    }
    Cow::Owned(row)
}

/// Converts 32 numbers of 4 bits from pairs of adjacent ones to GGUF's order: the first half of the block in the lower halves of
/// the bytes, and the second half in the upper ones.
fn in_halves(pairs: &[u8; BLOCK / 2]) -> [u8; BLOCK / 2] {
    let number = |i: usize| pairs[i / 2] >> (4 * (i % 2)) & 15;
    std::array::from_fn(|i| number(i) | (number(i + BLOCK / 2) << 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposed_and_alternating_rows() {
        // Two matrices of 3 inputs and 4 columns, which alternate between two tensors of 2 outputs.
        let numbers: Vec<u8> = (0..24).flat_map(|n| (n as f32).to_le_bytes()).collect();
        let tensor = |shape: &'static [usize], arrangement| Tensor {
            element: Element::F32,
            shape,
            bytes: &numbers,
            arrangement,
            scales: &[],
        };
        let read = |tensor: &Tensor, row| {
            let [_, width] = tensor.rows();
            let mut out = vec![0.0; width];
            tensor.read_row(row, &mut out);
            out
        };
        let second = Arrangement::Columns { first: 1, step: 2 };
        let matrices = tensor(&[2, 2, 3], &second);
        assert_eq!(second.stored_sizes(Element::F32, 12), Some([96, 0]));
        let expected = [
            [1.0, 5.0, 9.0],
            [3.0, 7.0, 11.0],
            [13.0, 17.0, 21.0],
            [15.0, 19.0, 23.0],
        ];
        for (row, expected) in expected.iter().enumerate() {
            assert_eq!(read(&matrices, row), expected);
        }
        let every = Arrangement::Every { first: 1, step: 2 };
        let vectors = tensor(&[2, 6], &every);
        assert_eq!(read(&vectors, 1), [13.0, 15.0, 17.0, 19.0, 21.0, 23.0]);
    }

    #[test]
    fn mxfp4_without_scales() {
        // Rows of one block: number `i` of row `r` has the index `(i + r) % 16`.
        let pairs = |row: usize| {
            let number = move |i: usize| ((i + row) % 16) as u8;
            (0..16).map(move |i| number(2 * i) | (number(2 * i + 1) << 4))
        };
        let bytes: Vec<u8> = (0..4).flat_map(pairs).collect();
        let arrangement = Arrangement::SplitMxfp4 {
            first: 1,
            step: 2,
            scales: 0..4,
        };
        let tensor = Tensor {
            element: Element::Mxfp4,
            shape: &[1, 2, 32],
            bytes: &bytes,
            arrangement: &arrangement,
            scales: &[127, 128, 127, 126],
        };
        assert_eq!(arrangement.stored_sizes(Element::Mxfp4, 64), Some([64, 4]));
        let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for (row, (stored, scale)) in [(1, 2.0), (3, 0.5)].into_iter().enumerate() {
            let mut out = [0.0; 32];
            tensor.read_row(row, &mut out);
            for (i, found) in out.into_iter().enumerate() {
                let index = (i + stored) % 16;
                let expected = if index < 8 { values[index] } else { -values[index - 8] };
                assert_eq!(found, scale * expected, "row {row}, number {i}");
            }
        }
    }
}
