//! Element types of files, and reading of their numbers, row by row.

use half::{bf16, f16};
use meganeura_core::quantization::{BLOCK, BlockFormat};
use safetensors::tensor::Dtype;

use super::blocks::{self, SUPER};

/// The storage type of numbers in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    F16,
    BF16,
    /// Blocks with `f16` scales before each.
    Blocks(BlockFormat),
    /// 256 numbers of 4 bits in 8 blocks, whose scales and minima have 6 bits each.
    Q4K,
    /// The same with 5 bits.
    Q5K,
    /// 256 numbers of 6 bits in 16 blocks, whose scales have 8 bits.
    Q6K,
    /// 256 numbers of 2 bits in 16 blocks, whose scales and minima have 4 bits each.
    Q2K,
    /// 256 numbers of 3 bits in 16 blocks, whose scales have 6 bits.
    Q3K,
    /// Blocks of 32 indices of 4 bits into a table of 16 values, with an `f16` scale.
    Iq4Nl,
    /// 256 indices into the same table in 8 blocks, whose scales have 6 bits.
    Iq4Xs,
    /// Blocks of 32 floating-point numbers of 4 bits, with a power of two as their scale.
    Mxfp4,
}

impl Element {
    /// Supported types, for messages.
    pub(crate) const KNOWN: &str =
        "F32, F16, BF16, Q8_0, Q5_1, Q5_0, Q4_1, Q4_0, Q6_K, Q5_K, Q4_K, Q3_K, Q2_K, IQ4_NL, IQ4_XS or MXFP4";

    /// Returns the type of a safetensors file, if it is supported.
    pub(crate) fn of_safetensors(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Element::F32),
            Dtype::F16 => Some(Element::F16),
            Dtype::BF16 => Some(Element::BF16),
            _ => None,
        }
    }

    /// Returns the type with this number in GGUF files, if it is supported.
    pub(crate) fn of_gguf(number: u32) -> Option<Self> {
        match number {
            0 => Some(Element::F32),
            1 => Some(Element::F16),
            2 => Some(Element::Blocks(BlockFormat::Q4_0)),
            3 => Some(Element::Blocks(BlockFormat::Q4_1)),
            6 => Some(Element::Blocks(BlockFormat::Q5_0)),
            7 => Some(Element::Blocks(BlockFormat::Q5_1)),
            8 => Some(Element::Blocks(BlockFormat::Q8_0)),
            10 => Some(Element::Q2K),
            11 => Some(Element::Q3K),
            12 => Some(Element::Q4K),
            13 => Some(Element::Q5K),
            14 => Some(Element::Q6K),
            20 => Some(Element::Iq4Nl),
            23 => Some(Element::Iq4Xs),
            30 => Some(Element::BF16),
            39 => Some(Element::Mxfp4),
            _ => None,
        }
    }

    /// Returns the numbers per block, and the bytes of a block.
    pub(crate) fn block(self) -> [usize; 2] {
        match self {
            Element::F32 => [1, 4],
            Element::F16 | Element::BF16 => [1, 2],
            Element::Blocks(format) => [BLOCK, size_of::<f16>() * format.scales() + format.bytes()],
            Element::Q4K => [SUPER, 144],
            Element::Q5K => [SUPER, 176],
            Element::Q6K => [SUPER, 210],
            Element::Q2K => [SUPER, 84],
            Element::Q3K => [SUPER, 110],
            Element::Iq4Nl => [BLOCK, 18],
            Element::Iq4Xs => [SUPER, 136],
            Element::Mxfp4 => [BLOCK, 17],
        }
    }

    /// Returns the size of `count` numbers in bytes; `None` if `count` is not a multiple of the block size, or too
    /// large.
    pub(crate) fn bytes(self, count: usize) -> Option<usize> {
        let [together, bytes] = self.block();
        if count.is_multiple_of(together) {
            (count / together).checked_mul(bytes)
        } else {
            None
        }
    }

    /// Reads whole blocks; `out` has room for all of their numbers.
    pub(super) fn read(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Element::F32 => plain(bytes, f32::from_le_bytes, out),
            Element::F16 => plain(bytes, |b| f16::from_le_bytes(b).to_f32(), out),
            Element::BF16 => plain(bytes, |b| bf16::from_le_bytes(b).to_f32(), out),
            Element::Blocks(format @ (BlockFormat::Q8_0 | BlockFormat::Q4_0)) => {
                for (block, out) in self.blocks(bytes, out) {
                    let (scale, integers) = split_scale(block);
                    for (x, q) in out.iter_mut().zip(format.integers(integers)) {
                        *x = f32::from(q) * scale.to_f32();
                    }
                }
            }
            Element::Q2K => {
                for (stored, out) in self.blocks(bytes, out) {
                    blocks::read_q2_k(stored, out);
                }
            }
            _ => {
                let Some(format) = self.format() else { return };
                let (parts, _) = out.as_chunks_mut::<BLOCK>();
                let mut parts = parts.iter_mut();
                blocks::each(self, bytes, |block| {
                    if let Some(part) = parts.next() {
                        *part = block.numbers(format);
                    }
                });
            }
        }
    }

    /// Returns the block format in which sessions store weights of this GGUF type. The integers stay the same; scales of
    /// super-blocks are rounded to `f16`. Returns `None` for Q2_K: no format has two scales and two minima for 32 numbers.
    pub(crate) fn format(self) -> Option<BlockFormat> {
        match self {
            Element::F32 | Element::F16 | Element::BF16 | Element::Q2K => None,
            Element::Blocks(format) => Some(format),
            Element::Q4K => Some(BlockFormat::Q4_1),
            Element::Q5K => Some(BlockFormat::Q5_1),
            Element::Q6K | Element::Q3K => Some(BlockFormat::Q6),
            Element::Iq4Nl | Element::Iq4Xs | Element::Mxfp4 => Some(BlockFormat::Q8_0),
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

/// Splits a block into the scale at its beginning and the rest.
pub(super) fn split_scale(block: &[u8]) -> (f16, &[u8]) {
    let (scale, rest) = block.split_at(size_of::<f16>());
    (f16::from_le_bytes([scale[0], scale[1]]), rest)
}
