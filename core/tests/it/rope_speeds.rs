//! Tests of rotary positions with one speed per pair: values against sines and cosines, derivatives against central
//! differences in `f64`.

use meganeura_core::DType;
use meganeura_core::graph::Graph;
use meganeura_core::ops::RopeScaling;

use crate::compositions::{check_gradients, feeds, numbers, value};

#[test]
fn pairs_are_turned_by_their_speeds_and_lengthened() {
    let speeds = [1.0, -0.3, 0.007];
    let [batch, rows, heads, half] = [2, 3, 2, speeds.len()];
    let mut g = Graph::new();
    let x = g.input("x", &[batch, rows, heads * 2 * half]);
    let at = g.input_u32("at", &[batch]);
    g.require_grad(x);
    let y = g.rope_with_speeds(x, &speeds, at, 1.25);
    g.set_outputs(vec![y]);
    g.verify().expect("valid");
    let feeds = feeds(&[
        ("x", numbers(batch * rows * heads * 2 * half, 1)),
        ("at", vec![0.0, 100_000.0]),
    ]);
    let found = value(&g, y, &feeds);
    for (i, (head, found)) in feeds["x"].chunks(2 * half).zip(found.chunks(2 * half)).enumerate() {
        let position = [0.0, 100_000.0][i / heads / rows] + (i / heads % rows) as f64;
        for (pair, speed) in speeds.iter().enumerate() {
            let (sin, cos) = (position * speed).sin_cos();
            let (a, b) = (head[pair], head[pair + half]);
            for (found, expected) in [
                (found[pair], 1.25 * (a * cos - b * sin)),
                (found[pair + half], 1.25 * (b * cos + a * sin)),
            ] {
                assert!((found - expected).abs() < 1e-4, "{i} {pair}: {found}, not {expected}");
            }
        }
    }
    check_gradients(g, y, &feeds);
}

/// With the default speeds, the result equals that of the operator `core.rope_dynamic_offset`.
#[test]
fn the_usual_speeds_are_the_usual_rotation() {
    let mut g = Graph::new();
    let x = g.input("x", &[4, 12]);
    let at = g.input_u32("at", &[1]);
    let speeds: Vec<f64> = (0..3).map(|i| 100f64.powf(-f64::from(i) / 3.0) / 4.0).collect();
    let usual = g.rope_scaled(x, 100.0, at, 6, RopeScaling::Linear { factor: 4.0 });
    let own = g.rope_with_speeds(x, &speeds, at, 1.0);
    g.set_outputs(vec![usual, own]);
    let feeds = feeds(&[("x", numbers(48, 1)), ("at", vec![7.0])]);
    for (usual, own) in value(&g, usual, &feeds).iter().zip(value(&g, own, &feeds)) {
        assert!((usual - own).abs() < 1e-6, "{own}, not {usual}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let of = |width: usize, speeds: &[f64], dtype: DType, magnitude: f32| {
        let mut g = Graph::new();
        let x = g.input("x", &[2, width]);
        let at = g.input_typed("at", &[1], dtype);
        g.rope_with_speeds(x, speeds, at, magnitude);
        g.errors().first().expect("an error").to_string()
    };
    for (error, said) in [
        (of(6, &[1.0, 2.0], DType::U32, 1.0), "no whole number of heads"),
        (of(4, &[], DType::U32, 1.0), "does not consist of pairs"),
        (of(4, &[f64::NAN, 1.0], DType::U32, 1.0), "a speed is NaN"),
        (of(4, &[1.0, 1.0], DType::U32, f32::INFINITY), "the magnitude is inf"),
        (of(4, &[1.0, 1.0], DType::F32, 1.0), "must be u32"),
    ] {
        assert!(error.contains(said), "{error}");
    }
}
