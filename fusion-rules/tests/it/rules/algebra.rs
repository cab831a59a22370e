//! Tests of identities and activations.

use meganeura_compiler::rewrite::Pass::{Backward, Forward, Inference};
use meganeura_core::DType;
use meganeura_core::graph::{Graph, Value};

use super::{of, of_gradients};

fn x(g: &mut Graph) -> Value {
    g.input("x", &[3, 5]).into()
}

/// Checks that a call that has no effect is removed, so that only the square after it remains.
fn vanishes(title: &str, build: impl Fn(&mut Graph, Value) -> Value) {
    for pass in [Forward, Backward, Inference] {
        let r = of(pass, |g| {
            let x = x(g);
            let y = build(g, x);
            g.square(y).into()
        });
        r.fires(title).gives(&["core.square"]);
    }
}

#[test]
fn what_is_undone_vanishes() {
    vanishes("Neg+Neg→x", |g, x| {
        let n = g.neg(x);
        g.neg(n).into()
    });
    vanishes("Exp+Log→x", |g, x| {
        let e = g.exp(x);
        g.log(e).into()
    });
    vanishes("Exp2+Log2→x", |g, x| {
        let e = g.exp2(x);
        g.log2(e).into()
    });
    vanishes("Reshape→x", |g, x| {
        let flat = g.reshape(x, &[15]);
        g.reshape(flat, &[3, 5]).into()
    });
    vanishes("Transpose+Transpose→x", |g, x| {
        let t = g.transpose(x);
        g.transpose(t).into()
    });
    vanishes("Permute→x", |g, x| g.permute(x, &[0, 1]).into());
    vanishes("Narrow→x", |g, x| g.narrow(x, 1, 0, 5).into());
}

#[test]
fn neutral_elements_vanish() {
    for (title, value) in [("x*1→x", 1.0), ("x/1→x", 1.0), ("x+0→x", 0.0), ("x-0→x", 0.0)] {
        vanishes(title, |g, x| {
            let c = g.scalar_of(DType::F32, value);
            match title {
                "x*1→x" => g.mul(x, c).into(),
                "x/1→x" => g.div(x, c).into(),
                "x+0→x" => g.add(x, c).into(),
                _ => g.sub(x, c).into(),
            }
        });
    }
    vanishes("x*1→x", |g, x| {
        let c = g.constant(vec![1.0; 5], &[5]);
        g.mul(c, x).into()
    });
    // The constant determines the shape.
    let r = of(Inference, |g| {
        let x = g.input("x", &[5]);
        let c = g.constant(vec![1.0; 15], &[3, 5]);
        g.mul(x, c).into()
    });
    r.spares("x*1→x").gives(&["core.mul"]);
}

#[test]
fn a_transposition_of_equal_axes_is_not_nothing() {
    let r = of(Inference, |g| {
        let x = g.input("x", &[4, 4]);
        let t = g.transpose(x);
        g.square(t).into()
    });
    r.has("core.permute", 1);
}

#[test]
fn repeated_calls_are_one() {
    let r = of(Forward, |g| {
        let x = x(g);
        let y = g.relu(x);
        g.relu(y).into()
    });
    r.fires("Relu+Relu→Relu").gives(&["core.relu"]);
    let r = of(Forward, |g| {
        let x = g.input("x", &[5, 1]);
        let y = g.expand(x, &[5, 3]);
        g.expand(y, &[2, 5, 3]).into()
    });
    r.fires("Expand+Expand→Expand").gives(&["core.expand"]);
}

#[test]
fn negations_join_additions() {
    for left in [false, true] {
        let r = of(Backward, |g| {
            let (a, b) = (x(g), g.input("b", &[5]));
            let n = g.neg(b);
            if left { g.add(n, a).into() } else { g.add(a, n).into() }
        });
        r.fires("Add+Neg→Sub").gives(&["core.sub"]);
    }
}

#[test]
fn half_precision_survives_a_detour() {
    let r = of(Inference, |g| {
        let x = g.input_typed("x", &[7], DType::BF16);
        let wide = g.cast(x, DType::F32);
        let back = g.cast(wide, DType::BF16);
        g.neg(back).into()
    });
    r.fires("Cast+Cast→x").gives(&["core.neg"]);
    let r = of(Inference, |g| {
        let x = g.input("x", &[7]);
        let narrow = g.cast(x, DType::BF16);
        g.cast(narrow, DType::F32).into()
    });
    r.gives(&["core.cast", "core.cast"]);
}

#[test]
fn integers_have_no_squares_and_means() {
    let r = of(Forward, |g| {
        let x = g.input_typed("x", &[3, 1], DType::I32);
        let y = g.mul(x, x);
        let s = g.sum(y, &[1], false);
        let c = g.scalar_of(DType::I32, 1.0);
        g.mul(s, c).into()
    });
    r.spares("x*x→Square").spares("Sum*1/n→Mean");
}

#[test]
fn sigmoid_and_silu() {
    let logistic = |g: &mut Graph, x: Value| {
        let n = g.neg(x);
        let e = g.exp(n);
        let one = g.scalar_of(DType::F32, 1.0);
        g.add(one, e)
    };
    let r = of(Forward, |g| {
        let x = x(g);
        let d = logistic(g, x);
        g.reciprocal(d).into()
    });
    r.fires("1/(1+Exp(-x))→Sigmoid").gives(&["core.sigmoid"]);
    let r = of(Forward, |g| {
        let x = x(g);
        let d = logistic(g, x);
        let one = g.scalar_of(DType::F32, 1.0);
        g.div(one, d).into()
    });
    r.fires("1/(1+Exp(-x))→Sigmoid").gives(&["core.sigmoid"]);
    let r = of(Forward, |g| {
        let x = x(g);
        let d = logistic(g, x);
        g.div(x, d).into()
    });
    r.fires("x*Sigmoid→Silu").gives(&["core.silu"]);
    for left in [false, true] {
        let r = of(Forward, |g| {
            let x = x(g);
            let s = g.sigmoid(x);
            if left { g.mul(s, x).into() } else { g.mul(x, s).into() }
        });
        r.fires("x*Sigmoid→Silu").gives(&["core.silu"]);
    }
}

fn constant(g: &mut Graph, v: f64) -> Value {
    g.scalar_of(DType::F32, v).into()
}

/// Builds `x/2 (1 + t)` in one of several equivalent forms, selected by `way`.
fn halves(g: &mut Graph, x: Value, t: Value, way: usize) -> Value {
    let (one, half) = (constant(g, 1.0), constant(g, 0.5));
    let t1: Value = if way.is_multiple_of(2) {
        g.add(t, one)
    } else {
        g.add(one, t)
    }
    .into();
    match way / 2 {
        0 => {
            let h = g.mul(half, x);
            g.mul(h, t1).into()
        }
        1 => {
            let p = g.mul(x, t1);
            g.mul(half, p).into()
        }
        _ => {
            let h = g.mul(t1, half);
            g.mul(x, h).into()
        }
    }
}

#[test]
fn gelu_in_its_tanh_form() {
    for way in 0..6usize {
        for inner in 0..4 {
            let r = of(Forward, |g| {
                let x = x(g);
                let (c, k, one) = (constant(g, 0.044715), constant(g, 0.797_884_560_8), constant(g, 1.0));
                let square = if inner == 0 { g.square(x) } else { g.mul(x, x) };
                let u = match inner {
                    0 => {
                        let scaled = g.mul(square, c);
                        let bracket = g.add(scaled, one);
                        g.mul(x, bracket)
                    }
                    _ => {
                        let three = constant(g, 3.0);
                        let cube = match inner {
                            1 => g.mul(square, x),
                            2 => g.mul(x, square),
                            _ => g.pow(x, three),
                        };
                        let scaled = g.mul(c, cube);
                        g.add(x, scaled)
                    }
                };
                let u = g.mul(k, u);
                let t = g.tanh(u);
                halves(g, x, t.into(), way)
            });
            r.fires("x/2*(1+Tanh)→GeluTanh").gives(&["core.gelu_tanh"]);
        }
    }
}

#[test]
fn gelu_in_its_exact_form() {
    for way in 0..6usize {
        for divided in [false, true] {
            let r = of(Forward, |g| {
                let x = x(g);
                let root = constant(g, if divided { 2f64.sqrt() } else { 0.5f64.sqrt() });
                let u = if divided { g.div(x, root) } else { g.mul(root, x) };
                let t = g.erf(u);
                halves(g, x, t.into(), way)
            });
            r.fires("x/2*(1+Erf)→GeluErf").gives(&["core.gelu_erf"]);
        }
    }
}

#[test]
fn derivatives_of_gelu() {
    let r = of_gradients(|g| {
        let w = g.parameter("w", &[3, 5]);
        g.gelu_tanh(w).into()
    });
    r.fires("(1+Tanh)/2+x*(1-Tanh^2)→GeluTanhDerivative")
        .has("core.gelu_tanh_derivative", 1);
    let r = of_gradients(|g| {
        let w = g.parameter("w", &[3, 5]);
        g.gelu_erf(w).into()
    });
    r.fires("(1+Erf)/2+x*Exp→GeluErfDerivative")
        .has("core.gelu_erf_derivative", 1);
}
