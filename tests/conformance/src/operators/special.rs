//! Cases of numbers that kernels often compute wrongly: NaN, infinities, overflow, ties of rounding, integer limits.

use meganeura_core::attrs::Attrs;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::OpRef;
use meganeura_core::reference::evaluate;
use meganeura_core::{DType, registry};

use crate::case::{Case, CaseRun, Check, SharedDevice, ensure, fail};
use crate::compare::compare_each;
use crate::harness::{Feeds, open, run_once};

/// Accepted error relative to each element.
const LIMIT: f64 = 1e-4;

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

/// Operands of unary float operators; ±100 overflows `exp` and tests whether other operators avoid that.
const UNARY: &[f64] = &[NAN, INF, -INF, 0.0, 1.0, -1.0, 0.5, 100.0, -100.0];
/// Operands of binary float operators, taken in all pairs.
const BINARY: &[f64] = &[NAN, INF, -INF, 0.0, 1.0, -1.0, 2.5];
/// Operands of remainders: quotients that need more bits than a significand has, and infinities.
const REMAINDERS: &[f64] = &[
    NAN,
    INF,
    -INF,
    0.0,
    1.0,
    -1.0,
    2.5,
    -2.5,
    1e10,
    -1e10,
    16777215.0,
    3e38_f32 as f64,
    1e-30_f32 as f64,
    0.1_f32 as f64,
];
const SIGNED: &[f64] = &[0.0, 1.0, -1.0, 7.0, -7.0, 3.0, 2147483647.0, -2147483648.0];
const UNSIGNED: &[f64] = &[0.0, 1.0, 7.0, 3.0, 2147483648.0, 4294967295.0];

/// Operators with one float operand and one result that are tested with [`UNARY`], and their attributes.
const UNARY_OPS: &[(&str, &[(&str, f64)])] = &[
    ("core.log2", &[]),
    ("core.exp2", &[]),
    ("core.reciprocal", &[]),
    ("core.sqrt", &[]),
    ("core.neg", &[]),
    ("core.abs", &[]),
    ("core.exp", &[]),
    ("core.log", &[]),
    ("core.rsqrt", &[]),
    ("core.square", &[]),
    ("core.tanh", &[]),
    ("core.sigmoid", &[]),
    ("core.relu", &[]),
    ("core.softplus", &[]),
    ("core.erf", &[]),
    ("core.clamp", &[("low", -1.0), ("high", 1.5)]),
    ("core.expm1", &[]),
    ("core.log1p", &[]),
    ("core.elu", &[("alpha", 0.75)]),
    ("core.hard_sigmoid", &[]),
    ("core.sign", &[]),
    ("core.floor", &[]),
    ("core.ceil", &[]),
    ("core.round", &[]),
];
/// Operators whose formula multiplies an infinity by a factor that approaches 0. Both the limit and NaN are accepted
/// there.
const UNARY_FINITE_OPS: &[&str] = &[
    "core.silu",
    "core.gelu_tanh",
    "core.gelu_erf",
    "core.gelu_tanh_derivative",
    "core.gelu_erf_derivative",
    "core.sin",
    "core.cos",
    "core.hard_swish",
];
const BINARY_OPS: &[&str] = &[
    "core.add",
    "core.sub",
    "core.mul",
    "core.div",
    "core.pow",
    "core.max",
    "core.min",
    "core.less_than",
    "core.less_equal",
    "core.greater_than",
    "core.greater_equal",
    "core.equal",
    "core.not_equal",
];
const INTEGER_OPS: &[&str] = &[
    "core.add",
    "core.sub",
    "core.mul",
    "core.div",
    "core.mod",
    "core.max",
    "core.min",
    "core.less_than",
    "core.less_equal",
    "core.greater_than",
    "core.greater_equal",
    "core.equal",
    "core.not_equal",
];

/// Operators on the bits of both integer types.
const BIT_OPS: &[&str] = &["core.bit_and", "core.bit_or", "core.bit_xor"];
/// Operators on `u32` only.
const WORD_OPS: &[&str] = &[
    "core.shift_left",
    "core.shift_right",
    "core.logical_and",
    "core.logical_or",
    "core.logical_xor",
];
const WORDS: &[f64] = &[0.0, 1.0, 7.0, 31.0, 32.0, 33.0, 2147483648.0, 4294967295.0];

/// An operand: type, shape, values.
type Operand = (DType, Vec<usize>, Vec<f64>);

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let f32s = |values: &[f64]| vec![(DType::F32, vec![values.len()], values.to_vec())];
    for (name, attrs) in UNARY_OPS {
        let attrs = attrs.iter().fold(Attrs::new(), |a, &(k, v)| a.with(k, v));
        cases.push(table(name, "special", attrs, f32s(UNARY)));
    }
    for name in UNARY_FINITE_OPS {
        let finite: Vec<f64> = UNARY.iter().copied().filter(|v| !v.is_infinite()).collect();
        cases.push(table(name, "special", Attrs::new(), f32s(&finite)));
    }
    for name in BINARY_OPS {
        cases.push(table(name, "special", Attrs::new(), pairs(DType::F32, BINARY)));
    }
    cases.push(table(
        "core.mod",
        "special",
        Attrs::new(),
        pairs(DType::F32, REMAINDERS),
    ));
    for name in INTEGER_OPS {
        cases.push(table(name, "special i32", Attrs::new(), pairs(DType::I32, SIGNED)));
        cases.push(table(name, "special u32", Attrs::new(), pairs(DType::U32, UNSIGNED)));
    }
    for name in BIT_OPS {
        cases.push(table(name, "special i32", Attrs::new(), pairs(DType::I32, SIGNED)));
        cases.push(table(name, "special u32", Attrs::new(), pairs(DType::U32, UNSIGNED)));
    }
    for name in WORD_OPS {
        cases.push(table(name, "special u32", Attrs::new(), pairs(DType::U32, WORDS)));
    }
    for (name, dtype, values) in [
        ("core.bit_not", DType::I32, SIGNED),
        ("core.bit_not", DType::U32, WORDS),
        ("core.logical_not", DType::U32, WORDS),
        ("core.sign", DType::I32, SIGNED),
    ] {
        let operand = (dtype, vec![values.len()], values.to_vec());
        cases.push(table(name, &format!("special {dtype}"), Attrs::new(), vec![operand]));
    }
    let halves = &[
        0.5, -0.5, 1.5, -1.5, 2.5, 0.49999997, -1e-9, 1e-9, 8388607.5, -8388607.5, 1e20,
    ];
    for name in ["core.floor", "core.ceil", "core.round"] {
        cases.push(table(name, "special halves", Attrs::new(), f32s(halves)));
    }
    let near = &[1e-4, -1e-4, 1e-7, -1e-7, 1e-20];
    for name in ["core.expm1", "core.log1p"] {
        cases.push(table(name, "special near 0", Attrs::new(), f32s(near)));
    }
    // Angles of many turns: the reduction by multiples of pi must keep their bits. Kernels of the cosine share the reduction; its
    // decomposition, the sine of a sum, loses the bits of such angles.
    let angles: Vec<f64> = [
        255.0,
        256.0,
        -300.5,
        710.0,
        -1e4,
        1e5,
        1234567.0,
        -1e7,
        1e10,
        -1e20,
        7.7291793e28,
        3e38_f32,
    ]
    .map(f64::from)
    .into();
    let operand = (DType::F32, vec![angles.len()], angles);
    cases.push(table_within(
        1e-6,
        "core.sin",
        "special large",
        Attrs::new(),
        vec![operand],
    ));
    cases.extend(reductions());
    cases.extend(casts());
    cases
}

/// Returns a column and a row with the same numbers. By broadcasting, an operator gets all pairs of them.
fn pairs(dtype: DType, values: &[f64]) -> Vec<Operand> {
    vec![
        (dtype, vec![values.len(), 1], values.to_vec()),
        (dtype, vec![values.len()], values.to_vec()),
    ]
}

fn reductions() -> Vec<Case> {
    let rows = [
        [1.0, NAN, 3.0, -2.0],
        [INF, 1.0, 2.0, 3.0],
        [-INF, -INF, -INF, -INF],
        [-INF, 1.0, INF, 0.0],
        [-1.0, -2.0, -3.0, -0.5],
        [2.0, 2.0, 2.0, 2.0],
    ];
    let floats = || vec![(DType::F32, vec![6, 4], rows.as_flattened().to_vec())];
    let axes = || Attrs::new().with("axes", vec![1i64]).with("keep_dims", false);
    // Rows with a defined softmax.
    let masked = vec![(DType::F32, vec![2, 3], vec![0.0, -INF, 1.0, 100.0, -100.0, -INF])];
    let last = || Attrs::new().with("axis", -1i64);
    let wrapping = vec![(
        DType::I32,
        vec![2, 3],
        vec![2147483647.0, 1.0, 5.0, -2147483648.0, -1.0, 0.0],
    )];
    vec![
        table("core.max_reduce", "special", axes(), floats()),
        table("core.min_reduce", "special", axes(), floats()),
        table("core.sum", "special", axes(), floats()),
        table("core.argmin", "special", Attrs::new().with("axis", 1i64), floats()),
        table("core.min_reduce", "special i32", axes(), wrapping.clone()),
        table(
            "core.argmin",
            "special i32",
            Attrs::new().with("axis", 1i64),
            wrapping.clone(),
        ),
        table(
            "core.top_k",
            "special",
            Attrs::new().with("k", 3i64).with("axis", 1i64),
            floats(),
        ),
        table("core.argmax", "special", Attrs::new().with("axis", 1i64), floats()),
        table("core.softmax", "special", last(), masked.clone()),
        table("core.log_softmax", "special", last(), masked),
        table("core.sum", "special i32", axes(), wrapping),
        table("core.select", "special", Attrs::new(), chosen()),
    ]
}

/// Returns operands whose NaN elements are not selected, and must have no effect.
fn chosen() -> Vec<Operand> {
    vec![
        (DType::U32, vec![4], vec![1.0, 0.0, 1.0, 0.0]),
        (DType::F32, vec![4], vec![1.0, NAN, INF, INF]),
        (DType::F32, vec![4], vec![NAN, 2.0, NAN, -3.0]),
    ]
}

fn casts() -> Vec<Case> {
    let cast = |from: DType, to: DType, values: &[f64]| {
        let operand = (from, vec![values.len()], values.to_vec());
        table(
            "core.cast",
            &format!("special {from} to {to}"),
            Attrs::new().with("to", to),
            vec![operand],
        )
    };
    let edges = &[NAN, INF, -INF, -1.5, 1.5, 0.9, -0.9, 5e9, -5e9];
    let mut cases = vec![
        cast(DType::F32, DType::U32, edges),
        cast(DType::F32, DType::I32, edges),
        cast(DType::I32, DType::U32, SIGNED),
        cast(DType::U32, DType::I32, UNSIGNED),
        cast(DType::I32, DType::F32, SIGNED),
        cast(DType::U32, DType::F32, UNSIGNED),
    ];
    // Ties go to the even neighbour; too large numbers become infinite.
    let f16 = [
        (2049.0, 2048.0),
        (2051.0, 2052.0),
        (65519.0, 65504.0),
        (65520.0, INF),
        (-1e6, -INF),
        (NAN, NAN),
    ];
    let bf16 = [
        (257.0, 256.0),
        (259.0, 260.0),
        (-257.0, -256.0),
        (INF, INF),
        (3.4e38, INF),
        (NAN, NAN),
    ];
    for (to, table) in [(DType::F16, f16), (DType::BF16, bf16)] {
        let run = move |device: &SharedDevice| rounding(device, to, &table);
        cases.push(Case::new(format!("core.cast/rounding/{to}"), run));
    }
    cases
}

/// Creates a case that compares each element of a call on the given operands with the oracle.
fn table(op: &str, kind: &str, attrs: Attrs, operands: Vec<Operand>) -> Case {
    table_within(LIMIT, op, kind, attrs, operands)
}

/// Creates a [`table`] with its own accepted error relative to each element.
fn table_within(limit: f64, op: &str, kind: &str, attrs: Attrs, operands: Vec<Operand>) -> Case {
    let name = op.to_owned();
    let shapes: Vec<_> = operands.iter().map(|o| format!("{:?}", o.1)).collect();
    let id = format!("{op}/{kind}/{}", shapes.join(" "));
    Case::new(id, move |device| match registry::op(&name) {
        Some(op) => run_table(device, op, attrs, &operands, limit),
        None => fail(format!("there is no operator {name}")),
    })
}

fn run_table(device: &SharedDevice, op: OpRef, attrs: Attrs, operands: &[Operand], limit: f64) -> CaseRun {
    let mut graph = Graph::new();
    let mut feeds = Feeds::new();
    let mut values: Vec<Value> = Vec::new();
    for (i, (dtype, shape, data)) in operands.iter().enumerate() {
        let name = format!("operand{i}");
        values.push(graph.input_typed(&name, shape, *dtype).into());
        feeds.insert(name, data.clone());
    }
    let call = graph.call(op, attrs, values);
    let ports = graph.nodes()[call.index()].outputs.len() as u32;
    let results: Vec<Value> = (0..ports).map(|port| graph.port(call, port)).collect();
    graph.set_outputs(results.clone());
    let oracle = evaluate(&graph, &feeds)?;
    let found = run_once(&mut open(device, &graph)?, &graph, &feeds)?;
    let mut check = Check::default();
    for (result, found) in results.into_iter().zip(&found) {
        let Some(expected) = oracle.get(result) else {
            return fail("the oracle has no result");
        };
        let what = format!("result {}", result.port);
        check = check.worse(compare_each(&what, expected.ty.dtype, found, &expected.data, limit)?);
    }
    Ok(check)
}

/// Compares rounding with a table, because the oracle does not round.
fn rounding(device: &SharedDevice, to: DType, table: &[(f64, f64)]) -> CaseRun {
    let mut graph = Graph::new();
    let x = graph.input("x", &[table.len()]);
    let y = graph.cast(x, to);
    graph.set_outputs(vec![y]);
    let feeds = Feeds::from([("x".to_owned(), table.iter().map(|t| t.0).collect())]);
    let found = run_once(&mut open(device, &graph)?, &graph, &feeds)?;
    for (&(from, expected), &got) in table.iter().zip(&found[0]) {
        let same = got == expected || (got.is_nan() && expected.is_nan());
        ensure!(same, "{from} became {got} in {to}, not {expected}");
    }
    Ok(Check::default())
}
