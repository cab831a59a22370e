//! Numbers as files store them, row by row.

use half::{bf16, f16};
use meganeura_core::quantization::{BLOCK, BlockFormat};
use safetensors::tensor::Dtype;

/// Numbers of a super-block of the K formats.
const SUPER: usize = 256;

/// How a file stores numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    F16,
    BF16,
    /// Blocks with an `f16` scale in front of each.
    Blocks(BlockFormat),
    /// 32 numbers of 5 bits with an `f16` scale in front. Files of Q4_K have it where rows are no whole super-blocks.
    Q5_0,
    /// 256 numbers of 4 bits in 8 blocks, whose scales and minima have 6 bits each.
    Q4K,
    /// 256 numbers of 6 bits in 16 blocks, whose scales have 8 bits.
    Q6K,
}

impl Element {
    /// What can be read.
    pub(crate) const KNOWN: &str = "F32, F16, BF16, Q8_0, Q5_0, Q4_0, Q4_K or Q6_K";

    /// Of a safetensors file, if it can be read.
    pub(crate) fn of_safetensors(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Element::F32),
            Dtype::F16 => Some(Element::F16),
            Dtype::BF16 => Some(Element::BF16),
            _ => None,
        }
    }

    /// Numbers that are stored together, and their bytes.
    pub(crate) fn block(self) -> [usize; 2] {
        match self {
            Element::F32 => [1, 4],
            Element::F16 | Element::BF16 => [1, 2],
            Element::Blocks(format) => [BLOCK, size_of::<f16>() + format.bytes()],
            Element::Q5_0 => [BLOCK, 22],
            Element::Q4K => [SUPER, 144],
            Element::Q6K => [SUPER, 210],
        }
    }

    /// Bytes of so many numbers; `None` if they are no whole blocks, or too many.
    pub(crate) fn bytes(self, count: usize) -> Option<usize> {
        let [together, bytes] = self.block();
        match count.is_multiple_of(together) {
            true => (count / together).checked_mul(bytes),
            false => None,
        }
    }

    /// Reads whole blocks into as many numbers as they hold.
    pub(super) fn read(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Element::F32 => plain(bytes, f32::from_le_bytes, out),
            Element::F16 => plain(bytes, |b| f16::from_le_bytes(b).to_f32(), out),
            Element::BF16 => plain(bytes, |b| bf16::from_le_bytes(b).to_f32(), out),
            Element::Blocks(format) => {
                for (block, out) in self.blocks(bytes, out) {
                    let (scale, integers) = split_scale(block);
                    for (x, q) in out.iter_mut().zip(format.integers(integers)) {
                        *x = f32::from(q) * scale.to_f32();
                    }
                }
            }
            Element::Q5_0 => {
                for (block, out) in self.blocks(bytes, out) {
                    let (scale, rest) = split_scale(block);
                    for (x, q) in out.iter_mut().zip(q5_0(rest)) {
                        *x = f32::from(q) * scale.to_f32();
                    }
                }
            }
            Element::Q4K => self.blocks(bytes, out).for_each(|(block, out)| q4_k(block, out)),
            Element::Q6K => self.blocks(bytes, out).for_each(|(block, out)| q6_k(block, out)),
        }
    }

    fn blocks<'a>(self, bytes: &'a [u8], out: &'a mut [f32]) -> impl Iterator<Item = (&'a [u8], &'a mut [f32])> {
        let [together, size] = self.block();
        bytes.chunks_exact(size).zip(out.chunks_exact_mut(together))
    }
}

fn plain<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f32, out: &mut [f32]) {
    let (stored, _) = bytes.as_chunks::<N>();
    out.iter_mut().zip(stored).for_each(|(x, &b)| *x = read(b));
}

/// The scale in front of a block, and the rest.
pub(super) fn split_scale(block: &[u8]) -> (f16, &[u8]) {
    let (scale, rest) = block.split_at(size_of::<f16>());
    (f16::from_le_bytes([scale[0], scale[1]]), rest)
}

/// The integers of a block, from -16 to 15: four bytes with the upper bit of each, then 16 bytes of which each has the lower
/// four bits of one integer and of that 16 places further on.
pub(super) fn q5_0(block: &[u8]) -> impl Iterator<Item = i8> {
    let (upper, lower) = block.split_at(4);
    (0..BLOCK).map(move |i| {
        let byte = lower[i % 16];
        let four = if i < 16 { byte & 15 } else { byte >> 4 };
        let fifth = upper[i / 8] >> (i % 8) & 1;
        (four | fifth << 4).cast_signed() - 16
    })
}

/// `d` and `dmin`, 12 bytes of scales and minima, 128 bytes of halves: scales and minima 0 to 3 are the lower six bits of
/// bytes 0 to 7, the others have four bits in bytes 8 to 11 and two more above the former.
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, rest) = split_scale(block);
    let (least, rest) = split_scale(rest);
    let (packed, halves) = rest.split_at(12);
    for (i, out) in out.chunks_exact_mut(BLOCK).enumerate() {
        let (scale, minimum) = match i {
            0..4 => (packed[i] & 63, packed[i + 4] & 63),
            _ => (
                packed[i + 4] & 15 | packed[i - 4] >> 6 << 4,
                packed[i + 4] >> 4 | packed[i] >> 6 << 4,
            ),
        };
        let scale = d.to_f32() * f32::from(scale);
        let minimum = least.to_f32() * f32::from(minimum);
        // Two blocks share their bytes.
        for (x, byte) in out.iter_mut().zip(&halves[i / 2 * BLOCK..]) {
            let q = if i % 2 == 0 { byte & 15 } else { byte >> 4 };
            *x = scale * f32::from(q) - minimum;
        }
    }
}

/// 128 bytes with the lower four bits, 64 with the upper two, 16 signed scales of 16 numbers each, `d`. Of each half of
/// the numbers, a quarter has the lower halves of 32 bytes, the next those of 32 more, and the others the upper halves.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, d) = rest.split_at(16);
    let (d, _) = split_scale(d);
    for (i, x) in out.iter_mut().enumerate() {
        let (half, quarter, at) = (i / 128, i / 32 % 4, i % 32);
        let byte = low[64 * half + 32 * (quarter % 2) + at];
        let four = if quarter < 2 { byte & 15 } else { byte >> 4 };
        let two = high[32 * half + at] >> (2 * quarter) & 3;
        let q = i16::from(four | two << 4) - 32;
        *x = d.to_f32() * f32::from(scales[i / 16] as i8) * f32::from(q);
    }
}
