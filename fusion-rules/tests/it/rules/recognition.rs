//! Tests of the recognition of normalisations, softmax, losses, products and attention from primitives.

use meganeura_compiler::rewrite::Pass::{Forward, Inference};
use meganeura_core::graph::{Graph, Value};
use meganeura_core::{DType, NodeId};

use super::{of, rewritten};

fn constant(g: &mut Graph, v: f64) -> Value {
    g.scalar_of(DType::F32, v).into()
}

#[test]
fn means_and_variances() {
    for divided in [false, true] {
        let r = of(Forward, |g| {
            let x = g.input("x", &[4, 7]);
            let s = g.sum(x, &[1], true);
            let n = constant(g, if divided { 7.0 } else { 1.0 / 7.0 });
            if divided {
                g.div(s, n).into()
            } else {
                g.mul(n, s).into()
            }
        });
        r.fires(if divided { "Sum/n→Mean" } else { "Sum*1/n→Mean" })
            .gives(&["core.mean"]);
    }
    let r = of(Forward, |g| {
        let x = g.input("x", &[4, 7]);
        let m = g.mean(x, &[0], true);
        let c = g.sub(x, m);
        let s = g.mul(c, c);
        g.mean(s, &[0], false).into()
    });
    r.fires("Mean((x-Mean)^2)→Variance").gives(&["core.variance"]);
}

#[test]
fn rms_norm() {
    for way in 0..4usize {
        let r = of(Forward, |g| {
            let (x, w) = (g.input("x", &[2, 3, 7]), g.parameter("w", &[7]));
            let square = if way.is_multiple_of(2) {
                g.square(x)
            } else {
                g.mul(x, x)
            };
            let m = g.mean(square, if way.is_multiple_of(2) { &[-1] } else { &[2] }, true);
            let eps = constant(g, 1e-6);
            let v = g.add(m, eps);
            let xhat = if way < 2 {
                let r = g.rsqrt(v);
                g.mul(r, x)
            } else {
                let root = g.sqrt(v);
                g.div(x, root)
            };
            if way.is_multiple_of(2) {
                g.mul(w, xhat).into()
            } else {
                g.mul(xhat, w).into()
            }
        });
        r.fires("x*Rsqrt(Mean(x^2))*w→RmsNorm").gives(&["core.rms_norm"]);
    }
}

#[test]
fn a_mean_over_other_axes_is_no_rms_norm() {
    let r = of(Forward, |g| {
        let (x, w) = (g.input("x", &[7, 7]), g.parameter("w", &[7]));
        let square = g.square(x);
        let m = g.mean(square, &[0], true);
        let eps = constant(g, 1e-6);
        let v = g.add(m, eps);
        let r = g.rsqrt(v);
        let xhat = g.mul(x, r);
        g.mul(xhat, w).into()
    });
    r.spares("x*Rsqrt(Mean(x^2))*w→RmsNorm");
}

#[test]
fn layer_norm() {
    for way in 0..8usize {
        let r = of(Forward, |g| {
            let (x, w, b) = (g.input("x", &[6, 5]), g.parameter("w", &[5]), g.parameter("b", &[5]));
            let m = g.mean(x, &[-1], true);
            let c = g.sub(x, m);
            let s = g.square(c);
            let v = g.mean(s, &[-1], true);
            let eps = constant(g, 1e-5);
            let v = g.add(eps, v);
            let xhat = if way < 4 {
                let r = g.rsqrt(v);
                g.mul(c, r)
            } else {
                let root = g.sqrt(v);
                g.div(c, root)
            };
            let s = if way.is_multiple_of(2) {
                g.mul(w, xhat)
            } else {
                g.mul(xhat, w)
            };
            if (way / 2).is_multiple_of(2) {
                g.add(b, s).into()
            } else {
                g.add(s, b).into()
            }
        });
        r.fires("(x-Mean)*Rsqrt(Var)*w+b→LayerNorm").gives(&["core.layer_norm"]);
    }
}

/// Returns `x - max` along an axis, or `x`.
fn shifted(g: &mut Graph, x: Value, axis: i32, shift: bool) -> Value {
    if !shift {
        return x;
    }
    let m = g.max(x, &[axis], true);
    g.sub(x, m).into()
}

#[test]
fn softmax_and_its_logarithm() {
    for (shape, axis) in [
        (vec![4, 7], -1),
        (vec![4, 7], 1),
        (vec![2, 3, 4, 5], 1),
        (vec![2, 1, 4], 2),
        (vec![7], 0),
    ] {
        for shift in [false, true] {
            let r = of(Forward, |g| {
                let x = g.input("x", &shape).into();
                let y = shifted(g, x, axis, shift);
                let e = g.exp(y);
                let s = g.sum(e, &[axis], true);
                g.div(e, s).into()
            });
            r.fires("Exp/Sum(Exp)→Softmax").gives(&["core.softmax"]);
        }
    }
    for shift in [false, true] {
        let r = of(Forward, |g| {
            let x = g.input("x", &[4, 7]).into();
            let y = shifted(g, x, -1, shift);
            let e = g.exp(y);
            let s = g.sum(e, &[-1], true);
            let l = g.log(s);
            g.sub(y, l).into()
        });
        r.fires("y-Log(Sum(Exp))→LogSoftmax").gives(&["core.log_softmax"]);
    }
    let r = of(Forward, |g| {
        let x = g.input("x", &[4, 7]);
        let p = g.softmax(x, 0);
        g.log(p).into()
    });
    r.fires("Log(Softmax)→LogSoftmax").gives(&["core.log_softmax"]);
}

#[test]
fn a_softmax_over_two_axes_is_none() {
    let r = of(Forward, |g| {
        let x = g.input("x", &[4, 7]);
        let e = g.exp(x);
        let s = g.sum(e, &[0, 1], true);
        g.div(e, s).into()
    });
    r.spares("Exp/Sum(Exp)→Softmax");
}

#[test]
fn cross_entropy() {
    for way in 0..4usize {
        let r = of(Forward, |g| {
            let (x, y) = (g.input("x", &[6, 5]), g.input("y", &[6, 5]));
            let l = g.log_softmax(x, if way == 0 { 1 } else { -1 });
            let p = if way.is_multiple_of(2) {
                g.mul(l, y)
            } else {
                g.mul(y, l)
            };
            match way {
                0 => {
                    let s = g.sum(p, &[-1], false);
                    let m = g.mean_all(s);
                    g.neg(m).into()
                }
                1 => {
                    let s = g.sum(p, &[1], true);
                    let n = g.neg(s);
                    g.mean_all(n).into()
                }
                2 => {
                    let s = g.sum_all(p);
                    let c = constant(g, -1.0 / 6.0);
                    g.mul(c, s).into()
                }
                _ => {
                    let s = g.sum_all(p);
                    let c = constant(g, 6.0);
                    let m = g.div(s, c);
                    g.neg(m).into()
                }
            }
        });
        r.fires("-Mean(Sum(y*LogSoftmax))→CrossEntropy")
            .gives(&["core.cross_entropy"]);
    }
    let r = of(Forward, |g| {
        let (x, ids) = (g.input("x", &[6, 5]), g.input_u32("ids", &[6]));
        let l = g.log_softmax(x, -1);
        g.nll_loss(l, ids).into()
    });
    r.fires("Nll(LogSoftmax)→CrossEntropyIds")
        .gives(&["core.cross_entropy_ids"]);
}

#[test]
fn products_in_disguise() {
    let (m, k, n) = (4, 6, 3);
    type MatmulForm = (&'static str, [usize; 2], [usize; 2], [usize; 3], [usize; 3], i32);
    let forms: [MatmulForm; 4] = [
        ("Mul+Sum→MatMul", [m, k], [k, n], [m, k, 1], [1, k, n], 1),
        ("Mul+Sum→MatMulBT", [m, k], [n, k], [m, 1, k], [1, n, k], 2),
        ("Mul+Sum→MatMulBT", [m, k], [n, k], [m, 1, k], [1, n, k], -1),
        ("Mul+Sum→MatMulAT", [k, m], [k, n], [k, m, 1], [k, 1, n], 0),
    ];
    for (title, a, b, ra, rb, axis) in forms {
        for expanded in [false, true] {
            let r = of(Forward, |g| {
                let (a, b) = (g.input("a", &a), g.input("b", &b));
                let (mut x, mut y) = (g.reshape(a, &ra), g.reshape(b, &rb));
                if expanded {
                    let whole: Vec<usize> = ra.iter().zip(&rb).map(|(&p, &q)| p.max(q)).collect();
                    (x, y) = (g.expand(x, &whole), g.expand(y, &whole));
                }
                let p = g.mul(x, y);
                g.sum(p, &[axis], false).into()
            });
            r.fires(title).gives(&["core.matmul"]);
        }
    }
    // Nothing is broadcast along the summed axis: the sum of an outer product is not a product.
    let r = of(Forward, |g| {
        let (a, b) = (g.input("a", &[4, 1]), g.input("b", &[6, 3]));
        let (x, y) = (g.reshape(a, &[4, 1, 1]), g.reshape(b, &[1, 6, 3]));
        let p = g.mul(x, y);
        g.sum(p, &[1], false).into()
    });
    r.spares("Mul+Sum→MatMul");
}

/// Way of scaling the attention scores.
#[derive(Clone, Copy, PartialEq)]
enum Scale {
    Factor,
    Divisor,
    Queries,
    Keys,
    None,
}

/// Kind of mask of the attention scores.
#[derive(Clone, Copy, PartialEq)]
enum Mask {
    None,
    Kept,
    Filled,
    Upper,
    /// A matrix of large negative numbers whose upper triangle is added.
    AddedUpper,
    /// A constant mask that is added, the same for all heads.
    AddedConstant,
    /// A constant mask that is true for the scores to keep.
    KeptConstant,
    /// A constant mask that is true for the scores to replace.
    FilledConstant,
    /// A constant mask that selects a large negative number.
    ChosenConstant,
}

/// Returns a causal mask: `seen` for the keys that a query may attend to, and `hidden` for the remaining keys.
fn causal(rows: usize, columns: usize, seen: f32, hidden: f32) -> Vec<f32> {
    let of = |at: usize| {
        if at % columns > at / columns + (columns - rows) {
            hidden
        } else {
            seen
        }
    };
    (0..rows * columns).map(of).collect()
}

fn causal_u32(rows: usize, columns: usize, seen: u32, hidden: u32) -> Vec<u32> {
    let mask = causal(rows, columns, seen as f32, hidden as f32);
    mask.into_iter().map(|v| v as u32).collect()
}

fn attention(g: &mut Graph, [mut q, mut k, v]: [Value; 3], scale: Scale, mask: Mask, by_flag: bool) -> Value {
    let c = constant(g, 0.4);
    match scale {
        Scale::Queries => q = g.mul(q, c).into(),
        Scale::Keys => k = g.mul(c, k).into(),
        _ => {}
    }
    let scores = if by_flag {
        g.matmul_bt(q, k)
    } else {
        let t = g.transpose(k);
        g.matmul(q, t)
    };
    let mut scores = match scale {
        Scale::Factor => g.mul(scores, c),
        Scale::Divisor => g.div(scores, c),
        _ => scores,
    };
    let shape = g.shape(scores).to_vec();
    let [.., rows, columns] = shape[..] else {
        panic!("a matrix")
    };
    let low = constant(g, f64::NEG_INFINITY);
    let ones = g.constant_u32(vec![1; rows * columns], &[rows, columns]);
    let shift = (columns - rows) as i32;
    match mask {
        Mask::None => {}
        Mask::Kept => {
            let kept = g.tril(ones, shift);
            scores = g.select(kept, scores, low);
        }
        Mask::Filled => {
            let kept = g.tril(ones, shift);
            let zero = g.scalar_of(DType::U32, 0.0);
            let hidden = g.equal(kept, zero);
            scores = g.masked_fill(scores, hidden, f32::NEG_INFINITY);
        }
        Mask::Upper => {
            let hidden = g.triu(ones, shift + 1);
            scores = g.masked_fill(scores, hidden, -1e9);
        }
        Mask::AddedUpper => {
            let low = g.constant(vec![f32::NEG_INFINITY; rows * columns], &[rows, columns]);
            let mask = g.triu(low, shift + 1);
            scores = g.add(scores, mask);
        }
        Mask::AddedConstant => {
            let mask = g.constant(causal(rows, columns, 0.0, f32::MIN), &[1, rows, columns]);
            scores = g.add(scores, mask);
        }
        Mask::KeptConstant => {
            let kept = g.constant_u32(causal_u32(rows, columns, 1, 0), &[rows, columns]);
            let low = constant(g, -1e30);
            scores = g.select(kept, scores, low);
        }
        Mask::FilledConstant => {
            let hidden = g.constant_u32(causal_u32(rows, columns, 0, 1), &[rows, columns]);
            scores = g.masked_fill(scores, hidden, f32::MIN);
        }
        Mask::ChosenConstant => {
            let hidden = g.constant_u32(causal_u32(rows, columns, 0, 1), &[rows, columns]);
            scores = g.select(hidden, low, scores);
        }
    }
    let p = g.softmax(scores, -1);
    g.matmul(p, v).into()
}

#[test]
fn attention_of_one_head() {
    for batch in [vec![], vec![2], vec![2, 3]] {
        for scale in [Scale::Factor, Scale::Divisor, Scale::Queries, Scale::Keys, Scale::None] {
            for by_flag in [false, true] {
                let r = of(Inference, |g| {
                    let shape = |rows: usize| [batch.clone(), vec![rows, 4]].concat();
                    let q = g.input("q", &shape(5)).into();
                    let [k, v] = ["k", "v"].map(|name| g.input(name, &shape(7)).into());
                    attention(g, [q, k, v], scale, Mask::None, by_flag)
                });
                r.fires("MatMul+Softmax+MatMul→Attention")
                    .has("core.attention", 1)
                    .has("core.softmax", 0);
            }
        }
    }
}

#[test]
fn causal_attention() {
    for (rows_q, rows_k) in [(5, 5), (3, 6)] {
        for scale in [Scale::Factor, Scale::Divisor, Scale::Queries, Scale::Keys, Scale::None] {
            for mask in [
                Mask::Kept,
                Mask::Filled,
                Mask::Upper,
                Mask::AddedUpper,
                Mask::AddedConstant,
                Mask::KeptConstant,
                Mask::FilledConstant,
                Mask::ChosenConstant,
            ] {
                for batch in [vec![2], vec![2, 3]] {
                    let r = of(Forward, |g| {
                        let shape = |rows: usize| [batch.clone(), vec![rows, 4]].concat();
                        let q = g.input("q", &shape(rows_q)).into();
                        let [k, v] = ["k", "v"].map(|name| g.input(name, &shape(rows_k)).into());
                        attention(g, [q, k, v], scale, mask, true)
                    });
                    r.fires("MatMul+Mask+Softmax+MatMul→CausalAttention")
                        .has("core.attention", 1)
                        .has("core.softmax", 0);
                }
            }
        }
    }
}

/// Builds attention from primitives: masked scores of queries and keys with these numbers of rows, softmax, and the
/// product with the values.
fn by_hand(g: &mut Graph, rows: [usize; 2], mask: impl Fn(&mut Graph, NodeId) -> NodeId) -> [NodeId; 3] {
    let q = g.input("q", &[2, rows[0], 4]);
    let [k, v] = ["k", "v"].map(|name| g.input(name, &[2, rows[1], 4]));
    let scores = g.matmul_bt(q, k);
    let c = constant(g, 0.5);
    let scores = g.mul(scores, c);
    let masked = mask(g, scores);
    let p = g.softmax(masked, -1);
    [scores, p, g.matmul(p, v)]
}

#[test]
fn a_mask_that_is_not_causal_is_no_causal_attention() {
    type MakeMask = fn(&mut Graph, NodeId) -> NodeId;
    const LOW: f32 = f32::NEG_INFINITY;
    let masks: [MakeMask; 8] = [
        // An input, like padding masks.
        |g, s| {
            let m = g.input("m", &[5, 5]);
            g.add(s, m)
        },
        // Masks whose low number does not hide keys, or whose number for visible keys is not 0.
        |g, s| {
            let m = g.constant(causal(5, 5, 0.0, -1e4), &[5, 5]);
            g.add(s, m)
        },
        |g, s| {
            let m = g.constant(causal(5, 5, 0.25, LOW), &[5, 5]);
            g.add(s, m)
        },
        // One key too many, and one key less.
        |g, s| {
            let low = g.constant(vec![LOW; 25], &[5, 5]);
            let m = g.triu(low, 2);
            g.add(s, m)
        },
        |g, s| {
            let mut mask = causal(5, 5, 0.0, LOW);
            mask[20] = LOW;
            let m = g.constant(mask, &[5, 5]);
            g.add(s, m)
        },
        // Causal only for the first sequence.
        |g, s| {
            let m = g.constant([causal(5, 5, 0.0, LOW), vec![0.0; 25]].concat(), &[2, 5, 5]);
            g.add(s, m)
        },
        // Replaces the visible keys instead of the hidden ones.
        |g, s| {
            let m = g.constant_u32(causal_u32(5, 5, 1, 0), &[5, 5]);
            g.masked_fill(s, m, -1e9)
        },
        // The number that replaces scores is not low enough.
        |g, s| {
            let m = g.constant_u32(causal_u32(5, 5, 0, 1), &[5, 5]);
            g.masked_fill(s, m, -10.0)
        },
    ];
    for mask in masks {
        let r = of(Forward, |g| by_hand(g, [5, 5], mask)[2].into());
        r.spares("MatMul+Mask+Softmax+MatMul→CausalAttention")
            .has("core.attention", 0);
    }
    // A row of the mask for all queries.
    let r = of(Forward, |g| {
        by_hand(g, [3, 3], |g, s| {
            let m = g.constant(vec![0.0, 0.0, LOW], &[1, 3]);
            g.add(s, m)
        })[2]
            .into()
    });
    r.spares("MatMul+Mask+Softmax+MatMul→CausalAttention");
}

/// Scores and probabilities that are also results stay in the graph, with the same values. The cost model decides whether
/// attention is used in addition: never if it would only compute everything twice.
#[test]
fn masked_scores_with_another_use() {
    let with = |rows: usize, used: usize| {
        let mut g = Graph::new();
        let parts = by_hand(&mut g, [rows; 2], |g, s| {
            let m = g.constant(causal(rows, rows, 0.0, f32::NEG_INFINITY), &[rows, rows]);
            g.add(s, m)
        });
        g.set_outputs(vec![parts[2], parts[used]]);
        rewritten(g, Forward)
    };
    for rows in [5, 64] {
        with(rows, 0).has("core.matmul", 1).has("core.softmax", 0);
        with(rows, 1).has("core.softmax", 1);
    }
    with(5, 1).has("core.attention", 0);
}

#[test]
fn shared_keys_are_not_attention_of_one_head() {
    let r = of(Forward, |g| {
        let q = g.input("q", &[3, 5, 4]).into();
        let [k, v] = ["k", "v"].map(|name| g.input(name, &[1, 7, 4]).into());
        attention(g, [q, k, v], Scale::Factor, Mask::None, true)
    });
    r.spares("MatMul+Softmax+MatMul→Attention");
}

#[test]
fn attention_of_several_heads() {
    for (batch, mask) in [
        (None, Mask::None),
        (Some(2), Mask::None),
        (Some(2), Mask::Filled),
        (None, Mask::Kept),
        (Some(2), Mask::AddedConstant),
        (Some(2), Mask::KeptConstant),
    ] {
        for straight in [false, true] {
            if batch.is_none() && straight {
                continue;
            }
            let r = of(Forward, |g| {
                let (rows, heads, width) = (5, 3, 4);
                let mut shape = vec![rows, heads * width];
                shape.splice(0..0, batch);
                let axes: &[i32] = if batch.is_some() { &[0, 2, 1, 3] } else { &[1, 0, 2] };
                let mut split = shape.clone();
                split.pop();
                split.extend([heads, width]);
                let [q, k, v] = ["q", "k", "v"].map(|name| {
                    let x = g.input(name, &shape);
                    let x = g.reshape(x, &split);
                    if straight && name == "k" {
                        let t = g.permute(x, &[0, 2, 3, 1]);
                        return Value::from(t);
                    }
                    g.permute(x, axes).into()
                });
                let out = if straight {
                    // The keys are transposed already.
                    let s = g.matmul(q, k);
                    let c = constant(g, 0.5);
                    let s = g.mul(s, c);
                    let p = g.softmax(s, 3);
                    g.matmul(p, v).into()
                } else {
                    attention(g, [q, k, v], Scale::Factor, mask, false)
                };
                let joined = g.permute(out, axes);
                g.reshape(joined, &shape).into()
            });
            r.fires("Split+Attention+Join→Attention").gives(&["core.attention"]);
        }
    }
}
