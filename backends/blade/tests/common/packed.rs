//! Matmuls with packed weights, and their results by definition.

use half::f16;
use meganeura_core::quantization::{BLOCK, BlockFormat};
use meganeura_core::{DType, Graph, Session};

/// A matmul `x [rows, length] * weight [columns, length]` transposed.
pub(crate) struct PackedProduct {
    pub(crate) graph: Graph,
    /// Name of the format, and number of rows.
    pub(crate) label: String,
    columns: usize,
    length: usize,
    x: Vec<f32>,
    weight: Vec<u8>,
    scales: Vec<u8>,
    /// Numbers that the packed weight represents.
    numbers: Vec<f32>,
}

impl PackedProduct {
    /// Packs a weight in blocks, or in `f16` if there is no format. `length` must be a multiple of the block length.
    pub(crate) fn new(format: Option<BlockFormat>, [rows, columns, length]: [usize; 3]) -> Self {
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
        let x = g.input("x", &[rows, length]);
        let y = match format {
            None => {
                let weight = g.parameter_typed("weight", &[columns, length], DType::F16);
                g.quantized_matmul(x, weight, None)
            }
            Some(format) => {
                let blocks = length / BLOCK;
                let words = g.parameter_typed("weight", &[columns, blocks * format.words()], DType::U32);
                let scales = g.parameter_typed("scales", &[columns, blocks * format.scales()], DType::F16);
                g.quantized_matmul(x, words, Some(scales.into()))
            }
        };
        g.set_outputs(vec![y]);
        PackedProduct {
            graph: g,
            label: format!("{format:?} by {rows}"),
            columns,
            length,
            x: (0..rows * length).map(|i| (i as f32 * 0.29).sin()).collect(),
            weight,
            scales: scales.iter().flat_map(|s| s.to_le_bytes()).collect(),
            numbers,
        }
    }

    /// Runs a step and checks its results. They may differ from the definition by at most the tolerance times the sum
    /// of the absolute terms.
    pub(crate) fn check(&self, session: &mut Session, tolerance: f64) {
        session
            .try_set_parameter_bytes("weight", &self.weight)
            .expect("weights");
        if !self.scales.is_empty() {
            session.try_set_parameter_bytes("scales", &self.scales).expect("scales");
        }
        session.set_input("x", &self.x);
        session.step();
        let found = session.read_output(self.x.len() / self.length * self.columns);
        for (i, x) in self.x.chunks(self.length).enumerate() {
            for (j, row) in self.numbers.chunks(self.length).enumerate() {
                let terms = x.iter().zip(row).map(|(&x, &w)| f64::from(x) * f64::from(w));
                let (sum, size) = terms.fold((0.0, 0.0), |(s, z), t: f64| (s + t, z + t.abs()));
                let error = (f64::from(found[i * self.columns + j]) - sum).abs();
                assert!(
                    error <= tolerance * size,
                    "{}: [{i}, {j}] is off by {error} of {size}",
                    self.label
                );
            }
        }
    }
}
