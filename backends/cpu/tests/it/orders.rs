//! Tests of parameters that are stored in another order than row by row. Users do not see the order.

use std::sync::Arc;

use half::f16;
use meganeura_compiler::builder::Builder;
use meganeura_compiler::rewrite::RewriteConfig;
use meganeura_core::backend::Device;
use meganeura_core::quantization::{BLOCK, BlockFormat};
use meganeura_core::{DType, Graph, NodeId, Session};
use meganeura_cpu::CpuDevice;

/// Number of rows. It is larger than a panel, and some rows are in no panel.
const ROWS: usize = 53;
const WIDTH: usize = 3 * BLOCK;

fn session(g: &Graph) -> Session {
    Builder::on(Arc::new(CpuDevice::new(2)))
        .inference()
        .build(g)
        .expect("a session")
        .0
}

/// Adds a quantized table: its numbers in blocks, and its scales.
fn table(g: &mut Graph, name: &str, format: BlockFormat) -> [NodeId; 2] {
    let words = g.parameter_typed(name, &[ROWS, WIDTH / BLOCK * format.words()], DType::U32);
    let of_row = WIDTH / BLOCK * format.scales();
    let scales = g.parameter_typed(&format!("{name}_scales"), &[ROWS, of_row], DType::F16);
    [words, scales]
}

/// Returns a graph that gathers rows of a table and multiplies them by the table, as in models with tied embeddings.
fn tied(format: BlockFormat, rows: usize) -> Graph {
    let mut g = Graph::new();
    let [words, scales] = table(&mut g, "table", format);
    let ids = g.input_u32("ids", &[rows]);
    let [own_words, own_scales] = [words, scales].map(|part| g.embedding(ids, part));
    let x = g.dequantize(own_words, own_scales);
    let y = g.quantized_matmul(x, words, Some(scales.into()));
    g.set_outputs(vec![y]);
    g
}

/// Returns the bytes of the integers, the bytes of the scales, and the numbers that they represent.
fn numbers(format: BlockFormat) -> (Vec<u8>, Vec<u8>, Vec<f32>) {
    let bytes: Vec<u8> = (0..ROWS * WIDTH / BLOCK * format.bytes())
        .map(|i| (i * 37 % 253) as u8)
        .collect();
    let scales: Vec<f16> = (0..ROWS * WIDTH / BLOCK * format.scales())
        .map(|i| f16::from_f32((i % 7) as f32 * 0.01 + 0.005))
        .collect();
    let numbers = format.dequantize(&bytes, &scales);
    (bytes, scales.iter().flat_map(|s| s.to_le_bytes()).collect(), numbers)
}

fn check(y: &[f32], ids: &[u32], numbers: &[f32], what: &str) {
    let row = |i: usize| &numbers[i * WIDTH..(i + 1) * WIDTH];
    for (i, &id) in ids.iter().enumerate() {
        for j in 0..ROWS {
            let terms = row(id as usize).iter().zip(row(j));
            let terms = terms.map(|(a, b)| f64::from(*a) * f64::from(*b));
            let (sum, size) = terms.fold((0.0, 0.0), |(s, z), t| (s + t, z + t.abs()));
            let found = f64::from(y[i * ROWS + j]);
            // On CPUs with VNNI, each number of a row is rounded by about 2^-16 of the largest number of its block.
            assert!(
                (found - sum).abs() <= 6e-5 * size,
                "{what} [{i}, {j}]: {found}, not {sum}"
            );
        }
    }
}

#[test]
fn tied_tables_are_read_by_row_and_as_a_matrix() {
    for format in BlockFormat::ALL {
        let (bytes, scales, numbers) = numbers(format);
        for rows in [1, 3, 30] {
            let mut session = session(&tied(format, rows));
            session.try_set_parameter_bytes("table", &bytes).expect("integers");
            session
                .try_set_parameter_bytes("table_scales", &scales)
                .expect("scales");
            let ids: Vec<u32> = (0..rows as u32).map(|i| (i * 17 + 49) % ROWS as u32).collect();
            session.set_input_u32("ids", &ids);
            session.step();
            check(
                &session.read_output(rows * ROWS),
                &ids,
                &numbers,
                &format!("{format:?} {rows}"),
            );
            assert_eq!(session.try_read_parameter_bytes("table").expect("integers"), bytes);
            assert_eq!(
                session.try_read_parameter_bytes("table_scales").expect("scales"),
                scales
            );
        }
    }
}

/// Segments of a plan, with one row, a few rows and many rows, share weights.
#[test]
fn segments_read_the_same_table() {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
    for format in BlockFormat::ALL {
        let (bytes, scales, numbers) = numbers(format);
        let plan = |rows| {
            let rewrite = RewriteConfig::default();
            let (plan, _) = Builder::on(device.clone())
                .inference()
                .rewrite(rewrite.clone())
                .plan(&tied(format, rows))
                .expect("a plan");
            plan
        };
        let mut joined = plan(1);
        let outputs =
            [(3, "few"), (30, "many")].map(|(rows, name)| joined.join(&plan(rows), name, None).expect("joined"));
        let mut session = Session::on(device.clone(), joined).expect("a session");
        session.try_set_parameter_bytes("table", &bytes).expect("integers");
        session
            .try_set_parameter_bytes("table_scales", &scales)
            .expect("scales");
        for (segment, rows, output) in [("few", 3, outputs[0]), ("many", 30, outputs[1])] {
            let ids: Vec<u32> = (0..rows as u32).map(|i| (i * 29 + 5) % ROWS as u32).collect();
            session.set_input_u32(&format!("{segment}.ids"), &ids);
            session.try_step_of(segment).expect("a step");
            let mut y = vec![0.0; rows * ROWS];
            session.try_read_output_start(output, &mut y).expect("the output");
            check(&y, &ids, &numbers, segment);
        }
        session.set_input_u32("ids", &[52]);
        session.step();
        check(&session.read_output(ROWS), &[52], &numbers, "one row");
    }
}

/// All readers of the same weights use row order if one of them requires it.
#[test]
fn expanded_tables_stay_in_the_order_of_rows() {
    for format in BlockFormat::ALL {
        let (bytes, scales, numbers) = numbers(format);
        let mut g = Graph::new();
        let [words, table_scales] = table(&mut g, "table", format);
        let x = g.input("x", &[1, WIDTH]);
        let all = g.dequantize(words, table_scales);
        let y = g.quantized_matmul(x, words, Some(table_scales.into()));
        g.set_outputs(vec![y, all]);
        let mut session = session(&g);
        session.try_set_parameter_bytes("table", &bytes).expect("integers");
        session
            .try_set_parameter_bytes("table_scales", &scales)
            .expect("scales");
        session.set_input("x", &numbers[7 * WIDTH..8 * WIDTH]);
        session.step();
        check(&session.read_output(ROWS), &[7], &numbers, "by rows");
        let mut found = vec![0.0; ROWS * WIDTH];
        session.try_read_output_start(1, &mut found).expect("the table");
        assert_eq!(found, numbers);
    }
}
