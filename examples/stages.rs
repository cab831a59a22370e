//! Prints every stage of the pipeline separately: graph, gradients, plan.
//!
//! `cargo run --example stages`

use meganeura::{Graph, Session, autodiff, compile, optimize, profiler};

fn main() -> meganeura::Result<()> {
    let _trace = profiler::from_environment()?;
    let mut forward = Graph::new();
    let x = forward.input("x", &[2, 3]);
    let w = forward.parameter("w", &[3, 1]);
    let y = forward.matmul(x, w);
    forward.named(y, "prediction");
    let target = forward.input("target", &[2, 1]);
    let loss = forward.mse_loss(y, target);
    forward.set_outputs(vec![loss]);
    println!("--- forward\n{forward}");

    let sorted = optimize::optimize(&forward).toposort();
    let full = autodiff::differentiate(&sorted);
    let (optimized, report) = optimize::optimize_with_report(&full);
    println!("--- with gradients\n{optimized}\n{report}");

    let plan = compile::compile(&optimized);
    println!("--- plan\n{plan}");

    let mut session = Session::new(plan);
    session.set_input("x", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    session.set_input("target", &[1.0, 2.0]);
    session.step();
    println!("loss {}, gradient {:?}", session.read_loss(), session.read_grad("w"));
    Ok(())
}
