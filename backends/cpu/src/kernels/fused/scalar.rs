//! Elementwise functions of the steps of a fused program.

use meganeura_core::attrs::Attrs;
use meganeura_core::ops::drop_threshold;
use meganeura_core::{DType, TensorType};

use crate::kernels::pointwise::{binary_of, bits_of, compare_of, unary_of};
use crate::kernels::random::{Chances, drop_some};
use crate::vmath::{self, Binary, Bits, Compare, Element, IntBinary, Level, Operand, Unary};

/// An elementwise function, with its constants.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scalar {
    Unary(Unary),
    /// Function of an `i32`.
    Signed(fn(i32) -> i32),
    Binary(Binary),
    Unsigned2(IntBinary),
    Signed2(IntBinary),
    CompareFloats(Compare),
    CompareUnsigned(Compare),
    CompareSigned(Compare),
    Bits(Bits),
    /// Bit function with a constant second operand.
    BitsWith(Bits, u32),
    /// Logical not: 1 if the word is 0, else 0.
    Not,
    /// The second operand if the first is not 0, else the third. All types are allowed.
    Select,
    /// The given word if the second operand is true (not 0), else the first operand.
    Fill(u32),
    /// The unchanged word.
    Copy,
    UnsignedToFloat,
    SignedToFloat,
    FloatToUnsigned,
    FloatToSigned,
    /// The first operand times `scale`, or 0 at random.
    Dropout {
        uid: u32,
        threshold: u32,
        scale: f32,
    },
}

/// An operand of a step, as 32-bit words: one word for each element, or one for all elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    Words(*const u32),
    One(u32),
}

/// Maximum number of operands of a function.
pub(super) const MAX_OPERANDS: usize = 3;

fn word(dtype: DType, value: f64) -> u32 {
    match dtype {
        DType::U32 => value as u32,
        DType::I32 => value as i32 as u32,
        _ => (value as f32).to_bits(),
    }
}

impl Scalar {
    /// Returns the function of an operator, or `None` if this backend does not support it for these types.
    pub(super) fn of(name: &str, attrs: &Attrs, inputs: &[TensorType], output: &TensorType) -> Result<Self, String> {
        let from = inputs.first().map_or(output.dtype, |t| t.dtype);
        if let Some(unary) = unary_of(name, attrs).filter(|_| from == DType::F32) {
            return unary.map(Scalar::Unary);
        }
        if let Some((float, integer)) = binary_of(name) {
            return match (from, integer) {
                (DType::F32, _) => Ok(Scalar::Binary(float)),
                (DType::U32, Some(op)) => Ok(Scalar::Unsigned2(op)),
                (DType::I32, Some(op)) => Ok(Scalar::Signed2(op)),
                _ => Err(format!("{name} has no form for {from}")),
            };
        }
        if let Some(op) = compare_of(name) {
            return Ok(match from {
                DType::F32 => Scalar::CompareFloats(op),
                DType::U32 => Scalar::CompareUnsigned(op),
                _ => Scalar::CompareSigned(op),
            });
        }
        if let Some((op, second)) = bits_of(name) {
            return Ok(second.map_or(Scalar::Bits(op), |word| Scalar::BitsWith(op, word)));
        }
        match (name, from, output.dtype) {
            ("core.neg", DType::F32, _) => Ok(Scalar::Unary(Unary::Neg)),
            ("core.abs", DType::F32, _) => Ok(Scalar::Unary(Unary::Abs)),
            ("core.sign", DType::F32, _) => Ok(Scalar::Unary(Unary::Sign)),
            ("core.neg", ..) => Ok(Scalar::Signed(i32::wrapping_neg)),
            ("core.abs", ..) => Ok(Scalar::Signed(i32::wrapping_abs)),
            ("core.sign", ..) => Ok(Scalar::Signed(i32::signum)),
            ("core.logical_not", ..) => Ok(Scalar::Not),
            ("core.select", ..) => Ok(Scalar::Select),
            ("core.masked_fill", ..) => Ok(Scalar::Fill(word(from, attrs.float("value")?))),
            ("core.cast", DType::U32, DType::F32) => Ok(Scalar::UnsignedToFloat),
            ("core.cast", DType::I32, DType::F32) => Ok(Scalar::SignedToFloat),
            ("core.cast", DType::F32, DType::U32) => Ok(Scalar::FloatToUnsigned),
            ("core.cast", DType::F32, DType::I32) => Ok(Scalar::FloatToSigned),
            ("core.cast", ..) => Ok(Scalar::Copy),
            ("core.dropout", ..) => {
                let p = attrs.float("p")?;
                Ok(Scalar::Dropout {
                    uid: attrs.size("uid")? as u32,
                    threshold: drop_threshold(p),
                    scale: (1.0 / (1.0 - p)) as f32,
                })
            }
            _ => Err(format!("the CPU backend has no fused {name} of {from}")),
        }
    }

    /// Returns true if a result also depends on the element's index.
    pub(super) fn counts(self) -> bool {
        matches!(self, Scalar::Dropout { .. })
    }

    /// Returns the approximate time for eight elements, in nanoseconds.
    pub(super) fn cost(self) -> u64 {
        match self {
            Scalar::Unary(Unary::Neg | Unary::Abs | Unary::Square | Unary::Relu | Unary::Clamp(..)) => 1,
            Scalar::Unary(_) => 8,
            Scalar::Binary(Binary::Pow | Binary::Mod) => 24,
            Scalar::Dropout { .. } => 16,
            _ => 1,
        }
    }

    /// Computes `len` elements. `first` is the index of the first one in the domain.
    ///
    /// # Safety
    /// Operands of the form [`Source::Words`] must be valid for `len` words, and `out` for writing `len` words. `out`
    /// must not overlap any operand. Words must have the types that the function was created for.
    pub(super) unsafe fn run(self, level: Level, x: [Source; MAX_OPERANDS], out: *mut u32, len: usize, first: usize) {
        // SAFETY: forwarded; every bit pattern is a word of each of the types.
        unsafe {
            match self {
                Scalar::Unary(op) => match x[0] {
                    Source::Words(p) => vmath::unary(op, level, slice(p, len), slice_mut(out, len)),
                    Source::One(v) => {
                        let mut one = [f32::from_bits(v)];
                        vmath::unary_in_place(op, level, &mut one);
                        slice_mut::<f32>(out, len).fill(one[0]);
                    }
                },
                Scalar::Signed(f) => map(x[0], out, len, f),
                Scalar::Binary(op) => vmath::binary(op, level, x[0].of(len), x[1].of(len), slice_mut(out, len)),
                Scalar::Unsigned2(op) => {
                    vmath::binary_int::<u32>(op, level, x[0].of(len), x[1].of(len), slice_mut(out, len));
                }
                Scalar::Signed2(op) => {
                    vmath::binary_int::<i32>(op, level, x[0].of(len), x[1].of(len), slice_mut(out, len));
                }
                Scalar::CompareFloats(op) => {
                    vmath::compare(op, level, x[0].of(len), x[1].of(len), slice_mut(out, len));
                }
                Scalar::CompareUnsigned(op) => {
                    vmath::compare_int::<u32>(op, level, x[0].of(len), x[1].of(len), slice_mut(out, len));
                }
                Scalar::CompareSigned(op) => {
                    vmath::compare_int::<i32>(op, level, x[0].of(len), x[1].of(len), slice_mut(out, len));
                }
                Scalar::Bits(op) => vmath::bits(op, level, x[0].of(len), x[1].of(len), slice_mut(out, len)),
                Scalar::BitsWith(op, word) => {
                    vmath::bits(op, level, x[0].of(len), Operand::Scalar(word), slice_mut(out, len));
                }
                Scalar::Not => {
                    let zero = Operand::Scalar(0u32);
                    vmath::compare_int(Compare::Equal, level, x[0].of(len), zero, slice_mut(out, len));
                }
                Scalar::Select => {
                    vmath::select::<u32>(level, x[0].of(len), x[1].of(len), x[2].of(len), slice_mut(out, len));
                }
                Scalar::Fill(word) => {
                    let word = Operand::Scalar(word);
                    vmath::select::<u32>(level, x[1].of(len), word, x[0].of(len), slice_mut(out, len));
                }
                Scalar::Copy => map::<u32, u32>(x[0], out, len, |v| v),
                Scalar::UnsignedToFloat => map::<u32, f32>(x[0], out, len, |v| v as f32),
                Scalar::SignedToFloat => map::<i32, f32>(x[0], out, len, |v| v as f32),
                Scalar::FloatToUnsigned => map::<f32, u32>(x[0], out, len, |v| v as u32),
                Scalar::FloatToSigned => map::<f32, i32>(x[0], out, len, |v| v as i32),
                Scalar::Dropout { uid, threshold, scale } => {
                    let one = |s: Source| match s {
                        Source::One(v) => v,
                        Source::Words(p) => *p,
                    };
                    let chances = Chances {
                        seed: one(x[1]),
                        uid,
                        step: one(x[2]),
                        threshold,
                        scale,
                    };
                    let out: &mut [f32] = slice_mut(out, len);
                    match x[0].of::<f32>(len) {
                        Operand::Slice(x) => drop_some(level, x, chances, first as u32, out),
                        Operand::Scalar(x) => {
                            let same = [x; 64];
                            for (at, out) in (first..).step_by(same.len()).zip(out.chunks_mut(same.len())) {
                                drop_some(level, &same, chances, at as u32, out);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A 32-bit element type that can be read from words.
trait Word: Element {
    fn from_word(word: u32) -> Self;
}

impl Word for f32 {
    fn from_word(word: u32) -> Self {
        f32::from_bits(word)
    }
}

impl Word for u32 {
    fn from_word(word: u32) -> Self {
        word
    }
}

impl Word for i32 {
    fn from_word(word: u32) -> Self {
        word as i32
    }
}

impl Source {
    /// Returns the operand as elements of a type.
    ///
    /// # Safety
    /// As [`Scalar::run`].
    unsafe fn of<'a, T: Word>(self, len: usize) -> Operand<'a, T> {
        match self {
            // SAFETY: forwarded.
            Source::Words(p) => Operand::Slice(unsafe { slice(p, len) }),
            Source::One(v) => Operand::Scalar(T::from_word(v)),
        }
    }
}

/// Returns `len` words as elements of a type, for reading.
///
/// # Safety
/// As [`Scalar::run`].
unsafe fn slice<'a, T: Element>(start: *const u32, len: usize) -> &'a [T] {
    // SAFETY: forwarded; all element types are 32-bit words.
    unsafe { std::slice::from_raw_parts(start.cast(), len) }
}

/// Returns `len` words as elements of a type, for writing.
///
/// # Safety
/// As [`Scalar::run`].
unsafe fn slice_mut<'a, T: Element>(start: *mut u32, len: usize) -> &'a mut [T] {
    // SAFETY: forwarded; all element types are 32-bit words.
    unsafe { std::slice::from_raw_parts_mut(start.cast(), len) }
}

/// Writes `f` of each element to `out`.
///
/// # Safety
/// As [`Scalar::run`].
unsafe fn map<A: Word, B: Element>(x: Source, out: *mut u32, len: usize, f: fn(A) -> B) {
    // SAFETY: forwarded.
    unsafe {
        let out: &mut [B] = slice_mut(out, len);
        match x.of::<A>(len) {
            Operand::Slice(x) => out.iter_mut().zip(x).for_each(|(o, &x)| *o = f(x)),
            Operand::Scalar(x) => out.fill(f(x)),
        }
    }
}
