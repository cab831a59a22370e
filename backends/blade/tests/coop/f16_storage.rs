//! Tests of results that only cooperative matrices read. Stored in `f16`, they give the same bits as in `f32`.

use std::sync::Arc;

use meganeura_core::backend::Device;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::Conv2dOptions;
use meganeura_core::ops::sample::SampleInput;
use meganeura_core::plan::compile_at;
use meganeura_core::precision::Precision;
use meganeura_core::{NodeId, Session};

use super::training::{feed_transformer, session, transformer};
use crate::case::Case;
use crate::devices_with;

/// Returns the same device twice: with such results in `f16`, and with such results in `f32`. It uses only one tile
/// size, because software drivers compile slowly.
fn both() -> Option<[Arc<dyn Device>; 2]> {
    let of = |between: &str| {
        let settings = format!("coop_min_workgroups = 0\ncoop_intermediates = \"{between}\"");
        devices_with(&settings).into_iter().next()
    };
    Some([of("f16")?, of("f32")?])
}

/// Returns the number of kernels that write `f16` elements.
fn writers(device: &Arc<dyn Device>, session: &Session) -> usize {
    let sources = device.kernel_sources(session.plan()).expect("sources");
    // Buffers are named b0, b1 and so on; workgroup memory has other names.
    let is_buffer = |line: &str| {
        line.trim_start()
            .strip_prefix('b')
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let stores = |line: &str| ["] = f16(", "] = vec4<f16>("].iter().any(|store| line.contains(store));
    let writes = |text: &str| text.lines().any(|line| is_buffer(line) && stores(line));
    sources.iter().filter(|source| writes(&source.text)).count()
}

fn bits(outputs: &[Vec<f32>]) -> Vec<Vec<u32>> {
    let bits = |output: &Vec<f32>| output.iter().map(|v| v.to_bits()).collect();
    outputs.iter().map(bits).collect()
}

/// Runs a graph on both devices, with inputs multiplied by each factor of `sizes`. `f16_storage` is the expected
/// number of kernels that write `f16` elements.
fn compare<V: Into<Value> + Copy>(
    shapes: &[&[usize]],
    sizes: &[f64],
    f16_storage: usize,
    build: impl Fn(&mut Graph, &[NodeId]) -> Vec<V>,
) {
    let Some(pair) = both() else { return };
    let inputs: Vec<SampleInput> = shapes.iter().map(|shape| SampleInput::f32(shape)).collect();
    let cases = sizes
        .iter()
        .map(|size| Case::with(&inputs, &build, |_, _, value| value * size));
    let cases: Vec<Case> = cases.collect();
    let found = pair.map(|device| {
        let plan = compile_at(&cases[0].graph, &*device, Precision::Mixed).expect("a plan");
        let mut session = Session::on(device.clone(), plan).expect("a session");
        let outputs: Vec<_> = cases.iter().map(|case| bits(&case.run(&mut session))).collect();
        (writers(&device, &session), outputs)
    });
    let [(in_f16, f16), (in_f32, f32)] = found;
    assert_eq!((in_f16, in_f32), (f16_storage, 0), "{shapes:?}");
    assert!(f16 == f32, "{shapes:?}");
}

/// Chains of matmuls give the same bits, if the intermediate result comes from a separate kernel, from a matmul with
/// an epilogue, and if it is an operand that is read along the other axis. The sizes include odd ones, whose elements
/// are read one by one. The numbers include some beyond the range of `f16`, and some that it flushes to zero.
#[test]
fn chains_of_products() {
    for [m, k, n, p] in [[33, 77, 41, 19], [32, 64, 48, 20]] {
        let shapes: [&[usize]; 4] = [&[m, k], &[k], &[k, n], &[p, n]];
        compare(&shapes, &[1.0, 1e6, 1e-7], 2, |g, x| {
            let h = g.mul(x[0], x[1]);
            let h = g.matmul(h, x[2]);
            let h = g.silu(h);
            vec![g.matmul_bt(h, x[3])]
        });
    }
}

/// Matmuls without an epilogue, whose results are stored as whole tiles, give the same bits.
#[test]
fn products_of_products() {
    compare(&[&[32, 32], &[32, 32]], &[1.0], 1, |g, x| {
        let h = g.matmul(x[0], x[1]);
        vec![g.matmul_at(h, x[1])]
    });
}

/// A result remains in `f32` if it also has another reader: a residual addition, an output, or a sum.
#[test]
fn what_others_read_is_not_rounded() {
    let shapes: [&[usize]; 2] = [&[24, 24], &[24, 24]];
    compare(&shapes, &[1.0], 0, |g, x| {
        let [residual, output, terms] = [x[0], x[1], x[0]].map(|x| g.tanh(x));
        let terms = g.neg(terms);
        let products = [residual, output, terms].map(|h| g.matmul(h, x[1]));
        let sums = g.sum(terms, &[1], true);
        let with_residual = g.add(products[0], residual);
        vec![with_residual, products[1], output, products[2], sums]
    });
}

#[test]
fn images_between_convolutions() {
    let options = Conv2dOptions {
        padding: [1, 1],
        ..Conv2dOptions::default()
    };
    compare(&[&[2, 3, 9, 7], &[8, 3, 3, 3], &[5, 8, 3, 3]], &[1.0], 1, |g, x| {
        let h = g.conv2d(x[0], x[1], options);
        let h = g.relu(h);
        vec![g.conv2d(h, x[2], options)]
    });
}

/// Queries, keys and values, and the result of an attention, are stored in `f16`.
#[test]
fn around_attention() {
    compare(&[&[40, 24], &[24, 32], &[24, 16], &[32, 24]], &[1.0], 4, |g, x| {
        let [q, k, v] = [x[1], x[2], x[2]].map(|w| g.matmul(x[0], w));
        let v = g.neg(v);
        let h = g.causal_attention(q, k, v, 2, 1, 16);
        vec![g.matmul(h, x[3])]
    });
}

#[test]
fn training_is_the_same() {
    let Some(pair) = both() else { return };
    let graph = transformer();
    let found = pair.map(|device| {
        let mut session = session(&device, &graph, Precision::Mixed, feed_transformer);
        let step = |_| {
            session.step();
            session.read_loss().to_bits()
        };
        let losses: Vec<u32> = (0..5).map(step).collect();
        let weights = session.read_parameter("gate0");
        (writers(&device, &session), losses, bits(&[weights]))
    });
    let [(in_f16, f16_losses, f16), (in_f32, f32_losses, f32)] = found;
    assert!(in_f16 >= 8 && in_f32 == 0, "{in_f16}, {in_f32}");
    assert_eq!(f16_losses, f32_losses);
    assert!(f16 == f32);
}
