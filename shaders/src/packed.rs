//! Packed weights, as `core.dequantize` expands them: blocks of small integers in words, with a scale for each block.

use meganeura_core::ops::Call;
use meganeura_core::quantization::{BLOCK, BlockFormat};

use super::body::{Body, Def, Id};
use super::emit::Emitter;
use super::kernel::CompileCx;
use super::location::Index;
use super::roles::Role;

/// A matrix that is packed in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed {
    pub(super) format: BlockFormat,
    /// The operand of the dispatch that holds the words.
    pub(super) words: usize,
    /// The operand of the dispatch that holds the scales.
    pub(super) scales: usize,
}

impl Packed {
    /// The matrix that a value is, if it is expanded from operands of the dispatch which a kernel only reads.
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

    /// Terms of a word.
    pub(super) fn terms(&self) -> usize {
        BLOCK / self.format.words()
    }

    /// The vector `number` of four terms among those of so many words, `unit`, as WGSL: of each word in turn.
    pub(super) fn expand(&self, words: usize) -> String {
        let vectors = self.terms() / 4;
        let word = match words {
            1 => "unit".to_owned(),
            _ => format!("unit[number / {vectors}u]"),
        };
        match self.format {
            BlockFormat::Q8_0 => format!("q8_0_to_f32x4({word})"),
            BlockFormat::Q4_0 => {
                format!("select(q4_0_low_to_f32x4({word}), q4_0_high_to_f32x4({word}), number % 2u == 1u)")
            }
        }
    }

    /// Four neighbouring terms, from one on whose number in the matrix is a multiple of four, as WGSL.
    pub(super) fn load_vector(&self, e: &mut Emitter, number: &str) -> Result<String, String> {
        let number = e.bind(number)?;
        let block = e.bind(&format!("{number} / {BLOCK}u"))?;
        let scale = e.load(self.scales, &block)?;
        match self.format {
            BlockFormat::Q8_0 => {
                let word = e.load(self.words, &format!("{number} / 4u"))?;
                Ok(format!("{scale} * q8_0_to_f32x4({word})"))
            }
            BlockFormat::Q4_0 => {
                let word = e.load(self.words, &format!("{block} * 4u + {number} / 4u % 4u"))?;
                let (low, high) = (
                    format!("q4_0_low_to_f32x4({word})"),
                    format!("q4_0_high_to_f32x4({word})"),
                );
                Ok(format!("{scale} * select({low}, {high}, {number} / 16u % 2u == 1u)"))
            }
        }
    }

    /// The number, among vectors of four terms, of that vector of the words from `k` times so many on, as WGSL.
    pub(super) fn vector_of(&self, words: usize) -> String {
        match self.format {
            BlockFormat::Q8_0 => format!("k * {words}u + number"),
            // A block has four words, and eight vectors.
            BlockFormat::Q4_0 => format!(
                "k / {}u * 8u + k % {}u * {words}u + number / 2u + number % 2u * 4u",
                4 / words,
                4 / words
            ),
        }
    }
}

fn format_of(words: usize, scales: usize) -> Result<BlockFormat, String> {
    let format = words.checked_div(scales).and_then(BlockFormat::of_words);
    format.ok_or_else(|| format!("there is no format of {words} words with {scales} scales"))
}

/// A variable with the number at a location.
pub(super) fn value(e: &mut Emitter, call: &Call, inputs: &[Id], at: &[Index]) -> Result<String, String> {
    let format = format_of(call.inputs[0].shape.numel(), call.inputs[1].shape.numel())?;
    let (last, rows) = at.split_last().ok_or("packed numbers have an axis")?;
    let i = e.index(last)?;
    let block = e.bind(&format!("{i} / {BLOCK}u"))?;
    let (word, number) = match format {
        BlockFormat::Q8_0 => (format!("{i} / 4u"), "q8_0_to_f32"),
        BlockFormat::Q4_0 => (format!("{block} * 4u + {i} % 16u / 4u"), "q4_0_to_f32"),
    };
    let word = e.bind(&word)?;
    let element = |index: String| [rows, &[Index::text(index)]].concat();
    let scale = e.value(inputs[1], &element(block))?;
    let word = e.value(inputs[0], &element(word))?;
    e.bind(&format!("{scale} * {number}({word}, {i} % {BLOCK}u)"))
}
