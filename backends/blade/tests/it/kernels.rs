//! Tests of kernels at sizes that the conformance suite does not cover. These sizes use other variants.

use std::collections::HashMap;

use crate::case::Case;
use crate::common;
use half::f16;
use meganeura_compiler::builder::Builder;
use meganeura_compiler::cluster::cluster;
use meganeura_compiler::optimize;
use meganeura_compiler::rewrite::SimulatedDevice;
use meganeura_core::attrs::Attrs;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::Conv2dOptions;
use meganeura_core::plan::compile_for;
use meganeura_core::plan::optimizer::Sgd;
use meganeura_core::program::{Program, Slot, Step};
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;
use meganeura_core::{DType, NodeId, Session, registry};

/// Runs a graph with inputs of these shapes on the device, and compares its outputs with the oracle's.
fn check(shapes: &[&[usize]], tolerance: f64, build: impl Fn(&mut Graph, &[NodeId]) -> Vec<NodeId>) {
    let Some(device) = common::device() else { return };
    let case = Case::new(shapes, build);
    for graph in [case.graph.clone(), optimize::optimize(&case.graph)] {
        let plan = compile_for(&graph, &*device).expect("a plan");
        case.check(Session::on(device.clone(), plan).expect("a session"), tolerance);
    }
}

#[test]
fn products_in_tiles_of_all_sizes() {
    // The summed dimension is not a multiple of the tile's step, and the sides are not multiples of the tile's sides.
    for [m, n, k] in [[530, 530, 41], [270, 290, 61], [100, 110, 130], [1, 700, 300]] {
        check(&[&[m, k], &[k, n]], 2e-5, |g, x| vec![g.matmul(x[0], x[1])]);
    }
}

#[test]
fn many_products_in_the_largest_tiles() {
    check(&[&[33, 130, 17], &[33, 17, 135]], 2e-5, |g, x| {
        vec![g.matmul(x[0], x[1])]
    });
    check(&[&[33, 19, 130], &[33, 19, 131], &[131]], 2e-5, |g, x| {
        let product = g.matmul_at(x[0], x[1]);
        vec![g.add(product, x[2])]
    });
}

#[test]
fn products_of_few_rows() {
    for [m, n, k] in [
        [1, 700, 301],
        [2, 33, 5000],
        [3, 257, 260],
        [4, 1, 1030],
        [1, 3000, 577],
    ] {
        check(&[&[m, k], &[k, n], &[n]], 2e-5, |g, x| {
            let product = g.matmul(x[0], x[1]);
            vec![g.add(product, x[2])]
        });
        check(&[&[m, k], &[n, k]], 2e-5, |g, x| vec![g.matmul_bt(x[0], x[1])]);
        check(&[&[3, k, m], &[3, k, n]], 2e-5, |g, x| vec![g.matmul_at(x[0], x[1])]);
    }
}

/// Matmuls of few rows are correct if they read operands as vectors of four along the summed dimension: with one, two
/// and four columns per thread, with sums that a thread reads at once or in rounds, and with split sums.
#[test]
fn products_of_few_rows_by_vectors() {
    for [m, n, k] in [
        [1, 1, 4],
        [1, 9, 12],
        [1, 700, 576],
        [1, 8_200, 36],
        [2, 4_100, 20],
        [3, 33, 5_000],
        [4, 17, 4_100],
        [5, 8_193, 8],
        [7, 61, 2_052],
        [16, 260, 132],
        [16, 4_097, 8],
    ] {
        check(&[&[m, k], &[n, k], &[n]], 2e-5, |g, x| {
            let product = g.matmul_bt(x[0], x[1]);
            vec![g.add(product, x[2])]
        });
    }
    check(&[&[3, 2, 8], &[3, 50, 8]], 2e-5, |g, x| vec![g.matmul_bt(x[0], x[1])]);
    // Each workgroup computes the row of the left operand in its prologue.
    check(&[&[1, 260], &[1, 260], &[300, 260]], 2e-5, |g, x| {
        let gated = g.swiglu(x[0], x[1]);
        vec![g.matmul_bt(gated, x[2])]
    });
}

/// Each `f16` number is multiplied correctly if it is the only weight of a row.
#[test]
fn halves_are_multiplied_as_what_they_are() {
    const NUMBERS: usize = 1 << 16;
    let Some(device) = common::device() else { return };
    for rows in [1, 6, 40] {
        let mut g = Graph::new();
        let x = g.input("x", &[rows, 4]);
        let weight = g.input_typed("weight", &[NUMBERS, 4], DType::F16);
        let y = g.quantized_matmul(x, weight, None);
        g.set_outputs(vec![y]);
        let (mut session, _) = Builder::on(device.clone()).inference().build(&g).expect("a session");
        let mut bytes = vec![0; NUMBERS * 8];
        for half in 0..NUMBERS {
            let at = half * 8 + half % 4 * 2;
            bytes[at..at + 2].copy_from_slice(&(half as u16).to_le_bytes());
        }
        session.try_set_input_bytes("weight", &bytes).expect("an input");
        session.set_input("x", &vec![1.0; rows * 4]);
        session.step();
        for (i, found) in session.read_output(rows * NUMBERS).into_iter().enumerate() {
            let want = f16::from_bits((i % NUMBERS) as u16).to_f32();
            assert!(found == want || (found.is_nan() && want.is_nan()), "{i:#x}: {found}");
        }
    }
}

/// Every workgroup of a matmul with one row computes the preceding norm itself.
#[test]
fn norms_before_products_of_one_row() {
    let call = |g: &mut Graph, name: &str, attrs: Attrs, inputs: &[NodeId]| {
        let op = registry::op(name).expect("an operator");
        g.call(op, attrs, inputs.iter().map(|&i| i.into()).collect())
    };
    // Long sums for few columns are split.
    for [n, k] in [[700, 301], [33, 5_000], [16, 9_001], [1, 64], [3_001, 577], [7, 1]] {
        let eps = Attrs::new().with("eps", 1e-5);
        check(&[&[1, k], &[k], &[k, n]], 2e-5, |g, x| {
            let y = call(g, "core.rms_norm_matmul", eps.clone(), x);
            // Both results are used: one of them is the reduced value.
            let rstd = g.port(y, 1);
            let rstd = g.neg(rstd);
            vec![y, rstd]
        });
        // Two reductions, one after the other, and a matmul by a transposed matrix, plus an addend.
        let step = |name, attrs, inputs: &[Slot]| Step {
            op: registry::op(name).expect("an operator"),
            attrs,
            inputs: inputs.to_vec(),
        };
        let matmul = Attrs::new().with("transpose_a", false).with("transpose_b", true);
        let [x, weight, bias, matrix, more] = [0, 1, 2, 3, 4].map(Slot::Operand);
        let steps = vec![
            step("core.layer_norm", eps.clone(), &[x, weight, bias]),
            step("core.matmul", matmul, &[Slot::Step(0), matrix]),
            step("core.add", Attrs::new(), &[Slot::Step(1), more]),
        ];
        let program = Program::new(5, steps, vec![Slot::Step(2)]).expect("a program");
        let attrs = Attrs::new().with("program", program);
        check(&[&[1, k], &[k], &[k], &[n, k], &[n]], 5e-5, |g, x| {
            vec![call(g, "core.fused", attrs.clone(), x)]
        });
    }
}

/// All `f16` numbers are converted correctly, bit by bit.
#[test]
fn halves_become_what_they_are() {
    let Some(device) = common::device() else { return };
    let mut g = Graph::new();
    let x = g.input_typed("x", &[1 << 16], DType::F16);
    let y = g.cast(x, DType::F32);
    g.set_outputs(vec![y]);
    let (mut session, _) = Builder::on(device).inference().build(&g).expect("a session");
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    session.try_set_input_bytes("x", &bytes).expect("an input");
    session.step();
    for (half, found) in (0..=u16::MAX).zip(session.read_output(1 << 16)) {
        let want = f16::from_bits(half).to_f32();
        assert!(
            found.to_bits() == want.to_bits() || (found.is_nan() && want.is_nan()),
            "{half:#x}: {found}"
        );
    }
}

/// Matmuls of more than a few rows are correct, with and without a batch.
#[test]
fn products_of_some_rows() {
    for m in [5, 9, 16, 17] {
        check(&[&[m, 600], &[600, 70]], 2e-5, |g, x| vec![g.matmul(x[0], x[1])]);
        check(&[&[2, m, 70], &[2, 33, 70]], 2e-5, |g, x| vec![g.matmul_bt(x[0], x[1])]);
    }
    check(&[&[7, 9_000], &[9_000, 3]], 1e-4, |g, x| vec![g.matmul(x[0], x[1])]);
}

#[test]
fn transposed_and_batched_products() {
    check(&[&[130, 150], &[130, 170]], 2e-5, |g, x| vec![g.matmul_at(x[0], x[1])]);
    check(&[&[150, 130], &[170, 130]], 2e-5, |g, x| vec![g.matmul_bt(x[0], x[1])]);
    check(&[&[9, 1, 70, 50], &[3, 50, 66]], 2e-5, |g, x| {
        vec![g.matmul(x[0], x[1])]
    });
}

#[test]
fn long_products_are_cut_into_parts() {
    check(&[&[20, 4001], &[4001, 24]], 1e-4, |g, x| vec![g.matmul(x[0], x[1])]);
}

#[test]
fn what_follows_a_product_is_computed_with_it() {
    check(&[&[70, 300], &[300, 90], &[90], &[70, 90]], 1e-4, |g, x| {
        let product = g.matmul(x[0], x[1]);
        let biased = g.bias_add(product, x[2]);
        let active = g.gelu_tanh(biased);
        vec![g.add(active, x[3])]
    });
}

#[test]
fn convolutions_and_their_derivatives() {
    let options = Conv2dOptions {
        stride: [2, 1],
        padding: [1, 2],
        dilation: [1, 2],
        groups: 2,
    };
    check(&[&[3, 8, 33, 31], &[16, 4, 3, 3]], 1e-4, |g, x| {
        let y = g.conv2d(x[0], x[1], options);
        let square = g.square(y);
        vec![y, g.sum_all(square)]
    });
    let Some(_) = common::device() else { return };
    check(&[&[3, 8, 17, 15], &[16, 4, 3, 3]], 1e-4, |g, x| {
        // Computes dx and dw by the gradient rule of the convolution. The gradient of y is y itself.
        let y = g.conv2d(x[0], x[1], options);
        let shape = g.shape(y).to_vec();
        let ones = g.full(meganeura_core::DType::F32, 1.0, &shape);
        let dy = g.add(y, ones);
        let dx = g.conv2d_input_grad(dy, x[1], [17, 15], options);
        let dw = g.conv2d_weight_grad(x[0], dy, [3, 3], options);
        vec![dx, dw]
    });
}

#[test]
fn reductions_of_all_forms() {
    check(&[&[300_001]], 1e-4, |g, x| {
        let sum = g.sum_all(x[0]);
        let most = g.max(x[0], &[], false);
        vec![sum, most]
    });
    check(&[&[5_001, 70]], 1e-4, |g, x| {
        vec![g.sum(x[0], &[0], false), g.mean(x[0], &[1], false)]
    });
    check(&[&[3, 20_001]], 1e-4, |g, x| {
        vec![g.sum(x[0], &[1], true), g.max(x[0], &[1], false)]
    });
    check(&[&[40, 300, 9]], 1e-4, |g, x| {
        vec![g.sum(x[0], &[1], false), g.sum(x[0], &[0, 2], false)]
    });
}

/// Scatters are correct for rows with few, many and no updates, and apply updates in order.
#[test]
fn scatters_of_many_updates() {
    let ids = |count: usize, rows: u32| -> Vec<u32> {
        (0..count as u32)
            .map(|i| i.wrapping_mul(2_654_435_761) % rows)
            .collect()
    };
    for (count, rows) in [(33, 7), (100, 300), (500, 3), (257, 1), (1000, 999)] {
        check(&[&[count, 5]], 1e-5, |g, x| {
            let ids = g.constant_u32(ids(count, rows as u32), &[count]);
            vec![g.scatter_add(x[0], ids, rows)]
        });
        check(&[&[2, count, 3], &[2, rows, 3]], 0.0, |g, x| {
            let ids = g.constant_u32(ids(count, rows as u32), &[count]);
            vec![g.scatter(x[1], ids, x[0], 1)]
        });
    }
    check(&[&[3, 40, 2]], 1e-5, |g, x| {
        let ids = g.constant_u32(ids(40, 9), &[40]);
        vec![g.scatter_add_axis(x[0], ids, 1, 11)]
    });
}

/// Partial results are in `f32` for every dtype of the result.
#[test]
fn parts_of_half_precision() {
    let step = |name, attrs, inputs: &[Slot]| Step {
        op: registry::op(name).expect("an operator"),
        attrs,
        inputs: inputs.to_vec(),
    };
    let to = |dtype: DType| Attrs::new().with("to", dtype);
    let sum = Attrs::new().with("axes", vec![0i64]).with("keep_dims", false);
    let matmul = Attrs::new().with("transpose_a", true).with("transpose_b", false);
    let x = Slot::Step(0);
    for (name, attrs, inputs) in [("core.sum", sum, &[x][..]), ("core.matmul", matmul, &[x, x])] {
        let steps = vec![
            step("core.cast", to(DType::F16), &[Slot::Operand(0)]),
            step(name, attrs, inputs),
            step("core.cast", to(DType::F32), &[Slot::Step(1)]),
        ];
        let program = Program::new(1, steps, vec![Slot::Step(2)]).expect("a program");
        let attrs = Attrs::new().with("program", program);
        check(&[&[9_001, 2]], 2e-3, |g, x| {
            let op = registry::op("core.fused").expect("an operator");
            vec![g.call(op, attrs.clone(), vec![x[0].into()])]
        });
    }
}

/// Rotary embedding is correct if the heads are a part of a packed projection, also with odd sizes.
#[test]
fn rows_are_turned_where_they_are_a_part_of_others() {
    let Some(device) = common::device() else { return };
    for (rows, heads, head_dim, before, behind) in [(1, 1, 2, 0, 3), (7, 3, 10, 5, 0), (67, 2, 34, 13, 29)] {
        let width = before + heads * head_dim + behind;
        let case = Case::new(&[&[2, rows, width]], |g, x| {
            let part = g.narrow(x[0], -1, before, heads * head_dim);
            vec![g.rope_with_offset(part, 100.0, 3, head_dim as u32)]
        });
        let (graph, report) = cluster(&case.graph, &SimulatedDevice::discrete_gpu()).expect("it clusters");
        assert_eq!(report.clusters.len(), 1, "{report}");
        let plan = compile_for(&graph, &*device).expect("a plan");
        assert_eq!(plan.dispatches.len(), 1, "{:?}", plan.dispatches);
        case.check(Session::on(device.clone(), plan).expect("a session"), 1e-5);
    }
}

#[test]
fn rows_with_several_reductions() {
    check(&[&[3, 5_001]], 1e-4, |g, x| {
        vec![g.softmax(x[0], -1), g.log_softmax(x[0], -1)]
    });
    check(&[&[201, 700], &[700], &[700]], 1e-4, |g, x| {
        vec![g.layer_norm(x[0], x[1], x[2], 1e-5)]
    });
    check(&[&[1_000, 17], &[17]], 1e-4, |g, x| vec![g.rms_norm(x[0], x[1], 1e-5)]);
    check(&[&[500, 40, 3]], 1e-4, |g, x| vec![g.softmax(x[0], 0)]);
}

/// Row kernels are correct for all lengths. For one to sixteen columns per thread, the loop is unrolled, and some
/// threads may have one column fewer. For more columns, there is a loop. If there are many rows, each row has fewer
/// threads.
#[test]
fn rows_that_are_written_out_and_longer_ones() {
    for [rows, columns] in [
        [3, 9],
        [5, 256],
        [2, 257],
        [2, 1_030],
        [3, 4_096],
        [2, 4_097],
        [2_200, 40],
        [700, 900],
    ] {
        check(&[&[rows, columns], &[columns], &[columns]], 1e-4, |g, x| {
            let scaled = g.mul(x[0], x[1]);
            vec![g.softmax(scaled, -1), g.layer_norm(x[0], x[1], x[2], 1e-5)]
        });
        check(&[&[rows, columns]], 1e-4, |g, x| vec![g.max(x[0], &[1], false)]);
    }
}

#[test]
fn what_takes_several_kernels() {
    // Scores, their softmax and the values; pairs of query heads share a key-value head.
    check(&[&[90, 4 * 16], &[90, 2 * 16], &[90, 2 * 16]], 1e-4, |g, x| {
        vec![g.causal_attention(x[0], x[1], x[2], 4, 2, 16)]
    });
    // Losses of rows, and the mean over the rows.
    check(&[&[300, 40], &[300, 40]], 1e-4, |g, x| {
        let labels = g.softmax(x[1], -1);
        vec![g.cross_entropy_loss(x[0], labels)]
    });
    // Statistics of rows, and sums over all rows.
    check(&[&[150, 60], &[60], &[60]], 1e-4, |g, x| {
        let y = g.layer_norm(x[0], x[1], x[2], 1e-5);
        let weighted = g.mul(y, x[0]);
        vec![g.sum(weighted, &[0], false), y]
    });
}

#[test]
fn more_elements_than_one_row_of_workgroups() {
    let Some(device) = common::device() else { return };
    let count = 65_535 * 256 + 777;
    let mut g = Graph::new();
    let x = g.input("x", &[count]);
    let y = g.neg(x);
    g.set_outputs(vec![y]);
    let mut session = Session::on(device.clone(), compile_for(&g, &*device).expect("a plan")).expect("a session");
    let data: Vec<f32> = (0..count).map(|i| (i % 1_000_003) as f32).collect();
    session.set_input("x", &data);
    session.step();
    let mut found = vec![0.0; count];
    session.read_output_by_index(0, &mut found);
    assert!(found.iter().zip(&data).all(|(f, d)| *f == -d));
}

/// Results are correct if a thread computes four elements. From half a million elements on, these elements are a
/// quarter of the result apart, if the number of elements is divisible by four.
#[test]
fn several_elements_of_large_results_by_each_thread() {
    for [m, n] in [[512, 1_028], [727, 722]] {
        check(&[&[m, n], &[n], &[n, m]], 1e-6, |g, x| {
            let turned = g.transpose(x[2]);
            let sum = g.add(x[0], turned);
            let scaled = g.mul(sum, x[1]);
            vec![g.tanh(scaled), g.sum(scaled, &[0], false)]
        });
    }
}

#[test]
fn updates_of_large_parameters() {
    let Some(device) = common::device() else { return };
    const ROWS: usize = 1_024;
    const WIDTH: usize = 512;
    let mut g = Graph::new();
    let x = g.input("x", &[ROWS]);
    let p = g.parameter("p", &[ROWS, WIDTH]);
    let row = g.reshape(x, &[1, ROWS]);
    let product = g.matmul(row, p);
    let loss = g.sum_all(product);
    g.set_outputs(vec![loss]);
    let update = Sgd {
        momentum: 0.5,
        ..Sgd::new(0.5)
    };
    let (mut session, _) = Builder::on(device).optimizer(update).build(&g).expect("a session");
    let before: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i % 1_021) as f32).collect();
    let slopes: Vec<f32> = (0..ROWS).map(|i| (i % 13) as f32).collect();
    session.set_parameter("p", &before);
    session.set_input("x", &slopes);
    for rate in [0.5, 0.5 + 0.75] {
        session.step();
        let found = session.read_parameter("p");
        let expected = |i: usize| before[i] - rate * slopes[i / WIDTH];
        let wrong = (0..found.len()).find(|&i| found[i] != expected(i));
        assert_eq!(wrong, None, "a rate of {rate} in all");
    }
}

/// Returns values with many equal ones, and some NaN and infinite ones, so that the treatment and order of equal
/// values matter.
fn ties(shape: &[usize], seed: u64) -> Vec<f32> {
    let mut random = SplitMix64::new(seed);
    let value = |bits: u64| match bits % 97 {
        0 if seed % 2 == 1 => f32::NAN,
        1 => f32::NEG_INFINITY,
        n => (n % 7) as f32 - 3.0,
    };
    (0..shape.iter().product()).map(|_| value(random.next_u64())).collect()
}

#[test]
fn places_of_extremes_along_any_axis() {
    let Some(device) = common::device() else { return };
    let mut random = SplitMix64::new(5);
    let mut shapes = vec![
        vec![1],
        vec![9],
        vec![100_003],
        vec![700, 3],
        vec![2, 257, 33],
        vec![300, 65],
    ];
    shapes.extend((0..8).map(|_| (0..3).map(|_| 1 + random.next_u64() as usize % 40).collect()));
    for (seed, shape) in shapes.into_iter().enumerate() {
        let mut g = Graph::new();
        let x = g.input("x", &shape);
        let axes = 0..shape.len() as i32;
        let outputs: Vec<NodeId> = axes.flat_map(|axis| [g.argmax(x, axis), g.argmin(x, axis)]).collect();
        g.set_outputs(outputs.clone());
        let data = ties(&shape, seed as u64);
        let feeds = HashMap::from([("x".to_owned(), data.iter().map(|&v| f64::from(v)).collect())]);
        let expected = evaluate(&g, &feeds).expect("the oracle evaluates it");
        let mut session = Session::on(device.clone(), compile_for(&g, &*device).expect("a plan")).expect("a session");
        session.set_input("x", &data);
        session.step();
        for (i, &output) in outputs.iter().enumerate() {
            let expected = &expected.get(Value::from(output)).expect("a value").data;
            let mut found = vec![0; expected.len()];
            session.try_read_output_u32(i, &mut found).expect("an output");
            let found: Vec<f64> = found.into_iter().map(f64::from).collect();
            assert_eq!(&found, expected, "{shape:?}, output {i}");
        }
    }
}

#[test]
fn running_sums_along_any_axis() {
    let mut random = SplitMix64::new(6);
    let mut shapes = vec![
        vec![1],
        vec![9],
        vec![50_001],
        vec![2_050, 3],
        vec![2, 257, 33],
        vec![40, 2_049],
    ];
    shapes.extend((0..4).map(|_| (0..3).map(|_| 1 + random.next_u64() as usize % 40).collect()));
    for shape in shapes {
        check(&[&shape], 1e-4, |g, x| {
            let axes = 0..shape.len() as i32;
            let forms = [(false, false), (true, false), (false, true), (true, true)];
            axes.flat_map(|axis| forms.map(|(exclusive, reverse)| g.cumsum(x[0], axis, exclusive, reverse)))
                .collect()
        });
    }
}
