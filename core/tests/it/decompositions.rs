//! Tests of every decomposition against the operator's definition, down to the primitives.

use std::collections::BTreeSet;

use crate::common::case;
use meganeura_core::graph::Graph;
use meganeura_core::ops::sample::Sizes;
use meganeura_core::ops::{OpRef, Semantics};
use meganeura_core::reference::{Extent, RefTensor, evaluate, evaluate_decomposed, expand_call, extent};
use meganeura_core::registry;
use meganeura_core::shape::TensorType;

#[test]
fn decompositions_agree_with_definitions() {
    let mut checked = 0;
    for op in registry::ops() {
        if !matches!(op.semantics(), Semantics::Both(..)) {
            continue;
        }
        for sample in op.samples(&mut Sizes::new(3)) {
            let mut c = case(op, &sample, 7);
            c.graph.set_outputs(vec![c.call]);
            let values = evaluate(&c.graph, &c.feeds).expect("evaluates");
            let inputs: Vec<&RefTensor> = c.operands.iter().map(|&o| values.get(o).expect("an operand")).collect();
            let expected = values.get(c.call).expect("a result");
            let outputs = c.graph.nodes()[c.call.index()].outputs.clone();
            let found = evaluate_decomposed(op, &sample.attrs, &inputs, &outputs)
                .unwrap_or_else(|e| panic!("{} {}: {e}", op.name(), sample.label));
            assert_eq!(
                expected.data.len(),
                found[0].data.len(),
                "{} {}",
                op.name(),
                sample.label
            );
            for (i, (e, f)) in expected.data.iter().zip(&found[0].data).enumerate() {
                // Constants of a decomposition are f32 numbers.
                let error = (e - f).abs() / e.abs().max(1.0);
                assert!(
                    error < 1e-6 || e == f,
                    "{} {} [{i}]: {e} against {f}",
                    op.name(),
                    sample.label
                );
            }
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked}");
}

/// Collects the primitives that a call is decomposed into.
fn primitives(
    op: OpRef,
    attrs: &meganeura_core::attrs::Attrs,
    inputs: &[TensorType],
    outputs: &[TensorType],
    found: &mut BTreeSet<&'static str>,
    depth: usize,
) {
    assert!(depth < 12, "{} decomposes without end", op.name());
    if matches!(op.semantics(), Semantics::Primitive(_)) {
        found.insert(op.name());
        return;
    }
    let (graph, _) = expand_call(op, attrs, inputs, outputs).expect("it expands");
    for node in graph.nodes() {
        if let Some((inner, attrs)) = node.op() {
            let inputs: Vec<TensorType> = node
                .inputs
                .iter()
                .map(|&v| graph.ty(v).expect("typed").clone())
                .collect();
            primitives(inner, attrs, &inputs, &node.outputs, found, depth + 1);
        }
    }
}

#[test]
fn every_operator_comes_down_to_the_primitive_set() {
    let mut found = BTreeSet::new();
    for op in registry::ops() {
        for sample in op.samples(&mut Sizes::new(4)) {
            let c = case(op, &sample, 1);
            let node = &c.graph.nodes()[c.call.index()];
            let inputs: Vec<TensorType> = c
                .operands
                .iter()
                .map(|&o| c.graph.ty(o).expect("typed").clone())
                .collect();
            primitives(op, &sample.attrs, &inputs, &node.outputs, &mut found, 0);
        }
    }
    // A backend must support these; a new entry needs a reason.
    let expected: BTreeSet<&str> = [
        // arithmetic
        "core.log2",
        "core.exp2",
        "core.sin",
        "core.reciprocal",
        "core.sqrt",
        "core.add",
        "core.mul",
        "core.mod",
        "core.less_than",
        "core.sum",
        "core.max_reduce",
        // exactness (IEEE division, integer division, negative bases) or NaN and infinity
        "core.div",
        "core.pow",
        "core.equal",
        "core.select",
        "core.cast",
        // movement
        "core.reshape",
        "core.permute",
        "core.expand",
        "core.slice",
        "core.pad",
        "core.gather",
        "core.scatter_add",
        "core.stop_gradient",
        "core.assign",
        // integers
        "core.argmax",
        "core.random_bits",
        // the bits of a word are not accessible by arithmetic
        "core.bit_and",
        "core.shift_left",
        "core.shift_right",
        // a separate index for each element, or a partial sort: other primitives cannot express these without a cost
        // that grows with the square of the axis and without losing the error for an invalid index
        "core.take_along_axis",
        "core.put_along_axis",
        "core.scatter",
        "core.top_k",
        // patterns whose decomposition would be much larger
        "core.matmul",
        "core.conv2d",
        "core.conv2d_input_grad",
        "core.conv2d_weight_grad",
        "core.max_pool2d",
        "core.avg_pool2d",
        "core.avg_pool2d_grad",
    ]
    .into();
    assert_eq!(found, expected);
}

/// The cost of an evaluation is computed without evaluating, so a refused evaluation allocates nothing.
#[test]
fn what_evaluating_takes_is_known_before() {
    const ANY: Extent = Extent {
        elements: u64::MAX,
        work: u64::MAX,
    };
    let mut g = Graph::new();
    let x = g.input("x", &[8, 16]);
    let w = g.input("w", &[16, 4]);
    let y = g.matmul(x, w);
    g.set_outputs(vec![y]);
    let found = extent(&g, ANY).expect("small");
    assert_eq!(found.elements, 8 * 16 + 16 * 4 + 8 * 4);
    // Elements read, multiplied and added, written; the inputs also count once.
    assert_eq!(found.work, 2 * (8 * 16 + 16 * 4) + 2 * 8 * 16 * 4 + 8 * 4);
    let less = Extent {
        work: found.work - 1,
        ..ANY
    };
    let error = extent(&g, less).expect_err("one less").to_string();
    assert!(error.contains("matmul") && error.contains("operations"), "{error}");

    // Values inside a composite count: the scores of attention are larger than its operands and results.
    let rows = 1 << 20;
    let mut g = Graph::new();
    let q = g.input("q", &[rows, 8]);
    let y = g.causal_attention(q, q, q, 1, 1, 8);
    g.set_outputs(vec![y]);
    let most = Extent {
        elements: 1 << 30,
        work: u64::MAX,
    };
    let small = {
        let mut g = Graph::new();
        let x = g.input("x", &[32, 8]);
        let y = g.swiglu(x, x);
        g.set_outputs(vec![y]);
        extent(&g, most).expect("small").elements
    };
    assert!(small > 3 * 32 * 8, "{small}");
    let most = Extent { work: 1 << 40, ..most };
    assert!(extent(&g, most).is_err());
}
