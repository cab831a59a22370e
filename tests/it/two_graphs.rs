//! The example of two graphs, one for a prompt and one with a cache, as a test: it compares with reading everything anew.

#[path = "../../examples/two_graphs.rs"]
mod example;

#[test]
fn it_runs() {
    example::main().expect("the example runs");
}
