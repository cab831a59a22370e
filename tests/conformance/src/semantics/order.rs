//! Cases of the order of reads and writes of persistent data.

use meganeura_core::autodiff::try_differentiate;
use meganeura_core::graph::{Graph, NodeId};

use super::exact::{case, feeds, same, same_f32};
use crate::case::{Case, CaseRun, Check, SharedDevice};
use crate::harness::{Feeds, open, run_once};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("writes/reads before and after", reads_before_and_after),
        case("writes/a write without a reader", write_without_reader),
        case("writes/deferred by a reader of both values", deferred_write),
        case("writes/two states change places", exchange),
        case("writes/a state onto itself", onto_itself),
        case("writes/written twice", written_twice),
        case("writes/written twice, both deferred", written_twice_deferred),
        case("writes/an output keeps the old value", exported_old_value),
        case("writes/an alias as output keeps the old value", exported_alias),
        case("writes/gradient through a state", gradient_of_old_value),
        case("writes/a parameter by assignment", parameter_written),
        case(
            "writes/an output keeps a parameter from before the update",
            output_before_update,
        ),
    ]
}

/// Adds the value `x + 1` to a graph.
fn plus_one(g: &mut Graph, x: NodeId) -> NodeId {
    let one = g.scalar(1.0);
    g.add(x, one)
}

fn no_feeds() -> Feeds {
    Feeds::new()
}

fn reads_before_and_after(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let s = g.state("s", &[3]);
    let two = g.scalar(2.0);
    let before = g.mul(s, two);
    let next = plus_one(&mut g, s);
    g.assign(s, next);
    let after = g.mul(s, two);
    g.set_outputs(vec![before, after]);
    let mut session = open(device, &g)?;
    for step in 0..3 {
        let found = run_once(&mut session, &g, &no_feeds())?;
        let old = f64::from(step);
        same("the read before the write", &found[0], &[2.0 * old; 3])?;
        same("the read after the write", &found[1], &[2.0 * (old + 1.0); 3])?;
        same_f32("the state", &session.try_read_state("s")?, &[step as f32 + 1.0; 3])?;
    }
    Ok(Check::default())
}

fn write_without_reader(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let s = g.state_filled("s", &[2], 5.0);
    g.assign(s, x);
    let y = plus_one(&mut g, x);
    g.set_outputs(vec![y]);
    let mut session = open(device, &g)?;
    same_f32("a fresh state", &session.try_read_state("s")?, &[5.0; 2])?;
    run_once(&mut session, &g, &feeds([("x", &[1.0, 2.0])]))?;
    same_f32("the state", &session.try_read_state("s")?, &[1.0, 2.0])
}

/// Checks a read of the old value that depends on the write, so that the write cannot be in place.
fn deferred_write(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let s = g.state("s", &[2]);
    let old = g.reshape(s, &[1, 2]);
    let sum = g.add(s, x);
    let new = g.assign(s, sum);
    let y = g.sub(new, old);
    g.set_outputs(vec![y]);
    let mut session = open(device, &g)?;
    for step in 1..4 {
        let found = run_once(&mut session, &g, &feeds([("x", &[1.0, 2.0])]))?;
        same("new minus old", &found[0], &[1.0, 2.0])?;
        let n = step as f32;
        same_f32("the state", &session.try_read_state("s")?, &[n, 2.0 * n])?;
    }
    Ok(Check::default())
}

fn exchange(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let a = g.state_filled("a", &[2], 1.0);
    let b = g.state_filled("b", &[2], 2.0);
    let old = g.reshape(a, &[2, 1]);
    let old = g.reshape(old, &[2]);
    g.assign(a, b);
    let y = g.assign(b, old);
    g.set_outputs(vec![y]);
    let mut session = open(device, &g)?;
    for step in 0..3 {
        run_once(&mut session, &g, &no_feeds())?;
        let (first, second) = if step % 2 == 0 { (2.0, 1.0) } else { (1.0, 2.0) };
        same_f32("a", &session.try_read_state("a")?, &[first; 2])?;
        same_f32("b", &session.try_read_state("b")?, &[second; 2])?;
    }
    Ok(Check::default())
}

fn onto_itself(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let s = g.state("s", &[3]);
    let y = g.assign(s, s);
    g.set_outputs(vec![y]);
    let mut session = open(device, &g)?;
    session.try_set_state("s", &[1.0, 2.0, 3.0])?;
    let found = run_once(&mut session, &g, &no_feeds())?;
    same("the output", &found[0], &[1.0, 2.0, 3.0])?;
    same_f32("the state", &session.try_read_state("s")?, &[1.0, 2.0, 3.0])
}

fn written_twice(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let s = g.state("s", &[2]);
    let one = plus_one(&mut g, s);
    g.assign(s, one);
    let between = plus_one(&mut g, s);
    let doubled = g.add(s, s);
    g.assign(s, doubled);
    let after = plus_one(&mut g, s);
    g.set_outputs(vec![between, after]);
    let mut session = open(device, &g)?;
    let mut s = 0.0;
    for _ in 0..3 {
        let found = run_once(&mut session, &g, &no_feeds())?;
        same("the read between the writes", &found[0], &[s + 2.0; 2])?;
        s = 2.0 * (s + 1.0);
        same("the read after the writes", &found[1], &[s + 1.0; 2])?;
        same_f32("the state", &session.try_read_state("s")?, &[s as f32; 2])?;
    }
    Ok(Check::default())
}

/// Checks two writes where the readers of each old value depend on the write that replaces it.
fn written_twice_deferred(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let s = g.state("s", &[2]);
    let first_old = g.reshape(s, &[2, 1]);
    let first_old = g.reshape(first_old, &[2]);
    let one = plus_one(&mut g, s);
    let first = g.assign(s, one);
    let first_difference = g.sub(first, first_old);
    let second_old = g.reshape(s, &[2, 1]);
    let second_old = g.reshape(second_old, &[2]);
    let doubled = g.add(s, s);
    let second = g.assign(s, doubled);
    let second_difference = g.sub(second, second_old);
    g.set_outputs(vec![first_difference, second_difference]);
    let mut session = open(device, &g)?;
    let mut s = 0.0;
    for _ in 0..3 {
        let found = run_once(&mut session, &g, &no_feeds())?;
        same("the first difference", &found[0], &[1.0; 2])?;
        same("the second difference", &found[1], &[s + 1.0; 2])?;
        s = 2.0 * (s + 1.0);
        same_f32("the state", &session.try_read_state("s")?, &[s as f32; 2])?;
    }
    Ok(Check::default())
}

fn exported_old_value(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let s = g.state_filled("s", &[2], 3.0);
    // Before the write, so that the output is the old value.
    g.set_outputs(vec![s]);
    let next = plus_one(&mut g, s);
    g.assign(s, next);
    let mut session = open(device, &g)?;
    for step in 0..2 {
        let found = run_once(&mut session, &g, &no_feeds())?;
        same("the output of the old value", &found[0], &[3.0 + f64::from(step); 2])?;
        same_f32("the state", &session.try_read_state("s")?, &[4.0 + step as f32; 2])?;
    }
    Ok(Check::default())
}

fn exported_alias(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let s = g.state_filled("s", &[2], 3.0);
    let old = g.reshape(s, &[2, 1]);
    let next = plus_one(&mut g, s);
    g.assign(s, next);
    g.set_outputs(vec![old]);
    let mut session = open(device, &g)?;
    for step in 0..2 {
        let found = run_once(&mut session, &g, &no_feeds())?;
        same("the output of the old value", &found[0], &[3.0 + f64::from(step); 2])?;
        same_f32("the state", &session.try_read_state("s")?, &[4.0 + step as f32; 2])?;
    }
    Ok(Check::default())
}

/// Checks that the derivative of `sum(x * s)` is the old value of `s`, although the write of `s` is executed before the
/// backward pass.
fn gradient_of_old_value(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let s = g.state_filled("s", &[2], 3.0);
    g.require_grad(x);
    let product = g.mul(x, s);
    let next = plus_one(&mut g, s);
    g.assign(s, next);
    let loss = g.sum_all(product);
    g.set_outputs(vec![loss]);
    let full = try_differentiate(&g)?;
    let mut session = open(device, &full)?;
    for step in 0..2 {
        let old = 3.0 + step as f32;
        let found = run_once(&mut session, &full, &feeds([("x", &[1.0, 2.0])]))?;
        same("the loss", &found[0], &[3.0 * f64::from(old)])?;
        same_f32("the gradient", &session.try_read_grad("x")?, &[old; 2])?;
        same_f32("the state", &session.try_read_state("s")?, &[old + 1.0; 2])?;
    }
    Ok(Check::default())
}

fn parameter_written(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let p = g.parameter("p", &[2]);
    let sum = g.add(p, x);
    let y = g.assign(p, sum);
    g.set_outputs(vec![y]);
    let mut session = open(device, &g)?;
    session.try_set_parameter("p", &[10.0, 20.0])?;
    run_once(&mut session, &g, &feeds([("x", &[1.0, 2.0])]))?;
    let found = run_once(&mut session, &g, &feeds([("x", &[1.0, 2.0])]))?;
    same("the output", &found[0], &[12.0, 24.0])?;
    same_f32("the parameter", &session.try_read_parameter("p")?, &[12.0, 24.0])
}

/// Checks that an output has the value of the forward pass, even if it is a parameter that the update changes in place.
fn output_before_update(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let p = g.parameter("p", &[2]);
    let loss = g.sum_all(p);
    g.set_outputs(vec![loss, p]);
    let full = try_differentiate(&g)?;
    let mut session = open(device, &full)?;
    session.try_set_parameter("p", &[1.0, 2.0])?;
    session.try_set_learning_rate(1.0)?;
    let found = run_once(&mut session, &full, &no_feeds())?;
    same("the loss", &found[0], &[3.0])?;
    same("the output", &found[1], &[1.0, 2.0])?;
    same_f32("the parameter", &session.try_read_parameter("p")?, &[0.0, 1.0])
}
