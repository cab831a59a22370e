//! Tests of quantised parameters in sessions, and of training the layers around them.

use std::sync::Arc;

use half::f16;
use meganeura_compiler::builder::{Builder, Mode};
use meganeura_core::quantization::{BLOCK, BlockFormat};
use meganeura_core::{DType, Error, Graph, Session};
use meganeura_cpu::CpuDevice;

const ROWS: usize = 6;
const WIDTH: usize = 2 * BLOCK;

fn session(g: &Graph, mode: Mode) -> Session {
    Builder::on(Arc::new(CpuDevice::new(2)))
        .mode(mode)
        .build(g)
        .expect("a session")
        .0
}

fn weights() -> Vec<f32> {
    (0..ROWS * WIDTH)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.01)
        .collect()
}

/// Returns integers and scales as bytes, and the numbers that they represent.
fn packed(format: BlockFormat) -> (Vec<u8>, Vec<u8>, Vec<f32>) {
    let (mut bytes, mut scales) = (Vec::new(), Vec::new());
    format.quantize(&weights(), &mut bytes, &mut scales);
    let numbers = format.dequantize(&bytes, &scales);
    (bytes, scales.iter().flat_map(|s| s.to_le_bytes()).collect(), numbers)
}

/// Returns a loss of `x [3, WIDTH]` times the trained weight `a [WIDTH, WIDTH]`, times a weight that is not trained.
fn graph(format: Option<BlockFormat>) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[3, WIDTH]);
    let a = g.parameter("a", &[WIDTH, WIDTH]);
    let y = g.matmul(x, a);
    let y = match format {
        Some(format) => {
            let words = g.parameter_typed("words", &[ROWS, WIDTH / BLOCK * format.words()], DType::U32);
            let scales = g.parameter_typed("scales", &[ROWS, WIDTH / BLOCK * format.scales()], DType::F16);
            g.quantized_matmul(y, words, Some(scales.into()))
        }
        None => {
            let weight = g.parameter("weight", &[ROWS, WIDTH]);
            g.trainable(weight, false);
            g.matmul_bt(y, weight)
        }
    };
    let y = g.sin(y);
    let loss = g.mean_all(y);
    g.set_outputs(vec![loss]);
    g
}

#[test]
fn gradients_go_through_packed_weights() {
    let x: Vec<f32> = (0..3 * WIDTH).map(|i| (i as f32 * 0.37).sin()).collect();
    let a: Vec<f32> = (0..WIDTH * WIDTH).map(|i| (i as f32 * 0.11).cos() * 0.1).collect();
    for format in BlockFormat::ALL {
        let (bytes, scales, numbers) = packed(format);
        let run = |g: &Graph| {
            let mut session = session(g, Mode::Training);
            match session.try_set_parameter("weight", &numbers) {
                Ok(()) => {}
                Err(_) => {
                    session.try_set_parameter_bytes("words", &bytes).expect("words");
                    session.try_set_parameter_bytes("scales", &scales).expect("scales");
                }
            }
            session.set_parameter("a", &a);
            session.set_input("x", &x);
            session.step();
            let mut gradients = session.read_grad("a");
            gradients.push(session.read_loss());
            gradients
        };
        let (found, wanted) = (run(&graph(Some(format))), run(&graph(None)));
        let size = wanted.iter().fold(0.0f32, |m, w| m.max(w.abs()));
        for (f, w) in found.iter().zip(&wanted) {
            assert!((f - w).abs() <= 1e-5 * size, "{format:?}: {f}, not {w}");
        }
    }
}

#[test]
fn bytes_of_parameters_go_in_and_out() {
    let format = BlockFormat::Q8_0;
    let (bytes, scales, _) = packed(format);
    let g = graph(Some(format));
    let mut first = session(&g, Mode::Inference);
    first.try_set_parameter_bytes("words", &bytes).expect("words");
    first.try_set_parameter_bytes("scales", &scales).expect("scales");
    // Initial distributions only apply to trained parameters.
    first.initialize_parameters(3);
    assert_eq!(first.try_read_parameter_bytes("words").expect("words"), bytes);
    let mut second = session(&g, Mode::Inference);
    second.try_copy_weights_from(&mut first).expect("the same types");
    assert_eq!(second.try_read_parameter_bytes("scales").expect("scales"), scales);

    let wrong = second
        .try_set_parameter_bytes("words", &bytes[1..])
        .expect_err("too few");
    assert!(matches!(wrong, Error::WrongLength { .. }), "{wrong}");
    let wrong = second
        .try_set_parameter("scales", &[0.0; 12])
        .expect_err("another type")
        .to_string();
    assert!(
        wrong.contains("f16") && wrong.contains("try_set_parameter_bytes"),
        "{wrong}"
    );
    assert!(second.try_read_parameter("words").is_err());
    assert!(second.try_set_parameter_bytes("other", &[]).is_err());
}

/// Weights in `f16` are not converted in advance, even for the kernel of many rows.
#[test]
fn products_of_half_precision() {
    for rows in [1, 5, 40] {
        let mut g = Graph::new();
        let x = g.input("x", &[rows, WIDTH]);
        let weight = g.parameter_typed("weight", &[ROWS, WIDTH], DType::F16);
        let y = g.quantized_matmul(x, weight, None);
        g.set_outputs(vec![y]);
        let mut session = session(&g, Mode::Inference);
        let kernels: Vec<&str> = session.plan().dispatches.iter().map(|d| &*d.kernel.name).collect();
        assert_eq!(kernels, ["core.quantized_matmul"]);
        let halves: Vec<f16> = weights().into_iter().map(f16::from_f32).collect();
        let bytes: Vec<u8> = halves.iter().flat_map(|h| h.to_le_bytes()).collect();
        session.try_set_parameter_bytes("weight", &bytes).expect("weights");
        let x: Vec<f32> = (0..rows * WIDTH).map(|i| (i as f32 * 0.29).sin()).collect();
        session.set_input("x", &x);
        session.step();
        let found = session.read_output(rows * ROWS);
        for (i, x) in x.chunks(WIDTH).enumerate() {
            for (j, row) in halves.chunks(WIDTH).enumerate() {
                let wanted: f64 = x.iter().zip(row).map(|(&x, w)| f64::from(x) * w.to_f64()).sum();
                assert!(
                    (f64::from(found[i * ROWS + j]) - wanted).abs() < 1e-5,
                    "[{i}, {j}] of {rows}"
                );
            }
        }
    }
}
