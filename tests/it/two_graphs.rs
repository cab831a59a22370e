//! Test of the example with two graphs, one for a prompt and one with a cache. The results equal those of a single
//! graph that reads the whole text.

#[path = "../../examples/two_graphs.rs"]
mod example;

#[test]
fn it_runs() {
    example::main().expect("the example runs");
}
