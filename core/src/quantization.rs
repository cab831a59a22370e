//! Weights that are stored as blocks of small integers with common scales: the formats Q8_0, Q5_1, Q5_0, Q4_1 and Q4_0
//! of GGUF files, and one for the numbers of Q6_K.
//!
//! A block is 32 neighbours along the last axis. On a device, a matrix in such a format is two
//! tensors: the integers in `u32` words, `[rows, blocks * words]`, and the scales in `f16`,
//! `[rows, blocks * scales]`; the ratio of words to scales determines the format. Words are
//! little-endian. Words of Q8_0 and of the four-bit formats have the same bytes as in files, so
//! that files are loaded without requantization.
//!
//! A super-block of the K formats of files has 256 numbers, and its scales are quantized, too. On a device, K formats
//! are converted to blocks of 32: Q4_K is Q4_1, Q5_K is Q5_1 and Q6_K is Q6. That takes 5 bits per number instead of
//! 4.5, 6 instead of 5.5, and 7 instead of 6.56. Integers do not change. Scales are products of two numbers in files;
//! they are rounded to `f16` (relative error at most 2^-11, unless they are below 2^-14). Q3_K also becomes Q6: each of
//! its 16 scales covers 16 numbers.

use half::f16;

/// Number of elements of a block.
pub const BLOCK: usize = 32;

/// Storage format of the integers of a block, and their conversion to numbers.
///
/// Formats of less than 8 bits store the lower four bits in nibbles: elements 0 to 15 in the low
/// nibbles of the block's first 16 bytes, elements 16 to 31 in the high nibbles. The remaining bits
/// follow in separate words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// 8 words and a scale: bytes in two's complement; byte `i` is element `i`.
    Q8_0,
    /// 6 words and two scales, one for elements 0 to 15 and one for elements 16 to 31: integers of
    /// six bits, from which 32 is subtracted. Byte `r` of the last two words contains the upper two
    /// bits of elements `r`, `8 + r`, `16 + r` and `24 + r`, beginning at the lowest bits.
    Q6,
    /// 5 words, a scale and a minimum: integers of five bits; the minimum is added after scaling.
    /// Byte `r` of the last word contains the highest bits of elements `r`, `4 + r` ... `28 + r`,
    /// beginning at the lowest bit.
    Q5_1,
    /// 5 words, as for Q5_1, and a scale: integers of five bits, from which 16 is subtracted.
    Q5_0,
    /// 4 words, a scale and a minimum: integers of four bits; the minimum is added after scaling.
    Q4_1,
    /// 4 words and a scale: integers of four bits, from which 8 is subtracted.
    Q4_0,
}

impl BlockFormat {
    /// All formats, the widest first.
    pub const ALL: [BlockFormat; 6] = [
        BlockFormat::Q8_0,
        BlockFormat::Q6,
        BlockFormat::Q5_1,
        BlockFormat::Q5_0,
        BlockFormat::Q4_1,
        BlockFormat::Q4_0,
    ];

    /// Returns the format of rows with these numbers of words and scales, which must form at least
    /// one block and only whole blocks.
    pub fn of(words: usize, scales: usize) -> Option<Self> {
        let blocks = |format: &BlockFormat| scales / format.scales();
        let mut formats = BlockFormat::ALL.into_iter().filter(|format| {
            blocks(format) > 0
                && scales.is_multiple_of(format.scales())
                && blocks(format).checked_mul(format.words()) == Some(words)
        });
        formats.next()
    }

    /// Returns the number of `u32` words per block.
    pub const fn words(self) -> usize {
        match self {
            BlockFormat::Q8_0 => 8,
            BlockFormat::Q6 => 6,
            BlockFormat::Q5_1 | BlockFormat::Q5_0 => 5,
            BlockFormat::Q4_1 | BlockFormat::Q4_0 => 4,
        }
    }

    /// Returns the number of scales per block. The minimum of a block counts as a scale.
    pub const fn scales(self) -> usize {
        match self {
            BlockFormat::Q8_0 | BlockFormat::Q5_0 | BlockFormat::Q4_0 => 1,
            BlockFormat::Q6 | BlockFormat::Q5_1 | BlockFormat::Q4_1 => 2,
        }
    }

    /// Returns the bytes that the integers of a block take.
    pub const fn bytes(self) -> usize {
        4 * self.words()
    }

    /// Returns `true` if the second scale of a block is a minimum.
    pub const fn has_minimum(self) -> bool {
        matches!(self, BlockFormat::Q5_1 | BlockFormat::Q4_1)
    }

    /// Returns the number that is subtracted from stored integers to get signed ones.
    pub const fn offset(self) -> u8 {
        match self {
            BlockFormat::Q8_0 | BlockFormat::Q5_1 | BlockFormat::Q4_1 => 0,
            BlockFormat::Q6 => 32,
            BlockFormat::Q5_0 => 16,
            BlockFormat::Q4_0 => 8,
        }
    }

    /// Unpacks the integers of a block from its bytes; there are [`BlockFormat::bytes`] bytes.
    pub fn integers(self, bytes: &[u8]) -> [i8; BLOCK] {
        std::array::from_fn(|i| {
            if self == BlockFormat::Q8_0 {
                return bytes[i] as i8;
            }
            let pair = bytes[i % HALF];
            let low = if i < HALF { pair & 15 } else { pair >> 4 };
            let high = match self {
                BlockFormat::Q6 => bytes[HALF + i % 8] >> (2 * (i / 8)) & 3,
                BlockFormat::Q5_1 | BlockFormat::Q5_0 => bytes[HALF + i % 4] >> (i / 4) & 1,
                _ => 0,
            };
            (low | high << 4) as i8 - self.offset() as i8
        })
    }

    /// Returns the numbers of a block: its integers times their scales, plus the minimum if there
    /// is one.
    pub fn numbers(self, bytes: &[u8], scales: &[f64]) -> [f64; BLOCK] {
        let integers = self.integers(bytes).map(f64::from);
        std::array::from_fn(|i| match self {
            BlockFormat::Q6 => integers[i] * scales[i / HALF],
            BlockFormat::Q5_1 | BlockFormat::Q4_1 => integers[i] * scales[0] + scales[1],
            BlockFormat::Q8_0 | BlockFormat::Q5_0 | BlockFormat::Q4_0 => integers[i] * scales[0],
        })
    }

    /// Dequantizes whole blocks to `f32`.
    pub fn dequantize(self, bytes: &[u8], scales: &[f16]) -> Vec<f32> {
        let blocks = bytes.chunks_exact(self.bytes()).zip(scales.chunks_exact(self.scales()));
        let numbers = blocks.flat_map(|(bytes, scales)| {
            let mut wide = [0.0; 2];
            wide.iter_mut().zip(scales).for_each(|(to, scale)| *to = scale.to_f64());
            self.numbers(bytes, &wide)
        });
        numbers.map(|x| x as f32).collect()
    }

    /// Appends the integers of a block, before any subtraction, to `bytes`.
    pub fn pack(self, integers: &[u8; BLOCK], bytes: &mut Vec<u8>) {
        if self == BlockFormat::Q8_0 {
            return bytes.extend_from_slice(integers);
        }
        let (first, second) = integers.split_at(HALF);
        let mut pairs = [0; HALF];
        for (pair, (low, high)) in pairs.iter_mut().zip(first.iter().zip(second)) {
            *pair = low & 15 | high << 4;
        }
        bytes.extend_from_slice(&pairs);
        let mut upper = [0; 8];
        let (count, bits) = match self {
            BlockFormat::Q6 => (8, 2),
            BlockFormat::Q5_1 | BlockFormat::Q5_0 => (4, 1),
            _ => return,
        };
        for (i, integer) in integers.iter().enumerate() {
            upper[i % count] |= (integer >> 4) << (bits * (i / count));
        }
        bytes.extend_from_slice(&upper[..count]);
    }

    /// Quantizes whole blocks of numbers to this format, and appends the result to `bytes` and
    /// `scales`. The scale is the largest magnitude among the numbers that share it times 1/127
    /// (Q8_0), or that number with its sign times -1/32 (Q6), -1/16 (Q5_0) or -1/8 (Q4_0); with a
    /// minimum, it is 1/31 (Q5_1) or 1/15 (Q4_1) of the distance from the minimum to the largest
    /// number. It is rounded to `f16` after the integers were computed. Numbers that are not
    /// finite, or too large for the scale, make the scale non-finite, too.
    pub fn quantize(self, values: &[f32], bytes: &mut Vec<u8>, scales: &mut Vec<f16>) {
        let (blocks, _) = values.as_chunks::<BLOCK>();
        bytes.reserve(blocks.len() * self.bytes());
        scales.reserve(blocks.len() * self.scales());
        for block in blocks {
            match self {
                BlockFormat::Q8_0 => {
                    let scale = largest_magnitude(block) / 127.0;
                    let inverse = inverse(scale);
                    scales.push(f16::from_f32(scale));
                    bytes.extend_from_slice(&block.map(|x| round(x * inverse)));
                }
                BlockFormat::Q5_0 => self.pack(&around_zero::<BLOCK, 16>(block, scales), bytes),
                BlockFormat::Q4_0 => self.pack(&around_zero::<BLOCK, 8>(block, scales), bytes),
                BlockFormat::Q6 => {
                    let (halves, _) = block.as_chunks::<HALF>();
                    let mut integers = [0; BLOCK];
                    for (to, half) in integers.as_chunks_mut::<HALF>().0.iter_mut().zip(halves) {
                        *to = around_zero::<HALF, 32>(half, scales);
                    }
                    self.pack(&integers, bytes);
                }
                BlockFormat::Q5_1 => self.pack(&from_minimum::<31>(block, scales), bytes),
                BlockFormat::Q4_1 => self.pack(&from_minimum::<15>(block, scales), bytes),
            }
        }
    }
}

/// Half of a block's elements.
const HALF: usize = BLOCK / 2;

/// Returns the reciprocal of a scale, or 0 if the scale is 0 or not finite.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 || !scale.is_finite() {
        0.0
    } else {
        scale.recip()
    }
}

/// Quantizes numbers to integers around `MIDDLE`, and appends their scale to `scales`.
fn around_zero<const N: usize, const MIDDLE: u8>(numbers: &[f32; N], scales: &mut Vec<f16>) -> [u8; N] {
    let middle = f32::from(MIDDLE);
    let scale = with_sign(largest_magnitude(numbers), numbers) / -middle;
    let inverse = inverse(scale);
    scales.push(f16::from_f32(scale));
    numbers.map(|x| truncate(x * inverse + (middle + 0.5), 0.0, 2.0 * middle - 1.0) as u8)
}

/// Quantizes numbers to integers from 0 (the minimum) to `MAX_CODE`, and appends the scale and the minimum to `scales`.
fn from_minimum<const MAX_CODE: u8>(numbers: &[f32; BLOCK], scales: &mut Vec<f16>) -> [u8; BLOCK] {
    let least = numbers.iter().copied().fold(f32::INFINITY, f32::min);
    let most = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Comparisons skip NaN.
    let magnitude = largest_magnitude(numbers);
    let scale = if magnitude.is_finite() {
        (most - least) / f32::from(MAX_CODE)
    } else {
        magnitude
    };
    let inverse = inverse(scale);
    scales.extend([scale, least].map(f16::from_f32));
    numbers.map(|x| truncate((x - least) * inverse + 0.5, 0.0, f32::from(MAX_CODE)) as u8)
}

/// Returns the largest magnitude. Infinity exceeds all finite numbers, and NaN exceeds infinity. Magnitudes are compared as
/// integers, which have the same order, because the compiler vectorizes integer comparisons.
fn largest_magnitude<const N: usize>(numbers: &[f32; N]) -> f32 {
    let bits = numbers.map(|x| x.abs().to_bits().cast_signed());
    f32::from_bits(bits.into_iter().fold(0, i32::max).cast_unsigned())
}

/// Returns the first number that has this magnitude, with its sign.
fn with_sign<const N: usize>(magnitude: f32, numbers: &[f32; N]) -> f32 {
    let mut numbers = numbers.iter().copied();
    let number = numbers.find(|x| x.abs().to_bits() == magnitude.to_bits());
    number.unwrap_or(magnitude)
}

/// Rounds to the nearest integer between -127 and 127, halves away from zero, as a byte; any value
/// for NaN. [`f32::round`] would be a function call per number on instruction sets without such
/// rounding.
fn round(x: f32) -> u8 {
    /// The largest number below 1/2. It is added instead of 1/2, so that numbers below 1/2 are not rounded up.
    const HALF: f32 = 0.5_f32.next_down();
    truncate(x + HALF.copysign(x), -127.0, 127.0) as u8
}

/// Returns the integer part of a number, clamped to integer bounds; the lower bound for NaN.
fn truncate(x: f32, least: f32, most: f32) -> i32 {
    debug_assert!(-128.0 <= least && least <= most && most <= 127.0);
    // SAFETY: the bounds are well within the range of the integer, and `max` and `min` return a
    // number if one operand is NaN. A checked conversion would take as long as everything else.
    unsafe { x.max(least).min(most).to_int_unchecked() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(format: BlockFormat, values: &[f32]) -> (Vec<u8>, Vec<f16>) {
        let (mut bytes, mut scales) = (Vec::new(), Vec::new());
        format.quantize(values, &mut bytes, &mut scales);
        (bytes, scales)
    }

    #[test]
    fn numbers_come_back_within_half_a_step() {
        let values: Vec<f32> = (0..96).map(|i| ((i * 37 % 64) as f32 - 30.0) * 0.013).collect();
        for format in BlockFormat::ALL {
            let (bytes, scales) = rounded(format, &values);
            assert_eq!((bytes.len(), scales.len()), (3 * format.bytes(), 3 * format.scales()));
            let stored = bytes.chunks(format.bytes()).zip(scales.chunks(format.scales()));
            for (block, (bytes, scales)) in values.chunks(BLOCK).zip(stored) {
                let scales: Vec<f64> = scales.iter().map(|scale| scale.to_f64()).collect();
                // The integers of formats with few bits have an asymmetric range: a number at the missing end is off by
                // one step. Scales and the integers that multiply them are also rounded.
                let steps = match format {
                    BlockFormat::Q8_0 => 0.57,
                    _ if format.has_minimum() => 0.52,
                    _ => 1.02,
                };
                for (i, (x, y)) in block.iter().zip(format.numbers(bytes, &scales)).enumerate() {
                    let step = match format {
                        BlockFormat::Q6 => scales[i / HALF].abs(),
                        _ => scales[0].abs(),
                    };
                    let error = (f64::from(*x) - y).abs();
                    assert!(error <= steps * step, "{format:?}: {x} as {y}, steps of {step}");
                }
            }
        }
    }

    #[test]
    fn integers_are_packed_and_unpacked() {
        for format in BlockFormat::ALL {
            let most = match format.words() {
                8 => 255,
                words => (1 << words.min(6)) - 1,
            };
            let integers: [u8; BLOCK] = std::array::from_fn(|i| (i * 89 % 256) as u8 & most);
            let mut bytes = Vec::new();
            format.pack(&integers, &mut bytes);
            assert_eq!(bytes.len(), format.bytes());
            let found = format
                .integers(&bytes)
                .map(|q| q.wrapping_add_unsigned(format.offset()) as u8);
            assert_eq!(found, integers, "{format:?}");
        }
    }

    #[test]
    fn formats_are_known_by_their_words_and_scales() {
        for format in BlockFormat::ALL {
            for blocks in 1..50 {
                let (words, scales) = (blocks * format.words(), blocks * format.scales());
                assert_eq!(BlockFormat::of(words, scales), Some(format), "{blocks}");
            }
        }
        for (words, scales) in [(0, 0), (0, 1), (4, 0), (7, 1), (5, 3), (16, 1), (usize::MAX, 1), (3, 1)] {
            assert_eq!(BlockFormat::of(words, scales), None, "{words} {scales}");
        }
    }

    #[test]
    fn halves_are_rounded_away_from_zero() {
        let near = |x: f32| [x.next_down(), x, x.next_up()];
        let steps = (-256..=256).flat_map(|i| near(i as f32 * 0.5));
        for x in steps.chain([1e-40, -1e-40, 0.3, -77.7]) {
            assert_eq!(round(x), x.round().clamp(-127.0, 127.0) as i8 as u8, "{x}");
        }
        assert_eq!([f32::INFINITY, -f32::INFINITY].map(round), [127, 129]);
    }

    #[test]
    fn zeros_stay_and_what_is_not_finite_shows() {
        for format in BlockFormat::ALL {
            for special in [f32::INFINITY, f32::NAN, -1e30] {
                let mut values = vec![0.0; 2 * BLOCK];
                values[BLOCK + 3] = special;
                let (bytes, scales) = rounded(format, &values);
                let (first, second) = scales.split_at(format.scales());
                assert!(first.iter().all(|&scale| scale == f16::ZERO));
                assert_eq!(format.numbers(&bytes, &vec![0.0; format.scales()]), [0.0; BLOCK]);
                assert!(second.iter().any(|scale| !scale.is_finite()), "{format:?} {special}");
            }
        }
    }
}
