//! Tests of convolution, pooling, normalisation, softmax and optimizer kernels against the operators' definitions.
// This is a separate binary, because `.ci/long` also builds it with optimization.

mod common;

use std::sync::Arc;

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::Device;
use meganeura_core::ops::sample::{Sample, SampleInput, Sizes};
use meganeura_core::ops::{Conv2dOptions, Pool2dOptions};
use meganeura_core::plan::compile_for;
use meganeura_core::{DType, Error, Graph, Session, reference};
use meganeura_cpu::CpuDevice;

use common::{case, check, check_case, numbers, op, results, sample, session};

const OPS: [&str; 27] = [
    "core.conv2d",
    "core.conv2d_input_grad",
    "core.conv2d_weight_grad",
    "core.max_pool2d",
    "core.max_pool2d_grad",
    "core.avg_pool2d",
    "core.avg_pool2d_grad",
    "core.layer_norm",
    "core.layer_norm_grad",
    "core.rms_norm",
    "core.rms_norm_grad",
    "core.group_norm",
    "core.group_norm_grad",
    "core.batch_norm",
    "core.batch_norm_grad",
    "core.batch_norm_inference",
    "core.softmax",
    "core.log_softmax",
    "core.cross_entropy",
    "core.cross_entropy_ids",
    "core.upsample_nearest2d",
    "core.upsample_nearest2d_grad",
    "core.upsample_bilinear2d",
    "core.upsample_bilinear2d_grad",
    "optim.sgd",
    "optim.momentum",
    "optim.adam",
];

#[test]
fn samples_agree_with_the_reference() {
    for name in OPS {
        for seed in 0..12 {
            for sample in op(name).samples(&mut Sizes::new(seed)) {
                check(name, &sample, seed);
            }
        }
    }
}

/// Returns samples of the three convolutions (forward and both gradients) for one geometry.
fn convolutions(x: [usize; 4], w: [usize; 4], options: Conv2dOptions) -> [(&'static str, Sample); 3] {
    let mut graph = Graph::new();
    let (xi, wi) = (graph.input("x", &x), graph.input("w", &w));
    let y = graph.conv2d(xi, wi, options);
    let y_shape = graph.shape(y).to_vec();
    let attrs = graph.nodes()[y.index()].op().expect("a call").1.clone();
    let [x_in, w_in, y_in] = [&x[..], &w, &y_shape].map(SampleInput::f32);
    let input_size = attrs.clone().with("input_size", [x[2], x[3]]);
    let kernel_size = attrs.clone().with("kernel_size", [w[2], w[3]]);
    [
        ("core.conv2d", sample(vec![x_in.clone(), w_in.clone()], attrs)),
        ("core.conv2d_input_grad", sample(vec![y_in.clone(), w_in], input_size)),
        ("core.conv2d_weight_grad", sample(vec![x_in, y_in], kernel_size)),
    ]
}

fn geometry(stride: u32, padding: u32, dilation: u32, groups: u32) -> Conv2dOptions {
    Conv2dOptions {
        stride: [stride; 2],
        padding: [padding; 2],
        dilation: [dilation; 2],
        groups,
    }
}

#[test]
fn convolutions_of_many_shapes() {
    let cases = [
        ([1, 24, 30, 33], [20, 24, 3, 3], geometry(1, 1, 1, 1)),
        ([1, 160, 7, 7], [150, 160, 3, 3], geometry(1, 1, 1, 1)),
        ([2, 300, 4, 4], [260, 300, 1, 1], geometry(1, 0, 1, 1)),
        ([1, 300, 4, 4], [260, 300, 1, 1], geometry(1, 0, 1, 1)),
        ([3, 20, 16, 16], [36, 20, 1, 1], geometry(1, 0, 1, 1)),
        ([3, 20, 15, 15], [36, 20, 1, 1], geometry(1, 0, 1, 1)),
        ([3, 20, 15, 15], [36, 20, 1, 1], geometry(2, 0, 1, 1)),
        ([2, 16, 33, 20], [24, 8, 5, 5], geometry(2, 2, 1, 2)),
        ([2, 12, 21, 40], [12, 1, 3, 3], geometry(1, 1, 1, 12)),
        ([2, 12, 21, 40], [24, 1, 5, 5], geometry(2, 3, 2, 12)),
        ([1, 1, 28, 28], [32, 1, 3, 3], geometry(1, 1, 1, 1)),
        ([2, 3, 60, 61], [8, 3, 7, 7], geometry(4, 9, 1, 1)),
        ([5, 3, 9, 9], [1, 3, 9, 9], geometry(1, 0, 1, 1)),
        ([2, 2, 3, 3], [2, 2, 3, 3], geometry(1, 4, 3, 1)),
        ([0, 4, 8, 8], [4, 4, 3, 3], geometry(1, 1, 1, 1)),
    ];
    for (seed, (x, w, options)) in cases.into_iter().enumerate() {
        for (name, mut sample) in convolutions(x, w, options) {
            sample.tolerance = 3e-6;
            check(name, &sample, seed as u64);
        }
    }
}

/// Channels-last 3x3 convolutions by tiles of 4x4 are correct: with results that end within a tile, panels that are
/// not full, several blocks of tiles, more channels than are multiplied at a time, no padding, and much padding.
#[test]
fn convolutions_by_tiles() {
    let cases = [
        ([1, 16, 8, 8], 16, [1, 1]),
        ([2, 32, 13, 14], 48, [1, 1]),
        ([1, 144, 11, 9], 16, [0, 0]),
        ([1, 16, 9, 17], 112, [2, 0]),
        ([2, 48, 10, 12], 32, [0, 3]),
        ([1, 16, 45, 46], 16, [1, 1]),
        ([3, 16, 41, 42], 32, [1, 1]),
        ([1, 272, 8, 7], 80, [1, 1]),
    ];
    for (seed, (x, outputs, padding)) in cases.into_iter().enumerate() {
        let options = Conv2dOptions {
            padding,
            ..geometry(1, 0, 1, 1)
        };
        let [(_, first), ..] = convolutions(x, [outputs, x[1], 3, 3], options);
        let [n, c, h, w] = x;
        let inputs = [[n, h, w, c], [3, 3, c, outputs]].map(|shape| SampleInput::f32(&shape));
        let mut last = sample(inputs.to_vec(), first.attrs.clone());
        last.tolerance = 3e-6;
        check("core.conv2d_nhwc", &last, seed as u64);
    }
}

/// A large convolution is correct at some elements. The test computes these elements itself, because the reference
/// would take minutes.
#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimisation")]
fn large_convolution_at_some_elements() {
    let (n, c, size) = (2, 64, 56);
    let [(name, sample), (_, dx_sample), (_, dw_sample)] =
        convolutions([n, c, size, size], [c, c, 3, 3], geometry(1, 1, 1, 1));
    let run = |name: &str, sample: &Sample| {
        let case = case(op(name), sample, 7);
        let got = results(&case, 2);
        assert!(
            got == results(&case, 1) && got == results(&case, 3),
            "{name}: threads matter"
        );
        let [a, b] = ["operand0", "operand1"].map(|o| case.values[o].clone());
        let got = numbers(&got[0], DType::F32);
        (a, b, got)
    };
    let pixel = |image: usize, channel: usize, y: usize, x: usize| ((image * c + channel) * size + y) * size + x;
    // Index shifted by a tap, if it is inside the image.
    let shift = |at: usize, tap: usize, sign: isize| {
        usize::try_from(at as isize + sign * (tap as isize - 1))
            .ok()
            .filter(|&i| i < size)
    };
    let close = |got: f64, want: f64| assert!((got - want).abs() < 2e-3, "{got}, not {want}");
    let taps = || (0..c).flat_map(|c| (0..3).flat_map(move |p| (0..3).map(move |q| (c, p, q))));
    let (x, w, y) = run(name, &sample);
    let (dy, w2, dx) = run("core.conv2d_input_grad", &dx_sample);
    for i in 0..300 {
        let (image, o, row, column) = (i % n, i * 7 % c, i * 5 % size, i * 11 % size);
        let sum = |sign: isize, a: &[f64], w: &dyn Fn(usize, usize, usize) -> f64| -> f64 {
            taps()
                .filter_map(|(c, p, q)| {
                    Some(a[pixel(image, c, shift(row, p, sign)?, shift(column, q, sign)?)] * w(c, p, q))
                })
                .sum()
        };
        let at = pixel(image, o, row, column);
        close(y[at], sum(1, &x, &|ch, p, q| w[((o * c + ch) * 3 + p) * 3 + q]));
        close(dx[at], sum(-1, &dy, &|ch, p, q| w2[((ch * c + o) * 3 + p) * 3 + q]));
    }
    let (x, dy, dw) = run("core.conv2d_weight_grad", &dw_sample);
    for i in 0..60 {
        let (o, ch, p, q) = (i * 7 % c, i * 13 % c, i % 3, i / 3 % 3);
        let mut want = 0.0;
        for (image, row, column) in (0..n * size * size).map(|i| (i / size / size, i / size % size, i % size)) {
            if let (Some(r), Some(s)) = (shift(row, p, 1), shift(column, q, 1)) {
                want += x[pixel(image, ch, r, s)] * dy[pixel(image, o, row, column)];
            }
        }
        close(dw[((o * c + ch) * 3 + p) * 3 + q], want);
    }
}

#[test]
fn wide_and_tall_softmax() {
    for (shape, axis) in [
        (vec![3, 4097], -1i64),
        (vec![1, 70_000], -1),
        (vec![2, 4097, 3], 1),
        (vec![3, 5, 600], 0),
        (vec![40, 3, 7], 1),
        (vec![0, 4], 1),
    ] {
        for name in ["core.softmax", "core.log_softmax"] {
            check(
                name,
                &sample(vec![SampleInput::f32(&shape)], Attrs::new().with("axis", axis)),
                1,
            );
        }
    }
    for (low, high) in [(9_000.0, 9_010.0), (-9_010.0, -9_000.0)] {
        let x = SampleInput::range(&[5, 300], low, high);
        let ids = SampleInput::below(&[5], 300);
        check("core.cross_entropy_ids", &sample(vec![x, ids], Attrs::new()), 1);
    }
    let x = SampleInput::f32(&[30, 5000]);
    let ids = SampleInput::below(&[30], 5000);
    check("core.cross_entropy_ids", &sample(vec![x.clone(), ids], Attrs::new()), 1);
}

#[test]
fn class_that_does_not_exist() {
    let inputs = vec![SampleInput::f32(&[4, 10]), SampleInput::below(&[4], 1)];
    let mut case = case(op("core.cross_entropy_ids"), &sample(inputs, Attrs::new()), 1);
    case.values.insert("operand1".into(), vec![3.0, 0.0, 10.0, 9.0]);
    let mut session = session(&case, 2);
    match session.try_step() {
        Err(Error::IndexOutOfRange {
            index: 10, rows: 10, ..
        }) => {}
        other => panic!("{other:?}"),
    }
    let ids: Vec<u8> = [3u32, 0, 1, 9].iter().flat_map(|id| id.to_le_bytes()).collect();
    session.try_set_input_bytes("operand1", &ids).expect("ids");
    session.step();
    let mut loss = [0.0];
    session.read_output_by_index(0, &mut loss);
    assert!(loss[0].is_finite());
}

#[test]
fn norms_of_many_shapes() {
    for shape in [vec![40, 1000], vec![3, 50_000], vec![300, 33]] {
        let width = [shape[shape.len() - 1]];
        let inputs = [&shape[..], &width, &width].map(SampleInput::f32).to_vec();
        check("core.layer_norm", &sample(inputs, Attrs::new().with("eps", 1e-5)), 2);
    }
    // The mean is large relative to the deviation.
    let inputs = vec![
        SampleInput::range(&[4, 500], 99.0, 101.0),
        SampleInput::f32(&[500]),
        SampleInput::f32(&[500]),
    ];
    let mut far = sample(inputs, Attrs::new().with("eps", 1e-5));
    far.tolerance = 2e-5;
    check("core.layer_norm", &far, 2);
    for shape in [
        vec![64, 700],
        vec![9, 300, 2],
        vec![5, 40, 17],
        vec![3, 2, 90, 91],
        vec![16, 64, 4, 4],
        vec![2, 3, 300],
    ] {
        let c = [shape[1]];
        let state = |low| SampleInput::range(&c, low, 2.0).state();
        let inputs = vec![
            SampleInput::f32(&shape),
            SampleInput::f32(&c),
            SampleInput::f32(&c),
            state(-2.0),
            state(0.2),
        ];
        let attrs = Attrs::new().with("eps", 1e-3);
        let mut inference = inputs.clone();
        inference.iter_mut().for_each(|i| i.state = false);
        check("core.batch_norm_inference", &sample(inference, attrs.clone()), 3);
        check("core.batch_norm", &sample(inputs, attrs.with("momentum", 0.1)), 3);
    }
}

/// Derivatives of the normalisations are correct for many rows, for rows longer than a task, and for planes of one
/// element, of few and of many elements.
#[test]
fn norm_gradients_of_many_shapes() {
    let rstd = |shape: &[usize]| SampleInput::range(shape, 0.2, 2.0);
    for shape in [vec![40, 1000], vec![3, 50_000], vec![3000, 33], vec![0, 5]] {
        let (width, rows) = ([shape[1]], [shape[0], 1]);
        let [x, weight, mean] = [&shape[..], &width, &rows].map(SampleInput::f32);
        let layer = vec![x.clone(), weight.clone(), mean, rstd(&rows), x.clone()];
        let rms = vec![x.clone(), weight.clone(), rstd(&rows), x.clone()];
        check("core.layer_norm_grad", &sample(layer, Attrs::new()), 4);
        check("core.rms_norm_grad", &sample(rms, Attrs::new()), 4);
        check(
            "core.rms_norm",
            &sample(vec![x, weight], Attrs::new().with("eps", 1e-5)),
            4,
        );
    }
    for (shape, groups) in [
        (vec![600, 700], 7),
        (vec![9, 300, 2], 3),
        (vec![5, 40, 17], 40),
        (vec![3, 2, 90, 91], 1),
        (vec![16, 64, 4, 4], 8),
        (vec![0, 4, 3], 2),
    ] {
        let (c, statistics) = ([shape[1]], [shape[0], groups]);
        let [x, weight, mean] = [&shape[..], &c, &statistics].map(SampleInput::f32);
        let attrs = Attrs::new().with("groups", groups);
        let group = vec![x.clone(), weight.clone(), mean, rstd(&statistics), x.clone()];
        check("core.group_norm_grad", &sample(group, attrs.clone()), 5);
        let group = vec![x.clone(), weight.clone(), weight.clone()];
        check("core.group_norm", &sample(group, attrs.with("eps", 1e-3)), 5);
        if shape[0] > 0 {
            let batch = vec![x.clone(), weight.clone(), weight, rstd(&c), x];
            check("core.batch_norm_grad", &sample(batch, Attrs::new()), 5);
        }
    }
}

#[test]
fn resizing_of_many_shapes() {
    for (x, to) in [
        ([2, 3, 40, 50], [80, 100]),
        ([1, 2, 33, 7], [11, 300]),
        ([3, 1, 1, 1], [9, 1]),
        ([1, 1, 2, 300], [2, 4]),
        ([0, 2, 3, 3], [5, 5]),
    ] {
        let y = [x[0], x[1], to[0], to[1]];
        let forward = |attrs: Attrs| sample(vec![SampleInput::f32(&x)], attrs.with("output_size", to));
        let back = |attrs: Attrs| sample(vec![SampleInput::f32(&y)], attrs.with("input_size", [x[2], x[3]]));
        check("core.upsample_nearest2d", &forward(Attrs::new()), 6);
        check("core.upsample_nearest2d_grad", &back(Attrs::new()), 6);
        for align in [false, true] {
            let attrs = Attrs::new().with("align_corners", align);
            check("core.upsample_bilinear2d", &forward(attrs.clone()), 6);
            check("core.upsample_bilinear2d_grad", &back(attrs), 6);
        }
    }
}

#[test]
fn max_pool_of_special_values() {
    let options = Attrs::new()
        .with("kernel", [2usize, 2])
        .with("stride", [1usize, 1])
        .with("padding", [1usize, 1]);
    let inputs = vec![SampleInput::f32(&[1, 1, 3, 4])];
    let mut case = case(op("core.max_pool2d"), &sample(inputs, options), 1);
    let (nan, low) = (f64::NAN, f64::NEG_INFINITY);
    case.values.insert(
        "operand0".into(),
        vec![1.0, 1.0, nan, 2.0, low, low, 3.0, nan, low, low, 3.0, 3.0],
    );
    let want = reference::evaluate(&case.graph, &case.values).expect("an evaluation");
    let got = results(&case, 1);
    for (port, value) in case.graph.outputs().iter().enumerate() {
        let want = &want.get(*value).expect("a result").data;
        for (i, (&want, got)) in want
            .iter()
            .zip(numbers(&got[port], [DType::F32, DType::U32][port]))
            .enumerate()
        {
            assert!(
                got == want || (got.is_nan() && want.is_nan()),
                "port {port} [{i}]: {got}, not {want}"
            );
        }
    }
}

#[test]
fn pooling_of_many_shapes() {
    let cases = [
        ([2, 3, 40, 41], [3, 3], [2, 2], [1, 1]),
        ([1, 40, 28, 28], [2, 2], [2, 2], [0, 0]),
        ([1, 2, 30, 30], [7, 5], [3, 4], [3, 2]),
        ([1, 2, 9, 9], [2, 2], [5, 5], [0, 0]),
    ];
    for (x, kernel, stride, padding) in cases {
        let mut graph = Graph::new();
        let input = graph.input("x", &x);
        let y = graph.avg_pool2d(
            input,
            Pool2dOptions {
                kernel,
                stride,
                padding,
            },
        );
        let y_shape = graph.shape(y).to_vec();
        let attrs = graph.nodes()[y.index()].op().expect("a call").1.clone();
        check("core.max_pool2d", &sample(vec![SampleInput::f32(&x)], attrs.clone()), 4);
        check("core.avg_pool2d", &sample(vec![SampleInput::f32(&x)], attrs.clone()), 4);
        let attrs = attrs.with("input_size", [x[2], x[3]]);
        check(
            "core.avg_pool2d_grad",
            &sample(vec![SampleInput::f32(&y_shape)], attrs),
            4,
        );
    }
}

/// The gradient of max pooling is correct for offsets within their planes, as in a pooling, and for an offset outside
/// its plane.
#[test]
fn gradients_of_max_pooling() {
    const NAME: &str = "core.max_pool2d_grad";
    let cases = [
        ([3, 5, 7, 6], [3, 5, 14, 13]),
        ([1, 70, 9, 9], [1, 70, 19, 20]),
        ([2, 1, 1, 1], [2, 1, 200, 201]),
    ];
    for (dy, shape) in cases {
        let (planes, plane): (usize, usize) = (dy[0] * dy[1], shape[2] * shape[3]);
        let inputs = vec![SampleInput::below(&dy, plane), SampleInput::f32(&dy)];
        let sample = sample(inputs, Attrs::new().with("shape", shape.as_slice()));
        for strays in [false, true] {
            let mut case = case(op(NAME), &sample, 5);
            let offsets = case.values.get_mut("operand0").expect("offsets");
            let windows = offsets.len() / planes;
            for (i, offset) in offsets.iter_mut().enumerate() {
                *offset += (i / windows * plane) as f64;
            }
            if strays {
                offsets[0] = (planes * plane - 1) as f64;
            }
            case.values.get_mut("operand1").expect("a gradient")[planes / 2] = f64::NAN;
            check_case(NAME, &sample, &case);
        }
    }
}

/// Updates are correct if the old parameter is also the gradient, and if the old parameter is needed afterwards.
#[test]
fn updates_of_shared_parameters() {
    for (own_gradient, needed_after) in [(true, false), (false, true), (true, true)] {
        let mut graph = Graph::new();
        let p = graph.state("p", &[200, 200]);
        let before = graph.reshape(p, &[40_000]);
        let g = graph.input("g", &[200, 200]);
        let [lr, decay] = ["lr", "decay"].map(|s| graph.input(s, &[]));
        let grad = if own_gradient { p } else { g };
        let new = graph.sgd_update([p.into(), grad.into()], [lr, decay]);
        // If no call uses both the old and the new parameter, the update happens in place.
        let other = if needed_after {
            before
        } else {
            graph.reshape(g, &[40_000])
        };
        let new = graph.reshape(new, &[40_000]);
        let product = graph.mul(other, new);
        graph.set_outputs(vec![product]);
        let data: Vec<f32> = (0..40_000).map(|i| (i % 13) as f32 - 5.0).collect();
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
        let plan = compile_for(&graph, &*device).expect("a plan");
        let sgd = plan
            .dispatches
            .iter()
            .find(|d| d.kernel.name == "optim.sgd")
            .expect("an update");
        assert_eq!(sgd.inputs[0].buffer != sgd.outputs[0].buffer, needed_after);
        let mut session = Session::on(device, plan).expect("a session");
        session.try_set_state("p", &data).expect("a state");
        session.set_input("g", &data);
        session.set_input("lr", &[0.5]);
        session.set_input("decay", &[0.25]);
        session.step();
        let product = session.read_output(data.len());
        let new = session.try_read_state("p").expect("a state");
        for (i, &old) in data.iter().enumerate() {
            assert_eq!(new[i], old - 0.5 * (old + 0.25 * old));
            assert_eq!(product[i], old * new[i]);
        }
    }
}
