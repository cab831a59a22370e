//! Tests of normalisation, convolution, pooling and resizing: rejected calls, and values against literals and loops
//! that share nothing with the operators.

use std::collections::HashMap;

use meganeura_core::attrs::Attrs;
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::graph::{Graph, NodeId, Value};
use meganeura_core::ops::{Conv1dOptions, ConvTranspose2dOptions};
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;
use meganeura_core::{DType, registry};

/// Returns the values of a result for some inputs.
fn values(graph: &mut Graph, result: impl Into<Value>, feeds: &[(&str, Vec<f64>)]) -> Vec<f64> {
    let result = result.into();
    graph.set_outputs(vec![result]);
    let feeds: HashMap<String, Vec<f64>> = feeds.iter().map(|(n, v)| ((*n).to_owned(), v.clone())).collect();
    evaluate(graph, &feeds)
        .expect("evaluates")
        .get(result)
        .expect("a result")
        .data
        .clone()
}

fn random(len: usize, seed: u64) -> Vec<f64> {
    let mut rng = SplitMix64::new(seed);
    (0..len).map(|_| f64::from((rng.unit() * 4.0 - 2.0) as f32)).collect()
}

fn close(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
        assert!((f - w).abs() < 1e-6 || f == w, "[{i}]: {f}, not {w}");
    }
}

/// Returns the message of a call on inputs of these shapes.
fn rejection(name: &str, shapes: &[&[usize]], attrs: Attrs) -> String {
    let op = registry::ops()
        .into_iter()
        .find(|op| op.name() == name)
        .expect("registered");
    let mut graph = Graph::new();
    let operands = shapes
        .iter()
        .enumerate()
        .map(|(i, s)| graph.input(&format!("operand{i}"), s).into());
    let operands: Vec<Value> = operands.collect();
    graph.call(op, attrs, operands);
    match graph.errors() {
        [error] => error.to_string(),
        other => panic!("{name} {shapes:?}: {other:?}"),
    }
}

/// Checks that each case is rejected with a message that contains the words.
fn rejected(name: &str, cases: Vec<(&[&[usize]], Attrs, &str)>) {
    for (shapes, attrs, words) in cases {
        let message = rejection(name, shapes, attrs);
        assert!(message.contains(words), "{name} {shapes:?}: {message}");
    }
}

fn eps(value: f64) -> Attrs {
    Attrs::new().with("eps", value)
}

#[test]
fn rows_that_cannot_be_normalised() {
    let names = [("core.layer_norm", 3), ("core.rms_norm", 2)];
    for (name, arity) in names {
        let all: [&[usize]; 3] = [&[2, 3], &[3], &[3]];
        let scalar: [&[usize]; 3] = [&[], &[3], &[3]];
        let empty: [&[usize]; 3] = [&[2, 0], &[0], &[0]];
        let wrong: [&[usize]; 3] = [&[2, 3], &[2], &[3]];
        rejected(
            name,
            vec![
                (&all[..arity], eps(-1e-5), "eps must not be negative"),
                (&all[..arity], eps(f64::NAN), "eps must not be negative, but finite"),
                (
                    &all[..arity],
                    eps(f64::INFINITY),
                    "eps must not be negative, but finite",
                ),
                (&all[..arity], Attrs::new(), "eps"),
                (&scalar[..arity], eps(1e-5), "has no rows to normalise"),
                (&empty[..arity], eps(1e-5), "has no rows to normalise"),
                (&wrong[..arity], eps(1e-5), "does not fit the last axis"),
                (&all[..1], eps(1e-5), "operands, got 1"),
            ],
        );
    }
    let none = Attrs::new;
    rejected(
        "core.layer_norm_grad",
        vec![
            (&[&[2, 3], &[3], &[2, 1], &[2, 1], &[3, 2]], none(), "the gradient is"),
            (&[&[2, 3], &[3], &[2], &[2, 1], &[2, 3]], none(), "the mean is"),
            (&[&[2, 3], &[3], &[2, 1], &[1, 2], &[2, 3]], none(), "the rstd is"),
            (&[&[2, 3], &[2], &[2, 1], &[2, 1], &[2, 3]], none(), "the weight"),
        ],
    );
    rejected(
        "core.rms_norm_grad",
        vec![
            (&[&[2, 3], &[3], &[2, 1], &[2, 4]], none(), "the gradient is"),
            (&[&[2, 3], &[3], &[2], &[2, 3]], none(), "the rstd is"),
            (&[&[2, 3], &[3, 1], &[2, 1], &[2, 3]], none(), "the weight"),
        ],
    );
}

#[test]
fn channels_that_cannot_be_normalised() {
    let groups = |n: i64| eps(1e-5).with("groups", n);
    rejected(
        "core.group_norm",
        vec![
            (
                &[&[2, 6, 4], &[6], &[6]],
                groups(4),
                "4 groups do not divide 6 channels",
            ),
            (&[&[2, 6, 4], &[6], &[6]], groups(0), "at least one group"),
            (&[&[2, 6, 4], &[6], &[6]], groups(-2), "negative: -2"),
            (&[&[2, 6, 4], &[4], &[6]], groups(2), "the weight is"),
            (&[&[2, 6, 4], &[6], &[1, 6]], groups(2), "the bias is"),
            (&[&[6], &[6], &[6]], groups(2), "a batch axis and a channel axis"),
            (&[&[2, 6, 0], &[6], &[6]], groups(2), "the statistics of no elements"),
            (&[&[2, 0, 5], &[0], &[0]], groups(2), "the statistics of no elements"),
            (
                &[&[2, 6, 4], &[6], &[6]],
                groups(2).with("eps", -1.0),
                "eps must not be negative",
            ),
        ],
    );
    let groups = |n: i64| Attrs::new().with("groups", n);
    rejected(
        "core.group_norm_grad",
        vec![
            (&[&[2, 6], &[6], &[2, 3], &[2, 3], &[2, 6]], groups(2), "the mean is"),
            (&[&[2, 6], &[6], &[2, 2], &[2, 3], &[2, 6]], groups(2), "the rstd is"),
            (
                &[&[2, 6], &[6], &[2, 2], &[2, 2], &[2, 5]],
                groups(2),
                "the gradient is",
            ),
            (&[&[2, 6], &[5], &[2, 2], &[2, 2], &[2, 6]], groups(2), "the weight is"),
        ],
    );
    rejected(
        "core.batch_norm_grad",
        vec![
            (&[&[2, 6], &[6], &[6], &[6], &[6, 2]], Attrs::new(), "the gradient is"),
            (&[&[2, 6], &[6], &[5], &[6], &[2, 6]], Attrs::new(), "the mean is"),
            (
                &[&[0, 6], &[6], &[6], &[6], &[0, 6]],
                Attrs::new(),
                "the statistics of no elements",
            ),
        ],
    );
    let five: [&[usize]; 5] = [&[4, 2], &[2], &[2], &[2], &[2]];
    rejected(
        "core.batch_norm_inference",
        vec![(&five, eps(-1.0), "eps must not be negative")],
    );
}

#[test]
fn convolutions_that_do_not_fit() {
    let attrs = |stride: i64, padding: i64, dilation: i64, groups: i64| {
        Attrs::new()
            .with("stride", stride)
            .with("padding", padding)
            .with("dilation", dilation)
            .with("groups", groups)
    };
    rejected(
        "core.conv1d",
        vec![
            (
                &[&[1, 4, 5], &[2, 4, 6]],
                attrs(1, 0, 1, 1),
                "the kernel reaches over 6 elements",
            ),
            (&[&[1, 4, 5], &[2, 4, 3]], attrs(1, 0, 3, 1), "the padded input has 5"),
            (
                &[&[1, 4, 5], &[2, 4, 0]],
                attrs(1, 0, 1, 1),
                "the kernel has no elements",
            ),
            (
                &[&[1, 4, 5], &[6, 1, 3]],
                attrs(1, 0, 1, 3),
                "3 groups do not divide 4 input",
            ),
            (&[&[1, 4, 5], &[3, 2, 3]], attrs(1, 0, 1, 2), "3 output channels"),
            (
                &[&[1, 4, 5], &[2, 4, 3]],
                attrs(1, 0, 1, 2),
                "4 channels in 2 groups need 2",
            ),
            (&[&[1, 4, 5], &[2, 4, 3]], attrs(0, 0, 1, 1), "must be at least 1"),
            (&[&[1, 4, 5], &[2, 4, 3]], attrs(1, 0, 0, 1), "must be at least 1"),
            (&[&[1, 4, 5], &[2, 4, 3]], attrs(1, 0, 1, 0), "must be at least 1"),
            (
                &[&[1, 4, 5], &[2, 4, 3]],
                attrs(1, -1, 1, 1),
                "padding -1 is not a size",
            ),
            (
                &[&[1, 4, 5, 5], &[2, 4, 3]],
                attrs(1, 0, 1, 1),
                "[batch, channels, length]",
            ),
        ],
    );
    let attrs = |stride: i64, padding: i64, extra: i64, groups: i64| {
        Attrs::new()
            .with("stride", [stride; 2].to_vec())
            .with("padding", [padding; 2].to_vec())
            .with("dilation", vec![1i64, 1])
            .with("output_padding", [extra; 2].to_vec())
            .with("groups", groups)
    };
    let (x, w): (&[usize], &[usize]) = (&[1, 4, 3, 3], &[4, 2, 3, 3]);
    rejected(
        "core.conv_transpose2d",
        vec![
            (
                &[x, w],
                attrs(2, 0, 2, 1),
                "the output padding 2 is not smaller than the stride 2",
            ),
            (
                &[x, w],
                attrs(1, 0, 1, 1),
                "the output padding 1 is not smaller than the stride 1",
            ),
            (&[x, w], attrs(1, 3, 0, 1), "removes all 5 elements"),
            (&[x, w], attrs(1, 0, 0, 3), "3 groups do not divide 4 input channels"),
            (&[x, w], attrs(0, 0, 0, 1), "must be at least 1"),
            (&[x, w], attrs(1, -1, 0, 1), "padding"),
            (&[x, w], attrs(1, 0, -1, 1), "output_padding"),
            (&[x, &[2, 4, 3, 3]], attrs(1, 0, 0, 1), "has 2 input channels (axis 0)"),
            (&[x, &[4, 2, 0, 3]], attrs(1, 0, 0, 1), "an empty axis"),
            (&[&[1, 4, 0, 3], w], attrs(1, 0, 0, 1), "an empty axis"),
            (&[&[1, 4, 3], w], attrs(1, 0, 0, 1), "[batch, channels, height, width]"),
        ],
    );
}

#[test]
fn images_that_cannot_be_pooled_or_resized() {
    let size = |h: i64, w: i64| Attrs::new().with("output_size", vec![h, w]);
    for name in [
        "core.adaptive_avg_pool2d",
        "core.adaptive_max_pool2d",
        "core.upsample_nearest2d",
        "core.upsample_bilinear2d",
    ] {
        let size = |h, w| size(h, w).with("align_corners", false);
        rejected(
            name,
            vec![
                (&[&[1, 2, 4, 4]], size(0, 2), "cannot become 0x2"),
                (&[&[1, 2, 4, 4]], size(2, -1), "output_size"),
                (&[&[1, 2, 0, 4]], size(2, 2), "an image of 0x4 has no elements"),
                (&[&[2, 4, 4]], size(2, 2), "[batch, channels, height, width]"),
                (&[&[1, 1, 1, 1]], size(1 << 25, 1), "is longer than"),
                (&[&[1, 1, 1, 1]], size(i64::MAX, 1), "is longer than"),
                (
                    &[&[1, 2, 4, 4]],
                    Attrs::new().with("output_size", vec![2i64]),
                    "output_size",
                ),
            ],
        );
    }
    rejected(
        "core.upsample_bilinear2d",
        vec![(&[&[1, 2, 4, 4]], size(2, 2), "align_corners")],
    );
    let input = Attrs::new().with("input_size", vec![0i64, 2]);
    rejected(
        "core.upsample_nearest2d_grad",
        vec![(&[&[1, 2, 4, 4]], input.clone(), "cannot become 0x2")],
    );
    let input = input.with("align_corners", true);
    rejected(
        "core.upsample_bilinear2d_grad",
        vec![(&[&[1, 2, 4, 4]], input, "cannot become 0x2")],
    );
}

/// Builder methods with their own checks describe the error.
#[test]
fn builders_explain_what_they_take() {
    let message = |build: &dyn Fn(&mut Graph) -> NodeId| {
        let mut g = Graph::new();
        build(&mut g);
        match g.errors() {
            [error] => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let found = message(&|g| {
        let (x, w) = (g.input("x", &[1, 4, 5, 5]), g.input("w", &[4, 2, 3, 3]));
        g.depthwise_conv2d(x, w, [1, 1], [0, 0], [1, 1])
    });
    assert!(found.contains("[channels, 1, kernel height, kernel width]"), "{found}");
    let found = message(&|g| {
        let (x, w) = (g.input("x", &[1, 0, 5, 5]), g.input("w", &[0, 1, 3, 3]));
        g.depthwise_conv2d(x, w, [1, 1], [0, 0], [1, 1])
    });
    assert!(found.contains("at least one channel"), "{found}");
    let found = message(&|g| {
        let x = g.input("x", &[3, 4]);
        g.global_avg_pool(x)
    });
    assert!(found.contains("has nothing to pool"), "{found}");
    let found = message(&|g| {
        let (x, w) = (g.input("x", &[3]), g.input("w", &[3]));
        g.instance_norm(x, w, w, 1e-5)
    });
    assert!(found.contains("a channel axis"), "{found}");
    let found = message(&|g| {
        let x = g.input_typed("x", &[1, 1, 2, 2], DType::U32);
        g.upsample_nearest2d(x, [4, 4])
    });
    assert!(found.contains("floating point"), "{found}");
}

#[test]
fn norms_by_hand() {
    let mut g = Graph::new();
    let (x, w) = (g.input("x", &[1, 2]), g.input("w", &[2]));
    let y = g.rms_norm(x, w, 0.0);
    let rms = 12.5f64.sqrt();
    let feeds = [("x", vec![3.0, 4.0]), ("w", vec![1.0, 2.0])];
    close(&values(&mut g, y, &feeds), &[3.0 / rms, 8.0 / rms]);
    let rstd = g.port(y, 1);
    assert_eq!(g.shape(rstd), [1, 1]);
    close(&values(&mut g, rstd, &feeds), &[1.0 / rms]);

    // Two groups of two channels of two elements; instance norm has four groups of one channel.
    let data: Vec<f64> = vec![1.0, 3.0, 5.0, 7.0, -1.0, -1.0, 2.0, 4.0];
    let (weight, bias) = (vec![1.0, 2.0, -1.0, 0.5], vec![0.0, 1.0, 0.0, -1.0]);
    for groups in [2, 4] {
        let mut g = Graph::new();
        let x = g.input("x", &[1, 4, 2]);
        let [w, b] = ["w", "b"].map(|n| g.input(n, &[4]));
        let y = if groups == 4 {
            g.instance_norm(x, w, b, 0.25)
        } else {
            g.group_norm(x, w, b, groups, 0.25)
        };
        let mut wanted = Vec::new();
        for (i, group) in data.chunks(8 / groups as usize).enumerate() {
            let n = group.len() as f64;
            let mean = group.iter().sum::<f64>() / n;
            let var = group.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
            for (k, v) in group.iter().enumerate() {
                let c = (i * group.len() + k) / 2;
                wanted.push((v - mean) / (var + 0.25).sqrt() * weight[c] + bias[c]);
            }
        }
        let feeds = [("x", data.clone()), ("w", weight.clone()), ("b", bias.clone())];
        close(&values(&mut g, y, &feeds), &wanted);
        let statistics = g.port(y, 2);
        assert_eq!(g.shape(statistics), [1, groups as usize]);
    }
}

#[test]
fn convolutions_by_loops() {
    let (n, c, l, o, k) = (2, 4, 9, 6, 3);
    let options = Conv1dOptions {
        stride: 2,
        padding: 2,
        dilation: 2,
        groups: 2,
    };
    let mut g = Graph::new();
    let (x, w) = (g.input("x", &[n, c, l]), g.input("w", &[o, c / 2, k]));
    let y = g.conv1d(x, w, options);
    let out = g.shape(y)[2];
    assert_eq!(out, (9 + 4 - 4 - 1) / 2 + 1);
    let (xs, ws) = (random(n * c * l, 1), random(o * c / 2 * k, 2));
    let mut wanted = Vec::new();
    for (b, f, i) in (0..n * o * out).map(|i| (i / out / o, i / out % o, i % out)) {
        let mut sum = 0.0;
        for (ch, p) in (0..c / 2).flat_map(|ch| (0..k).map(move |p| (ch, p))) {
            let at = (i * 2 + p * 2) as isize - 2;
            if (0..l as isize).contains(&at) {
                let channel = f / (o / 2) * (c / 2) + ch;
                sum += xs[(b * c + channel) * l + at as usize] * ws[(f * (c / 2) + ch) * k + p];
            }
        }
        wanted.push(sum);
    }
    close(&values(&mut g, y, &[("x", xs), ("w", ws)]), &wanted);
}

#[test]
fn transposed_convolution_by_loops() {
    let (n, c, og, groups) = (2, 4, 3, 2);
    let ([h, w], [kh, kw]) = ([3, 4], [3, 2]);
    let options = ConvTranspose2dOptions {
        stride: [2, 3],
        padding: [1, 0],
        output_padding: [1, 2],
        dilation: [2, 1],
        groups: groups as u32,
    };
    let mut g = Graph::new();
    let (x, weight) = (g.input("x", &[n, c, h, w]), g.input("w", &[c, og, kh, kw]));
    let y = g.conv_transpose2d(x, weight, options);
    let (oh, ow) = (2 * 2 - 2 + 2 * 2 + 1 + 1, 3 * 3 + 1 + 2 + 1);
    assert_eq!(g.shape(y), [n, og * groups, oh, ow]);
    let (xs, ws) = (random(n * c * h * w, 3), random(c * og * kh * kw, 4));
    let mut wanted = vec![0.0; n * og * groups * oh * ow];
    for (b, ch, i, j) in (0..n * c * h * w).map(|i| (i / w / h / c, i / w / h % c, i / w % h, i % w)) {
        for (f, p, q) in (0..og * kh * kw).map(|t| (t / kw / kh, t / kw % kh, t % kw)) {
            let (row, column) = ((i * 2 + p * 2) as isize - 1, j * 3 + q);
            if (0..oh as isize).contains(&row) && column < ow {
                let out = ch / (c / groups) * og + f;
                wanted[((b * og * groups + out) * oh + row as usize) * ow + column] +=
                    xs[((b * c + ch) * h + i) * w + j] * ws[((ch * og + f) * kh + p) * kw + q];
            }
        }
    }
    close(&values(&mut g, y, &[("x", xs), ("w", ws)]), &wanted);
}

#[test]
fn depthwise_convolution_keeps_channels_apart() {
    let mut g = Graph::new();
    let (x, w) = (g.input("x", &[1, 2, 2, 2]), g.input("w", &[2, 1, 2, 1]));
    let y = g.depthwise_conv2d(x, w, [1, 1], [0, 0], [1, 1]);
    let feeds = [
        ("x", (1..=8).map(f64::from).collect()),
        ("w", vec![1.0, 10.0, 2.0, -1.0]),
    ];
    close(&values(&mut g, y, &feeds), &[31.0, 42.0, 3.0, 4.0]);
}

/// Returns the mean and the maximum of every window of a plane.
fn windows(x: &[f64], [h, w]: [usize; 2], [oh, ow]: [usize; 2]) -> (Vec<f64>, Vec<f64>) {
    let range = |i: usize, size: usize, out: usize| i * size / out..((i + 1) * size).div_ceil(out);
    let (mut means, mut largest) = (Vec::new(), Vec::new());
    for (i, j) in (0..oh * ow).map(|i| (i / ow, i % ow)) {
        let seen: Vec<f64> = range(i, h, oh)
            .flat_map(|r| range(j, w, ow).map(move |c| x[r * w + c]))
            .collect();
        means.push(seen.iter().sum::<f64>() / seen.len() as f64);
        largest.push(seen.iter().fold(f64::NEG_INFINITY, |m, &v| m.max(v)));
    }
    (means, largest)
}

#[test]
fn adaptive_pooling_by_loops() {
    for (from, to) in [
        ([7, 5], [3, 3]),
        ([6, 9], [3, 4]),
        ([3, 2], [5, 7]),
        ([13, 8], [1, 8]),
        ([4, 4], [2, 2]),
    ] {
        let mut g = Graph::new();
        let x = g.input("x", &[1, 1, from[0], from[1]]);
        let (mean, largest) = (g.adaptive_avg_pool2d(x, to), g.adaptive_max_pool2d(x, to));
        assert_eq!(g.shape(mean), [1, 1, to[0], to[1]]);
        let mut data = random(from[0] * from[1], 9);
        // An infinite element in two windows, and twice in one of them, stays infinite.
        data[from[0] * from[1] / 2] = f64::INFINITY;
        let wanted = windows(&data, from, to);
        let feeds = [("x", data)];
        close(&values(&mut g, mean, &feeds), &wanted.0);
        close(&values(&mut g, largest, &feeds), &wanted.1);
    }
}

/// The largest element gets the whole gradient, even if the gather has copied it into its window twice.
#[test]
fn adaptive_max_pool_gives_its_gradient_to_the_largest() {
    let mut g = Graph::new();
    let x = g.input("x", &[1, 1, 1, 5]);
    g.require_grad(x);
    let y = g.adaptive_max_pool2d(x, [1, 3]);
    let loss = g.sum_all(y);
    g.set_outputs(vec![loss]);
    let mut full = try_differentiate(&g).expect("differentiates");
    let dx = full.gradients()[0].1;
    // Windows 0..2, 1..4 and 3..5.
    let feeds = [("x", vec![1.0, 5.0, 2.0, 3.0, 4.0])];
    close(&values(&mut full, dx, &feeds), &[0.0, 2.0, 0.0, 0.0, 1.0]);
}

#[test]
fn global_average_of_any_rank() {
    for shape in [vec![2, 3, 4], vec![2, 3, 2, 2], vec![2, 3, 2, 1, 2]] {
        let mut g = Graph::new();
        let x = g.input("x", &shape);
        let y = g.global_avg_pool(x);
        assert_eq!(g.shape(y), [2, 3]);
        let data = random(24, 5);
        let wanted: Vec<f64> = data.chunks(4).map(|c| c.iter().sum::<f64>() / 4.0).collect();
        close(&values(&mut g, y, &[("x", data)]), &wanted);
    }
}

#[test]
fn resizing_by_hand() {
    let resize = |build: &dyn Fn(&mut Graph, NodeId) -> NodeId| {
        let mut g = Graph::new();
        let x = g.input("x", &[1, 1, 2, 2]);
        let y = build(&mut g, x);
        values(&mut g, y, &[("x", vec![1.0, 2.0, 3.0, 4.0])])
    };
    let grid = |rows: &[f64], columns: &[f64]| -> Vec<f64> {
        let row = |&r: &f64| columns.iter().map(move |c| 1.0 + 2.0 * r + c);
        rows.iter().flat_map(row).collect()
    };
    let found = resize(&|g, x| g.upsample_nearest2d(x, [4, 3]));
    close(&found, &grid(&[0.0, 0.0, 1.0, 1.0], &[0.0, 0.0, 1.0]));
    let found = resize(&|g, x| g.upsample_bilinear2d(x, [4, 4], false));
    let places = [0.0, 0.25, 0.75, 1.0];
    close(&found, &grid(&places, &places));
    let found = resize(&|g, x| g.upsample_bilinear2d(x, [4, 1], true));
    close(&found, &grid(&[0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0], &[0.0]));
    let found = resize(&|g, x| g.upsample_bilinear2d(x, [1, 1], false));
    close(&found, &[2.5]);
}

/// Gradients of gradients equal central differences of the gradient; they flow through the saved statistics.
#[test]
fn gradients_of_norms_can_be_differentiated() {
    type Build = fn(&mut Graph, NodeId, NodeId, NodeId) -> NodeId;
    let norms: [Build; 3] = [
        |g, x, w, b| {
            let (x, w, b) = (g.reshape(x, &[3, 4]), g.reshape(w, &[4]), g.reshape(b, &[4]));
            g.layer_norm(x, w, b, 0.1)
        },
        |g, x, w, _| {
            let x = g.reshape(x, &[3, 4]);
            g.rms_norm(x, w, 0.1)
        },
        |g, x, w, b| {
            let x = g.reshape(x, &[1, 4, 3]);
            g.group_norm(x, w, b, 2, 0.1)
        },
    ];
    let [xs, ws, bs, directions] = [(12, 1), (4, 2), (4, 3), (12, 4)].map(|(n, seed)| random(n, seed));
    for norm in norms {
        let mut g = Graph::new();
        let x = g.input("x", &[12]);
        let [w, b] = ["w", "b"].map(|n| g.input(n, &[4]));
        g.require_grad(x);
        let y = norm(&mut g, x, w, b);
        let cubes = g.square(y);
        let cubes = g.mul(cubes, y);
        let loss = g.sum_all(cubes);
        g.set_outputs(vec![loss]);
        let mut first = try_differentiate(&g).expect("differentiates");
        let dx = first.gradients()[0].1;
        let direction = first.input("v", &[12]);
        let along = first.mul(dx, direction);
        let along = first.sum_all(along);
        first.set_outputs(vec![along]);
        let mut second = try_differentiate(&first).expect("differentiates again");
        let hessian = second.gradients()[0].1;
        let feeds = |x: Vec<f64>| {
            [
                ("x", x),
                ("w", ws.clone()),
                ("b", bs.clone()),
                ("v", directions.clone()),
            ]
        };
        let found = values(&mut second, hessian, &feeds(xs.clone()));
        for (i, found) in found.iter().enumerate() {
            let mut probe = |h: f64| {
                let mut moved = xs.clone();
                moved[i] += h;
                values(&mut first, along, &feeds(moved))[0]
            };
            let difference = (probe(1e-5) - probe(-1e-5)) / 2e-5;
            assert!((found - difference).abs() < 1e-4, "[{i}]: {found}, not {difference}");
        }
    }
}
