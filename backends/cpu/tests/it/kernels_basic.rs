//! Tests of running sums, selection and writes by index in cases without samples: sizes that are cut into tasks,
//! ties, and invalid indices.

use std::sync::Arc;

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::Device;
use meganeura_core::ops::sample::{Fill, SampleInput, Sizes};
use meganeura_core::plan::compile_for;
use meganeura_core::{DType, Error, Graph, NodeId, Session};
use meganeura_cpu::CpuDevice;

use crate::common::{check, op, sample};

fn open(graph: &mut Graph, output: impl Into<meganeura_core::graph::Value>) -> Session {
    graph.set_outputs(vec![output.into()]);
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
    let plan = compile_for(graph, &*device).expect("a plan");
    Session::on(device, plan).expect("a session")
}

#[test]
fn samples_agree_with_the_reference() {
    let names = [
        "core.cumsum",
        "core.decision_trees",
        "core.flip",
        "core.sampling_threshold",
        "core.top_k",
        "core.take_along_axis",
        "core.put_along_axis",
        "core.scatter",
        "core.tril",
        "core.triu",
        "core.min_reduce",
        "core.prod",
        "core.argmin",
    ];
    for name in names {
        for seed in 0..8 {
            for sample in op(name).samples(&mut Sizes::new(seed)) {
                check(name, &sample, seed);
            }
        }
    }
}

#[test]
fn long_running_sums_are_cut() {
    for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
        let attrs = |axis: i64| {
            Attrs::new()
                .with("axis", axis)
                .with("exclusive", exclusive)
                .with("reverse", reverse)
        };
        check(
            "core.cumsum",
            &sample(vec![SampleInput::f32(&[2, 50_003])], attrs(1)),
            1,
        );
        check("core.cumsum", &sample(vec![SampleInput::f32(&[301, 517])], attrs(0)), 2);
        let words = SampleInput::filled(DType::U32, &[40_009], Fill::Below(u32::MAX));
        check("core.cumsum", &sample(vec![words], attrs(0)), 3);
    }
}

#[test]
fn transpositions_are_cut_into_tiles() {
    let cases: [(&[usize], &[i64]); 10] = [
        (&[1, 1], &[1, 0]),
        (&[70, 1], &[1, 0]),
        (&[131, 137], &[1, 0]),
        (&[64, 1100], &[1, 0]),
        (&[1100, 64], &[1, 0]),
        (&[700, 7, 3], &[0, 2, 1]),
        (&[5, 67, 9, 70], &[3, 1, 2, 0]),
        (&[3, 66, 5, 13], &[0, 2, 3, 1]),
        (&[2, 3, 4, 5, 6], &[4, 2, 0, 3, 1]),
        (&[3, 0, 4], &[2, 1, 0]),
    ];
    for (shape, axes) in cases {
        for dtype in [DType::F32, DType::F16, DType::U32] {
            let x = SampleInput::filled(dtype, shape, Fill::Below(2000));
            check(
                "core.permute",
                &sample(vec![x], Attrs::new().with("axes", axes.to_vec())),
                6,
            );
        }
    }
}

#[test]
fn extremes_of_long_rows_and_many_columns() {
    for name in ["core.argmax", "core.argmin"] {
        for fill in [Fill::Below(3), Fill::Below(3000), Fill::Constant(2.0), Fill::Distinct] {
            for (shape, axis) in [
                (vec![3, 5000], 1i64),
                (vec![301, 517], 0),
                (vec![2, 40, 300], 1),
                (vec![400, 63], 1),
            ] {
                for dtype in [DType::F32, DType::U32, DType::I32] {
                    // The distinct values are fractions, so they need a float type.
                    if fill == Fill::Distinct && dtype != DType::F32 {
                        continue;
                    }
                    let x = SampleInput::filled(dtype, &shape, fill);
                    check(name, &sample(vec![x], Attrs::new().with("axis", axis)), 7);
                }
            }
        }
    }
}

#[test]
fn the_largest_of_many_with_ties() {
    for k in [1, 3, 64, 65, 1000, 5000] {
        for fill in [Fill::Below(7), Fill::Below(5000), Fill::Constant(2.0), Fill::Distinct] {
            let attrs = Attrs::new().with("k", k).with("axis", 1);
            let x = SampleInput::filled(DType::F32, &[2, 5000], fill);
            check("core.top_k", &sample(vec![x], attrs.clone()), 4);
            let x = SampleInput::filled(DType::F32, &[1, 5000, 2], fill);
            check("core.top_k", &sample(vec![x], attrs), 5);
        }
    }
}

#[test]
fn zeros_of_both_signs_are_equal_and_keep_theirs() {
    let mut graph = Graph::new();
    let x = graph.input("x", &[5]);
    let top = graph.top_k(x, 0, 5);
    let indices = graph.port(top, 1);
    graph.set_outputs(vec![top.into(), indices]);
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(1));
    let plan = compile_for(&graph, &*device).expect("a plan");
    let mut session = Session::on(device, plan).expect("a session");
    session.set_input("x", &[-0.0, 0.0, f32::NAN, -0.0, -1e-45]);
    session.step();
    let values = session.read_output(5);
    assert!(values[0].is_nan());
    assert_eq!(
        values[1..].iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
        [1 << 31, 0, 1 << 31, (1 << 31) | 1]
    );
    let bytes = session.try_read_output_bytes(1).expect("indices");
    let (words, _) = bytes.as_chunks::<4>();
    let indices: Vec<u32> = words.iter().map(|&w| u32::from_le_bytes(w)).collect();
    assert_eq!(indices, [2, 0, 1, 3, 4]);
}

#[test]
fn writes_by_index_are_cut() {
    let index = |shape: &[usize], bound| SampleInput::below(shape, bound);
    for (x, count, axis) in [
        ([300, 70, 5], 41, 1i64),
        ([3, 20, 2100], 33, 1),
        ([40_000, 1, 1], 500, 0),
    ] {
        let mut part = x;
        part[axis as usize] = count;
        let size = x[axis as usize];
        let attrs = Attrs::new().with("axis", axis);
        let inputs = vec![SampleInput::f32(&x), index(&[count], size), SampleInput::f32(&part)];
        check("core.scatter", &sample(inputs, attrs.clone()), 6);
        let inputs = vec![SampleInput::f32(&x), index(&part, size)];
        check("core.take_along_axis", &sample(inputs, attrs.clone()), 7);
        let inputs = vec![index(&part, size), SampleInput::f32(&part)];
        check("core.put_along_axis", &sample(inputs, attrs.with("size", size)), 8);
    }
    check(
        "core.flip",
        &sample(
            vec![SampleInput::f32(&[3, 40_001])],
            Attrs::new().with("axes", vec![1i64]),
        ),
        9,
    );
    for name in ["core.tril", "core.triu"] {
        let attrs = Attrs::new().with("diagonal", 3i64);
        check(name, &sample(vec![SampleInput::f32(&[2, 200, 301])], attrs), 10);
    }
}

#[test]
fn reductions_of_many_short_rows_and_few_long_ones() {
    let attrs = |axis: i64| {
        let attrs = Attrs::new().with("axes", vec![axis]).with("keep_dims", false);
        attrs.with("correction", 1i64)
    };
    for shape in [[20_011, 4], [3, 5000], [5, 40_003]] {
        for axis in [0, 1] {
            let x = || vec![SampleInput::range(&shape, 0.999, 1.001)];
            for name in ["core.sum", "core.min_reduce", "core.max_reduce"] {
                check(name, &sample(x(), attrs(axis)), 11);
            }
            let mut product = sample(x(), attrs(axis));
            // A product of n factors may have n rounding errors.
            product.tolerance = 5e-3;
            check("core.prod", &product, 12);
        }
        if shape[0] > 3 {
            let mut variance = sample(vec![SampleInput::f32(&shape)], attrs(1));
            variance.tolerance = 1e-4;
            check("core.variance", &variance, 13);
        }
    }
}

/// Checks that a step with an invalid index fails, that the error contains the index and the bound, and that a step
/// with valid indices then succeeds. Returns the result of the valid step.
fn bad_index(graph: &mut Graph, y: NodeId, bad: &[u32], good: &[u32], want: (u32, usize)) -> Vec<f32> {
    let count = graph.shape(y).iter().product();
    let mut session = open(graph, y);
    session.try_set_input_u32("ids", bad).expect("ids");
    match session.try_step() {
        Err(Error::IndexOutOfRange { index, rows, .. }) => assert_eq!((index, rows), want),
        other => panic!("{other:?}"),
    }
    session.try_set_input_u32("ids", good).expect("ids");
    session.step();
    session.read_output(count)
}

#[test]
fn bad_indices_stop_the_step() {
    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[2]);
    let y = g.one_hot(ids, 3);
    let found = bad_index(&mut g, y, &[0, 3], &[2, 0], (3, 3));
    assert_eq!(found, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);

    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[2]);
    let (x, u) = (g.constant(vec![1.0, 2.0, 3.0], &[3]), g.constant(vec![8.0, 9.0], &[2]));
    let y = g.scatter(x, ids, u, 0);
    assert_eq!(bad_index(&mut g, y, &[7, 1], &[1, 1], (7, 3)), [1.0, 9.0, 3.0]);

    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[2]);
    let x = g.constant(vec![1.0, 2.0, 3.0], &[3]);
    let y = g.take_along_axis(x, ids, 0);
    assert_eq!(bad_index(&mut g, y, &[0, 4], &[2, 2], (4, 3)), [3.0, 3.0]);
}

/// A step fails if the mask (the input `ids`) requires a third element, but the source has only two.
#[test]
fn a_short_source_stops_the_step() {
    let mut g = Graph::new();
    let mask = g.input_u32("ids", &[4]);
    let (x, s) = (g.constant(vec![1.0; 4], &[4]), g.constant(vec![8.0, 9.0], &[2]));
    let y = g.masked_scatter(x, mask, s);
    let found = bad_index(&mut g, y, &[1, 1, 0, 1], &[0, 5, 0, 1], (2, 2));
    assert_eq!(found, [1.0, 8.0, 1.0, 9.0]);
}
