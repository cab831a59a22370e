//! Weights of few bits on GPUs: expanded by the kernel of the product, whatever the number of rows.

use crate::common;
use half::f16;
use meganeura_compiler::build::Builder;
use meganeura_core::quantization::{BLOCK, BlockFormat};
use meganeura_core::{DType, Graph};

const COLUMNS: usize = 300;
const LENGTH: usize = 19 * BLOCK;

#[test]
fn products_expand_weights_themselves() {
    let Some(device) = common::device() else { return };
    let values: Vec<f32> = (0..COLUMNS * LENGTH)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.01)
        .collect();
    let formats = [None].into_iter().chain(BlockFormat::ALL.map(Some));
    for format in formats {
        let (mut bytes, mut scales) = (Vec::new(), Vec::new());
        let numbers: Vec<f32> = match format {
            None => {
                bytes.extend(values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()));
                values.iter().map(|&x| f16::from_f32(x).to_f32()).collect()
            }
            Some(format) => {
                format.quantize(&values, &mut bytes, &mut scales);
                format.dequantize(&bytes, &scales)
            }
        };
        for rows in [1, 3, 40] {
            let mut g = Graph::new();
            let x = g.input("x", &[rows, LENGTH]);
            let y = match format {
                None => {
                    let weight = g.parameter_typed("weight", &[COLUMNS, LENGTH], DType::F16);
                    g.quantized_matmul(x, weight, None)
                }
                Some(format) => {
                    let blocks = LENGTH / BLOCK;
                    let words = g.parameter_typed("weight", &[COLUMNS, blocks * format.words()], DType::U32);
                    let scales = g.parameter_typed("scales", &[COLUMNS, blocks * format.scales()], DType::F16);
                    g.quantized_matmul(x, words, Some(scales.into()))
                }
            };
            g.set_outputs(vec![y]);
            let (mut session, _) = Builder::on(device.clone()).inference().build(&g).expect("a session");
            let kernels: Vec<&str> = session.plan().dispatches.iter().map(|d| &*d.kernel.name).collect();
            assert_eq!(kernels, ["core.quantized_matmul"], "{format:?} by {rows}");
            session.try_set_parameter_bytes("weight", &bytes).expect("weights");
            if format.is_some() {
                let scales: Vec<u8> = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
                session.try_set_parameter_bytes("scales", &scales).expect("scales");
            }
            let x: Vec<f32> = (0..rows * LENGTH).map(|i| (i as f32 * 0.29).sin()).collect();
            session.set_input("x", &x);
            session.step();
            let found = session.read_output(rows * COLUMNS);
            // Devices with cooperative matrices round both operands to f16.
            let tolerance = if session.plan().dispatches[0].use_coop {
                4e-3
            } else {
                1e-5
            };
            for (i, x) in x.chunks(LENGTH).enumerate() {
                for (j, row) in numbers.chunks(LENGTH).enumerate() {
                    let terms = x.iter().zip(row).map(|(&x, &w)| f64::from(x) * f64::from(w));
                    let (sum, size) = terms.fold((0.0, 0.0), |(s, z), t: f64| (s + t, z + t.abs()));
                    let error = (f64::from(found[i * COLUMNS + j]) - sum).abs();
                    assert!(
                        error <= tolerance * size,
                        "{format:?} by {rows}: [{i}, {j}] is off by {error}"
                    );
                }
            }
        }
    }
}
