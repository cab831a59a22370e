//! Tests of attention and its gradients on cooperative matrices.

use std::sync::Arc;

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::Device;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::AttentionOptions;
use meganeura_core::ops::sample::SampleInput;
use meganeura_core::plan::compile_at;
use meganeura_core::precision::Precision;
use meganeura_core::{NodeId, Session, registry};

use crate::case::Case;
use crate::{check, devices, devices_from};

/// Sizes of a call: number of queries and of keys, number of heads of both, head size, and the window if it is
/// causal.
#[derive(Clone, Copy, Debug)]
struct Call {
    rows: [usize; 2],
    heads: [u32; 2],
    width: u32,
    causal: Option<Option<u32>>,
}

impl Call {
    /// Number of sequences in a call.
    const BATCH: usize = 3;

    /// Returns the shapes of queries, and of keys or values.
    fn shapes(&self) -> [[usize; 3]; 2] {
        [0, 1].map(|i| [Self::BATCH, self.rows[i], (self.heads[i] * self.width) as usize])
    }

    fn check(&self) {
        let [q, kv] = self.shapes();
        let options = AttentionOptions {
            causal: self.causal.is_some(),
            window: self.causal.flatten(),
            ..AttentionOptions::new(self.heads[0], self.heads[1], self.width)
        };
        check(&[&q, &kv, &kv], 1, |g, x| {
            let y = g.attention(x[0], x[1], x[2], options);
            vec![y.into(), g.port(y, 1)]
        });
    }

    /// Compares the gradients on cooperative matrices with the oracle's, row by row. `sizes` are factors as in
    /// [`Call::gradients`].
    fn check_gradients(&self, sizes: &[&dyn Fn(usize, usize) -> f64]) {
        // Operands are rounded to 11 bits, and terms of `dout v^T - delta` and of sums cancel.
        const TOLERANCE: f64 = 1.5e-2;
        let cases: Vec<Case> = sizes.iter().map(|size| self.gradients(size)).collect();
        for device in devices_from(Some(0)) {
            let mut session = self.session(device, &cases[0]);
            for (number, case) in cases.iter().enumerate() {
                let (found, [q, kv]) = (case.run(&mut session), self.shapes());
                for (port, width) in [q[2], kv[2], kv[2]].into_iter().enumerate() {
                    let rows = case.expected()[port].chunks(width).zip(found[port].chunks(width));
                    for (row, (expected, found)) in rows.enumerate() {
                        let scale = expected.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
                        for (&e, &f) in expected.iter().zip(found) {
                            assert!(
                                (e - f64::from(f)).abs() <= TOLERANCE * scale,
                                "{self:?}, size {number}, output {port}, row {row}: {f}, not {e}, of {scale}"
                            );
                        }
                    }
                }
            }
        }
    }

    /// Returns a session for gradients. Both launches with matmuls must use cooperative matrices.
    fn session(&self, device: Arc<dyn Device>, case: &Case) -> Session {
        let plan = compile_at(&case.graph, &*device, Precision::Mixed).expect("a plan");
        assert!(plan.dispatches.iter().all(|d| d.use_coop), "{self:?}");
        let sources = device.kernel_sources(&plan).expect("sources");
        let on_units = sources.iter().filter(|s| s.text.contains("coopMultiplyAdd")).count();
        assert_eq!(on_units, 2, "{self:?}");
        Session::on(device, plan).expect("a session")
    }

    /// Returns a graph that contains only the gradients. `size` returns the factor of an element of `dout` or
    /// `delta`, given its sequence and query.
    fn gradients(&self, size: &dyn Fn(usize, usize) -> f64) -> Case {
        let ([q, kv], [rows_q, rows_k]) = (self.shapes(), self.rows);
        let rows = [Self::BATCH, self.heads[0] as usize, rows_q];
        // This is as large as for real scores.
        let lse = (rows_k as f64).ln() + 0.5;
        let inputs = [
            SampleInput::f32(&q),
            SampleInput::f32(&kv),
            SampleInput::f32(&kv),
            SampleInput::range(&rows, lse, lse + 1.0),
            SampleInput::f32(&rows),
            SampleInput::f32(&q),
        ];
        let attrs = Attrs::new()
            .with("num_heads", i64::from(self.heads[0]))
            .with("num_kv_heads", i64::from(self.heads[1]))
            .with("head_dim", i64::from(self.width))
            .with("causal", self.causal.is_some())
            .with("window", self.causal.flatten().map_or(0, i64::from))
            .with("scale", 1.0 / f64::from(self.width).sqrt());
        let build = |g: &mut Graph, x: &[NodeId]| -> Vec<Value> {
            let op = registry::op("core.attention_grad").expect("an operator");
            let grads = g.call(op, attrs.clone(), x.iter().map(|&x| x.into()).collect());
            (0..3).map(|port| g.port(grads, port)).collect()
        };
        Case::with(&inputs, build, |operand, at, value| match operand {
            4 => value * size(at / (rows[1] * rows_q), at % rows_q),
            5 => value * size(at / (rows_q * q[2]), at / q[2] % rows_q),
            _ => value,
        })
    }

    fn check_all(&self) {
        self.check();
        self.check_gradients(&[&|_, _| 1.0]);
    }
}

#[test]
fn whole_tiles() {
    Call {
        rows: [128, 128],
        heads: [4, 2],
        width: 16,
        causal: Some(None),
    }
    .check_all();
}

const ODD: Call = Call {
    rows: [97, 131],
    heads: [6, 2],
    width: 20,
    causal: Some(None),
};

#[test]
fn odd_sizes() {
    ODD.check_all();
    Call {
        rows: [98, 133],
        heads: [4, 4],
        width: 7,
        causal: None,
    }
    .check_all();
}

/// Attention with windows is correct, also if the first keys are visible to no query.
#[test]
fn windows() {
    Call {
        rows: [97, 200],
        heads: [4, 1],
        width: 5,
        causal: Some(Some(40)),
    }
    .check_all();
}

/// Gradients are correct if a head is several tiles wide and its last tile is not full.
#[test]
fn gradients_of_wider_heads() {
    Call {
        rows: [50, 55],
        heads: [2, 2],
        width: 37,
        causal: Some(None),
    }
    .check_gradients(&[&|_, _| 1.0]);
}

/// Gradients are correct even if they, or their ratios, are beyond the range of `f16`.
#[test]
fn gradients_of_any_size() {
    ODD.check_gradients(&[
        &|_, _| 1e-12,
        &|_, _| 1e9,
        // Later queries have smaller values, so the maximum differs between tiles of keys.
        &|sequence, query| 10f64.powi(-8 * sequence as i32) * 0.9f64.powi(query as i32),
        &|_, query| if query < 60 { 0.0 } else { 1.0 },
    ]);
}

/// Infinities and NaN are preserved, so that training detects them in the gradients.
#[test]
fn what_is_infinite_stays_so() {
    let bad = [f64::INFINITY, f64::NAN];
    let cases = bad.map(|bad| ODD.gradients(&|sequence, query| if [sequence, query] == [1, 50] { bad } else { 1.0 }));
    for device in devices() {
        let mut session = ODD.session(device, &cases[0]);
        for (case, bad) in cases.iter().zip(bad) {
            let found = case.run(&mut session);
            for (port, gradient) in found.iter().enumerate() {
                assert!(gradient.iter().any(|v| !v.is_finite()), "{port} of {bad}");
            }
            let [[_, rows, width], _] = ODD.shapes();
            let other = &found[0][..rows * width];
            assert!(other.iter().all(|v| v.is_finite()), "another sequence, {bad}");
        }
    }
}

/// Attention with fewer queries than a tile has rows uses no cooperative matrices.
#[test]
fn few_queries_use_no_matrix_units() {
    check(&[&[2, 5, 64], &[2, 200, 64], &[2, 200, 64]], 0, |g, x| {
        vec![g.attention(x[0], x[1], x[2], AttentionOptions::new(4, 4, 16))]
    });
}
