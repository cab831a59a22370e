//! Tests of the image layout channels-last (NHWC) on a device: results, inputs and parameters do not change.

use std::collections::HashMap;
use std::sync::Arc;

use meganeura::backend::Device;
use meganeura::cpu::CpuDevice;
use meganeura::ops::{Conv2dOptions, Pool2dOptions};
use meganeura::reference::evaluate;
use meganeura::rewrite::RewriteConfig;
use meganeura::{Builder, Graph, Session, Value};

fn padded(stride: u32, groups: u32) -> Conv2dOptions {
    Conv2dOptions {
        stride: [stride; 2],
        padding: [1, 1],
        groups,
        ..Conv2dOptions::default()
    }
}

/// Builds a network of all kinds of convolutions: the first of three channels, pointwise, depthwise, with a stride,
/// with residuals.
fn network() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 3, 41, 38]);
    let first = g.parameter("first", &[32, 3, 3, 3]);
    let bias = g.parameter("bias", &[32]);
    let y = g.conv2d(x, first, padded(1, 1));
    let y = g.channel_bias_add(y, bias);
    let y = g.relu(y);
    let window = Pool2dOptions {
        kernel: [3, 3],
        stride: [2, 2],
        padding: [1, 1],
    };
    let mut y: Value = g.max_pool2d(y, window).into();
    for block in 0..2 {
        let wide = g.parameter(&format!("{block}.wide"), &[96, 32, 1, 1]);
        let depth = g.parameter(&format!("{block}.depth"), &[96, 1, 3, 3]);
        let full = g.parameter(&format!("{block}.full"), &[32, 96, 3, 3]);
        let z = g.conv2d(y, wide, Conv2dOptions::default());
        let z = g.silu(z);
        let z = g.conv2d(z, depth, padded(1, 96));
        let z = g.relu(z);
        let z = g.conv2d(z, full, padded(1, 1));
        let z = g.add(z, y);
        y = g.relu(z).into();
    }
    let down = g.parameter("down", &[40, 32, 3, 3]);
    let y = g.conv2d(y, down, padded(2, 1));
    let pooled = g.mean(y, &[2, 3], false);
    g.set_outputs(vec![y, pooled]);
    g
}

fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn session(device: &Arc<dyn Device>, channels_last: bool) -> Session {
    let config = RewriteConfig {
        channels_last,
        ..RewriteConfig::default()
    };
    let builder = Builder::on(device.clone()).rewrite(config).inference();
    let (session, report) = builder.build(&network()).expect("a session");
    assert_eq!(report.images_channels_last, channels_last, "{report}");
    session
}

/// Names of the parameters and the input, and their numbers of elements.
const LEAVES: [(&str, usize); 10] = [
    ("x", 2 * 3 * 41 * 38),
    ("first", 32 * 3 * 9),
    ("bias", 32),
    ("0.wide", 96 * 32),
    ("0.depth", 96 * 9),
    ("0.full", 32 * 96 * 9),
    ("1.wide", 96 * 32),
    ("1.depth", 96 * 9),
    ("1.full", 32 * 96 * 9),
    ("down", 40 * 32 * 9),
];

/// Sets some parameters and inputs, in the session and for the oracle.
fn set(session: &mut Session, feeds: &mut HashMap<String, Vec<f64>>, every: usize, seed: u64) {
    for (i, (name, len)) in LEAVES.into_iter().enumerate().step_by(every) {
        let data = numbers(len, seed + i as u64);
        match name {
            "x" => session.set_input(name, &data),
            _ => session.set_parameter(name, &data),
        }
        feeds.insert(name.to_owned(), data.into_iter().map(f64::from).collect());
    }
}

#[test]
fn results_are_those_of_the_definition() {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
    let graph = network();
    for channels_last in [false, true] {
        let mut session = session(&device, channels_last);
        let mut feeds = HashMap::new();
        // Parameters may be written at any time.
        for (every, seed) in [(1, 0), (3, 100)] {
            set(&mut session, &mut feeds, every, seed);
            session.step();
            session.wait();
            let want = evaluate(&graph, &feeds).expect("an evaluation");
            for (i, &output) in graph.outputs().iter().enumerate() {
                let want = &want.get(output).expect("a value").data;
                let mut got = vec![0.0; want.len()];
                session.read_output_by_index(i, &mut got);
                let largest = want.iter().fold(0.0f64, |most, v| most.max(v.abs()));
                for (got, want) in got.iter().zip(want) {
                    let off = (f64::from(*got) - want).abs();
                    assert!(
                        off <= 1e-5 * largest,
                        "channels last {channels_last}, seed {seed}: {got} and {want}"
                    );
                }
            }
        }
    }
}
