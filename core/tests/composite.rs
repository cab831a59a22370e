//! Tests of operators that are defined only by a decomposition.
// A separate binary: its operators are registered for the whole process.

use std::collections::HashMap;

use meganeura_core::attrs::{AttrKind, Attrs};
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::sample::{Sample, SampleInput, Sizes};
use meganeura_core::ops::{Call, Composite, OpRef, Operator};
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;
use meganeura_core::{DType, Shape, TensorType, register_op, registry};

static SQUARED_RELU: Composite = Composite::new("test.squared_relu", 1, "max(x, 0)^2", |g, x, _| {
    let positive = g.relu(x[0]);
    Ok(vec![g.square(positive).into()])
});
register_op!(SQUARED_RELU);

/// Operator with two results: the sum and the difference of `a` and `k b`, where `b` broadcasts.
static PAIR: Composite = Composite::new("test.pair", 2, "a + k b and a - k b", |g, x, attrs| {
    let k = attrs.float("k")? as f32;
    let k = g.scalar(k);
    let scaled = g.mul(x[1], k);
    Ok(vec![g.add(x[0], scaled).into(), g.sub(x[0], scaled).into()])
})
.with_ports(&["sum", "difference"])
.with_attributes(&[("k", AttrKind::Float)], |sizes| {
    let (m, n) = (sizes.dim(9), sizes.dim(9));
    let inputs = vec![SampleInput::f32(&[m, n]), SampleInput::f32(&[n])];
    vec![Sample::new("a row", inputs, Attrs::new().with("k", 0.75))]
});
register_op!(PAIR);

fn f32s(dims: &[usize]) -> TensorType {
    TensorType::f32(Shape::new(dims).unwrap())
}

fn infer(op: &Composite, attrs: &Attrs, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
    op.infer(&Call {
        attrs,
        inputs,
        outputs: &[],
    })
}

#[test]
fn types_and_work_follow_from_the_decomposition() {
    for dims in [vec![], vec![1], vec![7, 1, 13]] {
        let inputs = [f32s(&dims)];
        let outputs = infer(&SQUARED_RELU, &Attrs::new(), &inputs).unwrap();
        assert_eq!(outputs, inputs);
        let attrs = Attrs::new();
        let cost = SQUARED_RELU.cost(&Call {
            attrs: &attrs,
            inputs: &inputs,
            outputs: &outputs,
        });
        let numel = inputs[0].numel() as u64;
        assert_eq!((cost.flops, cost.bytes), (2 * numel, 8 * numel));
    }
    let half = TensorType::new(DType::F16, Shape::new(&[3]).unwrap());
    let single = std::slice::from_ref(&half);
    assert_eq!(infer(&SQUARED_RELU, &Attrs::new(), single).unwrap(), single);
    let types = infer(&PAIR, &Attrs::new().with("k", 2.0), &[f32s(&[5, 3]), f32s(&[3])]).unwrap();
    assert_eq!(types, [f32s(&[5, 3]), f32s(&[5, 3])]);
}

/// Builds a graph with a scalar loss, from composite operators or from the operators of their decompositions.
fn network(composite: bool, m: usize, n: usize) -> Graph {
    let mut g = Graph::new();
    let (x, w) = (g.input("x", &[m, n]), g.parameter("w", &[n]));
    let (sum, difference): (Value, Value) = if composite {
        let op = registry::op("test.pair").unwrap();
        let pair = g.call(op, Attrs::new().with("k", 0.75), vec![x.into(), w.into()]);
        (g.port(pair, 0), g.port(pair, 1))
    } else {
        let k = g.scalar(0.75);
        let scaled = g.mul(w, k);
        (g.add(x, scaled).into(), g.sub(x, scaled).into())
    };
    let active: Value = if composite {
        g.call(OpRef::new(&SQUARED_RELU), Attrs::new(), vec![sum]).into()
    } else {
        let positive = g.relu(sum);
        g.square(positive).into()
    };
    let product = g.mul(active, difference);
    let loss = g.mean_all(product);
    g.set_outputs(vec![loss]);
    try_differentiate(&g).unwrap()
}

#[test]
fn values_and_gradients_are_those_of_the_decomposition() {
    let mut rng = SplitMix64::new(3);
    for (m, n) in [(1, 1), (3, 7), (16, 5)] {
        let mut random = |len: usize| (0..len).map(|_| rng.unit() * 4.0 - 2.0).collect::<Vec<f64>>();
        let feeds = HashMap::from([("x".to_owned(), random(m * n)), ("w".to_owned(), random(n))]);
        let values = [true, false].map(|composite| {
            let graph = network(composite, m, n);
            let evaluation = evaluate(&graph, &feeds).unwrap();
            let mut wanted = vec![graph.outputs()[0]];
            wanted.extend(graph.gradients().iter().map(|&(_, v)| v));
            let value = |v: &Value| evaluation.get(*v).unwrap().data.clone();
            wanted.iter().flat_map(value).collect::<Vec<f64>>()
        });
        assert_eq!(values[0].len(), 1 + n);
        // A single element may well be clipped.
        assert!(m * n == 1 || values[0].iter().any(|v| *v != 0.0));
        for (got, want) in values[0].iter().zip(&values[1]) {
            assert!(
                (got - want).abs() <= 1e-12 * (1.0 + want.abs()),
                "{m} {n}: {got} {want}"
            );
        }
    }
}

#[test]
fn samples_are_valid_calls() {
    for op in [&SQUARED_RELU, &PAIR] {
        let samples = op.samples(&mut Sizes::new(1));
        assert!(!samples.is_empty());
        for sample in samples {
            let inputs: Vec<TensorType> = sample.inputs.iter().map(|i| f32s(&i.shape)).collect();
            infer(op, &sample.attrs, &inputs).unwrap_or_else(|e| panic!("{}: {e}", sample.label));
        }
    }
}

static LISTLESS: Composite = Composite::new("test.listless", 1, "nothing", |_, _, _| Ok(Vec::new()));
static GREEDY: Composite = Composite::new("test.greedy", 1, "x + w", |g, x, _| {
    let w = g.parameter("w", &[1]);
    Ok(vec![g.add(x[0], w).into()])
});
static REFUSING: Composite = Composite::new("test.refusing", 1, "x", |_, _, _| Err("not today".into()));
static PRODUCT: Composite = Composite::new("test.product", 2, "a b", |g, x, _| {
    Ok(vec![g.matmul(x[0], x[1]).into()])
});
static ENDLESS: Composite = Composite::new("test.endless", 1, "itself", |g, x, _| {
    let op = OpRef::new(&ENDLESS);
    Ok(vec![g.call(op, Attrs::new(), vec![x[0]]).into()])
});

#[test]
fn wrong_calls_and_decompositions_are_errors() {
    let (none, k) = (Attrs::new(), Attrs::new().with("k", "much"));
    let (x, y) = (f32s(&[2, 3]), f32s(&[2, 3]));
    for (op, attrs, inputs, expected) in [
        (&SQUARED_RELU, &none, vec![], "1 operands, got 0"),
        (&PAIR, &none, vec![x.clone(), y.clone()], "'k' is absent"),
        (&PAIR, &k, vec![x.clone(), y.clone()], "not Float"),
        (&PRODUCT, &none, vec![x.clone(), y.clone()], "in its decomposition"),
        (&LISTLESS, &none, vec![x.clone()], "has 0 results, and 1 are declared"),
        (&GREEDY, &none, vec![x.clone()], "makes inputs, parameters"),
        (&REFUSING, &none, vec![x.clone()], "not today"),
        (&ENDLESS, &none, vec![x.clone()], "nested more than"),
    ] {
        let error = infer(op, attrs, &inputs).unwrap_err();
        assert!(error.contains(expected), "{}: {error}", op.name());
        // The reported work of an invalid call is that of its bytes, and the query is harmless.
        let outputs = [x.clone()];
        let cost = op.cost(&Call {
            attrs,
            inputs: &inputs,
            outputs: &outputs,
        });
        assert_eq!(cost.flops, 0, "{}", op.name());
        // Users see it as an error of the graph, with the operator's name.
        let mut g = Graph::new();
        let operands = inputs.iter().enumerate().map(|(i, ty)| {
            let name = format!("x{i}");
            g.input(&name, &ty.shape).into()
        });
        let operands = operands.collect();
        let node = g.call(OpRef::new(op), attrs.clone(), operands);
        g.set_outputs(vec![node]);
        let error = g.verify().unwrap_err().to_string();
        assert!(error.contains(op.name()), "{error}");
    }
}
