//! Weights in blocks of small integers with a common scale, in the formats that GGUF files call Q8_0 and Q4_0.
//!
//! A block is 32 neighbours along the last axis. On a device a matrix in such a format is two tensors: the integers in
//! `u32` words, `[rows, blocks * words]`, and the scales in `f16`, `[rows, blocks]`. The bytes of a block are those of
//! the file formats without the scale, little-endian, so that files are loaded without being quantised again.

use half::f16;

/// Elements of a block.
pub const BLOCK: usize = 32;

/// How the integers of a block are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// Bytes in two's complement: element `i` is byte `i`.
    Q8_0,
    /// Half bytes, from which 8 is subtracted: elements 0 to 15 are the lower halves of the 16 bytes, the others the upper
    /// halves.
    Q4_0,
}

impl BlockFormat {
    /// All formats.
    pub const ALL: [BlockFormat; 2] = [BlockFormat::Q8_0, BlockFormat::Q4_0];

    /// The format whose blocks have so many words.
    pub fn of_words(words: usize) -> Option<Self> {
        BlockFormat::ALL.into_iter().find(|format| format.words() == words)
    }

    /// `u32` words of a block.
    pub fn words(self) -> usize {
        match self {
            BlockFormat::Q8_0 => 8,
            BlockFormat::Q4_0 => 4,
        }
    }

    /// Bytes of a block's integers.
    pub fn bytes(self) -> usize {
        4 * self.words()
    }

    /// The integers of a block in its bytes, of which there are [`BlockFormat::bytes`].
    pub fn integers(self, bytes: &[u8]) -> [i8; BLOCK] {
        std::array::from_fn(|i| match self {
            BlockFormat::Q8_0 => bytes[i] as i8,
            BlockFormat::Q4_0 => {
                let pair = bytes[i % (BLOCK / 2)];
                (if i < BLOCK / 2 { pair & 15 } else { pair >> 4 }) as i8 - 8
            }
        })
    }

    /// Rounds numbers, whole blocks of them, to this format, behind what `bytes` and `scales` hold. Of the largest
    /// magnitude in a block the scale is 1/127 (Q8_0), or with the sign of that number -1/8 (Q4_0), rounded to `f16`
    /// after the integers were found. Numbers that are not finite, or too large for the scale, make the scale so, too.
    pub fn quantize(self, values: &[f32], bytes: &mut Vec<u8>, scales: &mut Vec<f16>) {
        let (blocks, _) = values.as_chunks::<BLOCK>();
        bytes.reserve(blocks.len() * self.bytes());
        scales.reserve(blocks.len());
        for block in blocks {
            let magnitude = largest_magnitude(block);
            let scale = match self {
                BlockFormat::Q8_0 => magnitude / 127.0,
                BlockFormat::Q4_0 => with_sign(magnitude, block) / -8.0,
            };
            let inverse = if scale == 0.0 || !scale.is_finite() {
                0.0
            } else {
                scale.recip()
            };
            scales.push(f16::from_f32(scale));
            match self {
                BlockFormat::Q8_0 => bytes.extend_from_slice(&block.map(|x| round(x * inverse))),
                BlockFormat::Q4_0 => {
                    let q = block.map(|x| truncate(x * inverse + 8.5, 0.0, 15.0) as u8);
                    let mut pairs = [0; BLOCK / 2];
                    let (low, high) = q.split_at(BLOCK / 2);
                    for (pair, (low, high)) in pairs.iter_mut().zip(low.iter().zip(high)) {
                        *pair = low | high << 4;
                    }
                    bytes.extend_from_slice(&pairs);
                }
            }
        }
    }
}

/// The largest magnitude in a block. Something that is not finite is larger than all numbers: bits of magnitudes are in
/// order, and compared as integers the compiler does it for several at once.
fn largest_magnitude(block: &[f32; BLOCK]) -> f32 {
    let bits = block.map(|x| x.abs().to_bits().cast_signed());
    f32::from_bits(bits.into_iter().fold(0, i32::max).cast_unsigned())
}

/// The first number of a block with this magnitude.
fn with_sign(magnitude: f32, block: &[f32; BLOCK]) -> f32 {
    let mut numbers = block.iter().copied();
    let number = numbers.find(|x| x.abs().to_bits() == magnitude.to_bits());
    number.unwrap_or(magnitude)
}

/// The nearest integer between -127 and 127 as a byte, halves away from zero; something for NaN. [`f32::round`] is a call for
/// each number where the instruction set has no such rounding.
fn round(x: f32) -> u8 {
    /// The number before 1/2: with it, nothing below 1/2 is rounded up.
    const HALF: f32 = 0.5_f32.next_down();
    truncate(x + HALF.copysign(x), -127.0, 127.0) as u8
}

/// The integer part of a number between bounds that are integers, of which the lower one stands for NaN.
fn truncate(x: f32, least: f32, most: f32) -> i32 {
    debug_assert!(-128.0 <= least && least <= most && most <= 127.0);
    // SAFETY: the bounds are numbers that are far within the range of the integer, and these functions give a number if one
    // operand is NaN. A conversion that looks at that again takes as long as everything else.
    unsafe { x.max(least).min(most).to_int_unchecked() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_within_half_a_step() {
        let values: Vec<f32> = (0..96).map(|i| ((i * 37 % 64) as f32 - 30.0) * 0.013).collect();
        for format in BlockFormat::ALL {
            let (mut bytes, mut scales) = (Vec::new(), Vec::new());
            format.quantize(&values, &mut bytes, &mut scales);
            assert_eq!((bytes.len(), scales.len()), (3 * format.bytes(), 3));
            for ((block, bytes), scale) in values.chunks(BLOCK).zip(bytes.chunks(format.bytes())).zip(&scales) {
                let scale = scale.to_f32();
                // A number at the end of four bits that has no opposite is cut off by one step.
                let step = scale.abs() * if format == BlockFormat::Q8_0 { 0.51 } else { 1.01 };
                for (x, q) in block.iter().zip(format.integers(bytes)) {
                    assert!(
                        (x - f32::from(q) * scale).abs() <= step,
                        "{format:?}: {x} as {q} of {scale}"
                    );
                }
            }
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
            let (mut bytes, mut scales) = (Vec::new(), Vec::new());
            let mut values = vec![0.0; 2 * BLOCK];
            values[BLOCK + 3] = f32::INFINITY;
            format.quantize(&values, &mut bytes, &mut scales);
            assert_eq!(scales[0], f16::ZERO);
            assert_eq!(format.integers(&bytes), [0; BLOCK]);
            assert!(!scales[1].is_finite());
        }
    }
}
