//! Tests of functions of single numbers at the limits of their ranges, on the CPU.

use super::results::results;
use super::*;

/// Returns the results of a model of one call with one operand `x` and one result `y`.
fn call(op: &str, attributes: Vec<AttributeProto>, x: &[f32]) -> Vec<Tensor> {
    let dims = [x.len() as i64];
    let model = changed(|g| {
        let mut called = node(op, "call", &["x"], &["y"]);
        called.attribute = attributes;
        g.node = vec![called];
        g.initializer.clear();
        g.input = vec![value("x", &dims)];
        g.output = vec![value("y", &dims)];
    });
    results(&model, &[Tensor::f32(&[x.len()], x.to_vec())])
}

/// Checks a function of one operand against its value in f64, to a relative error of 1e-6.
fn agrees(op: &str, expected: impl Fn(f64) -> f64, x: &[f32]) {
    for (x, found) in x.iter().zip(call(op, vec![], x)[0].to_f64()) {
        let expected = expected(f64::from(*x)) as f32;
        let same = expected == found as f32 || (expected.is_nan() && found.is_nan());
        let near = (found - f64::from(expected)).abs() <= 1e-6 * f64::from(expected.abs());
        assert!(same || near, "{op}({x}): expected {expected}, found {found}");
    }
}

#[test]
fn hyperbolic_functions_are_right_at_the_ends_of_their_ranges() {
    let small = [0.0, 1e-30, -1e-20, 1e-7, -1e-4, 0.01, -0.5, 1.0, -3.0];
    let ends = [20.0, -50.0, 87.9, 88.0, -88.7, 89.0, -89.4, 89.5, -1e3, 1e30];
    let limits = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let x = [&small[..], &ends, &limits].concat();
    agrees("Sinh", f64::sinh, &x);
    agrees("Cosh", f64::cosh, &x);
    agrees("Tanh", f64::tanh, &x);
    let large = [1e3, -1e6, 9.9e8, 1e9, -1.1e9, 1e18, -2e19, 1e30, -3e38, f32::MAX];
    let x = [&small[..], &large, &limits].concat();
    // The standard library's asinh loses the bits of small operands.
    let asinh = |x: f64| x.signum() * (x.abs() + x * x / (1.0 + x.hypot(1.0))).ln_1p();
    agrees("Asinh", |x| if x.is_infinite() { x } else { asinh(x) }, &x[1..]);
    let acosh = |x: f64| ((x - 1.0) + ((x - 1.0) * (x + 1.0)).sqrt()).ln_1p();
    let above = large.map(f32::abs);
    let x = [&[1.0, 1.000_001, 1.5, 3.0, 0.5], &above[..], &limits].concat();
    agrees("Acosh", |x| if x.is_infinite() && x > 0.0 { x } else { acosh(x) }, &x);
}

#[test]
fn sines_of_large_angles_are_right() {
    let x = [1e3, -1e4, 12345.678, 1e5, -1e6, 1e7, 1e8, -1e20, 3e38, 710.0, 1e-20];
    agrees("Sin", f64::sin, &x);
    agrees("Cos", f64::cos, &x);
}

#[test]
fn the_smallest_elements_come_first_and_nan_last() {
    let top = |x: &[f32], k: i64| {
        let n = x.len() as i64;
        let model = changed(|g| {
            let mut top = node("TopK", "top", &["x", "k"], &["y", "at"]);
            top.attribute = vec![int_attribute("largest", 0)];
            g.node = vec![top];
            g.initializer = vec![ints("k", &[k])];
            g.input = vec![value("x", &[n])];
            g.output = vec![value("y", &[k]), value("at", &[k])];
        });
        let found = results(&model, &[Tensor::f32(&[x.len()], x.to_vec())]);
        (found[0].to_f32(), found[1].to_i64())
    };
    // Order of ONNX Runtime 1.32.
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    let (values, at) = top(&[1.0, nan, 3.0, -2.0, infinity, -infinity], 6);
    assert_eq!(at, [5, 3, 0, 2, 4, 1]);
    assert_eq!(values[..5], [-infinity, -2.0, 1.0, 3.0, infinity]);
    assert!(values[5].is_nan());
    let (values, at) = top(&[nan, infinity, nan, 0.0], 2);
    assert_eq!((values, at), (vec![0.0, infinity], vec![3, 1]));
}

#[test]
fn the_smallest_integer_comes_first() {
    let model = changed(|g| {
        let mut top = node("TopK", "top", &["x", "k"], &["y", "at"]);
        top.attribute = vec![int_attribute("largest", 0)];
        g.node = vec![node_cast("x", "i"), top];
        g.node[1].input[0] = "i".into();
        g.initializer = vec![ints("k", &[2])];
        g.input = vec![value("x", &[3])];
        g.output = vec![value("y", &[2]), value("at", &[2])];
    });
    let found = results(&model, &[Tensor::f32(&[3], vec![5.0, i32::MIN as f32, -7.0])]);
    assert_eq!(found[0].to_i64(), [i64::from(i32::MIN), -7]);
    assert_eq!(found[1].to_i64(), [1, 2]);
}

/// Returns a cast to i32.
fn node_cast(from: &str, to: &str) -> NodeProto {
    let mut cast = node("Cast", "cast", &[from], &[to]);
    cast.attribute = vec![int_attribute("to", 6)];
    cast
}

#[test]
fn infinities_of_no_sign_are_never_found() {
    let neither = vec![int_attribute("detect_positive", 0), int_attribute("detect_negative", 0)];
    let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0];
    assert_eq!(call("IsInf", neither, &x)[0].to_i64(), [0, 0, 0, 0]);
    assert_eq!(call("IsInf", vec![], &x)[0].to_i64(), [0, 1, 1, 0]);
    assert_eq!(call("IsNaN", vec![], &x)[0].to_i64(), [1, 0, 0, 0]);
}
