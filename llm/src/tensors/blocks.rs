//! Quantized blocks in the layouts of GGUF files.

use half::f16;
use meganeura_core::quantization::{BLOCK, BlockFormat};

use super::element::{Element, split_scale};

/// Number of elements of a super-block of the K formats.
pub(super) const SUPER: usize = 256;
/// Number of elements that share a scale in blocks with two scales.
const HALF: usize = BLOCK / 2;
/// Values of the 16 integers of IQ4_NL and IQ4_XS, before the scale.
const IQ4_NL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the values of the 16 integers of MXFP4: floating-point numbers of four bits, E2M1 (OCP
/// Microscaling Formats, 2023, section 5.3.3).
const MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 32 numbers in a block format of devices: integers before the subtraction of an offset, and
/// scales, of which the second one may be a minimum.
pub(super) struct Block {
    pub(super) integers: [u8; BLOCK],
    pub(super) scales: [f32; 2],
}

impl Block {
    pub(super) fn numbers(&self, format: BlockFormat) -> [f32; BLOCK] {
        let [scale, second] = self.scales;
        let offset = f32::from(format.offset());
        std::array::from_fn(|i| {
            let q = self.integers[i];
            match format {
                BlockFormat::Q8_0 => f32::from(q as i8) * scale,
                BlockFormat::Q6 => (f32::from(q) - offset) * self.scales[i / (BLOCK / 2)],
                BlockFormat::Q5_1 | BlockFormat::Q4_1 => f32::from(q) * scale + second,
                BlockFormat::Q5_0 | BlockFormat::Q4_0 => (f32::from(q) - offset) * scale,
            }
        })
    }
}

/// Calls `give` with each block of `bytes`, which contain whole blocks or super-blocks of an element type with an
/// [`Element::format`].
pub(super) fn each(element: Element, bytes: &[u8], mut give: impl FnMut(&Block)) {
    let [_, size] = element.block();
    for stored in bytes.chunks_exact(size) {
        match element {
            Element::Q4K => k_with_minima(stored, false, &mut give),
            Element::Q5K => k_with_minima(stored, true, &mut give),
            Element::Q6K => q6_k(stored, &mut give),
            Element::Q3K => q3_k(stored, &mut give),
            Element::Iq4Xs => iq4_xs(stored, &mut give),
            Element::Iq4Nl => {
                let (scale, halves) = split_scale(stored);
                give(&Block {
                    integers: nibbles(halves).map(|q| IQ4_NL[usize::from(q)].cast_unsigned()),
                    scales: [scale.to_f32(), 0.0],
                });
            }
            Element::Mxfp4 => give(&Block {
                integers: nibbles(&stored[1..]).map(|q| MXFP4[usize::from(q)].cast_unsigned()),
                scales: [half_power(stored[0]), 0.0],
            }),
            Element::Blocks(format) => give(&plain(stored, format)),
            Element::F32 | Element::F16 | Element::BF16 | Element::Q2K => {}
        }
    }
}

/// Returns half of the scale with this exponent of eight bits: 2 to the power of the exponent minus
/// 127, divided by 2.
fn half_power(exponent: u8) -> f32 {
    match exponent {
        // Numbers below 2^-126 are subnormal.
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
}

/// Returns the lower nibbles of 16 bytes, then the upper ones.
fn nibbles(bytes: &[u8]) -> [u8; BLOCK] {
    std::array::from_fn(|i| {
        let pair = bytes[i % (BLOCK / 2)];
        if i < BLOCK / 2 { pair & 15 } else { pair >> 4 }
    })
}

/// Reads a block of Q8_0, Q4 or Q5: a scale, a minimum if the format has one, the fifth bits if it has five, and
/// nibbles or bytes.
fn plain(stored: &[u8], format: BlockFormat) -> Block {
    let (scale, mut rest) = split_scale(stored);
    let mut scales = [scale, f16::ZERO];
    if format.has_minimum() {
        (scales[1], rest) = split_scale(rest);
    }
    let integers = match format {
        BlockFormat::Q8_0 => std::array::from_fn(|i| rest[i]),
        BlockFormat::Q5_0 | BlockFormat::Q5_1 => {
            let (high, halves) = rest.split_at(BLOCK / 8);
            let mut integers = nibbles(halves);
            for (i, q) in integers.iter_mut().enumerate() {
                *q |= (high[i / 8] >> (i % 8) & 1) << 4;
            }
            integers
        }
        // No file contains Q6.
        BlockFormat::Q4_0 | BlockFormat::Q4_1 | BlockFormat::Q6 => nibbles(rest),
    };
    Block {
        integers,
        scales: scales.map(f16::to_f32),
    }
}

/// Reads Q4_K and Q5_K: `d` and `dmin`, 12 bytes of scales and minima, in Q5_K 32 bytes with the
/// fifth bits, 128 bytes of nibbles. Scales and minima 0 to 3 are the lower six bits of bytes
/// 0 to 7; further ones have their lower four bits in bytes 8 to 11, and their upper two bits in
/// the upper bits of bytes 0 to 7.
fn k_with_minima(stored: &[u8], has_fifth: bool, give: &mut impl FnMut(&Block)) {
    let (d, rest) = split_scale(stored);
    let (least, rest) = split_scale(rest);
    let (packed, rest) = rest.split_at(12);
    let (fifth, halves) = rest.split_at(if has_fifth { BLOCK } else { 0 });
    for i in 0..SUPER / BLOCK {
        let (scale, minimum) = match i {
            0..4 => (packed[i] & 63, packed[i + 4] & 63),
            _ => (
                packed[i + 4] & 15 | packed[i - 4] >> 6 << 4,
                packed[i + 4] >> 4 | packed[i] >> 6 << 4,
            ),
        };
        // Two blocks share their bytes.
        let bytes = &halves[i / 2 * BLOCK..];
        give(&Block {
            integers: std::array::from_fn(|e| {
                let low = if i.is_multiple_of(2) {
                    bytes[e] & 15
                } else {
                    bytes[e] >> 4
                };
                if has_fifth { low | (fifth[e] >> i & 1) << 4 } else { low }
            }),
            scales: [d.to_f32() * f32::from(scale), -(least.to_f32() * f32::from(minimum))],
        });
    }
}

/// Reads Q6_K: 128 bytes with the lower four bits, 64 with the upper two, 16 signed scales of 16
/// numbers each, `d`. In each half of the numbers, the first quarter uses the lower nibbles of 32
/// bytes, the second those of the next 32, and the third and fourth the upper nibbles of the same
/// bytes.
fn q6_k(stored: &[u8], give: &mut impl FnMut(&Block)) {
    let (low, rest) = stored.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, d) = rest.split_at(16);
    let (d, _) = split_scale(d);
    for i in 0..SUPER / BLOCK {
        let (half, quarter) = (i / 4, i % 4);
        let bytes = &low[64 * half + 32 * (quarter % 2)..];
        let above = &high[32 * half..];
        give(&Block {
            integers: std::array::from_fn(|e| {
                let four = if quarter < 2 { bytes[e] & 15 } else { bytes[e] >> 4 };
                four | (above[e] >> (2 * quarter) & 3) << 4
            }),
            scales: [2 * i, 2 * i + 1].map(|at| d.to_f32() * f32::from(scales[at] as i8)),
        });
    }
}

/// Reads a super-block of Q2_K: 16 bytes with a scale in the lower half and a minimum in the upper
/// one, 64 bytes with four integers each, `d` and `dmin`. Of each half of the numbers, 32 bytes
/// contain a quarter in each pair of bits.
pub(super) fn read_q2_k(stored: &[u8], out: &mut [f32]) {
    let (packed, rest) = stored.split_at(SUPER / HALF);
    let (pairs, rest) = rest.split_at(SUPER / 4);
    let (d, rest) = split_scale(rest);
    let (least, _) = split_scale(rest);
    let [d, least] = [d, least].map(f16::to_f32);
    for (i, (out, &both)) in out.chunks_exact_mut(HALF).zip(packed).enumerate() {
        let bytes = &pairs[i / 8 * BLOCK + i % 2 * HALF..];
        let shift = 2 * (i / 2 % 4);
        let (scale, minimum) = (d * f32::from(both & 15), least * f32::from(both >> 4));
        for (x, byte) in out.iter_mut().zip(bytes) {
            *x = scale * f32::from(byte >> shift & 3) - minimum;
        }
    }
}

/// Reads Q3_K: 32 bytes with the highest bits, 64 bytes with the lower two bits in the layout of
/// Q2_K, 12 bytes of scales, `d`. Byte `e` of the first 32 has the bit of element `e` of block `i`
/// at bit `i`. Bytes 0 to 7 of the scales contain their lower four bits, bytes 8 to 11 the upper
/// two. An integer is stored plus 4, a scale plus 32.
fn q3_k(stored: &[u8], give: &mut impl FnMut(&Block)) {
    let (highest, rest) = stored.split_at(BLOCK);
    let (pairs, rest) = rest.split_at(SUPER / 4);
    let (packed, d) = rest.split_at(12);
    let (d, _) = split_scale(d);
    let scale = |k: usize| {
        let low = if k < 8 { packed[k] & 15 } else { packed[k - 8] >> 4 };
        let high = packed[8 + k % 4] >> (2 * (k / 4)) & 3;
        d.to_f32() * (f32::from(low | high << 4) - 32.0)
    };
    // The offset of Q6 minus that of Q3_K.
    let offset = BlockFormat::Q6.offset() - 4;
    for i in 0..SUPER / BLOCK {
        let bytes = &pairs[i / 4 * BLOCK..];
        give(&Block {
            integers: std::array::from_fn(|e| {
                let low = bytes[e] >> (2 * (i % 4)) & 3;
                (low | (highest[e] >> i & 1) << 2) + offset
            }),
            scales: [2 * i, 2 * i + 1].map(scale),
        });
    }
}

/// Reads IQ4_XS: `d`, 2 bytes with the upper two bits of the scales, 4 bytes with their lower four,
/// 128 bytes of nibbles in blocks. A scale is stored plus 32.
fn iq4_xs(stored: &[u8], give: &mut impl FnMut(&Block)) {
    let (d, rest) = split_scale(stored);
    let (upper, rest) = rest.split_at(2);
    let (lower, halves) = rest.split_at(SUPER / BLOCK / 2);
    for (i, halves) in halves.chunks_exact(HALF).enumerate() {
        let low = lower[i / 2] >> (4 * (i % 2)) & 15;
        let high = upper[i / 4] >> (2 * (i % 4)) & 3;
        give(&Block {
            integers: nibbles(halves).map(|q| IQ4_NL[usize::from(q)].cast_unsigned()),
            scales: [d.to_f32() * (f32::from(low | high << 4) - 32.0), 0.0],
        });
    }
}
