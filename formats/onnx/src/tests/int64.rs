//! Tests of 64-bit integers: results that exceed 32 bits are errors, all other results are exact.

use std::sync::Arc;

use prost::Message;

use super::{changed, floats, graph_attribute, int_attribute, ints, node, small, value};
use crate::proto::{AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, attribute_type, type_proto};
use crate::{ElementType, Error, ImportOptions, Model, Runner, Tensor};

const LARGE: i64 = i32::MAX as i64;
const SMALL: i64 = i32::MIN as i64;
const INT64: i32 = 7;
const UINT32: i32 = 12;
const UINT64: i32 = 13;

fn typed(name: &str, dims: &[i64], element: i32) -> ValueInfoProto {
    let mut value = value(name, dims);
    if let Some(type_proto::Value::Tensor(tensor)) = value.r#type.as_mut().and_then(|t| t.value.as_mut()) {
        tensor.elem_type = element;
    }
    value
}

fn with(mut node: NodeProto, attributes: &[(&str, i64)]) -> NodeProto {
    node.attribute
        .extend(attributes.iter().map(|(name, i)| int_attribute(name, *i)));
    node
}

fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        s: value.as_bytes().to_vec().into(),
        r#type: attribute_type::STRING,
        ..AttributeProto::default()
    }
}

/// Returns a model of these nodes, with the result `y`.
fn model(nodes: &[NodeProto], constants: &[TensorProto], inputs: &[ValueInfoProto]) -> Model {
    changed(|g| {
        g.node = nodes.to_vec();
        g.initializer = constants.to_vec();
        g.input = inputs.to_vec();
        g.output = vec![value("y", &[])];
    })
}

fn run(model: &Model, inputs: &[Tensor]) -> Result<Vec<i64>, Error> {
    meganeura_compiler::link_plugins!(meganeura_cpu, meganeura_rules).expect("they are linked");
    let builder = meganeura_compiler::Builder::on(Arc::new(meganeura_cpu::CpuDevice::new(2)));
    let mut runner = Runner::with_constants(model, inputs, &Default::default(), &builder).expect("supported");
    Ok(runner.run(inputs)?[0].to_i64())
}

/// Checks that the results are exact.
fn gives(model: &Model, inputs: &[Tensor], expected: &[i64]) {
    match run(model, inputs) {
        Ok(found) => assert_eq!(found, expected, "{inputs:?}"),
        Err(error) => panic!("{inputs:?}: {error}"),
    }
}

/// Checks that a step fails, with the operator and the name of this node.
fn leaves(model: &Model, inputs: &[Tensor], operator: &str) {
    let error = run(model, inputs).expect_err("beyond 32 bits");
    let Error::Overflow {
        place, operator: found, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!((found.as_str(), place.as_str()), (operator, "n"), "{inputs:?}");
    assert!(error.to_string().contains("\n  help: "), "{error}");
}

fn guards(model: &Model) -> usize {
    model.import(&ImportOptions::default()).expect("supported").guards.len()
}

fn list(data: &[i64]) -> Tensor {
    Tensor::i64(&[data.len()], data.to_vec())
}

fn unsigned(data: &[i64]) -> Tensor {
    Tensor::integers(ElementType::U64, &[data.len()], data.to_vec())
}

/// Arithmetic on lists of two elements is exact, or an error if an element exceeds 32 bits.
#[test]
fn arithmetic_beyond_32_bits_is_refused() {
    let pair = |op: &str, element: i32| {
        let inputs = [typed("a", &[2], element), typed("b", &[2], element)];
        model(&[node(op, "n", &["a", "b"], &["y"])], &[], &inputs)
    };
    for (op, good, expected, bad) in [
        (
            "Add",
            [[LARGE, SMALL], [-1, LARGE]],
            [LARGE - 1, -1],
            [[0, LARGE], [0, 1]],
        ),
        (
            "Add",
            [[2_000_000_000, 5], [147_483_647, 5]],
            [LARGE, 10],
            [[2_000_000_000, 0], [2_000_000_000, 0]],
        ),
        (
            "Sub",
            [[SMALL, 0], [-1, LARGE]],
            [SMALL + 1, -LARGE],
            [[SMALL, 0], [1, 0]],
        ),
        (
            "Mul",
            [[65536, SMALL], [32767, 1]],
            [65536 * 32767, SMALL],
            [[65536, 0], [65536, 1]],
        ),
        (
            "Mul",
            [[-46340, 3], [46340, 0]],
            [-46340 * 46340, 0],
            [[SMALL, 1], [-1, 1]],
        ),
        ("Mul", [[0, 0], [1, 1]], [0, 0], [[LARGE, 0], [LARGE, 0]]),
        (
            "Sum",
            [[LARGE, SMALL], [SMALL, LARGE]],
            [-1, -1],
            [[LARGE, 1], [LARGE, 1]],
        ),
        ("Div", [[SMALL, LARGE], [1, -1]], [SMALL, -LARGE], [[1, SMALL], [1, -1]]),
        ("Pow", [[3, -2], [19, 31]], [1_162_261_467, SMALL], [[1, 3], [1, 20]]),
        ("Pow", [[-1, 0], [1001, 0]], [-1, 1], [[2, 1], [31, 1]]),
        ("Pow", [[2, -1], [-3, -3]], [0, -1], [[2, 1], [1 << 20, 1]]),
    ] {
        let model = pair(op, INT64);
        gives(&model, &good.map(|v| list(&v)), &expected);
        leaves(&model, &bad.map(|v| list(&v)), op);
    }
    let high = i64::from(u32::MAX);
    for (op, good, expected, bad) in [
        ("Add", [[high, 1], [0, 1]], [high, 2], [[high, 0], [1, 0]]),
        ("Sub", [[high, 5], [high, 0]], [0, 5], [[1, 0], [0, 1]]),
        (
            "Mul",
            [[65536, 1], [65535, high]],
            [65536 * 65535, high],
            [[65536, 1], [65536, 1]],
        ),
    ] {
        let model = pair(op, UINT64);
        gives(&model, &good.map(|v| unsigned(&v)), &expected);
        leaves(&model, &bad.map(|v| unsigned(&v)), op);
    }
    for op in ["Neg", "Abs"] {
        let model = model(&[node(op, "n", &["x"], &["y"])], &[], &[typed("x", &[2], INT64)]);
        gives(
            &model,
            &[list(&[LARGE, 0])],
            &[if op == "Neg" { -LARGE } else { LARGE }, 0],
        );
        leaves(&model, &[list(&[0, SMALL])], op);
    }
}

#[test]
fn sums_and_products_of_many_are_exact_or_refused() {
    let reduce = |op: &str, count: i64, constants: &[TensorProto]| {
        let names: Vec<&str> = ["x"]
            .into_iter()
            .chain(constants.iter().map(|t| t.name.as_str()))
            .collect();
        model(
            &[node(op, "n", &names, &["y"])],
            constants,
            &[typed("x", &[count], INT64)],
        )
    };
    // Partial sums may exceed 32 bits if the total does not.
    let sum = reduce("ReduceSum", 4, &[]);
    gives(&sum, &[list(&[LARGE, LARGE, SMALL, SMALL])], &[-2]);
    gives(&sum, &[list(&[LARGE, LARGE, SMALL, 1])], &[LARGE]);
    leaves(&sum, &[list(&[LARGE, LARGE, SMALL, 2])], "ReduceSum");
    leaves(&sum, &[list(&[SMALL, -1, 0, 0])], "ReduceSum");
    // 2^32 is 0 in 32 bits.
    leaves(&sum, &[list(&[1 << 30; 4])], "ReduceSum");
    let axis = TensorProto {
        dims: Vec::new(),
        ..ints("axis", &[0])
    };
    let running = reduce("CumSum", 3, &[axis]);
    gives(&running, &[list(&[LARGE, SMALL, LARGE])], &[LARGE, -1, LARGE - 1]);
    leaves(&running, &[list(&[LARGE, 1, SMALL])], "CumSum");
    let product = reduce("ReduceProd", 4, &[]);
    gives(&product, &[list(&[46340, 46340, 1, -1])], &[-46340 * 46340]);
    leaves(&product, &[list(&[65536, 65536, 1, 1])], "ReduceProd");
    leaves(&product, &[list(&[SMALL, LARGE, LARGE, LARGE])], "ReduceProd");
    let squares = reduce("ReduceSumSquare", 2, &[]);
    gives(&squares, &[list(&[46340, 200])], &[46340 * 46340 + 40000]);
    leaves(&squares, &[list(&[65536, 0])], "ReduceSumSquare");
    let sizes = reduce("ReduceL1", 2, &[]);
    gives(&sizes, &[list(&[-5, LARGE - 5])], &[LARGE]);
    leaves(&sizes, &[list(&[-1, LARGE])], "ReduceL1");
}

#[test]
fn products_of_matrices_are_exact_or_refused() {
    let inputs = [typed("a", &[1, 3], INT64), typed("b", &[3, 1], INT64)];
    let product = model(&[node("MatMul", "n", &["a", "b"], &["y"])], &[], &inputs);
    let pair = |a: [i64; 3], b: [i64; 3]| [Tensor::i64(&[1, 3], a.to_vec()), Tensor::i64(&[3, 1], b.to_vec())];
    // `f32` cannot represent this number.
    gives(&product, &pair([5001, 3, 1], [5003, 7, 0]), &[5001 * 5003 + 21]);
    gives(&product, &pair([SMALL, LARGE, 1], [1, 1, -7]), &[-8]);
    gives(&product, &pair([LARGE, LARGE, -1], [LARGE, -LARGE, 9]), &[-9]);
    gives(&product, &pair([-46340, 0, 0], [46340, 0, 0]), &[-46340 * 46340]);
    leaves(&product, &pair([65536, 0, 0], [65536, 0, 0]), "MatMul");
    leaves(&product, &pair([LARGE, 1, 0], [1, 1, 0]), "MatMul");
    leaves(&product, &pair([SMALL, 1, 0], [1, -1, 0]), "MatMul");
    leaves(&product, &pair([SMALL, 0, 0], [SMALL, 0, 0]), "MatMul");
    // 32-bit integers wrap, and are exact as well.
    let inputs = [typed("a", &[1, 3], 6), typed("b", &[3, 1], 6)];
    let wraps = model(&[node("MatMul", "n", &["a", "b"], &["y"])], &[], &inputs);
    let int32 = |t: Tensor| Tensor::integers(ElementType::I32, t.dims(), t.to_i64());
    gives(
        &wraps,
        &pair([5001, 3, 1], [5003, 7, 0]).map(int32),
        &[5001 * 5003 + 21],
    );
    gives(&wraps, &pair([LARGE, 1, 0], [1, 1, 0]).map(int32), &[SMALL]);
    // Products with a vector are also split into parts.
    let n = 300;
    let inputs = [typed("a", &[1, n], 2), typed("b", &[n], 2)];
    let bytes = model(&[node("MatMulInteger", "n", &["a", "b"], &["y"])], &[], &inputs);
    let ones = |dims: &[usize]| Tensor::integers(ElementType::U8, dims, vec![255; 300]);
    gives(&bytes, &[ones(&[1, 300]), ones(&[300])], &[255 * 255 * n]);
}

#[test]
fn conversions_beyond_32_bits_are_refused() {
    let cast = |from: i32, to: i64| {
        let node = with(node("Cast", "n", &["x"], &["y"]), &[("to", to)]);
        model(&[node], &[], &[typed("x", &[2], from)])
    };
    let real = |a: f32, b: f32| [Tensor::f32(&[2], vec![a, b])];
    let model = cast(1, INT64.into());
    gives(
        &model,
        &real(-2_147_483_648.0, 2_147_483_520.0),
        &[SMALL, 2_147_483_520],
    );
    for bad in [3e9, -3e9, 2_147_483_648.0, 1e15, f32::INFINITY] {
        leaves(&model, &real(0.0, bad), "Cast");
    }
    let model = cast(1, UINT64.into());
    gives(&model, &real(-0.5, 4_294_967_040.0), &[0, 4_294_967_040]);
    leaves(&model, &real(0.0, -1.0), "Cast");
    leaves(&model, &real(4_294_967_296.0, 0.0), "Cast");
    let model = cast(UINT32, INT64.into());
    let uint32 = |v: i64| [Tensor::integers(ElementType::U32, &[2], vec![v, 1])];
    gives(&model, &uint32(LARGE), &[LARGE, 1]);
    leaves(&model, &uint32(LARGE + 1), "Cast");
    let model = cast(INT64, UINT64.into());
    gives(&model, &[list(&[LARGE, 0])], &[LARGE, 0]);
    leaves(&model, &[list(&[0, -1])], "Cast");
}

#[test]
fn bits_beyond_32_are_refused() {
    let mut shift = node("BitShift", "n", &["a", "b"], &["y"]);
    shift.attribute = vec![text("direction", "LEFT")];
    let model = model(&[shift], &[], &[typed("a", &[2], UINT64), typed("b", &[2], UINT64)]);
    gives(&model, &[unsigned(&[1, 0]), unsigned(&[31, 40])], &[1 << 31, 0]);
    leaves(&model, &[unsigned(&[1, 1]), unsigned(&[0, 32])], "BitShift");
    leaves(&model, &[unsigned(&[3, 1]), unsigned(&[31, 0])], "BitShift");
    let mut proto = small();
    proto.opset_import[0].version = 18;
    let graph = proto.graph.as_mut().expect("a graph");
    graph.node = vec![node("BitwiseNot", "n", &["x"], &["y"])];
    graph.initializer.clear();
    graph.input = vec![typed("x", &[2], UINT64)];
    graph.output = vec![value("y", &[2])];
    let model = Model::from_bytes(proto.encode_to_vec()).expect("a model");
    let message = model.preflight(&crate::Dims::new()).to_string();
    assert!(
        message.contains("BitwiseNot `n`") && message.contains("uint64"),
        "{message}"
    );
}

#[test]
fn scattered_sums_beyond_32_bits_are_refused() {
    let mut scatter = node("ScatterElements", "n", &["x", "at", "updates"], &["y"]);
    scatter.attribute = vec![text("reduction", "add")];
    let inputs = [typed("x", &[2], INT64), typed("updates", &[2], INT64)];
    let model = model(&[scatter], &[ints("at", &[0, 0])], &inputs);
    gives(&model, &[list(&[LARGE, 7]), list(&[LARGE, SMALL])], &[LARGE - 1, 7]);
    leaves(&model, &[list(&[LARGE, 7]), list(&[1, 0])], "ScatterElements");
}

/// An overflow in an operand of a comparison is an error of the step.
#[test]
fn comparisons_of_overflows_are_refused() {
    let nodes = [
        node("Add", "n", &["x", "x"], &["sum"]),
        node("Less", "less", &["x", "sum"], &["y"]),
    ];
    let model = model(&nodes, &[], &[typed("x", &[2], INT64)]);
    gives(&model, &[list(&[1 << 29, -3])], &[1, 0]);
    leaves(&model, &[list(&[1 << 30, -3])], "Add");
    let inputs = [list(&[1 << 32, 0])];
    let error = run(&model, &inputs).expect_err("an input beyond 32 bits");
    assert!(
        error
            .to_string()
            .contains("input `x`: 4294967296 does not fit into i32"),
        "{error}"
    );
}

#[test]
fn the_first_node_beyond_32_bits_is_named() {
    let nodes: Vec<NodeProto> = (0..5)
        .map(|i| {
            let (from, to) = (format!("v{i}"), if i == 4 { "y".into() } else { format!("v{}", i + 1) });
            let name = if i == 2 { "n".into() } else { format!("node{i}") };
            node("Mul", &name, &[&from, &from], &[&to])
        })
        .collect();
    let model = model(&nodes, &[], &[typed("v0", &[1], INT64)]);
    assert_eq!(guards(&model), 5);
    gives(&model, &[list(&[-1])], &[1]);
    leaves(&model, &[list(&[30])], "Mul");
}

/// Both branches are computed, but only overflows in the selected one are errors.
#[test]
fn branches_that_are_not_taken_are_not_checked() {
    let branch = |op: &str, name: &str| GraphProto {
        node: vec![node(op, name, &["x", "x"], &["r"])],
        output: vec![value("r", &[1])],
        ..GraphProto::default()
    };
    let mut choose = node("If", "choose", &["c"], &["y"]);
    choose.attribute = vec![
        graph_attribute("then_branch", branch("Add", "product")),
        graph_attribute("else_branch", branch("Sub", "difference")),
    ];
    let model = model(&[choose], &[], &[typed("c", &[1], 9), typed("x", &[1], INT64)]);
    let inputs = |c: i64| [Tensor::integers(ElementType::Bool, &[1], vec![c]), list(&[LARGE])];
    let builder = || meganeura_compiler::Builder::on(Arc::new(meganeura_cpu::CpuDevice::new(1)));
    let mut runner = Runner::new(&model, &crate::Dims::new(), &builder()).expect("supported");
    assert_eq!(runner.run(&inputs(0)).expect("the other branch")[0].to_i64(), [0]);
    let error = runner.run(&inputs(1)).expect_err("beyond 32 bits").to_string();
    assert!(error.contains("Add `choose.then.product`"), "{error}");
    // The next step starts without the error.
    assert_eq!(runner.run(&inputs(0)).expect("the other branch")[0].to_i64(), [0]);
}

/// Unused values and values with small ranges have no checks.
#[test]
fn small_ranges_and_unused_values_are_not_checked() {
    let inputs = [typed("x", &[2, 3], 1)];
    let arg = with(node("ArgMax", "arg", &["x"], &["at"]), &[("axis", 1), ("keepdims", 0)]);
    let nodes = [
        arg,
        node("Mul", "product", &["at", "k"], &["scaled"]),
        node("Add", "sum", &["scaled", "at"], &["y"]),
    ];
    let bounded = model(&nodes, &[ints("k", &[1000])], &inputs);
    assert_eq!(guards(&bounded), 0);
    let x = Tensor::f32(&[2, 3], vec![0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    gives(&bounded, &[x], &[1001, 2002]);
    let large = model(&nodes, &[ints("k", &[1 << 30])], &inputs);
    assert_eq!(guards(&large), 2);

    // Positions of tokens that are not padding, as in RoBERTa.
    let axis = TensorProto {
        dims: Vec::new(),
        ..ints("axis", &[1])
    };
    let nodes = [
        node("Equal", "equal", &["x", "pad"], &["is_pad"]),
        node("Not", "not", &["is_pad"], &["is_token"]),
        with(node("Cast", "cast", &["is_token"], &["mask"]), &[("to", INT64.into())]),
        node("CumSum", "running", &["mask", "axis"], &["count"]),
        node("Mul", "masked", &["count", "mask"], &["at"]),
        node("Add", "moved", &["at", "pad"], &["y"]),
    ];
    let positions = model(&nodes, &[axis, ints("pad", &[1])], &[typed("x", &[1, 4], INT64)]);
    assert_eq!(guards(&positions), 0);
    gives(&positions, &[Tensor::i64(&[1, 4], vec![9, 5, 1, 1])], &[2, 3, 1, 1]);

    let nodes = [
        node("Mul", "unused", &["x", "x"], &["z"]),
        node("Identity", "same", &["x"], &["y"]),
    ];
    let unused = model(&nodes, &[], &[typed("x", &[1], INT64)]);
    assert_eq!(guards(&unused), 0);
    gives(&unused, &[list(&[LARGE])], &[LARGE]);
}

/// Fractions truncate. Powers near an integer are refused, because `f32` may round them to it.
#[test]
fn powers_with_real_exponents_are_exact_or_refused() {
    let inputs = [typed("a", &[2], INT64), value("b", &[2])];
    let power = model(&[node("Pow", "n", &["a", "b"], &["y"])], &[], &inputs);
    let real = |a: f32, b: f32| Tensor::f32(&[2], vec![a, b]);
    gives(&power, &[list(&[3, -3]), real(19.0, 3.0)], &[1_162_261_467, -27]);
    gives(&power, &[list(&[200, 185]), real(0.5, 0.5)], &[14, 13]);
    gives(&power, &[list(&[0, 1]), real(0.5, 1.5)], &[0, 1]);
    leaves(&power, &[list(&[3, 3]), real(1.0, 20.0)], "Pow");
    leaves(&power, &[list(&[4, 196]), real(1.0, 0.5)], "Pow");
    let known = model(
        &[node("Pow", "n", &["a", "b"], &["y"])],
        &[floats("b", &[1], &[19.0])],
        &[typed("a", &[1], INT64)],
    );
    gives(&known, &[list(&[3])], &[1_162_261_467]);
}
