//! Packed weights in the format of `core.dequantize`: blocks of small integers in words, with scales for each block.
//! A *unit* is the part of a block that a thread loads at a time. It has one or more words, and for some formats also
//! upper bits and scales.

use meganeura_core::ops::Call;
use meganeura_core::quantization::{BLOCK, BlockFormat};

use super::body::{Body, Def, Id};
use super::emit::Emitter;
use super::kernel::{CompileCx, Launch, Memory};
use super::location::{Base, Index};
use super::module;
use super::roles::Role;

/// A matrix that is packed in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed {
    pub(super) format: BlockFormat,
    /// Index of the dispatch operand that contains the words.
    pub(super) words: usize,
    /// Index of the dispatch operand that contains the scales.
    pub(super) scales: usize,
}

impl Packed {
    /// Returns the packed matrix of a value. Returns `None` unless the value is dequantized from operands of the
    /// dispatch that the kernel only reads.
    pub(super) fn of(body: &Body, cx: &CompileCx, id: Id) -> Option<Self> {
        if body.role(id) != Some(Role::Packed) {
            return None;
        }
        let &[words, scales] = body.inputs(id) else {
            return None;
        };
        let operand = |id: Id| match body.nodes[id].def {
            Def::Operand(operand) => cx.memory_of(operand).map(|_| operand),
            _ => None,
        };
        Some(Packed {
            format: format_of(body.ty(words).numel(), body.ty(scales).numel()).ok()?,
            words: operand(words)?,
            scales: operand(scales)?,
        })
    }

    /// Returns the number of terms in a unit of `words` words.
    pub(super) fn terms(&self, words: usize) -> usize {
        words * if self.format == BlockFormat::Q8_0 { 4 } else { 8 }
    }

    /// Returns true if the sum of a unit is multiplied by the scale of its block. Otherwise units contain their
    /// scales.
    pub(super) fn is_scaled(&self) -> bool {
        matches!(self.format, BlockFormat::Q8_0 | BlockFormat::Q4_0)
    }

    /// Returns the type of units of `words` words, as WGSL. A unit with scales consists of a word of lower bits, the
    /// upper bits in the form that `five_bits_to_f32x4` or `six_bits_to_f32x4` requires, and both scales.
    pub(super) fn unit_type(&self, words: usize) -> &'static str {
        if self.is_scaled() {
            module::words(words)
        } else {
            "vec4<u32>"
        }
    }

    /// Returns the unit of `words` words with the index `number`, as WGSL.
    pub(super) fn load_unit(&self, e: &mut Emitter, words: usize, number: &str) -> Result<String, String> {
        if self.is_scaled() {
            let loaded = e.module.load_words(self.words, words, number);
            return loaded.ok_or_else(|| "packed weights are not in memory".to_owned());
        }
        let number = e.bind(number)?;
        let (block, word) = (e.bind(&format!("{number} / 4u"))?, e.bind(&format!("{number} % 4u"))?);
        let (low, above) = self.load_bits(e, &block, &word)?;
        let scale = e
            .module
            .load(self.scales, &format!("{block} * {}u", self.format.scales()));
        let second = match self.format.scales() {
            1 => "0u".to_owned(),
            _ => format!(
                "bitcast<u32>({})",
                e.module.load(self.scales, &format!("{block} * 2u + 1u"))
            ),
        };
        Ok(format!("vec4<u32>({low}, {above}, bitcast<u32>({scale}), {second})"))
    }

    /// Returns a word of lower bits of a block, and the upper bits in the form that `five_bits_to_f32x4` or
    /// `six_bits_to_f32x4` requires.
    fn load_bits(&self, e: &mut Emitter, block: &str, word: &str) -> Result<(String, String), String> {
        let words = self.format.words();
        let low = e.load(self.words, &format!("{block} * {words}u + {word}"))?;
        let above = match self.format {
            BlockFormat::Q6 => {
                let above = e.load(self.words, &format!("{block} * {words}u + 4u + {word} % 2u"))?;
                e.bind(&format!("{above} >> ({word} / 2u * 2u)"))?
            }
            BlockFormat::Q5_1 | BlockFormat::Q5_0 => {
                let above = e.load(self.words, &format!("{block} * {words}u + 4u"))?;
                e.bind(&format!("{above} >> {word}"))?
            }
            BlockFormat::Q8_0 | BlockFormat::Q4_1 | BlockFormat::Q4_0 => "0u".to_owned(),
        };
        Ok((low, above))
    }

    /// Returns a WGSL expression for four terms of the variable `unit`, a unit of `words` words. They are the vector
    /// with the index `number`.
    pub(super) fn expand(&self, words: usize) -> String {
        let vectors = self.terms(1) / 4;
        let word = match words {
            1 => "unit".to_owned(),
            _ => format!("unit[number / {vectors}u]"),
        };
        let [first, second] = ["bitcast<f32>(unit.z)", "bitcast<f32>(unit.w)"];
        match self.format {
            BlockFormat::Q8_0 => format!("q8_0_to_f32x4({word})"),
            BlockFormat::Q4_0 => {
                format!("select(q4_0_low_to_f32x4({word}), q4_0_high_to_f32x4({word}), number % 2u == 1u)")
            }
            BlockFormat::Q6 => {
                let scale = format!("select({first}, {second}, number % 2u == 1u)");
                self.scaled("unit.x", "unit.y", "number % 2u", [&scale, ""])
            }
            _ => self.scaled("unit.x", "unit.y", "number % 2u", [first, second]),
        }
    }

    /// Returns a WGSL expression for the four terms of a word that belong to half `half` of the block. They are
    /// computed from their lower bits in `word`, their upper bits in `above`, their scale and their minimum.
    fn scaled(&self, word: &str, above: &str, half: &str, [scale, minimum]: [&str; 2]) -> String {
        let integers = match self.format {
            BlockFormat::Q6 => format!("six_bits_to_f32x4({word}, {above}, {half})"),
            BlockFormat::Q5_1 | BlockFormat::Q5_0 => {
                let offset = self.format.offset();
                format!("five_bits_to_f32x4({word}, {above}, {half}, {offset}.0)")
            }
            _ => format!("four_bits_to_f32x4({word}, {half})"),
        };
        if self.format.has_minimum() {
            format!("fma({integers}, vec4<f32>({scale}), vec4<f32>({minimum}))")
        } else {
            format!("{scale} * {integers}")
        }
    }

    /// Returns the first four words of a block, as WGSL.
    pub(super) fn load_block_low(&self, e: &mut Emitter, block: &str) -> Result<String, String> {
        let none = || "packed weights are not in memory".to_owned();
        let words = self.format.words();
        if words.is_multiple_of(4) {
            let number = format!("{block} * {}u", words / 4);
            return e.module.load_words(self.words, 4, &number).ok_or_else(none);
        }
        let word = |i: usize| {
            e.module
                .load_words(self.words, 1, &format!("{block} * {words}u + {i}u"))
        };
        let loaded: Option<Vec<String>> = (0..4).map(word).collect();
        Ok(format!("vec4<u32>({})", loaded.ok_or_else(none)?.join(", ")))
    }

    /// Returns the words of a block after the first four, as WGSL.
    pub(super) fn load_block_high(&self, e: &mut Emitter, block: &str) -> Result<String, String> {
        let none = || "packed weights are not in memory".to_owned();
        let words = self.format.words();
        if words == 8 {
            let number = format!("{block} * 2u + 1u");
            return e.module.load_words(self.words, 4, &number).ok_or_else(none);
        }
        let mut word = |i: usize| {
            if i < words {
                e.module
                    .load_words(self.words, 1, &format!("{block} * {words}u + {i}u"))
            } else {
                Some("0u".to_owned())
            }
        };
        let loaded: Option<Vec<String>> = (4..8).map(&mut word).collect();
        Ok(format!("vec4<u32>({})", loaded.ok_or_else(none)?.join(", ")))
    }

    /// Returns the scales of a block, as WGSL: the scale and zero, the scale and the minimum, or the scales of both halves.
    pub(super) fn load_block_scales(&self, e: &mut Emitter, block: &str) -> Result<String, String> {
        Ok(match self.format.scales() {
            1 => {
                let scale = e.load(self.scales, block)?;
                format!("vec2<f32>({scale}, 0.0)")
            }
            _ => {
                let first = e.load(self.scales, &format!("{block} * 2u"))?;
                let second = e.load(self.scales, &format!("{block} * 2u + 1u"))?;
                format!("vec2<f32>({first}, {second})")
            }
        })
    }

    /// Returns true if blocks have more than four words.
    pub(super) fn has_high(&self) -> bool {
        self.format.words() > 4
    }

    /// Returns true if the sum of a block depends on the sums of the row's terms.
    pub(super) fn is_summed(&self) -> bool {
        self.format.has_minimum() || matches!(self.format, BlockFormat::Q8_0 | BlockFormat::Q4_0)
    }

    /// Returns a WGSL expression for the vector with the index `number` (0 to 7) of a block. The expression includes
    /// the bias that [`Packed::scaled_block`] subtracts.
    pub(super) fn expand_block(&self) -> String {
        match self.format {
            BlockFormat::Q8_0 => "q8_0_plus_384(select(low[number % 4u], high[number % 4u], number >= 4u))".into(),
            BlockFormat::Q4_0 | BlockFormat::Q4_1 => "four_bits_plus_16(low[number % 4u] >> (number / 4u * 4u))".into(),
            BlockFormat::Q5_0 | BlockFormat::Q5_1 => format!(
                "five_bits_to_f32x4(low[number % 4u], high.x >> (number % 4u), number / 4u, {}.0)",
                self.format.offset()
            ),
            BlockFormat::Q6 => {
                "six_bits_to_f32x4(low[number % 4u], high[number % 2u] >> (number % 4u / 2u * 2u), number / 4u)".into()
            }
        }
    }

    /// Returns the bias of the vectors of [`Packed::expand_block`].
    fn bias(&self) -> u32 {
        match self.format {
            BlockFormat::Q8_0 => 384,
            BlockFormat::Q4_0 => 24,
            BlockFormat::Q4_1 => 16,
            BlockFormat::Q5_0 | BlockFormat::Q5_1 | BlockFormat::Q6 => 0,
        }
    }

    /// Returns the same vector without the bias and multiplied with its scale, as WGSL.
    pub(super) fn expand_exactly(&self) -> String {
        let (vector, bias) = (self.expand_block(), self.bias());
        match self.format {
            BlockFormat::Q8_0 | BlockFormat::Q4_0 => {
                format!("fma({vector}, vec4<f32>(scales.x), vec4<f32>(-{bias}.0 * scales.x))")
            }
            BlockFormat::Q4_1 => format!("fma({vector} - {bias}.0, vec4<f32>(scales.x), vec4<f32>(scales.y))"),
            BlockFormat::Q5_0 => format!("scales.x * {vector}"),
            BlockFormat::Q5_1 => format!("fma({vector}, vec4<f32>(scales.x), vec4<f32>(scales.y))"),
            BlockFormat::Q6 => format!("select(scales.x, scales.y, number >= 4u) * {vector}"),
        }
    }

    /// Returns the sum of a block, as WGSL. It is computed from the `scales` of the block, the sums of both `halves`,
    /// and the sums of the row's `terms` of both halves.
    pub(super) fn scaled_block(&self) -> String {
        let (both, terms, bias) = ("(halves.x + halves.y)", "(terms.x + terms.y)", self.bias());
        match self.format {
            BlockFormat::Q8_0 | BlockFormat::Q4_0 => format!("scales.x * fma(-{bias}.0, {terms}, {both})"),
            BlockFormat::Q4_1 => format!("fma(scales.x, fma(-{bias}.0, {terms}, {both}), scales.y * {terms})"),
            BlockFormat::Q5_0 => format!("scales.x * {both}"),
            BlockFormat::Q5_1 => format!("fma(scales.x, {both}, scales.y * {terms})"),
            BlockFormat::Q6 => "fma(scales.x, halves.x, scales.y * halves.y)".into(),
        }
    }

    /// Returns four adjacent terms, as WGSL. `number` is the index of the first one in the matrix, a multiple of
    /// four.
    pub(super) fn load_vector(&self, e: &mut Emitter, number: &str) -> Result<String, String> {
        let number = e.bind(number)?;
        let block = e.bind(&format!("{number} / {BLOCK}u"))?;
        match self.format {
            BlockFormat::Q8_0 => {
                let scale = e.load(self.scales, &block)?;
                let word = e.load(self.words, &format!("{number} / 4u"))?;
                Ok(format!("{scale} * q8_0_to_f32x4({word})"))
            }
            BlockFormat::Q4_0 => {
                let scale = e.load(self.scales, &block)?;
                let word = e.load(self.words, &format!("{block} * 4u + {number} / 4u % 4u"))?;
                let (low, high) = (
                    format!("q4_0_low_to_f32x4({word})"),
                    format!("q4_0_high_to_f32x4({word})"),
                );
                Ok(format!("{scale} * select({low}, {high}, {number} / 16u % 2u == 1u)"))
            }
            _ => {
                let half = e.bind(&format!("{number} / 16u % 2u"))?;
                let word = e.bind(&format!("{number} / 4u % 4u"))?;
                let (low, above) = self.load_bits(e, &block, &word)?;
                let (scale, minimum) = scales(self.format, &block, &half);
                let scale = e.load(self.scales, &scale)?;
                let minimum = match minimum {
                    Some(minimum) => e.load(self.scales, &minimum)?,
                    None => String::new(),
                };
                Ok(self.scaled(&low, &above, &half, [&scale, &minimum]))
            }
        }
    }

    /// Compiles a launch that writes the matrix of `elements` numbers to memory as `f16`, in row-major order.
    pub(super) fn expand_to_f16(
        &self,
        body: &Body,
        cx: &CompileCx,
        elements: usize,
        to: Memory,
    ) -> Result<Launch, String> {
        /// Number of elements that a thread writes: two vectors, 16 bytes. The size of a block is a multiple of it.
        const THREAD_ELEMENTS: usize = 8;
        let mut e = Emitter::new(body, cx);
        let (code, vectors) = e.writing_block(&Base::new("i", elements / THREAD_ELEMENTS), |e| {
            let vectors = [0, 4].map(|offset| {
                let vector = self.load_vector(e, &format!("i * {THREAD_ELEMENTS}u + {offset}u"))?;
                e.bind(&vector)
            });
            vectors.into_iter().collect::<Result<Vec<_>, _>>()
        })?;
        // Kernels for libraries use no extensions. Other kernels need `f16` for the matmul anyway.
        let store = if cx.library.is_some() {
            let words = vectors
                .iter()
                .flat_map(|vector| [".xy", ".zw"].map(|pair| format!("pack2x16float({vector}{pair})")));
            let words: Vec<String> = words.collect();
            let name = e.module.scratch_words(to);
            format!("{name}[i] = vec4<u32>({});\n", words.join(", "))
        } else {
            let name = e.module.scratch_halves(to);
            let [first, second] = &vectors[..] else {
                return Err("a thread expands two vectors".into());
            };
            format!("{name}[i * 2u] = vec4<f16>({first});\n{name}[i * 2u + 1u] = vec4<f16>({second});\n")
        };
        e.module.finish_elements(code + &store, elements / THREAD_ELEMENTS)
    }

    /// Returns the index, within its column, of vector `number` of four terms in the unit with the index `k`, as
    /// WGSL.
    pub(super) fn vector_of(&self, words: usize) -> String {
        match self.format {
            BlockFormat::Q8_0 => format!("k * {words}u + number"),
            // A block has four words of lower bits, and eight vectors.
            _ => format!(
                "k / {}u * 8u + k % {}u * {words}u + number / 2u + number % 2u * 4u",
                4 / words,
                4 / words
            ),
        }
    }
}

/// Returns the index of the scale of a term in half `half` of a block, and the index of the minimum, if any.
fn scales(format: BlockFormat, block: &str, half: &str) -> (String, Option<String>) {
    match format {
        BlockFormat::Q6 => (format!("{block} * 2u + {half}"), None),
        _ if format.has_minimum() => (format!("{block} * 2u"), Some(format!("{block} * 2u + 1u"))),
        _ => (block.to_owned(), None),
    }
}

fn format_of(words: usize, scales: usize) -> Result<BlockFormat, String> {
    BlockFormat::of(words, scales).ok_or_else(|| format!("there is no format of {words} words with {scales} scales"))
}

/// Returns a variable that contains the number at a location.
pub(super) fn value(e: &mut Emitter, call: &Call, inputs: &[Id], at: &[Index]) -> Result<String, String> {
    let format = format_of(call.inputs[0].shape.numel(), call.inputs[1].shape.numel())?;
    let (last, rows) = at.split_last().ok_or("packed numbers have an axis")?;
    let i = e.index(last)?;
    let block = e.bind(&format!("{i} / {BLOCK}u"))?;
    let words = format.words();
    let word = match format {
        BlockFormat::Q8_0 => format!("{i} / 4u"),
        _ => format!("{block} * {words}u + {i} % 16u / 4u"),
    };
    let above = match format {
        BlockFormat::Q6 => Some(format!("{block} * {words}u + 4u + {i} % 8u / 4u")),
        BlockFormat::Q5_1 | BlockFormat::Q5_0 => Some(format!("{block} * {words}u + 4u")),
        BlockFormat::Q8_0 | BlockFormat::Q4_1 | BlockFormat::Q4_0 => None,
    };
    let (scale, minimum) = scales(format, &block, &format!("{i} / 16u % 2u"));
    // Loads an element of an operand. The index is bound to a variable first.
    let load = |e: &mut Emitter, input: usize, index: String| {
        let index = e.bind(&index)?;
        e.value(inputs[input], &[rows, &[Index::text(index)]].concat())
    };
    let scale = load(e, 1, scale)?;
    let word = load(e, 0, word)?;
    let above = above.map(|above| load(e, 0, above)).transpose()?.unwrap_or_default();
    let number = match format {
        BlockFormat::Q8_0 => format!("q8_0_to_f32({word}, {i} % {BLOCK}u)"),
        BlockFormat::Q4_0 => format!("q4_0_to_f32({word}, {i} % {BLOCK}u)"),
        BlockFormat::Q6 => format!("(f32(six_bits({word}, {above}, {i} % {BLOCK}u)) - 32.0)"),
        BlockFormat::Q5_0 => format!("(f32(five_bits({word}, {above}, {i} % {BLOCK}u)) - 16.0)"),
        BlockFormat::Q5_1 => format!("f32(five_bits({word}, {above}, {i} % {BLOCK}u))"),
        BlockFormat::Q4_1 => format!("f32(four_bits({word}, {i} % {BLOCK}u))"),
    };
    match minimum {
        Some(minimum) => {
            let minimum = load(e, 1, minimum)?;
            e.bind(&format!("fma({scale}, {number}, {minimum})"))
        }
        None => e.bind(&format!("{scale} * {number}")),
    }
}
