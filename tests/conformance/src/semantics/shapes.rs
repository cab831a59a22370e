//! Cases of unusual shapes and leaves: empty tensors, scalars, aliases, unused leaves.

use meganeura_compiler::optimize::try_optimize;
use meganeura_core::DType;
use meganeura_core::graph::Graph;

use super::exact::{case, feeds, outputs, same, same_f32};
use crate::case::{Case, CaseRun, Check, SharedDevice};
use crate::harness::{open, run_once};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("shapes/empty tensors", empty_tensors),
        case("shapes/sums of nothing", sums_of_nothing),
        case("shapes/a matrix product over nothing", empty_product),
        case("shapes/an empty state", empty_state),
        case("shapes/scalars", scalars),
        case("shapes/high ranks", high_ranks),
        case("aliases/reshapes share data", aliases),
        case("aliases/an input as output", input_as_output),
        case("aliases/one value as two outputs", one_value_twice),
        case("aliases/one operand in two places", one_operand_twice),
        case("leaves/an unused input", unused_leaves),
        case("leaves/constants of every type", constants),
    ]
}

fn empty_tensors(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[0, 3]);
    let row = g.input("row", &[3]);
    let y = g.add(x, row);
    let y = g.relu(y);
    let y = g.exp(y);
    let full = g.reshape(row, &[1, 3]);
    let joined = g.concat(&[y, full], 0);
    let turned = g.permute(y, &[1, 0]);
    g.set_outputs(vec![y, joined, turned]);
    let given = feeds([("x", &[]), ("row", &[1.0, 2.0, 3.0])]);
    outputs(device, &g, &given, &[&[], &[1.0, 2.0, 3.0], &[]])
}

fn sums_of_nothing(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[0, 3]);
    let columns = g.sum(x, &[0], false);
    let all = g.sum_all(x);
    let rows = g.sum(x, &[1], false);
    g.set_outputs(vec![columns, all, rows]);
    outputs(device, &g, &feeds([("x", &[])]), &[&[0.0; 3], &[0.0], &[]])
}

fn empty_product(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let a = g.input("a", &[2, 0]);
    let b = g.input("b", &[0, 3]);
    let c = g.matmul(a, b);
    g.set_outputs(vec![c]);
    outputs(device, &g, &feeds([("a", &[]), ("b", &[])]), &[&[0.0; 6]])
}

fn empty_state(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let s = g.state("s", &[0]);
    let x = g.input("x", &[2]);
    let next = g.add(s, s);
    g.assign(s, next);
    let y = g.neg(x);
    g.set_outputs(vec![y]);
    let mut session = open(device, &g)?;
    let found = run_once(&mut session, &g, &feeds([("x", &[1.0, 2.0])]))?;
    same("the output", &found[0], &[-1.0, -2.0])?;
    same_f32("the empty state", &session.try_read_state("s")?, &[])
}

fn scalars(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[]);
    let y = g.add(x, x);
    let sum = g.sum_all(y);
    let largest = g.max(y, &[], true);
    let wide = g.expand(y, &[2, 2]);
    let one = g.reshape(y, &[1, 1]);
    g.set_outputs(vec![y, sum, largest, wide, one]);
    let expected: [&[f64]; 5] = [&[6.0], &[6.0], &[6.0], &[6.0; 4], &[6.0]];
    outputs(device, &g, &feeds([("x", &[3.0])]), &expected)
}

fn high_ranks(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[1, 2, 1, 2, 1, 2, 1]);
    let turned = g.permute(x, &[6, 5, 4, 3, 2, 1, 0]);
    let sum = g.sum(turned, &[1, 5], false);
    let column = g.input("column", &[2, 1, 1, 1]);
    let broadcast = g.add(x, column);
    g.set_outputs(vec![turned, sum, broadcast]);
    let data: Vec<f64> = (0..8).map(f64::from).collect();
    let expected: [&[f64]; 3] = [
        &[0.0, 4.0, 2.0, 6.0, 1.0, 5.0, 3.0, 7.0],
        &[10.0, 18.0],
        &[10.0, 11.0, 22.0, 23.0, 14.0, 15.0, 26.0, 27.0],
    ];
    outputs(device, &g, &feeds([("x", &data), ("column", &[10.0, 20.0])]), &expected)
}

fn aliases(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 3]);
    let tall = g.reshape(x, &[3, 2]);
    let flat = g.reshape(tall, &[6]);
    let turned = g.transpose(tall);
    let stopped = g.stop_gradient(flat);
    let sum = g.add(stopped, flat);
    g.set_outputs(vec![tall, turned, sum]);
    let data = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let expected: [&[f64]; 3] = [
        &data,
        &[1.0, 3.0, 5.0, 2.0, 4.0, 6.0],
        &[2.0, 4.0, 6.0, 8.0, 10.0, 12.0],
    ];
    outputs(device, &g, &feeds([("x", &data)]), &expected)
}

fn input_as_output(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let seen = g.reshape(x, &[2, 1]);
    g.set_outputs(vec![x, seen]);
    outputs(device, &g, &feeds([("x", &[1.0, 2.0])]), &[&[1.0, 2.0], &[1.0, 2.0]])
}

fn one_value_twice(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let y = g.neg(x);
    let again = g.neg(x);
    g.set_outputs(vec![y, again, y]);
    let (optimized, _) = try_optimize(&g)?;
    let expected: [&[f64]; 3] = [&[-1.0, -2.0]; 3];
    outputs(device, &g, &feeds([("x", &[1.0, 2.0])]), &expected)?;
    outputs(device, &optimized, &feeds([("x", &[1.0, 2.0])]), &expected)
}

fn one_operand_twice(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 2]);
    let square = g.mul(x, x);
    let product = g.matmul(x, x);
    let joined = g.concat(&[x, x], 1);
    let condition = g.less_than(x, square);
    let chosen = g.select(condition, x, x);
    g.set_outputs(vec![square, product, joined, chosen]);
    let data = [1.0, 2.0, 3.0, 4.0];
    let expected: [&[f64]; 4] = [
        &[1.0, 4.0, 9.0, 16.0],
        &[7.0, 10.0, 15.0, 22.0],
        &[1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0],
        &data,
    ];
    outputs(device, &g, &feeds([("x", &data)]), &expected)
}

fn unused_leaves(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    g.input_u32("unused ids", &[4]);
    g.parameter("unused parameter", &[3]);
    g.state_filled("unused state", &[3], 1.5);
    let y = g.neg(x);
    g.set_outputs(vec![y]);
    let (optimized, _) = try_optimize(&g)?;
    for graph in [&g, &optimized] {
        let mut session = open(device, graph)?;
        session.try_set_input_u32("unused ids", &[1, 2, 3, 4])?;
        session.try_set_parameter("unused parameter", &[1.0, 2.0, 3.0])?;
        let found = run_once(&mut session, graph, &feeds([("x", &[1.0, 2.0])]))?;
        same("the output", &found[0], &[-1.0, -2.0])?;
        same_f32("the state", &session.try_read_state("unused state")?, &[1.5; 3])?;
        let parameter = session.try_read_parameter("unused parameter")?;
        same_f32("the parameter", &parameter, &[1.0, 2.0, 3.0])?;
    }
    Ok(Check::default())
}

fn constants(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let mut outs = vec![
        g.constant(vec![1.5, -2.0], &[2]),
        g.constant_u32(vec![7, u32::MAX], &[2]),
    ];
    for dtype in DType::ALL {
        outs.push(g.scalar_of(dtype, 3.0));
    }
    outs.push(g.full(DType::F16, 0.5, &[3]));
    g.set_outputs(outs);
    let three: &[f64] = &[3.0];
    let expected: [&[f64]; 8] = [
        &[1.5, -2.0],
        &[7.0, f64::from(u32::MAX)],
        three,
        three,
        three,
        three,
        three,
        &[0.5; 3],
    ];
    outputs(device, &g, &feeds([]), &expected)
}
