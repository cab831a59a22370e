//! Matmuls with packed weights, and their results by definition.

use half::f16;
use meganeura_core::quantization::{BLOCK, BlockFormat};
use meganeura_core::{DType, Graph, Session};

/// A matmul `x [rows, length]` times the transposed `weight [columns, length]`; or `x [rows, columns] * weight`,
/// which computes the gradient of the first matmul's `x`.
pub(crate) struct PackedProduct {
    pub(crate) graph: Graph,
    /// Name of the format, and number of rows.
    pub(crate) label: String,
    columns: usize,
    length: usize,
    is_transposed: bool,
    x: Vec<f32>,
    weight: Vec<u8>,
    scales: Vec<u8>,
    /// Numbers that the packed weight represents.
    numbers: Vec<f32>,
}

impl PackedProduct {
    /// Packs a weight in blocks, or in `f16` without a format. `length` must be a multiple of the block length.
    pub(crate) fn new(format: Option<BlockFormat>, sizes: [usize; 3]) -> Self {
        PackedProduct::of(format, sizes, true)
    }

    /// Packs a weight for a matmul by the weight itself, not by its transpose.
    pub(crate) fn gradient(format: BlockFormat, sizes: [usize; 3]) -> Self {
        PackedProduct::of(Some(format), sizes, false)
    }

    fn of(format: Option<BlockFormat>, [rows, columns, length]: [usize; 3], is_transposed: bool) -> Self {
        let values: Vec<f32> = (0..columns * length)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.01)
            .collect();
        let (mut weight, mut scales) = (Vec::new(), Vec::new());
        let numbers = match format {
            None => {
                weight.extend(values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()));
                values.iter().map(|&x| f16::from_f32(x).to_f32()).collect()
            }
            Some(format) => {
                format.quantize(&values, &mut weight, &mut scales);
                format.dequantize(&weight, &scales)
            }
        };
        let mut g = Graph::new();
        let terms = if is_transposed { length } else { columns };
        let x = g.input("x", &[rows, terms]);
        let y = match format {
            None => {
                let weight = g.parameter_typed("weight", &[columns, length], DType::F16);
                g.quantized_matmul(x, weight, None)
            }
            Some(format) => {
                let blocks = length / BLOCK;
                let (words, scales) = ([columns, blocks * format.words()], [columns, blocks * format.scales()]);
                if is_transposed {
                    let words = g.parameter_typed("weight", &words, DType::U32);
                    let scales = g.parameter_typed("scales", &scales, DType::F16);
                    g.quantized_matmul(x, words, Some(scales.into()))
                } else {
                    // These are inputs, because inference would expand parameters once for all steps.
                    let words = g.input_u32("weight", &words);
                    let scales = g.input_typed("scales", &scales, DType::F16);
                    let weight = g.dequantize(words, scales);
                    g.matmul(x, weight)
                }
            }
        };
        g.set_outputs(vec![y]);
        PackedProduct {
            graph: g,
            label: format!("{format:?} by {rows}"),
            columns,
            length,
            is_transposed,
            x: (0..rows * terms).map(|i| (i as f32 * 0.29).sin()).collect(),
            weight,
            scales: scales.iter().flat_map(|s| s.to_le_bytes()).collect(),
            numbers,
        }
    }

    /// Runs a step and checks its results. They may differ from the definition by at most the tolerance times the sum
    /// of the absolute terms.
    pub(crate) fn check(&self, session: &mut Session, tolerance: f64) {
        let mut set = |name: &str, bytes: &[u8]| {
            if self.is_transposed {
                session.try_set_parameter_bytes(name, bytes).expect(name);
            } else {
                session.try_set_input_bytes(name, bytes).expect(name);
            }
        };
        set("weight", &self.weight);
        if !self.scales.is_empty() {
            set("scales", &self.scales);
        }
        session.set_input("x", &self.x);
        session.step();
        let row = |row: usize| &self.numbers[row * self.length..][..self.length];
        let (terms, results) = if self.is_transposed {
            (self.length, self.columns)
        } else {
            (self.columns, self.length)
        };
        let found = session.read_output(self.x.len() / terms * results);
        for (i, x) in self.x.chunks(terms).enumerate() {
            for j in 0..results {
                let weight = |k: usize| if self.is_transposed { row(j)[k] } else { row(k)[j] };
                let terms = x.iter().enumerate().map(|(k, &x)| f64::from(x) * f64::from(weight(k)));
                let (sum, size) = terms.fold((0.0, 0.0), |(s, z), t: f64| (s + t, z + t.abs()));
                let error = (f64::from(found[i * results + j]) - sum).abs();
                assert!(
                    error <= tolerance * size,
                    "{}: [{i}, {j}] is off by {error} of {size}",
                    self.label
                );
            }
        }
    }
}
