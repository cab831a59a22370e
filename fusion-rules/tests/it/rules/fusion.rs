//! Tests that products, gated units and normalisations are fused with the calls before and after them.

use meganeura_compiler::rewrite::Pass::{Backward, Forward, Inference};
use meganeura_core::DType;
use meganeura_core::graph::{Graph, Value};

use meganeura_core::ops::Pool2dOptions;

use super::{of, of_gradients};

#[test]
fn transpositions_become_flags() {
    for batch in [vec![], vec![3]] {
        let shape = |rows: usize, columns: usize| [batch.clone(), vec![rows, columns]].concat();
        let r = of(Inference, |g| {
            let (a, b) = (g.input("a", &shape(5, 4)), g.input("b", &shape(6, 5)));
            let (a, b) = (g.transpose(a), g.transpose(b));
            let c = g.matmul(a, b);
            g.transpose(c).into()
        });
        r.fires("MatMul+Transpose→MatMulBT")
            .fires("MatMul+Transpose→MatMulAT")
            .fires("Transpose(MatMul)→MatMul")
            .gives(&["core.matmul"]);
    }
}

#[test]
fn additions_join_products() {
    for (ta, tb, name) in [(false, false, ""), (true, false, "AT"), (false, true, "BT")] {
        for addend in [vec![4], vec![6, 4], vec![6, 1], vec![]] {
            for left in [false, true] {
                let r = of(Backward, |g| {
                    let a = g.input("a", if ta { &[5, 6] } else { &[6, 5] });
                    let b = g.input("b", if tb { &[4, 5] } else { &[5, 4] });
                    let d = g.input("d", &addend);
                    let m = match (ta, tb) {
                        (true, _) => g.matmul_at(a, b),
                        (_, true) => g.matmul_bt(a, b),
                        _ => g.matmul(a, b),
                    };
                    if left { g.add(d, m).into() } else { g.add(m, d).into() }
                });
                r.fires(&format!("MatMul{name}+Add→FusedMatMul{name}Add"))
                    .gives(&["core.matmul_add"]);
            }
        }
    }
    // The addend determines the shape.
    let r = of(Backward, |g| {
        let (a, b, d) = (g.input("a", &[6, 5]), g.input("b", &[5, 4]), g.input("d", &[2, 6, 4]));
        let m = g.matmul(a, b);
        g.add(m, d).into()
    });
    r.spares("MatMul+Add→FusedMatMulAdd");
}

#[test]
fn gated_units() {
    for left in [false, true] {
        for (title, op) in [("Silu*u→SwiGLU", "core.swiglu"), ("Gelu*u→GeGLU", "core.geglu")] {
            let r = of(Forward, |g| {
                let (x, u) = (g.input("x", &[3, 5]), g.input("u", &[3, 5]));
                let a = if op == "core.swiglu" { g.silu(x) } else { g.gelu_erf(x) };
                if left { g.mul(u, a).into() } else { g.mul(a, u).into() }
            });
            r.fires(title).gives(&[op]);
        }
    }
    let r = of(Forward, |g| {
        let (x, u) = (g.input("x", &[3, 5]), g.input("u", &[5]));
        let a = g.silu(x);
        g.mul(a, u).into()
    });
    r.spares("Silu*u→SwiGLU");
}

fn residual(g: &mut Graph) -> (Value, Value, Value, Value) {
    let [a, b] = ["a", "b"].map(|name| g.input(name, &[6, 5]).into());
    let [w, c] = ["w", "c"].map(|name| g.parameter(name, &[5]).into());
    (a, b, w, c)
}

#[test]
fn residuals_join_normalisations() {
    let r = of(Inference, |g| {
        let (a, b, w, _) = residual(g);
        let s = g.add(a, b);
        let n = g.rms_norm(s, w, 1e-5);
        let n = g.tanh(n);
        g.mul(s, n).into()
    });
    r.fires("Add+RmsNorm→AddRmsNorm")
        .gives(&["core.add_rms_norm", "core.tanh", "core.mul"]);
    let r = of(Inference, |g| {
        let (a, b, w, c) = residual(g);
        let s = g.add(a, b);
        let n = g.layer_norm(s, w, c, 1e-5);
        let n = g.tanh(n);
        g.mul(s, n).into()
    });
    r.fires("Add+LayerNorm→AddLayerNorm")
        .gives(&["core.add_layer_norm", "core.tanh", "core.mul"]);
}

#[test]
fn gradients_of_residuals_join_those_of_normalisations() {
    for layer in [false, true] {
        for left in [false, true] {
            let r = of_gradients(|g| {
                let (_, b, w, c) = residual(g);
                let x = g.parameter("x", &[6, 5]);
                let x = g.tanh(x);
                let n = if layer {
                    g.layer_norm(x, w, c, 1e-5)
                } else {
                    g.rms_norm(x, w, 1e-5)
                };
                let n = g.mul(n, b);
                if left { g.add(n, x).into() } else { g.add(x, n).into() }
            });
            let (title, op) = if layer {
                ("LayerNormGrad+Add→LayerNormGradAdd", "core.layer_norm_grad_add")
            } else {
                ("RmsNormGrad+Add→RmsNormGradAdd", "core.rms_norm_grad_add")
            };
            r.fires(title).has(op, 1);
        }
    }
}

#[test]
fn normalisation_as_the_prologue_of_a_product() {
    let r = of(Inference, |g| {
        let (x, g1, w) = (g.input("x", &[6, 5]), g.parameter("g", &[5]), g.input("w", &[5, 4]));
        let n = g.rms_norm(x, g1, 1e-5);
        g.matmul(n, w).into()
    });
    r.fires("MatMul(RmsNorm)→FusedRmsNormMatMul")
        .gives(&["core.rms_norm_matmul"]);
}

/// Builds a product with a weight `[4, 64]` in `f16` or in blocks.
fn packed_product(g: &mut Graph, x: impl Into<Value>, blocks: bool) -> Value {
    let (words, scales) = if blocks {
        let scales = g.parameter_typed("scales", &[4, 2], DType::F16);
        (g.parameter_typed("w", &[4, 16], DType::U32), Some(scales.into()))
    } else {
        (g.parameter_typed("w", &[4, 64], DType::F16), None)
    };
    g.quantized_matmul(x, words, scales).into()
}

#[test]
fn what_is_added_to_a_product_with_packed_weights() {
    for (blocks, left) in [(false, false), (false, true), (true, false), (true, true)] {
        let r = of(Inference, |g| {
            let (x, d) = (g.input("x", &[6, 64]), g.input("d", &[6, 4]));
            let y = packed_product(g, x, blocks);
            if left { g.add(d, y).into() } else { g.add(y, d).into() }
        });
        r.fires("QuantizedMatMul+Add→QuantizedMatMulAdd")
            .gives(&["core.quantized_matmul_add"]);
    }
}

#[test]
fn normalisation_as_the_prologue_of_a_product_with_packed_weights() {
    for blocks in [false, true] {
        let r = of(Inference, |g| {
            let (x, g1) = (g.input("x", &[6, 64]), g.parameter("g", &[64]));
            let n = g.rms_norm(x, g1, 1e-5);
            packed_product(g, n, blocks)
        });
        r.fires("QuantizedMatMul(RmsNorm)→FusedRmsNormQuantizedMatMul")
            .gives(&["core.rms_norm_quantized_matmul"]);
    }
}

#[test]
fn group_norm_and_silu_for_inference_only() {
    for pass in [Inference, Backward] {
        let r = of(pass, |g| {
            let x = g.input("x", &[2, 6, 3]);
            let [w, b] = ["w", "b"].map(|name| g.parameter(name, &[6]));
            let n = g.group_norm(x, w, b, 2, 1e-5);
            g.silu(n).into()
        });
        match pass {
            Inference => r.fires("GroupNorm+Silu→GroupNormSilu").gives(&["core.group_norm_silu"]),
            _ => r.spares("GroupNorm+Silu→GroupNormSilu"),
        };
    }
}

#[test]
fn rectifiers_come_after_pooling() {
    let overlapping = Pool2dOptions {
        kernel: [3, 2],
        stride: [2, 1],
        padding: [1, 0],
    };
    for options in [Pool2dOptions::square(2), overlapping] {
        let r = of(Forward, |g| {
            let x = g.input("x", &[2, 3, 6, 7]);
            let x = g.relu(x);
            g.max_pool2d(x, options).into()
        });
        r.fires("MaxPool(Relu)→Relu(MaxPool)")
            .gives(&["core.max_pool2d", "core.relu"]);
        assert_eq!(
            r.after.shape(r.after.outputs()[0]),
            r.before.shape(r.before.outputs()[0])
        );
    }
    // Otherwise the rectified tensor or the offsets are needed.
    let r = of(Forward, |g| {
        let x = g.input("x", &[2, 3, 6, 7]);
        let x = g.relu(x);
        let y = g.max_pool2d(x, Pool2dOptions::square(2));
        let offsets = g.port(y, 1);
        g.scatter_add(y, offsets, 252).into()
    });
    r.has("core.max_pool2d", 1);
}

#[test]
fn gradients_of_pooling_go_plane_by_plane() {
    let r = of_gradients(|g| {
        let x = g.parameter("x", &[2, 3, 6, 7]);
        let y = g.max_pool2d(x, Pool2dOptions::square(2));
        g.tanh(y).into()
    });
    r.fires("Reshape(ScatterAdd)→MaxPoolGrad")
        .has("core.max_pool2d_grad", 1)
        .has("core.scatter_add", 0);
    // Offsets of planes other than the pooled tensor's.
    let r = of(Backward, |g| {
        let (x, dy) = (g.input("x", &[2, 3, 6, 7]), g.input("dy", &[2, 3, 3, 3]));
        let y = g.max_pool2d(x, Pool2dOptions::square(2));
        let offsets = g.port(y, 1);
        let flat = g.scatter_add(dy, offsets, 252);
        g.reshape(flat, &[3, 2, 6, 7]).into()
    });
    r.spares("Reshape(ScatterAdd)→MaxPoolGrad");
}
