//! Weights of a few bits in blocks with separate scales.

use super::index::positions;
use super::{OnnxOp, ms};
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::tensor::Tensor;

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    ms("GatherBlockQuantized", gather_block_quantized)
        .partly("other axes than the first to gather along and the last to quantise along, floats of 8 and 4 bits"),
    ms("MatMulNBits", matmul_nbits)
        .partly("weights of other than 2, 4 and 8 bits, g_idx, weights that a program has packed for itself"),
];

/// Zero points of blocks.
enum Zeros {
    /// The same number for all blocks.
    All(f64),
    /// Integers that are packed like the weights; each row begins at a byte boundary.
    Packed(Vec<i64>),
    /// One float for each block.
    Floats(Vec<f64>),
}

/// Integers of 2, 4 or 8 bits packed in bytes, the first in the lowest bits, or one integer per byte.
#[derive(Clone, Copy)]
struct Packing {
    bits: usize,
    per_byte: usize,
}

impl Packing {
    fn of_bytes(bits: i64) -> Result<Self, String> {
        match bits {
            2 | 4 | 8 => Ok(Packing {
                bits: bits as usize,
                per_byte: 8 / bits as usize,
            }),
            _ => Err(format!("weights of {bits} bits are not supported")),
        }
    }

    /// Returns integer `i` of the list that begins at `start`.
    fn get(self, list: &[i64], start: usize, i: usize) -> i64 {
        if self.per_byte == 1 {
            return list[start + i];
        }
        let byte = list[start + i / self.per_byte];
        (byte >> (self.bits * (i % self.per_byte))) & ((1 << self.bits) - 1)
    }
}

/// A matrix `[n, k]` whose rows are divided into blocks.
struct Blocks {
    n: usize,
    k: usize,
    block: usize,
    packing: Packing,
}

impl Blocks {
    fn count(&self) -> usize {
        self.k.div_ceil(self.block)
    }

    /// Dequantises the weights to `f32` from the operands `words`, `scales` and `zeros`, which must be known at import. Rows of
    /// words have `row` bytes. `middle` is the zero point of all blocks without the operand `zeros`.
    fn dequantized(&self, call: &Call, operands: [usize; 3], row: usize, middle: f64) -> Result<Tensor, String> {
        let [words, scales, zeros] = operands;
        let Blocks { n, k, block, packing } = *self;
        let unfit = || format!("operands {} do not fit {n} rows of {k} weights", call.types());
        let blocks = self.count();
        let words = call
            .known_ints(words, "the weights")?
            .ok_or("the weights are missing")?;
        let scales = call
            .known_floats(scales, "the scales")?
            .ok_or("the scales are missing")?;
        if Some(words.len()) != n.checked_mul(row) || Some(scales.len()) != n.checked_mul(blocks) {
            return Err(unfit());
        }
        let zero_row = blocks.div_ceil(packing.per_byte);
        let zeros = match call.has_input(zeros) {
            false => Zeros::All(middle),
            true if call.element(zeros)?.is_float() => {
                Zeros::Floats(call.known_floats(zeros, "the zero points")?.unwrap_or_default())
            }
            true => Zeros::Packed(call.known_ints(zeros, "the zero points")?.unwrap_or_default()),
        };
        let fits = match &zeros {
            Zeros::All(_) => true,
            Zeros::Packed(zeros) => Some(zeros.len()) == n.checked_mul(zero_row),
            Zeros::Floats(zeros) => zeros.len() == scales.len(),
        };
        if !fits || row.saturating_mul(packing.per_byte) < k {
            return Err(unfit());
        }
        let mut data = Vec::with_capacity(n * k);
        for line in 0..n {
            for (at, start) in (0..k).step_by(block).enumerate() {
                let zero = match &zeros {
                    Zeros::All(zero) => *zero,
                    Zeros::Packed(zeros) => packing.get(zeros, line * zero_row, at) as f64,
                    Zeros::Floats(zeros) => zeros[line * blocks + at],
                };
                let scale = scales[line * blocks + at];
                let end = k.min(start + block);
                data.extend((start..end).map(|i| ((packing.get(&words, line * row, i) as f64 - zero) * scale) as f32));
            }
        }
        Ok(Tensor::f32(&[n, k], data))
    }
}

/// Returns a positive size from an attribute.
fn size(call: &Call, name: &str, default: i64) -> Result<usize, String> {
    usize::try_from(call.int(name, default)?)
        .ok()
        .filter(|&n| n > 0)
        .ok_or_else(|| format!("{name} is not positive"))
}

/// Builds a product with weights of 2, 4 or 8 bits in blocks along the summed axis, which are dequantised at import.
///
/// Operands: floats `[..., K]`, bytes `[N, blocks, block_size * bits / 8]`, a scale for each block, zero points (bytes or
/// floats), g_idx, and a bias `[N]`.
fn matmul_nbits(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let packing = Packing::of_bytes(call.int("bits", 4)?)?;
    let matrix = Blocks {
        n: size(call, "N", 0)?,
        k: size(call, "K", 0)?,
        block: size(call, "block_size", 0)?,
        packing,
    };
    if call.has_input(4) {
        return Err("g_idx (operand 4), which reorders the rows, is not supported".into());
    }
    if call.int("weight_prepacked", 0)? != 0 {
        return Err("weights that are packed for a program (weight_prepacked) are not supported".into());
    }
    // Each block begins at a byte boundary.
    let bytes = matrix.block / packing.per_byte;
    let row = matrix.count().checked_mul(bytes);
    let (true, Some(row)) = (matrix.block.is_multiple_of(packing.per_byte), row) else {
        let (block, bits) = (matrix.block, packing.bits);
        return Err(format!("block_size = {block} is not supported with {bits} bits"));
    };
    let middle = f64::from(1 << (packing.bits - 1));
    // [n, k]: the product reads it transposed.
    let weights = matrix.dequantized(call, [1, 2, 3], row, middle)?;
    let weights = call.derived("dequantized", weights);
    let weights = call.value_of(&weights)?;
    let x = call.value(0)?;
    let x = call.as_f32(x);
    let y = call.graph().matmul_bt(x, weights);
    let mut y = call.as_element(y.into(), element);
    if let Some(bias) = call.optional(5)? {
        y = call.graph().add(y, bias).into();
    }
    call.one(y, element)
}

/// Gathers rows of a table of 2, 4 or 8 bits in blocks along the last axis, which is dequantised at import.
///
/// Operands: the table `[rows, ..., values]`, indices, scales and zero points.
fn gather_block_quantized(call: &mut Call) -> Built {
    let element = call.element(2)?;
    let mut dims = call.dims(0)?;
    let rank = dims.len();
    let gathered = call.axis(call.int("gather_axis", 0)?, rank)?;
    let quantized = call.axis(call.int("quantize_axis", 1)?, rank)?;
    if gathered != 0 || quantized + 1 != rank || rank < 2 {
        return Err(format!(
            "gather_axis = {gathered} and quantize_axis = {quantized} of {rank} dimensions are not supported"
        ));
    }
    let (packing, middle) = match call.element(0)? {
        ElementType::U8 => {
            let packing = Packing::of_bytes(call.int("bits", 4)?)?;
            (packing, f64::from(1 << (packing.bits - 1)))
        }
        ElementType::U4 | ElementType::I4 => (Packing { bits: 4, per_byte: 1 }, 0.0),
        other => return Err(format!("a table of {other} is not supported")),
    };
    let row = dims[rank - 1];
    dims[rank - 1] = row
        .checked_mul(packing.per_byte)
        .ok_or_else(|| format!("a table of {} is too large", call.types()))?;
    let matrix = Blocks {
        n: dims[..rank - 1].iter().product(),
        k: dims[rank - 1],
        block: size(call, "block_size", 128)?,
        packing,
    };
    let table = matrix.dequantized(call, [0, 2, 3], row, middle)?;
    let table = call.derived("dequantized", table);
    let table = call.value_of(&table)?;
    let at = positions(call, 1, dims[0])?;
    let graph = call.graph();
    let table = graph.reshape(table, &dims);
    let y = graph.gather_axis(table, at, 0);
    let y = call.as_element(y.into(), element);
    call.one(y, element)
}
